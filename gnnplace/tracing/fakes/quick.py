"""`QuickFakes`: what ops make of tensors without numbers, found once for calls that are alike.

A model repeats its layers, and an op that gets tensors of one geometry makes tensors of one
geometry. Torch's fake tensors (2.13) find that out anew at some 250 us a call; here it is kept by
op, constants and geometry of operands, and a view is made of the memory without numbers itself.
All else goes torch's own way: ops that write or read numbers, that are not ATen's, results that
share memory without their schema saying so, operands whose numbers torch keeps beside
(`FakeTensor.constant`). O(operands) a call.
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

_KNOWN: WeakKeyDictionary[FakeTensorMode, dict[Hashable, Any]] = WeakKeyDictionary()
"""What is known of every mode's tensors."""


class _Made(NamedTuple):
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
    """Within it ops on fake tensors take less.

    Args:
        mode: of the fake tensors, entered already; where its cache is off, nothing is kept here.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self.mode = mode
        self._known = _KNOWN.setdefault(mode, {})

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        kind = _kind(func)
        operands: list[Any] = []
        if kind == OTHER or not self.mode.cache_enabled:
            return func(*args, **kwargs)
        key = func, _stand_in(args, operands), _stand_in(tuple(kwargs.items()), operands)
        if not operands or not all(self._is_own(x) for x in operands):
            return func(*args, **kwargs)
        if kind != FRESH:
            with in_kernel_invocation_manager(self.mode):
                seen = func(*args, **kwargs)
            device = operands[0].fake_device
            wrap = partial(FakeTensor, self.mode, device=device)
            return args[0] if kind == WRITE else _mapped(wrap, seen)
        if key not in self._known:
            result = func(*args, **kwargs)
            known = _mapped(_described, result) if _is_fresh(result, operands) else None
            self._known[key] = known
            return result
        if (known := self._known[key]) is None:
            return func(*args, **kwargs)
        with DisableTorchDispatch():  # type: ignore[no-untyped-call]
            return _mapped(self._make, known)

    def _is_own(self, value: object) -> bool:
        """Whether a value is a tensor of the mode without numbers beside."""
        return type(value) is FakeTensor and value.fake_mode is self.mode and value.constant is None

    def _make(self, made: _Made) -> FakeTensor:
        empty = torch.empty_strided(made.shape, made.stride, dtype=made.dtype, device="meta")
        return FakeTensor(self.mode, empty, made.device)


@contextmanager
def without_numbers(mode: FakeTensorMode | None) -> Iterator[None]:
    """Within it tensors have no numbers, and ops on them take less; None: they have."""
    if mode is None:
        yield
        return
    with mode, QuickFakes(mode):
        yield


@cache  # a mode is entered for every call that is recorded
def _kind(func: object) -> str:
    """How geometry says an op's results, if it does."""
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
    odd = schema.is_mutable or shares or NUMBERS.intersection(func.tags) or name in APART
    return OTHER if odd else FRESH


def _stand_in(value: object, operands: list[Any]) -> Hashable:
    """What decides the geometry of results; tensors are noted, and all that is of another kind."""
    if isinstance(value, torch.Tensor):
        operands.append(value)
        if value.layout != torch.strided:
            operands.append(None)
            return None
        where = value.stride(), value.storage_offset(), value.is_conj(), value.is_neg()
        return tuple(value.shape), value.dtype, *where, getattr(value, "_fake_device", None)
    if isinstance(value, list | tuple):
        return tuple([_stand_in(x, operands) for x in value])
    if isinstance(value, CONSTANTS):
        return type(value), value
    if not isinstance(value, NAMES):
        operands.append(None)
    return value if isinstance(value, NAMES) else None


def _is_fresh(result: object, operands: list[Any]) -> bool:
    """Whether results are tensors with memory of their own, from its beginning."""
    made = [result] if isinstance(result, torch.Tensor) else result
    if not isinstance(made, tuple | list):
        return False
    tensors = [x for x in made if x is not None]
    if not all(type(x) is FakeTensor and x.layout == torch.strided for x in tensors):
        return False
    if any(x.storage_offset() or x.constant is not None or x.is_conj() or x.is_neg()
           for x in tensors):  # fmt: skip
        return False
    held = [x.untyped_storage()._cdata for x in tensors]
    others = {x.untyped_storage()._cdata for x in operands}
    return len(set(held)) == len(held) and others.isdisjoint(held)


def _described(tensor: FakeTensor) -> _Made:
    return _Made(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.fake_device)


def _mapped(change: Callable[[Any], Any], made: object) -> Any:
    """Results of an op, one by one; those that are None stay so."""
    if isinstance(made, tuple | list) and type(made) is not _Made:
        return type(made)(None if x is None else change(x) for x in made)
    return change(made)
