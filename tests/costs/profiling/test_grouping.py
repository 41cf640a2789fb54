"""Grouped graphs keep bytes, state and classes."""

from __future__ import annotations

import numpy as np

from gnnplace.costs.profiling.grouping import group_graph
from gnnplace.costs.profiling.profiler import group_ops
from gnnplace.tracing.structure import program_graph
from tests.costs.profiling.programs import small


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
    across = {(a, b) for a, b in zip(group[source], group[target], strict=True) if a != b}
    edges = set(zip(*(e.tolist() for e in coarse.graph.edges[:2]), strict=True))
    assert edges == across


def test_members_are_a_partition_in_program_order() -> None:
    program = small()
    group = group_ops(program, 40)
    coarse = group_graph(program, program_graph(program), group, np.ones(len(program.ops)))
    assert sorted(n for m in coarse.members for n in m) == sorted(o.name for o in program.ops)
    for names in coarse.members:
        positions = [program.op_index[n] for n in names]
        assert positions == sorted(positions)
    assert all(
        name in members for name, members in zip(coarse.graph.names, coarse.members, strict=True)
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
