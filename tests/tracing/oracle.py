"""Eager PyTorch: what a captured program must compute."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gnnplace.tracing.step import StepModule


@dataclass
class Eager:
    loss: torch.Tensor
    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]


def eager(
    model: nn.Module,
    inputs: Any,
    loss: Any = None,
    *,
    steps: int = 1,
    optimizer: str = "sgd",
    micro: list[Any] | None = None,
) -> Eager:
    """Train a copy of the model by hand; `micro`: inputs of each step of accumulation."""
    model = copy.deepcopy(model)
    factory = {"sgd": lambda p: torch.optim.SGD(p, lr=0.01), "adamw": torch.optim.AdamW}
    method = factory[optimizer](model.parameters())
    for _ in range(steps):
        method.zero_grad()
        total = torch.zeros(())
        parts = micro or [inputs]
        for part in parts:
            step = StepModule(model, loss, part)
            value = step(*(t.clone() for t in step.inputs())) / len(parts)
            value.backward()
            total = total + value.detach() if micro else value.detach()
        method.step()
    return Eager(
        total,
        {n: p.grad for n, p in model.named_parameters() if p.grad is not None},
        {n: p.detach() for n, p in model.named_parameters()},
        dict(model.named_buffers()),
    )
