"""``check_device_map``: the model's own code, run on devices that need not be here.

Parameters, buffers and inputs are tensors without numbers that claim to be on the devices of a map
(``tracing.claimed``), and every module of the map moves its arguments, as accelerate's hooks do: so
does each module inside it that holds parameters, and the model itself moves its inputs to the main
device. An op whose operands are on several devices is then an error here, as it would be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from gnnplace.errors import InputError
from gnnplace.execution.devicemap.names import Name
from gnnplace.tracing.arguments import arguments
from gnnplace.tracing.attributes import Attributes
from gnnplace.tracing.claimed import Claims, MixedDevices, claimed
from gnnplace.tracing.claimed_python import unguarded
from gnnplace.tracing.models import workload_of
from gnnplace.tracing.program import value_info
from gnnplace.tracing.step import Inputs, StepModule
from gnnplace.zoo.workload import Loss, Workload

HOST = "cpu"
LABELS = ("labels",)  # what models of Hugging Face take for training alone


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
        device_map: modules and devices.
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
    homes, main = _homes(model, device_map), _main(device_map)
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
        except MixedDevices as error:
            raise InputError(_told(model, error)) from None
        except Exception as error:  # the model's own, or something that no tensor can claim
            return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return None


def _device(name: Name) -> torch.device:
    return torch.device(f"cuda:{name}" if isinstance(name, int) else name)


def _main(device_map: Mapping[str, Name]) -> torch.device:
    """The device that accelerate brings the model's inputs to."""
    gpus = set(device_map.values()) - {HOST}
    return _device(next(iter(gpus), HOST))


def _homes(model: nn.Module, device_map: Mapping[str, Name]) -> dict[str, torch.device]:
    """Device of each parameter and buffer."""
    homes = {}
    for name, _ in _tensors(model):
        parts = name.split(".")
        around = (".".join(parts[:k]) for k in range(len(parts)))
        home = next((device_map[each] for each in around if each in device_map), None)
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
    parts = name.split(".")
    around = (".".join(parts[:k]) for k in range(len(parts)))
    home = next((device_map[each] for each in around if each in device_map), None)
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
