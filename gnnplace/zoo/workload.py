"""`Workload`: a model with example inputs and the loss that it is trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Loss = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Workload:
    """What there is to capture.

    Attributes:
        name: The name of the workload.
        model: In the mode (train or eval) that is to be captured.
        inputs: Positional inputs, or a mapping of keyword inputs. Tensors have the batch first.
        loss: Called with the model's output, and with the last inputs if it asks for more than
            one argument (targets). `None`: the output's `.loss`, else the sum of the outputs.
    """

    name: str
    model: nn.Module
    inputs: tuple[Any, ...] | Mapping[str, Any]
    loss: Loss | None = None


def generator(seed: int) -> torch.Generator:
    """Random numbers of their own for example inputs."""
    return torch.Generator().manual_seed(seed)


def classified_images(name: str, model: nn.Module, batch: int, size: int, classes: int) -> Workload:
    """A model of [batch, 3, size, size] images with a classification loss."""
    random = generator(0)
    x = torch.randn(batch, 3, size, size, generator=random)
    y = torch.randint(classes, (batch,), generator=random)
    return Workload(name, model, (x, y), functional.cross_entropy)
