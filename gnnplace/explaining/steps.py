"""`ExplainedStep`: a plan's step that can be priced with one thing changed; its parts and causes.

**Parts** (`step_parts`). Each part is the difference between two prices of the step, so that it has
only seconds that are not hidden behind something else, and the parts add up to the step. In order:

1. `offload`: the step minus the step with everything on the GPUs;
2. `messages`: that step minus the same with messages that take no time;
3. `bubble`: what is then left of the step besides the work of the busiest rank;
4. `checks`, `host`, `replicas`, `shards`, `recompute`: parts of that work, removed one after the
   other;
5. `update`, the optimizer's step, and `compute`, the kernels that are left.

**Causes** (`step_causes`). The step is also priced under each reason why a run may be slower than
predicted (`explaining.causes`). If a step was measured, the likeliest causes come first, each with
the factor that explains the measured step.

A subclass says where the seconds come from: a model's sizes (`explaining.in_words`) or a captured
model (`explaining.captured`).

Complexity: eleven prices for the parts, some forty for the causes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gnnplace.costs import Framework, load_environment_constants
from gnnplace.errors import InputError
from gnnplace.explaining.causes import SlowdownCause, StepAt, rank_causes
from gnnplace.explaining.framework_variants import (
    IdleNetwork,
    with_host,
    with_network,
    with_slow_links,
    without_messages,
)
from gnnplace.plans import PlanAnswer, Priced

PARTS = {
    "compute": "kernels of the busiest rank",
    "checks": "collectives that are checked",
    "host": "launches that kernels wait for",
    "messages": "messages between stages",
    "replicas": "exchanges of replicas: gradients, ZeRO",
    "shards": "exchanges of shards inside of stages",
    "recompute": "what is recomputed",
    "update": "the optimizer's step",
    "offload": "copies between GPUs and hosts, and what hosts update",
    "bubble": "waits for other stages",
}
"""What a step's seconds are spent on: parts in the order of reports, with a text for each."""


@dataclass(frozen=True)
class StepCondition:
    """A condition under which a step is priced. By default it is the planned step.

    Attributes:
        offloads: Whether what the plan keeps on the host is there. If not, it is on the GPUs.
        messages: Whether messages between stages take time.
        replicas: Whether replicas exchange anything. If not, a framework's step is priced with one
            replica and as many micro-batches, since a framework may price replicas and shards on
            one network. Gradients that context-parallel shards (`cp`) add up then count as
            exchanges of shards.
        exchanges: Whether any exchange takes time.
        checks: Whether collectives are checked. None: as in the plan's environment.
        host: Factor of the host's seconds for launches.
        across: Factor of the seconds of exchanges between servers.
        inside: Factor of the seconds of exchanges inside servers.
        hides: Whether exchanges of replicas overlap with passes as planned. If not, none does.
        recompute: What is recomputed, in the words of a plan. None: as planned.
    """

    offloads: bool = True
    messages: bool = True
    replicas: bool = True
    exchanges: bool = True
    checks: bool | None = None
    host: float = 1.0
    across: float = 1.0
    inside: float = 1.0
    hides: bool = True
    recompute: str | None = None

    def framework_under(self, framework: Framework) -> Framework:
        """Return the framework with messages, checks, host and network as the condition says."""
        if not self.messages:
            framework = without_messages(framework)
        if self.checks is not None:
            checks = framework.checks or load_environment_constants(
                "checked-collectives"
            )
            framework = replace(framework, checks=checks if self.checks else None)
        if self.host != 1.0:
            framework = with_host(framework, self.host)
        if not self.exchanges:
            framework = with_network(framework, IdleNetwork)
        if self.across != 1.0 or self.inside != 1.0:
            framework = with_slow_links(
                framework, across=self.across, inside=self.inside
            )
        return framework


PLANNED = StepCondition()


class ExplainedStep(ABC):
    """A plan's step, which can be priced under conditions and with single changes of the plan."""

    @property
    @abstractmethod
    def spans_servers(self) -> bool:
        """Return whether the plan's devices are on several servers."""

    @abstractmethod
    def price(self, condition: StepCondition = PLANNED) -> Priced:
        """Price the step under a condition.

        Raises:
            InputError: The plan is not possible under the condition.
        """

    @abstractmethod
    def price_changes(self) -> Iterator[tuple[str, PlanAnswer]]:
        """Yield each single change of the plan that is possible (`explaining.changes`), priced."""


def step_parts(step: ExplainedStep) -> dict[str, float]:
    """Return the seconds of a step by what they are spent on, in the order of `PARTS`.

    They add up to the step.

    Raises:
        InputError: The plan cannot be priced.
    """
    # Each condition removes one thing more than the one before.
    resident = StepCondition(offloads=False)
    silent = replace(resident, messages=False)
    unchecked = replace(silent, checks=False)
    unhosted = replace(unchecked, host=0.0)
    idle = replace(unhosted, exchanges=False)
    without_recomputation = step.price(replace(idle, recompute="none"))

    # Step times: what is on the host, and messages.
    resident_seconds = step.price(resident).step_time
    silent_step = step.price(silent)

    # The busiest rank's work under each condition; differences between two are parts of it.
    silent_work = _compute_busiest_work(silent_step)
    unchecked_work = _compute_busiest_work(step.price(unchecked))
    unhosted_work = _compute_busiest_work(step.price(unhosted))
    idle_work = _compute_busiest_work(step.price(idle))
    last_work = _compute_busiest_work(without_recomputation)

    # The exchanges of shards are those of a step without replicas; the other ones are of replicas.
    exchanges = unhosted_work - idle_work
    shards = _compute_busiest_work(step.price(replace(unhosted, replicas=False)))
    shards -= _compute_busiest_work(step.price(replace(idle, replicas=False)))

    # The optimizer's step comes after the last pass.
    rank_work = _compute_rank_work(without_recomputation)
    busiest = max(range(len(rank_work)), key=rank_work.__getitem__)
    update = without_recomputation.ends[busiest]
    update += _compute_step_overhead(without_recomputation)
    parts = {
        "compute": last_work - update,
        "checks": silent_work - unchecked_work,
        "host": unchecked_work - unhosted_work,
        "messages": resident_seconds - silent_step.step_time,
        "replicas": exchanges - shards,
        "shards": shards,
        "recompute": idle_work - last_work,
        "update": update,
        "offload": step.price().step_time - resident_seconds,
        "bubble": silent_step.step_time - silent_work,
    }
    return {name: parts[name] for name in PARTS}


def _compute_busiest_work(priced: Priced) -> float:
    """Return the seconds that the busiest rank works in a step."""
    return max(_compute_rank_work(priced)) + _compute_step_overhead(priced)


def _compute_step_overhead(priced: Priced) -> float:
    """Return the seconds of a step that are in no pass, exchange or update."""
    return priced.pricer.step_seconds(priced.draft)


def _compute_rank_work(priced: Priced) -> list[float]:
    """Return the seconds that each rank works in its passes and after them. [P]"""
    rank_work = []
    for chunks, end in zip(priced.chunks, priced.ends, strict=True):
        microbatch_seconds = sum(priced.costs[chunk].microbatch for chunk in chunks)
        rank_work.append(priced.draft.microbatches * microbatch_seconds + end)
    return rank_work


def step_causes(
    step: ExplainedStep, parts: Mapping[str, float], measured: float | None = None
) -> tuple[SlowdownCause, ...]:
    """Return the causes that would make a run slower than predicted, the likeliest first.

    Args:
        step: The planned step.
        parts: Seconds of its parts, from `step_parts`.
        measured: Measured seconds of a step of the run. None: every cause has its usual factor.
    """
    return rank_causes(
        cause_prices(step, parts),
        sum(parts.values()),
        measured,
        servers=step.spans_servers,
    )


def cause_prices(step: ExplainedStep, parts: Mapping[str, float]) -> StepAt:
    """Return a function of a cause and a factor that gives the seconds of the step under it.

    Under a cause that the plan cannot have, the step takes the planned seconds. The arguments are
    those of `step_causes`.
    """
    planned = sum(parts.values())
    # Slower kernels make passes longer, and with them the waits for passes of other stages.
    kernels = sum(parts[name] for name in ("compute", "recompute", "bubble"))

    def step_at(cause: str, factor: float) -> float:
        if cause == "outside":
            return planned * (1.0 + factor)
        if cause == "clock":
            return planned + kernels * (factor - 1.0)
        try:
            return step.price(_make_condition(cause, factor)).step_time
        except InputError:
            return planned

    return step_at


def _make_condition(cause: str, factor: float) -> StepCondition:
    """Return the condition that slows a step down as a cause does at a factor."""
    match cause:
        case "across":
            return StepCondition(across=factor)
        case "inside":
            return StepCondition(inside=factor)
        case "host":
            return StepCondition(host=factor)
        case "checks":
            return StepCondition(checks=True)
        case "recompute":
            return StepCondition(recompute="full")
        case "overlap":
            return StepCondition(hides=False)
    return PLANNED
