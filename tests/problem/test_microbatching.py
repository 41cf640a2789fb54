from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.errors import InputError
from gnnplace.problem import UPDATE
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.tracing.options import CaptureOptions
from tests.random_problems import random_problem, seeds


@settings(max_examples=50, deadline=None)
@given(seed=seeds, count=st.integers(2, 5))
def test_copies_work_bytes_and_state(seed, count):
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 12, 2, constrained=True, microbatches=1)
    phase = np.where(np.diff(problem.graph.successor_offset) == 0, UPDATE, 0).astype(
        np.int8
    )
    problem = replace(problem, phase=phase)
    cut = with_microbatches(problem, count)
    updates = int((phase == UPDATE).sum())
    assert cut.num_ops == count * (12 - updates) + updates
    for kind, seconds in problem.time.items():
        assert cut.time[kind].sum() == pytest.approx(seconds.sum())
    assert cut.state.sum() == problem.state.sum()
    names = problem.graph.names
    for i, name in enumerate(names):
        copies = [name] if phase[i] == UPDATE else [f"{name}#{k}" for k in range(count)]
        indices = [cut.graph.index[copy] for copy in copies]
        assert len(set(cut.unit_of[indices].tolist())) == 1
        if phase[i] != UPDATE:
            assert cut.microbatch[indices].tolist() == list(range(count))
    assert cut.num_units == problem.num_units


@settings(max_examples=50, deadline=None)
@given(seed=seeds)
def test_edges_stay_within_a_micro_batch_and_meet_in_updates(seed):
    problem = random_problem(np.random.default_rng(seed), 12, 2, microbatches=3)
    graph = problem.graph
    for a, b in zip(*graph.edges[:2], strict=True):
        if problem.phase[b] != UPDATE:
            assert problem.microbatch[a] == problem.microbatch[b]
    for update in np.flatnonzero(problem.phase == UPDATE):
        before = {graph.names[k].rpartition("#")[0] for k in graph.predecessors(update)}
        shares = {(graph.names[k]) for k in graph.predecessors(update)}
        assert len(shares) == 3 * len(before)


def test_one_is_the_problem_itself_and_twice_is_refused():
    problem = random_problem(np.random.default_rng(0), 5, 2)
    assert with_microbatches(problem, 1) is problem
    with pytest.raises(InputError, match="already has 2"):
        with_microbatches(with_microbatches(problem, 2), 2)


@pytest.mark.parametrize("count", [0, -1, 10**9, 1.5, float("nan"), "four"])
def test_numbers_that_no_batch_is_cut_into_are_refused_on_every_road(count):
    """At once, before an array of so many copies is asked for."""
    for cut in (
        lambda: with_microbatches(
            random_problem(np.random.default_rng(0), 5, 2), count
        ),
        lambda: CaptureOptions(microbatches=count),
    ):
        with pytest.raises(
            InputError, match=r"microbatches .*whole number from 1 to 4096"
        ):
            cut()
    with pytest.raises(InputError, match="groups"):
        CaptureOptions(groups=0 if count == 10**9 else count)


def test_times_that_were_profiled_at_a_share_stay():
    problem = random_problem(np.random.default_rng(0), 5, 2)
    cut = with_microbatches(problem, 4, profiled=True)
    assert cut.time["fast"][cut.graph.index["op1#2"]] == problem.time["fast"][1]


def test_turns_order_the_copies_and_change_nothing_else():
    problem = random_problem(np.random.default_rng(3), 12, 2)
    plain = with_microbatches(problem, 3)
    assert with_microbatches(problem, 3, turns=()).fingerprint == plain.fingerprint
    names = problem.graph.names
    cut = with_microbatches(problem, 3, turns=[(2, 2), (2, 5)])
    extra = set(edges(cut)) - set(edges(plain))
    assert extra == {
        (f"{names[2]}#{k}", f"{names[other]}#{k + 1}")
        for k in (0, 1)
        for other in (2, 5)
    }
    assert set(edges(plain)) <= set(edges(cut))
    assert cut.graph.size.sum() == plain.graph.size.sum()


def edges(problem):
    graph = problem.graph
    return [
        (graph.names[a], graph.names[b]) for a, b in zip(*graph.edges[:2], strict=True)
    ]
