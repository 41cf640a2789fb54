"""What every test of training leaves behind: nothing."""

from __future__ import annotations

import gc

import psutil
import pytest
import torch

from tests.execution.training.small import placed


@pytest.fixture(autouse=True, scope="module")
def nothing_left():
    torch.set_num_threads(1)
    before = psutil.Process().children(recursive=True)
    yield
    gc.collect()
    assert [p for p in psutil.Process().children(recursive=True) if p not in before] == []


@pytest.fixture(scope="module")
def problem():
    return placed()
