"""A check that an optimizer's step on a process's part of the model is its step on the whole.

Each process has its own optimizer, over the parameters of its stages or over parts of them. That
gives the right step for elementwise optimizers (SGD, AdamW, Lion), and a different step for those
that use whole matrices (Muon, Adafactor, LAMB) or all parameters (Prodigy). Which it is, is tried
on two small matrices with random gradients: one optimizer for both, against one for each process's
parts.
"""

from __future__ import annotations

import inspect

import torch

from gnnplace.errors import InputError
from gnnplace.run.training import make_twin

TRIALS = 3
"""Steps of a trial, since the first of some is alike."""
OFF = 1e-5
"""Differences of updates, in parts of the largest, that float32 does not explain (it has 1e-7)."""
OTHER_ON_PARTS = (
    "is another one on parts of matrices, which a process has by shards and ZeRO"
)
OTHER_ON_STAGES = "reads all parameters, and a process has those of its stages"
RATE = 0.01
"""The learning rate of a trial; that of an optimizer may begin at 0."""


def refuse_joint_step(optimizer: torch.optim.Optimizer, cut: bool) -> None:
    """Refuse an optimizer whose step is another one on what a process has.

    Args:
        optimizer: An optimizer of this process's parameters; it stays as it is.
        cut: Whether these are parts of parameters, and not whole parameters of its stages.

    Raises:
        InputError: its step is another one, or cannot be tried.
    """
    drawn = torch.randn(
        TRIALS + 1, 2, 4, 6, generator=torch.Generator().manual_seed(0)
    ).double()
    kinds = {repr(_options(group)): k for k, group in enumerate(optimizer.param_groups)}
    for group in kinds.values():
        update = _update(optimizer, group, drawn)
        splits = zip(_parts(drawn, cut), _parts(update[None], cut), strict=True)
        for part, expected in (
            pair for split in splits for pair in zip(*split, strict=True)
        ):
            error = (_update(optimizer, group, part) - expected[0]).abs().max()
            if not error <= OFF * update.abs().max():
                raise _refused(optimizer, OTHER_ON_PARTS if cut else OTHER_ON_STAGES)


def _options(group: dict[str, object]) -> dict[str, object]:
    """Return the options of a group that may change what kind of step it takes."""
    numbers = ("params", "lr", "initial_lr", "weight_decay")
    return {key: value for key, value in group.items() if key not in numbers}


def _parts(drawn: torch.Tensor, cut: bool) -> list[tuple[torch.Tensor, ...]]:
    """Split matrices over two processes, in each way. [steps, matrices, rows, columns] of each"""
    if not cut:
        return [drawn.chunk(2, 1)]
    return [
        drawn.flatten(2).unsqueeze(2).chunk(2, 3),
        drawn.chunk(2, 2),
        drawn.chunk(2, 3),
    ]


def _update(
    optimizer: torch.optim.Optimizer, group: int, drawn: torch.Tensor
) -> torch.Tensor:
    """Return how steps change the first matrices; the later ones are gradients. [matrices, r, c]"""
    weights = [torch.nn.Parameter(table.clone()) for table in drawn[0]]
    twin = make_twin(optimizer, [(group, weight) for weight in weights])
    if "lr" in twin.param_groups[0] and twin.param_groups[0]["lr"] is not None:
        twin.param_groups[0]["lr"] = RATE
    closure = inspect.signature(type(twin).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise _refused(
            optimizer, "calls the loss again, and ends by numbers of all parameters"
        )
    try:
        with torch.random.fork_rng(devices=[]):
            for gradients in drawn[1:]:
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight.grad = gradient.clone()
                type(twin).step(twin)  # type: ignore[call-arg]
    except Exception as error:
        raise _refused(
            optimizer, f"raises {type(error).__name__} when it is tried"
        ) from None
    return torch.stack([w.detach() for w in weights]) - drawn[0]


def _refused(optimizer: torch.optim.Optimizer, why: str) -> InputError:
    return InputError(
        f"optimizer {type(optimizer).__name__}: its step {why}; take one that goes element by "
        "element, such as AdamW, or a plan of replicas without ZeRO"
    )
