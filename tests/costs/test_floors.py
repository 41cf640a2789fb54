import numpy as np
import pytest

from gnnplace.costs import floors
from gnnplace.costs.floors import NO_FLOOR, Floor, with_floor

FLOOR = Floor(gap=1.0, view=2.0, forward=10.0, backward=5.0)
NO = np.zeros(3, dtype=bool)
SAME = np.zeros(3, dtype=np.intp)


def test_a_busy_gpu_hides_the_host_but_for_the_first_launch() -> None:
    found = with_floor(np.array([100.0, 50.0, 20.0]), NO, NO, np.arange(3), FLOOR)
    assert found.tolist() == [111.0, 51.0, 21.0]


def test_an_idle_gpu_waits_for_the_host() -> None:
    found = with_floor(np.array([1.0, 1.0, 1.0]), NO, NO, SAME, FLOOR)
    assert found.sum() == pytest.approx(30.0 + 2.0)
    late = with_floor(np.array([1.0, 1.0, 1.0]), NO, ~NO, SAME, FLOOR)
    assert late.sum() == pytest.approx(15.0 + 2.0)


def test_a_long_kernel_pays_for_the_short_ones_after_it() -> None:
    first = with_floor(np.array([100.0, 1.0, 1.0]), NO, NO, SAME, FLOOR)
    assert first.sum() == pytest.approx(10.0 + 101.0 + 2.0 + 2.0)
    last = with_floor(np.array([1.0, 1.0, 100.0]), NO, NO, SAME, FLOOR)
    assert last.sum() == pytest.approx(30.0 + 101.0)


def test_what_a_layer_waits_for_is_spread_over_it() -> None:
    layers = np.array([0, 1, 1])
    found = with_floor(np.array([100.0, 1.0, 1.0]), NO, NO, layers, FLOOR)
    assert found.tolist() == [111.0, 2.0, 2.0]
    found = with_floor(np.array([1.0, 1.0, 1.0]), NO, NO, layers, FLOOR)
    assert found[0] == 12.0
    assert found[1] == found[2] == 10.0


def test_a_view_costs_the_host_alone() -> None:
    view = np.array([True, False, True])
    alone = np.arange(3)
    busy = with_floor(np.array([0.0, 100.0, 0.0]), view, NO, alone, FLOOR)
    assert busy.tolist() == [2.0, 111.0, 0.0]
    idle = with_floor(np.array([0.0, 1.0, 0.0]), view, NO, SAME, FLOOR)
    assert idle.sum() == pytest.approx(14.0)


@pytest.mark.parametrize("queue", [1, 3, 1024])
def test_the_host_is_a_queue_ahead_at_most(
    queue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the two lines of the formulation, op by op."""
    monkeypatch.setattr(floors, "QUEUE", queue)
    kernel = np.random.default_rng(0).exponential(15.0, 50)
    none, layers = np.zeros(50, dtype=bool), np.arange(50)
    issued, done = 0.0, []
    for i in range(50):
        issued = max(issued, done[i - queue] if i >= queue else 0.0) + FLOOR.forward
        done.append(max(done[-1] if done else 0.0, issued) + kernel[i] + FLOOR.gap)
    found = with_floor(kernel, none, none, layers, FLOOR)
    assert np.cumsum(found) == pytest.approx(done)


def test_nothing_adds_nothing() -> None:
    kernel = np.array([1.0, 2.0, 3.0])
    assert with_floor(kernel, NO, NO, SAME, NO_FLOOR).tolist() == kernel.tolist()
    empty = with_floor(np.zeros(0), NO[:0], NO[:0], SAME[:0], FLOOR)
    assert len(empty) == 0


@pytest.mark.parametrize("seed", range(5))
def test_no_op_takes_less_than_nothing(seed: int) -> None:
    """Not by a rounding either, where a busy GPU leaves views nothing to wait for."""
    rng = np.random.default_rng(seed)
    view = rng.random(600) < 0.5
    kernel = np.where(view, 0.0, rng.exponential(1e-3, 600))
    found = with_floor(kernel, view, np.zeros(600, dtype=bool), np.arange(600) // 4)
    assert (found >= 0.0).all()
