"""A calibration finds what was put in, predicts what it has not seen, and can be kept and used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gnnplace.errors import FormatError, InputError
from gnnplace.graph import ComputationGraph
from gnnplace.measurements.calibration import (
    Calibration,
    Forward,
    apply_calibration,
    cross_validated,
    fit,
    mean_overlap,
    overlap,
    read_calibration,
    write_calibration,
)
from gnnplace.measurements.samples import Sample, agreement
from gnnplace.placing.roster import make_placer as placer
from gnnplace.problem import build_problem
from gnnplace.problem.cluster import Cluster, Device, Link
from gnnplace.problem.placement import Placement
from gnnplace.run.measuring.candidates import draw_candidates
from gnnplace.simulation import simulate

TRUE = Calibration(3e-5, 2e-5, 6e-5, 0.08)


def problem(seed=0, n=60):
    rng = np.random.default_rng(seed)
    tensors = [
        (i, float(rng.integers(1, 10**5)), [min(n - 1, i + int(rng.integers(1, 25)))])
        for i in range(n - 1)
    ]
    devices = tuple(Device(name=f"cpu:{d}", kind="cpu", memory=1e12) for d in range(2))
    link = {
        "latency": 5e-6,
        "bandwidth": 5e9,
        "sender_busy": True,
        "send_overhead": 5e-6,
    }
    links = tuple(
        Link(source=f"cpu:{d}", target=f"cpu:{1 - d}", **link) for d in range(2)
    )
    graph = ComputationGraph.from_tensors([f"op{i}" for i in range(n)], tensors)
    return build_problem(
        "p", graph, Cluster(devices, links), {"cpu": rng.uniform(1e-5, 1e-3, n)}
    )


def samples(truth, noise=0.0, count=24):
    p = problem()
    made = draw_candidates(
        p,
        ["single", "heft", "contiguous"],
        lambda n: placer(n).place(p).placement,
        count,
    )
    rng = np.random.default_rng(1)
    return [
        Sample(p, c.placement, seconds * float(np.exp(noise * rng.normal())), c.name)
        for c in made
        for seconds in [Forward(p, c.placement).seconds(truth)]
    ]


def test_nothing_to_correct_predicts_as_the_simulator():
    for sample in samples(Calibration()):
        assert sample.measured == simulate(sample.problem, sample.placement).step_time


@pytest.mark.parametrize(
    "truth",
    [
        TRUE,
        Calibration(slowdown=0.15),
        pytest.param(Calibration(op_overhead=1e-4), marks=pytest.mark.campaign),
        pytest.param(Calibration(send_overhead=5e-5), marks=pytest.mark.campaign),
        pytest.param(Calibration(receive_overhead=5e-5), marks=pytest.mark.campaign),
        pytest.param(Calibration(contention=0.2), marks=pytest.mark.campaign),
    ],
)
def test_a_fit_finds_what_was_put_in(truth):
    found = fit(samples(truth))
    assert found.op_overhead == pytest.approx(truth.op_overhead, abs=2e-6)
    assert found.send_overhead == pytest.approx(truth.send_overhead, abs=2e-6)
    assert found.receive_overhead == pytest.approx(truth.receive_overhead, abs=2e-6)
    assert found.contention == pytest.approx(truth.contention, abs=0.005)
    assert found.slowdown == pytest.approx(truth.slowdown, abs=0.005)


def test_held_out_predictions_are_better_than_before():
    known = samples(TRUE, noise=0.01)
    measured = [s.measured for s in known]
    before = agreement(
        [simulate(s.problem, s.placement).step_time for s in known], measured
    )
    after = agreement(cross_validated(known), measured)
    assert before.bias < -0.05
    assert after.mape < 0.3 * before.mape
    assert abs(after.bias) < 0.01


def test_no_sample_helps_to_predict_itself():
    """One measurement that is far off changes its own prediction by nothing."""
    known = samples(TRUE)
    wrong = [
        replace(s, measured=50 * s.measured) if k == 3 else s
        for k, s in enumerate(known)
    ]
    assert cross_validated(wrong)[3] == cross_validated(known)[3]


def test_twice_the_same_placement_is_never_in_two_folds():
    known = samples(TRUE, count=8)
    twice = [*known, *(replace(s, measured=9.0) for s in known)]
    predicted = cross_validated(twice)
    assert predicted[:8] == predicted[8:]


def overlap_by_hand(simulation, i):
    start, finish = simulation.start[i], simulation.finish[i]
    total = 0.0
    for j in range(len(simulation.start)):
        if simulation.device[j] != simulation.device[i]:
            both = min(finish, simulation.finish[j]) - max(start, simulation.start[j])
            total += max(both, 0.0)
    return total / (finish - start)


def test_overlap_equals_the_sum_over_all_pairs():
    sample = samples(TRUE)[8]
    simulation = simulate(sample.problem, sample.placement)
    found = overlap(simulation, 2)
    for i in range(0, sample.problem.num_ops, 7):
        assert found[i] == pytest.approx(overlap_by_hand(simulation, i), abs=1e-9)
    assert 0 < mean_overlap(Forward(sample.problem, sample.placement)) <= 1


def test_one_device_has_no_contention():
    p = problem()
    alone = Placement(
        np.zeros(p.num_ops, np.int32), (np.arange(p.num_ops), np.arange(0))
    )
    model = Forward(p, alone)
    assert mean_overlap(model) == 0.0
    assert model.seconds(Calibration(contention=0.5)) == model.seconds(Calibration())


def test_the_calibrated_problem_is_the_same_structure_with_other_costs():
    p = problem()
    better = apply_calibration(p, Calibration(1e-6, 1e-5, 2e-5, 0.1), 0.5)
    assert better.fingerprint == p.fingerprint
    assert better.time["cpu"] == pytest.approx((p.time["cpu"] + 1e-6) * 1.05)
    link = better.cluster.links[0]
    assert (link.send_overhead, link.receive_overhead) == pytest.approx((1.5e-5, 2e-5))
    fast = apply_calibration(p, Calibration(-1.0, -1.0, -1.0), 0.0)
    assert (fast.time["cpu"] == 0).all()
    assert fast.cluster.links[0].send_overhead == 0


def test_a_calibration_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "c.json"
    write_calibration(path, TRUE, 0.7)
    assert read_calibration(path) == (TRUE, 0.7)
    path.write_text('{"format": "gnnplace-calibration", "version": 1}')
    with pytest.raises(FormatError, match="op_overhead"):
        read_calibration(path)


def test_too_little_to_fit_is_refused():
    known = samples(TRUE)
    with pytest.raises(InputError, match="needed"):
        fit(known[:5])
    with pytest.raises(InputError, match="one placement"):
        cross_validated([known[0]] * 9)
