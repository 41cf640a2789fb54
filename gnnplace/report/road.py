"""``walk_road``: captures, profiles, places, executes and verifies a model (``gnnplace demo``).

Every listed placer places the model. Placements of placers that are marked in the table of placers
are executed on real workers and compared with one device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gnnplace.costs import profile_model
from gnnplace.errors import GnnplaceError, InputError
from gnnplace.measurements import MeasurementStore
from gnnplace.placers import Result
from gnnplace.placing import (
    DEFAULT_BUDGET,
    ROSTER,
    Size,
    SizedModel,
    choose_microbatches,
    compare,
    place,
    warm,
)
from gnnplace.problem import Placement, Problem, write_problem
from gnnplace.report.answer import Answer, Lines, Section
from gnnplace.report.placements import write_placements
from gnnplace.report.rows import (
    Row,
    eager_line,
    make_row,
    summary_lines,
    with_best_bound,
)
from gnnplace.report.tables import comparison, sizes_table
from gnnplace.report.timeline import Timeline, from_execution, from_simulation
from gnnplace.report.trace import write_trace
from gnnplace.run.measuring import Executed, eager_times, execute_placement
from gnnplace.run.placed import ExecutionOptions, RecordOptions
from gnnplace.tracing import CaptureOptions, Program, capture_model, say_batch
from gnnplace.units import seconds_text

Progress = Callable[[str], None]
Failure = tuple[str, GnnplaceError]


@dataclass(frozen=True)
class Walking:
    """The settings of a demo.

    Attributes:
        model: a model by its name.
        cluster: the cluster of this machine.
        capture: how the model is captured.
        auto: whether the number of micro-batches is searched for.
        budget: seconds of each placer.
        seed: the seed of all randomness.
        steps: steps of a run.
        mode: ``auto``, ``measured`` or ``emulated``.
        transport: ``shm`` or ``gloo``.
        timeout: seconds without progress after which a run is given up.
    """

    model: str = "two_tower"
    cluster: str = "cpu:2"
    capture: CaptureOptions = field(default_factory=CaptureOptions)
    auto: bool = False
    budget: float = DEFAULT_BUDGET
    seed: int = 0
    steps: int = 10
    mode: str = "auto"
    transport: str = "shm"
    timeout: float = 120.0


@dataclass(eq=False)
class Road:
    """The results of a demo.

    Attributes:
        walking: how.
        program: the captured model.
        problem: profiled.
        results: the results of every placer; one that could not stands with its error.
        runs: executed placements, by placer.
        rows: one a placer, with the best of all bounds.
        eager: seconds of an eager step by number of cores; empty where it does other work.
        sizes: numbers of micro-batches that were tried, if they were searched for.
        chosen: the one taken of these.
        whole: the whole batch on one device, where micro-batches were chosen.
    """

    walking: Walking
    program: Program
    problem: Problem
    results: Sequence[Result | Failure] = ()
    runs: dict[str, Executed] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    eager: dict[int, float] = field(default_factory=dict)
    sizes: Sequence[Size] = ()
    chosen: Size | None = None
    whole: Executed | None = None

    @property
    def passed(self) -> bool:
        """Return whether every run computed what one device computes."""
        return all(run.passed for run in self.runs.values())

    def write(self, folder: Path) -> None:
        """Write problem.json, report.html and trace.json.

        Args:
            folder: A folder that exists.
        """
        timelines = self._timelines()
        write_problem(folder / "problem.json", self.problem)
        write_placements(folder / "report.html", self.problem, timelines, self.rows)
        write_trace(folder / "trace.json", timelines)

    def _show(self) -> list[Result | Failure]:
        return [
            r for name in ("best", "single") for r in self.results if _name(r) == name
        ]

    def _timelines(self) -> list[Timeline]:
        timelines: list[Timeline] = []
        for result in self._show():
            if not isinstance(result, Result):
                continue
            name = result.placer
            if name in self.runs:
                timelines.append(
                    from_execution(self.problem, self.runs[name].execution, name)
                )
            timelines.append(from_simulation(self.problem, result.simulation, name))
        return timelines


def describe_road(road: Road) -> Answer:
    """Describe a demo: the placers side by side, and what running them showed."""
    problem = road.problem
    title = (
        f"{problem.name}: {len(road.program.ops)} captured ops, {problem.num_ops} after "
        f"grouping, on {road.walking.cluster}"
    )
    sections: list[Section] = []
    if road.chosen is not None:
        sections.append(sizes_table(road.sizes, road.chosen))
    lines = [*summary_lines(road.rows), *_verdict(road), *_compare_whole(road)]
    if road.eager:
        lines.append(eager_line(road.eager))
    caveats = sorted({run.execution.caveat for run in road.runs.values()} - {""})
    lines += [f"not to be compared: {caveat}" for caveat in caveats]
    sections += [comparison(road.rows, title), Lines(lines)]
    return Answer(title, sections)


def _verdict(road: Road) -> list[str]:
    """Return a note if the best split, as run, is slower than one device."""
    times = {name: run.execution.step_time for name, run in road.runs.items()}
    if "best" not in times or times["best"] <= times.get("single", float("inf")):
        return []
    share = times["best"] / times["single"] - 1
    return [
        f"one device is best here, as run: the split that was predicted best is {share:.0%} slower"
    ]


def _compare_whole(road: Road) -> list[str]:
    """Return a line about one device with the whole batch, which micro-batches have to beat."""
    if road.whole is None:
        return []
    seconds = road.whole.execution.step_time
    line = f"one device, whole batch: {seconds_text(seconds)}"
    if "best" in road.runs:
        gain = seconds / road.runs["best"].execution.step_time
        line += f"; best with {road.problem.microbatches} micro-batches is {gain:.2f}x as fast"
    return [f"{line} ({road.whole.verification.summary()})"]


def walk_road(
    walking: Walking | None = None,
    *,
    store: MeasurementStore | None = None,
    progress: Progress = lambda line: None,
) -> Road:
    """Capture, profile, place with every placer, execute some, verify, time eager PyTorch.

    Args:
        walking: model, cluster, budget and so on.
        store: The store of measured steps, or None.
        progress: called with a line when something begins that takes seconds.

    Raises:
        InputError, CaptureError: there is no such model or cluster, or it cannot be captured.
        ExecutionError: a worker died, hung or failed.
    """
    walking = walking or Walking()
    if walking.auto:
        road = _search(walking, progress)
    else:
        road = _capture(walking, progress)
    warm(progress=progress, num_ops=road.problem.num_ops)
    road.results = compare(
        road.problem, budget=walking.budget, seed=walking.seed, progress=progress
    )
    run = partial(_execute, road, store, progress)
    for result in road.results:
        if (
            isinstance(result, Result)
            and result.placer in ROSTER
            and ROSTER[result.placer].executed
        ):
            progress(f"executing and verifying {result.placer}")
            road.runs[result.placer] = run(road.program, road.problem, result.placement)
    road.rows = with_best_bound([_row(result, road.runs) for result in road.results])
    _run_beside(road, run, progress)
    return road


def _capture(walking: Walking, progress: Progress) -> Road:
    progress(f"capturing the training step of {walking.model}")
    program = capture_model(walking.model, options=walking.capture)
    say_batch(program, progress)
    progress(f"captured {len(program.ops)} ops; profiling on {walking.cluster}")
    problem = profile_model(
        program, walking.cluster, options=walking.capture, progress=progress
    )
    return Road(walking, program, problem)


def _search(walking: Walking, progress: Progress) -> Road:
    """Return the road whose number of micro-batches is predicted to be the fastest."""
    model = walking.model
    progress(
        f"capturing and profiling the training step of {model} at every share of its batch"
    )
    warm(["best"], progress=progress)
    placing = partial(place, budget=walking.budget, seed=walking.seed)
    sized_model = SizedModel(model, walking.cluster, walking.capture, progress=progress)
    sizes, size = choose_microbatches(sized_model, placing)
    if size.program is None:
        raise InputError(f"model {model!r}: the demo needs a model, not a problem file")
    return Road(walking, size.program, size.problem, sizes=sizes, chosen=size)


def _execute(
    road: Road,
    store: MeasurementStore | None,
    progress: Progress,
    program: Program,
    problem: Problem,
    placement: Placement,
) -> Executed:
    walking = road.walking
    run = execute_placement(
        program,
        problem,
        placement,
        run=ExecutionOptions(
            steps=walking.steps,
            mode=walking.mode,
            transport=walking.transport,
            timeout=walking.timeout,
        ),
        record=RecordOptions(store=store, label=walking.model, source="demo"),
    )
    if run.fault:
        progress(f"measurements are not all kept: {run.fault}")
    return run


def _run_beside(road: Road, run: Callable[..., Executed], progress: Progress) -> None:
    """Run the whole batch on one device, and time eager PyTorch if it does the same work."""
    walking = road.walking
    size = road.chosen
    if size is not None and size.microbatches > 1 and road.sizes[0].program is not None:
        progress("executing the whole batch on one device")
        problem = road.sizes[0].problem
        alone = place(problem, placer="single", budget=0.0).placement
        road.whole = run(road.sizes[0].program, problem, alone)
    if not walking.capture.forward_only and walking.capture.dtype == "float32":
        road.eager = eager_times(walking.model, walking.capture, progress)


def _name(result: Result | Failure) -> str:
    if isinstance(result, tuple):
        return result[0]
    return result.placer


def _row(result: Result | Failure, runs: dict[str, Executed]) -> Row:
    run = runs.get(_name(result))
    if run:
        return make_row(result, run.execution, run.verification)
    return make_row(result)
