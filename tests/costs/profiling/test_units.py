"""Units: what may be on a device of its own under accelerate's hooks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gnnplace.costs.profiling.units import find_units, whole_modules
from gnnplace.errors import InputError
from gnnplace.tracing import capture
from tests.execution.mapped import build


def units_of(model, *inputs, forward_only=True, no_split=()):
    return find_units(capture(model, inputs, forward_only=forward_only), no_split)


@pytest.mark.parametrize("forward_only", [True, False])
def test_residual_blocks_are_whole_and_sums_tie(forward_only):
    """A block adds its argument: it is whole. The model adds two embeddings: they are tied."""
    units = units_of(*build(), forward_only=forward_only)
    blocks = ("blocks.0", "blocks.1", "blocks.2")
    assert units.names == ("words", "places", *blocks, "head", "unread")
    assert [(a, b) for a, b, _ in units.ties] == [("words", "places")]
    assert "the model itself" in units.ties[0][2]
    assert units.classes["places"] == "words"


def test_tied_parameters_tie_their_modules():
    """One tensor under two names is on one device."""
    units = units_of(*build(tied=True, blocks=1))
    assert ("words", "head", "both hold 'words.weight'") in units.ties
    assert units.classes["head"] == "words"


class Branches(nn.Module):
    """Its own code joins two branches; the model's does so with its argument."""

    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.right = nn.Linear(4, 4)

    def forward(self, x):
        return torch.cat([self.left(x), self.right(x)], 1)


def test_branches_are_tied_at_their_ends():
    """What a module makes of its children alone ties these; the rest stays free."""
    units = units_of(Branches(), torch.randn(2, 4))
    assert [(a, b) for a, b, _ in units.ties] == [("left.2", "right")]
    assert units.classes["left.0"] == "left.0"


class Loose(nn.Module):
    """Uses a child's parameter without calling the child."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return nn.functional.linear(self.first(x), self.second.weight)


def test_code_that_uses_a_childs_parameters_is_the_parents():
    """No hook is called, so that both must share a device."""
    units = units_of(Loose(), torch.randn(2, 4))
    assert [(a, b) for a, b, _ in units.ties] == [("first", "second")]


def test_a_model_with_parameters_of_its_own_is_whole():
    """Hooks move the parameters of modules in the map, and the model itself is around them."""

    class Scaled(Loose):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return super().forward(x) * self.scale

    assert units_of(Scaled(), torch.randn(2, 4)).names == ("",)


def test_classes_that_are_not_split():
    """A class names all its modules; a wrong one is refused with those that are like it."""
    program = capture(*build(blocks=3), forward_only=True)
    assert find_units(program, ["ModuleList"]).names[2] == "blocks"
    labels = whole_modules(program, ["Block"])
    assert {*labels} == {None, "blocks.0", "blocks.1", "blocks.2"}
    with pytest.raises(InputError, match=r"no-split 'Blok'.*did you mean 'Block'"):
        find_units(program, ["Blok"])


def test_the_loss_is_no_part_of_the_model():
    """Targets and losses tie nothing."""
    model, ids = build()
    program = capture(
        model,
        (ids, ids),
        loss=lambda out, ids: nn.functional.cross_entropy(out.flatten(0, 1), ids.flatten()),
    )
    units = find_units(program)
    assert units.names[-2:] == ("head", "unread")
    assert [why for *_, why in units.ties] == ["the model itself brings together what both make"]
