"""The generated step computes the program, frees what is dead, and its lines name ops."""

from __future__ import annotations

import torch

from gnnplace.run.placed.plan import plan_execution
from gnnplace.run.placed.source import TICKS, device_program
from gnnplace.run.placed.worker import DeviceClock
from tests.run.programs import ProgramBuilder, problem_of, random_placement, two_towers

aten = torch.ops.aten


def run_alone(program, saved):
    problem = problem_of(program, 1)
    plan = plan_execution(program, problem, random_placement(problem, 0, shuffle=False))
    written = device_program(plan, 0, saved)
    found = {}
    tensors = {
        name: program.initial[value].clone() for value, name in written.inputs.items()
    }
    names = {
        "save": lambda name, tensor: found.update({name: tensor.clone()}),
        "seg": [0],
    }
    names |= DeviceClock().functions()
    ticks = [0] * (TICKS * written.num_ticks)
    written.bind({**tensors, **names})(1, ticks, 0)
    return written, found, ticks


def test_straight_line_computes_what_was_noted_down():
    b = ProgramBuilder()
    x = b.input("x", "input", 4, 3)
    parts = b.op("two", aten.mul.Tensor, x, 2.0)
    c = b.op("cat", aten.cat.default, [parts, x], 1)
    b.loss = b.op("loss", aten.sum.default, c)
    program = b.program()
    _, found, _ = run_alone(program, ["loss", "cat"])
    there = program.initial["input.x"]
    assert torch.equal(found["cat"], torch.cat([2 * there, there], 1))
    assert set(found) == {"loss", "cat"}


def test_values_are_freed_after_their_last_use():
    written, _, _ = run_alone(two_towers(), [])
    lines = written.source.splitlines()
    dead: set[str] = set()
    for line in lines:
        words = set(line.replace("(", " ").replace(")", " ").replace(",", " ").split())
        assert not words & dead
        if line.strip().startswith("del "):
            dead |= words - {"del"}
    made = {line.split()[0] for line in lines if line.strip().startswith("v")}
    assert dead == made


def test_ticks_rise_and_segments_have_theirs():
    written, _, ticks = run_alone(two_towers(), [])
    wall = ticks[::TICKS]
    assert wall == sorted(wall)
    assert wall[0] > 0
    assert all(start < finish <= end for start, finish, end in written.segment_ticks)


def test_lines_name_their_ops():
    written, _, _ = run_alone(two_towers(), [])
    lines = written.source.splitlines()
    assert sorted(written.lines.values()) == sorted(op.name for op in two_towers().ops)
    assert all("(" in lines[number - 1] for number in written.lines)
