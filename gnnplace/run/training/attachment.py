"""The loop's own model and optimizer, tied to the memory of the workers.

Parameters, buffers and optimizer state become views of the memory that the workers share, so that
looking at them, evaluating the model and saving it work as in any loop. `optimizer.step()` runs the
updates on the workers. Tensors of GPU workers lie on their devices: hooks bring those of the host
up to date before they are read through the model or the optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import MethodType
from typing import Any, Protocol
from weakref import WeakMethod

import torch
from torch import nn

from gnnplace.errors import MismatchError, UnsupportedError
from gnnplace.run.training.placed_step import PlacedStep
from gnnplace.run.training.state_layout import STARTED
from gnnplace.run.training.torch_optimizers import STATE
from gnnplace.run.training.user_step import OwnStep
from gnnplace.tracing import Optimizer

SMALL = 1024
"""Elements of a tensor of whole numbers that is compared at every step."""
States = Mapping[str, Mapping[str, torch.Tensor]]
"""State tensors in shared memory by parameter and label."""


class Removable(Protocol):
    """A hook that can be taken away."""

    def remove(self) -> None:
        """Takes it away."""


class Redirection:
    """`optimizer.step()` calls `update`, from now until `undo`.

    Args:
        optimizer: Its schedulers may be made before or after.
        update: Called instead of its step, after the closure if there is one.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, update: Callable[[], None]) -> None:
        self._optimizer, self._own = optimizer, vars(optimizer).get("step")
        known = WeakMethod(update)  # who drops the step without closing it ends its workers

        def step(optimizer: torch.optim.Optimizer, closure: Any = None) -> Any:
            update = known()
            if update is None:
                return type(optimizer).step(optimizer, closure)
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            update()
            return loss

        # What schedulers look for to see that steps come before theirs.
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]

    def stepped(self) -> None:
        """Tells schedulers that there was a step."""
        self._optimizer._opt_called = True  # type: ignore[attr-defined]

    def undo(self) -> None:
        """Gives the optimizer its step back; may be called again."""
        vars(self._optimizer).pop("step", None)
        if self._own is not None:
            self._optimizer.step = self._own  # type: ignore[method-assign]


class OptimizerState:
    """The state of an optimizer, in shared memory and as the optimizer has it.

    Args:
        optimizer: The optimizer of the loop.
        method: The optimizer as it was captured.
        parameters: The loop's, by their names in the model.
        states: The state tensors in shared memory.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        method: Optimizer,
        parameters: Mapping[str, torch.Tensor],
        states: States,
    ) -> None:
        self._optimizer, self._method = optimizer, method
        self._parameters, self._states = parameters, states
        self._live = False

    def show(self) -> None:
        """Makes `optimizer.state` what it is now; its tensors are the shared ones."""
        self._live = True
        for name, tensors in self._states.items():
            found = self._found(name, tensors)
            if found:
                self._optimizer.state[self._parameters[name]] = found
            only_tensors = all(isinstance(leaf, torch.Tensor) for leaf in found.values())
            self._live &= bool(found) and only_tensors

    def keep_up(self) -> None:
        """After an update: shows what is not a shared tensor in `optimizer.state` already."""
        if not self._live:
            self.show()

    def read(self) -> None:
        """Takes over what was loaded into the optimizer.

        Raises:
            MismatchError: it is the state of another kind of optimizer.
        """
        for name, tensors in self._states.items():
            loaded = self._optimizer.state.get(self._parameters[name], {})
            try:
                self._keep(name, tensors, loaded)
            except (KeyError, ValueError, RuntimeError) as error:
                raise MismatchError(
                    f"optimizer: the state loaded for parameter {name!r} is not that of "
                    f"{type(self._optimizer).__name__} with these options ({error})"
                ) from None
        self.show()

    def _found(self, name: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        if not isinstance(self._method, OwnStep):
            begun = "step" not in tensors or bool(tensors["step"].item())
            return {STATE[label]: t for label, t in tensors.items()} if begun else {}
        rest = [tensor for label, tensor in tensors.items() if label != STARTED]
        begun = bool(tensors[STARTED].item())
        return self._method.layouts[name].state(rest) if begun else {}

    def _keep(
        self, name: str, tensors: Mapping[str, torch.Tensor], loaded: Mapping[str, Any]
    ) -> None:
        if not isinstance(self._method, OwnStep):
            for label, tensor in tensors.items():
                tensor.copy_(loaded[STATE[label]]) if loaded else tensor.zero_()
            return
        tensors[STARTED].fill_(bool(loaded))
        if loaded:
            rest = [tensor for label, tensor in tensors.items() if label != STARTED]
            self._method.layouts[name].keep(loaded, rest)


class Attachment:
    """The tie between a loop's model and optimizer and a placed step, until it is closed.

    Args:
        model: The loop's; its parameters and buffers become views of the shared memory.
        optimizer: The loop's, if it has one.
        method: The optimizer as it was captured.
        placed: The step that runs on the workers.
        loss: The loop's, if the model has none; its buffers become such views, too.

    Attributes:
        stale: The workers have run since the host's memory was brought up to date.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        method: Optimizer,
        placed: PlacedStep,
        loss: Any = None,
    ) -> None:
        self._model, self._placed, self.stale = model, placed, False
        self._loss = _buffers(loss)
        self._known: dict[str, Mapping[str, torch.Tensor]] = {
            "parameter": dict(model.named_parameters(remove_duplicate=False)),
            "buffer": self._loss | dict(model.named_buffers(remove_duplicate=False)),
        }
        self._apart, self._constants = self._bound(), self._read()
        self._versions = [own._version for own, _ in self._constants]
        self._trained = {name: self._known["parameter"][name] for name in placed.program.gradients}
        self._state = None
        if optimizer is not None:
            self._state = OptimizerState(optimizer, method, self._trained, placed.states())
        self._hooks = self._hooked(optimizer)

    def _bound(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Ties what can be tied; tensors of the model that are of another type, and theirs."""
        apart = []
        for name, entry in self._placed.program.inputs.items():
            own = self._known.get(entry.kind, {}).get(entry.source)
            shared = self._placed.tensors[name]
            if own is not None and own.dtype == shared.dtype:
                own.data = shared
            elif own is not None:
                apart.append((own, shared))
        return apart

    def _read(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Tensors that the step reads and the model does not register, and the workers' copies."""
        program, tensors = self._placed.program, self._placed.tensors
        return [
            (program.initial[name], tensors[name])
            for name, entry in program.inputs.items()
            if entry.kind == "constant"
        ]

    def follow(self) -> None:
        """Hands on numbers of such tensors that changed, such as class weights, or a discriminator.

        Torch counts no changes through `.data`, numpy or other workers: numbers are compared, but
        for those of large masks and tables of indices.
        """
        now = [own._version for own, _ in self._constants]
        pairs = zip(self._constants, self._versions, now, strict=True)
        odd = [
            (own, shared)
            for (own, shared), before, after in pairs
            if before != after
            or ((own.is_floating_point() or own.numel() <= SMALL) and not torch.equal(own, shared))
        ]
        self._versions = now
        program, tensors, known = self._placed.program, self._placed.tensors, self._known["buffer"]
        tied = ((known[x.source], tensors[name]) for name, x in program.inputs.items()
                if x.kind == "buffer" and x.source in self._loss)  # fmt: skip
        if any(own.dtype == t.dtype and own.data_ptr() != t.data_ptr() for own, t in tied):
            self.rebind()
        if odd:
            self.refresh()
            for own, shared in odd:
                shared.copy_(own.detach())
            self._placed.take()

    def follows(self, tensor: torch.Tensor) -> bool:
        """Whether numbers of a tensor that is not the model's are handed on."""
        for number, (own, shared) in enumerate(self._constants):
            if own.data_ptr() == tensor.data_ptr() and own.shape == tensor.shape:
                self._constants[number] = tensor, shared  # which may have other memory later
                return True
        return any(own is tensor for own in self._loss.values())

    def trained(self) -> dict[str, torch.Tensor]:
        """The loop's parameters that are updated, by their names in the model.

        Raises:
            UnsupportedError: workers train them in another type.
        """
        if self._apart:
            own, shared = self._apart[0]
            raise UnsupportedError(
                f"compile: workers train in {shared.dtype}, the model's parameters are "
                f"{own.dtype}, so that they cannot have gradients; call step(batch) instead"
            )
        return self._trained

    def stepped(self) -> None:
        """After an update."""
        self.stale = True
        if self._state is not None:
            self._state.keep_up()

    def refresh(self) -> None:
        """Brings the model of the loop up to date."""
        if self.stale:
            self.stale = False
            self._placed.publish()
            for own, shared in self._apart:
                own.detach().copy_(shared)

    def take(self) -> None:
        """Lets the workers go on from what the loop's model has now."""
        for own, shared in self._apart:
            shared.copy_(own.detach())
        self._placed.take()

    def rebind(self) -> None:
        """Takes over numbers that stand in other memory now, and ties their tensors again."""
        self.refresh()
        for name, entry in self._placed.program.inputs.items():
            own = self._known.get(entry.kind, {}).get(entry.source)
            shared = self._placed.tensors[name]
            tied = own is not None and own.dtype == shared.dtype
            if own is not None and tied and own.data_ptr() != shared.data_ptr():
                shared.copy_(own.detach())
                own.data = shared
        self.take()

    def show(self) -> None:
        """Brings model and optimizer up to date."""
        self.refresh()
        if self._state is not None:
            self._state.show()

    def read(self) -> None:
        """Lets the workers go on from what was loaded into the optimizer."""
        self.refresh()
        if self._state is not None:
            self._state.read()
        self.take()

    def close(self) -> None:
        """Takes hooks away; model and optimizer have what they had last. May be called again."""
        for hook in self._hooks:
            hook.remove()
        if self._hooks and self._placed.running:
            self.refresh()
        if self._hooks and self._state is not None:
            self._state.show()
        self._hooks = []

    def _hooked(self, optimizer: torch.optim.Optimizer | None) -> list[Removable]:
        """Hooks that refresh what is about to be read, and take over what was loaded."""
        model = self._model
        made: list[Removable] = [
            model.register_forward_pre_hook(WeakHook(self.refresh)),
            model.register_state_dict_pre_hook(WeakHook(self.refresh)),
            model.register_load_state_dict_post_hook(WeakHook(self.take)),
        ]
        if optimizer is not None:
            made.append(optimizer.register_state_dict_pre_hook(WeakHook(self.show)))
            made.append(optimizer.register_load_state_dict_post_hook(WeakHook(self.read)))
        return made


def _buffers(loss: Any) -> dict[str, torch.Tensor]:
    """Buffers of a loss by their names in a step."""
    named = loss.named_buffers(remove_duplicate=False) if isinstance(loss, nn.Module) else ()
    return {f"loss.{name}": buffer for name, buffer in named}


class WeakHook:
    """A hook that calls a method as long as its object is there; it does not keep it.

    A model that is saved or copied whole has a hook in its place that does nothing.

    Args:
        method: Called without arguments.
    """

    def __init__(self, method: Callable[[], None]) -> None:
        self._method = WeakMethod(method)

    def __call__(self, *args: Any) -> None:
        """Call the method, if its object is there."""
        method = self._method()
        if method is not None:
            method()

    def __reduce__(self) -> tuple[Any, ...]:
        """Bring the tensors up to date that are saved with this; return a hook without effect."""
        self()
        return getattr, (nullcontext(), "__exit__")
