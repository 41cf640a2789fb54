"""Tensors of which this process has only a part: reductions over them are refused.

When a model is split (into stages, shards or by ZeRO), a process has some of its parameters, or a
part of each. Elementwise operations are right on parts: AdamW's step, `clip_grad_value_`, an
average of weights. A norm, a sum or a maximum would only be that of this process, and clipping by
it would silently train differently. So between steps parameters and gradients have special classes:

* `Local`, parts that are trained here: operations with fewer output elements than input elements
  are refused, and all results are `Local` too;
* `Elsewhere`, tensors of the user's model whose parts are trained in other tensors, here or on
  another process: their metadata can be read, every other access is refused.

Within the runner's calls, and within an optimizer's step, they are plain tensors again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import torch
from torch import nn

from gnnplace.errors import InputError
from gnnplace.torch_names import DisableTorchFunctionSubclass, pytree
from gnnplace.tracing import get_storage_key

NUMBERS = (
    "item",
    "tolist",
    "numpy",
    "equal",
    "allclose",
    "is_nonzero",
    "matmul",
    "mm",
    "einsum",
    "__matmul__",
    "__bool__",
    "__float__",
    "__int__",
    "__contains__",
)
"""Calls that make numbers of Python, or products that sum over an axis, of any size."""
METADATA = (
    "__get__",
    "__set__",
    "__hash__",
    "numel",
    "nelement",
    "element_size",
    "dim",
    "ndimension",
    "size",
    "stride",
    "is_floating_point",
    "is_complex",
    "is_contiguous",
    "requires_grad_",
    "__len__",
    "data_ptr",
)
"""Calls that read none of a tensor's elements."""

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


class Local(torch.Tensor):
    """A part of a parameter or of its gradient, or a whole one of some."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Call a function, unless it makes fewer elements than it reads."""
        name = func.__name__
        kwargs = kwargs or {}
        if name in NUMBERS:
            _refuse(name)
        with DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
            marked = [
                x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Local)
            ]
            for leaf in pytree.tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    fewer = leaf.numel() < min(x.numel() for x in marked)
                    # It is no view.
                    if fewer and get_storage_key(leaf) not in map(
                        get_storage_key, marked
                    ):
                        _refuse(name)
                    mark(leaf, Local)
        return result


class Elsewhere(torch.Tensor):
    """A tensor of the user's model in whose place another is trained, here or elsewhere."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Call a function that reads no elements."""
        name = func.__name__
        if name not in METADATA:
            raise InputError(
                f"{name}: the parameters and gradients of the model itself are not those that this "
                "process trains; take runner.parameters(), or whole ones from runner.state_dict() "
                "and runner.gradients()"
            )
        with DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        if type(result) is torch.Tensor:
            mark(result, Elsewhere)
        return result


def _refuse(name: str) -> None:
    raise InputError(
        f"{name}: this process has parts of the parameters and gradients alone, and a number made "
        "of these is not the model's; runner.clip_grad_norm_(max_norm) clips and returns the norm, "
        "runner.gradients() and runner.state_dict() have whole tensors"
    )


def mark(tensor: torch.Tensor, kind: type[torch.Tensor]) -> None:
    """Give a tensor another class, in place; torch tells parameters by an attribute."""
    if type(tensor) in (torch.Tensor, nn.Parameter):
        vars(tensor)["_is_param"] = isinstance(tensor, nn.Parameter)
        tensor.__class__ = kind


def unmark(tensor: object) -> bool:
    """Make a tensor a plain one or a plain parameter; return whether it was marked."""
    marked = type(tensor) in (Local, Elsewhere)
    if marked:
        if isinstance(tensor, nn.Parameter):
            tensor.__class__ = nn.Parameter
        else:
            tensor.__class__ = torch.Tensor
    return marked


@dataclass(eq=False)
class Marks:
    """The tensors of a model that are marked between steps.

    Attributes:
        local: parameters that this process trains, where they are not all, or not whole.
        elsewhere: Parameters of the user's model that others are trained for, each with the one
            that is trained here, if any.
        off: how often `plain` was entered and not left.
    """

    local: tuple[nn.Parameter, ...] = ()
    elsewhere: tuple[tuple[nn.Parameter, nn.Parameter | None], ...] = ()
    off: int = 0

    def put(self) -> None:
        """Mark parameters, and the gradients that they have."""
        for parameter in self.local:
            if parameter.grad is not None:
                mark(parameter.grad, Local)
            mark(parameter, Local)
        for parameter, trained in self.elsewhere:
            if trained is not None and trained.grad is not None:
                # Tensors without memory.
                parameter.grad = parameter.new_zeros(()).expand(parameter.shape)
                mark(parameter.grad, Elsewhere)
            mark(parameter, Elsewhere)

    def take(self) -> None:
        """Make the marked tensors plain."""
        for parameter in (*self.local, *(stale for stale, _ in self.elsewhere)):
            unmark(parameter)
            unmark(parameter.grad)

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Have the marked tensors plain, within the context."""
        self.off += 1
        if self.off == 1:
            self.take()
        try:
            yield
        finally:
            self.off -= 1
            if self.off == 0:
                self.put()


class Marking(Protocol):
    """An object that has marks."""

    marks: Marks


Owner = TypeVar("Owner", bound=Marking)


def plainly(
    method: Callable[Concatenate[Owner, Arguments], Answer],
) -> Callable[Concatenate[Owner, Arguments], Answer]:
    """Wrap a method so that the tensors that its object marks are plain within it."""

    @wraps(method)
    def within(
        self: Owner, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Answer:
        with self.marks.plain():
            return method(self, *args, **kwargs)

    return within
