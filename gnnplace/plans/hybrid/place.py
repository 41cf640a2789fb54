"""A model or a problem file placed on parts of a cluster, with several numbers of micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from gnnplace.costs.profiling.profiler import read_or_profile
from gnnplace.costs.profiling.targets import is_problem_file, on_cluster
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.plans.hybrid.gradients import PlacedStep, placed_step
from gnnplace.policy.placing import place
from gnnplace.policy.warming import warm
from gnnplace.problem import UPDATE, Problem
from gnnplace.problem.cluster import Cluster
from gnnplace.tracing.options import CaptureOptions

Progress = Callable[[str], None]
MICROBATCHES = (1, 4)


@dataclass(frozen=True)
class Search:
    """How a group's step is placed.

    Attributes:
        placer: its name.
        budget: seconds of each search.
        seed: the seed of all randomness.
        microbatches: numbers of micro-batches to try.
        capture: how a model is captured.
    """

    placer: str = "best"
    budget: float = 2.0
    seed: int = 0
    microbatches: Sequence[int] = MICROBATCHES
    capture: CaptureOptions = field(default_factory=CaptureOptions)


class Placing:
    """Places the model on parts of the cluster, with every number of micro-batches asked for.

    Args:
        what: a model or a problem file.
        cluster: whose kinds op times are needed of; None: a problem file's own.
        search: how.
        progress: called with a line when something begins that takes seconds.

    Raises:
        InputError, CaptureError: there is no such model, or it cannot be captured.
    """

    def __init__(
        self, what: str, cluster: Cluster | None, search: Search, progress: Progress
    ) -> None:
        self.what, self.cluster, self.search, self.progress = what, cluster, search, progress
        self.problems: dict[int, Problem] = {}
        for count in sorted(set(search.microbatches)):
            try:
                self.problems[count] = self._problem(count)
            except InputError as error:
                if count == 1 or not self.problems:
                    raise
                progress(f"not with {count} micro-batches: {error}")
        most = max(problem.num_ops for problem in self.problems.values())
        warm([search.placer], progress=progress, num_ops=most)

    @property
    def has_gradients(self) -> bool:
        """Whether the problems say how large gradients are: some op updates parameters."""
        return any(bool((problem.phase == UPDATE).any()) for problem in self.problems.values())

    @property
    def estimated(self) -> bool:
        """Whether op times were not all measured."""
        return any(bool(problem.estimated.any()) for problem in self.problems.values())

    def _problem(self, count: int) -> Problem:
        options = replace(self.search.capture, microbatches=count)
        return read_or_profile(self.what, self.cluster, options, self.progress)

    def __call__(self, cluster: Cluster) -> Sequence[PlacedStep]:
        """Placed steps; those that fit.

        Raises:
            InfeasibleError: none does.
        """
        found, error, search = [], None, self.search
        for count, problem in self.problems.items():
            self.progress(
                f"placing {count} micro-batch{'es' if count > 1 else ''} on "
                f"{cluster.num_devices} device{'s' if cluster.num_devices > 1 else ''}"
            )
            try:
                own = on_cluster(problem, cluster)
                result = place(own, placer=search.placer, budget=search.budget, seed=search.seed)
                scale = count if is_problem_file(self.what) else 1
                found.append(placed_step(own, result, scale=scale))
            except InfeasibleError as reason:
                error = reason
        if not found:
            raise error or InfeasibleError("nothing was placed")
        return found
