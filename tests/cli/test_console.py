"""Progress: a bar on a terminal, lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import io
import os
import re
import time
from collections.abc import Iterator

import pytest
from rich.console import Console

from gnnplace.cli import console
from gnnplace.cli.console import Bar, say, show_progress, working


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _as_a_process_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    # A quiet command may have run here before.
    monkeypatch.setattr(console._State, "shown", True)
    monkeypatch.setattr(console._State, "counted", ("", 0.0))


@pytest.fixture
def written() -> Terminal:
    return Terminal()


@pytest.fixture
def bar(written: Terminal, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bar]:
    monkeypatch.setattr(console, "AFTER", 0.0)
    made = Bar(Console(file=written, force_terminal=True, width=100), "gnnplace place")
    yield made
    made.close()


def test_what_is_done_stays_and_what_is_counted_does_not(
    bar: Bar, written: Terminal
) -> None:
    bar.say("capturing")
    bar.say("compiling: 1 of 4")
    bar.say("compiling: 3 of 4")
    bar.say("placing")
    bar.close()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "\n", written.getvalue())
    kept = [
        line for line in plain.splitlines() if line.startswith("  ") and line.strip()
    ]
    assert kept[0].startswith("  capturing")
    assert "1 of 4" not in "".join(kept)
    assert any("3 of 4" in line for line in kept)


def test_a_count_fills_the_bar(bar: Bar) -> None:
    bar.say("compiling: 1,200 of 2,400 (kept)")
    assert bar.drawn is not None
    assert bar.drawn.tasks[0].percentage == 50.0


def test_a_short_command_has_no_bar(written: Terminal) -> None:
    made = Bar(Console(file=written, force_terminal=True), "gnnplace env")
    made.draw()
    made.close()
    assert written.getvalue() == ""


def test_nothing_is_drawn_while_results_are_printed(
    bar: Bar, written: Terminal
) -> None:
    bar.say("placing")
    bar.pause()
    length = len(written.getvalue())
    time.sleep(2 * console.EVERY)
    assert len(written.getvalue()) == length


def test_a_worker_has_no_bar(
    monkeypatch: pytest.MonkeyPatch, written: Terminal
) -> None:
    monkeypatch.setattr("sys.stderr", written)
    with working("gnnplace execute"):
        for _ in range(20):  # while the thread draws
            child = os.fork()
            if child == 0:
                os._exit(0 if console._State.bar is None else 1)
            assert os.waitpid(child, 0)[1] == 0
        assert console._State.bar is not None
    assert console._State.bar is None


def test_a_log_has_one_of_many_lines_that_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for k in range(5):
        say(f"timing: step {k + 1} of 5")
    say("done")
    assert capsys.readouterr().err == "  timing: step 1 of 5\n  done\n"


def test_lines_where_nobody_watches_and_none_when_quiet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with working("gnnplace place"):
        say("placing")
    show_progress(False)
    say("hidden")
    show_progress(True)
    assert capsys.readouterr().err == "  placing\n"
