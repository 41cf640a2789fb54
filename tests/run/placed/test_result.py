"""Step times are medians of the right clock over the right steps."""

from __future__ import annotations

import torch

from gnnplace.run.placed.result import (
    Execution,
    OpTiming,
    SavedValues,
    StepTiming,
    TransferTiming,
    list_computed_values,
    state_values,
)
from gnnplace.tracing.program.microbatching import with_program_microbatches
from tests.run.programs import two_towers

OPS = (
    OpTiming("encode", "cpu:0", 0.0, 0.004, 0.003),
    OpTiming("decode", "cpu:1", 0.005, 0.008),
)
SENT = (TransferTiming("x", "encode", "cpu:0", "cpu:1", 2e6, 0.004, 0.005),)


def steps(*triples: tuple[float, float, bool]) -> tuple[StepTiming, ...]:
    return tuple(StepTiming(*triple) for triple in triples)


def test_measured_steps_without_a_switch_count():
    run = Execution(
        "measured",
        "shm",
        (),
        steps((9, 1, True), (2, 1, False), (4, 3, False), (3, 2, False)),
        None,
    )
    assert run.step_time == run.wall_step_time == 3
    assert run.virtual_step_time == 1.5
    assert run.num_interrupted == 1
    assert run.timeline.wall == 3


def test_if_all_were_disturbed_all_count():
    run = Execution(
        "measured", "shm", (), steps((9, 1, True), (5, 1, True), (7, 1, True)), None
    )
    assert run.step_time == 7


def test_emulated_steps_go_by_the_virtual_clock():
    run = Execution(
        "emulated", "shm", (), steps((9, 1, True), (5, 3, True), (7, 2, False)), None
    )
    assert run.step_time == run.timeline.virtual == 2


def test_the_shortest_step_counts_also_if_it_was_interrupted():
    taken = steps((9, 1, True), (5, 3, True), (7, 2, False))
    run = Execution("measured", "shm", (), taken, None)
    assert (run.fastest, run.fastest_wall, run.fastest_virtual) == (5, 5, 1)
    assert Execution("emulated", "shm", (), taken, None).fastest == 1


def test_a_run_in_which_the_cpu_played_other_devices_is_not_to_be_compared():
    taken = steps((1, 1, False))
    assert not Execution("emulated", "shm", (), taken, None).caveat
    played = Execution("emulated", "shm", (), taken, None, played=("a100", "h100"))
    assert "a100 and h100" in played.caveat
    assert "CPU seconds" in played.caveat


def test_values_go_by_the_models_names():
    program = two_towers()
    names = [*list_computed_values(program), *state_values(program)]
    assert len(names) == len(set(names)) == 9
    saved = SavedValues(program, names)
    saved.save("loss", torch.tensor(2.5))
    saved.save("gw0.1", torch.full((8, 8), 3.0).t())
    saved.save("parameter.w1.1", torch.full((8, 8), 4.0))
    saved.save("nobody asked", torch.zeros(1))
    values = saved.values()
    assert values.loss == 2.5
    assert values.gradients["w0.1"].unique().tolist() == [3.0]
    assert values.parameters["w1.1"].unique().tolist() == [4.0]
    assert values.buffers == values.optimizer == values.outputs == {}


def test_micro_batches_are_averaged():
    program = with_program_microbatches(two_towers(), 2)
    saved = SavedValues(
        program, [*list_computed_values(program), *state_values(program)]
    )
    for k, value in enumerate((1.0, 5.0)):
        saved.save(f"loss#{k}", torch.tensor(value))
        saved.save(f"gw0.0#{k}", torch.full((8, 8), value))
    assert saved.values().loss == 3.0
    assert saved.values().gradients["w0.0"].unique().tolist() == [3.0]


def test_nothing_is_kept_for_those_who_did_not_ask():
    program = two_towers()
    assert "loss" in list_computed_values(program)
    assert all(
        program.inputs[name].kind == "parameter" for name in state_values(program)
    )


def test_a_row_for_each_device_and_the_longest_ops() -> None:
    lines = str(StepTiming(0.01, 0.008, False, OPS, SENT)).splitlines()
    assert lines[0] == "step: 10 ms wall, 8 ms virtual"
    heads = "device ops computing share first op last op sent received"
    assert " ".join(lines[1].split()) == heads
    # cpu:0 computes 3 ms (its own clock) of the 8 ms until the last op ends, and sends 2 MB.
    assert lines[2].split() == [
        "cpu:0",
        "1",
        "3",
        "ms",
        "38%",
        "0",
        "ms",
        "4",
        "ms",
        "2",
        "MB",
        "0",
        "MB",
    ]
    assert lines[3].split() == [
        "cpu:1",
        "1",
        "3",
        "ms",
        "38%",
        "5",
        "ms",
        "8",
        "ms",
        "0",
        "MB",
        "2",
        "MB",
    ]
    assert len({len(line) for line in lines[1:4]}) == 1
    assert lines[5].split() == ["encode", "cpu:0", "3", "ms"]


def test_a_step_without_a_timeline_is_one_line_that_says_what_is_wrong_with_it() -> (
    None
):
    told = str(StepTiming(0.01, 0.008, True))
    assert told.endswith("a worker was moved off its core: the wall clock is too long")
    assert "\n" not in told
