"""What each algorithm is for, on cases where the right answer is known."""

from __future__ import annotations

import ctypes
import itertools

import numpy as np
import pytest

from gnnplace.placers import contract
from gnnplace.placers.m_sct import favourite_children
from gnnplace.placers.min_cut import cut_into_parts
from gnnplace.placers.search.chunks import cut_by_shares, find_unit_chunks
from gnnplace.placers.search.repair import pack, repair
from gnnplace.placers.search.space import SearchSpace
from gnnplace.placing.roster import make_placer as placer
from gnnplace.problem import build_problem
from tests.random_problems import random_problem


def brute_force(problem) -> float:
    """Least step time over all devices of all units and all of our orders; tiny problems only."""
    space = SearchSpace(problem)
    choices = itertools.product(range(problem.num_devices), repeat=problem.num_units)
    return min(
        space.sequence(space.spread(np.array(c, dtype=np.int32)))[0] for c in choices
    )


@pytest.mark.parametrize("name", ["annealing", "portfolio"])
def test_small_problems_are_solved(name):
    problem = contract.training_chain(num_layers=4, num_devices=2)
    best = brute_force(problem)
    assert placer(name).place(problem, budget=0.3).step_time <= best * (1 + 1e-9)


@pytest.mark.parametrize(
    "name", ["heft", "heft-contention", "etf", "m-sct", "min-cut", "expert"]
)
def test_independent_branches_are_spread(name):
    result = placer(name).place(contract.branches(num_branches=4, num_devices=4))
    assert (
        result.step_time < 0.6 * placer("single").place(contract.branches()).step_time
    )


def test_even_cuts_balance_work():
    space = SearchSpace(contract.training_chain(num_layers=40, num_devices=4))
    chunk = find_unit_chunks(space, cut_by_shares(space, np.ones(4)))
    load = np.bincount(chunk, space.mean_work, 4)
    assert load.max() - load.min() <= 2 * space.mean_work.max()
    assert (np.diff(chunk[space.unit_order]) >= 0).all()


def test_min_cut_cuts_the_thin_edge():
    """Two cliques of heavy edges with one light edge between: the light one is cut."""
    from gnnplace.graph import ComputationGraph

    tensors = [(a, 100.0, [b]) for base in (0, 4) for a, b in itertools.combinations(
        range(base, base + 4), 2)] + [(3, 1.0, [4])]  # fmt: skip
    graph = ComputationGraph.from_tensors([f"o{i}" for i in range(8)], tensors)
    cluster = contract.branches(num_devices=2).cluster
    problem = build_problem(
        "cliques", graph, cluster, {"fast": np.ones(8), "slow": np.ones(8)}
    )
    part = cut_into_parts(SearchSpace(problem), np.array([0, 1], dtype=np.int32), 0)
    assert part.tolist() in ([0] * 4 + [1] * 4, [1] * 4 + [0] * 4)


def test_min_cut_keeps_the_standard_output_clean(capfd):
    """A ring with one heavy unit and eight parts, on which METIS itself prints complaints."""
    from gnnplace.graph import ComputationGraph

    tensors = [(i, 1.0, [i + 1]) for i in range(11)] + [(0, 1.0, [11])]
    graph = ComputationGraph.from_tensors([f"o{i}" for i in range(12)], tensors)
    cost = np.array([10_000.0] + [1.0] * 11)
    cluster = contract.branches(num_devices=8).cluster
    problem = build_problem("ring", graph, cluster, {"fast": cost, "slow": cost})
    part = cut_into_parts(SearchSpace(problem), np.arange(8, dtype=np.int32), 1)
    assert len(part) == 12
    print("still here")
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out == "still here\n"


@pytest.mark.parametrize("seed", range(4))
def test_a_favourite_child_has_one_parent(seed):
    problem = random_problem(np.random.default_rng(seed), 40, 3)
    favourite = favourite_children(problem)
    children = favourite[favourite >= 0]
    assert len(children)
    assert len(set(children.tolist())) == len(children)
    edges = set(zip(*(ends.tolist() for ends in problem.graph.edges[:2]), strict=True))
    assert all(
        (op, child) in edges
        for op, child in enumerate(favourite.tolist())
        if child >= 0
    )


def test_favourite_children_are_on_the_longest_path():
    """A fork: the child with the long tail is the favourite."""
    from gnnplace.graph import ComputationGraph

    graph = ComputationGraph.from_tensors(
        ["root", "short", "long", "tail"],
        [(0, 50.0, [1]), (0, 50.0, [2]), (2, 50.0, [3])],
    )
    cluster = contract.branches(num_devices=2).cluster
    cost = np.array([1.0, 1.0, 5.0, 5.0])
    problem = build_problem("fork", graph, cluster, {"fast": cost, "slow": cost})
    favourite = favourite_children(problem)
    assert favourite[0] == 2
    assert favourite[2] == 3


def test_expert_keeps_encoder_and_decoder_apart():
    chain = contract.training_chain(num_layers=8, num_devices=4)
    sides = ["encoder" if i < 4 else "decoder" for i in range(8)] * 3
    modules = tuple(f"{side}.{i % 8}" for i, side in enumerate(sides))
    from dataclasses import replace

    problem = replace(chain, module=modules)
    result = placer("expert").place(problem)
    device = result.placement.device
    encoder = {
        int(d) for d, m in zip(device, modules, strict=True) if m.startswith("encoder")
    }
    decoder = {
        int(d) for d, m in zip(device, modules, strict=True) if m.startswith("decoder")
    }
    assert not encoder & decoder
    assert "encoder and decoder" in result.note


def test_expert_puts_recurrent_layers_where_their_papers_do():
    """Two layers a side on four devices, by hand: depth i of both sides on device i."""
    from dataclasses import replace

    from gnnplace.graph import ComputationGraph

    gates = ("sigmoid", "sigmoid_1", "tanh")
    parts = [
        ("words", ("embedding",)),
        ("encoder.rnn.0", gates),
        ("encoder.glue", ("mm",)),
    ]
    parts += [
        ("encoder.rnn.1", gates),
        ("decoder.rnn.0", gates),
        ("decoder.rnn.1", gates),
    ]
    parts += [("head", ("addmm",)), (None, ("add",))]
    members = tuple((node,) for _, nodes in parts for node in nodes)
    names = [str(i) for i in range(len(members))]
    chain = [(i, 1.0, [i + 1]) for i in range(len(names) - 1)]
    graph = ComputationGraph.from_tensors(names, chain)
    cluster = contract.branches(num_devices=4).cluster
    times = {kind: np.ones(len(names)) for kind in ("fast", "slow")}
    problem = build_problem("translator", graph, cluster, times)
    modules = tuple(module for module, nodes in parts for _ in nodes)
    made = placer("expert").place(replace(problem, module=modules, members=members))
    assert made.placement.device.tolist() == [
        0,
        0,
        0,
        0,
        0,
        1,
        1,
        1,
        0,
        0,
        0,
        1,
        1,
        1,
        1,
        1,
    ]
    assert made.note == "recurrent layers apart"


def test_repair_moves_what_does_not_fit():
    problem = contract.training_chain(num_layers=9, num_devices=3, memory=75.0)
    space = SearchSpace(problem)
    everything = np.zeros(problem.num_ops, dtype=np.int32)
    order = space.sequence(everything)[1]
    assert space.simulator.excess(everything, order)[1] > 0
    device, order = repair(space, everything, order)
    assert space.simulator.excess(device, order)[1] == 0
    assert len(set(pack(space).tolist())) == 3


def test_interleaving_beats_plain_chunks_with_fast_links():
    from gnnplace.problem.microbatching import with_microbatches

    chain = contract.training_chain(num_layers=16, num_devices=2, seed=3)
    cluster = contract._cluster(4, 1e6)
    fast = tuple(
        link.model_copy(update={"bandwidth": 1e6, "latency": 0.0})
        for link in cluster.links
    )
    equal = tuple(
        device.model_copy(update={"kind": "fast"}) for device in cluster.devices
    )
    from dataclasses import replace

    from gnnplace.problem.cluster import Cluster

    problem = with_microbatches(replace(chain, cluster=Cluster(equal, fast)), 4)
    interleaved = placer("interleaved").place(problem).step_time
    assert interleaved < 0.97 * placer("contiguous").place(problem).step_time
