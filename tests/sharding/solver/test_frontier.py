from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gnnplace.errors import InfeasibleError, InputError
from gnnplace.sharding import (
    Frontier,
    ShardingResult,
    best_strategy,
    cheapest_within,
    pareto_frontier,
    smallest_within,
)
from gnnplace.sharding.solver import frontier_search as search
from gnnplace.sharding.solver import tree
from tests.sharding.problems import (
    every_point,
    expected_frontier,
    points_of,
    random_problem,
    random_problems,
)


@settings(deadline=None, max_examples=200)
@given(random_problems(memory=True))
def test_equals_enumeration(problem):
    answer = pareto_frontier(problem)
    np.testing.assert_allclose(points_of(answer), expected_frontier(problem), atol=1e-9)
    assert answer.epsilon == 0
    for point in answer.points:
        assert point.exact
        assert point.cost == problem.value(point.configuration)
        assert point.memory == problem.bytes(point.configuration)


@settings(deadline=None, max_examples=50)
@given(random_problems(memory=True), st.sampled_from([0.02, 0.1, 0.5]))
def test_within_epsilon(problem, epsilon):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "SHORT", 0)
        answer = pareto_frontier(problem, epsilon)
    for time, memory in expected_frontier(problem):
        assert any(
            t <= time * (1 + epsilon) + 1e-9 and m <= memory + 1e-9
            for t, m in points_of(answer)
        )


@settings(deadline=None, max_examples=100)
@given(random_problems(memory=True), st.floats(0, 1))
def test_least_cost_within_a_limit(problem, share):
    assume(problem.has_memory)
    points = every_point(problem)
    memories = [memory for _, memory in points]
    limit = min(memories) + share * (max(memories) - min(memories))
    found = cheapest_within(problem, limit)
    assert found.cost == pytest.approx(
        min(t for t, m in points if m <= limit + 1e-12), rel=1e-9
    )
    assert found.memory <= limit * (1 + 1e-9)
    limited = [p for p in expected_frontier(problem) if p[1] <= limit + 1e-9]
    np.testing.assert_allclose(
        points_of(pareto_frontier(problem, 0.0, limit)), limited, atol=1e-9
    )


@settings(deadline=None, max_examples=100)
@given(random_problems(memory=True), st.floats(0, 1))
def test_least_memory_within_a_time(problem, share):
    assume(problem.has_memory)
    points = every_point(problem)
    times = [time for time, _ in points]
    limit = min(times) + share * (max(times) - min(times))
    found = smallest_within(problem, limit)
    least = min(m for t, m in points if t <= limit + 1e-12)
    assert found.memory == pytest.approx(least, rel=1e-9, abs=1e-9)
    assert found.cost <= limit * (1 + 1e-9)
    assert found.exact


def test_a_time_that_nothing_keeps_says_what_the_fastest_takes():
    problem = random_problem(7, memory=True)
    fastest = min(time for time, _ in every_point(problem))
    with pytest.raises(InfeasibleError, match=f"the fastest takes {fastest:.10g} s"):
        smallest_within(problem, fastest * 0.99)
    with pytest.raises(InputError, match="no memory tables"):
        smallest_within(random_problem(7), 1.0)
    with pytest.raises(InputError, match="time limit: nan"):
        smallest_within(problem, float("nan"))


def test_larger_epsilon_where_exact_is_too_much_work(monkeypatch):
    problem = random_problem(4, nodes=14, edges=16, configurations=8, memory=True)
    exact = pareto_frontier(problem)
    assert len(exact.points) > 50
    whole = search._PointsRun

    def limited(steps, factors, weights, regions, scale, error, work):
        return whole(
            steps,
            factors,
            weights,
            regions,
            scale,
            error,
            work if error > 0.05 else 1.0,
        )

    monkeypatch.setattr(search, "SHORT", 4)
    monkeypatch.setattr(search, "_PointsRun", limited)
    answer = pareto_frontier(problem)
    assert 0.05 < answer.epsilon < 0.2
    assert not any(point.exact for point in answer.points)
    for time, memory in points_of(exact):
        near = time * (1 + answer.epsilon)
        assert any(
            t <= near and m <= memory * (1 + 1e-12) for t, m in points_of(answer)
        )


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("limit", "value"), [("FIRST_WORK", 1.0), ("CELL_LIMIT", 20)])
def test_supported_points_remain_with_their_epsilon(monkeypatch, seed, limit, value):
    problem = random_problem(seed, nodes=6, edges=9, memory=True)
    exact = expected_frontier(problem)
    monkeypatch.setattr(search if limit == "FIRST_WORK" else tree, limit, value)
    monkeypatch.setattr(search, "WORK", 1.0)
    answer = pareto_frontier(problem)
    for time, memory in exact:
        near = time * (1 + answer.epsilon) + 1e-9
        assert any(t <= near and m <= memory + 1e-9 for t, m in points_of(answer))
    memory = exact[len(exact) // 2][1]
    found = cheapest_within(problem, memory)
    assert found.memory <= memory * (1 + 1e-9)
    assert not found.exact or found.cost == pytest.approx(exact[len(exact) // 2][0])


def test_without_memory_there_is_one_point():
    problem = random_problem(2)
    answer = pareto_frontier(problem)
    assert answer.points[0].configuration == best_strategy(problem).configuration
    assert len(answer.points) == 1
    assert answer.points[0].memory is None


def test_a_limit_that_nothing_keeps_says_what_the_least_takes():
    problem = random_problem(7, memory=True)
    least = min(memory for _, memory in every_point(problem))
    with pytest.raises(InfeasibleError, match=f"takes {least:.10g}"):
        cheapest_within(problem, least * 0.99)
    with pytest.raises(InfeasibleError):
        pareto_frontier(problem, 0.0, least * 0.99)


@pytest.mark.parametrize("epsilon", [-0.1, float("nan"), float("inf")])
def test_epsilon_is_a_number_from_zero_on(epsilon):
    with pytest.raises(InputError, match="epsilon"):
        pareto_frontier(random_problem(7, memory=True), epsilon)


def test_a_limit_needs_memory_tables():
    with pytest.raises(InputError, match="no memory tables"):
        cheapest_within(random_problem(7), 1.0)
    with pytest.raises(InputError, match="memory limit"):
        cheapest_within(random_problem(7, memory=True), float("nan"))


def test_units_do_not_matter():
    problem = random_problem(9, nodes=6, edges=8, memory=True)
    scaled = replace(
        problem,
        cost=tuple(1e12 * c for c in problem.cost),
        memory=tuple(None if m is None else 1e9 * m for m in problem.memory),
        edges=tuple(
            replace(
                e,
                cost=1e12 * e.cost,
                memory=None if e.memory is None else 1e9 * e.memory,
            )
            for e in problem.edges
        ),
    )
    expected = [(t * 1e12, m * 1e9) for t, m in points_of(pareto_frontier(problem))]
    np.testing.assert_allclose(points_of(pareto_frontier(scaled)), expected)


def test_the_knee_is_farthest_from_the_line_between_the_ends():
    def point(cost, memory):
        return ShardingResult(cost, memory, (), 0.0, True)

    points = (point(1.0, 10.0), point(2.0, 3.0), point(5.0, 2.0), point(9.0, 1.0))
    assert Frontier(points, 0.0, 0.0).knee == 1
    assert Frontier(points[:2], 0.0, 0.0).knee is None
