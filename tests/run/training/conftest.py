"""What every test of training needs, and that it leaves nothing behind."""

from __future__ import annotations

import pytest

from tests.leftovers import nothing_left
from tests.run.training.small import placed


@pytest.fixture(autouse=True, scope="module")
def clean():
    with nothing_left():
        yield


@pytest.fixture(scope="module")
def problem():
    return placed()
