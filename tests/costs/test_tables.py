import numpy as np
import pytest

from gnnplace.costs.tables import Surface


def grid(count: int = 8) -> np.ndarray:
    axis = np.arange(float(count))
    return np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)


def test_a_plane_is_given_back_between_its_points_and_at_them() -> None:
    at = grid()
    surface = Surface(at, 0.3 * at[:, 0] - 0.1 * at[:, 1] + 0.5)
    query = np.array([[3.4, 2.7], [5.0, 5.0], [1.2, 6.6]])
    found, distance = surface(query)
    assert np.allclose(found, 0.3 * query[:, 0] - 0.1 * query[:, 1] + 0.5, atol=0.02)
    assert (distance < 1.5).all()


def test_a_point_left_out_is_answered_by_the_others() -> None:
    at = grid(6)
    values = np.zeros(len(at))
    values[14] = 3.0
    found, _ = Surface(at, values)(at, own=True)
    assert abs(found[14]) < 0.2  # it does not see itself
    again, distance = Surface(at, values)(at[14:15])
    assert again[0] > 1.0
    assert distance[0] < 1.0


def test_one_point_answers_for_all_and_says_how_far_it_is() -> None:
    found, distance = Surface(np.zeros((1, 2)), np.array([0.7]))(np.array([[3.0, 4.0]]))
    assert found == pytest.approx([0.7])
    assert distance.tolist() == [5.0]


def test_without_another_point_nothing_is_near() -> None:
    found, distance = Surface(np.zeros((1, 2)), np.array([0.7]))(
        np.zeros((1, 2)), own=True
    )
    assert found.tolist() == [0.0]
    assert np.isinf(distance).all()


def test_far_away_it_stays_near_what_was_measured() -> None:
    at = grid(4)
    found, distance = Surface(at, at[:, 0])(np.array([[30.0, 0.0]]))
    assert found[0] <= 3.3 + 1e-9
    assert distance[0] > 20
