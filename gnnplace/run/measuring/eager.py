"""Eager PyTorch's step time, to stand beside a placed one: on one core, and on all of them."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from gnnplace.errors import InputError
from gnnplace.processes import torch_threads
from gnnplace.tracing import Inputs, Optimizer, StepModule
from gnnplace.tracing import make_optimizer as find_optimizer

Progress = Callable[[str], None]
WARMUP = 2  # steps before those that are timed


def eager_step_time(
    model: nn.Module,
    inputs: Inputs,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    optimizer: str | Optimizer = "sgd",
    threads: int = 1,
    steps: int = 5,
    progress: Progress | None = None,
) -> float:
    """Return the median wall-clock seconds of an eager PyTorch training step on the CPU.

    Args:
        model: A copy of it is trained.
        inputs: An example batch, as `capture` takes it.
        loss: The loss, as `capture` takes it.
        optimizer: The optimizer, as `capture` takes it.
        threads: Threads that every op may use.
        steps: Steps that are timed.
        progress: Called with a line before every step.

    Raises:
        InputError: threads or steps below one.
    """
    if threads < 1 or steps < 1:
        raise InputError(
            f"threads={threads}, steps={steps}: at least one of each is needed"
        )
    module = StepModule(copy.deepcopy(model), loss, inputs)
    update = torch_optimizer(find_optimizer(optimizer), module)
    with torch_threads(threads):
        times = []
        for k in range(WARMUP + steps):
            if progress is not None:
                if threads == 1:
                    cores = "1 core"
                else:
                    cores = f"{threads} cores"
                progress(
                    f"timing eager PyTorch on {cores}: step {k + 1} of {WARMUP + steps}"
                )
            times.append(_step(module, update))
    return median(times[WARMUP:])


def torch_optimizer(method: Optimizer, module: nn.Module) -> torch.optim.Optimizer:
    """Make the optimizer of `torch.optim` whose updates `method` captures."""
    parameters = list(module.parameters())
    if method.name in ("adam", "adamw"):
        kind = torch.optim.AdamW if method.name == "adamw" else torch.optim.Adam
        lr, betas, eps, weight_decay = method.constants
        return kind(parameters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
    lr, *momentum, weight_decay = method.constants
    return torch.optim.SGD(
        parameters, lr=lr, momentum=sum(momentum), weight_decay=weight_decay
    )


def _step(module: StepModule, update: torch.optim.Optimizer) -> float:
    start = time.perf_counter()
    update.zero_grad(set_to_none=True)
    module(*module.inputs()).backward()
    update.step()
    return time.perf_counter() - start
