"""`torch.optim` optimizers as captured ones: which update, which constants, which state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gnnplace.errors import MismatchError, UnsupportedError
from gnnplace.run.training.opaque_optimizer import (
    OpaqueOptimizer,
    capture_opaque_optimizer,
)
from gnnplace.tracing import Optimizer, optimizers

ADAM = ("amsgrad", "maximize", "differentiable", "foreach", "fused", "capturable")
ALTERING_OPTIONS = {
    torch.optim.SGD: (
        "nesterov",
        "maximize",
        "dampening",
        "differentiable",
        "foreach",
        "fused",
    ),
    torch.optim.Adam: (*ADAM, "decoupled_weight_decay"),
    torch.optim.AdamW: ADAM,
}
"""Options that change how an update computes; with one of these, the optimizer's own step runs."""
STATE = {
    "momentum": "momentum_buffer",
    "step": "step",
    "mean": "exp_avg",
    "square": "exp_avg_sq",
}
"""Names of the state tensors in `torch.optim`, by those of captured optimizers."""


def capture_method(optimizer: torch.optim.Optimizer, model: nn.Module) -> Optimizer:
    """Return the captured optimizer that computes what a torch one computes.

    SGD, Adam and AdamW with their plain options have updates whose costs are known; all others run
    their own step.

    Raises:
        UnsupportedError: it cannot be placed; says what is in the way.
    """
    kind = type(optimizer)
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise UnsupportedError(
            f"optimizer {kind.__name__}: hooks of its step cannot be placed; hooks of parameters "
            "(parameter.register_hook) can"
        )
    group = find_groups(optimizer, model)
    if not _is_plain(optimizer):
        parameters = dict(model.named_parameters(remove_duplicate=False))
        return capture_opaque_optimizer(optimizer, parameters, group)
    if kind is not torch.optim.SGD:
        if kind is torch.optim.AdamW:
            make = optimizers.adamw
        else:
            make = optimizers.adam
        return make(*group_constants(optimizer.param_groups[0]))
    first = optimizer.param_groups[0]
    return optimizers.sgd(float(first["lr"]), first["momentum"], first["weight_decay"])


def _is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an update of `gnnplace.tracing.operations` computes the same."""
    groups = optimizer.param_groups
    altering = ALTERING_OPTIONS.get(type(optimizer))
    if altering is None or any(
        group.get(name) for group in groups for name in altering
    ):
        return False
    return len({bool(group.get("momentum")) for group in groups}) == 1


def check_options(optimizer: torch.optim.Optimizer, method: Optimizer) -> None:
    """Refuse options that changed after the capture and alter what an update computes.

    Raises:
        MismatchError: names the option.
    """
    if isinstance(method, OpaqueOptimizer):
        return  # it looks at its options itself
    lengths = {len(group_constants(group)) for group in optimizer.param_groups}
    if _is_plain(optimizer) and lengths == {len(method.constants)}:
        return
    altering = [
        name
        for group in optimizer.param_groups
        for name in ALTERING_OPTIONS[type(optimizer)]
        if group.get(name)
    ]
    raise MismatchError(
        f"optimizer: its {(*altering, 'momentum')[0]} has changed, and with it how an update "
        "computes; close the step and compile another one"
    )


def get_constants(
    method: Optimizer, group: Mapping[str, Any], number: int
) -> tuple[Any, ...]:
    """Return the constants of a parameter group as the captured update takes them."""
    if isinstance(method, OpaqueOptimizer):
        return method.read_constants(group, number)
    return group_constants(group)


def group_constants(group: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the constants of a parameter group in the order of the captured update."""
    if "betas" in group:
        betas = tuple(float(beta) for beta in group["betas"])
        return (
            float(group["lr"]),
            betas,
            float(group["eps"]),
            float(group["weight_decay"]),
        )
    momentum = (float(group["momentum"]),) if group.get("momentum") else ()
    return float(group["lr"]), *momentum, float(group["weight_decay"])


def method_groups(method: Optimizer) -> list[dict[str, Any]]:
    """Return one parameter group with a captured optimizer's constants, by torch's names."""
    if method.name in ("adam", "adamw"):
        return [
            dict(
                zip(
                    ("lr", "betas", "eps", "weight_decay"),
                    method.constants,
                    strict=True,
                )
            )
        ]
    lr, *momentum, weight_decay = method.constants
    return [{"lr": lr, "momentum": sum(momentum), "weight_decay": weight_decay}]


def find_groups(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, int]:
    """Return the number of each parameter's group, by the parameter's name in the model.

    Raises:
        UnsupportedError: a parameter that is to be trained is in no group, or one of a group is
            not the model's.
    """
    in_model = {id(parameter) for parameter in model.parameters()}
    foreign = [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if id(parameter) not in in_model
    ]
    if foreign:
        raise UnsupportedError(
            f"optimizer: a parameter of shape {tuple(foreign[0].shape)} in its groups is not the "
            "model's; make it one, or leave it out"
        )
    number = {
        id(p): g
        for g, group in enumerate(optimizer.param_groups)
        for p in group["params"]
    }
    groups = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in number:
            groups[name] = number[id(parameter)]
        elif parameter.requires_grad:
            raise UnsupportedError(
                f"optimizer: parameter {name!r} is in none of its groups; set requires_grad=False "
                "if it is not to be trained"
            )
    return groups


def initial_state(
    optimizer: torch.optim.Optimizer, model: nn.Module, method: Optimizer
) -> dict[str, torch.Tensor]:
    """Return the state tensors that a torch optimizer has already, by "parameter:state"."""
    tensors = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        for label in method.state:
            value = state.get(STATE[label])
            if isinstance(value, torch.Tensor):
                tensors[f"{name}:{label}"] = value
    return tensors
