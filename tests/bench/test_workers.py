"""Real processes: rows of workers are those of one process; kills and hangs are rows; resume."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path

import distributed
import psutil
import pytest
from rich.console import Console

from gnnplace.bench import workers
from gnnplace.bench.cells import CellTask, list_tasks, run_task
from gnnplace.bench.rows import read_rows, sole_writer
from gnnplace.bench.runner import Override, Where, run_suite
from gnnplace.bench.suite import cells, read_suite
from gnnplace.bench.workers import CellWorker, run_cells_here, run_cells_in_processes
from gnnplace.cli.main import run
from gnnplace.errors import InputError
from gnnplace.placers import contract
from gnnplace.placers.baselines import Single
from gnnplace.problem import read_problem, write_problem
from gnnplace.problem.placement import read_placement
from gnnplace.simulation import simulate

SUITE = """
name: tiny
problems:
  - {file: chain.json}
  - {file: chain.json, microbatches: 2}
  - {file: missing.json}
placers: [single, heft, contiguous]
timeout: 30
"""
SAME = (
    "problem",
    "placer",
    "step_time",
    "lower_bound",
    "feasible",
    "digest",
    "error",
    "family",
)


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    write_problem(tmp_path / "chain.json", contract.training_chain())
    (tmp_path / "tiny.yaml").write_text(SUITE)
    return tmp_path


def rows_of(suite: Path, folder: str, where: Where | None = None) -> list[dict]:
    out = Console(file=io.StringIO(), width=160)
    path = str(suite / "tiny.yaml")
    run_suite(path, str(suite / folder), out, lambda line: None, Override(), where)
    return read_rows(suite / folder / "tiny.jsonl")


def told(rows: list[dict]) -> list[tuple]:
    return sorted((tuple(row.get(key) for key in SAME) for row in rows), key=repr)


def test_worker_processes_write_the_rows_of_one_process(suite):
    alone, shared = (
        rows_of(suite, "alone"),
        rows_of(suite, "shared", Where(processes=2)),
    )
    assert len(alone) == 9
    assert told(alone) == told(shared)
    assert all("missing.json" in row["error"] for row in shared if not row["feasible"])


@pytest.mark.parametrize("processes", [0, 2])
def test_what_is_kept_simulates_to_what_the_rows_say(suite, processes):
    rows = rows_of(suite, "r", Where(processes=processes, keep=True))
    solved = [row for row in rows if row["feasible"]]
    assert len({row["kept"] for row in solved}) == len(solved) == 6
    for row in solved:
        problem = read_problem(
            suite / "r" / "kept" / f"{row['digest'].replace(':', '-')}.json"
        )
        placement = read_placement(suite / "r" / "kept" / row["kept"], problem)
        assert simulate(problem, placement).step_time == row["step_time"]


def test_a_task_is_the_same_after_a_journey(suite):
    read = read_suite(suite / "tiny.yaml")
    for task in list_tasks(read, cells(read), suite):
        assert CellTask.from_json(task.to_json()) == task


def test_one_run_at_a_time_writes_rows(suite):
    (suite / "r").mkdir()
    held = sole_writer(suite / "r" / "tiny.jsonl")
    with held, pytest.raises(InputError, match="another run writes to it"):
        rows_of(suite, "r")
    assert len(rows_of(suite, "r")) == 9


def test_a_file_that_changed_is_read_anew(suite):
    read = read_suite(suite / "tiny.yaml")
    task = list_tasks(read, cells(read)[:1], suite)[0]
    first = run_task(task)
    write_problem(suite / "chain.json", contract.training_chain(num_layers=9))
    second = run_task(task)
    assert (first["num_ops"], second["num_ops"]) == (18, 27)
    assert first["digest"] != second["digest"]


def test_a_placer_that_fails_unexpectedly_is_a_row(suite, monkeypatch):
    def search(self, space, rng, deadline):
        raise ValueError("no such thing\nand more")

    monkeypatch.setattr(Single, "search", search)
    failed = [row for row in rows_of(suite, "r") if row["placer"] == "single"]
    chain = [row["error"] for row in failed if "chain" in row["problem"]]
    assert chain == ["ValueError: no such thing"] * 2


SLOW = """
    import sys, time
    from gnnplace.placers.baselines import Single
    from gnnplace.bench.workers import serve

    def search(self, space, rng, deadline, search=Single.search):
        {what}
        return search(self, space, rng, deadline)

    Single.search = search
    serve([])
"""


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "worker died"),
        (
            "import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN); time.sleep(60)",
            "killed",
        ),
        ("time.sleep(60)", "timed out after 0.5 s"),
    ],
)
def test_a_worker_that_dies_or_hangs_is_a_row_and_the_next_cell_runs(
    suite, monkeypatch, what, message
):
    from gnnplace.bench import workers

    script = suite / "slow.py"
    script.write_text(textwrap.dedent(SLOW).format(what=what))
    monkeypatch.setattr(workers, "GRACE", 0.5)
    popen = subprocess.Popen

    def start(command, **more):
        return popen([sys.executable, str(script)], **more)

    monkeypatch.setattr(workers.subprocess, "Popen", start)
    (suite / "tiny.yaml").write_text(SUITE.replace("timeout: 30", "timeout: 0.5"))
    read = read_suite(suite / "tiny.yaml")
    tasks = list_tasks(read, cells(read)[:2], suite)
    worker = CellWorker()
    try:
        first, second = worker.run(tasks[0]), worker.run(tasks[1])
    finally:
        worker.close()
    assert message in first["error"]
    assert not first["feasible"]
    assert first["digest"] == run_task(tasks[0])["digest"]  # what was known is told
    assert second["feasible"]


def test_workers_end_with_the_run(suite):
    """Whether it is stopped in the middle or killed: nobody is left behind."""
    read = read_suite(suite / "tiny.yaml")
    running = run_cells_in_processes(2, ["place"])(list_tasks(read, cells(read), suite))
    next(running)
    mine = psutil.Process().children()
    assert len(mine) == 2
    running.close()
    assert psutil.wait_procs(mine, timeout=10)[1] == []


@pytest.mark.parametrize("more", [[], ["--processes", "2"]])
def test_a_run_that_is_killed_goes_on_where_it_stopped(suite, more):
    text = SUITE.replace("[single, heft, contiguous]", "[annealing]")
    seeds = "seeds: [0, 1, 2, 3]\nbudgets: [0.3]\n"
    (suite / "tiny.yaml").write_text(text + seeds)
    rows = suite / "r" / "tiny.jsonl"
    command = [
        sys.executable,
        "-m",
        "gnnplace",
        "bench",
        str(suite / "tiny.yaml"),
        "-o",
    ]
    started = subprocess.Popen(
        [*command, str(suite / "r"), *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 400
    try:
        while not (rows.is_file() and rows.read_bytes().count(b"\n") >= 2):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        children = psutil.Process(started.pid).children(recursive=True)
        # A row asks git for the commit, which may be running now.
        workers = [child for child in children if child.name() != "git"]
        assert len(workers) == (2 if more else 0)
    finally:
        os.kill(started.pid, signal.SIGKILL)
        started.wait()
    assert psutil.wait_procs(workers, timeout=30)[1] == []
    before = rows.read_text().splitlines()[:2]
    assert len(read_rows(rows)) < 12
    found = rows_of(suite, "r")
    assert rows.read_text().splitlines()[:2] == before
    assert len({(row["problem"], row["seed"]) for row in found}) == len(found) == 12


@pytest.fixture
def no_tracker_left():
    """Stop multiprocessing's tracker of resources, which dask starts: others count children."""
    yield
    resource_tracker._resource_tracker._stop()


@pytest.mark.usefixtures("no_tracker_left")
def test_the_same_cells_run_on_a_dask_cluster(suite):
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        shared = rows_of(suite, "dask", Where(dask=cluster.scheduler_address))
    assert told(shared) == told(rows_of(suite, "alone"))


def test_places_that_are_none_are_one_line(suite, capsys):
    with pytest.raises(InputError, match="give a number above 0"):
        run_cells_in_processes(-1, [])
    more = ["bench", str(suite / "tiny.yaml"), "-o", str(suite / "r")]
    assert run([*more, "--processes", "2", "--dask", "tcp://localhost:1"]) == 2
    assert "--processes, --dask: give one" in capsys.readouterr().err
    assert run([*more, "--dask", "tcp://localhost:1"]) == 2
    line = capsys.readouterr().err
    assert "--dask" in line
    assert line.count("\n") == 1


@pytest.mark.parametrize("runner", [run_cells_here, partial(run_cells_in_processes, 1)])
def test_compiling_is_told_before_the_first_cell(runner, monkeypatch):
    def warm_up(names, progress):
        progress(f"compiling for {names}")

    monkeypatch.setattr(workers, "warm_up", warm_up)
    monkeypatch.setattr(workers, "is_warm", lambda names: False)
    monkeypatch.setattr(workers, "run_task", lambda task: {})
    monkeypatch.setattr(CellWorker, "run", lambda self, task: {})
    said = []
    assert len(list(runner(["single"], said.append)([None]))) == 1
    assert said == ["compiling for ['single']"]
