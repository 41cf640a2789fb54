from __future__ import annotations

import torch

from gnnplace import zoo
from gnnplace.bench.models.speech import Listener


def test_each_layer_above_the_first_halves_the_frames():
    torch.manual_seed(0)
    listener, sound = Listener(5, 8, 3), torch.randn(2, 11, 5)
    first = listener.layers[0](sound)[0]
    second = listener.layers[1](torch.cat([first[:, 0:10:2], first[:, 1:10:2]], 2))[0]
    third = listener.layers[2](torch.cat([second[:, 0:4:2], second[:, 1:4:2]], 2))[0]
    torch.testing.assert_close(listener(sound), third)


def test_letters_depend_on_the_sound_and_on_earlier_letters_alone():
    work = zoo.build("speech", batch=2, frames=4, letters=5, width=16)
    sound, letters = work.inputs[0], work.inputs[1].clone()
    before = work.model(sound, letters)
    letters[:, 3] = (letters[:, 3] + 1) % 30
    after = work.model(sound, letters)
    assert torch.allclose(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])
    assert not torch.allclose(work.model(sound + 1.0, letters)[:, 0], after[:, 0])
