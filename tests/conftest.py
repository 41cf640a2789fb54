"""Options and settings of the whole test suite."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# On CI every run draws the same examples, so that a failure is one that can be repeated; elsewhere
# every run draws new ones.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(autouse=True, scope="session")
def _measurements_stay_here(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["GNNPLACE_STORE"] = str(tmp_path_factory.mktemp("store") / "measurements.db")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--placers", default="", help="comma-separated placers for contract tests")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "placer_name" in metafunc.fixturenames:
        from gnnplace.placers.registry import PLACERS

        chosen = [name for name in metafunc.config.getoption("--placers").split(",") if name]
        metafunc.parametrize("placer_name", chosen or list(PLACERS))
