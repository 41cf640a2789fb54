"""Steps are read from the logs that launchers write; the first do not count."""

from __future__ import annotations

import pytest

from gnnplace.errors import FormatError, InputError
from gnnplace.plans.measured_steps import RunSizes, measured_steps, sizes_of, steps_of_log
from gnnplace.plans.plan import InputEntry, MemoryEntry, PlanFile

MEMORY = MemoryEntry(state=1.0, activations=1.0, working=1.0, slack=1.0)
SIZES = RunSizes(batch=64, tokens=64 * 1024, devices=8)
FILE = PlanFile.model_construct(
    batch=64,
    memory={f"gpu:{k}": MEMORY for k in range(8)},
    inputs=[InputEntry(name="x", shape=[64, 1024], dtype="int64")],
)
# A line a step, as the sources named in the module print it; the first one compiles.
LOGS = {
    "Megatron-LM": " [2026-01-02 03:04:05] iteration {n:8}/ 50 | consumed samples: 64 | "
                   "elapsed time per iteration (ms): {ms:.1f} | throughput per GPU "
                   "(TFLOP/s/GPU): 321.0 |\n",
    "nanotron": "[INFO|DP=0|PP=0|TP=0]: iteration: {n} / 50 | consumed_tokens: 65.5K | "
                "time_per_iteration_ms: {ms:.0f} | tokens_per_sec: 78.9K |\n",
    "torchtitan": "\x1b[31mstep: {n:2}  \x1b[32mloss:  8.1234  \x1b[38mgrad_norm: 1.0  memory: "
                  " 9.90GiB(12.38%)  \x1b[34mtps: {tps:,.0f}  \x1b[36mtflops: 9.9  mfu: 1.00%\n",
    "DeepSpeed": "[timer.py:264:stop] epoch=0/micro_step={n}/global_step={n}, "
                 "RunningAvgSamplesPerSec=1, CurrSamplesPerSec={sps}, MemAllocated=1.0GB, "
                 "MaxMemAllocated=2.0GB\n",
    "tqdm": "\r 10%|#         | {n}/50 [00:04<00:40,  {its:.2f}it/s, v_num=0]",
}  # fmt: skip


def written(name: str, seconds: list[float]) -> str:
    return "".join(
        LOGS[name].format(n=n, ms=1e3 * s, tps=64 * 1024 / 8 / s, sps=64 / s, its=1 / s)
        for n, s in enumerate(seconds, start=1)
    )


@pytest.mark.parametrize("name", LOGS)
def test_every_launchers_log_says_its_step(name):
    text = written(name, [30.0, 5.0, 2.0, *[0.8, 0.82, 0.84] * 3])
    found = steps_of_log(text, "log", SIZES)
    assert found.seconds == pytest.approx(0.82, rel=0.01)
    assert (found.count, found.left_out, found.source) == (9, 3, name)


def test_sizes_are_those_of_the_plans_file():
    assert sizes_of(FILE) == SIZES


def test_seconds_an_iteration_and_thousands_of_milliseconds():
    assert steps_of_log("5/50 [00:04<00:40,  1.72s/it]", "log", SIZES).seconds == 1.72
    assert steps_of_log("| time_per_iteration_ms: 1.23K |", "log", SIZES).seconds == 1.23


@pytest.mark.parametrize(("told", "seconds"), [("0.83s", 0.83), ("830ms", 0.83), ("5 us", 5e-6)])
def test_seconds_may_be_said(told, seconds):
    found = measured_steps(told, SIZES)
    assert found.seconds == pytest.approx(seconds)
    assert found.source == ""


@pytest.mark.parametrize("told", ["830", "0s", "-1s", "soon", "no/such/log"])
def test_what_is_neither_is_one_line(told):
    with pytest.raises(InputError, match="--measured") as caught:
        measured_steps(told, SIZES)
    assert "\n" not in str(caught.value)


def test_a_log_without_steps_is_one_line(tmp_path):
    path = tmp_path / "log"
    path.write_text("hello\n" * 1000)
    with pytest.raises(FormatError, match="has no step of Megatron-LM"):
        measured_steps(str(path), SIZES)
