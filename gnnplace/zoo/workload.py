"""`Workload`: a model with example inputs and its loss; and the workloads that have names.

``workloads.json`` lists them. The module of a workload is imported when the workload is built.
Models that only suites and recipes name are in `gnnplace.bench.models`.
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
        model: The model, in the mode (train or eval) in which it is to be captured.
        inputs: Positional inputs, or a mapping of keyword inputs. The first axis of tensors is the
            batch.
        loss: The loss. It is called with the model's output, and with the last inputs (targets) if
            it has more than one parameter. None: the loss is the output's `.loss`, else the sum of
            the outputs.
    """

    name: str
    model: nn.Module
    inputs: tuple[Any, ...] | Mapping[str, Any]
    loss: Loss | None = None


def make_generator(seed: int) -> torch.Generator:
    """Return a seeded generator of random numbers for example inputs."""
    return torch.Generator().manual_seed(seed)


def make_image_classifier(
    name: str, model: nn.Module, batch: int, size: int, classes: int
) -> Workload:
    """Return the workload of an image classifier on random images and classes.

    Args:
        name: Name of the workload.
        model: The model. [batch, 3, size, size] -> [batch, classes]
        batch: Images in a step.
        size: Height and width of an image.
        classes: Number of classes.
    """
    random = make_generator(0)
    images = torch.randn(batch, 3, size, size, generator=random)
    targets = torch.randint(classes, (batch,), generator=random)
    return Workload(name, model, (images, targets), functional.cross_entropy)


WORKLOADS: Mapping[str, str] = json.loads(
    Path(__file__).with_name("workloads.json").read_text()
)
"""Module and function of each workload, as ``module:callable``, by the workload's name."""


def list_workload_names() -> tuple[str, ...]:
    """Return the names of all workloads, sorted."""
    return tuple(sorted(WORKLOADS))


def default_batch(name: str) -> int:
    """Return the number of examples in the batch that `build(name)` makes.

    Raises:
        InputError: If there is no such workload.
    """
    return int(inspect.signature(find_factory(name)).parameters["batch"].default)


def build(name: str, *, seed: int = 0, **size: object) -> Workload:
    """Make a workload. The same arguments give the same parameters and inputs.

    Args:
        name: One of `list_workload_names()`.
        seed: Seed of the parameters.
        **size: Arguments of the workload's function, such as `batch`.

    Raises:
        InputError: If there is no such workload, or it has no such argument.
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
        InputError: If there is no such workload.
    """
    if name not in WORKLOADS:
        raise InputError(
            f"{name!r}: no such workload; there are {', '.join(list_workload_names())}"
        )
    module, _, function = WORKLOADS[name].partition(":")
    factory: Callable[..., Workload] = getattr(import_module(module), function)
    return factory
