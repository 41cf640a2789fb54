"""The store on a real PostgreSQL server, where there is one and its driver."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from glob import glob
from pathlib import Path

import pytest

from gnnplace.errors import InputError
from gnnplace.measurements import MeasurementStore, Selection
from tests.measurements.test_store import writer
from tests.measurements.writer import BATCH, run_record, step_record

PROGRAMS = sorted(glob("/usr/lib/postgresql/*/bin"))
USER = "postgres" if os.geteuid() == 0 else None  # the server refuses to run as root


def as_user(*command):
    prefix = (
        ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        if USER
        else []
    )
    return [*prefix, *map(str, command)]


@pytest.fixture(scope="module")
def server():
    """A server of its own, on a socket in a folder of its own, which its user can reach."""
    if not PROGRAMS:
        pytest.skip("no PostgreSQL server is installed")
    with tempfile.TemporaryDirectory() as name:
        folder, programs = Path(name), Path(PROGRAMS[-1])
        if USER:
            shutil.chown(folder, USER)
        initdb = [
            programs / "initdb",
            "-D",
            folder / "data",
            "-A",
            "trust",
            "-U",
            "gnn",
        ]
        subprocess.run(as_user(*initdb), check=True, capture_output=True, cwd="/")
        options = ["-D", folder / "data", "-k", folder, "-c", "listen_addresses="]
        process = subprocess.Popen(
            as_user(programs / "postgres", *options), stderr=subprocess.DEVNULL, cwd="/"
        )
        yield _ready(f"postgresql+psycopg://gnn@/postgres?host={folder}")
        process.send_signal(signal.SIGINT)
        process.wait(30)


def _ready(url):
    deadline = time.monotonic() + 30
    while True:
        try:
            MeasurementStore(url)
            return url
        except InputError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def test_writers_at_once_lose_nothing(server):
    writers = [writer(server, f"w{k}", 5, 4) for k in range(4)]
    assert [w.wait(60) for w in writers] == [0] * 4
    runs = MeasurementStore(server).runs()
    assert Counter(run.model for run in runs) == {f"w{k}": 5 for k in range(4)}
    assert {run.steps for run in runs} == {4 * BATCH}


def test_a_killed_writer_leaves_whole_batches(server):
    killed = writer(server, "killed", 1000, 3)
    killed.stdout.readline()
    time.sleep(0.2)
    killed.kill()
    killed.wait()
    runs = MeasurementStore(server).runs(Selection(model="killed"))
    assert runs
    assert all(run.steps % BATCH == 0 for run in runs)


def test_a_run_comes_back_and_can_be_forgotten(server):
    store, run = MeasurementStore(server), run_record("mine", 7)
    store.begin(run)
    store.add_steps(run.id, [step_record(0)])
    with pytest.raises(InputError, match="written"):
        store.add_steps(run.id, [step_record(0)])
    assert store.steps(run.id) == [step_record(0)]
    assert store.problem(store.runs(Selection(model="mine"))[0].problem) == run.problem
    assert store.prune(Selection(model="mine")) == 1
    assert store.steps(run.id) == []
