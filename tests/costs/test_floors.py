import numpy as np
import pytest

from gnnplace.costs.floors import NOTHING, Floor, with_floor

FLOOR = Floor(gap=1.0, view=2.0, forward=10.0, backward=5.0)
NO = np.zeros(3, dtype=bool)
SAME = np.zeros(3, dtype=np.intp)


def test_a_busy_gpu_hides_the_host() -> None:
    found = with_floor(np.array([100.0, 50.0, 20.0]), NO, NO, SAME, FLOOR)
    assert found.tolist() == [101.0, 51.0, 21.0]


def test_an_idle_gpu_waits_for_the_host() -> None:
    found = with_floor(np.array([1.0, 1.0, 1.0]), NO, NO, SAME, FLOOR)
    assert found.sum() == pytest.approx(30.0)
    late = with_floor(np.array([1.0, 1.0, 1.0]), NO, ~NO, SAME, FLOOR)
    assert late.sum() == pytest.approx(15.0)


def test_a_long_kernel_pays_for_short_ones_of_its_layer_alone() -> None:
    kernel = np.array([100.0, 1.0, 1.0])
    assert with_floor(kernel, NO, NO, SAME, FLOOR).sum() == pytest.approx(105.0)
    layers = np.array([0, 1, 1])
    assert with_floor(kernel, NO, NO, layers, FLOOR).sum() == pytest.approx(101.0 + 20.0)


def test_a_view_costs_the_host_alone() -> None:
    view = np.array([True, False, True])
    busy = with_floor(np.array([0.0, 100.0, 0.0]), view, NO, SAME, FLOOR)
    assert busy.tolist() == [0.0, 101.0, 0.0]
    idle = with_floor(np.array([0.0, 1.0, 0.0]), view, NO, SAME, FLOOR)
    assert idle.sum() == pytest.approx(14.0)


def test_nothing_adds_nothing() -> None:
    kernel = np.array([1.0, 2.0, 3.0])
    assert with_floor(kernel, NO, NO, SAME, NOTHING).tolist() == kernel.tolist()
    empty = with_floor(np.zeros(0), NO[:0], NO[:0], SAME[:0], FLOOR)
    assert len(empty) == 0
