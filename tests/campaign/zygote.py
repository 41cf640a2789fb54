"""Runs commands in forks of a process that has imported everything, and strikes them.

A command then takes tenths of a second, so that a campaign can afford a thousand. Started as
``python -m tests.campaign.zygote``, it reads a job a line (JSON) and answers a line. A job's fork
has a session of its own; whatever lives in it, or has the mark of the job in its environment,
once the fork has ended is an orphan.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import psutil

from gnnplace.processes import hold_interrupts, let_interrupts

GRACE = 3.0  # seconds in which the kernel may end and reap what is left
MARK = "GNNPLACE_CAMPAIGN"
SLOW = "SLOW"  # no signal, but many stops that are short
PULSES = 6


def serve() -> None:
    """Answers jobs until there are no more."""
    from tests.campaign import jobs

    jobs.prepare()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Runs a job and strikes it; what came of it."""
    shm = _shared()
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    os.environ[MARK] = mark
    ours, theirs = os.pipe()  # a limit of files does not hold for it
    os.set_blocking(ours, False)
    with hold_interrupts():
        begin, pid = time.monotonic(), os.fork()
        if pid == 0:
            _child(job, theirs)
    os.close(theirs)
    time.sleep(max(0.0, job["after"]))
    struck = _strike(pid, job, Random(job["seed"]))
    status, seconds = _wait(pid, begin, job["bound"])
    if job["signal"] == "SIGSTOP":
        _continue(pid)
    left = _left(pid, mark)
    told = b""
    with suppress(BlockingIOError):
        told = os.read(ours, 1 << 16)
    os.close(ours)
    return {
        "struck": struck,
        "code": None if status is None else os.waitstatus_to_exitcode(status),
        "seconds": seconds - max(0.0, job["after"]),
        "error": told.decode(errors="replace"),
        "orphans": left,
        "shm": sorted(_shared() - shm),
    }


def _shared() -> set[str]:
    """Named shared memory; not that of databases that other tests start meanwhile."""
    return {
        name for name in os.listdir("/dev/shm") if not name.startswith("PostgreSQL.")
    }


def _child(job: dict[str, Any], errors: int) -> None:
    from tests.campaign import jobs

    code = 70
    try:
        os.setsid()
        folder = Path(job["folder"])
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number, handle in ((0, nowhere), (1, nowhere), (2, errors)):
            os.dup2(handle, number)
        os.chdir(folder)
        os.environ.update(job.get("environment", {}))
        faulthandler.enable()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if job.get("file_size") is not None:
            limit = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (job["file_size"], limit))
        if job.get("memory") is not None:
            most = psutil.Process().memory_info().vms + job["memory"]
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        let_interrupts()
        code = jobs.run(job)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except KeyboardInterrupt:  # before the command began
        code = 130
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _strike(pid: int, job: dict[str, Any], rng: Random) -> bool:
    """Sends the signal; False where there was nobody to send it to any more."""
    if job["signal"] is None:
        return True
    if job["signal"] == SLOW:
        return _slow_down(pid, rng)
    number = signal.Signals[job["signal"]]
    try:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
        if job["whom"] == "group":
            os.killpg(pid, number)
        elif job["whom"] == "main":
            os.kill(pid, number)
        else:
            if not (workers := _workers(pid)):
                return False
            time.sleep(rng.uniform(0.0, 0.1))
            rng.choice(workers).send_signal(number)
    except (ProcessLookupError, psutil.Error):
        return False
    return True


def _workers(pid: int) -> list[psutil.Process]:
    """Waits for a process to have workers; none if it ends without."""
    while not (workers := psutil.Process(pid).children(recursive=True)):
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return []
        time.sleep(0.005)
    return workers


def _slow_down(pid: int, rng: Random) -> bool:
    """Stops a worker again and again for tenths of a second, as one that is swapped out."""
    try:
        workers = _workers(pid)
        for _ in range(PULSES if workers else 0):
            worker = rng.choice(workers)
            worker.send_signal(signal.SIGSTOP)
            time.sleep(rng.uniform(0.01, 0.4))
            worker.send_signal(signal.SIGCONT)
            time.sleep(rng.uniform(0.0, 0.05))
    except psutil.Error:
        return False
    return bool(workers)


def _wait(pid: int, begin: float, bound: float) -> tuple[int | None, float]:
    deadline = begin + bound
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return status, time.monotonic() - begin
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None, time.monotonic() - begin


def _continue(pid: int) -> None:
    for process in _session(pid):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)


def _left(pid: int, mark: str) -> list[str]:
    """Processes of a job that do not end by themselves; they are ended here."""
    deadline = time.monotonic() + GRACE
    while left := {*_session(pid), *_marked(mark)}:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    told = []
    for process in left:
        with suppress(psutil.Error, ProcessLookupError):
            told.append(" ".join(psutil.Process(process).cmdline()[:4]))
            os.kill(process, signal.SIGKILL)
    return told


def _session(pid: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        with suppress(ProcessLookupError, PermissionError, OSError, IndexError):
            if name.isdecimal() and os.getsid(int(name)) == pid:
                state = (
                    Path("/proc", name, "stat")
                    .read_text()
                    .rpartition(")")[2]
                    .split()[0]
                )
                if state != "Z":
                    found.append(int(name))
    return found


def _marked(mark: str) -> list[int]:
    """Processes that were started by name, not forked, with the mark in their environment."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if (
                name.isdecimal()
                and wanted in Path("/proc", name, "environ").read_bytes()
            ):
                found.append(int(name))
    return found


if __name__ == "__main__":
    serve()
