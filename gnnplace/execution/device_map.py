"""Device maps: what ``accelerate.dispatch_model`` and ``from_pretrained`` take, made and checked.

``device_map`` makes one of a placement. It is exact or there is none: every op of a unit
(``costs.profiling.grouping``) must be on the unit's device, in the backward pass too, and what
stands between units must be where accelerate would run it. A placement that was searched by module
is so.

A GPU's number is that in its name where all GPUs have one (``gpu:1``, ``cuda:1``), else its place
among the cluster's GPUs. A device map is one process's, which has one CPU.

``check_device_map`` runs the model's own code on devices that need not be here. Parameters, buffers
and inputs are tensors without numbers that claim to be on the devices of a map
(``tracing.Claims``), and every module of the map moves its arguments, as accelerate's hooks do: so
does each module inside it that holds parameters, and the model itself moves its inputs to the main
device. An op whose operands are on several devices is then an error here, as it would be there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call

from gnnplace.arrays import IntArray
from gnnplace.costs.profiling.grouping import Units, find_units
from gnnplace.errors import InputError, MismatchError
from gnnplace.problem import Device, Placement, Problem
from gnnplace.torch_names import mixes_devices, pytree
from gnnplace.tracing import (
    Attributes,
    Claims,
    Inputs,
    Program,
    StepModule,
    arguments,
    claimed,
    unguarded,
    value_info,
    workload_of,
)
from gnnplace.zoo.workload import Loss, Workload

CPU = "cpu"
Name = int | str
NUMBER = re.compile(r"(?:gpu|cuda):(\d+)")
WHOLE = ""  # the whole model
NOWHERE = "\0"  # the unit of ops that may be anywhere; no module is called so
BY_MODULE = "search by module (--by-module)"
LABELS = ("labels",)  # what models of Hugging Face take for training alone


def accelerate_names(devices: Sequence[Device], used: Sequence[int]) -> dict[int, Name]:
    """The name of each used device, by its position.

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
        told = "runs nothing on the CPU beside GPUs" if len(hosts) < len(used) else "knows one CPU"
        raise InputError(
            f"device map: modules are on {named}, and accelerate {told}; place on GPUs alone "
            f"(--forbid '*={devices[hosts[0]].name}'), or on one device (--max-devices 1)"
        )
    if hosts:
        return {hosts[0]: CPU}
    gpus = [i for i, device in enumerate(devices) if device.kind != CPU]
    numbers = [NUMBER.fullmatch(devices[i].name) for i in gpus]
    if all(numbers) and len({m[1] for m in numbers if m}) == len(gpus):
        return {i: int(m[1]) for i, m in zip(gpus, numbers, strict=True) if m and i in used}
    return {i: place for place, i in enumerate(gpus) if i in used}


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


def _devices(program: Program, problem: Problem, placement: Placement) -> IntArray:
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


def _by_unit(program: Program, units: Units, device: IntArray, problem: Problem) -> dict[str, int]:
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
    program: Program, problem: Problem, name: str, ops: NDArray[np.intp], device: IntArray
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


def _astray(program: Program, problem: Problem, name: str, op: int, device: IntArray) -> str:
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
        around = any(name == parent or name.startswith(f"{parent}.") for name in busy)
        if around or len({devices[name] for name in within}) > 1:
            continue
        if all(any(h == n or h.startswith(f"{n}.") for h in held) for n in within):
            devices = _merged(devices, parent, within)
    return devices


def _merged(devices: dict[str, Name], parent: str, within: list[str]) -> dict[str, Name]:
    merged: dict[str, Name] = {}
    for name, device in devices.items():
        merged[parent if name in within else name] = device
    return merged


def check_device_map(
    model: str | nn.Module,
    device_map: Mapping[str, Name],
    inputs: Inputs | None = None,
    *,
    loss: Loss | None = None,
    forward_only: bool = True,
) -> str | None:
    """Runs a model's forward pass as accelerate would dispatch it, on claimed devices.

    Args:
        model: as ``capture`` takes it; a module is left as it is.
        device_map: modules and their devices, as ``device_map`` gives them.
        inputs: example inputs of a module, as for ``capture``; no number of them is read.
        loss: whose targets are among the inputs.
        forward_only: leave ``labels`` out, if the model runs without.

    Returns:
        Why it could not be checked, in one line; None if it was, and is right.

    Raises:
        InputError: an op would mix devices; names the module whose code it is. Or the map leaves a
            parameter without a device.
    """
    try:
        workload = workload_of(model, inputs, loss, fake=True)
    except InputError as error:
        if isinstance(model, str):
            return str(error)  # it may be made once in a process
        raise
    model = workload.model
    gpus = set(device_map.values()) - {CPU}
    main = _device(next(iter(gpus), CPU))  # accelerate brings the model's inputs to it
    homes = _homes(model, device_map)
    args, kwargs = _given(workload)
    without = {name: value for name, value in kwargs.items() if name not in LABELS}
    calls = [without, kwargs] if forward_only and len(without) < len(kwargs) else [kwargs]
    why: str | None = ""
    with _moving(model, device_map):
        for given in calls:
            why = None if why is None else _walked(model, homes, main, args, given)
    return why


def _walked(
    model: nn.Module,
    homes: Mapping[str, torch.device],
    main: torch.device,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> str | None:
    """What another error than that of mixed devices says, if there is one."""
    with Attributes(model).restored(), Claims().made(), unguarded(), torch.no_grad():
        args, kwargs = _moved((args, kwargs), main)
        try:
            functional_call(model, _held(model, homes), args, kwargs)
        except Exception as error:
            if mixes_devices(error):
                raise InputError(_told(model, error)) from None
            # The model's own error, or something that no tensor can claim.
            return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return None


def _device(name: Name) -> torch.device:
    return torch.device(f"cuda:{name}" if isinstance(name, int) else name)


def _home(name: str, device_map: Mapping[str, Name]) -> Name | None:
    """The device of the first of the map's modules that a name lies in."""
    parts = name.split(".")
    around = (".".join(parts[:k]) for k in range(len(parts)))
    return next((device_map[each] for each in around if each in device_map), None)


def _homes(model: nn.Module, device_map: Mapping[str, Name]) -> dict[str, torch.device]:
    """Device of each parameter and buffer."""
    homes = {}
    for name, _ in _tensors(model):
        home = _home(name, device_map)
        if home is None:
            raise InputError(f"device map: nothing in it holds {name!r}")
        homes[name] = _device(home)
    return homes


def _tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _held(model: nn.Module, homes: Mapping[str, torch.device]) -> dict[str, torch.Tensor]:
    """Tensors without numbers in the place of parameters and buffers; one for tied ones."""
    made: dict[int, torch.Tensor] = {}
    for name, tensor in _tensors(model):
        if id(tensor) not in made:
            made[id(tensor)] = claimed(value_info(tensor), homes[name])
    return {name: made[id(tensor)] for name, tensor in _tensors(model)}


def _given(workload: Workload) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the model is called with, without the targets of the loss."""
    model, loss = workload.model, workload.loss
    step = StepModule(model, loss, workload.inputs, forward_only=True)
    given = arguments(model, loss, step.args, step.kwargs)
    return tuple(given.args), dict(given.kwargs)


def _moved(values: Any, device: torch.device) -> Any:
    """Copies that claim to be on a device."""
    return pytree.tree_map(
        lambda x: claimed(value_info(x), device) if isinstance(x, torch.Tensor) else x, values
    )


@contextmanager
def _moving(model: nn.Module, device_map: Mapping[str, Name]) -> Iterator[None]:
    """Within it modules of the map move their arguments to their device."""
    handles = []
    for name, module in model.named_modules():
        home = _hooked(name, module, device_map)
        if home is not None:
            handles.append(
                module.register_forward_pre_hook(_mover(_device(home)), with_kwargs=True)
            )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hooked(name: str, module: nn.Module, device_map: Mapping[str, Name]) -> Name | None:
    """The device of a module with a hook: of the map, or inside one and with something to hold."""
    if name in device_map:
        return device_map[name]
    home = _home(name, device_map)
    return home if home is not None and len(module.state_dict()) else None


def _mover(device: torch.device) -> Callable[..., Any]:
    def move(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return pytree.tree_map(
            lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, (args, kwargs)
        )

    return move


def _told(model: nn.Module, error: Exception) -> str:
    names = {id(module): name for name, module in model.named_modules()}
    found = [names[id(one)] for one in _selves(error.__traceback__) if id(one) in names]
    around = f"module {found[-1]!r}" if found and found[-1] else "the model"
    return (
        f"device map: the code of {around} itself would mix devices: {error}; accelerate moves the "
        "inputs of modules alone: keep what it brings together on one device (--together, --pin)"
    )


def _selves(trace: TracebackType | None) -> Iterator[Any]:
    """What methods were called on, the outermost first."""
    while trace is not None:
        yield trace.tb_frame.f_locals.get("self")
        trace = trace.tb_next
