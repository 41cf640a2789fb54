"""``--microbatches auto``: the number of micro-batches and the placement, found together.

Every size is captured and profiled by itself: small batches run less efficiently, so the work grows
with their number while the pipeline fills better. Each size is placed with the whole budget; one
whose lower bound is above the best step found so far is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from gnnplace.costs.profiling.profiler import Progress, profile_model, read_or_profile
from gnnplace.costs.profiling.targets import is_problem_file
from gnnplace.errors import CaptureError, InfeasibleError, InputError, OtherLossError
from gnnplace.placers import Result
from gnnplace.problem import Problem
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.simulation import lower_bound
from gnnplace.tracing.models import capture_model, say_batch
from gnnplace.tracing.options import CaptureOptions
from gnnplace.tracing.program import Program

AUTO = "auto"
SIZES = (1, 2, 4, 8, 16, 32)
Place = Callable[[Problem], Result]


@dataclass(frozen=True, eq=False)
class Size:
    """One number of micro-batches.

    Attributes:
        options: How the model is captured, with that number.
        program: Captured at that share of the batch; None of a problem file.
        problem: Profiled at that share, cut.
        work: Seconds of all ops on one device, the fastest.
        result: What was found; None if nothing was.
        note: Why this size has no placement: none exists, or it was skipped.
    """

    options: CaptureOptions
    program: Program | None
    problem: Problem
    work: float
    result: Result | None = None
    note: str = ""

    @property
    def microbatches(self) -> int:
        """Shares of the batch."""
        return self.options.microbatches


def choose_microbatches(
    what: str,
    cluster: str | Cluster | None,
    options: CaptureOptions,
    place: Place,
    progress: Progress | None = None,
    correct: Callable[[Problem], Problem] = lambda problem: problem,
) -> tuple[list[Size], Size]:
    """Places a model at every size that its batch allows; all sizes, and the one to take.

    The arguments are those of ``try_sizes``.

    Raises:
        InputError: the model cannot be captured whole.
        InfeasibleError: no size has a placement; says why the whole batch has none.
    """
    sizes = try_sizes(what, cluster, options, place, progress, correct)
    return sizes, choose(sizes)


def try_sizes(
    what: str,
    cluster: str | Cluster | None,
    options: CaptureOptions,
    place: Place,
    progress: Progress | None = None,
    correct: Callable[[Problem], Problem] = lambda problem: problem,
) -> list[Size]:
    """Places a model at every size that its batch allows.

    Args:
        what: A model's name, or a problem file that is not cut yet (its times and bytes are then
            divided, as nothing can be profiled).
        cluster: The cluster of the model, or instead of the problem's own.
        options: How the model is captured; their number of micro-batches does not matter.
        place: What places one problem.
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
    what: str, cluster: str | Cluster | None, options: CaptureOptions, progress: Progress | None
) -> Iterator[Size]:
    """Sizes from the whole batch on, as long as it can be cut."""
    for count in SIZES:
        try:
            yield _size(what, cluster, replace(options, microbatches=count), progress)
        except OtherLossError as error:
            if progress is not None:
                progress(f"the batch is left whole: {error}" if count == 2 else str(error))
            return
        except (InputError, CaptureError):
            if count == 1:
                raise
            return


def _size(
    what: str, cluster: str | Cluster | None, options: CaptureOptions, progress: Progress | None
) -> Size:
    program = None
    if is_problem_file(what):
        whole = replace(options, microbatches=1)
        problem = read_or_profile(what, cluster, whole, progress)
        problem = with_microbatches(problem, options.microbatches)
    else:
        program = capture_model(what, options=options)
        say_batch(program, progress if options.microbatches == SIZES[1] else None)
        problem = profile_model(program, cluster or "auto", options=options, progress=progress)
    return Size(options, program, problem, _work(problem))


def _work(problem: Problem) -> float:
    able = np.isfinite(problem.times).all(axis=0)
    seconds = problem.times[:, able].sum(axis=0)
    return float(seconds.min()) if len(seconds) else float("nan")
