from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.simulation import Simulator
from gnnplace.simulation.kernels import exceeds
from tests.random_problems import random_order, random_problem, seeds


def placed(seed: int, num_devices: int, num_ops: int = 14):
    """A simulator, devices, an order that agrees with the graph, and the step time."""
    rng = np.random.default_rng(seed)
    problem = random_problem(
        rng, num_ops, num_devices, complete=bool(rng.random() < 0.8)
    )
    simulator = Simulator(problem)
    device = rng.integers(0, num_devices, num_ops).astype(np.int32)
    order = random_order(problem, rng)
    return simulator, device, order, simulator.step_time(device, order)


@settings(max_examples=100, deadline=None)
@given(seed=seeds, num_devices=st.integers(1, 4))
def test_a_cut_off_never_loses_a_placement_that_is_as_good(seed, num_devices):
    simulator, device, order, seconds = placed(seed, num_devices)
    if np.isfinite(seconds):
        assert simulator.step_time(device, order, seconds) == seconds
        assert simulator.step_time(device, order, 2 * seconds) == seconds


@settings(max_examples=100, deadline=None)
@given(seed=seeds, num_devices=st.integers(1, 4), share=st.floats(0.0, 0.999))
def test_what_is_slower_than_the_cut_off_is_cut_off(seed, num_devices, share):
    simulator, device, order, seconds = placed(seed, num_devices)
    if seconds > 0:
        assert simulator.step_time(device, order, share * seconds) == np.inf
        assert simulator.excess(device, order)[0] == seconds


@settings(max_examples=100, deadline=None)
@given(seed=seeds, num_devices=st.integers(1, 4), share=st.floats(0.5, 1.5))
def test_the_bound_holds_for_orders_that_contradict_the_graph_too(
    seed, num_devices, share
):
    simulator, device, order, seconds = placed(seed, num_devices)
    shuffled = np.random.default_rng(seed).permutation(order).astype(np.int32)
    real = simulator.step_time(device, shuffled)
    limit = share * (real if np.isfinite(real) else seconds)
    after = np.empty(len(device))
    if exceeds(simulator.compiled, device, shuffled, limit, after):
        assert real > limit * (1 - 1e-9)


@settings(max_examples=100, deadline=None)
@given(seed=seeds, num_devices=st.integers(1, 4))
def test_seconds_to_the_end_are_a_bound_from_every_op_on(seed, num_devices):
    simulator, device, order, seconds = placed(seed, num_devices)
    if not np.isfinite(seconds):
        return
    after = np.empty(len(device))
    assert not exceeds(simulator.compiled, device, order, seconds * (1 + 1e-9), after)
    finish = simulator.run(device, order).finish
    assert (finish + after <= seconds * (1 + 1e-9)).all()
    assert (after >= simulator.compiled.tail * (1 - 1e-9)).all()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_on_one_device_the_bound_is_the_step_time(seed):
    simulator, device, order, seconds = placed(seed, 1)
    after = np.empty(len(device))
    assert exceeds(simulator.compiled, device, order, seconds * (1 - 1e-6), after)
    assert not exceeds(simulator.compiled, device, order, seconds * (1 + 1e-6), after)
