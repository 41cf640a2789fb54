"""Orders of actions: complete, in order, within limits; known step times of schedules."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnplace.errors import InputError
from gnnplace.plans.order.orders import (
    FORWARD,
    FULL,
    INPUT,
    WEIGHT,
    Pipeline,
    as_arrays,
    chunk_ranks,
    count_in_flight,
    count_most_in_flight,
    find_peak_saved,
    limits,
    make_fixed_rows,
    make_list_rows,
    make_rank_actions,
    run_list_schedule,
    time_rows,
)
from gnnplace.plans.order.timing import time_pipeline

APART = ("zero-bubble", "v")


def pipeline(schedule, ranks, microbatches, seconds=None, sent=0.0):
    rank = chunk_ranks(schedule, ranks)
    each = len(rank) // ranks
    seconds = seconds or [(1.0 / each, 1.0 / each, 1.0 / each)] * len(rank)
    held = limits(schedule, ranks, microbatches)
    apart = schedule in APART
    return Pipeline(
        rank, tuple(seconds), (sent,) * (len(rank) - 1), microbatches, apart, held
    )


def step(schedule, ranks, microbatches):
    line = pipeline(schedule, ranks, microbatches)
    return time_pipeline(
        line, make_rank_actions(schedule, line).orders(), [0.0] * ranks
    ).step_time


@pytest.mark.parametrize(
    ("ranks", "microbatches"), [(1, 3), (2, 2), (4, 4), (4, 16), (3, 7)]
)
def test_1f1b_takes_what_its_formula_says(ranks, microbatches):
    assert step("1f1b", ranks, microbatches) == pytest.approx(
        3.0 * (microbatches + ranks - 1)
    )


def test_1f1b_of_two_stages_is_the_published_order():
    line = pipeline("1f1b", 2, 3)
    orders = [
        " ".join(map(str, actions))
        for actions in make_rank_actions("1f1b", line).orders()
    ]
    assert orders == ["0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"]


@pytest.mark.parametrize("microbatches", [8, 16])
def test_schedules_with_less_bubble_take_less(microbatches):
    plain = step("1f1b", 4, microbatches)
    assert step("zero-bubble", 4, microbatches) < plain
    assert step("v", 4, microbatches) < step("zero-bubble", 4, microbatches)
    assert step("interleaved:2", 4, microbatches) == pytest.approx(
        3.0 * (microbatches + 1.5)
    )


@given(
    schedule=st.sampled_from(["1f1b", "gpipe", "zero-bubble", "v", "interleaved:2"]),
    ranks=st.integers(1, 4),
    rounds=st.integers(1, 4),
    seed=st.randoms(use_true_random=False),
)
def test_orders_are_complete_and_run(schedule, ranks, rounds, seed):
    microbatches = ranks * rounds
    count = len(chunk_ranks(schedule, ranks))
    seconds = [tuple(seed.uniform(0.1, 2.0) for _ in range(3)) for _ in range(count)]
    line = pipeline(schedule, ranks, microbatches, seconds, sent=seed.uniform(0.0, 0.3))
    orders = make_rank_actions(schedule, line).orders()
    kinds = (FORWARD, INPUT, WEIGHT) if line.apart else (FORWARD, FULL)
    made = sorted(action for actions in orders for action in actions)
    assert made == sorted(
        (c, k, m) for c in range(count) for k in kinds for m in range(microbatches)
    )
    for rank, actions in enumerate(orders):
        assert all(line.rank[action.chunk] == rank for action in actions)
        if not schedule.startswith("interleaved"):
            held = count_in_flight(actions, count)
            assert all(h <= most for h, most in zip(held, line.limit, strict=True))
    found = time_pipeline(line, orders, [0.0] * ranks)
    busiest = max(
        microbatches
        * sum(sum(s) for s, r in zip(seconds, line.rank, strict=True) if r == p)
        for p in range(ranks)
    )
    assert found.simulation.feasible
    assert time_rows(
        line, make_rank_actions(schedule, line), [0.0] * ranks
    ) == pytest.approx(found.step_time)
    assert found.step_time >= busiest * (1 - 1e-9)


@given(
    schedule=st.sampled_from(["zero-bubble", "v"]),
    ranks=st.integers(1, 4),
    microbatches=st.integers(1, 9),
    seed=st.randoms(use_true_random=False),
)
def test_the_kernel_times_what_the_simulator_does(schedule, ranks, microbatches, seed):
    count = len(chunk_ranks(schedule, ranks))
    seconds = [tuple(seed.uniform(0.1, 2.0) for _ in range(3)) for _ in range(count)]
    line = pipeline(schedule, ranks, microbatches, seconds, sent=seed.uniform(0.0, 3.0))
    limit = np.array([seed.randint(1, microbatches) for _ in range(count)])
    late, weights = (
        np.array([seed.random() < 0.5 for _ in range(count)]) for _ in range(2)
    )
    ends = np.array([seed.uniform(0.0, 2.0) for _ in range(ranks)])
    taken, made = run_list_schedule(as_arrays(line), limit, late, weights, ends)
    assert len(made) == count * (2 + line.apart) * microbatches
    assert time_pipeline(
        line, make_list_rows(line, made).orders(), list(ends)
    ).step_time == pytest.approx(taken)


def test_transfers_that_block_take_time_of_both_ends():
    """One micro-batch over two stages: each message once at its sender, once at its receiver."""
    line = pipeline("1f1b", 2, 1, [(1.0, 1.0, 1.0)] * 2, sent=0.25)
    found = time_pipeline(
        line, make_rank_actions("1f1b", line).orders(), [0.0, 0.0], blocking=True
    )
    assert found.step_time == pytest.approx(6.0 + 4 * 0.25)


def test_unknown_schedules_and_counts_are_refused():
    with pytest.raises(InputError, match="schedule 'gpip': unknown"):
        chunk_ranks("gpip", 2)
    with pytest.raises(InputError, match="5 micro-batches are no multiple of 2 stages"):
        make_rank_actions("interleaved:2", pipeline("interleaved:2", 2, 5))


@given(
    schedule=st.sampled_from(["1f1b", "gpipe", "zero-bubble", "v", "interleaved:3"]),
    ranks=st.integers(1, 4),
    rounds=st.integers(1, 3),
    seed=st.randoms(use_true_random=False),
)
def test_saved_bytes_are_those_of_the_fullest_instant(schedule, ranks, rounds, seed):
    line = pipeline(schedule, ranks, ranks * rounds)
    saved = [seed.uniform(0.0, 2.0) for _ in line.rank]
    actions = make_rank_actions(schedule, line)
    most = find_peak_saved(*actions, np.array(saved))
    for rank, order in enumerate(actions.orders()):
        held = [0.0]
        for action in order:
            if action.kind == FORWARD:
                held.append(held[-1] + saved[action.chunk])
            elif action.kind != INPUT:
                held.append(held[-1] - saved[action.chunk])
        assert most[rank] == pytest.approx(max(held))
    flying = count_most_in_flight(*actions, len(line.rank))
    counted = [count_in_flight(order, len(line.rank)) for order in actions.orders()]
    assert flying.tolist() == [max(counts) for counts in zip(*counted, strict=True)]


@given(ranks=st.integers(1, 5), each=st.integers(2, 4), microbatches=st.integers(1, 25))
def test_groups_of_micro_batches_that_the_ranks_do_not_divide_run(
    ranks, each, microbatches
):
    """Megatron-LM's groups of a rank's chunk: no rest is smaller than the ranks."""
    groups = [
        n for n in range(ranks, microbatches + 1) if not 0 < microbatches % n < ranks
    ]
    for group in groups:
        line = pipeline(f"interleaved:{each}", ranks, microbatches)
        actions = make_fixed_rows(
            f"interleaved:{each}", ranks, ranks * each, microbatches, group
        )
        passes = sorted(map(tuple, actions.rows.reshape(-1, 3).tolist()))
        chunks = ranks * each
        assert passes == [
            (c, k, m)
            for c in range(chunks)
            for k in range(2)
            for m in range(microbatches)
        ]
        assert np.isfinite(time_rows(line, actions, [0.0] * ranks))
