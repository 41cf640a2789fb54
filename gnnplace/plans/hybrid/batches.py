"""The global batch with which training ends first: each has a plan, and epochs that it needs.

A larger batch keeps devices busier and exchanges gradients more rarely, and needs more epochs (Pal
et al., 2019, arXiv 1907.13257). With a step of ``s(B)`` seconds, ``n`` examples in an epoch and
``E(B)`` epochs, training takes::

    T(B) = s(B) ceil(n / B) E(B)

``s(B)`` is that of the fastest plan with the batch; ``plans.hybrid.convergence`` has ``E(B)``.
Batches are tried from one on, twice as large and half as large each time, until the training takes
longer twice in a row on either side. A least time that is not at a power of two of the first batch
may be missed, by at most what lies between neighbours of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gnnplace.errors import GnnplaceError, InfeasibleError
from gnnplace.plans.hybrid.convergence import Training
from gnnplace.plans.plan import Plan

MOST_EXAMPLES = 1 << 24
"""Examples of a step at most."""
MOST_RISES = 2
"""Batches that may take longer than the best before no further ones are tried."""


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """The fastest plan with a batch, and how long training takes with it.

    Attributes:
        batch: Examples of a step.
        plan: The plan.
        epochs: Epochs that training needs.
        seconds: Predicted seconds that training takes.
    """

    batch: int
    plan: Plan
    epochs: float
    seconds: float


def plan_batches(
    plan_of: Callable[[int], Plan], training: Training
) -> tuple[BatchPlan, ...]:
    """Search the batch with which training ends first.

    Args:
        plan_of: Returns the fastest plan with a batch; one without a step time cannot be.
        training: What is trained; its `batch` is tried first.

    Returns:
        What was tried and can be, by rising batch.

    Raises:
        GnnplaceError: If the first batch has no plan.
        InfeasibleError: If no batch that was tried has a plan, and epochs that are known.
    """
    entries: dict[int, BatchPlan] = {}
    for step in (_double, _halve):
        batch: int | None = training.batch
        shortest = math.inf
        rises = 0
        while batch is not None and rises < MOST_RISES:
            if batch not in entries:
                entry = _entry(plan_of, training, batch)
                if entry is not None:
                    entries[batch] = entry
            if batch in entries:
                seconds = entries[batch].seconds
            else:
                seconds = math.inf
            if seconds < shortest:
                rises = 0
            else:
                rises = rises + 1
            shortest = min(shortest, seconds)
            batch = step(batch)
    if not entries:
        raise InfeasibleError(
            f"batch {training.batch}: no plan fits, or the epochs with it are not known; take more "
            "devices, or a table of epochs with smaller batches"
        )
    return tuple(entries[batch] for batch in sorted(entries))


def _entry(
    plan_of: Callable[[int], Plan], training: Training, batch: int
) -> BatchPlan | None:
    """Return the plan with a batch, or None if there is none or its epochs are not known."""
    epochs = training.convergence.epochs(float(batch))
    if epochs is None:
        return None
    try:
        plan = plan_of(batch)
    except GnnplaceError:
        # Other batches may not divide; what is wrong with the first one is wrong with the question.
        if batch == training.batch:
            raise
        return None
    step_time = plan.file.step_time
    if not plan.feasible or step_time is None:
        return None
    seconds = step_time * training.steps(batch) * epochs
    return BatchPlan(batch=batch, plan=plan, epochs=epochs, seconds=seconds)


def _double(batch: int) -> int | None:
    """Return a batch twice as large, or None if it is too large."""
    if 2 * batch <= MOST_EXAMPLES:
        return 2 * batch
    return None


def _halve(batch: int) -> int | None:
    """Return half of a batch, or None if it cannot be halved."""
    if batch % 2 == 0:
        return batch // 2
    return None
