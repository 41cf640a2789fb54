from __future__ import annotations

from dataclasses import replace

import numpy as np

from gnnplace.placers.contract import training_chain
from gnnplace.problem import build_problem
from gnnplace.problem.cluster import Cluster
from gnnplace.simulation.bounds.copies import find_copies
from gnnplace.simulation.bounds.relaxation import Machines, list_machines


def machines(**given: object) -> Machines:
    """Those of four ops without edges on the devices of the training chain."""
    chain = training_chain()
    count = len(chain.cluster.devices)
    assert count >= 2
    graph = type(chain.graph).from_tensors(["a", "b", "c", "d"], [])
    memory = given.pop("memory", 100.0)
    devices = tuple(
        d.model_copy(update={"memory": memory}) for d in chain.cluster.devices
    )
    cluster = Cluster(devices, chain.cluster.links)
    kinds = {kind: [1.0, 2.0, 3.0, 4.0] for kind in cluster.kinds}
    problem = build_problem("four", graph, cluster, kinds, **given)
    return list_machines(problem, find_copies(problem))


def test_what_is_pinned_to_one_device_is_one_part():
    found = machines(pin=np.array([1, -1, 1, -1], dtype=np.int32))
    assert found.part[0] == found.part[2]
    assert len(np.unique(found.part)) == 3
    assert found.possible


def test_parts_that_no_device_holds_together_are_apart():
    found = machines(state=np.array([60.0, 60.0, 10.0, 0.0]))
    source, target = found.part[[0, 0, 2]], found.part[[1, 2, 3]]
    assert found.apart(source, target).tolist() == [True, False, False]
    assert found.joined(found.part[[0]], found.part[[2]]).possible
    assert not found.joined(found.part[[0]], found.part[[1]]).possible


def test_a_part_larger_than_memory_has_no_device():
    found = machines(state=np.array([200.0, 0.0, 0.0, 0.0]))
    assert not found.possible
    assert found.columns()[0].max() == 0.0


def test_joined_parts_have_the_devices_of_both():
    found = machines()
    narrow = replace(found, allowed=found.allowed.copy())
    narrow.allowed[found.part[0], 0] = False
    joined = narrow.joined(narrow.part[[0]], narrow.part[[1]])
    assert joined.part[0] == joined.part[1]
    assert not joined.allowed[joined.part[1], 0]
