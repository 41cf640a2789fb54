"""``--microbatches auto``: a search of the number of micro-batches, with a placement for each.

With more micro-batches a pipeline fills better, but small batches run less efficiently, so that the
work grows. Therefore a model is captured and profiled anew for every number of ``SIZES``. Each
problem is placed with the whole budget, unless its lower bound is above the best step so far.
Complexity: a capture, a profile and a search for each number.
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
SIZES = (1, 2, 4, 8, 16, 32)  # numbers of micro-batches
Place = Callable[[Problem], Result]
"""A search: places one problem."""


@dataclass(frozen=True, eq=False)
class Size:
    """A model cut into one number of micro-batches, and its placement.

    Attributes:
        options: How the model is captured, with that number of micro-batches.
        program: The program of one micro-batch; None for a problem file.
        problem: The problem of all micro-batches.
        work: Seconds of all ops on the fastest device; NaN if no device can run all of them.
        result: The placement that was found; None if none was, or none was searched.
        note: Why there is no placement: none exists, or this size was skipped.
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
        model: The name of a model, or the path of a problem file for the whole batch. Nothing of a
            file can be profiled again, so its times and bytes are divided.
        cluster: The cluster to place on; None: the problem's own, or this machine.
        options: How the model is captured. Their number of micro-batches is not used.
        correct: A function that every problem passes through, such as a calibration.
        progress: Called with a line when something begins that takes seconds.
    """

    model: str
    cluster: str | Cluster | None
    options: CaptureOptions
    correct: Callable[[Problem], Problem] = lambda problem: problem
    progress: Progress | None = None

    def sizes(self) -> Iterator[Size]:
        """Yield the sizes, from the whole batch to the first number that it cannot be cut into.

        Raises:
            InputError: The model cannot be captured with the whole batch.
            CaptureError: The same.
        """
        for count in SIZES:
            try:
                yield self._make_size(replace(self.options, microbatches=count))
            except OtherLossError as error:
                # Micro-batches would change the model's loss.
                if self.progress is not None:
                    if count == SIZES[1]:
                        reason = f"the batch is left whole: {error}"
                    else:
                        reason = str(error)
                    self.progress(reason)
                return
            except (InputError, CaptureError):
                if count == 1:
                    raise
                return

    def _make_size(self, options: CaptureOptions) -> Size:
        """Capture and profile the model with the number of micro-batches of ``options``."""
        program = None
        if is_problem_file(self.model):
            full_batch = replace(options, microbatches=1)
            problem = read_or_profile(
                self.model, self.cluster, full_batch, self.progress
            )
            problem = with_microbatches(problem, options.microbatches)
        else:
            program = capture_model(self.model, options=options)
            # Say once how the batch is cut.
            is_first_cut = options.microbatches == SIZES[1]
            say_batch(program, self.progress if is_first_cut else None)
            cluster = self.cluster or "auto"
            problem = profile_model(
                program, cluster, options=options, progress=self.progress
            )
        problem = self.correct(problem)
        return Size(
            options=options,
            program=program,
            problem=problem,
            work=_compute_work(problem),
        )


def choose_microbatches(
    sized_model: SizedModel, place: Place
) -> tuple[list[Size], Size]:
    """Place a model at every size. Return all sizes, and the one with the shortest step.

    The arguments are those of ``try_sizes``.

    Raises:
        InputError: The model cannot be captured with the whole batch.
        InfeasibleError: No size has a placement; the message says why the whole batch has none.
    """
    sizes = try_sizes(sized_model, place)
    return sizes, choose(sizes)


def try_sizes(sized_model: SizedModel, place: Place) -> list[Size]:
    """Place a model at every size that its batch can be cut into.

    Args:
        sized_model: The model, its cluster, and how it is captured.
        place: The search that places one problem.

    Raises:
        InputError: The model cannot be captured with the whole batch.
    """
    progress = sized_model.progress
    sizes: list[Size] = []
    best_step_time = np.inf
    for size in sized_model.sizes():
        bound = lower_bound(size.problem)
        if bound >= best_step_time:
            note = f"not placed: no step of it is below {milliseconds_text(bound)} ms"
            sizes.append(replace(size, note=note))
            continue
        if progress is not None:
            progress(f"placing {size.microbatches} micro-batches")
        placed = _place_size(size, place)
        sizes.append(placed)
        if placed.result is not None:
            best_step_time = min(best_step_time, placed.result.step_time)
    return sizes


def choose(sizes: list[Size]) -> Size:
    """Return the size with the shortest step; of equal ones, that with the fewest micro-batches.

    Raises:
        InfeasibleError: No size has a placement; the message says why the whole batch has none.
    """
    best: Size | None = None
    best_step_time = np.inf
    for size in sizes:
        if size.result is None:
            continue
        if best is None or size.result.step_time < best_step_time:
            best = size
            best_step_time = size.result.step_time
    if best is None:
        raise InfeasibleError(f"micro-batches: no size can be placed; {sizes[0].note}")
    return best


def _place_size(size: Size, place: Place) -> Size:
    """Return the size with its placement, or with the reason why it has none."""
    try:
        return replace(size, result=place(size.problem))
    except InfeasibleError as error:
        return replace(size, note=str(error))


def _compute_work(problem: Problem) -> float:
    """Return the seconds of all ops on the fastest device; NaN if no device can run them all."""
    runs_all_ops = np.isfinite(problem.times).all(axis=0)
    seconds = problem.times[:, runs_all_ops].sum(axis=0)
    if len(seconds):
        return float(seconds.min())
    return float("nan")
