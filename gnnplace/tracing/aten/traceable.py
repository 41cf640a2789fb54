"""`TraceableStep`: a step in the form that torch traces, with state that functionalization misses.

* A tensor that several modules hold is one input, so that autograd sums its gradient as in eager
  mode.
* Plain tensors in attributes of modules are inputs like buffers, so that changes of them are seen.
* Hooks of parameters run on the tensors that replace the parameters.
* A buffer that the forward pass binds to a new tensor (`self.count = self.count + 1`) is returned.
* Attributes that the forward pass sets are restored before it runs again.
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
class TensorPlace:
    """A place where a module holds a tensor.

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
        """Return what is there now; a tensor at first."""
        return self.table[self.key] if self.key in self.table else None  # noqa: SIM401 - no dict

    def put(self, tensor: object) -> None:
        """Put a tensor there."""
        self.table[self.key] = tensor


class TraceableStep(nn.Module):
    """A step as torch traces it: returns the loss and the new values of `rebound` buffers.

    Args:
        step: The model and its loss; parameters and buffers have the same names here.

    Attributes:
        attributes: Plain attributes of the step's modules, and what a forward pass does to them.
        rebound: Names of the buffers that the last forward pass bound to new tensors.
        replaced: Names of the plain attributes that it bound to something else.
        custom_gradients: Hooks and functions that made gradients in the passes until now.
    """

    step: StepModule

    def __init__(self, step: StepModule) -> None:
        super().__init__()
        self._modules = step._modules
        self.__dict__["step"] = step
        self.attributes = Attributes(step)
        self.rebound: tuple[str, ...] = ()
        self.custom_gradients: list[str] = []
        self.replaced: tuple[str, ...] = ()
        self._places = list(_places(step))
        self._ties = list(_ties(self._places))
        self._hooks = [
            (p, p.tensor._backward_hooks) for p in self._places if p.kind == "parameter"
        ]
        self._traced: list[Any] | None = None

    def named_parameters(
        self, *args: object, **options: object
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield every parameter under its first name alone."""
        yield from self._first("parameter")

    def named_buffers(
        self, *args: object, **options: object
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every buffer, then every plain tensor attribute, under its first name alone."""
        yield from self._first("buffer")
        yield from self._first("attribute")

    def _first(self, kind: str) -> Iterator[tuple[str, Any]]:
        """Yield names and tensors of a kind of place, each tensor once."""
        later_places = {id(place) for place, _ in self._ties}
        for place in self._places:
            if place.kind == kind and id(place) not in later_places:
                yield place.name, place.tensor

    def first_name(self, name: str) -> str:
        """Return the name under which a tensor is known that several modules hold."""
        return next(
            (first.name for place, first in self._ties if place.name == name), name
        )

    def last_position(self, name: str) -> int:
        """Return the index of the last place of the parameter of this name; -1 of any other."""
        names = {
            name,
            *(place.name for place, first in self._ties if first.name == name),
        }
        positions = [
            i
            for i, place in enumerate(self._places)
            if place.kind == "parameter" and place.name in names
        ]
        return max(positions, default=-1)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the loss, then the new value of each rebound buffer."""
        with self.attributes.restored(), self._tied():
            for place, hooks in self._hooks:
                for hook in (hooks or {}).values():
                    place.tensor.register_hook(hook)
            tensors_before = [place.tensor for place in self._places]
            try:
                loss = self.step(*tensors)
            finally:
                self._traced = [place.tensor for place in self._places]
                changed = self._take_back(tensors_before)
        self.rebound = tuple(changed)
        return (loss, *(value.detach() for value in changed.values()))

    @contextmanager
    def in_backward(self) -> Iterator[None]:
        """Let the backward pass find on the modules what the forward pass left there.

        Raises:
            CaptureError: it binds a buffer anew.
        """
        # A backward pass may begin others.
        forward_tensors, self._traced = (self._traced, None)
        if forward_tensors is None:
            yield
            return
        tensors_before = [place.tensor for place in self._places]
        for place, tensor in zip(self._places, forward_tensors, strict=True):
            place.put(tensor)
        rebound: list[TensorPlace] = []
        try:
            yield
            pairs = zip(self._places, forward_tensors, strict=True)
            rebound = [place for place, tensor in pairs if place.tensor is not tensor]
        finally:
            for place, tensor in zip(self._places, tensors_before, strict=True):
                place.put(tensor)
        if rebound:
            raise CaptureError(
                f"the backward pass binds {rebound[0].name.removeprefix('model.')!r} anew, as "
                "checkpointing does where it computes again; change the buffer in place"
            )

    @contextmanager
    def _tied(self) -> Iterator[None]:
        """Let the later names of a shared tensor hold what its first name holds now."""
        tensors = [place.tensor for place, _ in self._ties]
        for place, first in self._ties:
            place.put(first.tensor)
        try:
            yield
        finally:
            for (place, _), tensor in zip(self._ties, tensors, strict=True):
                place.put(tensor)

    def _take_back(self, tensors_before: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return new tensors of rebound buffers; the old ones are bound again.

        Raises:
            CaptureError: what is bound now has another shape or type, or is a parameter.
        """
        new_buffers: dict[str, torch.Tensor] = {}
        rebound = [
            (place, tensor)
            for place, tensor in zip(self._places, tensors_before, strict=True)
            if place.tensor is not tensor
        ]
        self.replaced = tuple(
            place.name for place, _ in rebound if place.kind == "attribute"
        )
        new_tensors = [place.tensor for place, _ in rebound]
        for place, old in rebound:
            place.put(old)
        for (place, old), new in zip(rebound, new_tensors, strict=True):
            if place.kind != "attribute":
                _check_rebound(place, old, new)
                new_buffers[place.name] = new
        return new_buffers


def _check_rebound(place: TensorPlace, old: torch.Tensor, new: object) -> None:
    """Refuse a parameter that is bound anew, and a buffer to another shape or type."""
    name = place.name.removeprefix("model.")
    if place.kind == "parameter":
        raise CaptureError(
            f"the model binds its parameter {name!r} anew; only its buffers may be"
        )
    fits = isinstance(new, torch.Tensor) and (new.shape, new.dtype) == (
        old.shape,
        old.dtype,
    )
    if not fits:
        raise CaptureError(
            f"the model binds its buffer {name!r} to something of another shape or type; what a "
            "captured step keeps has one shape"
        )


def _places(step: nn.Module) -> Iterator[TensorPlace]:
    """Yield parameters, then buffers, then plain tensor attributes that need no gradient."""
    modules = list(step.named_modules())
    for kind, table_name in (("parameter", "_parameters"), ("buffer", "_buffers")):
        for prefix, module in modules:
            table = getattr(module, table_name)
            for key, tensor in table.items():
                if tensor is not None:
                    yield TensorPlace(
                        f"{prefix}.{key}" if prefix else key, table, key, kind
                    )
    for prefix, module in modules:
        for key, value in module.__dict__.items():
            if (
                key not in OWN
                and isinstance(value, torch.Tensor)
                and not value.requires_grad
            ):
                yield TensorPlace(
                    f"{prefix}.{key}" if prefix else key,
                    module.__dict__,
                    key,
                    "attribute",
                )


def _ties(places: list[TensorPlace]) -> Iterator[tuple[TensorPlace, TensorPlace]]:
    """Yield places that hold a tensor which an earlier place holds, with that one."""
    first_places: dict[int, TensorPlace] = {}
    for place in places:
        first_place = first_places.setdefault(id(place.tensor), place)
        if first_place is not place:
            yield place, first_place
