"""Which values travel to which devices: a view goes along with its base where both are wanted.

Where several values that share memory (a tensor and its views) are made by one problem op and read
on one other device, the tensor at their root travels once, and the receiver makes the views anew:
a view costs nothing. So a problem op's values that share memory are one tensor of its problem (see
``gnnplace.costs.profiling.grouping``), and the run sends what the simulator counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from gnnplace.tracing.program import Program


@dataclass(frozen=True)
class Travels:
    """What leaves its device.

    Attributes:
        targets: Devices that each value is sent to, beside its own.
        anew: (value, device) -> ops of the program that make it there from the value at its root.
    """

    targets: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    anew: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)


def travels(program: Program, group_of: Sequence[int], op_device: Sequence[int]) -> Travels:
    """What a program's values do when its ops are on those devices.

    Args:
        program: What runs.
        group_of: Problem op of each program op.
        op_device: Device of each program op.
    """
    found, chains = Travels(), view_chains(program)
    wanted: dict[tuple[str, int], list[str]] = defaultdict(list)
    for value, devices in _readers(program, op_device).items():
        made = program.producer[value]
        root = program.ops[chains[value][0]].reads[0] if value in chains else value
        if root not in program.producer or group_of[program.producer[root]] != group_of[made]:
            root = value
        for device in devices - {op_device[made]}:
            wanted[root, device].append(value)
    for (root, device), values in wanted.items():
        if len(values) == 1:
            found.targets[values[0]].add(device)
            continue
        found.targets[root].add(device)
        found.anew.update({(v, device): chains[v] for v in values if v != root})
    return found


def view_chains(program: Program) -> dict[str, tuple[int, ...]]:
    """Ops that make each view from the value at its root, one after the other."""
    chains: dict[str, tuple[int, ...]] = {}
    for i, op in enumerate(program.ops):
        if op.view and len(op.reads) == 1:
            chain = (*chains.get(op.reads[0], ()), i)
            chains.update({result: chain for result in op.results if result is not None})
    return chains


def _readers(program: Program, op_device: Sequence[int]) -> dict[str, set[int]]:
    """Devices that read each value that an op makes."""
    readers: dict[str, set[int]] = {value: set() for value in program.producer}
    for i, op in enumerate(program.ops):
        for name in op.reads:
            if name in readers:
                readers[name].add(op_device[i])
    return readers
