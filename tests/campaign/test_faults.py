"""Kills, interrupts, stops and full disks at random instants of every command.

What must hold, whatever strikes when: the command ends within a bound; no process and no shared
memory is left; what is written is whole or not there; what was done is not lost, and going on from
it gives what an undisturbed run gives. An interrupt is one line and exit code 130, a worker that
dies is one line and exit code 1, a full disk is one line and exit code 2.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from gnnplace.bench.rows import identity, read_rows
from gnnplace.measurements import MeasurementStore
from gnnplace.problem import problem_from_data, read_problem
from gnnplace.problem.placement import read_placement_for
from gnnplace.run.training.training_step import read_training
from tests.campaign.jobs import MODEL

SMOKE = Path(__file__).parents[2] / "trainers" / "smoke.yaml"
RECIPE = """
trainer:
  max_epochs: 3
  enable_progress_bar: false
  enable_model_summary: false
  default_root_dir: trained
  callbacks:
    - class_path: lightning.pytorch.callbacks.ModelCheckpoint
      init_args: {train_time_interval: "0:00:00.000001", filename: last-timed,
        enable_version_counter: false}
model: {init_args: {hidden: 8, decoder_hidden: 8}}
data: {init_args: {ops: [12, 24], held_out_ops: [12, 24], problems: 6, validation_problems: 2,
  batch_size: 2}}
"""
BOUND = 90.0  # seconds after which a job is said to hang
Counted = Callable[[str, int], None]
Answer = dict[str, Any]


class Zygote:
    """Our end of ``zygote.py``, and a folder with a problem, a placement and a suite."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds: dict[str, float] = {}
        environment = os.environ | {
            "GNNPLACE_CACHE": str(folder / "cache"),
            "GNNPLACE_STORE": str(folder / "store.db"),
            "OMP_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.campaign.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=Path(__file__).parents[2],
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def ask(self, **job: Any) -> Answer:
        """Runs one job."""
        plain = {
            "what": "command",
            "signal": None,
            "whom": "main",
            "after": 0.0,
            "seed": 0,
        }
        plain |= {"bound": BOUND, "folder": str(self.folder), "arguments": []}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(plain | job) + "\n")
        self.process.stdin.flush()
        return dict(json.loads(self.process.stdout.readline()))

    def command(self, *arguments: str) -> float:
        """Runs a command undisturbed; its seconds."""
        found = self.ask(arguments=list(arguments))
        assert found["code"] == 0, found
        return float(found["seconds"])

    def whole(self, name: str) -> float:
        """Seconds of a command that nothing strikes, from a clean folder; run once."""
        if name not in self.seconds:
            clean(self.folder, name)
            self.seconds[name] = float(self.ask(**job_of(name))["seconds"])
        return self.seconds[name]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    made = Zygote(tmp_path_factory.mktemp("faults"))
    made.command("profile", MODEL, "--cluster", "cpu:2", "-o", "problem.json")
    made.command("place", MODEL, "--cluster", "cpu:2", "--placer", "contiguous",
                 "--budget", "0", "-o", "placement.json")  # fmt: skip
    suite = {"name": "tiny", "problems": [{"file": "problem.json"}], "seeds": list(range(8)),
             "placers": ["etf", "heft", "m-topo"], "budgets": [0]}  # fmt: skip
    (made.folder / "suite.yaml").write_text(json.dumps(suite))
    (made.folder / "recipe.yaml").write_text(RECIPE)
    yield made
    made.close()


def problem_is_whole(folder: Path) -> None:
    if (folder / "out.json").exists():
        data = json.loads((folder / "out.json").read_text())
        problem_from_data(data)


def placement_is_whole(folder: Path) -> None:
    if (folder / "out.json").exists():
        read_placement_for(folder / "out.json", read_problem(folder / "problem.json"))


def store_is_whole(folder: Path) -> None:
    store = MeasurementStore(str(folder / "store.db"))
    for run in store.runs()[:3]:
        assert len(store.steps(run.id)) == run.steps


def training_is_whole(folder: Path) -> None:
    if (folder / "out.safetensors").exists():
        tensors, steps, _ = read_training(folder / "out.safetensors")
        assert tensors
        assert steps > 0


def rows_are_whole(folder: Path) -> None:
    path = folder / "results" / "tiny.jsonl"
    if path.exists():
        rows = [identity(row) for row in read_rows(path)]
        assert len(set(rows)) == len(rows)


def checkpoints_are_whole(folder: Path) -> None:
    for path in (folder / "trained").rglob("*.ckpt"):
        assert zipfile.ZipFile(path).testzip() is None
        torch.load(path, weights_only=False)


COMMANDS: dict[str, tuple[list[str], Callable[[Path], None]]] = {
    "capture": (["capture", MODEL, "-o", "out.json"], problem_is_whole),
    "profile": (
        ["profile", MODEL, "--cluster", "cpu:2", "-o", "out.json"],
        problem_is_whole,
    ),
    "place": (
        ["place", "problem.json", "--budget", "0.3", "-o", "out.json"],
        placement_is_whole,
    ),
    "exact": (
        [
            "place",
            "problem.json",
            "--placer",
            "exact",
            "--budget",
            "0.5",
            "-o",
            "out.json",
        ],
        placement_is_whole,
    ),
    "execute": (
        [
            "execute",
            MODEL,
            "placement.json",
            "--steps",
            "60",
            "--no-eager",
            "--timeout",
            "2",
        ],
        store_is_whole,
    ),
    "bench": (["bench", "suite.yaml", "-o", "results"], rows_are_whole),
    "compile": (["out.safetensors"], training_is_whole),
    "train": (
        ["train", "fit", f"--config={SMOKE}", "--config=recipe.yaml"],
        checkpoints_are_whole,
    ),
}
WITH_WORKERS = ("profile", "execute", "compile")
KILLS = [
    ("SIGKILL", "main"),
    ("SIGINT", "main"),
    ("SIGINT", "group"),
    ("SIGTERM", "main"),
]
CASES = [(name, *kill) for name in COMMANDS for kill in KILLS]
CASES += [(name, "SIGKILL", "worker") for name in WITH_WORKERS]
CASES += [(name, "SIGSTOP", "worker") for name in WITH_WORKERS]
SLICE, ALL = 1, int(os.environ.get("GNNPLACE_STRIKES", "18"))  # strikes of each case
SIZES = [
    pytest.param(SLICE, id="slice"),
    pytest.param(ALL, id="all", marks=pytest.mark.campaign),
]


def sliced(names: Iterable[str], often: Container[str]) -> list[Any]:
    """Names and sizes: everything in the campaign, once of the dear ones always."""
    return [
        pytest.param(name, size, id=f"{name}-{case}", marks=marks)
        for name in names
        for size, case, marks in (
            (SLICE, "slice", ()),
            (ALL, "all", pytest.mark.campaign),
        )
        if size == ALL or name in often
    ]


OFTEN = {
    ("execute", "SIGKILL", "main"), ("execute", "SIGINT", "group"), ("train", "SIGINT", "main"),
    ("place", "SIGTERM", "main"), ("bench", "SIGKILL", "main"), ("execute", "SIGSTOP", "worker"),
    ("compile", "SIGKILL", "worker"), ("profile", "SIGKILL", "worker"),
}  # fmt: skip
STRIKES = [
    pytest.param(*case, size, id="-".join((*case, name)), marks=marks)
    for case in CASES
    for size, name, marks in ((SLICE, "slice", ()), (ALL, "all", pytest.mark.campaign))
    if size == ALL or case in OFTEN
]


def job_of(name: str) -> dict[str, Any]:
    arguments, _ = COMMANDS[name]
    return {
        "what": "train and save" if name == "compile" else "command",
        "arguments": arguments,
    }


def clean(folder: Path, name: str = "") -> None:
    """Removes what a job wrote; before profile also op times, so that they are measured anew."""
    for output in ("out.json", "out.safetensors"):
        (folder / output).unlink(missing_ok=True)
    for rest in folder.glob(".*"):
        rest.unlink()
    written = ("results", "trained")
    for kept in (*written, "cache/ops") if name == "profile" else written:
        shutil.rmtree(folder / kept, ignore_errors=True)


def ended_as_told(found: Answer, how: str, whom: str) -> None:
    """Exit codes and what is said."""
    lines = [
        line for line in found["error"].splitlines() if line.startswith("gnnplace: ")
    ]
    assert "Traceback" not in found["error"]
    if not found["struck"]:
        assert found["code"] == 0
    elif how == "SIGINT":
        # -2: it had just ended, or had not yet begun.
        assert found["code"] in (130, 0, -2)
        assert len(lines) <= 1
    elif whom == "worker":
        assert found["code"] in (1, 0), found["code"]
        assert len(lines) == (found["code"] == 1)


@pytest.mark.parametrize(("name", "how", "whom", "size"), STRIKES)
def test_strikes_at_random_instants(
    zygote: Zygote, name: str, how: str, whom: str, size: int, counted: Counted
) -> None:
    folder, rng = zygote.folder, Random(f"{name} {how} {whom} {size}")
    whole = zygote.whole(name)
    for number in range(size):
        clean(folder, name)
        # The zygote waits for a worker to be there.
        after = 0.0 if whom == "worker" else rng.uniform(0.0, 1.0) * whole
        strike = {"signal": how, "whom": whom, "after": after, "seed": number}
        found = zygote.ask(**job_of(name), **strike)
        about = f"{name} {how} {whom} after {after:.3f} of {whole:.3f} s: {found}"
        assert found["code"] is not None, f"hangs: {about}"
        assert not found["orphans"], about
        assert not found["shm"], about
        if name != "compile":  # a script of one's own ends as Python does
            ended_as_told(found, how, whom)
        COMMANDS[name][1](folder)
        if how != "SIGKILL" and how != "SIGTERM":
            assert not list(folder.glob(".out*")), about  # no temporary file
        counted(f"{how} of {whom}: {name}", 1 if found["struck"] else 0)
        counted(f"{how} of {whom}: came too late", 0 if found["struck"] else 1)


@pytest.mark.parametrize("size", SIZES)
def test_no_row_is_lost_however_often_a_suite_is_killed(
    zygote: Zygote, size: int, counted: Counted
) -> None:
    folder, rng = zygote.folder, Random(size)
    whole = zygote.whole("bench")
    clean(folder)
    kept: set[Any] = set()
    for number in range(4 * size):
        how = rng.choice(["SIGKILL", "SIGINT", "SIGTERM"])
        after = rng.uniform(0.2, 0.9) * whole
        found = zygote.ask(**job_of("bench"), signal=how, after=after, seed=number)
        assert found["code"] is not None
        path = folder / "results" / "tiny.jsonl"
        rows = {identity(row) for row in read_rows(path)}
        assert kept <= rows
        kept = rows if len(rows) < 24 else set()
        if len(rows) == 24:
            clean(folder)
        counted(f"{how} of main: bench, resumed", 1)
    zygote.command("bench", "suite.yaml", "-o", "results")
    rows = [identity(row) for row in read_rows(folder / "results" / "tiny.jsonl")]
    assert len(rows) == len(set(rows)) == 24


@pytest.mark.parametrize("size", SIZES)
def test_a_training_that_was_ended_goes_on(
    zygote: Zygote, size: int, counted: Counted
) -> None:
    folder, rng = zygote.folder, Random(f"train {size}")
    whole = zygote.whole("train")
    resumed = [*COMMANDS["train"][0], "--ckpt_path=last"]
    for number in range(size):
        clean(folder)
        how = rng.choice(["SIGKILL", "SIGINT", "SIGTERM"])
        after = rng.uniform(0.3, 1.0) * whole
        zygote.ask(**job_of("train"), signal=how, after=after, seed=number)
        checkpoints_are_whole(folder)
        if list((folder / "trained").rglob("*.ckpt")):
            zygote.command(*resumed)
            counted(f"{how} of main: train, resumed", 1)


@pytest.mark.parametrize(("name", "size"), sliced(["execute", "compile"], ["compile"]))
def test_slow_workers_are_waited_for(
    zygote: Zygote, name: str, size: int, counted: Counted
) -> None:
    """Stops of tenths of a second, below the timeout: the run ends as if nothing had been."""
    for number in range(size):
        clean(zygote.folder)
        found = zygote.ask(**job_of(name), signal="SLOW", seed=number)
        assert found["code"] == 0, found
        COMMANDS[name][1](zygote.folder)
        counted(f"slow worker: {name}", 1 if found["struck"] else 0)


NO_MEMORY = sorted(COMMANDS.keys() - {"train"})  # Lightning eats MemoryError


@pytest.mark.parametrize(("name", "size"), sliced(NO_MEMORY, ["place", "execute"]))
def test_no_memory_is_one_line(
    zygote: Zygote, name: str, size: int, counted: Counted
) -> None:
    """The kernel gives the process no more than some address space."""
    folder, rng = zygote.folder, Random(f"memory {name} {size}")
    for _ in range(size):
        clean(folder)
        room = int(10 ** rng.uniform(6, 8))
        found = zygote.ask(**job_of(name), memory=room)
        about = f"{name} with {room} bytes more: {found}"
        assert found["code"] is not None, about
        assert not found["orphans"], about
        if name != "compile":
            assert "Traceback" not in found["error"], about
        assert not list(folder.glob(".out*")) or found["code"] < 0, about
        COMMANDS[name][1](folder)
        counted(f"memory gone: {name}", 1 if found["code"] else 0)
        counted("memory gone: it was enough", 0 if found["code"] else 1)


FULL = ["capture", "profile", "place", "bench", "execute", "compile"]


@pytest.mark.parametrize(
    ("name", "size"), sliced(FULL, ["profile", "bench", "execute"])
)
def test_full_disks_are_one_line(
    zygote: Zygote, name: str, size: int, counted: Counted
) -> None:
    """The kernel lets no file grow beyond a limit, as on a disk that is full."""
    folder, rng = zygote.folder, Random(f"{name} {size}")
    for _ in range(size):
        clean(folder)
        limit = int(10 ** rng.uniform(0, 5))
        own = {
            "GNNPLACE_STORE": str(folder / "own.db"),
            "GNNPLACE_CACHE": str(folder / "own"),
        }
        for path in folder.glob("own*"):
            shutil.rmtree(path, ignore_errors=True)
            path.unlink(missing_ok=True)
        found = zygote.ask(**job_of(name), file_size=limit, environment=own)
        about = f"{name} with files of {limit} bytes: {found}"
        assert found["code"] in ((0, 2) if name != "compile" else (0, 1, 2, 70)), about
        assert not found["orphans"], about
        if name != "compile":
            assert "Traceback" not in found["error"], about
        assert not list(folder.glob(".out*")), about
        if name not in ("bench", "execute"):
            COMMANDS[name][1](folder)
        counted(f"full disk: {name}", 1 if found["code"] else 0)
        counted("full disk: it was large enough", 0 if found["code"] else 1)


@pytest.mark.parametrize(
    ("name", "size"), sliced(["capture", "profile", "place"], ["place"])
)
def test_a_full_device_is_one_line(
    zygote: Zygote, name: str, size: int, counted: Counted
) -> None:
    """Nothing about it is random: once is enough."""
    arguments = [*COMMANDS[name][0][:-1], "/dev/full"]
    found = zygote.ask(arguments=arguments)
    assert found["code"] == 2
    assert "No space left on device" in found["error"]
    counted("full disk: /dev/full", 1)


@pytest.mark.parametrize(("name", "size"), sliced(WITH_WORKERS, ["execute"]))
def test_without_shared_memory_it_is_one_line(
    zygote: Zygote, name: str, size: int, counted: Counted
) -> None:
    """Nothing about it is random: once is enough."""
    clean(zygote.folder)
    found = zygote.ask(**job_of(name), no_memory=True)
    assert not found["orphans"]
    if name == "execute":
        assert found["code"] == 1
        assert "shared memory" in found["error"]
        assert "Traceback" not in found["error"]
    counted(f"shared memory gone: {name}", 1)
