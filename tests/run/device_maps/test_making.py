"""Device maps: exact, or refused in words of the user's modules."""

from __future__ import annotations

import numpy as np
import pytest

import gnnplace
from gnnplace.errors import InputError, MismatchError
from gnnplace.problem.cluster import Device
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.problem.placement import Placement
from gnnplace.run.device_maps.making import accelerate_names, device_map
from tests.run.device_maps.mapped import captured, placed

SPREAD = {
    "words": 0,
    "places": 0,
    "blocks.0": 0,
    "blocks.1": 1,
    "blocks.2": 3,
    "head": 3,
}


@pytest.fixture(scope="module")
def inference():
    return captured()


@pytest.fixture(scope="module")
def by_ops():
    return captured(by_module=False)


@pytest.fixture(scope="module")
def training():
    return captured(forward_only=False)


def test_modules_and_their_devices(inference, training):
    """Training and inference give the same map; what is not read is on the first device."""
    for program, problem in (inference, training):
        found = device_map(program, problem, placed(problem, SPREAD))
        assert found == SPREAD | {"unread": 0}


def test_neighbours_on_one_device_are_one_entry(inference):
    """A list of blocks is one entry where all are on one device; so is the whole model."""
    program, problem = inference
    together = SPREAD | {"blocks.1": 0, "blocks.2": 0}
    found = device_map(program, problem, placed(problem, together))
    assert found == {"words": 0, "places": 0, "blocks": 0, "head": 3, "unread": 0}
    alone = Placement(np.full(problem.num_ops, 2, dtype=np.int32))
    assert device_map(program, problem, alone) == {"": 2}


def test_a_search_by_module_is_exact_with_groups_too():
    """Whatever a placer finds by module, on groups of ops as well, is a device map."""
    program, problem = captured(groups=12)
    found = gnnplace.place(problem, placer="round-robin", budget=0)
    devices = device_map(program, problem, found.placement)
    assert {*devices.values()} == {0, 1, 2, 3}
    assert devices["words"] == devices["places"]


@pytest.mark.parametrize(
    ("op", "told"),
    [
        (
            "blocks.1",
            r"the ops of module 'blocks.1' are on gpu:0 and gpu:1 .*--by-module",
        ),
        (None, r"op 'add' of the model itself is on gpu:1.*from 'words' is"),
        (
            "places",
            r"'words' is on gpu:0 and 'places' on gpu:1, but the model itself brings",
        ),
    ],
)
def test_what_is_not_by_module_is_refused(by_ops, op, told):
    """Ops of one module on two devices; an op between modules elsewhere; parts of a sum apart."""
    program, problem = by_ops
    device = np.zeros(problem.num_ops, dtype=np.int32)
    own = [i for i, module in enumerate(problem.module) if module == op]
    chosen = problem.graph.names.index("add") if op is None else own[-1]
    device[problem.unit_of == problem.unit_of[chosen]] = 1
    with pytest.raises(InputError, match=told):
        device_map(program, problem, Placement(device))


def test_other_problems_are_refused(inference, training):
    """Micro-batches, and the problem of another capture."""
    program, problem = inference
    cut = with_microbatches(problem, 2)
    with pytest.raises(InputError, match="runs the batch as a whole"):
        device_map(program, cut, Placement(np.zeros(cut.num_ops, dtype=np.int32)))
    with pytest.raises(MismatchError, match="does not have the ops of"):
        device_map(training[0], problem, placed(problem, SPREAD))


def devices(*named):
    return [
        Device(name=name, kind=name.partition(":")[0], memory=1.0) for name in named
    ]


def test_names_of_devices():
    """Numbers of GPUs from their names, else from their places; one CPU, and none beside GPUs."""
    assert accelerate_names(devices("gpu:3", "gpu:1"), [0, 1]) == {0: 3, 1: 1}
    assert accelerate_names(devices("cpu:0", "big:a", "small:b"), [1, 2]) == {
        1: 0,
        2: 1,
    }
    assert accelerate_names(devices("cpu:0", "gpu:0"), [0]) == {0: "cpu"}
    with pytest.raises(InputError, match="knows one CPU"):
        accelerate_names(devices("cpu:0", "cpu:1"), [0, 1])
    with pytest.raises(
        InputError, match=r"runs nothing on the CPU.*--forbid '\*=cpu:0'"
    ):
        accelerate_names(devices("cpu:0", "gpu:0"), [0, 1])
