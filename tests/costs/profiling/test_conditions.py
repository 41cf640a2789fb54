"""What is said of a measurement's conditions: what others do counts, what one does oneself not."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import UTC, datetime

import numpy as np
import pytest

from gnnplace.costs.profiling.conditions import (
    MOST_LOAD,
    Conditions,
    conditions_of,
    read_conditions,
    spread,
    watch_load,
)

SPIN = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"


def test_conditions_come_back_from_plain_data() -> None:
    now = datetime.now(UTC)
    made = Conditions(now, now, 0.25, 0.5)
    assert read_conditions(made.data()) == made


@pytest.mark.alone
def test_what_others_do_is_load_and_what_is_done_here_is_not() -> None:
    def busy() -> tuple[int, float]:
        end = time.perf_counter() + 1.0
        while time.perf_counter() < end:
            pass
        return 1, 0.3

    value, alone = conditions_of(busy)
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(2)]
    try:
        time.sleep(0.3)  # a child that is not reaped yet counts as another process
        load = watch_load()
        time.sleep(1.0)
        loaded = load()
    finally:
        for process in others:
            process.kill()
            process.wait()
    assert (value, alone.noise) == (1, 0.3)
    assert loaded > alone.load
    assert loaded > MOST_LOAD


def test_spread() -> None:
    assert spread(np.array([1.0])) == 0.0
    assert spread(np.zeros(3)) == 0.0
    assert spread(np.array([1.0, 2.0, 3.0, 4.0, 5.0])) == pytest.approx(2 / 3)
