"""``device_map``: a placement as what ``accelerate.dispatch_model`` and ``from_pretrained`` take.

The map is exact or there is none: every op of a unit (``units``) must be on the unit's device, in
the backward pass too, and what stands between units must be where accelerate would run it. A
placement that was searched by module is so.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gnnplace.costs.profiling.units import Units, find_units
from gnnplace.errors import InputError, MismatchError
from gnnplace.execution.devicemap.names import Name, accelerate_names
from gnnplace.problem import Problem
from gnnplace.problem.placement import Placement
from gnnplace.tracing.program import Program

WHOLE = ""  # the whole model
NOWHERE = "\0"  # the unit of ops that may be anywhere; no module is called so
BY_MODULE = "search by module (--by-module)"


def device_map(program: Program, problem: Problem, placement: Placement) -> dict[str, Name]:
    """Modules and their devices, for ``dispatch_model(model, device_map)``.

    Args:
        program: the captured model.
        problem: what was placed: the program on a cluster, without micro-batches.
        placement: whose devices are wanted.

    Returns:
        Qualified names of modules that cover all parameters and buffers, and GPUs' numbers or
        "cpu"; ``{"": device}`` where all is on one.

    Raises:
        InputError: ops of a module are on several devices; names it and them. Or micro-batches,
            which accelerate's hooks know nothing of, or devices that it does not know.
        MismatchError: the problem is not the program's.
    """
    if problem.microbatches > 1:
        raise InputError(
            "device map: accelerate runs the batch as a whole; place without --microbatches"
        )
    units, device = find_units(program), _devices(program, problem, placement)
    by_unit = _by_unit(program, units, device, problem)
    by_class = _checked_ties(units, by_unit, problem)
    found = {name: by_class.get(units.classes[name]) for name in units.names}
    placed = [index for index in found.values() if index is not None]
    names = accelerate_names(problem.cluster.devices, sorted(set(placed)))
    if len(names) < 2:
        return {WHOLE: names[placed[0]]}
    idle = names[min(names)]  # for what the step does not read
    whole = {n: names[i] if i is not None else idle for n, i in _needed(program, found).items()}
    return _gathered(program, units, whole)


def _devices(program: Program, problem: Problem, placement: Placement) -> NDArray[np.int32]:
    """Device of each op of the program. [num_ops]"""
    of_name = {
        name: device
        for names, device in zip(problem.members, placement.device.tolist(), strict=True)
        for name in names
    }
    if of_name.keys() != program.op_index.keys():
        raise MismatchError(
            f"device map: problem {problem.name!r} does not have the ops of {program.name!r}; "
            "give the program that was profiled"
        )
    return np.array([of_name[op.name] for op in program.ops], dtype=np.int32)


def _by_unit(
    program: Program, units: Units, device: NDArray[np.int32], problem: Problem
) -> dict[str, int]:
    """The device of each unit that ops run in.

    Raises:
        InputError: a unit's ops are on several devices, or one that follows it is elsewhere.
    """
    label = np.array([unit if unit is not None else NOWHERE for unit in units.of_op], dtype=object)
    inside, found = np.array(units.inside), dict[str, int]()
    for name in units.names:
        own = np.flatnonzero((label == name) & inside)
        if len(np.unique(device[own])) > 1:
            raise InputError(_split(program, problem, name, own, device))
        if len(own):
            found[name] = int(device[own[0]])
    for name, index in found.items():
        follows = np.flatnonzero((label == name) & ~inside & (device != index))
        if len(follows):
            raise InputError(_astray(program, problem, name, int(follows[0]), device))
    return found


def _split(
    program: Program, problem: Problem, name: str, ops: NDArray[np.intp], device: NDArray[np.int32]
) -> str:
    first = {
        problem.cluster.devices[d].name: program.ops[int(ops[device[ops] == d][0])].name
        for d in np.unique(device[ops]).tolist()
    }
    shown = ", ".join(f"{op} on {where}" for where, op in first.items())
    return (
        f"device map: the ops of module {name or program.name!r} are on {' and '.join(first)} "
        f"({shown}); {BY_MODULE}, or pin the module"
    )


def _astray(
    program: Program, problem: Problem, name: str, op: int, device: NDArray[np.int32]
) -> str:
    own = program.ops[op]
    around = f"module {own.module!r}" if own.module else "the model"
    return (
        f"device map: op {own.name!r} of {around} itself is on "
        f"{problem.cluster.devices[device[op]].name}, and accelerate would run it where its input "
        f"from {name!r} is; {BY_MODULE}"
    )


def _checked_ties(units: Units, by_unit: dict[str, int], problem: Problem) -> dict[str, int]:
    """Device of each class of units.

    Raises:
        InputError: units that a module's own code brings together are on several devices.
    """
    for first, second, why in units.ties:
        if by_unit.get(first) != by_unit.get(second) and first in by_unit and second in by_unit:
            names = [problem.cluster.devices[by_unit[name]].name for name in (first, second)]
            raise InputError(
                f"device map: {first!r} is on {names[0]} and {second!r} on {names[1]}, but {why}, "
                f"and accelerate moves only what modules are given; {BY_MODULE}, or --together "
                f"'{first},{second}'"
            )
    return {units.classes[name]: index for name, index in by_unit.items()}


def _needed(program: Program, found: dict[str, int | None]) -> dict[str, int | None]:
    """Without the units that hold nothing and compute nothing: they need no hook."""
    held = {name.rpartition(".")[0] for name in program.state}

    def holds(unit: str) -> bool:
        return any(name == unit or name.startswith(f"{unit}.") for name in held)

    return {name: index for name, index in found.items() if index is not None or holds(name)}


def _gathered(program: Program, units: Units, devices: dict[str, Name]) -> dict[str, Name]:
    """One entry for a module instead of all of its units, where it computes nothing of its own."""
    busy = {
        op.module or "" for op, inside in zip(program.ops, units.inside, strict=True) if not inside
    }
    held = {name.rpartition(".")[0] for name in program.state}
    parents = {name.rpartition(".")[0] for name in devices if "." in name}
    for parent in sorted(parents, key=lambda name: -name.count(".")):
        within = [name for name in devices if name.startswith(f"{parent}.")]
        if len({devices[name] for name in within}) > 1 or _around(parent, busy):
            continue
        if all(any(h == n or h.startswith(f"{n}.") for h in held) for n in within):
            devices = _merged(devices, parent, within)
    return devices


def _around(parent: str, busy: set[str]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for name in busy)


def _merged(devices: dict[str, Name], parent: str, within: list[str]) -> dict[str, Name]:
    merged: dict[str, Name] = {}
    for name, device in devices.items():
        merged[parent if name in within else name] = device
    return merged
