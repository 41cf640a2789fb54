"""Connects the training loop's model and optimizer with the memory of the workers.

Parameters, buffers and optimizer state become views of the memory that the workers share, so that
reading them, evaluating the model and saving it work as in any loop. `optimizer.step()` runs the
updates on the workers. Tensors of GPU workers are on their devices; hooks update the host's copies
before they are read through the model or the optimizer.
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
from gnnplace.run.training.opaque_optimizer import OpaqueOptimizer
from gnnplace.run.training.placed_step import PlacedStep
from gnnplace.run.training.state_layout import STARTED
from gnnplace.run.training.torch_optimizers import STATE
from gnnplace.tracing import Optimizer

SMALL = 1024
"""Elements of a tensor of whole numbers that is compared at every step."""
States = Mapping[str, Mapping[str, torch.Tensor]]
"""State tensors in shared memory by parameter and label."""


class Removable(Protocol):
    """A hook that can be removed."""

    def remove(self) -> None:
        """Remove the hook."""


class Redirection:
    """Has `optimizer.step()` call `update`, from now until `undo`.

    Args:
        optimizer: Its schedulers may be made before or after.
        update: Called instead of its step, after the closure if there is one.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, update: Callable[[], None]
    ) -> None:
        self._optimizer = optimizer
        self._original_step = vars(optimizer).get("step")
        # Weak: a step that is dropped without being closed ends its workers.
        weak_update = WeakMethod(update)

        def step(
            optimizer: torch.optim.Optimizer, closure: Callable[[], float] | None = None
        ) -> float | None:
            update = weak_update()
            if update is None:
                return type(optimizer).step(optimizer, closure)
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            update()
            return loss

        # Schedulers look for this mark to see that the optimizer steps before they do.
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
        optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]

    def note_step(self) -> None:
        """Tell schedulers that there was a step."""
        self._optimizer._opt_called = True  # type: ignore[attr-defined]

    def undo(self) -> None:
        """Give the optimizer its step back; may be called again."""
        vars(self._optimizer).pop("step", None)
        if self._original_step is not None:
            self._optimizer.step = self._original_step  # type: ignore[method-assign]


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
        self._optimizer = optimizer
        self._method = method
        self._parameters = parameters
        self._states = states
        self._live = False

    def show(self) -> None:
        """Set `optimizer.state` to the current state; its tensors are the shared ones."""
        self._live = True
        for name, tensors in self._states.items():
            state = self._read_state(name, tensors)
            if state:
                self._optimizer.state[self._parameters[name]] = state
            only_tensors = all(
                isinstance(leaf, torch.Tensor) for leaf in state.values()
            )
            self._live &= bool(state) and only_tensors

    def keep_up(self) -> None:
        """Show the state after an update, unless `optimizer.state` has all shared tensors."""
        if not self._live:
            self.show()

    def read(self) -> None:
        """Take over what was loaded into the optimizer.

        Raises:
            MismatchError: it is the state of another kind of optimizer.
        """
        for name, tensors in self._states.items():
            loaded = self._optimizer.state.get(self._parameters[name], {})
            try:
                self._write_state(name, tensors, loaded)
            except (KeyError, ValueError, RuntimeError) as error:
                raise MismatchError(
                    f"optimizer: the state loaded for parameter {name!r} is not that of "
                    f"{type(self._optimizer).__name__} with these options ({error})"
                ) from None
        self.show()

    def _read_state(
        self, name: str, tensors: Mapping[str, torch.Tensor]
    ) -> dict[str, Any]:
        """Return a parameter's state as the optimizer has it; empty before its first step."""
        if not isinstance(self._method, OpaqueOptimizer):
            has_begun = "step" not in tensors or bool(tensors["step"].item())
            if has_begun:
                return {STATE[label]: t for label, t in tensors.items()}
            return {}
        if not tensors[STARTED].item():
            return {}
        return self._method.layouts[name].state(_without_started(tensors))

    def _write_state(
        self, name: str, tensors: Mapping[str, torch.Tensor], loaded: Mapping[str, Any]
    ) -> None:
        """Copy a parameter's loaded state into shared memory; an empty one begins anew."""
        if not isinstance(self._method, OpaqueOptimizer):
            for label, tensor in tensors.items():
                tensor.copy_(loaded[STATE[label]]) if loaded else tensor.zero_()
            return
        tensors[STARTED].fill_(bool(loaded))
        if loaded:
            self._method.layouts[name].keep(loaded, _without_started(tensors))


def _without_started(tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    return [tensor for label, tensor in tensors.items() if label != STARTED]


class Attachment:
    """The tie between a loop's model and optimizer and a placed step, until it is closed.

    Args:
        model: The loop's; its parameters and buffers become views of the shared memory.
        optimizer: The loop's, if it has one.
        method: The optimizer as it was captured.
        placed: The step that runs on the workers.
        loss: The loop's, if the model has none; if a module, its buffers become such views, too.

    Attributes:
        stale: The workers have run since the host's memory was brought up to date.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        method: Optimizer,
        placed: PlacedStep,
        loss: object = None,
    ) -> None:
        self._model = model
        self._placed = placed
        self.stale = False
        self._loss_buffers = _name_loss_buffers(loss)
        self._local: dict[str, Mapping[str, torch.Tensor]] = {
            "parameter": dict(model.named_parameters(remove_duplicate=False)),
            "buffer": self._loss_buffers
            | dict(model.named_buffers(remove_duplicate=False)),
        }
        self._other_types = self._tie()
        self._constants = self._find_constants()
        self._versions = self._read_versions()
        self._trained = {
            name: self._local["parameter"][name] for name in placed.program.gradients
        }
        self._state = None
        if optimizer is not None:
            self._state = OptimizerState(
                optimizer, method, self._trained, placed.states()
            )
        self._hooks = self._register_hooks(optimizer)

    def _pair_with_shared(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the model's tensors that the program reads, each with the shared one."""
        pairs = []
        for name, entry in self._placed.program.inputs.items():
            local = self._local.get(entry.kind, {}).get(entry.source)
            if local is not None:
                pairs.append((local, self._placed.tensors[name]))
        return pairs

    def _tie(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Make the model's tensors views of the shared ones; return the pairs of other types."""
        other_types = []
        for local, shared in self._pair_with_shared():
            if local.dtype == shared.dtype:
                local.data = shared
            else:
                other_types.append((local, shared))
        return other_types

    def _find_constants(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return tensors that the step reads and the model does not register, with the copies."""
        program = self._placed.program
        tensors = self._placed.tensors
        return [
            (program.initial[name], tensors[name])
            for name, entry in program.inputs.items()
            if entry.kind == "constant"
        ]

    def _read_versions(self) -> list[int]:
        """Return torch's counts of changes of the constants."""
        return [local._version for local, _ in self._constants]

    def follow(self) -> None:
        """Hand on numbers of constants that changed, such as class weights, or a discriminator.

        Torch counts no changes through `.data`, numpy or other workers. So numbers are compared,
        but for those of large masks and tables of indices.
        """
        versions = self._read_versions()
        changed = []
        for pair, version, last_version in zip(
            self._constants, versions, self._versions, strict=True
        ):
            local, shared = pair
            is_compared = local.is_floating_point() or local.numel() <= SMALL
            if version != last_version or (
                is_compared and not torch.equal(local, shared)
            ):
                changed.append(pair)
        self._versions = versions
        if self._has_replaced_loss_buffer():
            self.rebind()
        if changed:
            self.refresh()
            for local, shared in changed:
                shared.copy_(local.detach())
            self._placed.take()

    def _has_replaced_loss_buffer(self) -> bool:
        """Return whether a buffer of the loss has other memory than the shared one."""
        for name, entry in self._placed.program.inputs.items():
            if entry.kind == "buffer" and entry.source in self._loss_buffers:
                local = self._local["buffer"][entry.source]
                shared = self._placed.tensors[name]
                if (
                    local.dtype == shared.dtype
                    and local.data_ptr() != shared.data_ptr()
                ):
                    return True
        return False

    def follows(self, tensor: torch.Tensor) -> bool:
        """Return whether numbers of a tensor that is not the model's are handed on."""
        for number, (local, shared) in enumerate(self._constants):
            if local.data_ptr() == tensor.data_ptr() and local.shape == tensor.shape:
                # The tensor may have other memory later.
                self._constants[number] = (tensor, shared)
                return True
        return any(buffer is tensor for buffer in self._loss_buffers.values())

    def trained(self) -> dict[str, torch.Tensor]:
        """Return the loop's parameters that are updated, by their names in the model.

        Raises:
            UnsupportedError: workers train them in another type.
        """
        if self._other_types:
            local, shared = self._other_types[0]
            raise UnsupportedError(
                f"compile: workers train in {shared.dtype}, the model's parameters are "
                f"{local.dtype}, so that they cannot have gradients; call step(batch) instead"
            )
        return self._trained

    def note_step(self) -> None:
        """Note an update: the host's memory is stale, and the optimizer's state is shown."""
        self.stale = True
        if self._state is not None:
            self._state.keep_up()

    def refresh(self) -> None:
        """Bring the model of the loop up to date."""
        if self.stale:
            self.stale = False
            self._placed.publish()
            for local, shared in self._other_types:
                local.detach().copy_(shared)

    def take(self) -> None:
        """Have the workers go on from what the loop's model has now."""
        for local, shared in self._other_types:
            shared.copy_(local.detach())
        self._placed.take()

    def rebind(self) -> None:
        """Take over numbers of tensors that have other memory now, and tie them again."""
        self.refresh()
        for local, shared in self._pair_with_shared():
            if local.dtype == shared.dtype and local.data_ptr() != shared.data_ptr():
                shared.copy_(local.detach())
                local.data = shared
        self.take()

    def show(self) -> None:
        """Bring model and optimizer up to date."""
        self.refresh()
        if self._state is not None:
            self._state.show()

    def read(self) -> None:
        """Have the workers go on from what was loaded into the optimizer."""
        self.refresh()
        if self._state is not None:
            self._state.read()
        self.take()

    def close(self) -> None:
        """Remove the hooks; model and optimizer have their last numbers. May be called again."""
        for hook in self._hooks:
            hook.remove()
        if self._hooks and self._placed.running:
            self.refresh()
        if self._hooks and self._state is not None:
            self._state.show()
        self._hooks = []

    def _register_hooks(
        self, optimizer: torch.optim.Optimizer | None
    ) -> list[Removable]:
        """Register hooks that refresh what is about to be read, and take over what was loaded."""
        model = self._model
        hooks: list[Removable] = [
            model.register_forward_pre_hook(WeakHook(self.refresh)),
            model.register_state_dict_pre_hook(WeakHook(self.refresh)),
            model.register_load_state_dict_post_hook(WeakHook(self.take)),
        ]
        if optimizer is not None:
            hooks.append(optimizer.register_state_dict_pre_hook(WeakHook(self.show)))
            hooks.append(
                optimizer.register_load_state_dict_post_hook(WeakHook(self.read))
            )
        return hooks


def _name_loss_buffers(loss: object) -> dict[str, torch.Tensor]:
    """Return the buffers of a loss, if it is a module, by their names in a step."""
    named = (
        loss.named_buffers(remove_duplicate=False)
        if isinstance(loss, nn.Module)
        else ()
    )
    return {f"loss.{name}": buffer for name, buffer in named}


class WeakHook:
    """A hook that calls a method as long as its object is there; it does not keep it.

    A model that is saved or copied whole has a hook in its place that does nothing.

    Args:
        method: Called without arguments.
    """

    def __init__(self, method: Callable[[], None]) -> None:
        self._method = WeakMethod(method)

    def __call__(self, *args: object) -> None:
        """Call the method, if its object is there."""
        method = self._method()
        if method is not None:
            method()

    def __reduce__(self) -> tuple[Any, ...]:
        """Bring the tensors up to date that are saved with this; return a hook without effect."""
        self()
        return getattr, (nullcontext(), "__exit__")
