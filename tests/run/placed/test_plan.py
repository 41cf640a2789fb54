"""Plans cut programs so that nothing is lost, sent twice or waited for in vain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gnnplace.errors import DeadlockError, MismatchError
from gnnplace.graph.computation_graph import quotient
from gnnplace.problem import Problem, build_problem
from gnnplace.problem.placement import Placement
from gnnplace.run.checking.verification import verify
from gnnplace.run.placed.executor import execute
from gnnplace.run.placed.options import ExecutionOptions
from gnnplace.run.placed.plan import find_crossing_values, plan_execution, view_chains
from gnnplace.tracing.program.program import Program
from gnnplace.tracing.program.structure import program_graph
from tests.run.programs import (
    ProgramBuilder,
    cpu_cluster,
    problem_of,
    random_placement,
    two_towers,
)

PROGRAM = two_towers()
PROBLEM = problem_of(PROGRAM, 3)
aten = torch.ops.aten
GROUPS = (("h", "turned", "again"), ("product", "total", "loss"))


@pytest.mark.parametrize("seed", range(5))
def test_every_op_runs_once_on_its_device_and_every_value_is_sent_once_to_each_reader(
    seed,
):
    placement = random_placement(PROBLEM, seed)
    plan = plan_execution(PROGRAM, PROBLEM, placement)
    ran = [i for segments in plan.segments for s in segments for i in s.ops]
    assert sorted(ran) == list(range(len(PROGRAM.ops)))
    wanted = {
        (read, int(placement.device[i]))
        for i, op in enumerate(PROGRAM.ops)
        for read in op.reads
        if read in PROGRAM.producer
        and placement.device[PROGRAM.producer[read]] != placement.device[i]
    }
    assert sorted((t.value, t.target) for t in plan.transfers) == sorted(wanted)
    sent = [m for segments in plan.segments for s in segments for m in s.sends]
    received = [m for segments in plan.segments for s in segments for m in s.receives]
    assert sorted(sent) == sorted(received) == list(range(len(plan.transfers)))


def test_parameters_and_inputs_do_not_travel():
    plan = plan_execution(PROGRAM, PROBLEM, random_placement(PROBLEM, 3))
    assert not {t.value for t in plan.transfers} & PROGRAM.inputs.keys()
    for name, entry in PROGRAM.inputs.items():
        if entry.kind == "parameter":
            assert len(plan.holders[name]) == 1


def test_sequences_that_contradict_the_graph_name_the_ops_that_wait():
    placement = random_placement(PROBLEM, 0)
    assert placement.sequence is not None
    turned = Placement(placement.device, tuple(ops[::-1] for ops in placement.sequence))
    with pytest.raises(DeadlockError, match=r"op '.*' on 'cpu:\d' waits for '"):
        plan_execution(PROGRAM, PROBLEM, turned)


def test_an_update_before_a_reader_is_refused():
    device = np.zeros(PROBLEM.num_ops, np.int32)
    order = list(range(PROBLEM.num_ops))
    names = PROBLEM.graph.names
    update, reader = names.index("update0.1"), names.index("gh0.1")
    order.remove(reader)
    order.insert(order.index(update) + 1, reader)
    empty = np.array([], np.int32)
    placement = Placement(device, (np.array(order, np.int32), empty, empty))
    with pytest.raises(DeadlockError, match=r"'gh0.1'|'update0.1'"):
        plan_execution(PROGRAM, PROBLEM, placement)


def test_an_update_on_another_device_than_a_reader_is_refused():
    device = np.zeros(PROBLEM.num_ops, np.int32)
    device[PROBLEM.graph.names.index("update0.0")] = 1
    with pytest.raises(MismatchError, match=r"'update0.0' changes what '.*' reads"):
        plan_execution(PROGRAM, PROBLEM, Placement(device))


def test_groups_run_their_members_in_program_order():
    members = tuple((name,) for name in PROBLEM.graph.names[:-2])
    grouped = replace(PROBLEM, members=(*members, (PROBLEM.graph.names[-2],), ()))
    plan = plan_execution(PROGRAM, grouped, random_placement(PROBLEM, 1))
    assert sum(len(s.ops) for segments in plan.segments for s in segments) == len(
        PROGRAM.ops
    )


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (lambda m: (("stranger",), *m[1:]), "'stranger' is not in program"),
        (lambda m: (m[1], *m[1:]), "is in another op, too"),
        (lambda m: (*m[:-2], m[-2][:0] or (m[0][0],), m[-1]), "is in another op, too"),
    ],
)
def test_a_problem_of_another_program_is_refused(members, message):
    base = tuple((name,) for name in PROBLEM.graph.names)
    wrong = replace(PROBLEM, members=members(base))
    with pytest.raises(MismatchError, match=message):
        plan_execution(PROGRAM, wrong, random_placement(PROBLEM, 1))


def test_an_op_in_no_group_is_named():
    short = two_towers(layers=1)
    with pytest.raises(MismatchError, match="is in no op of problem"):
        plan_execution(
            replace(short, ops=(*short.ops, replace(short.ops[0], name="extra"))),
            problem_of(short, 2),
            random_placement(problem_of(short, 2), 0),
        )


def test_a_sequence_without_an_op_is_refused():
    placement = random_placement(PROBLEM, 0)
    assert placement.sequence is not None
    short = (placement.sequence[0][1:], *placement.sequence[1:])
    with pytest.raises(MismatchError, match="exactly once"):
        plan_execution(PROGRAM, PROBLEM, Placement(placement.device, short))


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
    found = find_crossing_values(step, [0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1])
    assert found.targets == {"h": {1}}
    assert found.remade == {("turned", 1): (1,), ("again", 1): (1, 2)}
    assert view_chains(step) == {"turned": (1,), "again": (1, 2)}


def test_a_view_alone_travels_as_itself_and_another_ops_view_too():
    step = program()
    alone = find_crossing_values(step, [0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1])
    assert alone.targets == {"product": {1}, "again": {1}}
    assert alone.remade == {}
    parted = find_crossing_values(step, [0, 1, 1, 2, 2, 2], [0, 0, 0, 1, 1, 1])
    assert parted.targets == {"h": {1}, "turned": {1}, "again": {1}}


def test_a_run_sends_one_tensor_and_computes_the_same():
    step, parts = program(), problem(GROUPS)
    sequence = (np.array([0], np.int32), np.array([1], np.int32))
    placement = Placement(np.array([0, 1], np.int32), sequence)
    plan = plan_execution(step, parts, placement)
    assert [(t.value, t.target) for t in plan.transfers] == [("h", 1)]
    done = execute(
        step,
        parts,
        placement,
        ExecutionOptions(steps=1, warmup=0, mode="emulated"),
    )
    assert verify(step, done).bitwise
