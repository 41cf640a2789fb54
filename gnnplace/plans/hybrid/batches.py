"""Searches the global batch with which training ends first.

A larger batch keeps devices busier and exchanges gradients more rarely, but needs more epochs (Pal
et al., 2019, arXiv 1907.13257). With a step of ``s(B)`` seconds, ``n`` examples in an epoch and
``E(B)`` epochs, training takes::

    T(B) = s(B) ceil(n / B) E(B)

``s(B)`` is the step time of the fastest plan with batch B; ``plans.hybrid.convergence`` has
``E(B)``. From the first batch the search doubles until training takes longer than the shortest so
far `MOST_RISES` times in a row, and then halves likewise. So only batches that are the first one
times a power of two are tried, and a better one between two of them is missed.

Complexity: one search of plans for each batch; at most log2 of `MOST_EXAMPLES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gnnplace.errors import GnnplaceError, InfeasibleError
from gnnplace.plans.hybrid.convergence import Training
from gnnplace.plans.plan import Plan

MOST_EXAMPLES = 1 << 24
"""Examples of a step, at most."""
MOST_RISES = 2
"""Batches in a row that may take longer than the best one before the search stops."""


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
        plan_of: Returns the fastest plan with a batch. A plan without a step time does not fit.
        training: What is trained. Its `batch` is tried first.

    Returns:
        All batches that were tried and can be trained with, in rising order.

    Raises:
        GnnplaceError: If `plan_of` raises it for the first batch.
        InfeasibleError: If no batch that was tried has both a plan that fits and a known number of
            epochs.
    """
    entries: dict[int, BatchPlan] = {}
    for get_next_batch in (_double, _halve):
        batch: int | None = training.batch
        shortest = math.inf
        rises = 0
        while batch is not None and rises < MOST_RISES:
            if batch not in entries:
                entry = _plan_batch(plan_of, training, batch)
                if entry is not None:
                    entries[batch] = entry
            # A batch that cannot be trained with counts as one that takes longer.
            if batch in entries:
                seconds = entries[batch].seconds
            else:
                seconds = math.inf
            if seconds < shortest:
                rises = 0
            else:
                rises += 1
            shortest = min(shortest, seconds)
            batch = get_next_batch(batch)
    if not entries:
        raise InfeasibleError(
            f"batch {training.batch}: no plan fits, or the epochs with it are not known; take more "
            "devices, or a table of epochs with smaller batches"
        )
    return tuple(entries[batch] for batch in sorted(entries))


def _plan_batch(
    plan_of: Callable[[int], Plan], training: Training, batch: int
) -> BatchPlan | None:
    """Return the plan with a batch, or None if none fits or the number of epochs is not known.

    Raises:
        GnnplaceError: If `plan_of` raises it for the first batch.
    """
    epochs = training.convergence.epochs(float(batch))
    if epochs is None:
        return None
    try:
        plan = plan_of(batch)
    except GnnplaceError:
        # Another batch may just not divide over the devices. If the first one fails, the user asked
        # for something impossible.
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
