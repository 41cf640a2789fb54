"""GiPH by its authors' own code, as a placer (Hu et al., MLSys 2023, arXiv 2305.14562).

The code is a clone of uidmice/placement-rl (MIT, 427caced), the policy what its ``main.py --train``
saved; neither is part of this project::

    gnnplace bench doppler --placers \
        "benchmarks/rivals/giph.py:Giph?clone=CLONE&embedding=E.pk&policy=P.pk"

It needs ``dgl`` and ``simpy``. An episode of theirs (``run_episodes``) begins with a random
placement and makes two moves an op, each of one op to a device; its answer is the placement of
least time by their simulator, in the best order that list scheduling finds. The budget counts for
nothing: an episode has a fixed length.

What a problem becomes there: an op's work is its mean time over devices, a device's speed the share
of that which it takes over all ops; an edge has the bytes of all its tensors. A source and a sink
of no work are added, since their graphs have one of each. A feature of edges that is the same
everywhere would be divided by 0; it is 0, as their loop has it for features of nodes. It knows no
memory and no colocation: problems with colocated ops are refused, and memory is repaired as of any
placer.
"""

from __future__ import annotations

import random
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.errors import InputError
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.search.space import SearchSpace
from gnnplace.problem import Problem

OUTPUT, HIDDEN = 10, 16  # sizes of the networks, by default in their main.py
MILLISECONDS = 1e3
ADDED_BYTES = (
    1.0  # of edges of source and sink: it divides by the largest bytes of a node
)


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """A problem as GiPH has it.

    Attributes:
        graph: Ops as nodes 1 to n in topological order, between source 0 and sink n + 1, with
            ``compute`` in ms and ``h_constraint``; edges with ``bytes``.
        order: Op of each node but source and sink. [n]
        speed: Of each device, relative to the mean. [D]
        delay: Milliseconds of a message from row to column. [D, D]
        pace: Milliseconds a byte from row to column. [D, D]
    """

    graph: nx.DiGraph
    order: list[int]
    speed: FloatArray
    delay: FloatArray
    pace: FloatArray


def task_graph(problem: Problem) -> TaskGraph:
    """Return the graph of tasks and the network of devices that a problem becomes."""
    order = problem.graph.topological_order.tolist()
    node_of = {op: k for k, op in enumerate(order, 1)}
    times = problem.times * MILLISECONDS
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(order) + 2), compute=0.0, h_constraint=0)
    for op, node in node_of.items():
        graph.nodes[node]["compute"] = float(times[op].mean())
    for source, target, size in zip(*problem.graph.edges, strict=True):
        graph.add_edge(node_of[int(source)], node_of[int(target)], bytes=float(size))
    sink = len(order) + 1
    starts = [node for node in node_of.values() if graph.in_degree(node) == 0]
    ends = [node for node in node_of.values() if graph.out_degree(node) == 0]
    graph.add_edges_from([(0, node) for node in starts], bytes=ADDED_BYTES)
    graph.add_edges_from([(node, sink) for node in ends], bytes=ADDED_BYTES)
    with np.errstate(divide="ignore"):
        pace = MILLISECONDS / problem.cluster.bandwidth
    return TaskGraph(
        graph=graph,
        order=order,
        speed=times.mean() / times.mean(axis=0),
        delay=problem.cluster.latency * MILLISECONDS,
        pace=pace,
    )


class Giph(Placer):
    """The best placement that an episode of GiPH's policy meets.

    Args:
        clone: Folder of their code.
        embedding: Their trained embedding, a file ``embedding_N.pk``.
        policy: Their trained policy, a file ``policy_N.pk``.
        moves: Moves an op.
    """

    name = "giph"

    def __init__(
        self, clone: str, embedding: str, policy: str, moves: float = 2.0
    ) -> None:
        missing = [name for name in ("dgl", "simpy") if find_spec(name) is None]
        if missing:
            raise InputError(f"giph: {missing[0]} is missing; pip install dgl simpy")
        if not (Path(clone) / "experiment.py").is_file():
            raise InputError(f"giph: {clone} is no clone of uidmice/placement-rl")
        self.clone, self.embedding, self.policy, self.moves = (
            clone,
            embedding,
            policy,
            moves,
        )

    def supports(self, problem: Problem) -> str | None:
        if problem.num_units < problem.num_ops:
            return "some ops must share a device, which it knows nothing of"
        if not problem.allowed.all():
            return "some ops may not be on some devices"
        if not np.isfinite(problem.cluster.latency).all():
            return "some devices have no link"
        return None

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        tasks = task_graph(space.problem)
        record = self._episode(tasks, int(rng.integers(2**31)))
        latencies = record["latency_trace"]
        best = int(np.argmin(latencies))
        device = np.zeros(space.problem.num_ops, dtype=np.int32)
        device[tasks.order] = record["sampled_placement"][best][1:-1]
        _, sequence = space.sequence(device)
        return Found(device, sequence, f"best of {len(latencies)} placements")

    def _episode(self, tasks: TaskGraph, seed: int) -> dict[str, Any]:
        """Return what an episode of theirs records."""
        import torch

        if self.clone not in sys.path:
            sys.path.insert(0, self.clone)
        theirs = import_module("experiment")
        environment = import_module("placement_rl.placement_env").PlacementEnv
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the state that their code draws from
        torch.manual_seed(seed)
        allowed = {k: [0] for k in range(len(tasks.speed))}
        network = theirs.FullNetwork(
            tasks.delay,
            tasks.pace,
            tasks.speed,
            allowed,
        )
        agent = theirs.PlacementAgent(
            environment.get_node_feature_dim(),
            environment.get_edge_feature_dim(),
            OUTPUT,
            device=torch.device("cpu"),
            hidden_dim=HIDDEN,
        )
        agent.embedding.load_state_dict(torch.load(self.embedding, weights_only=True))
        agent.policy.load_state_dict(torch.load(self.policy, weights_only=True))
        world = environment([network], [theirs.Program(tasks.graph)])
        make_graph = world.get_full_graph

        def make_finite_graph(*args: Any, **options: Any) -> Any:
            graph = make_graph(*args, **options)
            graph.edata["x"] = torch.nan_to_num(graph.edata["x"])
            return graph

        world.get_full_graph = make_finite_graph
        with redirect_stdout(StringIO()), torch.no_grad():
            records = theirs.run_episodes(
                world,
                agent,
                [0],
                [0],
                [-1],
                device=torch.device("cpu"),
                samples_to_ops_ratio=self.moves,
                update_policy=False,
            )
        record: dict[str, Any] = records[0]
        return record
