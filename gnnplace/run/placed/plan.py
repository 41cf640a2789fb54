"""Splits a captured program over devices: the ordered ops, sends and receives of each device.

A device runs its sequence of problem ops. Each is a segment: receive values that are needed for the
first time, run the members in program order, then send the results, ordered by value and target, as
in the simulated step. Every pair of a value and a target device is one message with its own buffer.

Where several values that share memory (a tensor and its views) are made by one problem op and read
on one other device, the tensor at their root travels once, and the receiver makes the views anew:
a view costs nothing. So a problem op's values that share memory are one tensor of its problem (see
``gnnplace.costs.profiling.grouping``), and the run sends what the simulator counts.

An op that must run after an op on another device without reading its result (recomputation of a
checkpointed region, after the gradient that needs it) gets an empty message from there, a `signal`,
unless its inputs already imply the order. Sends never wait for their receiver. So a run can only
deadlock if the sequences contradict the program; `plan_execution` walks the plan once and refuses
such sequences.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from gnnplace.errors import DeadlockError, MismatchError
from gnnplace.problem import Placement, Problem
from gnnplace.run.workers import Message
from gnnplace.tracing import Program, ValueInfo

SIGNAL = ValueInfo((1,), (1,), torch.uint8, 0)
"""What a signal is sent as."""


@dataclass(frozen=True)
class CrossingValues:
    """The values that other devices than their producer's read.

    Attributes:
        targets: Devices that each value is sent to, beside its own.
        remade: (value, device) -> ops of the program that make it there from the value at its root.
    """

    targets: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    remade: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)


def find_crossing_values(
    program: Program, group_of: Sequence[int], op_device: Sequence[int]
) -> CrossingValues:
    """Find which values cross between devices, and which views are remade there.

    Args:
        program: The program that runs.
        group_of: Problem op of each program op.
        op_device: Device of each program op.
    """
    crossing = CrossingValues()
    chains = view_chains(program)
    wanted: dict[tuple[str, int], list[str]] = defaultdict(list)
    for value, devices in _readers(program, op_device).items():
        producer = program.producer[value]
        if value in chains:
            root = program.ops[chains[value][0]].reads[0]
        else:
            root = value
        if (
            root not in program.producer
            or group_of[program.producer[root]] != group_of[producer]
        ):
            root = value
        for device in devices - {op_device[producer]}:
            wanted[root, device].append(value)
    for (root, device), values in wanted.items():
        if len(values) == 1:
            crossing.targets[values[0]].add(device)
            continue
        crossing.targets[root].add(device)
        crossing.remade.update({(v, device): chains[v] for v in values if v != root})
    return crossing


def view_chains(program: Program) -> dict[str, tuple[int, ...]]:
    """Return, for each view, the ops that make it from the value at its root, in order."""
    chains: dict[str, tuple[int, ...]] = {}
    for i, op in enumerate(program.ops):
        if op.view and len(op.reads) == 1:
            chain = (*chains.get(op.reads[0], ()), i)
            chains.update(
                {result: chain for result in op.results if result is not None}
            )
    return chains


def _readers(program: Program, op_device: Sequence[int]) -> dict[str, set[int]]:
    """Return the devices that read each value that an op makes."""
    readers: dict[str, set[int]] = {value: set() for value in program.producer}
    for i, op in enumerate(program.ops):
        for name in op.reads:
            if name in readers:
                readers[name].add(op_device[i])
    return readers


@dataclass(frozen=True)
class PlanSegment:
    """One problem op on its device.

    Attributes:
        op: Index of the problem op.
        receives: Messages that it is the first to need.
        ops: Indices of its program ops, in program order; before them, those of views that are
            remade from what was received.
        sends: Messages that leave when it is done, in order.
    """

    op: int
    receives: tuple[int, ...]
    ops: tuple[int, ...]
    sends: tuple[int, ...]


@dataclass(frozen=True)
class Transfer:
    """A value on its way to another device; its position in the plan is its message.

    Attributes:
        value: Name of the value; of a signal that of the op that is done.
        producer: Problem op that makes it.
        source: The device that it leaves.
        target: The device that it goes to.
        bytes: The bytes of the value.
    """

    value: str
    producer: int
    source: int
    target: int
    bytes: int
    signal: bool = False


@dataclass(frozen=True, eq=False)
class ExecutionPlan:
    """The work of every device in a step.

    Attributes:
        program: The captured program.
        problem: Its problem; names ops and devices.
        segments: The segments of every device, in order.
        transfers: The transfers of a step; each is a message.
        op_device: Device of every program op.
    """

    program: Program
    problem: Problem
    segments: tuple[tuple[PlanSegment, ...], ...]
    transfers: tuple[Transfer, ...]
    op_device: tuple[int, ...]

    @cached_property
    def devices(self) -> tuple[int, ...]:
        """Return the devices that have work. Worker w is device `devices[w]`."""
        return tuple(d for d, segments in enumerate(self.segments) if segments)

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """Return the transfers as messages between workers."""
        worker = {device: w for w, device in enumerate(self.devices)}
        infos = (
            SIGNAL if t.signal else self.program.values[t.value] for t in self.transfers
        )
        return tuple(
            Message(
                worker[t.source], worker[t.target], info.shape, info.stride, info.dtype
            )
            for t, info in zip(self.transfers, infos, strict=True)
        )

    @cached_property
    def holders(self) -> dict[str, tuple[int, ...]]:
        """Return the devices that read each program input."""
        readers: dict[str, set[int]] = defaultdict(set)
        for i, op in enumerate(self.program.ops):
            for name in op.reads:
                if name in self.program.inputs:
                    readers[name].add(self.op_device[i])
        return {name: tuple(sorted(devices)) for name, devices in readers.items()}

    @cached_property
    def owners(self) -> dict[str, int]:
        """Return the device that keeps each value: its producer's, or its first reader's."""
        producers = {
            value: self.op_device[i]
            for i, op in enumerate(self.program.ops)
            for value in op.results
            if value is not None
        }
        return producers | {name: devices[0] for name, devices in self.holders.items()}


def plan_execution(
    program: Program, problem: Problem, placement: Placement
) -> ExecutionPlan:
    """Cut a program over devices as a placement says.

    Args:
        program: The program that runs.
        problem: Its problem, whose ops' members are the program's ops.
        placement: The placement of the problem; without sequences, devices follow the program's
            order.

    Raises:
        MismatchError: program, problem and placement do not belong together, or an op that changes
            a value is not on the device of those that read it.
        DeadlockError: the sequences contradict the program; names the ops that wait.
    """
    group_of = _groups(program, problem)
    members = _members(group_of, problem)
    op_device = tuple(int(placement.device[g]) for g in group_of)
    _check_order_on_one_device(program, op_device)
    crossing = find_crossing_values(program, group_of, op_device)
    transfers = _transfers(program, group_of, op_device, crossing)
    transfers += _signals(program, group_of, op_device, transfers, crossing)
    sequences = _sequences(problem, placement, members)
    segments = tuple(
        _segments(program, sequence, members, transfers, crossing, device)
        for device, sequence in enumerate(sequences)
    )
    plan = ExecutionPlan(program, problem, segments, transfers, op_device)
    check_order(plan)
    return plan


def _groups(program: Program, problem: Problem) -> list[int]:
    group: dict[str, int] = {}
    for g, name in enumerate(problem.graph.names):
        for member in problem.members[g] or (name,):
            if member not in program.op_index:
                raise MismatchError(
                    f"op {name!r}: its member {member!r} is not in program {program.name!r}; "
                    "profile this model anew"
                )
            if group.setdefault(member, g) != g:
                raise MismatchError(
                    f"op {name!r}: its member {member!r} is in another op, too"
                )
    missing = [op.name for op in program.ops if op.name not in group]
    if missing:
        raise MismatchError(
            f"op {missing[0]!r} of program {program.name!r} is in no op of problem "
            f"{problem.name!r} ({len(missing)} in all); profile this model anew"
        )
    return [group[op.name] for op in program.ops]


def _members(group_of: list[int], problem: Problem) -> list[list[int]]:
    members: list[list[int]] = [[] for _ in range(problem.num_ops)]
    for i, g in enumerate(group_of):
        members[g].append(i)
    return members


def _check_order_on_one_device(program: Program, op_device: tuple[int, ...]) -> None:
    for i, op in enumerate(program.ops):
        for name in op.after:
            predecessor = program.op_index[name]
            in_place = not (op.results and program.ops[predecessor].results)
            if in_place and op_device[predecessor] != op_device[i]:
                raise MismatchError(
                    f"op {op.name!r} changes what {name!r} reads but is on another device; "
                    "ops that touch one parameter must be colocated"
                )


def _transfers(
    program: Program,
    group_of: list[int],
    op_device: tuple[int, ...],
    crossing: CrossingValues,
) -> tuple[Transfer, ...]:
    return tuple(
        Transfer(value, group_of[i], op_device[i], target, program.values[value].bytes)
        for i, op in enumerate(program.ops)
        for value in op.results
        if value is not None
        for target in sorted(crossing.targets.get(value, ()))
    )


def _signals(
    program: Program,
    group_of: list[int],
    op_device: tuple[int, ...],
    transfers: tuple[Transfer, ...],
    crossing: CrossingValues,
) -> tuple[Transfer, ...]:
    """Return a signal for each op and each device that waits for it and gets nothing it made."""
    leaving: dict[tuple[int, int], set[str]] = defaultdict(set)
    for transfer in transfers:
        leaving[transfer.producer, transfer.target].add(transfer.value)
    for value, target in crossing.remade:
        leaving[group_of[program.producer[value]], target].add(value)
    reads: dict[int, set[str]] = defaultdict(set)
    for i, op in enumerate(program.ops):
        reads[group_of[i]].update(op.reads)
    signals: dict[tuple[str, int], Transfer] = {}
    for i, op in enumerate(program.ops):
        for name in op.after:
            source = op_device[program.op_index[name]]
            target = op_device[i]
            group = group_of[program.op_index[name]]
            is_told_by_a_value = not reads[group_of[i]].isdisjoint(
                leaving[group, target]
            )
            if source != target and not is_told_by_a_value:
                signals[name, target] = Transfer(
                    name, group, source, target, 0, signal=True
                )
    return tuple(signals.values())


def _sequences(
    problem: Problem, placement: Placement, members: list[list[int]]
) -> list[list[int]]:
    if placement.sequence is not None:
        sequences = [[int(g) for g in ops] for ops in placement.sequence]
    else:
        order = sorted(range(problem.num_ops), key=lambda g: members[g][-1])
        sequences = [
            [g for g in order if placement.device[g] == d]
            for d in range(problem.num_devices)
        ]
    placed = np.array(sorted(g for ops in sequences for g in ops))
    if not np.array_equal(placed, np.arange(problem.num_ops)):
        raise MismatchError(
            "placement: sequence: must hold every op of the problem exactly once"
        )
    return sequences


def _segments(
    program: Program,
    sequence: list[int],
    members: list[list[int]],
    transfers: tuple[Transfer, ...],
    crossing: CrossingValues,
    device: int,
) -> tuple[PlanSegment, ...]:
    leaving: dict[int, list[int]] = defaultdict(list)
    coming: dict[tuple[str, bool], int] = {}
    for k, transfer in enumerate(transfers):
        if transfer.source == device:
            leaving[transfer.producer].append(k)
        if transfer.target == device:
            coming[transfer.value, transfer.signal] = k
    segments: list[PlanSegment] = []
    remade: set[int] = set()
    for g in sequence:
        reads = dict.fromkeys(name for i in members[g] for name in program.ops[i].reads)
        # Views of received values are remade before the segment that reads them first.
        remaking = [
            op
            for name in reads
            for op in crossing.remade.get((name, device), ())
            if op not in remade
        ]
        views = tuple(dict.fromkeys(remaking))
        remade.update(views)
        reads |= dict.fromkeys(name for i in views for name in program.ops[i].reads)
        needed = dict.fromkeys((name, False) for name in reads)
        needed |= dict.fromkeys(
            (name, True) for i in members[g] for name in program.ops[i].after
        )
        receives = tuple(coming.pop(key) for key in needed if key in coming)
        segments.append(
            PlanSegment(g, receives, (*views, *members[g]), tuple(leaving[g]))
        )
    return tuple(segments)


def check_order(plan: ExecutionPlan) -> None:
    """Walk the plan as the devices will, and check that no device waits for ever.

    Raises:
        DeadlockError: some op would wait for ever; names the ops where devices stop and for what.
    """
    sent: set[int] = set()
    completed = [False] * len(plan.program.ops)
    position = [0] * len(plan.segments)
    progressed = True
    while progressed:
        progressed = False
        for device, segments in enumerate(plan.segments):
            while position[device] < len(segments):
                segment = segments[position[device]]
                if _find_waited_op(plan, segment, sent, completed) is not None:
                    break
                for i in segment.ops:
                    completed[i] = True
                sent.update(segment.sends)
                position[device] += 1
                progressed = True
    stuck = [
        segments[next_index]
        for segments, next_index in zip(plan.segments, position, strict=True)
        if next_index < len(segments)
    ]
    if stuck:
        names = plan.problem.graph.names
        devices = plan.problem.cluster.devices
        waits = ", ".join(
            f"op {names[s.op]!r} on {devices[plan.op_device[s.ops[-1]]].name!r} waits for "
            f"{_find_waited_op(plan, s, sent, completed)!r}"
            for s in stuck
        )
        raise DeadlockError(f"sequences contradict the graph: {waits}")


def _find_waited_op(
    plan: ExecutionPlan, segment: PlanSegment, sent: set[int], completed: list[bool]
) -> str | None:
    """Return a program op that must come before `segment` and has not, if any."""
    program = plan.program
    inside = set(segment.ops)
    for message in segment.receives:
        if message not in sent:
            transfer = plan.transfers[message]
            value = transfer.value
            if transfer.signal:
                return value
            return program.ops[program.producer[value]].name
    for i in segment.ops:
        predecessors = [
            program.producer[r] for r in program.ops[i].reads if r in program.producer
        ]
        predecessors += [program.op_index[name] for name in program.ops[i].after]
        for j in predecessors:
            if (
                not completed[j]
                and j not in inside
                and plan.op_device[j] == plan.op_device[i]
            ):
                return program.ops[j].name
    return None
