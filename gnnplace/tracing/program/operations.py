"""Operations of a captured program that are not plain ATen: updates and seeded random ops.

They are ordinary functions, so that an executor calls them as it calls an ATen overload.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, reduce
from typing import Any

import torch

_STEP = 0


def set_step(step: int) -> None:
    """Say which training step this process is in; random ops draw their seeds from it.

    Args:
        step: Zero-based step, the same on every worker.
    """
    global _STEP
    _STEP = step


def op_seed(name: str, step: int) -> int:
    """Return the seed of op `name` at `step`: 63 bits of a SHA-256, equal on every machine."""
    digest = hashlib.sha256(f"{name}:{step}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@lru_cache
def overload(name: str) -> Callable[..., Any]:
    """Return the ATen overload of a dotted name such as "aten.native_dropout.default"."""
    return reduce(getattr, name.split("."), torch.ops)  # type: ignore[arg-type, return-value]


def seeded(name: str, target: str, *args: object, **options: object) -> object:
    """Call a random ATen op with the seed of its name and of the current step.

    Args:
        name: Name of the op in the program.
        target: Dotted name of the ATen overload.
        *args: The positional arguments of the op.
        **options: The keyword arguments of the op.

    Returns:
        What the overload returns; the state of the global generators is as before.
    """
    with drawing(_place(args, options), op_seed(name, _STEP)):
        return overload(target)(*args, **options)


def _place(args: tuple[Any, ...], options: dict[str, Any]) -> torch.device:
    """Return where an op runs: with its tensors, or where it is to make some."""
    tensor_devices = [a.device for a in args if isinstance(a, torch.Tensor)]
    devices = [
        device for device in tensor_devices if device.type != "cpu"
    ] or tensor_devices
    if devices:
        return devices[0]
    return options.get("device") or torch.device("cpu")


@contextmanager
def drawing(device: torch.device, seed: int) -> Iterator[None]:
    """Seed the default generator of one device within; it is as before afterwards.

    Args:
        device: The device whose numbers are drawn.
        seed: A whole number of 63 bits.
    """
    generator = torch.default_generator
    if device.type == "cuda":
        torch.cuda.init()
        if device.index is None:
            index = torch.cuda.current_device()
        else:
            index = device.index
        generator = torch.cuda.default_generators[index]
    state = generator.get_state()
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(state)


def only(target: str, *args: object, **options: object) -> torch.Tensor:
    """Return the one element of what an ATen op returns as a list; a result is a tensor."""
    element: torch.Tensor = overload(target)(*args, **options)[0]
    return element


def mean_gradient(gradients: list[torch.Tensor]) -> torch.Tensor:
    """Return the gradient of the batch from those of its micro-batches, each a share 1/M of it.

    Args:
        gradients: One gradient for each micro-batch, of equal shape.

    Returns:
        The first one itself if it is alone, else the sum of `gradient / M` in order, as M steps
        of gradient accumulation with `loss / M` leave it.
    """
    if len(gradients) == 1:
        return gradients[0]
    total = gradients[0] / len(gradients)
    for gradient in gradients[1:]:
        # One pass over memory, without a temporary.
        total.add_(gradient, alpha=1 / len(gradients))
    return total


def sgd_update(
    parameter: torch.Tensor,
    gradients: list[torch.Tensor],
    lr: float,
    weight_decay: float,
) -> None:
    """Update in place, `p -= lr * (g + weight_decay * p)`, as `torch.optim.SGD` computes it.

    Args:
        parameter: The parameter, which is changed in place.
        gradients: One, or one for each micro-batch.
        lr: The learning rate of the step.
        weight_decay: The factor of the L2 penalty.
    """
    gradient = mean_gradient(gradients)
    if weight_decay:
        gradient = gradient.add(parameter, alpha=weight_decay)
    parameter.add_(gradient, alpha=-lr)


def momentum_update(
    parameter: torch.Tensor,
    gradients: list[torch.Tensor],
    velocity: torch.Tensor,
    lr: float,
    momentum: float,
    weight_decay: float,
) -> None:
    """Update in place, `v = momentum * v + g; p -= lr * v`, as `torch.optim.SGD` computes it.

    A velocity of zero at the start equals torch's lazily made one (its first step copies `g`).

    Args:
        parameter: The parameter, which is changed in place.
        gradients: One, or one for each micro-batch.
        velocity: Changed in place; the shape of the parameter.
        lr: The learning rate of the step.
        momentum: The momentum of the velocity.
        weight_decay: The factor of the L2 penalty.
    """
    gradient = mean_gradient(gradients)
    if weight_decay:
        gradient = gradient.add(parameter, alpha=weight_decay)
    velocity.mul_(momentum).add_(gradient)
    parameter.add_(velocity, alpha=-lr)


def adamw_update(
    parameter: torch.Tensor,
    gradients: list[torch.Tensor],
    step: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """Do a step of AdamW (Loshchilov and Hutter, ICLR 2019), as `torch.optim.AdamW` computes it.

    Args:
        parameter: The parameter, which is changed in place.
        gradients: One, or one for each micro-batch.
        step: Steps so far, a scalar; changed in place.
        first: Running mean of the gradient; changed in place.
        second: Running mean of its square; changed in place.
        lr: The learning rate of the step.
        betas: Decay of both means.
        eps: Added to the denominator.
        weight_decay: The factor of the decoupled decay.
    """
    parameter.mul_(1 - lr * weight_decay)
    adam_update(parameter, gradients, step, first, second, lr, betas, eps, 0.0)


def adam_update(
    parameter: torch.Tensor,
    gradients: list[torch.Tensor],
    step: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """Do a step of Adam (Kingma and Ba, ICLR 2015), as `torch.optim.Adam` computes it.

    Arguments are those of `adamw_update`, but for the decay, which is the factor of the L2 penalty.
    A complex number is two real ones.
    """
    gradient = mean_gradient(gradients)
    if weight_decay:
        gradient = gradient.add(parameter, alpha=weight_decay)
    if parameter.is_complex():
        complex_tensors = (parameter, gradient, first, second)
        real = [torch.view_as_real(tensor.resolve_conj()) for tensor in complex_tensors]
        parameter, gradient, first, second = real
    step += 1
    count = step.item()
    first.lerp_(gradient, 1 - betas[0])
    second.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    scale = lr / (1 - betas[0] ** count)
    # In place: one temporary of the parameter's size instead of two, and the same numbers.
    root = second.sqrt().div_(math.sqrt(1 - betas[1] ** count)).add_(eps)
    parameter.addcdiv_(first, root, value=-scale)


def copy_buffer(buffer: torch.Tensor, value: torch.Tensor) -> None:
    """Store a buffer's new value, such as batch norm's running mean.

    Args:
        buffer: The buffer, which is changed in place.
        value: A tensor of the same shape.
    """
    buffer.copy_(value)
