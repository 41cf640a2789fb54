from __future__ import annotations

import torch

from gnnplace import zoo


def test_a_word_sees_the_whole_source_and_earlier_words_alone():
    model = zoo.build("gnmt", batch=2, source=4, target=5).model
    source, target = torch.randint(1000, (2, 4)), torch.randint(1000, (2, 5))
    before = model(source, target)
    later = target.clone()
    later[:, 3] = (later[:, 3] + 1) % 1000
    assert torch.allclose(model(source, later)[:, :3], before[:, :3])
    assert not torch.allclose(model(source, later)[:, 3], before[:, 3])
    other = source.clone()
    other[:, -1] = (other[:, -1] + 1) % 1000
    assert not torch.allclose(model(other, target)[:, 0], before[:, 0])


def test_attention_is_a_mean_of_the_memory():
    decoder = zoo.build("gnmt").model.decoder
    memory = torch.randn(2, 1, 128).expand(2, 6, 128)
    assert torch.allclose(
        decoder.attend(torch.randn(2, 128), memory), memory[:, 0], atol=1e-6
    )
