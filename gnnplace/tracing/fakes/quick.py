"""`QuickFakes`: results of ops on tensors without numbers, found once for calls of equal geometry.

A model repeats its layers, and the geometry of an op's results follows from that of its operands.
Torch's fake tensors (2.13) compute it for every call in some 250 us. Here it is cached by op,
constants and geometry of operands, and views are made directly. Other calls take torch's own path:
ops that write or read numbers, ops that are not ATen's, results that share memory although their
schema does not say so, and operands with numbers (`FakeTensor.constant`). O(operands) a call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from gnnplace.torch_names import (
    DisableTorchDispatch,
    DispatchKey,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    TorchDispatchMode,
    dispatch_has_kernel_for_dispatch_key,
    in_kernel_invocation_manager,
)

NUMBERS = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
}
APART = ("lift", "lift_fresh", "lift_fresh_copy")
VIEWS = ("detach", "_unsafe_view")
"""Views that do not say so, or of which torch does not know whether they are one."""
FRESH, VIEW, WRITE, OTHER = "fresh", "view", "write", "other"
CONSTANTS = (bool, int, float, complex)
NAMES = (str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)

_RESULTS: WeakKeyDictionary[FakeTensorMode, dict[Hashable, Any]] = WeakKeyDictionary()
"""Geometry of results by call, for every mode's tensors."""


class _ResultGeometry(NamedTuple):
    """The geometry of a result."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class BareMode(TorchDispatchMode):
    """A dispatch mode whose calls torch does not wrap for its compiler (2.13: 10 us a call)."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class QuickFakes(BareMode):
    """A mode in which ops on fake tensors take less time.

    Args:
        mode: mode of the fake tensors, entered already; if its cache is off, nothing is kept here.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self.mode = mode
        self._results = _RESULTS.setdefault(mode, {})

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        kind = _kind(func)
        operands: list[Any] = []
        if kind == OTHER or not self.mode.cache_enabled:
            return func(*args, **kwargs)
        key = (
            func,
            _make_stand_in_key(args, operands),
            _make_stand_in_key(tuple(kwargs.items()), operands),
        )
        if not operands or not all(self._is_own(x) for x in operands):
            return func(*args, **kwargs)

        # A view, or a write that returns its target: of the memory without numbers itself.
        if kind != FRESH:
            with in_kernel_invocation_manager(self.mode):
                result = func(*args, **kwargs)
            device = operands[0].fake_device
            wrap = partial(FakeTensor, self.mode, device=device)
            return args[0] if kind == WRITE else _map_results(wrap, result)

        if key not in self._results:
            result = func(*args, **kwargs)
            is_fresh = _is_fresh(result, operands)
            self._results[key] = (
                _map_results(_describe_result, result) if is_fresh else None
            )
            return result
        geometry = self._results[key]
        if geometry is None:
            return func(*args, **kwargs)
        with DisableTorchDispatch():  # type: ignore[no-untyped-call]
            return _map_results(self._make, geometry)

    def _is_own(self, value: object) -> bool:
        """Return whether a value is a tensor of the mode without numbers beside."""
        return (
            type(value) is FakeTensor
            and value.fake_mode is self.mode
            and value.constant is None
        )

    def _make(self, geometry: _ResultGeometry) -> FakeTensor:
        """Return a tensor of the mode of a geometry."""
        empty = torch.empty_strided(
            geometry.shape, geometry.stride, dtype=geometry.dtype, device="meta"
        )
        return FakeTensor(self.mode, empty, geometry.device)


@contextmanager
def without_numbers(mode: FakeTensorMode | None) -> Iterator[None]:
    """Make tensors without numbers within, and ops on them quick; not if `mode` is None."""
    if mode is None:
        yield
        return
    with mode, QuickFakes(mode):
        yield


@cache  # a mode is entered for every call that is recorded
def _kind(func: object) -> str:
    """Return how geometry tells an op's results, if it does."""
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return OTHER
    schema, name = func._schema, func._schema.name.split("::")[1]
    if name == "copy_":
        return WRITE
    implicit = DispatchKey.CompositeImplicitAutograd
    unknown = dispatch_has_kernel_for_dispatch_key(func.name(), implicit)
    if name in VIEWS or (func.is_view and not unknown):
        return VIEW
    shares = any(r.alias_info is not None for r in schema.returns)
    is_other = (
        schema.is_mutable or shares or NUMBERS.intersection(func.tags) or name in APART
    )
    return OTHER if is_other else FRESH


def _make_stand_in_key(value: object, operands: list[Any]) -> Hashable:
    """Return what decides the geometry of results.

    Tensors are added to `operands`, and None for a value of a kind that geometry does not tell.
    """
    if isinstance(value, torch.Tensor):
        operands.append(value)
        if value.layout != torch.strided:
            operands.append(None)
            return None
        layout = value.stride(), value.storage_offset(), value.is_conj(), value.is_neg()
        return (
            tuple(value.shape),
            value.dtype,
            *layout,
            getattr(value, "_fake_device", None),
        )
    if isinstance(value, list | tuple):
        return tuple([_make_stand_in_key(x, operands) for x in value])
    if isinstance(value, CONSTANTS):
        return type(value), value
    if not isinstance(value, NAMES):
        operands.append(None)
    return value if isinstance(value, NAMES) else None


def _is_fresh(result: object, operands: list[Any]) -> bool:
    """Return whether results are tensors with memory of their own, from its beginning."""
    results = [result] if isinstance(result, torch.Tensor) else result
    if not isinstance(results, tuple | list):
        return False
    tensors = [x for x in results if x is not None]
    if not all(type(x) is FakeTensor and x.layout == torch.strided for x in tensors):
        return False
    for tensor in tensors:
        if tensor.storage_offset() or tensor.constant is not None:
            return False
        if tensor.is_conj() or tensor.is_neg():
            return False
    storages = [x.untyped_storage()._cdata for x in tensors]
    operand_storages = {x.untyped_storage()._cdata for x in operands}
    return len(set(storages)) == len(storages) and operand_storages.isdisjoint(storages)


def _describe_result(tensor: FakeTensor) -> _ResultGeometry:
    """Return the geometry of a result."""
    return _ResultGeometry(
        tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.fake_device
    )


def _map_results(change: Callable[[Any], Any], results: object) -> object:
    """Return results of an op, one by one changed; those that are None stay so."""
    if isinstance(results, tuple | list) and type(results) is not _ResultGeometry:
        return type(results)(None if x is None else change(x) for x in results)
    return change(results)
