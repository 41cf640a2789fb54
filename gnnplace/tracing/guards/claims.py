"""Tensors without numbers that claim to be on a device of another machine, and checks of their ops.

Under `Claims` every tensor is fake: it has a shape, a type and a device, and an op on it computes
the shape, type and device of its result alone. Straight-line ATen ops without autograd take such
tensors on a torch that was built without CUDA. `DeviceWatch` sees each of them and refuses

* an input that is neither on the worker's device nor a number on the host (a 0-dimensional CPU
  tensor: kernels for CUDA take it as an argument),
* a result elsewhere than on that device, unless all that the op read were numbers on the host,
* a number read from the device, for which the host would have to wait,
* an op that has no kernel for CUDA, and one that draws from a generator which nobody seeded.

Some methods of tensors ask for a guard of their device before they get to any op. Where Python code
of a model runs on such tensors, `remove_device_guards` makes them ops instead: `contiguous`,
indexing, and `copy_`, which also torch's own decompositions call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from gnnplace.torch_names import (
    OpOverload,
    TorchDispatchMode,
    pytree,
)
from gnnplace.tracing.fakes.mode import make_fake_mode
from gnnplace.tracing.program import ValueInfo, has_cuda_kernel
from gnnplace.tracing.signatures import is_random

NUMBERS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.item.default)
"""Ops that read a number out of a tensor."""
OBSERVED = "prim"
"""Namespace of ops that ask what a tensor is, such as its device."""
aten = torch.ops.aten


class DeviceFault(RuntimeError):
    """A fault that the step would have on the device, in one line."""


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to the host, as `cpu` does, by an op."""
    copied: torch.Tensor = torch.ops.aten._to_copy.default(
        tensor, device=torch.device("cpu")
    )
    return copied


METHODS: Mapping[Any, Callable[..., Any]] = {
    torch.Tensor.copy_: torch.ops.aten.copy_.default,
    torch.Tensor.item: torch.ops.aten.item.default,
    torch.Tensor.cpu: _to_host,
}
"""Methods of tensors that ask for a guard of a device which need not be here, and their ops."""


class _AsOps(TorchFunctionMode):
    """A mode that calls such methods as ops."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        return METHODS.get(func, func)(*args, **(kwargs or {}))


class Claims:
    """Tensors without numbers that may be on any device, in several threads too."""

    def __init__(self) -> None:
        self._mode = make_fake_mode()

    @contextmanager
    def made(self) -> Iterator[None]:
        """Make every tensor inside one without numbers."""
        with self._mode, _AsOps():
            yield


def make_claimed_tensor(info: ValueInfo, device: torch.device) -> torch.Tensor:
    """Return a tensor without numbers; under `Claims.made()`."""
    return torch.empty_strided(info.shape, info.stride, dtype=info.dtype, device=device)


class DeviceWatch(TorchDispatchMode):
    """A watch over the ops of one worker.

    Args:
        device: The device of the worker.

    Attributes:
        ops: Number of ATen ops that it has seen.
        seeded: Device whose generator has been seeded for the op that runs, if one has.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.ops = 0
        self.seeded: torch.device | None = None
        self._off = False

    @contextmanager
    def off(self) -> Iterator[None]:
        """Watch nothing within: tensors on their way from one device to another."""
        self._off = True
        try:
            yield
        finally:
            self._off = False

    @contextmanager
    def drawing(self, device: torch.device, seed: int) -> Iterator[None]:
        """Note whose generator is seeded, in the place of `operations.drawing`."""
        self.seeded = device
        try:
            yield
        finally:
            self.seeded = None

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Run one op and look at what it read and made."""
        kwargs = kwargs or {}
        if self._off or not isinstance(func, OpOverload) or func.namespace == OBSERVED:
            return func(*args, **kwargs)
        self.ops += 1
        read = _tensors((args, kwargs))
        on_host = bool(read) and all(_is_number(tensor) for tensor in read)
        if func in NUMBERS:
            return self._number(func, read[0])
        self._check(func, read, on_host)
        if is_random(func, args, kwargs):
            self._check_seed(func)
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            if tensor.device != self.device and not on_host:
                raise DeviceFault(
                    f"{func} makes a tensor on {tensor.device}, not {self.device}"
                )
        return result

    def _check(self, func: OpOverload, read: list[torch.Tensor], on_host: bool) -> None:
        """Refuse an op that reads another device's tensor or has no kernel."""
        for tensor in read:
            if tensor.device != self.device and not _is_number(tensor):
                raise DeviceFault(
                    f"{func} reads a tensor of shape {tuple(tensor.shape)} on {tensor.device}, "
                    f"not {self.device}"
                )
        if not on_host and self.device.type == "cuda" and not has_cuda_kernel(func):
            raise DeviceFault(f"{func} has no kernel for CUDA")

    def _check_seed(self, func: OpOverload) -> None:
        """Refuse an op that draws from a generator that was not seeded."""
        if self.seeded != self.device:
            if self.seeded:
                which = f"only that of {self.seeded}"
            else:
                which = "none"
            raise DeviceFault(
                f"{func} draws from the generator of {self.device}, and {which} has been seeded"
            )

    def _number(self, func: OpOverload, tensor: torch.Tensor) -> float:
        """Return a number in the place of one on the host; refuse one from the device."""
        if not _is_number(tensor):
            raise DeviceFault(
                f"{func} reads a number from {tensor.device}: the worker would wait"
            )
        if tensor.is_floating_point():
            return 1.0
        return 1


def _is_number(tensor: torch.Tensor) -> bool:
    """Return whether kernels for other devices take a tensor as a number."""
    return tensor.device.type == "cpu" and tensor.dim() == 0


def _tensors(value: object) -> list[torch.Tensor]:
    """Return the tensors among arguments or results."""
    return [
        leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)
    ]


@contextmanager
def remove_device_guards() -> Iterator[None]:
    """Make methods that ask for a guard ops within; for the whole process."""
    with (
        mock.patch.object(torch.Tensor, "contiguous", _contiguous),
        mock.patch.object(torch.Tensor, "copy_", _copy),
        mock.patch.object(torch.Tensor, "__getitem__", index_by_ops),
        mock.patch.object(torch.Tensor, "__setitem__", _assign),
    ):
        yield


def index_by_ops(tensor: torch.Tensor, index: object) -> torch.Tensor:
    """Return `tensor[index]` by ops: numbers, slices, `None`, `...`, tensors, lists of numbers."""
    axis = 0
    gathered = dict[int, torch.Tensor]()
    for part in _spell_out(
        tensor, list(index) if isinstance(index, tuple) else [index]
    ):
        if part is None:
            tensor = aten.unsqueeze.default(tensor, axis)
            axis += 1
        elif isinstance(part, slice):
            tensor = aten.slice.Tensor(
                tensor, axis, part.start, part.stop, part.step or 1
            )
            axis += 1
        elif type(part) is int:
            tensor = aten.select.int(tensor, axis, part)
        else:
            gathered[axis] = torch.as_tensor(part)
            axis += _dims(part)
    if not gathered:
        return tensor
    return aten.index.Tensor(
        tensor, [gathered.get(k) for k in range(max(gathered) + 1)]
    )


def _spell_out(tensor: torch.Tensor, parts: list[Any]) -> list[Any]:
    """Return the parts of an index with entire slices in the place of `...`."""
    ellipsis = next((k for k, part in enumerate(parts) if part is Ellipsis), None)
    if ellipsis is None:
        return parts
    leading = parts[:ellipsis]
    trailing = parts[ellipsis + 1 :]
    num_entire = tensor.dim() - sum(map(_dims, (*leading, *trailing)))
    return [*leading, *[slice(None)] * num_entire, *trailing]


def _dims(part: object) -> int:
    """Return the number of axes of the tensor that a part of an index stands for."""
    if part is None:
        return 0
    if isinstance(part, torch.Tensor) and part.dtype == torch.bool:
        return part.dim()
    return 1


def _copy(
    tensor: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    """Copy numbers into a tensor, as `Tensor.copy_` does."""
    return aten.copy_.default(tensor, source, non_blocking)


def _contiguous(
    tensor: torch.Tensor, memory_format: torch.memory_format = torch.contiguous_format
) -> torch.Tensor:
    """Return a contiguous tensor, as `Tensor.contiguous` does."""
    if tensor.is_contiguous(memory_format=memory_format):
        return tensor
    return aten.clone.default(tensor, memory_format=memory_format)


def _assign(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """Assign to a part of a tensor, as `tensor[index] = value` does."""
    if isinstance(index, tuple):
        parts = index
    else:
        parts = (index,)
    if any(isinstance(part, torch.Tensor | list) for part in parts):
        aten.index_put_.default(tensor, list(parts), torch.as_tensor(value))
        return
    if isinstance(value, torch.Tensor):
        source = value
    else:
        source = torch.scalar_tensor(value)
    aten.copy_.default(index_by_ops(tensor, index), source)
