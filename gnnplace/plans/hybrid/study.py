"""How to use N devices: data-parallel groups of model-parallel devices, and when training ends.

Every split of N devices is placed, its all-reduce added, its time to converge predicted; what comes
out says from how many devices on a hybrid is faster than data parallelism (after Pal et al., 2019).

A group's step is a joint plan of layers, or a placement of single ops. The former runs, and has no
branches of the model side by side, which the latter may (`plans.handover` says when). Both have
clocks of their own, so that they are never mixed in one table: the answer is the table whose best
split ends first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from gnnplace.costs import (
    ALL_REDUCE,
    BUCKET,
    LinkTable,
    estimate_collective,
    has_local_device,
    is_problem_file,
    move_to_cluster,
    read_or_profile,
)
from gnnplace.errors import GnnplaceError, InfeasibleError, InputError
from gnnplace.placing import place, warm
from gnnplace.plans.hybrid.advice import ReplicaAdvice, advise
from gnnplace.plans.hybrid.convergence import (
    ConvergenceOptions,
    Preset,
    Training,
    find_preset,
    make_training,
)
from gnnplace.plans.hybrid.gradients import ReplicaStep, price_placed_step
from gnnplace.plans.hybrid.splits import (
    MICROBATCHES,
    PlacedSplitter,
    SplitRow,
    Splitter,
    device_counts,
    group_sizes,
)
from gnnplace.plans.job import CAPTURING, Progress, TrainingJob
from gnnplace.plans.mesh import MeshFabric
from gnnplace.plans.plan import row_length
from gnnplace.problem import UPDATE, Cluster, Problem, read_problem
from gnnplace.tracing import CaptureOptions

if TYPE_CHECKING:
    from gnnplace.plans.hybrid.groups import PlannedSteps

NOT_COUNTED = "not counted: the problem has no update ops, so nothing says how large gradients are"
MOST = 8
"""Devices of a group at most: those of a server, whose links a step's messages need. Searches for
placements on more devices than that find little (`plans.handover`)."""
PART = 5
"""The part of the budget that the search for one placement takes: one in so many."""
PLACER = "best"
AUTO = "auto"
"""The headroom that allocator, libraries and NCCL take."""


@dataclass(frozen=True)
class HybridOptions(ConvergenceOptions):
    """The options of a hybrid study.

    Attributes, beside those of `ConvergenceOptions`:
        max_devices: N, the devices that are used at most; None: the cluster's.
        batch: Examples of a step of one group; None: the model's. A problem file does not say it.
        precision: Precision of parameters and passes; None: that of `TrainingJob`.
        optimizer: The optimizer; None: that of `TrainingJob`.
        accept_other_loss: Whether the batch may be cut where its loss is another one then.
        memory_limit: Bytes that every device has, instead of its own.
        headroom: What stays free on every device, as `gnnplace.plan` takes it.
        budget: Seconds of search; each placement of single ops takes one in `PART`.
        runnable: Whether groups are plans of layers alone, which can be run.
        tokens: Tokens that training needs at small batches, where examples are rows of tokens.
        links: A log of nccl-tests, whose figures replace those of the cluster's links.
    """

    max_devices: int | None = None
    batch: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    accept_other_loss: bool = False
    memory_limit: float | None = None
    headroom: str | float | None = AUTO
    budget: float = 10.0
    runnable: bool = False
    tokens: float | None = None
    links: str | None = None


@dataclass(frozen=True, eq=False)
class HybridStudy:
    """The result of a hybrid study.

    Attributes:
        what: The model or problem file.
        name: The model's name, or the problem's.
        devices: N, the largest number of devices.
        rows: Every division of up to N devices into groups.
        advice: The recommended row, and from where on a hybrid pays.
        origin: The origin of each kind of figure.
        step: What a group's step is, in words.
        job: What is trained, its batch that of a group; None for a problem file.
        cluster: The devices, with the memory that may be used; None where they are not known.
        alternative: The study whose groups' steps are made in the other way, which ends later; None
            if there is no other way.
    """

    what: str
    name: str
    devices: int
    rows: Sequence[SplitRow]
    advice: ReplicaAdvice
    origin: dict[str, str]
    step: str = ""
    job: TrainingJob | None = None
    cluster: Cluster | None = None
    alternative: HybridStudy | None = None

    @property
    def seconds(self) -> float:
        """Return the seconds of the shortest training, or inf if none is known."""
        if self.advice.best is None:
            return math.inf
        return self.advice.best.seconds


class GroupSteps(Protocol):
    """What makes the steps of groups of devices."""

    @property
    def has_gradients(self) -> bool:
        """Return whether it is known how large gradients are."""

    @property
    def origin(self) -> str:
        """Return the origin of the steps."""

    @property
    def step(self) -> str:
        """Return what a group's step is, in words."""

    def splitter(self, fabric: MeshFabric, training: Training, mixes: str) -> Splitter:
        """Return the maker of rows with these steps; arguments as of `Splitter`."""


def study_groups(
    what: str,
    machine: Cluster,
    options: HybridOptions,
    *,
    table: LinkTable | None = None,
    progress: Progress = lambda line: None,
) -> HybridStudy:
    """Split up to N devices in every way and predict which split converges first.

    Args:
        what: A model or a problem file.
        machine: The devices, with the memory that may be used.
        options: What is trained, and for how long ways of sharing a step are searched.
        table: Measured times of collectives; None for the package's.
        progress: Called with a line when something begins that takes seconds.

    Raises:
        InputError: If an argument is bad.
        InfeasibleError: If no split fits its devices' memory.
    """
    num_devices = options.max_devices or machine.num_devices
    if num_devices > machine.num_devices:
        raise InputError(
            f"--max-devices {num_devices}: the cluster has {machine.num_devices} devices; write "
            "--cluster NxPRESET for N copies of a preset"
        )
    counts = device_counts(num_devices)
    copy = machine if machine.copies is None else machine.copies.cluster
    sizes = group_sizes(num_devices, min(MOST, copy.num_devices))
    # A problem file has ops alone; a model has layers, and ops where these may gain.
    name = what
    mixes = ""
    job: TrainingJob | None = None
    ways: list[GroupSteps]
    if is_problem_file(what):
        problem = read_problem(what)
        name = problem.name
        preset = find_preset(name)
        batch = _find_problem_batch(options)
        other_cluster = None if machine == problem.cluster else machine
        ways = [Placing(what, other_cluster, options, progress)]
    else:
        job, planned = _capture_and_plan(what, machine, options, progress)
        batch = planned.chain.batch
        mixes = planned.chain.mixes
        preset = _find_model_preset(what, planned, options)
        ways = [planned]
        if not options.runnable:
            ways += _placings(job, planned, machine, options, progress)
    # Every way of sharing a group's step has a table of its own, with the same epochs.
    training = make_training(preset, options, batch)
    convergence = training.convergence
    fabric = MeshFabric(machine, table)
    examples_origin = f"preset {preset.name!r}: {preset.examples_source}"
    studies = list[HybridStudy]()
    for way in ways:
        rows = way.splitter(fabric, training, mixes).rows(counts, sizes)
        origin = {
            "step": way.origin,
            "all_reduce": reduce_origin(fabric, num_devices)
            if way.has_gradients
            else NOT_COUNTED,
            "examples": examples_origin if options.examples is None else "given",
            "epochs": f"{convergence.origin}: {convergence.source}",
        }
        studies.append(
            HybridStudy(
                what=what,
                name=name,
                devices=num_devices,
                rows=rows,
                advice=advise(rows),
                origin=origin,
                step=way.step,
                job=job,
                cluster=machine,
            )
        )
    fitting = [s for s in studies if any(row.parts is not None for row in s.rows)]
    if not fitting:
        raise InfeasibleError(
            f"no split of {num_devices} devices fits; {studies[0].rows[0].note}"
        )
    best = min(fitting, key=lambda study: study.seconds)
    others = [study for study in fitting if study is not best]
    return replace(best, alternative=others[0] if others else None)


def _find_problem_batch(options: HybridOptions) -> int:
    """Return the examples of a step of a problem file, which it does not say.

    Raises:
        InputError: If the options do not say it either, or say what the file says.
    """
    of_models = ("precision", "optimizer", "memory_limit", "tokens")
    stated = [name for name in of_models if getattr(options, name) is not None]
    stated += [n for n in ("accept_other_loss", "runnable") if getattr(options, n)]
    stated += ["headroom"] if options.headroom != AUTO else []
    if stated:
        option = stated[0].replace("_", "-")
        raise InputError(f"--{option}: is of a model; a problem file has ops alone")
    if options.batch is None:
        raise InputError(
            "--batch: a problem file does not say how many examples a step has"
        )
    return options.batch


def _capture_and_plan(
    model: str, machine: Cluster, options: HybridOptions, progress: Progress
) -> tuple[TrainingJob, PlannedSteps]:
    """Capture a model, and return the job of training it and the steps of plans of its layers."""
    from gnnplace.plans.handover import name_with_batch
    from gnnplace.plans.hybrid.groups import PlannedSteps
    from gnnplace.plans.segments.chains import capture_chain

    if options.batch is not None:
        model = name_with_batch(model, options.batch)
    job = TrainingJob(
        model,
        precision=options.precision,
        optimizer=options.optimizer,
        accept_other_loss=options.accept_other_loss,
    )
    progress(CAPTURING)
    return job, PlannedSteps(capture_chain(job, machine))


def _find_model_preset(
    model: str, planned: PlannedSteps, options: HybridOptions
) -> Preset:
    """Return how a captured model converges."""
    chain = planned.chain
    length = None
    if chain.inputs:
        _, shape, dtype = chain.inputs[0]
        length = row_length(shape, dtype)
    return find_preset(model, chain.parameters, length, options.tokens)


def _placings(
    job: TrainingJob,
    planned: PlannedSteps,
    machine: Cluster,
    options: HybridOptions,
    progress: Progress,
) -> list[GroupSteps]:
    """Return the placer of single ops where these may gain, else nothing.

    Ops of devices that are here would be measured, which says nothing beside prices.
    """
    from gnnplace.plans.handover import DTYPES, may_gain

    if has_local_device(machine) or not may_gain(planned.chain, machine):
        return []
    assert isinstance(job.model, str)
    capture = CaptureOptions(
        optimizer=planned.chain.optimizer,
        dtype=DTYPES[planned.chain.precision],
        accept_other_loss=options.accept_other_loss,
    )
    copy = machine if machine.copies is None else machine.copies.cluster
    try:
        return [Placing(job.model, copy, options, progress, capture)]
    except GnnplaceError as error:
        progress(f"not by single ops: {error}")
        return []


def reduce_origin(fabric: MeshFabric, most: int) -> str:
    """Return where seconds of all-reduces over up to `most` devices come from."""
    copies = fabric.cluster.copies
    inside = fabric if copies is None else fabric.inside
    group = inside.group(range(inside.cluster.num_devices))
    origin = "predicted from the cluster's links"
    if group is not None:
        measured = estimate_collective(ALL_REDUCE, BUCKET, group, inside.table)
        origin = (
            f"{measured.provenance} (expected error {measured.error:.0%} over all devices of "
            f"the cluster): {measured.source}"
        )
    if copies is None or most <= copies.cluster.num_devices:
        return origin
    return (
        f"{origin}, between copies {copies.bandwidth / 1e9:g} GB/s and "
        f"{copies.latency * 1e6:g} us as the cluster says (assumed of NxPRESET)"
    )


class Placing:
    """A placer of the model on parts of the cluster, for several numbers of micro-batches.

    Args:
        what: A model or a problem file.
        cluster: The cluster whose kinds of devices need op times; None: a problem file's own.
        options: The budget.
        progress: Called with a line when something begins that takes seconds.
        capture: The options with which a model is captured.

    Raises:
        InputError, CaptureError: If there is no such model, or it cannot be captured.
    """

    step = "a placement of single ops for a group"

    def __init__(
        self,
        what: str,
        cluster: Cluster | None,
        options: HybridOptions,
        progress: Progress,
        capture: CaptureOptions | None = None,
    ) -> None:
        self.what = what
        self.cluster = cluster
        self.budget = options.budget / PART
        self.progress = progress
        self.capture = capture or CaptureOptions()
        self.problems: dict[int, Problem] = {}
        for count in MICROBATCHES:
            try:
                self.problems[count] = self._problem(count)
            except InputError as error:
                if not self.problems:
                    raise
                progress(f"not with {count} micro-batches: {error}")
        most_ops = max(problem.num_ops for problem in self.problems.values())
        warm([PLACER], progress=progress, num_ops=most_ops)

    @property
    def has_gradients(self) -> bool:
        """Return whether the problems say how large gradients are: some op updates parameters."""
        return any(
            bool((problem.phase == UPDATE).any()) for problem in self.problems.values()
        )

    @property
    def origin(self) -> str:
        """Return where steps come from: measured op times, or estimated ones if any is."""
        estimated = any(
            bool(problem.estimated.any()) for problem in self.problems.values()
        )
        return f"predicted from {'estimated' if estimated else 'measured'} op times"

    def splitter(
        self, fabric: MeshFabric, training: Training, mixes: str
    ) -> PlacedSplitter:
        """Return the maker of rows whose groups are placed; arguments as of `Splitter`."""
        return PlacedSplitter(fabric, training, self, mixes)

    def _problem(self, count: int) -> Problem:
        options = replace(self.capture, microbatches=count)
        return read_or_profile(self.what, self.cluster, options, self.progress)

    def __call__(self, cluster: Cluster) -> Sequence[ReplicaStep]:
        """Return the placed steps that fit, one for each number of micro-batches.

        Raises:
            InfeasibleError: If it fits with no number of micro-batches.
        """
        results = []
        error = None
        for count, problem in self.problems.items():
            self.progress(
                f"placing {count} micro-batch{'es' if count > 1 else ''} on "
                f"{cluster.num_devices} device{'s' if cluster.num_devices > 1 else ''}"
            )
            try:
                part = move_to_cluster(problem, cluster)
                result = place(part, placer=PLACER, budget=self.budget, seed=0)
                if is_problem_file(self.what):
                    scale = count
                else:
                    scale = 1
                results.append(price_placed_step(part, result, scale=scale))
            except InfeasibleError as reason:
                error = reason
        if not results:
            raise error or InfeasibleError("nothing was placed")
        return results
