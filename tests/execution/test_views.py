"""A tensor and its views travel together: once, and are the same numbers on arrival."""

from __future__ import annotations

import numpy as np
import torch

from gnnplace.execution import execute, verify
from gnnplace.execution.plan import plan_execution
from gnnplace.execution.views import travels, view_chains
from gnnplace.graph.quotient import quotient
from gnnplace.problem import Problem, build_problem
from gnnplace.problem.placement import Placement
from gnnplace.tracing.program import Program
from gnnplace.tracing.structure import program_graph
from tests.execution.programs import ProgramBuilder, cpu_cluster

aten = torch.ops.aten
GROUPS = (("h", "turned", "again"), ("product", "total", "loss"))


def program() -> Program:
    """One op makes a tensor, its transpose and the transpose of that; another reads all three."""
    made = ProgramBuilder()
    x = made.input("x", "input", 4, 4)
    made.op("h", aten.relu.default, x)
    made.op("turned", aten.t.default, "h")
    made.op("again", aten.t.default, "turned")
    made.op("product", aten.mm.default, "h", "turned")
    made.op("total", aten.add.Tensor, "product", "again")
    made.loss = made.op("loss", aten.sum.default, "total")
    return made.program()


def problem(groups: tuple[tuple[str, ...], ...]) -> Problem:
    step = program()
    group_of = {name: g for g, names in enumerate(groups) for name in names}
    graph = program_graph(step).graph
    group = np.array([group_of[op.name] for op in step.ops], dtype=np.int32)
    names = [members[0] for members in groups]
    return build_problem(
        "views",
        quotient(graph, group, names),
        cpu_cluster(2),
        {"cpu": np.full(len(groups), 1e-5)},
        members=groups,
    )


def test_only_the_root_travels_where_views_are_wanted_too():
    step = program()
    found = travels(step, [0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1])
    assert found.targets == {"h": {1}}
    assert found.anew == {("turned", 1): (1,), ("again", 1): (1, 2)}
    assert view_chains(step) == {"turned": (1,), "again": (1, 2)}


def test_a_view_alone_travels_as_itself_and_another_ops_view_too():
    step = program()
    alone = travels(step, [0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1])
    assert alone.targets == {"product": {1}, "again": {1}}
    assert alone.anew == {}
    parted = travels(step, [0, 1, 1, 2, 2, 2], [0, 0, 0, 1, 1, 1])
    assert parted.targets == {"h": {1}, "turned": {1}, "again": {1}}


def test_a_run_sends_one_tensor_and_computes_the_same():
    step, parts = program(), problem(GROUPS)
    sequence = (np.array([0], np.int32), np.array([1], np.int32))
    placement = Placement(np.array([0, 1], np.int32), sequence)
    plan = plan_execution(step, parts, placement)
    assert [(t.value, t.target) for t in plan.transfers] == [("h", 1)]
    done = execute(step, parts, placement, steps=1, warmup=0, mode="emulated")
    assert verify(step, done).bitwise
