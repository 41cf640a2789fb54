"""`Workload`: a model with example inputs and the loss that it is trained on.

Workloads by name, each imported when it is built.

Models that suites and recipes alone name stand in `gnnplace.bench.models`.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gnnplace.errors import InputError

Loss = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Workload:
    """A model, an example batch and a loss, ready for capture.

    Attributes:
        name: The name of the workload.
        model: The model in the mode (train or eval) that is to be captured.
        inputs: Positional inputs, or a mapping of keyword inputs. Tensors have the batch first.
        loss: Called with the model's output, and with the last inputs if it asks for more than
            one argument (targets). `None`: the output's `.loss`, else the sum of the outputs.
    """

    name: str
    model: nn.Module
    inputs: tuple[Any, ...] | Mapping[str, Any]
    loss: Loss | None = None


def generator(seed: int) -> torch.Generator:
    """Return a generator of random numbers for example inputs."""
    return torch.Generator().manual_seed(seed)


def make_image_classifier(
    name: str, model: nn.Module, batch: int, size: int, classes: int
) -> Workload:
    """Return a model of [batch, 3, size, size] images with a classification loss."""
    random = generator(0)
    x = torch.randn(batch, 3, size, size, generator=random)
    y = torch.randint(classes, (batch,), generator=random)
    return Workload(name, model, (x, y), functional.cross_entropy)


WORKLOADS: Mapping[str, str] = json.loads(
    Path(__file__).with_name("workloads.json").read_text()
)
"""Name: module and function, as ``module:callable`` names a model of one's own."""


def names() -> tuple[str, ...]:
    """Return the names of all workloads, sorted."""
    return tuple(sorted(WORKLOADS))


def default_batch(name: str) -> int:
    """Return the examples in a step of the workload as `build(name)` makes it.

    Raises:
        InputError: no such workload.
    """
    return int(inspect.signature(find_factory(name)).parameters["batch"].default)


def build(name: str, *, seed: int = 0, **size: object) -> Workload:
    """Make a workload; the same arguments give the same parameters and inputs.

    Args:
        name: One of `names()`.
        seed: The seed of the parameters.
        **size: Arguments of its factory, such as `batch`.

    Raises:
        InputError: no such workload, or an argument that it does not have.
    """
    factory = find_factory(name)
    parameters = inspect.signature(factory).parameters
    unknown = [key for key in size if key not in parameters]
    if unknown:
        raise InputError(
            f"{name}: no size {unknown[0]!r}; there are {', '.join(parameters)}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factory(**size)


def find_factory(name: str) -> Callable[..., Workload]:
    """Return the function that makes a workload.

    Raises:
        InputError: no such workload.
    """
    if name not in WORKLOADS:
        raise InputError(f"{name!r}: no such workload; there are {', '.join(names())}")
    module, _, function = WORKLOADS[name].partition(":")
    factory: Callable[..., Workload] = getattr(import_module(module), function)
    return factory
