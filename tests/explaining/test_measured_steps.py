"""Steps are read from the logs that launchers write; the first do not count."""

from __future__ import annotations

import pytest

from gnnplace.errors import FormatError, InputError
from gnnplace.explaining.measured_steps import (
    RunSizes,
    find_run_sizes,
    read_log_steps,
    read_measured_steps,
)
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
    found = read_log_steps(text, "log", SIZES)
    assert found.seconds == pytest.approx(0.82, rel=0.01)
    assert (found.count, found.warm_up, found.source) == (9, 3, name)


def test_sizes_are_those_of_the_plans_file():
    assert find_run_sizes(FILE) == SIZES


def test_seconds_an_iteration_and_thousands_of_milliseconds():
    assert read_log_steps("5/50 [00:04<00:40,  1.72s/it]", "log", SIZES).seconds == 1.72
    assert (
        read_log_steps("| time_per_iteration_ms: 1.23K |", "log", SIZES).seconds == 1.23
    )


@pytest.mark.parametrize(
    ("told", "seconds"), [("0.83s", 0.83), ("830ms", 0.83), ("5 us", 5e-6)]
)
def test_seconds_may_be_said(told, seconds):
    found = read_measured_steps(told, SIZES)
    assert found.seconds == pytest.approx(seconds)
    assert found.source == ""


@pytest.mark.parametrize("told", ["830", "0s", "-1s", "soon", "no/such/log"])
def test_what_is_neither_is_one_line(told):
    with pytest.raises(InputError, match="--measured") as caught:
        read_measured_steps(told, SIZES)
    assert "\n" not in str(caught.value)


def test_a_log_without_steps_is_one_line(tmp_path):
    path = tmp_path / "log"
    path.write_text("hello\n" * 1000)
    with pytest.raises(FormatError, match="has no training step of Megatron-LM"):
        read_measured_steps(str(path), SIZES)


def bar(done, total, seconds, name=""):
    """A state of tqdm's progress bar."""
    rate = f"{seconds:.2f}s/it" if seconds >= 1 else f"{1 / seconds:.2f}it/s"
    return f"{name}{100 * done // total:3d}%|####      | {done}/{total} [00:10<00:10, {rate}]"


def bars(total, seconds, name="", first=1, last=None):
    """All states of a progress bar, as a terminal overwrites them."""
    numbers = range(first, (last or total) + 1)
    return "\r".join(bar(number, total, seconds, name) for number in numbers) + "\n"


RESULT = "{'eval_loss': 1.2, 'eval_runtime': 5.0, 'eval_steps_per_second': 20.0, 'epoch': 1.0}\n"
VALIDATED = {
    "a Trainer that evaluates between and after": "".join(
        bars(60, 2.0, first=20 * epoch + 1, last=20 * epoch + 20)
        + bars(100, 0.05)
        + RESULT
        for epoch in range(3)
    ),
    "a Trainer that evaluates once": bars(60, 2.0) + bars(100, 0.05) + RESULT,
    "evaluation without a bar": bars(60, 2.0) + RESULT,
    "a loop with names": "".join(
        bars(30, 2.0, f"Train {epoch}: ") + bars(50, 0.1, f"Val {epoch}: ")
        for epoch in range(3)
    ),
    "data sets and weights before": bars(9, 0.5, "Loading checkpoint shards: ")
    + "Map: 100%|####| 500/500 [00:01<00:00, 812.10 examples/s]\n"
    + bars(60, 2.0),
    "Lightning's rich bars": "".join(
        f"Epoch 0/2 ━━━━╺━━━ {k}/40 0:00:10 • 0:00:14 0.50it/s v_num: 0\n"
        for k in range(1, 41)
    )
    + "Validation ━━━━━━━━ 80/80 0:00:01 • 0:00:00 50.00it/s\n" * 80,
    "ranks of Megatron-LM": "".join(
        f"[default{rank}]: iteration {n:8}/ 50 | elapsed time per iteration (ms): "
        f"{2000.0 - rank:.1f} |\n"
        for n in range(10, 200, 10)
        for rank in (3, 0, 1)
    ),
    "Megatron-LM in seconds": "".join(
        f" iteration {n:8}/ 50 | elapsed time per iteration (s): 2.00 |\n"
        for n in range(9)
    ),
    "torchtitan that validates": "".join(
        f"step: {n:2}  loss:  8.1  memory:  9.90GiB(12.38%)  tps: 4,096\n"
        f"validate step: {n:2}  loss:  8.1  memory:  9.90GiB(12.38%)  tps: 90,000\n"
        for n in range(1, 30)
    ),
    "llm-foundry": "".join(
        f"[batch={n}/90]:\n\t Train time/batch: {n}\n\t Train throughput/batches_per_sec: 0.5000\n"
        "\t Train throughput/device/batches_per_sec: 0.0625\n"
        for n in range(1, 90)
    )
    + "[Eval batch=9/9] Eval on eval data:\n\t Eval throughput/batches_per_sec: 7.0\n",
    "Composer's bars": bars(90, 2.0, "train          Epoch   0:").replace("it", "ba")
    + bars(9, 0.1, "eval           Epoch   0:").replace("it", "ba"),
    "two runs": written("Megatron-LM", [5.0] * 30) + written("Megatron-LM", [2.0] * 30),
    "a run that ended in its warm-up": written("nanotron", [2.0] * 30)
    + written("nanotron", [9.0]),
    "the end of a run without a bar": "{'train_runtime': 240.0, 'train_steps_per_second': 0.5}\n",
}


@pytest.mark.parametrize("name", VALIDATED)
def test_training_steps_are_told_from_all_others(name):
    measured = read_log_steps(VALIDATED[name], "log", SIZES)
    assert measured.seconds == pytest.approx(2.0, rel=0.01)


def test_ranks_of_a_step_count_once_and_lines_are_the_files():
    measured = read_log_steps(VALIDATED["ranks of Megatron-LM"], "log", SIZES)
    assert (measured.count, measured.warm_up) == (16, 3)
    assert (measured.first_line, measured.last_line) == (10, 55)


def test_two_runs_are_said():
    measured = read_log_steps(VALIDATED["two runs"], "log", SIZES)
    assert measured.notes == ("run 2 of 2 in the log",)
    assert (measured.first_line, measured.last_line) == (37, 60)


def test_bytes_that_are_no_utf8_and_carriage_returns_are_read(tmp_path):
    path = tmp_path / "run.log"
    path.write_bytes(b"caf\xe9\n" + bars(60, 2.0).encode() + b"\x1b[A\xff")
    measured = read_measured_steps(str(path), SIZES)
    assert (measured.seconds, measured.first_line) == (2.0, 2)
