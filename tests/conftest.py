"""Options and settings of the whole test suite."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

# On CI every run draws the same examples, so that a failure is one that can be repeated; elsewhere
# every run draws new ones.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
os.environ.setdefault("GNNPLACE_STACKS", "1")  # a worker that hangs prints where
# A shell has jobs in the background ignore Ctrl-C, and their children too; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _measurements_stay_here(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["GNNPLACE_STORE"] = str(tmp_path_factory.mktemp("store") / "measurements.db")


@pytest.fixture(autouse=True)
def _tables_are_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--placers", default="", help="comma-separated placers for contract tests")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "placer_name" in metafunc.fixturenames:
        from gnnplace.placers.registry import PLACERS

        chosen = [name for name in metafunc.config.getoption("--placers").split(",") if name]
        metafunc.parametrize("placer_name", chosen or list(PLACERS))


ALONE = (
    "tests/costs/profiling/test_measurement.py",
    "tests/runtime/",
    "tests/sharding/run/test_measure.py",
    "tests/execution/test_fidelity.py",
)
"""Tests whose processes spin, whose clocks others would disturb, or that look for what is left."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where only tests that run alone are asked for, other files are not even imported."""
    if not config.option.markexpr.startswith("alone") or collection_path.suffix != ".py":
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what the campaign counted, in whichever process it ran."""
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
