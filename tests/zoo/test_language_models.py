from __future__ import annotations

import pytest
import torch

from gnnplace import zoo
from gnnplace.errors import InputError
from gnnplace.zoo.language_models import SearchedCell, sample_nodes


def test_sampled_cells_are_those_of_their_seed_and_take_earlier_nodes():
    assert sample_nodes(3, 8) == sample_nodes(3, 8) != sample_nodes(4, 8)
    assert all(source < max(1, i) for i, (source, _) in enumerate(sample_nodes(3, 8)))


def test_a_step_is_what_the_formula_says():
    cell = SearchedCell(4, [(0, "tanh"), (0, "relu"), (0, "identity")])
    x, state = torch.randn(2, 4), torch.randn(2, 4)

    def highway(y, before, activation):
        gate = torch.sigmoid(y[:, :4])
        return gate * activation(y[:, 4:]) + (1 - gate) * before

    first = highway(cell.first(torch.cat([x, state], 1)), state, torch.tanh)
    second = highway(cell.others[0](first), first, torch.relu)
    third = highway(cell.others[1](first), first, lambda y: y)
    assert cell.unread == [1, 2]
    assert torch.allclose(cell.step(x, state), (second + third) / 2)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("rnn_lm", {}),
        ("big_lstm", {}),
        ("searched_rnn", {}),
        ("highway", {"layers": 2}),
    ],
)
def test_words_depend_on_earlier_words_alone(name, sizes):
    work = zoo.build(name, batch=2, length=5, **sizes)
    words = work.inputs[0].clone()
    before = work.model(words)
    words[:, 3] = (words[:, 3] + 1) % 1000
    after = work.model(words)
    assert torch.allclose(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


def test_other_cells_are_refused():
    for name in ("rnn_lm", "tagger"):
        with pytest.raises(
            InputError, match=f"{name}: cell 'elman': unknown; there are lstm, gru"
        ):
            zoo.build(name, cell="elman")


def test_big_lstm_has_the_paper_s_parameters():
    """Embedding and recurrent layers as section 4.2 has them; the state is the projection."""
    work = zoo.build(
        "big_lstm", batch=2, length=3, vocabulary=100, cells=64, width=16, samples=30
    )
    sizes = {name: tuple(value.shape) for name, value in work.model.named_parameters()}
    assert sizes["embedding.weight"] == (100, 16)
    assert sizes["recurrent.weight_ih_l1"] == (4 * 64, 16)
    assert sizes["recurrent.weight_hr_l0"] == (16, 64)
    assert work.model(work.inputs[0]).shape == (2, 3, 30)
    with pytest.raises(InputError, match="width 128: must be less than cells, 128"):
        zoo.build("big_lstm", width=128)


def test_a_tagger_reads_both_ways():
    work = zoo.build("tagger", batch=2, length=5)
    model, words = work.model.eval(), work.inputs[0]
    before = model(words)
    for changed in (0, 4):
        others = words.clone()
        others[:, changed] = (others[:, changed] + 1) % 1000
        after = model(others)
        assert all(not torch.equal(after[:, i], before[:, i]) for i in range(5))
