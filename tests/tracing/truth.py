"""A user's own training loop in eager PyTorch beside the captured steps: where do they differ?

Random ops of eager mode are given the seeds that the program's draw from, op by op in the order in
which they run, so that models with dropout can be compared to the last bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from gnnplace.tracing.models import capture
from gnnplace.tracing.program.operations import op_seed, seeded
from gnnplace.tracing.program.optimizers import sgd
from gnnplace.tracing.program.program import Program
from gnnplace.tracing.signatures import is_random
from gnnplace.tracing.step import StepModule
from tests.tracing.straight_run import run_program

Build = Callable[[], Any]
"""Makes a model, or (model, inputs), or (model, inputs, loss), the same at every call."""


def batch() -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


@dataclass
class Case:
    model: nn.Module
    inputs: Any
    loss: Any = None


def made(build: Build) -> Case:
    torch.manual_seed(0)
    result = build()
    if isinstance(result, nn.Module):
        return Case(result, (batch(),))
    return Case(*result)


class Reseeded(TorchDispatchMode):
    """Seeds every random op as the program's op at the same position is seeded."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.names = [op.args[0] for op in program.ops if op.target is seeded]
        self.step = self.position = self.drawn = 0

    def begin(self, step: int) -> None:
        self.step, self.position = step, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if is_random(func, args, kwargs or {}) and self.position < len(self.names):
            torch.manual_seed(op_seed(self.names[self.position], self.step))
            self.position += 1
        return func(*args, **(kwargs or {}))


@dataclass
class Trained:
    losses: list[torch.Tensor]
    step: StepModule

    def gradients(self) -> dict[str, torch.Tensor]:
        named = self.step.named_parameters()
        return {_name(n): p.grad for n, p in named if p.grad is not None}

    def state(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, parameter in self.step.named_parameters():
            yield f"parameter.{_name(name)}", parameter.detach()
        for name, buffer in self.step.named_buffers():
            yield f"buffer.{_name(name)}", buffer


def trained(
    case: Case,
    program: Program,
    steps: int,
    around: Callable[[], AbstractContextManager[Any]],
) -> Trained:
    """A loop as users write it: zero_grad, forward, backward, step."""
    step, random = StepModule(case.model, case.loss, case.inputs), Reseeded(program)
    optimizer = torch.optim.SGD(step.parameters(), lr=0.05)
    losses = []
    for number in range(steps):
        optimizer.zero_grad()
        random.begin(number)
        with random:
            with around():
                value = step(
                    *(t if t.requires_grad else t.clone() for t in step.inputs())
                )
            value.backward()
        losses.append(value.detach().clone())
        optimizer.step()
    return Trained(losses, step)


def differences(
    build: Build,
    *,
    steps: int = 3,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    rounded: bool = False,
) -> list[str]:
    """Everything in which `steps` captured steps differ from the user's own; empty if nothing.

    Losses of all steps, gradients of the last, parameters and buffers after it, bit by bit unless
    `rounded`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = made(build)
        with around():
            program = capture(
                case.model, case.inputs, loss=case.loss, optimizer=sgd(0.05)
            )
        truth = trained(made(build), program, steps, around)
    found, result = [], None
    for number in range(steps):
        result = run_program(program, number, None if result is None else result.state)
        loss = result.loss.reshape(truth.losses[number].shape)
        found += _unequal(f"loss of step {number}", loss, truth.losses[number], rounded)
    assert result is not None
    gradients = truth.gradients()
    found += [
        f"gradient of {n}: in one alone"
        for n in gradients.keys() ^ result.gradients.keys()
    ]
    for name in gradients.keys() & result.gradients.keys():
        found += _unequal(
            f"gradient of {name}", result.gradients[name], gradients[name], rounded
        )
    first = dict(Trained([], StepModule(case.model, case.loss, case.inputs)).state())
    for name, tensor in truth.state():
        # What no op reads or writes is not part of a program: it must not have changed.
        ours = result.state.get(name, first[name])
        found += _unequal(name, ours, tensor, rounded)
    return found


def _unequal(
    what: str, ours: torch.Tensor, theirs: torch.Tensor, rounded: bool
) -> list[str]:
    ours, theirs = (t.to_dense() if t.is_sparse else t for t in (ours, theirs))
    same = ours.shape == theirs.shape and ours.dtype == theirs.dtype
    if same and rounded:
        same = torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    elif same:
        same = torch.equal(ours, theirs)
    return (
        [] if same else [f"{what}: {ours.flatten()[:3]} is not {theirs.flatten()[:3]}"]
    )


def _name(qualified: str) -> str:
    return qualified.removeprefix("model.")
