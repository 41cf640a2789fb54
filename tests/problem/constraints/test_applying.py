"""Constraints on problems: what a placement must obey, and borders of groups.

Patterns over module names.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from gnnplace.costs.profiling.profiler import profile_model
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.placers import contract
from gnnplace.placers.contract import training_chain
from gnnplace.placing.roster import place
from gnnplace.problem import problem_from_data, problem_to_data
from gnnplace.problem.cluster import Cluster, Device
from gnnplace.problem.constraints import (
    Constraints,
    ConstraintWords,
    apply_constraints,
    limit_memory,
)
from gnnplace.problem.constraints.applying import (
    Names,
    match_devices,
    resolve,
    with_max_memory,
)
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.tracing.models import capture_model
from gnnplace.tracing.options import CaptureOptions
from tests.random_problems import random_problem, seeds


def named():
    """The chain of six layers with modules ``layers.0`` to ``layers.5``."""
    problem = training_chain()
    return replace(
        problem, module=tuple(f"layers.{name[1]}" for name in problem.graph.names)
    )


def test_what_is_asked_is_what_is_placed():
    """Pins, forbids and what stays together hold in a placement of the problem itself."""
    problem = named()
    asked = ConstraintWords(
        pin=["layers.0=d1", "layers.[12]=d0,d2"],
        forbid=["layers.4=d0"],
        together=["layers.3,layers.5"],
    ).constraints()
    result = place(problem, placer="portfolio", constraints=asked)
    device = {
        name: int(result.placement.device[i]) for name, i in problem.graph.index.items()
    }
    assert device["f0"] == device["b0"] == device["u0"] == 1
    assert {device["f1"], device["f2"]} <= {0, 2}
    assert device["f4"] != 0
    assert device["f3"] == device["f5"]


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_constraints_are_in_the_file_and_in_every_copy(seed):
    """A constrained problem is read as it was written, and its copies obey what the op does."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, 12, 3)
    names = [f"d{d}" for d in range(3)]
    asked = ConstraintWords(
        pin=[f"op1=d{rng.integers(3)}"], forbid=[f"op2={rng.choice(names)}"]
    ).constraints()
    made = apply_constraints(problem, asked)
    assert (problem_from_data(problem_to_data(made)).allowed == made.allowed).all()
    assert made.fingerprint == problem.fingerprint
    cut = with_microbatches(made, 2)
    index = {name: i for i, name in enumerate(made.graph.names)}
    origin = [index[name.partition("#")[0]] for name in cut.graph.names]
    assert (cut.allowed == made.allowed[origin]).all()


@pytest.mark.parametrize(
    "words",
    [
        {"pin": ["layers.0=d0"], "forbid": ["layers.0=d0"]},
        {"pin": ["layers.0=d0", "layers.1=d1"], "together": ["layers.0,layers.1"]},
        {"pin": ["layers.0=d0", "layers.*=d1"]},
    ],
)
def test_a_contradiction_names_both_constraints(words):
    """The error says which constraints leave no device."""
    with pytest.raises(
        InfeasibleError, match=r"'pin layers.0=d0' and .* leave no device"
    ):
        apply_constraints(named(), ConstraintWords(**words).constraints())


def test_headroom_is_kept_free():
    """Headroom is what the devices reserve."""
    made = apply_constraints(named(), Constraints(headroom="25%"))
    assert made.cluster.memory.tolist() == [0.75e6] * 3


def test_patterns_are_borders_of_groups():
    """No group of a captured model has ops on both sides of a pattern, but groups have several."""
    program = capture_model("mlp?depth=4", options=CaptureOptions(), fake=True)
    asked = ConstraintWords(
        pin=["blocks.1=gpu:0"], together=["blocks.2,head"]
    ).constraints()
    options = CaptureOptions(groups=30, constraints=asked)
    groups = profile_model(program, "nvlink-a100-2", options=options).members
    modules, names = [op.module for op in program.ops], [op.name for op in program.ops]
    for matched in resolve(asked, modules, names).matched:
        inside = {name for name, own in zip(names, matched.ops, strict=True) if own}
        assert all(
            inside.issuperset(group) or not inside & {*group} for group in groups
        )
    assert len(groups) < len(program.ops) / 3


def problem():
    kinds = (("cpu:0", "cpu"), ("gpu:0", "big"), ("gpu:1", "big"))
    devices = tuple(Device(name=name, kind=kind, memory=100.0) for name, kind in kinds)
    return replace(contract.training_chain(), cluster=Cluster(devices, (), "mixed"))


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        ({}, [100, 100, 100]),
        ({"gpu:1": 30.0, "0": 200.0}, [100, 100, 30]),
        ({"1": 30.0, "cpu": 10.0, "disk": 5.0}, [10, 100, 30]),
    ],
)
def test_names_numbers_and_never_more(most, expected):
    """Numbers count GPUs; a device never has more than it had; accelerate's disk is nobody's."""
    found = with_max_memory(problem(), tuple(most.items()))
    assert [device.memory for device in found.cluster.devices] == expected


def test_headroom_is_of_what_is_left():
    """A share of the smaller memory."""
    asked = Constraints(headroom="10%", max_memory=(("0", 50.0),))
    assert limit_memory(problem(), asked).cluster.memory.tolist() == [90, 45, 90]


def test_a_device_that_is_not_there_is_refused():
    """With those that are."""
    with pytest.raises(
        InputError, match="max-memory '2': no device is called so; devices: cpu:0"
    ):
        with_max_memory(problem(), (("2", 1.0),))


MODULES = ["encoder", "encoder.layers.0", "encoder.layers.10", "head", None]


@pytest.mark.parametrize(
    ("pattern", "ops"),
    [
        ("encoder", [0, 1, 2]),
        ("encoder.*", [0, 1, 2]),
        ("encoder.layers.?", [1]),
        ("encoder.layers.1*", [2]),
        ("*layers*", [1, 2]),
        ("*", [0, 1, 2, 3]),
        ("[h]ead", [3]),
    ],
)
def test_patterns(pattern, ops):
    """A pattern matches a module and all inside it; ops without a module are never matched."""
    found = Names(MODULES, ["a"] * 5).matched(pattern, "pin")
    assert found.ops.nonzero()[0].tolist() == ops


def test_names_of_ops_stand_in_for_modules():
    """Where no op has a module, the copies of an op are matched by its name."""
    found = Names([None] * 3, ["conv#0", "conv#1", "relu"]).matched("conv", "pin")
    assert found.ops.tolist() == [True, True, False]
    assert str(found) == "pin: 1 module, 2 ops"


def test_what_matches_nothing_is_refused_with_what_is_near():
    """A slip of the pen shows what was meant."""
    with pytest.raises(
        InputError, match=r"no module matches 'encodr.\*'; near: 'encoder'"
    ):
        Names(MODULES, ["a"] * 5).matched("encodr.*", "pin encodr.*=gpu:0")
    with pytest.raises(InputError, match="no device is named 'gpu:9'; devices: gpu:"):
        match_devices(["gpu:9"], ["gpu:0", "gpu:1"], "pin")


def test_devices_by_pattern():
    """Devices may be named by a pattern."""
    names = ["gpu:0", "gpu:1", "cpu:0"]
    assert match_devices(["gpu:*"], names, "pin").tolist() == [True, True, False]
