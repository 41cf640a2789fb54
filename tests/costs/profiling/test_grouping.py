"""Grouped graphs keep bytes, state and classes.

Units: what may be on a device of its own under accelerate's hooks.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gnnplace.costs.profiling.grouping import (
    find_outermost_modules,
    find_units,
    group_graph,
)
from gnnplace.costs.profiling.profiler import group_ops
from gnnplace.errors import InputError
from gnnplace.tracing.models import capture
from gnnplace.tracing.program.structure import program_graph
from tests.costs.profiling.programs import small
from tests.run.device_maps.mapped import build


def test_one_group_an_op_changes_nothing() -> None:
    program = small()
    fine = program_graph(program)
    alone, cost = np.arange(len(program.ops), dtype=np.int32), np.ones(len(program.ops))
    coarse = group_graph(program, fine, alone, cost, apart=True)
    assert coarse.graph.names == fine.graph.names
    assert np.array_equal(coarse.graph.size, fine.graph.size)
    assert np.array_equal(coarse.graph.consumer, fine.graph.consumer)
    assert coarse.colocate == fine.colocate


def test_tensors_that_leave_and_state_that_stays() -> None:
    program = small()
    fine = program_graph(program)
    group = group_ops(program, 40)
    coarse = group_graph(program, fine, group, np.ones(len(program.ops)))
    sizes: dict[tuple[int, int], float] = {}  # one for a group's values in one memory
    for k, name in enumerate(fine.values):
        own = group[fine.graph.producer[k]]
        if name and any(group[c] != own for c in fine.graph.consumers(k)):
            key = (int(own), int(fine.root[k]))
            size = fine.graph.size[k] if fine.root[k] >= 0 else 0.0
            sizes[key] = max(sizes.get(key, 0.0), size)
    assert np.isclose(coarse.graph.size.sum(), sum(sizes.values()))
    assert np.isclose(coarse.state.sum(), fine.state.sum())
    source, target, _ = fine.graph.edges
    across = {
        (a, b) for a, b in zip(group[source], group[target], strict=True) if a != b
    }
    edges = set(zip(*(e.tolist() for e in coarse.graph.edges[:2]), strict=True))
    assert edges == across


def test_an_expanded_index_takes_the_memory_of_its_base() -> None:
    def add_up(values: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        rows = target[:, None].expand_as(values)
        return torch.zeros(4, 64).scatter_add(0, rows, values)

    class Sum(nn.Module):
        forward = staticmethod(add_up)

    inputs = torch.ones(100, 64), torch.zeros(100, dtype=torch.int64)
    program = capture(Sum(), inputs, forward_only=True)
    fine = program_graph(program)
    alone = np.arange(len(program.ops), dtype=np.int32)
    coarse = group_graph(program, fine, alone, np.ones(len(program.ops)))
    # 100 indices of 8 bytes, and not 64 times as many.
    assert 800.0 in coarse.graph.size
    assert coarse.graph.size.max() < 100 * 64 * 8


def test_what_a_group_needs_while_it_runs_is_a_tensor_that_nothing_reads() -> None:
    class Chain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1).exp().sum(1)

    program = capture(Chain(), (torch.ones(10, 25),), forward_only=True)
    fine = program_graph(program)
    together = np.zeros(len(program.ops), dtype=np.int32)
    own = np.zeros(len(program.ops))
    coarse = group_graph(program, fine, together, own + 1.0, op_workspace=own)
    # The sum and its exponential at once, 1,000 bytes each; the result is 40 bytes.
    assert coarse.graph.size.tolist() == [2000.0]
    assert coarse.graph.num_tensors == 1
    assert coarse.graph.consumer.size == 0


def test_members_are_a_partition_in_program_order() -> None:
    program = small()
    group = group_ops(program, 40)
    coarse = group_graph(
        program, program_graph(program), group, np.ones(len(program.ops))
    )
    assert sorted(n for m in coarse.members for n in m) == sorted(
        o.name for o in program.ops
    )
    for names in coarse.members:
        positions = [program.op_index[n] for n in names]
        assert positions == sorted(positions)
    assert all(
        name in members
        for name, members in zip(coarse.graph.names, coarse.members, strict=True)
    )


def test_classes_that_meet_in_a_group_become_one() -> None:
    program = small()
    fine = program_graph(program)
    group = group_ops(program, 40)
    coarse = group_graph(program, fine, group, np.ones(len(program.ops)))
    united: dict[str, str | None] = {}
    for name, g in zip(fine.colocate, group, strict=True):
        if name is not None:
            assert coarse.colocate[g] is not None
            assert united.setdefault(name, coarse.colocate[g]) == coarse.colocate[g]


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
    labels = find_outermost_modules(program, ["Block"])
    assert {*labels} == {None, "blocks.0", "blocks.1", "blocks.2"}
    with pytest.raises(InputError, match=r"no-split 'Blok'.*did you mean 'Block'"):
        find_units(program, ["Blok"])


def test_the_loss_is_no_part_of_the_model():
    """Targets and losses tie nothing."""
    model, ids = build()
    program = capture(
        model,
        (ids, ids),
        loss=lambda out, ids: nn.functional.cross_entropy(
            out.flatten(0, 1), ids.flatten()
        ),
    )
    units = find_units(program)
    assert units.names[-2:] == ("head", "unread")
    assert [why for *_, why in units.ties] == [
        "the model itself brings together what both make"
    ]
