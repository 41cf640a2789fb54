"""Ctrl-C is one line and exit code 130, while compiled code is imported and in callbacks, too."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

from gnnplace.cli import interrupts
from gnnplace.cli.main import run


@pytest.mark.alone
@pytest.mark.parametrize("after", [0.2, 0.5, 1.0, 2.0])
def test_while_the_command_is_imported(tmp_path, after):
    command = [sys.executable, "-m", "gnnplace", "compare", "mlp", "--cluster", "cpu:2"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=30)[1].decode()
    told = [line for line in error.splitlines() if not line.startswith("  ")]
    assert told == ["gnnplace: interrupted; nothing half-written is left"]
    # Where it struck code that C runs, Python ends itself by the signal: 130 to a shell.
    assert process.returncode in (130, -signal.SIGINT)


def doing(monkeypatch, work):
    """Runs a command that does what a test wants."""
    module = SimpleNamespace(run=work)
    monkeypatch.setattr("gnnplace.cli.main.command", lambda name: module)
    return run(["env"])


def test_an_interrupt_that_became_another_error(monkeypatch, capsys):
    def work(args):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        except KeyboardInterrupt:
            raise ImportError("initialization failed") from None

    assert doing(monkeypatch, work) == 130
    assert (
        capsys.readouterr().err
        == "gnnplace: interrupted; nothing half-written is left\n"
    )


def test_an_interrupt_that_is_lost_in_a_callback_is_raised_again(monkeypatch, capsys):
    class Thing:
        pass

    def work(args):
        thing = Thing()
        kept = weakref.ref(
            thing, lambda _: os.kill(os.getpid(), signal.SIGINT) or time.sleep(1)
        )
        del thing
        time.sleep(5)
        return 0 if kept else 1

    begin = time.perf_counter()
    assert doing(monkeypatch, work) == 130
    assert time.perf_counter() - begin < 4
    assert capsys.readouterr().err.count("\n") == 1


def test_an_interrupt_waits_where_numba_would_crash(monkeypatch):
    """Generated code, such as a named tuple's constructor, is left before it is raised."""
    ended = []

    def work(args):
        space: dict[str, object] = {}
        source = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\ndone = True"
        exec(compile(source, "<string>", "exec"), space)
        ended.append(space["done"])
        time.sleep(5)
        return 0

    assert doing(monkeypatch, work) == 130
    assert ended == [True]


def test_the_handler_is_put_back():
    before, hook = signal.getsignal(signal.SIGINT), sys.unraisablehook
    assert run(["env", "--json"]) == 0
    assert signal.getsignal(signal.SIGINT) is before
    assert sys.unraisablehook is hook
    assert not interrupts.was_interrupted()


def test_an_interrupt_while_something_is_put_into_a_queue_waits(monkeypatch, capsys):
    """Else the queue counts a thing that its thread is not told of, and ``join`` never ends."""
    things = queue.Queue()
    written = []

    def writer():
        while True:
            written.append(things.get())
            things.task_done()

    def work(args):
        threading.Thread(target=writer, daemon=True).start()
        notify = things.not_empty.notify

        def struck():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.001)
            notify()

        monkeypatch.setattr(things.not_empty, "notify", struck)
        try:
            things.put("line")
            time.sleep(5)
        finally:
            things.join()

    assert doing(monkeypatch, work) == 130
    assert written == ["line"]
    assert (
        capsys.readouterr().err
        == "gnnplace: interrupted; nothing half-written is left\n"
    )


def test_an_interrupt_does_not_wait_for_a_queue_that_stays_full(monkeypatch):
    monkeypatch.setattr(interrupts, "MOST_WAITS", 3)
    full = queue.Queue(1)
    full.put(1)

    def work(args):
        threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        full.put(2, timeout=20)

    begin = time.monotonic()
    assert doing(monkeypatch, work) == 130
    assert time.monotonic() - begin < 10
