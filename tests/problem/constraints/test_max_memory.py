"""What devices have at most, in accelerate's words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gnnplace.errors import InputError
from gnnplace.placers import contract
from gnnplace.problem.cluster import Cluster, Device
from gnnplace.problem.constraints import Constraints, limited
from gnnplace.problem.constraints.max_memory import with_max_memory


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
    assert limited(problem(), asked).cluster.memory.tolist() == [90, 45, 90]


def test_a_device_that_is_not_there_is_refused():
    """With those that are."""
    with pytest.raises(InputError, match="max-memory '2': no device is called so; devices: cpu:0"):
        with_max_memory(problem(), (("2", 1.0),))
