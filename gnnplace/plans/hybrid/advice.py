"""What the rows of splits say: cross-over, recommendation, gain over data parallelism."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gnnplace.plans.hybrid.splits import SplitRow
from gnnplace.units import training_text


@dataclass(frozen=True)
class ReplicaAdvice:
    """The answer to "how should I use N devices?".

    Attributes:
        best: The row that ends first, on at most all devices; None if none does.
        data_parallel: Data parallelism on all devices, if it is possible.
        crossover: Number of devices from which on, at all larger numbers tried too, some hybrid
            ends sooner than data parallelism alone; None if there is no such number.
    """

    best: SplitRow | None
    data_parallel: SplitRow | None
    crossover: int | None

    @property
    def gain(self) -> float | None:
        """Return the time of data parallelism on all devices over the best row's, minus one.

        None if either is not known.
        """
        if self.best is None or self.data_parallel is None:
            return None
        if not math.isfinite(self.data_parallel.seconds):
            return None
        return self.data_parallel.seconds / self.best.seconds - 1.0


def advise(rows: Sequence[SplitRow]) -> ReplicaAdvice:
    """Choose the fastest row and compare it with data parallelism on the most devices."""
    num_devices = max(row.total_devices for row in rows)
    finite_rows = [row for row in rows if math.isfinite(row.seconds)]
    best = min(
        finite_rows, key=lambda row: (row.seconds, row.total_devices), default=None
    )
    alone = next(
        (r for r in rows if r.total_devices == num_devices and r.devices == 1), None
    )
    return ReplicaAdvice(best, alone, crossover(rows))


def crossover(rows: Sequence[SplitRow]) -> int | None:
    """Return the number of devices from which on some hybrid is always the faster one.

    It is compared with data parallelism alone, at all larger numbers among the rows. None if there
    is no such number.
    """
    first_count: int | None = None
    for count in sorted({row.total_devices for row in rows}, reverse=True):
        rows_of_count = [row for row in rows if row.total_devices == count]
        alone = min(
            (row.seconds for row in rows_of_count if row.devices == 1), default=math.inf
        )
        hybrid = min(
            (row.seconds for row in rows_of_count if row.devices > 1), default=math.inf
        )
        if not hybrid < alone:
            break
        first_count = count
    return first_count


def best_data_parallel(rows: Sequence[SplitRow]) -> SplitRow | None:
    """Return the fastest row of pure data parallelism on any number of devices, or None.

    This is the best that data parallelism alone reaches, however many devices there are.
    """
    alone = [row for row in rows if row.devices == 1 and math.isfinite(row.seconds)]
    return min(alone, key=lambda row: row.seconds, default=None)


def gain_at_scale(rows: Sequence[SplitRow]) -> float | None:
    """Return the best time of data parallelism over the best hybrid's, minus one.

    Each is taken at the number of devices that suits it best. None if either is missing.
    """
    alone = best_data_parallel(rows)
    hybrids = [row.seconds for row in rows if row.devices > 1]
    best = min(hybrids, default=math.inf)
    if alone is not None and math.isfinite(best):
        return alone.seconds / best - 1.0
    return None


def sentence(advice: ReplicaAdvice, most: int) -> str:
    """Return the recommendation for `most` devices in one sentence."""
    best = advice.best
    alone = advice.data_parallel
    if best is None:
        return f"No way to use {most} devices can be recommended: nothing fits, or no epochs known."
    if best.total_devices == 1 < most:
        return _alone(best, alone, most)
    if best.microbatches > 1:
        cut = f", {best.microbatches} micro-batches"
    else:
        cut = ""
    how = f"{best.groups} data-parallel group{'s' if best.groups > 1 else ''} of "
    how += f"{best.devices} device{'s' if best.devices > 1 else ''}{cut}"
    if best.total_devices < most:
        how += f", {best.total_devices} of them in use"
    versus = ""
    if alone is None or not math.isfinite(alone.seconds):
        versus = "; data parallelism alone is not possible"
    elif best is not alone:
        ratio = alone.seconds / best.seconds
        slowest = training_text(alone.seconds)
        versus = f", {ratio:.2f} times as fast as data parallelism alone ({slowest})"
    duration = training_text(best.seconds)
    return f"With {most} devices, use {how}: {duration} to converge{versus}."


def _alone(best: SplitRow, alone: SplitRow | None, most: int) -> str:
    """Return the recommendation for a model that is fastest on one of `most` devices."""
    line = f"With {most} devices, use one of them alone: {training_text(best.seconds)} to converge"
    if alone is None or not math.isfinite(alone.seconds):
        return f"{line}; data parallelism on all of them is not possible."
    ratio = alone.seconds / best.seconds
    return f"{line}; data parallelism on all {most} takes {ratio:.2f} times as long."
