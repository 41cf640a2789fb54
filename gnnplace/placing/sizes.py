"""``--microbatches auto``: the number of micro-batches and the placement, found together.

Every size is captured and profiled by itself, because small batches run less efficiently: with more
micro-batches the pipeline fills better, but the work grows. Each size is placed with the whole
budget, unless its lower bound is above the best step so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from gnnplace.costs import Progress, is_problem_file, profile_model, read_or_profile
from gnnplace.errors import CaptureError, InfeasibleError, InputError, OtherLossError
from gnnplace.placers import Result
from gnnplace.problem import Cluster, Problem, with_microbatches
from gnnplace.simulation import lower_bound
from gnnplace.tracing import CaptureOptions, Program, capture_model, say_batch
from gnnplace.units import milliseconds_text

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
        """Return the number of micro-batches that the batch is split into."""
        return self.options.microbatches


@dataclass(frozen=True)
class SizedModel:
    """A model that is tried at several numbers of micro-batches.

    Attributes:
        model: Its name, or a problem file that is not cut yet (its times and bytes are then
            divided, as nothing can be profiled).
        cluster: The cluster of the model, or instead of the problem's own.
        options: How the model is captured; their number of micro-batches does not matter.
        correct: What is to be done to every problem, such as to calibrate it.
        progress: Called with a line when something begins that takes seconds.
    """

    model: str
    cluster: str | Cluster | None
    options: CaptureOptions
    correct: Callable[[Problem], Problem] = lambda problem: problem
    progress: Progress | None = None

    def sizes(self) -> Iterator[Size]:
        """Yield the sizes from the whole batch on, as long as it can be cut.

        Raises:
            InputError: The model cannot be captured whole.
        """
        for count in SIZES:
            try:
                yield self._size(replace(self.options, microbatches=count))
            except OtherLossError as error:
                if self.progress is not None:
                    if count == 2:
                        reason = f"the batch is left whole: {error}"
                    else:
                        reason = str(error)
                    self.progress(reason)
                return
            except (InputError, CaptureError):
                if count == 1:
                    raise
                return

    def _size(self, options: CaptureOptions) -> Size:
        """Return the model captured and profiled with so many micro-batches."""
        program = None
        if is_problem_file(self.model):
            full_batch = replace(options, microbatches=1)
            problem = read_or_profile(
                self.model, self.cluster, full_batch, self.progress
            )
            problem = with_microbatches(problem, options.microbatches)
        else:
            program = capture_model(self.model, options=options)
            say_batch(
                program, self.progress if options.microbatches == SIZES[1] else None
            )
            cluster = self.cluster or "auto"
            problem = profile_model(
                program, cluster, options=options, progress=self.progress
            )
        problem = self.correct(problem)
        return Size(
            options=options, program=program, problem=problem, work=_work(problem)
        )


def choose_microbatches(
    sized_model: SizedModel, place: Place
) -> tuple[list[Size], Size]:
    """Place a model at every size that its batch allows. Return all sizes and the one to take.

    The arguments are those of ``try_sizes``.

    Raises:
        InputError: The model cannot be captured whole.
        InfeasibleError: No size has a placement; says why the whole batch has none.
    """
    sizes = try_sizes(sized_model, place)
    return sizes, choose(sizes)


def try_sizes(sized_model: SizedModel, place: Place) -> list[Size]:
    """Place a model at every size that its batch allows.

    Args:
        sized_model: The model, its cluster, and how it is captured.
        place: Places one problem.

    Raises:
        InputError: The model cannot be captured whole.
    """
    progress = sized_model.progress
    sizes: list[Size] = []
    best = np.inf
    for size in sized_model.sizes():
        bound = lower_bound(size.problem)
        if bound >= best:
            note = f"not placed: no step of it is below {milliseconds_text(bound)} ms"
            sizes.append(replace(size, note=note))
            continue
        if progress is not None:
            progress(f"placing {size.microbatches} micro-batches")
        sizes.append(_placed(size, place))
        result = sizes[-1].result
        best = min(best, result.step_time if result is not None else np.inf)
    return sizes


def choose(sizes: list[Size]) -> Size:
    """Return the size with the shortest step; of equal ones the one of fewest micro-batches.

    Raises:
        InfeasibleError: no size has a placement; says why the whole batch has none.
    """
    placed = [size for size in sizes if size.result is not None]
    if not placed:
        raise InfeasibleError(f"micro-batches: no size can be placed; {sizes[0].note}")
    return min(
        placed, key=lambda size: size.result.step_time if size.result else np.inf
    )


def _placed(size: Size, place: Place) -> Size:
    try:
        return replace(size, result=place(size.problem))
    except InfeasibleError as error:
        return replace(size, note=str(error))


def _work(problem: Problem) -> float:
    able = np.isfinite(problem.times).all(axis=0)
    seconds = problem.times[:, able].sum(axis=0)
    if len(seconds):
        return float(seconds.min())
    return float("nan")
