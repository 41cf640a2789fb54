"""Options and settings of the whole test suite."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Generator, Iterable
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from hypothesis import settings

# On CI every run draws the same examples, so that a failure is one that can be repeated; elsewhere
# every run draws new ones.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
# A kernel may be compiled within an example, so that examples have no deadline.
settings.register_profile("own", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "own")
os.environ.setdefault("GNNPLACE_STACKS", "1")  # a worker that hangs prints where
# A shell has jobs in the background ignore Ctrl-C, and their children too; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


DURATIONS = Path(".pytest_cache/durations.json")
SLOW = 1.0  # seconds of a test that ``make quick`` leaves out


@pytest.fixture(autouse=True, scope="session")
def _measurements_stay_here(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["GNNPLACE_STORE"] = str(
        tmp_path_factory.mktemp("store") / "measurements.db"
    )


@pytest.fixture(autouse=True)
def _tables_are_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--placers", default="", help="comma-separated placers for contract tests"
    )
    parser.addoption(
        "--until", type=float, help="an epoch second: no test begins after it"
    )
    parser.addoption("--keep-durations", action="store_true", help=f"write {DURATIONS}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "placer_name" in metafunc.fixturenames:
        from gnnplace.placers.registry import PLACERS

        chosen = [
            name for name in metafunc.config.getoption("--placers").split(",") if name
        ]
        metafunc.parametrize("placer_name", chosen or list(PLACERS))


GRACE = 6.0  # seconds that a test may go on behind ``--until``


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """With ``--until``: tests that begin too late, or do not end in time, are skipped."""
    until = item.config.getoption("--until")
    if until is None:
        return (yield)

    def skip(*_: object) -> None:
        pytest.skip("no time left")

    if time.time() > until:
        item.add_marker(pytest.mark.skip(reason="no time left"))
    signal.signal(signal.SIGUSR1, skip)
    main = threading.main_thread().ident or 0
    timer = Timer(
        max(0.1, until + GRACE - time.time()),
        signal.pthread_kill,
        (main, signal.SIGUSR1),
    )
    timer.daemon = True
    timer.start()
    try:
        return (yield)
    finally:
        timer.cancel()


ALONE = (
    "tests/costs/profiling/test_measurement.py",
    "tests/runtime/",
    "tests/run/split/test_measure.py",
    "tests/run/measuring/test_fidelity.py",
)
"""Tests whose processes spin, whose clocks others would disturb, or that look for what is left."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only tests that run alone are asked for, other files are not even imported."""
    if (
        not config.option.markexpr.startswith("alone")
        or collection_path.suffix != ".py"
    ):
        return None
    name = collection_path.relative_to(config.rootpath).as_posix()
    marked = re.search(r"mark\.(alone|timed)", collection_path.read_text())
    return None if marked or name.startswith(ALONE) else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests that run alone, after those that run side by side (see the Makefile)."""
    for item in items:
        if item.nodeid.startswith(ALONE) or item.get_closest_marker("timed"):
            item.add_marker(pytest.mark.alone)


def keep_durations(reports: Iterable[pytest.TestReport]) -> None:
    """Writes what every file took, and which of its tests are slow, for ``make quick``."""
    tests: Counter[str] = Counter()
    for report in reports:
        tests[report.nodeid] += report.duration
    files: dict[str, dict[str, Any]] = {}
    for nodeid, seconds in sorted(tests.items()):
        name, _, test = nodeid.partition("::")
        row = files.setdefault(name, {"seconds": 0.0, "slow": []})
        if seconds < SLOW:
            row["seconds"] += seconds
        elif "[" not in test or (test := test.partition("[")[0]) not in row["slow"]:
            row["slow"].append(test)
    rows = [
        f'"{name}": {{"seconds": {row["seconds"]:.2f}, "slow": {json.dumps(row["slow"])}}}'
        for name, row in files.items()
    ]
    DURATIONS.parent.mkdir(exist_ok=True)
    DURATIONS.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Prints what the campaign counted, in whichever process it ran."""
    if config.getoption("--keep-durations"):
        reports = [one for kind in terminalreporter.stats.values() for one in kind]
        keep_durations(one for one in reports if isinstance(one, pytest.TestReport))
    counts: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            for kind, number in report.user_properties:
                if kind.startswith("campaign: "):
                    counts[kind.removeprefix("campaign: ")] += number
    if counts:
        terminalreporter.section("campaign")
        for kind, number in sorted(counts.items()):
            terminalreporter.write_line(f"{number:7}  {kind}")
