"""The learning simulator: ops, parameters, what is left; trust grows with what was measured."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gnnplace.measurements.calibration import Calibration, Forward
from gnnplace.measurements.objective import Measured
from gnnplace.measurements.posterior import (
    ORDER,
    Observation,
    OpTimes,
    Posterior,
    distance,
    fit_parameters,
)
from gnnplace.simulation import Simulator, finish_placement
from tests.random_problems import random_problem
from tests.run.programs import cpu_cluster, random_placement


def problem_of(seed=0):
    problem = random_problem(np.random.default_rng(seed), 30, 2)
    kinds = {"cpu": np.random.default_rng(seed).uniform(1e-4, 2e-3, problem.num_ops)}
    nowhere = np.full(problem.num_ops, -1, np.int32)
    return replace(problem, time=kinds, cluster=cpu_cluster(2), pin=nowhere)


def seconds_of(problem, placement):
    simulator = Simulator(problem)
    return simulator.step_time(placement.device, simulator.find_order(placement))


def measured_on(true, placement):
    ops = dict(zip(true.graph.names, true.time["cpu"].tolist(), strict=True))
    return Measured(seconds_of(true, placement), ops=ops)


def truth_of(problem, spread=0.3, seed=5):
    factor = np.exp(np.random.default_rng(seed).normal(0.2, spread, problem.num_ops))
    return replace(problem, time={"cpu": problem.time["cpu"] * factor})


def test_what_ops_took_makes_unseen_placements_predictable():
    problem = problem_of()
    true = truth_of(problem)
    unseen = [random_placement(problem, seed) for seed in range(100, 120)]
    actual = np.log([seconds_of(true, placement) for placement in unseen])
    errors = []
    for count in (0, 1, 4):
        posterior = Posterior(problem)
        seen = [random_placement(problem, seed) for seed in range(count)]
        posterior.add(seen, [measured_on(true, placement) for placement in seen])
        mean, _ = posterior.predict(unseen)
        errors.append(float(np.abs(mean - actual).mean()))
    assert errors[0] > 0.1
    assert errors[1] < 0.4 * errors[0]
    assert errors[2] < errors[1]


def test_an_op_that_was_never_seen_gets_what_is_common_to_all():
    problem = problem_of()
    placement = random_placement(problem, 0)
    names = problem.graph.names
    ops = dict(zip(names[1:], (1.5 * problem.time["cpu"][1:]).tolist(), strict=True))
    times = OpTimes(problem, [Observation(placement, Measured(1.0, ops=ops))])
    assert times.problem.time["cpu"] / problem.time["cpu"] == pytest.approx(
        1.5, rel=1e-3
    )
    spread = times.spread["cpu"]
    assert spread[0] > 2 * spread[1:].max()


def test_draws_scatter_about_what_is_believed_less_where_more_is_known():
    problem = problem_of()
    rng = np.random.default_rng(0)
    scatter = []
    for count in (0, 3):
        posterior = Posterior(problem)
        seen = [random_placement(problem, seed) for seed in range(count)]
        posterior.add(seen, [measured_on(problem, placement) for placement in seen])
        drawn = [np.log(posterior.drawn(rng).time["cpu"]) for _ in range(20)]
        scatter.append(float(np.std(drawn, axis=0).mean()))
    assert scatter[1] < 0.4 * scatter[0]


def test_parameters_are_found_where_measurements_show_them_and_else_stay_at_zero():
    problem = problem_of()
    models = [Forward(problem, random_placement(problem, seed)) for seed in range(12)]
    true = Calibration(send_overhead=2e-5, receive_overhead=1e-5, slowdown=0.04)
    measured = np.array([model.seconds(true) for model in models])
    found = fit_parameters(models, measured, 0.005)
    again = np.array([model.seconds(found) for model in models])
    before = np.array([model.seconds(Calibration()) for model in models])
    assert (
        np.abs(again / measured - 1).max() < 0.2 * np.abs(before / measured - 1).max()
    )
    assert fit_parameters([], np.zeros(0), 0.01) == Calibration()
    nothing = fit_parameters(models[:1], before[:1], 0.01)
    assert models[0].seconds(nothing) == pytest.approx(before[0], rel=0.01)


def test_a_measurement_counts_where_it_was_made_and_fades_with_distance():
    problem = problem_of()
    a, far = random_placement(problem, 0), random_placement(problem, 1)
    near = finish_placement(problem, a.device, Simulator(problem).complete(a.device))
    posterior = Posterior(problem)
    before, doubt = posterior.predict([a, near, far])
    posterior.add([a], [Measured(1.1 * float(np.exp(before[0])))])  # without its ops
    mean, deviation = posterior.predict([a, near, far])
    assert doubt[0] == doubt[2] > 0
    assert deviation[0] < deviation[1] < deviation[2]
    assert 0.03 < mean[0] - before[0] < np.log(1.1)
    assert mean[2] - before[2] < mean[0] - before[0]


def test_failures_make_what_is_like_them_unattractive_and_are_never_the_best():
    problem = problem_of()
    bad, good = random_placement(problem, 0), random_placement(problem, 1)
    posterior = Posterior(problem)
    (before,), _ = posterior.predict([bad])
    posterior.add([bad, good], [Measured(None, "died"), measured_on(problem, good)])
    (after,), _ = posterior.predict([bad])
    assert after > before + 0.2
    assert posterior.best().placement is good


def test_the_best_is_believed_and_not_a_lucky_measurement():
    """Two placements that are the same but for the names of devices, and one of them was lucky."""
    problem = problem_of()
    placement = random_placement(problem, 0)
    other = random_placement(problem, 7)
    slow, quick = sorted((placement, other), key=lambda p: -seconds_of(problem, p))
    posterior = Posterior(problem, noise=0.05)
    honest = seconds_of(problem, quick)
    posterior.add([quick] * 5, [Measured(honest)] * 5)
    lucky = 0.99 * honest
    posterior.add([slow], [Measured(lucky)])
    posterior.add([slow] * 4, [Measured(seconds_of(problem, slow))] * 4)
    assert posterior.best().placement is quick


def test_distance_forgets_the_names_of_devices():
    problem = problem_of()
    a, b = random_placement(problem, 0), random_placement(problem, 1)
    swapped = replace(a, device=1 - a.device, sequence=a.sequence[::-1])
    assert distance(problem, a, a) == distance(problem, a, swapped) == 0.0
    assert 0.1 < distance(problem, a, b) == distance(problem, b, a) <= 0.5 + ORDER
    ordered = finish_placement(problem, a.device, Simulator(problem).complete(a.device))
    assert distance(problem, a, ordered) == pytest.approx(ORDER)


def test_a_busy_hour_is_told_from_a_slow_placement():
    """Every second measurement was made while all ops took a third longer."""
    problem = problem_of()
    seen = [random_placement(problem, seed) for seed in range(8)]
    honest = [measured_on(problem, placement) for placement in seen]
    busy = [
        Measured(m.seconds * f, ops={name: t * f for name, t in m.ops.items()})
        for m, f in zip(honest, [1.0, 4 / 3] * 4, strict=True)
    ]
    posterior = Posterior(problem)
    posterior.add(seen, busy)
    mean, _ = posterior.predict(seen)
    off = mean - np.log([m.seconds for m in honest])
    assert np.ptp(off) < 0.01
    assert np.ptp(posterior.ops.drift) == pytest.approx(np.log(4 / 3), rel=0.01)
