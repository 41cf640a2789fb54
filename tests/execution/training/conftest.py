"""What every test of training needs, and that it leaves nothing behind."""

from __future__ import annotations

import pytest

from tests.execution.training.small import placed
from tests.leftovers import nothing_left


@pytest.fixture(autouse=True, scope="module")
def clean():
    with nothing_left():
        yield


@pytest.fixture(scope="module")
def problem():
    return placed()
