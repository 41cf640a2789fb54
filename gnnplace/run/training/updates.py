"""Updates on the workers, with the loop's current hyper-parameters and gradients.

A captured update op has its hyper-parameters as constants in its arguments. Here they are moved
into shared memory, with a row for each group of parameters, and every update reads them when it
runs.

A pass runs in one of two ways: either every update runs where its gradient is computed (`AT_ONCE`),
or gradients are stored in shared memory and the updates are requested later. There are two sets of
such storage: while a parameter's `.grad` is in one, the next pass fills the other, so that
gradients can be accumulated, whatever the loop zeroes in between. If the loop keeps a gradient, it
gets its own memory before its set is filled again.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd.graph import Node
from torch.utils.weak import TensorWeakRef

from gnnplace.errors import InputError
from gnnplace.run.workers import WORD, make_shared_like, make_shared_words
from gnnplace.torch_names import FunctionContext, will_engine_execute_node
from gnnplace.tracing import UPDATE, Optimizer, Program, ProgramOp, mean_gradient

SETS = 2
AT_ONCE = -1
"""How a pass is run: its updates at once; else the number of the set that gradients go to."""
LEFT_OUT = -1
"""What an update takes: nothing, the parameter stays; else the number of a set."""
PARAMETER = "update."
"""An update op is called `update.` and its parameter; see `gnnplace.tracing.aten.builder`."""


@dataclass(frozen=True, eq=False)
class Store:
    """The place of one parameter's gradient.

    Attributes:
        sets: A tensor for each set, as the parameter is.
        words: The way of the pass, then what each update takes.
        position: The index of the parameter's word.
    """

    sets: tuple[torch.Tensor, ...]
    words: memoryview
    position: int

    def store_unless_at_once(self, gradients: list[torch.Tensor]) -> bool:
        """Store a gradient if the pass is run that way; return False if its update is due now."""
        set_number = self.words[0]
        if set_number == AT_ONCE:
            return False
        gradient = mean_gradient(gradients)
        self.sets[set_number].copy_(
            gradient.to_dense() if gradient.is_sparse else gradient
        )
        return True

    def get_gradient(self, device: torch.device) -> torch.Tensor | None:
        """Return the gradient to update with, on a device; None if the parameter stays as it is."""
        number = self.words[self.position]
        if number == LEFT_OUT:
            return None
        return self.sets[number].to(device)


class GradientStores:
    """The stores of all parameters that a step trains; made before the workers are forked.

    Args:
        like: Parameters by their names in the model.
    """

    def __init__(self, like: Mapping[str, torch.Tensor]) -> None:
        self._words = make_shared_words(1 + len(like))
        self._words[0] = AT_ONCE
        self._lent: dict[tuple[str, int], TensorWeakRef] = {}
        sets = [make_shared_like(like) for _ in range(SETS)]
        self.stores = {
            name: Store(tuple(tensors[name] for tensors in sets), self._words, 1 + k)
            for k, name in enumerate(like)
        }

    def update_at_once(self) -> None:
        """Have the next pass update every parameter where its gradient is made."""
        self._words[0] = AT_ONCE

    def fill(self, parameters: Mapping[str, torch.Tensor]) -> int:
        """Have the next pass fill a set that is no parameter's gradient; return its number."""
        used = [self._find_set(name, p.grad) for name, p in parameters.items()]
        free = min(range(SETS), key=used.count)
        for name, number in zip(parameters, used, strict=True):
            if number == free:  # rare: parts of both sets are in use
                parameters[name].grad = parameters[name].grad.clone()  # type: ignore[union-attr]
            self._release(name, free)
        self._words[0] = free
        return free

    def hand_over(
        self, parameters: Mapping[str, torch.Tensor], number: int, weight: float
    ) -> None:
        """Add the gradients of a set, times a weight, to the parameters', as `backward` does."""
        for name, parameter in parameters.items():
            gradient = self.stores[name].sets[number]
            if parameter.grad is not None:
                parameter.grad.add_(gradient, alpha=weight)
                continue
            if weight != 1:
                gradient.mul_(weight)
            parameter.grad = self._lend(name, number)

    def gradients(
        self, names: Iterable[str], number: int, weight: float
    ) -> list[torch.Tensor]:
        """Return copies of the gradients of a set, times a weight."""
        return [self.stores[name].sets[number] * weight for name in names]

    def take(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Have the next update take the parameters' gradients as they are now."""
        for name, parameter in parameters.items():
            store = self.stores[name]
            number = self._find_set(name, parameter.grad)
            if number is None and parameter.grad is not None:
                number = 0
                self._release(name, number)
                store.sets[0].copy_(parameter.grad)
                parameter.grad = self._lend(name, number)
            self._words[store.position] = LEFT_OUT if number is None else number

    def _lend(self, name: str, number: int) -> torch.Tensor:
        """Return a gradient in a set as the loop gets it."""
        lent = self.stores[name].sets[number].detach()
        self._lent[name, number] = TensorWeakRef(lent)
        return lent

    def _release(self, name: str, number: int) -> None:
        """Give a lent gradient that the loop still has memory of its own."""
        reference = self._lent.pop((name, number), None)
        if reference is not None:
            gradient = reference()
        else:
            gradient = None
        if gradient is not None:
            gradient.data = gradient.clone()

    def _find_set(self, name: str, gradient: torch.Tensor | None) -> int | None:
        sets: Iterable[torch.Tensor] = self.stores[name].sets
        places = {tensor.data_ptr(): number for number, tensor in enumerate(sets)}
        if gradient is None:
            return None
        return places.get(gradient.data_ptr())


@dataclass(frozen=True, eq=False)
class GradientHandover:
    """The gradients that the backward pass of one loss hands over to its parameters.

    Attributes:
        stores: Where the gradients are.
        parameters: What is trained, by name.
        number: The set that the pass of this loss filled.
        begin: Called first; raises if the gradients have been handed over or replaced.
    """

    stores: GradientStores
    parameters: Mapping[str, torch.Tensor]
    number: int
    begin: Callable[[], None]

    def hand_over(self, weight: float) -> None:
        """Add the gradients, times a weight, to the parameters', as `backward()` does."""
        self.begin()
        self.stores.hand_over(self.parameters, self.number, weight)

    def gradients(self, weight: float) -> list[torch.Tensor | None]:
        """Return the gradients, times a weight, as `torch.autograd.grad` does.

        Raises:
            InputError: A parameter has hooks, which would be called once more.
        """
        if hooked := self.parameters.keys() - self.without_hooks.keys():
            raise InputError(
                f"loss: parameter {min(hooked)!r} has hooks, which the step has run already; take "
                "its gradients by backward(), not by torch.autograd.grad"
            )
        self.begin()
        return [*self.stores.gradients(self.parameters, self.number, weight)]

    @property
    def without_hooks(self) -> dict[str, torch.Tensor]:
        """Return the parameters without hooks, by name."""
        return {n: p for n, p in self.parameters.items() if not p._backward_hooks}


def with_backward(loss: torch.Tensor, handover: GradientHandover) -> torch.Tensor:
    """Return a loss whose `backward()`, or `torch.autograd.grad` of it, hands gradients over.

    Args:
        loss: A scalar without a graph.
        handover: Gives the parameters their gradients.
    """
    anchor = torch.zeros((), requires_grad=True).clone()
    parameters = handover.without_hooks.values()
    return _HandOver.apply(anchor, loss, handover, *parameters)  # type: ignore


class _HandOverContext(FunctionContext):
    """The state that the loss keeps for its backward pass.

    Attributes:
        anchor: The node that runs only if gradients of parameters are accumulated; None where the
            loss is computed anew for a gradient of gradients, which is refused.
        handover: Gives the parameters their gradients.
        count: The number of parameters.
    """

    anchor: Node | None
    handover: GradientHandover
    count: int


class _HandOver(torch.autograd.Function):
    """The identity on a loss, whose backward pass hands stored gradients over."""

    @staticmethod
    def forward(
        ctx: _HandOverContext,
        anchor: torch.Tensor,
        loss: torch.Tensor,
        handover: GradientHandover,
        *parameters: torch.Tensor,
    ) -> torch.Tensor:
        ctx.anchor = anchor.grad_fn
        ctx.handover = handover
        ctx.count = len(parameters)
        return loss.clone()

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: _HandOverContext, *gradients: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise InputError(
                "loss: create_graph=True: the gradients of a compiled step have no graph; write "
                "what depends on them into the model or its loss"
            )
        weight = float(gradients[0])
        returned: Sequence[torch.Tensor | None] = [None] * ctx.count
        if ctx.anchor is not None and will_engine_execute_node(ctx.anchor):
            ctx.handover.hand_over(weight)
        else:  # single gradients are wanted, as by torch.autograd.grad
            returned = ctx.handover.gradients(weight)
        return None, None, None, *returned


class LiveConstants:
    """The constants of an optimizer, for every group of parameters, shared with forked workers.

    Args:
        method: The optimizer; its constants are numbers or tuples of numbers.
        num_groups: Groups of parameters; all begin with the optimizer's own constants.
    """

    def __init__(self, method: Optimizer, num_groups: int = 1) -> None:
        self._shape = []
        for constant in method.constants:
            self._shape.append(len(constant) if isinstance(constant, tuple) else 0)
        self._row = sum(max(size, 1) for size in self._shape)
        shared = mmap.mmap(-1, num_groups * self._row * WORD)
        self._words = memoryview(shared).cast("d")
        for group in range(num_groups):
            self.set(group, method.constants)

    def set(self, group: int, constants: Sequence[Any]) -> None:
        """Set the constants of a group, for the next step on.

        Raises:
            InputError: not the optimizer's number of constants.
        """
        flat = [
            float(x)
            for c in constants
            for x in (c if isinstance(c, tuple | list) else (c,))
        ]
        if len(flat) != self._row:
            raise InputError(
                f"optimizer: {len(flat)} constants for group {group}, not {self._row}"
            )
        for i, value in enumerate(flat):
            self._words[group * self._row + i] = value

    def get(self, group: int) -> tuple[Any, ...]:
        """Return the constants of a group, as the optimizer's update takes them."""
        position = group * self._row
        constants: list[float | tuple[float, ...]] = []
        for size in self._shape:
            count = max(size, 1)
            values = tuple(self._words[position : position + count])
            constants.append(values if size else values[0])
            position += count
        return tuple(constants)


@dataclass(frozen=True, eq=False)
class LiveUpdate:
    """An update op that looks up its constants, and whether it is due, when it runs.

    Attributes:
        update: The optimizer's update of one parameter.
        constants: The constants of all groups, in shared memory.
        group: The number of the parameter's group.
        store: Where the parameter's gradient lies.
    """

    update: Callable[..., None]
    constants: LiveConstants
    group: int
    store: Store

    def __call__(
        self,
        parameter: torch.Tensor,
        gradients: list[torch.Tensor],
        *state: torch.Tensor,
    ) -> None:
        """Update a parameter, or store its gradient if the pass is run that way.

        Args:
            parameter: The parameter, which is changed in place.
            gradients: Its gradients, one for each micro-batch.
            *state: Optimizer state; changed in place.
        """
        if not self.store.store_unless_at_once(gradients):
            self.update(parameter, gradients, *state, *self.constants.get(self.group))

    def update_with_stored(self, parameter: torch.Tensor, *state: torch.Tensor) -> None:
        """Update a parameter with the gradient that is stored, if it is to be updated."""
        gradient = self.store.get_gradient(parameter.device)
        if gradient is not None:
            self.update(parameter, [gradient], *state, *self.constants.get(self.group))


def with_live_constants(
    program: Program,
    method: Optimizer,
    constants: LiveConstants,
    group: Mapping[str, int],
    gradients: GradientStores,
) -> Program:
    """Return the program with updates that read `constants` and use `gradients`.

    Args:
        program: The program, captured with `method`.
        method: The optimizer of the program.
        constants: The constants of every group, in shared memory.
        group: Group of each parameter by its name; parameters without one are in group 0.
        gradients: Stores for the gradients of its parameters.
    """
    count = len(method.constants)

    def live(op: ProgramOp) -> ProgramOp:
        if op.phase != UPDATE or op.target is not method.update:
            return op
        name = op.name.removeprefix(PARAMETER)
        target = LiveUpdate(
            method.get_update(name),
            constants,
            group.get(name, 0),
            gradients.stores[name],
        )
        return replace(op, target=target, args=op.args[: len(op.args) - count])

    return replace(program, ops=tuple(live(op) for op in program.ops))


def find_updated_parameters(program: Program) -> dict[str, torch.Tensor]:
    """Return the initial parameters that a program updates, by their names in the model."""
    return {
        op.name.removeprefix(PARAMETER): program.initial[op.args[0].name]
        for op in program.ops
        if op.phase == UPDATE
    }


def with_state(program: Program, tensors: Mapping[str, torch.Tensor]) -> Program:
    """Return the program with new initial tensors for some of its inputs.

    Args:
        program: The program with its initial tensors.
        tensors: The new tensors by value name.

    Raises:
        InputError: no such input, or a tensor of another shape.
    """
    for name, tensor in tensors.items():
        entry = program.inputs.get(name)
        if entry is None or tuple(tensor.shape) != entry.info.shape:
            raise InputError(
                f"{program.name}: no input {name!r} of shape {tuple(tensor.shape)}; it belongs to "
                "another model"
            )
    return replace(program, initial={**program.initial, **tensors})
