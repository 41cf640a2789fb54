"""``study_hybrid``: how to use N devices, as data-parallel groups of model-parallel devices.

Every split of N devices is placed, its all-reduce added, its time to converge predicted; what comes
out says from how many devices on a hybrid is faster than data parallelism (after Pal et al., 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from gnnplace.costs import (
    LinkTable,
    is_problem_file,
    on_cluster,
    read_or_profile,
    resolve_cluster,
    with_measurements,
)
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.plans.hybrid.advice import ReplicaAdvice, advise
from gnnplace.plans.hybrid.convergence import (
    ConvergenceOptions,
    preset_of,
    training_of,
)
from gnnplace.plans.hybrid.fabric import ClusterCopies
from gnnplace.plans.hybrid.gradients import ReplicaStep, placed_step
from gnnplace.plans.hybrid.splits import SplitRow, Splitter, device_counts, group_sizes
from gnnplace.policy import place, warm
from gnnplace.problem import UPDATE, Cluster, Problem, read_problem
from gnnplace.tracing import CaptureOptions

Progress = Callable[[str], None]
NOT_COUNTED = "not counted: the problem has no update ops, so nothing says how large gradients are"
MICROBATCHES = (1, 4)
PLAN = "plan"  # instead of a placer: steps are those of joint plans


@dataclass(frozen=True)
class HybridOptions(ConvergenceOptions):
    """The options of a hybrid study.

    Attributes, beside those of `ConvergenceOptions`:
        devices: N; more than the cluster has are copies of it. None: the cluster's.
        most: Devices of a group, at most.
        batch: Examples of a step; for problem files, which do not say it.
        network_latency: Seconds, between copies of the cluster.
        network_bandwidth: Bytes a second, between copies of the cluster.
        overlap: Whether gradients are reduced while the backward pass goes on.
        links: A log of nccl-tests, whose figures replace those of the cluster's links.
    """

    devices: int | None = None
    most: int = 8
    batch: int | None = None
    network_latency: float = 10e-6
    network_bandwidth: float = 10e9
    overlap: bool = True
    links: str | None = None

    def __post_init__(self) -> None:
        if self.most < 1:
            raise InputError(
                f"--most {self.most}: must be a positive number of devices"
            )
        super().__post_init__()


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
    """

    what: str
    name: str
    devices: int
    rows: Sequence[SplitRow]
    advice: ReplicaAdvice
    origin: dict[str, str]


def study_hybrid(
    what: str,
    cluster: str | Cluster | None = None,
    *,
    options: HybridOptions | None = None,
    search: Search | None = None,
    progress: Progress = lambda line: None,
) -> HybridStudy:
    """Split up to N devices in every way and predict which split converges first.

    Args:
        what: A model or a problem file.
        cluster: A preset's name, a YAML file or a cluster. A problem file has its own.
        options: Options of the study: devices, data set, convergence, network.
        search: The options with which a group's step is placed.
        progress: Called with a line when something begins that takes seconds.

    Raises:
        FormatError: If a line of the log cannot be read.
        InputError: If an argument is bad, or the options ask for inference.
        InfeasibleError: If no split fits its devices' memory.
    """
    options = options or HybridOptions()
    search = search or Search()
    if search.capture.forward_only:
        raise InputError("--forward-only: hybrid is about training")
    problem = read_problem(what) if is_problem_file(what) else None
    if cluster is not None:
        machine = resolve_cluster(cluster)
    elif problem is not None:
        machine = problem.cluster
    else:
        raise InputError("hybrid: a model needs --cluster")
    # Measured links replace the cluster's own before anything is priced.
    table: LinkTable | None = None
    if options.links is not None:
        measured = with_measurements(machine, options.links)
        machine = measured.cluster
        table = measured.table
        for note in measured.notes:
            progress(note)
    fabric = ClusterCopies(
        machine, options.network_latency, options.network_bandwidth, table
    )
    if options.devices is None:
        num_devices = machine.num_devices
    else:
        num_devices = options.devices
    counts = device_counts(num_devices)
    name = what if problem is None else problem.name
    preset = preset_of(name)
    training = training_of(preset, options, _batch(what, options.batch))
    # A group is one placement of the model, or a plan of a pipeline or of split layers.
    place_on: Placing | PlannedSteps
    if search.placer == PLAN:
        from gnnplace.plans.hybrid.groups import PlannedSteps

        place_on = PlannedSteps(what, machine, search, progress)
    else:
        place_on = Placing(
            what, machine if cluster is not None else None, search, progress
        )
    splitter = Splitter(fabric, training, place_on, overlap=options.overlap)
    rows = splitter.rows(
        counts, group_sizes(num_devices, min(options.most, machine.num_devices))
    )
    if not any(row.parts is not None for row in rows):
        raise InfeasibleError(
            f"hybrid: no split of {num_devices} devices fits; {rows[0].note}"
        )
    # Say where every kind of figure comes from.
    convergence_origin = f"preset {preset.name!r}: {preset.examples_source}"
    convergence = training.convergence
    origin = {
        "step": place_on.origin,
        "all_reduce": fabric.origin(num_devices)
        if place_on.has_gradients
        else NOT_COUNTED,
        "examples": convergence_origin if options.examples is None else "given",
        "epochs": f"{convergence.origin}: {convergence.source}",
    }
    return HybridStudy(what, name, num_devices, rows, advise(rows), origin)


def _batch(what: str, batch: int | None) -> int:
    """Return the examples of a step of one group: those given, or the model's own batch.

    Raises:
        InputError: If neither the problem file nor the caller says it, or if it is given beside a
            model.
    """
    if is_problem_file(what):
        if batch is None:
            raise InputError(
                "--batch: a problem file does not say how many examples a step has"
            )
        return batch
    if batch is not None:
        raise InputError(
            "--batch: is for problem files; a model says it itself: MODEL?batch=B"
        )
    from gnnplace.plans.segments.chains import batch_of
    from gnnplace.tracing import load

    return batch_of(load(what, fake=True))


@dataclass(frozen=True)
class Search:
    """The options with which a group's step is placed.

    Attributes:
        placer: The name of the placer; "plan": groups are pipelines or split layers, as plans.
        budget: Seconds of each search.
        seed: The seed of all randomness.
        microbatches: Numbers of micro-batches to try.
        capture: The options with which a model is captured.
    """

    placer: str = "best"
    budget: float = 2.0
    seed: int = 0
    microbatches: Sequence[int] = MICROBATCHES
    capture: CaptureOptions = field(default_factory=CaptureOptions)


class Placing:
    """A placer of the model on parts of the cluster, for several numbers of micro-batches.

    Args:
        what: A model or a problem file.
        cluster: The cluster whose kinds of devices need op times; None: a problem file's own.
        search: How a group's step is placed.
        progress: Called with a line when something begins that takes seconds.

    Raises:
        InputError, CaptureError: If there is no such model, or it cannot be captured.
    """

    def __init__(
        self, what: str, cluster: Cluster | None, search: Search, progress: Progress
    ) -> None:
        self.what = what
        self.cluster = cluster
        self.search = search
        self.progress = progress
        self.problems: dict[int, Problem] = {}
        for count in sorted(set(search.microbatches)):
            try:
                self.problems[count] = self._problem(count)
            except InputError as error:
                if count == 1 or not self.problems:
                    raise
                progress(f"not with {count} micro-batches: {error}")
        most_ops = max(problem.num_ops for problem in self.problems.values())
        warm([search.placer], progress=progress, num_ops=most_ops)

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

    def _problem(self, count: int) -> Problem:
        options = replace(self.search.capture, microbatches=count)
        return read_or_profile(self.what, self.cluster, options, self.progress)

    def __call__(self, cluster: Cluster) -> Sequence[ReplicaStep]:
        """Return the placed steps that fit, one for each number of micro-batches.

        Raises:
            InfeasibleError: If it fits with no number of micro-batches.
        """
        results = []
        error = None
        search = self.search
        for count, problem in self.problems.items():
            self.progress(
                f"placing {count} micro-batch{'es' if count > 1 else ''} on "
                f"{cluster.num_devices} device{'s' if cluster.num_devices > 1 else ''}"
            )
            try:
                part = on_cluster(problem, cluster)
                result = place(
                    part, placer=search.placer, budget=search.budget, seed=search.seed
                )
                if is_problem_file(self.what):
                    scale = count
                else:
                    scale = 1
                results.append(placed_step(part, result, scale=scale))
            except InfeasibleError as reason:
                error = reason
        if not results:
            raise error or InfeasibleError("nothing was placed")
        return results
