"""`torch.optim` optimizers as captured ones: which update, which constants, which state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from gnnplace.errors import MismatchError, UnsupportedError
from gnnplace.run.training.user_step import OwnStep, own_step
from gnnplace.tracing import Optimizer, optimizers

ADAM = ("amsgrad", "maximize", "differentiable", "foreach", "fused", "capturable")
ODD = {
    torch.optim.SGD: ("nesterov", "maximize", "dampening", "differentiable", "foreach", "fused"),
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
"""What `torch.optim` calls the state tensors."""


def captured_method(optimizer: torch.optim.Optimizer, model: nn.Module) -> Optimizer:
    """The captured optimizer that computes what a torch one computes.

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
    group = group_of(optimizer, model)
    if not _is_plain(optimizer):
        parameters = dict(model.named_parameters(remove_duplicate=False))
        return own_step(optimizer, parameters, group)
    if kind is not torch.optim.SGD:
        made = optimizers.adamw if kind is torch.optim.AdamW else optimizers.adam
        return made(*group_constants(optimizer.param_groups[0]))
    first = optimizer.param_groups[0]
    return optimizers.sgd(float(first["lr"]), first["momentum"], first["weight_decay"])


def _is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an update of `gnnplace.tracing.program.operations` computes the same."""
    groups, odd = optimizer.param_groups, ODD.get(type(optimizer))
    if odd is None or any(group.get(name) for group in groups for name in odd):
        return False
    return len({bool(group.get("momentum")) for group in groups}) == 1


def check_options(optimizer: torch.optim.Optimizer, method: Optimizer) -> None:
    """Refuses options that changed after the capture and with which an update computes otherwise.

    Raises:
        MismatchError: names the option.
    """
    if isinstance(method, OwnStep):
        return  # it looks at its options itself
    lengths = {len(group_constants(group)) for group in optimizer.param_groups}
    if _is_plain(optimizer) and lengths == {len(method.constants)}:
        return
    odd = [n for group in optimizer.param_groups for n in ODD[type(optimizer)] if group.get(n)]
    raise MismatchError(
        f"optimizer: its {(*odd, 'momentum')[0]} has changed, and with it how an update computes; "
        "close the step and compile another one"
    )


def constants_of(method: Optimizer, group: Mapping[str, Any], number: int) -> tuple[Any, ...]:
    """Constants of a parameter group as the captured update takes them."""
    if isinstance(method, OwnStep):
        return method.constants_now(group, number)
    return group_constants(group)


def group_constants(group: Mapping[str, Any]) -> tuple[Any, ...]:
    """Constants of a parameter group in the order in which the captured update takes them."""
    if "betas" in group:
        betas = tuple(float(beta) for beta in group["betas"])
        return float(group["lr"]), betas, float(group["eps"]), float(group["weight_decay"])
    momentum = (float(group["momentum"]),) if group.get("momentum") else ()
    return float(group["lr"]), *momentum, float(group["weight_decay"])


def method_groups(method: Optimizer) -> list[dict[str, Any]]:
    """One parameter group with a captured optimizer's constants, named as torch names them."""
    if method.name in ("adam", "adamw"):
        return [dict(zip(("lr", "betas", "eps", "weight_decay"), method.constants, strict=True))]
    lr, *momentum, weight_decay = method.constants
    return [{"lr": lr, "momentum": sum(momentum), "weight_decay": weight_decay}]


def group_of(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, int]:
    """Group of each parameter of a model, by its name.

    Raises:
        UnsupportedError: a parameter that is to be trained is in no group, or one of a group is
            not the model's.
    """
    own = {id(parameter) for parameter in model.parameters()}
    odd = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in own]
    if odd:
        raise UnsupportedError(
            f"optimizer: a parameter of shape {tuple(odd[0].shape)} in its groups is not the "
            "model's; make it one, or leave it out"
        )
    number = {id(p): g for g, group in enumerate(optimizer.param_groups) for p in group["params"]}
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
    """State tensors that a torch optimizer has already, by "parameter:state"."""
    found = {}
    for name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        for label in method.state:
            value = state.get(STATE[label])
            if isinstance(value, torch.Tensor):
                found[f"{name}:{label}"] = value
    return found
