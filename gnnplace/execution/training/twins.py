"""Twins of an optimizer: the same class and options with other parameters, to try its step on.

An optimizer can be placed if its step treats every parameter by itself. That is tried: on copies of
the smallest parameters of every group, all together and each alone, with drawn gradients. What the
step needs or changes beside parameters and their states is a reason to refuse it.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gnnplace.errors import UnsupportedError
from gnnplace.execution.training.state_layout import NUMBERS, label_of

APART = ("step", "state", "param_groups")
"""What a twin has for itself; a scheduler replaces `step` in the optimizer that it is of."""
TRIALS, SAMPLED = 3, 2
"""Steps of a trial; parameters of each group in it."""


def refuse_odd_steps(optimizer: torch.optim.Optimizer) -> None:
    """Tries the step on copies of small parameters, together and apart.

    Raises:
        UnsupportedError: it needs a closure, raises, keeps anything outside of the parameters'
            states, or gives parameters other values when they are alone.
    """
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise refused(optimizer, "its step needs a closure that computes the loss again")
    chosen = _sample(optimizer)
    together = [(g, p.detach().clone()) for g, p in chosen]
    apart = [(g, p.detach().clone()) for g, p in chosen]
    made = [optimizer.state.get(p, {}) for _, p in chosen]
    whole = twin_of(optimizer, together, made)
    singles = [twin_of(optimizer, [pair], [m]) for pair, m in zip(apart, made, strict=True)]
    for trial in range(TRIALS):
        try_step(optimizer, whole, [p for _, p in together], trial)
        for k, twin in enumerate(singles):
            try_step(optimizer, twin, [apart[k][1]], trial, k)
    if not all(torch.equal(a, b) for (_, a), (_, b) in zip(together, apart, strict=True)):
        raise refused(optimizer, "a parameter's update depends on other parameters or on chance")


def try_step(
    optimizer: torch.optim.Optimizer,
    twin: torch.optim.Optimizer,
    parameters: list[torch.Tensor],
    trial: int,
    first: int = 0,
) -> None:
    """One step of a twin with gradients drawn for the trial and the parameter's position.

    Raises:
        UnsupportedError: it raises, or changes more than parameters and their states.
    """
    for k, parameter in enumerate(parameters, first):
        generator = torch.Generator().manual_seed(1000 * trial + k)
        drawn = torch.randn(parameter.shape, generator=generator).to(parameter)
        parameter.grad = torch.empty_like(parameter).copy_(drawn)
    before, places = _outside(twin), [p.data_ptr() for p in parameters]
    try:
        with torch.random.fork_rng(devices=[]):
            type(twin).step(twin)  # type: ignore[call-arg]
    except Exception as error:
        raise refused(optimizer, f"its step raises {type(error).__name__}: {error}") from None
    after = _outside(twin)
    changed = [key for key in after if key not in before or after[key] != before[key]]
    if changed:
        raise refused(optimizer, f"its step changes {changed[0]}, which is not of one parameter")
    if places != [p.data_ptr() for p in parameters]:
        raise refused(optimizer, "its step gives parameters new memory instead of changing them")


def alone(
    optimizer: torch.optim.Optimizer, tensor: torch.Tensor, group: int, made: Mapping[str, Any]
) -> tuple[torch.optim.Optimizer, torch.Tensor]:
    """A twin with a copy of one parameter, and the copy."""
    copy = tensor.detach().clone()
    return twin_of(optimizer, [(group, copy)], [made]), copy


def twin_of(
    optimizer: torch.optim.Optimizer,
    parameters: list[tuple[int, torch.Tensor]],
    made: list[Mapping[str, Any]] | None = None,
) -> torch.optim.Optimizer:
    """An optimizer of the same class, options and attributes with other parameters.

    Args:
        optimizer: The optimizer.
        parameters: Each with the number of its group.
        made: The states that they begin with, copied; none by default.
    """
    twin = object.__new__(type(optimizer))
    twin.__dict__ |= {k: v for k, v in optimizer.__dict__.items() if k not in APART}
    twin.state = defaultdict(dict)
    numbers = sorted({group for group, _ in parameters})
    twin.param_groups = [
        {**optimizer.param_groups[n], "params": [p for g, p in parameters if g == n]}
        for n in numbers
    ]
    for (_, parameter), state in zip(parameters, made or (), strict=False):
        if state:
            twin.state[parameter] = cloned(state)
    return twin


def cloned(state: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a parameter's state."""
    return pytree.tree_map_only(torch.Tensor, torch.clone, dict(state))


def refused(optimizer: torch.optim.Optimizer, why: str) -> UnsupportedError:
    """An optimizer whose step cannot be placed, and what else can be done."""
    return UnsupportedError(
        f"optimizer {type(optimizer).__name__}: {' '.join(why.split())}, so that it cannot be "
        "placed; compile with optimizer=None and call its own step"
    )


def _sample(optimizer: torch.optim.Optimizer) -> list[tuple[int, torch.Tensor]]:
    """The smallest parameters of every group, two different shapes where there are."""
    found = []
    for number, group in enumerate(optimizer.param_groups):
        shapes = {tuple(p.shape): p for p in group["params"] if p.requires_grad}
        small = sorted(shapes.values(), key=lambda p: (p.numel(), tuple(p.shape)))
        found += [(number, p) for p in small[:SAMPLED]]
    return found


def _outside(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Numbers and tensors of an optimizer beside its parameters' states, to be compared."""
    about: dict[str, Any] = {"self": {k: v for k, v in vars(optimizer).items() if k not in APART}}
    groups = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    about["param_groups"] = groups
    paths, _ = pytree.tree_flatten_with_path(about)
    plain = {label_of(path): _plain(leaf) for path, leaf in paths}
    return {label: value for label, value in plain.items() if value is not None}


def _plain(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.tolist()
    return leaf if isinstance(leaf, (*NUMBERS, str)) else None
