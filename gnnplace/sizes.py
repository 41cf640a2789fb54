"""``--microbatches auto``: the number of micro-batches and the placement, found together.

Every size is captured and profiled by itself: small batches run less efficiently, so the work grows
with their number while the pipeline fills better. Each size is placed with the whole budget; one
whose lower bound is above the best step found so far is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gnnplace import api
from gnnplace.cluster import Cluster
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.microbatching import with_microbatches
from gnnplace.placers import Result
from gnnplace.problem import Problem
from gnnplace.simulation import lower_bound

if TYPE_CHECKING:
    from gnnplace.tracing import Program

AUTO = "auto"
SIZES = (1, 2, 4, 8, 16, 32)
Place = Callable[[Problem], Result]


@dataclass(frozen=True, eq=False)
class Size:
    """One number of micro-batches.

    Attributes:
        options: With that number.
        program: Captured at that share of the batch; None of a problem file.
        problem: Profiled at that share, cut.
        work: Seconds of all ops on one device, the fastest.
        result: What was found; None if nothing was.
        note: Why nothing was found, or was looked for.
    """

    options: api.CaptureOptions
    program: Program | None
    problem: Problem
    work: float
    result: Result | None = None
    note: str = ""

    @property
    def microbatches(self) -> int:
        """Shares of the batch."""
        return self.options.microbatches


def search(
    what: str,
    cluster: str | Cluster | None,
    options: api.CaptureOptions,
    place: Place,
    progress: api.Progress | None = None,
    correct: Callable[[Problem], Problem] = lambda problem: problem,
) -> list[Size]:
    """Places a model at every size that its batch allows.

    Args:
        what: A model's name, or a problem file that is not cut yet (its times and bytes are then
            divided, as nothing can be profiled).
        cluster: Of the model, or instead of the problem's own.
        options: How the model is captured; their number of micro-batches does not matter.
        place: Places one problem.
        progress: Called with a line when something begins that takes seconds.
        correct: What is to be done to every problem, such as to calibrate it.

    Raises:
        InputError: the model cannot be captured whole.
    """
    sizes: list[Size] = []
    best = np.inf
    for profiled in _sizes(what, cluster, options, progress):
        size = replace(profiled, problem=correct(profiled.problem))
        bound = lower_bound(size.problem)
        if bound >= best:
            note = f"not placed: no step of it is below {1e3 * bound:.4g} ms"
            sizes.append(replace(size, note=note))
            continue
        if progress is not None:
            progress(f"placing {size.microbatches} micro-batches")
        sizes.append(_placed(size, place))
        result = sizes[-1].result
        best = min(best, result.step_time if result is not None else np.inf)
    return sizes


def choose(sizes: list[Size]) -> Size:
    """The size with the shortest step; of equal ones the least micro-batches.

    Raises:
        InfeasibleError: no size has a placement; says why the whole batch has none.
    """
    placed = [size for size in sizes if size.result is not None]
    if not placed:
        raise InfeasibleError(f"micro-batches: no size can be placed; {sizes[0].note}")
    return min(placed, key=lambda size: size.result.step_time if size.result else np.inf)


def _placed(size: Size, place: Place) -> Size:
    try:
        return replace(size, result=place(size.problem))
    except InfeasibleError as error:
        return replace(size, note=str(error))


def _sizes(
    what: str,
    cluster: str | Cluster | None,
    options: api.CaptureOptions,
    progress: api.Progress | None,
) -> Iterator[Size]:
    """Sizes from the whole batch on, as long as it can be cut."""
    for count in SIZES:
        try:
            yield _size(what, cluster, replace(options, microbatches=count), progress)
        except InputError:
            if count == 1:
                raise
            return


def _size(
    what: str,
    cluster: str | Cluster | None,
    options: api.CaptureOptions,
    progress: api.Progress | None,
) -> Size:
    program = None
    if what.endswith(".json") or Path(what).is_file():
        whole = replace(options, microbatches=1)
        problem = api.read_or_profile(what, cluster, whole, progress)
        problem = with_microbatches(problem, options.microbatches)
    else:
        program = api.capture(what, options=options)
        problem = api.profile(program, cluster or "auto", options=options, progress=progress)
    return Size(options, program, problem, _work(problem))


def _work(problem: Problem) -> float:
    able = np.isfinite(problem.times).all(axis=0)
    seconds = problem.times[:, able].sum(axis=0)
    return float(seconds.min()) if len(seconds) else float("nan")


def placing(
    placer: str,
    budget: float,
    seed: int = 0,
    order: str | None = None,
    objective: str = api.TIME,
    checkpoint: str | None = None,
    workers: int = 1,
) -> Place:
    """A `Place` by the arguments of `gnnplace.api.place`."""
    return lambda problem: api.place(
        problem,
        placer=placer,
        budget=budget,
        seed=seed,
        order=order,
        objective=objective,
        checkpoint=checkpoint,
        workers=workers,
    )
