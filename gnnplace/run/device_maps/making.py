"""`device_map`: a placement as the device map that accelerate takes.

The map is for ``accelerate.dispatch_model`` or ``from_pretrained(device_map=...)``. It is exact, or
there is none: every op of a unit (``costs.profiling.grouping``) must be on the unit's device, in
the backward pass too, and ops between units must be where accelerate would run them. Placements
that were searched by module fulfil this.

A GPU's number is the one in its name if all GPUs have one (``gpu:1``, ``cuda:1``), otherwise its
index among the cluster's GPUs. A device map is for one process, which has one CPU.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import IntArray
from gnnplace.costs import Units, find_units
from gnnplace.errors import InputError, MismatchError
from gnnplace.problem import Device, Placement, Problem
from gnnplace.tracing import Program

CPU = "cpu"
Name = int | str
NUMBER = re.compile(r"(?:gpu|cuda):(\d+)")
ROOT = ""  # the module that is the model itself
NOWHERE = "\0"  # the unit of ops that may be anywhere; no module is called so
BY_MODULE = "search by module (--by-module)"


def accelerate_names(devices: Sequence[Device], used: Sequence[int]) -> dict[int, Name]:
    """Return accelerate's name of each used device, by its position.

    Args:
        devices: the devices of the cluster.
        used: positions of those that the map is to name, in ascending order.

    Raises:
        InputError: several CPUs, or GPUs beside a CPU, which accelerate would keep weights on but
            run nothing on.
    """
    hosts = [i for i in used if devices[i].kind == CPU]
    if hosts and len(used) > 1:
        named = ", ".join(devices[i].name for i in used)
        if len(hosts) < len(used):
            limit = "runs nothing on the CPU beside GPUs"
        else:
            limit = "knows one CPU"
        raise InputError(
            f"device map: modules are on {named}, and accelerate {limit}; place on GPUs alone "
            f"(--forbid '*={devices[hosts[0]].name}'), or on one device (--max-devices 1)"
        )
    if hosts:
        return {hosts[0]: CPU}
    gpus = [i for i, device in enumerate(devices) if device.kind != CPU]
    numbers = [NUMBER.fullmatch(devices[i].name) for i in gpus]
    if all(numbers) and len({m[1] for m in numbers if m}) == len(gpus):
        return {
            i: int(m[1]) for i, m in zip(gpus, numbers, strict=True) if m and i in used
        }
    return {i: place for place, i in enumerate(gpus) if i in used}


def device_map(
    program: Program, problem: Problem, placement: Placement
) -> dict[str, Name]:
    """Return modules and their devices, for ``dispatch_model(model, device_map)``.

    Args:
        program: the captured model.
        problem: what was placed: the program on a cluster, without micro-batches.
        placement: The placement that is written as a device map.

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
    units = find_units(program)
    device = _devices(program, problem, placement)
    by_unit = _find_unit_devices(program, units, device, problem)
    by_class = _find_tie_devices(units, by_unit, problem)
    homes = {name: by_class.get(units.classes[name]) for name in units.names}
    placed = [index for index in homes.values() if index is not None]
    names = accelerate_names(problem.cluster.devices, sorted(set(placed)))
    if len(names) < 2:
        return {ROOT: names[placed[0]]}
    idle = names[min(names)]  # for what the step does not read
    by_name = {
        name: idle if index is None else names[index]
        for name, index in _without_idle_units(program, homes).items()
    }
    return _merge_units(program, units, by_name)


def _devices(program: Program, problem: Problem, placement: Placement) -> IntArray:
    """Return the device of each op of the program. [num_ops]"""
    of_name = {
        name: device
        for names, device in zip(
            problem.members, placement.device.tolist(), strict=True
        )
        for name in names
    }
    if of_name.keys() != program.op_index.keys():
        raise MismatchError(
            f"device map: problem {problem.name!r} does not have the ops of {program.name!r}; "
            "give the program that was profiled"
        )
    return np.array([of_name[op.name] for op in program.ops], dtype=np.int32)


def _find_unit_devices(
    program: Program, units: Units, device: IntArray, problem: Problem
) -> dict[str, int]:
    """Return the device of each unit that ops run in.

    Raises:
        InputError: a unit's ops are on several devices, or one that follows it is elsewhere.
    """
    label = np.array(
        [unit if unit is not None else NOWHERE for unit in units.of_op], dtype=object
    )
    inside = np.array(units.inside)
    by_unit: dict[str, int] = {}
    for name in units.names:
        ops = np.flatnonzero((label == name) & inside)
        if len(np.unique(device[ops])) > 1:
            raise InputError(_describe_split(program, problem, name, ops, device))
        if len(ops):
            by_unit[name] = int(device[ops[0]])
    # Ops between units run where their input is.
    for name, index in by_unit.items():
        follows = np.flatnonzero((label == name) & ~inside & (device != index))
        if len(follows):
            raise InputError(
                _describe_astray(program, problem, name, int(follows[0]), device)
            )
    return by_unit


def _describe_split(
    program: Program,
    problem: Problem,
    name: str,
    ops: NDArray[np.intp],
    device: IntArray,
) -> str:
    """Say on which devices the ops of a module are, with the first op of each."""
    first = {
        problem.cluster.devices[d].name: program.ops[int(ops[device[ops] == d][0])].name
        for d in np.unique(device[ops]).tolist()
    }
    shown = ", ".join(f"{op} on {device_name}" for device_name, op in first.items())
    return (
        f"device map: the ops of module {name or program.name!r} are on {' and '.join(first)} "
        f"({shown}); {BY_MODULE}, or pin the module"
    )


def _describe_astray(
    program: Program, problem: Problem, name: str, op_index: int, device: IntArray
) -> str:
    """Say that an op between units is not where its input from a unit is."""
    op = program.ops[op_index]
    if op.module:
        module = f"module {op.module!r}"
    else:
        module = "the model"
    return (
        f"device map: op {op.name!r} of {module} itself is on "
        f"{problem.cluster.devices[device[op_index]].name}, and accelerate would run it where its "
        f"input from {name!r} is; {BY_MODULE}"
    )


def _find_tie_devices(
    units: Units, by_unit: dict[str, int], problem: Problem
) -> dict[str, int]:
    """Return the device of each class of tied units.

    Raises:
        InputError: units that a module's own code brings together are on several devices.
    """
    for first, second, why in units.ties:
        if (
            by_unit.get(first) != by_unit.get(second)
            and first in by_unit
            and second in by_unit
        ):
            names = [
                problem.cluster.devices[by_unit[name]].name for name in (first, second)
            ]
            raise InputError(
                f"device map: {first!r} is on {names[0]} and {second!r} on {names[1]}, but {why}, "
                f"and accelerate moves only what modules are given; {BY_MODULE}, or --together "
                f"'{first},{second}'"
            )
    return {units.classes[name]: index for name, index in by_unit.items()}


def _without_idle_units(
    program: Program, homes: dict[str, int | None]
) -> dict[str, int | None]:
    """Leave out the units that hold nothing and compute nothing: they need no hook."""
    owners = _list_state_owners(program)
    return {
        name: index
        for name, index in homes.items()
        if index is not None or any(_is_inside(owner, name) for owner in owners)
    }


def _list_state_owners(program: Program) -> set[str]:
    """Return the modules that hold parameters or buffers themselves."""
    return {name.rpartition(".")[0] for name in program.state}


def _is_inside(module: str, parent: str) -> bool:
    """Return whether a module is the parent or lies in it."""
    return module == parent or module.startswith(f"{parent}.")


def _merge_units(
    program: Program, units: Units, devices: dict[str, Name]
) -> dict[str, Name]:
    """Give a module one entry instead of one for each unit, if it computes nothing of its own."""
    busy = {
        op.module or ""
        for op, inside in zip(program.ops, units.inside, strict=True)
        if not inside
    }
    owners = _list_state_owners(program)
    parents = {name.rpartition(".")[0] for name in devices if "." in name}
    for parent in sorted(parents, key=lambda name: -name.count(".")):
        within = [name for name in devices if name.startswith(f"{parent}.")]
        is_busy = any(_is_inside(name, parent) for name in busy)
        if is_busy or len({devices[name] for name in within}) > 1:
            continue
        if all(any(_is_inside(owner, name) for owner in owners) for name in within):
            devices = {
                (parent if name in within else name): device
                for name, device in devices.items()
            }
    return devices
