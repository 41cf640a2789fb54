"""Data-parallel groups as one program: replicas whose updates read the gradients of all groups.

With G groups of M micro-batches each, the batch is cut into G M shares. Group g runs shares
``g M`` to ``g M + M - 1`` on parameters, optimizer state and buffers of its own (``w@g``), and its
updates (``u@g``) read the gradients of all shares, average them in the order of the shares, and
change ``w@g``. So gradients and parameters are, bit for bit, those of one device that accumulates
over the same shares (`microbatched(program, G M)`), and all groups stay equal; buffers of a
group see its own shares alone, as in PyTorch DDP.

Every group gets every other group's gradients: (G - 1) M times their bytes. A ring all-reduce
takes 2 (G - 1) / G of them: the same for two groups without micro-batches, less for all others.

The replicated problem and placement are ordinary ones: they are simulated, executed and verified
like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gnnplace.arrays import BoolArray, LongArray
from gnnplace.errors import InputError
from gnnplace.graph import ComputationGraph
from gnnplace.problem import UPDATE, Problem
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.placement import Placement
from gnnplace.tracing.microbatching import microbatched
from gnnplace.tracing.program import UPDATE as UPDATE_PHASE
from gnnplace.tracing.program import Program, ProgramOp, Ref, base_name, map_refs


def replicated(program: Program, groups: int, microbatches: int = 1) -> Program:
    """G replicas of a program that share gradients.

    Args:
        program: Captured at 1 / (groups * microbatches) of the batch, not cut.
        groups: G, the number of data-parallel groups.
        microbatches: M, of each group.

    Raises:
        InputError: fewer than two groups, or a program that has no updates or is cut already.
    """
    if groups < 2:
        raise InputError(f"groups {groups}: data parallelism needs two groups or more")
    if not any(op.phase == UPDATE_PHASE for op in program.ops):
        raise InputError(f"{program.name}: nothing is trained, so there are no gradients to share")
    return _Replicas(microbatched(program, groups * microbatches), groups, microbatches).program()


class _Replicas:
    def __init__(self, program: Program, groups: int, microbatches: int) -> None:
        self.source, self.groups, self.microbatches = program, groups, microbatches
        updates = [op for op in program.ops if op.phase == UPDATE_PHASE]
        self.updates = {op.name for op in updates}
        self.single = {n for n, entry in program.inputs.items() if entry.kind != "input"}
        self.single |= {r for op in updates for r in op.results if r is not None}

    def program(self) -> Program:
        p = self.source
        inputs = {
            name: replace(entry, source=f"{entry.source}@{g}") if g >= 0 else entry
            for name, entry, g in self._spread(p.inputs)
        }
        return replace(
            p,
            ops=tuple(self._ops()),
            inputs=inputs,
            values={name: info for name, info, _ in self._spread(p.values)},
            buffers={
                f"{key}@{g}": f"{base_name(value)}#{(g + 1) * self.microbatches - 1}"
                for g in range(self.groups)
                for key, value in p.buffers.items()
            },
            initial={name: tensor for name, tensor, _ in self._spread(p.initial)},
        )

    def _spread(self, entries: dict[str, Any]) -> Iterator[tuple[str, Any, int]]:
        """Entries with those that are single once for each group: name, entry, group or -1."""
        for name, entry in entries.items():
            if name not in self.single:
                yield name, entry, -1
        for g in range(self.groups):
            for name, entry in entries.items():
                if name in self.single:
                    yield f"{name}@{g}", entry, g

    def _ops(self) -> Iterator[ProgramOp]:
        shares = [op for op in self.source.ops if op.name not in self.updates]
        for op in shares:
            yield self._renamed(op, self._group(op.name), op.name)
        for g in range(self.groups):
            for op in self.source.ops:
                if op.name in self.updates:
                    yield self._renamed(op, g, f"{op.name}@{g}")

    def _group(self, name: str) -> int:
        return int(name.rpartition("#")[2]) // self.microbatches

    def _renamed(self, op: ProgramOp, group: int, name: str) -> ProgramOp:
        def own(value: str) -> str:
            return f"{value}@{group}" if value in self.single else value

        def ref(old: Ref) -> Ref:
            return Ref(own(old.name))

        return replace(
            op,
            name=name,
            args=map_refs(op.args, ref),
            kwargs=map_refs(op.kwargs, ref),
            results=tuple(None if r is None else own(r) for r in op.results),
            after=tuple(self._after(op.after, group)),
        )

    def _after(self, names: Iterable[str], group: int) -> Iterator[str]:
        """What comes before in the same group; other groups have parameters of their own."""
        for name in names:
            if name in self.updates:
                yield f"{name}@{group}"
            elif self._group(name) == group:
                yield name


@dataclass(frozen=True)
class _Place:
    """An op of the group's problem in one group."""

    op: int
    group: int


def replicated_problem(problem: Problem, groups: int, cluster: Cluster) -> Problem:
    """The problem of `replicated`, of one group's problem.

    Args:
        problem: The problem of one group, cut into its M micro-batches; on the first K devices of
            `cluster`.
        groups: G, the number of data-parallel groups.
        cluster: G K devices, group by group.

    Raises:
        InputError: the cluster has not G times the devices of a group.
    """
    size = problem.num_devices
    if cluster.num_devices != groups * size:
        raise InputError(
            f"{groups} groups of {size} devices: the cluster has {cluster.num_devices}; "
            f"it must have {groups * size}"
        )
    places = _places(problem, groups)
    op = np.array([place.op for place in places])
    group = np.array([place.group for place in places])
    pin = problem.pin[op]
    return replace(
        problem,
        graph=_graph(problem, groups, places),
        cluster=cluster,
        time={kind: seconds[op] for kind, seconds in problem.time.items()},
        state=problem.state[op],
        phase=problem.phase[op],
        colocate=tuple(
            None if problem.colocate[p.op] is None else f"{problem.colocate[p.op]}@{p.group}"
            for p in places
        ),
        pin=np.where(pin >= 0, pin + size * group, -1).astype(np.int32),
        module=tuple(problem.module[p.op] for p in places),
        members=tuple(
            tuple(_named(problem, p, member) for member in problem.members[p.op]) for p in places
        ),
        estimated=problem.estimated[op],
        error={kind: values[op] for kind, values in problem.error.items()},
        source={kind: tuple(named[p.op] for p in places) for kind, named in problem.source.items()},
        microbatches=groups * problem.microbatches,
        forbid=_forbidden(problem, op, group, groups),
    )


def _forbidden(problem: Problem, op: LongArray, group: LongArray, groups: int) -> BoolArray | None:
    """What is forbidden to copies: within their group what is to the op. [n, G K]"""
    if problem.forbid is None:
        return None
    forbid = np.zeros((len(op), groups, problem.num_devices), dtype=bool)
    forbid[np.arange(len(op)), group] = problem.forbid[op]
    return forbid.reshape(len(op), -1)


def replicated_placement(problem: Problem, placement: Placement, groups: int) -> Placement:
    """The placement of `replicated_problem`: every group as the one group is placed.

    Raises:
        InputError: a placement without sequences.
    """
    if placement.sequence is None:
        raise InputError("placement: needs sequences to be replicated; simulate completes it")
    places = _places(problem, groups)
    index = {(p.op, p.group): i for i, p in enumerate(places)}
    size = problem.num_devices
    device = [int(placement.device[p.op]) + size * p.group for p in places]
    sequence = [
        np.array([index[int(op), g] for op in ops], dtype=np.int32)
        for g in range(groups)
        for ops in placement.sequence
    ]
    return Placement(np.array(device, dtype=np.int32), tuple(sequence), placer=placement.placer)


def _places(problem: Problem, groups: int) -> list[_Place]:
    """Shares of all groups, then updates of all groups, as `_Replicas` lists them."""
    kinds = (problem.phase != UPDATE, problem.phase == UPDATE)
    return [
        _Place(int(op), g) for part in kinds for g in range(groups) for op in np.flatnonzero(part)
    ]


def _named(problem: Problem, place: _Place, name: str) -> str:
    """An op or member of one group under its name in `replicated`."""
    if problem.phase[place.op] == UPDATE:
        return f"{name}@{place.group}"
    base, count = name, problem.microbatches
    copy = 0
    if count > 1:
        base, _, suffix = name.rpartition("#")
        copy = int(suffix)
    return f"{base}#{place.group * count + copy}"


def _graph(problem: Problem, groups: int, places: list[_Place]) -> ComputationGraph:
    graph = problem.graph
    index = {(p.op, p.group): i for i, p in enumerate(places)}
    names = [_named(problem, p, graph.names[p.op]) for p in places]
    update = problem.phase == UPDATE
    tensors = []
    for g in range(groups):
        for k, producer in enumerate(graph.producer.tolist()):
            # A tensor of no bytes is an order inside a group; a gradient goes to all of them.
            shared = graph.size[k] > 0 and not update[producer]
            readers = [
                index[int(c), h]
                for c in graph.consumers(k)
                for h in (range(groups) if shared and update[c] else (g,))
            ]
            tensors.append((index[producer, g], float(graph.size[k]), readers))
    return ComputationGraph.from_tensors(names, tensors)
