from __future__ import annotations

from dataclasses import replace

import numpy as np

from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.gnn.features import DEVICE, device_features
from gnnplace.train.data.random_families import RandomDraws, random_problem


def problem_of(devices):
    sizes = {
        "devices": (devices, devices),
        "clusters": ("mixed",),
        "microbatches": (1,),
    }
    return random_problem("inception", 3, RandomDraws(**sizes))


def test_devices_are_told_apart_by_their_speed():
    problem = problem_of(4)
    found = device_features(WalkGraph(SearchSpace(problem)))
    assert found.shape == (4, len(DEVICE))
    assert np.isfinite(found).all()
    slow = np.array([device.kind == "slow" for device in problem.cluster.devices])
    speed = found[:, DEVICE.index("log slowness for all units")]
    assert speed[slow].min() > speed[~slow].max()


def test_one_device_has_features_too():
    found = device_features(WalkGraph(SearchSpace(problem_of(1))))
    assert np.isfinite(found).all()


def test_slowness_does_not_depend_on_how_fast_the_machine_is():
    problem = problem_of(3)
    faster = replace(problem, time={kind: t / 7.0 for kind, t in problem.time.items()})
    column = DEVICE.index("log slowness for all units")
    mine, theirs = (
        device_features(WalkGraph(SearchSpace(p)))[:, column] for p in (problem, faster)
    )
    np.testing.assert_allclose(mine, theirs, rtol=1e-5)
