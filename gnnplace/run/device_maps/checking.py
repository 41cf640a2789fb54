"""`check_device_map`: a model run as accelerate would dispatch it, on claimed devices.

It runs the model's own code on devices that need not be here. Parameters, buffers and inputs are
tensors without numbers that claim to be on the devices of a map (``tracing.Claims``), and every
module of the map moves its arguments, as accelerate's hooks do: so does each module inside it that
holds parameters, and the model itself moves its inputs to the main device. An op whose operands are
on several devices is then an error here, as it would be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

import torch
from torch import nn
from torch.func import functional_call

from gnnplace.errors import InputError
from gnnplace.run.device_maps.making import CPU, Name
from gnnplace.torch_names import mixes_devices, pytree
from gnnplace.tracing import (
    Attributes,
    Claims,
    Inputs,
    StepModule,
    describe_arguments,
    make_claimed_tensor,
    make_workload,
    remove_device_guards,
    value_info,
)
from gnnplace.zoo import Loss, Workload

LABELS = ("labels",)  # Inputs that models of Hugging Face take for training alone
Tree = TypeVar("Tree")
Arguments = tuple[tuple[object, ...], dict[str, object]]
"""Positional and keyword arguments of a call."""


def check_device_map(
    model: str | nn.Module,
    device_map: Mapping[str, Name],
    inputs: Inputs | None = None,
    *,
    loss: Loss | None = None,
    forward_only: bool = True,
) -> str | None:
    """Run a model's forward pass as accelerate would dispatch it, on claimed devices.

    Args:
        model: The model, as ``capture`` takes it; a module is left as it is.
        device_map: modules and their devices, as ``device_map`` gives them.
        inputs: example inputs of a module, as for ``capture``; no number of them is read.
        loss: The loss, whose targets are among the inputs.
        forward_only: leave ``labels`` out, if the model runs without.

    Returns:
        Why it could not be checked, in one line; None if it was, and is right.

    Raises:
        InputError: an op would mix devices; names the module whose code it is. Or the map leaves a
            parameter without a device.
    """
    try:
        workload = make_workload(model, inputs, loss, fake=True)
    except InputError as error:
        if isinstance(model, str):
            return str(error)  # it may be made once in a process
        raise
    model = workload.model
    gpus = set(device_map.values()) - {CPU}
    main = _device(next(iter(gpus), CPU))  # accelerate brings the model's inputs to it
    homes = _homes(model, device_map)
    args, kwargs = _find_arguments(workload)
    without = {name: value for name, value in kwargs.items() if name not in LABELS}
    if forward_only and len(without) < len(kwargs):
        calls = [without, kwargs]
    else:
        calls = [kwargs]
    reason: str | None = None
    with _hooks_that_move(model, device_map):
        for keywords in calls:
            reason = _run_forward(model, homes, main, (args, keywords))
            if reason is None:
                return None
    return reason


def _run_forward(
    model: nn.Module,
    homes: Mapping[str, torch.device],
    main: torch.device,
    call: Arguments,
) -> str | None:
    """Run the forward pass; return the first line of any error but that of mixed devices."""
    with (
        Attributes(model).restored(),
        Claims().made(),
        remove_device_guards(),
        torch.no_grad(),
    ):
        args, kwargs = _claim(call, main)
        try:
            functional_call(model, _make_claimed_state(model, homes), args, kwargs)
        except Exception as error:
            if mixes_devices(error):
                raise InputError(_describe_mix(model, error)) from None
            # The model's own error, or something that no tensor can claim.
            return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return None


def _device(name: Name) -> torch.device:
    return torch.device(f"cuda:{name}" if isinstance(name, int) else name)


def _home(name: str, device_map: Mapping[str, Name]) -> Name | None:
    """Return the device of the outermost module of the map that a name lies in."""
    parts = name.split(".")
    modules = (".".join(parts[:k]) for k in range(len(parts)))
    return next(
        (device_map[module] for module in modules if module in device_map), None
    )


def _homes(model: nn.Module, device_map: Mapping[str, Name]) -> dict[str, torch.device]:
    """Return the device of each parameter and buffer."""
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


def _make_claimed_state(
    model: nn.Module, homes: Mapping[str, torch.device]
) -> dict[str, torch.Tensor]:
    """Return tensors without numbers for parameters and buffers, one for those that are tied."""
    claims: dict[int, torch.Tensor] = {}
    for name, tensor in _tensors(model):
        if id(tensor) not in claims:
            claims[id(tensor)] = make_claimed_tensor(value_info(tensor), homes[name])
    return {name: claims[id(tensor)] for name, tensor in _tensors(model)}


def _find_arguments(workload: Workload) -> Arguments:
    """Return what the model is called with, without the targets of the loss."""
    model = workload.model
    loss = workload.loss
    step = StepModule(model, loss, workload.inputs, forward_only=True)
    bound = describe_arguments(model, loss, step.args, step.kwargs)
    return tuple(bound.args), dict(bound.kwargs)


def _claim(values: Tree, device: torch.device) -> Tree:
    """Return the values with tensors without numbers that claim to be on a device."""
    claims: Tree = pytree.tree_map(
        lambda x: (
            make_claimed_tensor(value_info(x), device)
            if isinstance(x, torch.Tensor)
            else x
        ),
        values,
    )
    return claims


@contextmanager
def _hooks_that_move(
    model: nn.Module, device_map: Mapping[str, Name]
) -> Iterator[None]:
    """Have the modules of the map move their arguments to their device, within the context."""
    handles = []
    for name, module in model.named_modules():
        home = _hook_device(name, module, device_map)
        if home is not None:
            handles.append(
                module.register_forward_pre_hook(
                    _make_mover(_device(home)), with_kwargs=True
                )
            )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook_device(
    name: str, module: nn.Module, device_map: Mapping[str, Name]
) -> Name | None:
    """Return the device of a module with a hook: of the map, or inside one and holding tensors."""
    if name in device_map:
        return device_map[name]
    home = _home(name, device_map)
    if home is not None and len(module.state_dict()):
        return home
    return None


def _make_mover(
    device: torch.device,
) -> Callable[[nn.Module, tuple[object, ...], dict[str, object]], Arguments]:
    """Return a forward pre-hook that moves all tensors among the arguments to a device."""

    def move(
        module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Arguments:
        moved_call: Arguments = pytree.tree_map(
            lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, (args, kwargs)
        )
        return moved_call

    return move


def _describe_mix(model: nn.Module, error: Exception) -> str:
    """Say which module's own code mixes devices: the innermost on the error's stack."""
    names = {id(module): name for name, module in model.named_modules()}
    entered = [
        names[id(one)] for one in _selves(error.__traceback__) if id(one) in names
    ]
    if entered and entered[-1]:
        module = f"module {entered[-1]!r}"
    else:
        module = "the model"
    return (
        f"device map: the code of {module} itself would mix devices: {error}; accelerate moves the "
        "inputs of modules alone: keep what it brings together on one device (--together, --pin)"
    )


def _selves(trace: TracebackType | None) -> Iterator[object]:
    """Yield the objects whose methods are on a stack, the outermost first."""
    while trace is not None:
        yield trace.tb_frame.f_locals.get("self")
        trace = trace.tb_next
