"""Step times are medians of the right clock over the right steps."""

from __future__ import annotations

from gnnplace.execution import Execution, StepTiming


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
    run = Execution("measured", "shm", (), steps((9, 1, True), (5, 1, True), (7, 1, True)), None)
    assert run.step_time == 7


def test_emulated_steps_go_by_the_virtual_clock():
    run = Execution("emulated", "shm", (), steps((9, 1, True), (5, 3, True), (7, 2, False)), None)
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
