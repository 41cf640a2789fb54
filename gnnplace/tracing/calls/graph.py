"""The calls of torch functions that a forward pass makes, in order, and the values between them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from gnnplace.errors import ChangedWarning
from gnnplace.torch_names import pytree
from gnnplace.tracing.tensors import find_tensors

Tensors = list[torch.Tensor]
CALL = "call"
PARAMETER = "parameter"
BUFFER = "buffer"
INPUT = "input"
CONSTANT = "constant"


@dataclass(frozen=True)
class CallRef:
    """A value among the arguments of a call."""

    value: int


@dataclass(frozen=True)
class LayerValue:
    """A tensor between calls.

    Attributes:
        shape: The shape of the whole tensor.
        dtype: The dtype of its elements.
        gradient: Whether a gradient flows into it.
        source: What made it: `CALL`, `PARAMETER`, `BUFFER`, `INPUT` or `CONSTANT`.
        name: Qualified name of a parameter or buffer in the user's model, position of an input.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    gradient: bool
    source: str
    name: str = ""

    @property
    def bytes(self) -> int:
        """Return the bytes of the whole tensor."""
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize


@dataclass(frozen=True)
class LayerCall:
    """One call.

    Attributes:
        name: Unique: the module's path, and the function where the module is no leaf.
        function: The function that was called.
        args: Its arguments, with a `CallRef` for every tensor.
        kwargs: Its arguments by name, with a `CallRef` for every tensor.
        reads: Values among the arguments, in order.
        results: Values of the tensors that it returns, in order.
        module: Path of the module.
        gradient: Whether gradients were enabled.
        changes: Whether it returns nothing and changes its first argument in place.
        inplace: Whether it changes its first argument in place, and that is no buffer.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: tuple[int, ...]
    results: tuple[int, ...]
    module: str
    gradient: bool = True
    changes: bool = False
    inplace: bool = False

    @property
    def kind(self) -> str:
        """Return the function's plain name, such as "linear" or "add" (also of `+=`)."""
        return function_name(self.function)

    def argument(self, position: int, name: str, default: object = None) -> Any:
        """Return an argument by position or name."""
        if len(self.args) > position:
            return self.args[position]
        return self.kwargs.get(name, default)

    def made(
        self, values: Callable[[int], torch.Tensor], run: Runner | None = None
    ) -> Tensors:
        """Return the tensors that the call makes, or the one that it changes.

        Args:
            values: gives the tensors that it reads.
            run: computes the call from its arguments; by default its function.
        """
        args = fill(self.args, values)
        kwargs = fill(self.kwargs, values)
        with torch.set_grad_enabled(self.gradient and torch.is_grad_enabled()):
            if run is None:
                result = self.function(*args, **kwargs)
            else:
                result = run(self, args, kwargs)
        if self.changes:
            return [args[0]]
        return find_tensors(result)


Runner = Callable[[LayerCall, tuple[Any, ...], dict[str, Any]], Any]
"""Computes a call from its arguments and those by name."""


@dataclass(frozen=True)
class CallGraph:
    """The calls that the outputs need.

    Attributes:
        name: The name of the model.
        calls: The calls in the order in which they ran.
        values: The tensors between them, by their number.
        output: What the forward pass returned, with a `CallRef` for every tensor.
        constants: Tensors that are none of the model's parameters or buffers.
        random: Indices of calls that draw random numbers, as often as they draw.
        statistics: Buffers that take what they hold from the batch, batch norms' aside.
        changed: Indices of the calls that change each buffer, by its name.
        notices: What the calls do otherwise than the model, each in one line.
    """

    name: str
    calls: tuple[LayerCall, ...]
    values: tuple[LayerValue, ...]
    output: Any
    constants: dict[int, torch.Tensor] = field(default_factory=dict)
    random: tuple[int, ...] = ()
    statistics: tuple[str, ...] = ()
    changed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    notices: tuple[str, ...] = ()

    @property
    def outputs(self) -> tuple[int, ...]:
        """Return the values that the forward pass returns, in the order of the output's leaves."""
        leaves = pytree.tree_leaves(self.output)
        return tuple(leaf.value for leaf in leaves if isinstance(leaf, CallRef))

    def give_notices(self) -> None:
        """Warn of each notice."""
        for line in self.notices:
            warnings.warn(line, ChangedWarning, stacklevel=2)

    def readers(self, buffer: str) -> tuple[int, ...]:
        """Return the calls that read a buffer as a step finds it, and not what a call left."""
        values = {
            index
            for index, value in enumerate(self.values)
            if value.source == BUFFER and value.name == buffer
        }
        return tuple(
            i for i, call in enumerate(self.calls) if values.intersection(call.reads)
        )


def function_name(function: Callable[..., Any]) -> str:
    """Return the plain name of a torch function: `add` for `Tensor.__iadd__` and `add_` as well."""
    name = getattr(function, "__name__", str(function))
    if name == "__get__":
        name = getattr(getattr(function, "__self__", None), "__name__", name)
    if name.startswith("__") and name.endswith("__"):
        return name.strip("_")
    return name.rstrip("_")


def fill(template: object, values: Callable[[int], Any]) -> Any:
    """Return a copy of a call's arguments with a tensor for every `CallRef`."""
    if isinstance(template, CallRef):
        return values(template.value)
    if isinstance(template, tuple):
        items = [fill(item, values) for item in template]
        if hasattr(template, "_fields"):
            return type(template)(*items)
        return tuple(items)
    if isinstance(template, list):
        return [fill(item, values) for item in template]
    if isinstance(template, dict):
        return {key: fill(item, values) for key, item in template.items()}
    if isinstance(template, slice):
        return slice(
            *(fill(x, values) for x in (template.start, template.stop, template.step))
        )
    return template
