"""A step's clocks as text."""

from __future__ import annotations

from gnnplace.execution.result import OpTiming, StepTiming, TransferTiming

OPS = (
    OpTiming("encode", "cpu:0", 0.0, 0.004, 0.003),
    OpTiming("decode", "cpu:1", 0.005, 0.008),
)
SENT = (TransferTiming("x", "encode", "cpu:0", "cpu:1", 2e6, 0.004, 0.005),)


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


def test_a_step_without_a_timeline_is_one_line_that_says_what_is_wrong_with_it() -> None:
    told = str(StepTiming(0.01, 0.008, True))
    assert told.endswith("a worker was moved off its core: the wall clock is too long")
    assert "\n" not in told
