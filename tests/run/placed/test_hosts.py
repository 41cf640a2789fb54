"""Two hosts on loopback, started by torchrun as a user would: the same numbers, and clean ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from gnnplace.cli.main import run
from gnnplace.measurements import MeasurementStore

MODEL = "mlp?batch=4&width=32"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A placement of the model on two devices."""
    folder = tmp_path_factory.mktemp("hosts")
    place = [
        "place",
        MODEL,
        "--cluster",
        "cpu:2",
        "--placer",
        "contiguous",
        "--budget",
        "0",
    ]
    output = ["-o", str(folder / "p.json")]
    assert run([*place, *output]) == 0
    return folder


class Pair:
    """Two hosts that execute one placement."""

    def __init__(self, folder, *options):
        self.store = folder / f"{len(list(folder.iterdir()))}.db"
        self.environment = os.environ | {
            "GNNPLACE_STORE": str(self.store),
            "OMP_NUM_THREADS": "1",
        }
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        execute = ["execute", MODEL, str(folder / "p.json"), "--no-eager", *options]
        self.agents = [self._agent(rank, execute) for rank in (0, 1)]

    def _agent(self, rank, execute):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
        torchrun += ["--nproc-per-node", "1", "--node-rank", str(rank)]
        torchrun += ["--master-addr", "127.0.0.1", "--master-port", str(self.port)]
        return subprocess.Popen(
            [*torchrun, "-m", "gnnplace", *execute],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def host(self, rank):
        """The process that torchrun started on a host."""
        (child,) = psutil.Process(self.agents[rank].pid).children()
        return child

    def runs(self):
        return MeasurementStore(self.store).runs() if self.store.exists() else []

    def until_measured(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert all(agent.poll() is None for agent in self.agents)
            if any(one.steps for one in self.runs()):
                return
            time.sleep(0.2)
        raise AssertionError("nothing was measured")

    def end(self):
        """Outputs and errors when both have ended."""
        return [agent.communicate(timeout=60) for agent in self.agents]

    def stop(self):
        for agent in self.agents:
            if agent.poll() is None:
                agent.kill()


@pytest.fixture
def pair(folder):
    made = []

    def start(*options):
        made.append(Pair(folder, *options))
        return made[-1]

    before = set(psutil.Process().children(recursive=True))
    yield start
    for one in made:
        one.stop()
    gone = time.monotonic() + 10
    while (
        set(psutil.Process().children(recursive=True)) - before
        and time.monotonic() < gone
    ):
        time.sleep(0.1)
    assert set(psutil.Process().children(recursive=True)) <= before


def test_two_hosts_compute_what_one_process_computes(pair):
    hosts = pair("--steps", "4", "--json")
    (out, _), (quiet, _) = hosts.end()
    assert [agent.returncode for agent in hosts.agents] == [0, 0]
    answer = json.loads(out)
    assert answer["bitwise"]
    assert answer["mode"] == "measured"
    assert 0 < answer["virtual_step_time"] < 5
    assert quiet == ""  # the first host alone reports
    (told,) = hosts.runs()
    assert (told.steps, told.outcome.verified) == (4, True)
    steps = MeasurementStore(hosts.store).steps(told.id)
    finish = {name: end for name, (_, end, _) in steps[-1].ops.items()}
    assert all(0 <= end < 5 for end in finish.values())  # both hosts by one clock


@pytest.mark.campaign
@pytest.mark.parametrize("victim", ["worker", "host"])
def test_one_that_is_lost_ends_the_run_and_what_was_measured_is_kept(pair, victim):
    hosts = pair("--steps", "100000")
    hosts.until_measured()
    lost = hosts.host(1)
    lost = lost.children()[0] if victim == "worker" else lost
    lost.send_signal(signal.SIGKILL)
    begin = time.monotonic()
    (_, error), _ = hosts.end()
    assert time.monotonic() - begin < 45
    assert all(agent.returncode != 0 for agent in hosts.agents)
    (told,) = hosts.runs()
    assert told.steps > 0
    assert told.outcome.status == "failed"
    (line,) = [line for line in error.splitlines() if line.startswith("gnnplace: ")]
    words = ("SIGKILL", "SIGTERM") if victim == "worker" else ("is lost", "SIGTERM")
    assert any(word in line for word in words)
    assert told.outcome.error == line.removeprefix("gnnplace: ")
