"""`Whole`: a step as torch traces it, with what autograd and functionalization would not see.

* A tensor that several modules hold is one input, so that autograd adds up its gradient as it does
  in eager mode.
* Plain tensors that modules hold as attributes are inputs beside the buffers, so that a change of
  one is seen.
* Hooks of parameters fire on what stands for the parameters.
* A buffer that the forward pass binds to a new tensor (`self.count = self.count + 1`) is returned.
* Attributes that the forward pass sets are as before when it runs again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gnnplace.errors import CaptureError
from gnnplace.tracing.guards import OWN, Attributes
from gnnplace.tracing.step import StepModule


@dataclass(frozen=True)
class HeldAt:
    """Where a module holds a tensor.

    Attributes:
        name: The qualified name of the tensor.
        table: A module's `_parameters`, `_buffers` or `__dict__`.
        key: The key in the module's table.
        kind: "parameter", "buffer" or "attribute".
    """

    name: str
    table: Any
    key: str
    kind: str

    @property
    def tensor(self) -> Any:
        """What is there now; a tensor at first."""
        return self.table[self.key] if self.key in self.table else None  # noqa: SIM401 - no dict

    def put(self, tensor: Any) -> None:
        """Let it hold a tensor."""
        self.table[self.key] = tensor


class Whole(nn.Module):
    """Calls a step; returns its loss and the new values of `rebound` buffers.

    Args:
        step: The model and its loss; parameters and buffers have the same names here.

    Attributes:
        attributes: Plain attributes of the step's modules, and what a forward pass does to them.
        rebound: Names of the buffers that the last forward pass bound to new tensors.
        replaced: Names of the plain attributes that it bound to something else.
        own: What made gradients in ways of its own, in the passes until now.
    """

    step: StepModule

    def __init__(self, step: StepModule) -> None:
        super().__init__()
        self._modules = step._modules
        self.__dict__["step"] = step
        self.attributes = Attributes(step)
        self.rebound: tuple[str, ...] = ()
        self.own: list[str] = []
        self.replaced: tuple[str, ...] = ()
        self._places = list(_places(step))
        self._ties = list(_ties(self._places))
        self._hooks = [(p, p.tensor._backward_hooks) for p in self._places if p.kind == "parameter"]
        self._traced: list[Any] | None = None

    def named_parameters(self, *args: Any, **options: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter under its first name alone."""
        yield from self._first("parameter")

    def named_buffers(self, *args: Any, **options: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Every buffer, then every plain tensor attribute, under its first name alone."""
        yield from self._first("buffer")
        yield from self._first("attribute")

    def _first(self, kind: str) -> Iterator[tuple[str, Any]]:
        others = {id(place) for place, _ in self._ties}
        for place in self._places:
            if place.kind == kind and id(place) not in others:
                yield place.name, place.tensor

    def first_name(self, name: str) -> str:
        """The name under which a tensor is known that several modules hold."""
        return next((first.name for place, first in self._ties if place.name == name), name)

    def last_position(self, name: str) -> int:
        """Number of the last place that holds the parameter of this name; -1 of any other."""
        same = {name, *(place.name for place, first in self._ties if first.name == name)}
        held = [i for i, p in enumerate(self._places) if p.kind == "parameter" and p.name in same]
        return max(held, default=-1)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Return the loss, then the new value of each rebound buffer."""
        with self.attributes.restored(), self._tied():
            for place, hooks in self._hooks:
                for hook in (hooks or {}).values():
                    place.tensor.register_hook(hook)
            before = [place.tensor for place in self._places]
            try:
                loss = self.step(*tensors)
            finally:
                self._traced = [place.tensor for place in self._places]
                changed = self._taken_back(before)
        self.rebound = tuple(changed)
        return (loss, *(value.detach() for value in changed.values()))

    @contextmanager
    def in_backward(self) -> Iterator[None]:
        """The backward pass finds on the modules what the forward pass left there.

        Raises:
            CaptureError: it binds a buffer anew.
        """
        left, self._traced = self._traced, None  # a backward pass may begin others
        if left is None:
            yield
            return
        before = [place.tensor for place in self._places]
        for place, tensor in zip(self._places, left, strict=True):
            place.put(tensor)
        odd: list[HeldAt] = []
        try:
            yield
            pairs = zip(self._places, left, strict=True)
            odd = [place for place, tensor in pairs if place.tensor is not tensor]
        finally:
            for place, tensor in zip(self._places, before, strict=True):
                place.put(tensor)
        if odd:
            raise CaptureError(
                f"the backward pass binds {odd[0].name.removeprefix('model.')!r} anew, as "
                "checkpointing does where it computes again; change the buffer in place"
            )

    @contextmanager
    def _tied(self) -> Iterator[None]:
        """The other names of a shared tensor hold what its first name holds now."""
        held = [place.tensor for place, _ in self._ties]
        for place, first in self._ties:
            place.put(first.tensor)
        try:
            yield
        finally:
            for (place, _), tensor in zip(self._ties, held, strict=True):
                place.put(tensor)

    def _taken_back(self, before: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """New tensors of rebound buffers; the old ones are bound again.

        Raises:
            CaptureError: what is bound now has another shape or type, or is a parameter.
        """
        found: dict[str, torch.Tensor] = {}
        moved = [(p, t) for p, t in zip(self._places, before, strict=True) if p.tensor is not t]
        self.replaced = tuple(place.name for place, _ in moved if place.kind == "attribute")
        new_of = [place.tensor for place, _ in moved]
        for place, old in moved:
            place.put(old)
        for (place, old), new in zip(moved, new_of, strict=True):
            if place.kind != "attribute":
                _check_rebound(place, old, new)
                found[place.name] = new
        return found


def _check_rebound(place: HeldAt, old: torch.Tensor, new: Any) -> None:
    name = place.name.removeprefix("model.")
    if place.kind == "parameter":
        raise CaptureError(f"the model binds its parameter {name!r} anew; only its buffers may be")
    same = isinstance(new, torch.Tensor) and (new.shape, new.dtype) == (old.shape, old.dtype)
    if not same:
        raise CaptureError(
            f"the model binds its buffer {name!r} to something of another shape or type; what a "
            "captured step keeps has one shape"
        )


def _places(step: nn.Module) -> Iterator[HeldAt]:
    """Parameters, then buffers, then plain tensor attributes that need no gradient."""
    modules = list(step.named_modules())
    for kind, table_name in (("parameter", "_parameters"), ("buffer", "_buffers")):
        for prefix, module in modules:
            table = getattr(module, table_name)
            for key, tensor in table.items():
                if tensor is not None:
                    yield HeldAt(f"{prefix}.{key}" if prefix else key, table, key, kind)
    for prefix, module in modules:
        for key, value in module.__dict__.items():
            if key not in OWN and isinstance(value, torch.Tensor) and not value.requires_grad:
                yield HeldAt(
                    f"{prefix}.{key}" if prefix else key, module.__dict__, key, "attribute"
                )


def _ties(places: list[HeldAt]) -> Iterator[tuple[HeldAt, HeldAt]]:
    """Places that hold a tensor which an earlier place holds, with that one."""
    first: dict[int, HeldAt] = {}
    for place in places:
        known = first.setdefault(id(place.tensor), place)
        if known is not place:
            yield place, known
