"""`ExplainedStep`: a priced step, its parts, and its price with one thing changed.

**Parts.** Each part is the difference between two prices, so that parts count only seconds that are
not hidden behind something else, and add up to the step. In order:

1. copies to and from the host, and its updates: the step minus the step with everything on GPUs;
2. messages between stages: that step minus the same with messages of no time;
3. waits of stages: what then remains besides the work of the busiest rank;
4. parts of that work, removed one after the other: checks of collectives, the host's launches,
   exchanges of replicas, exchanges of shards, recomputation;
5. the rest: the busiest rank's kernels, `compute`, and the optimizer's step, `update`.

**Causes.** Reasons why a run may be slower than predicted are priced too (`explaining.causes`). If
a step was measured, the likeliest causes come first, each with the factor that explains the step.

A step's own class says where its seconds come from: a model's sizes (`explaining.in_words`) or a
captured model (`explaining.captured`).

Complexity: eleven prices for the parts, some forty for the causes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from gnnplace.costs import (
    Framework,
    IdleNetwork,
    environment,
    with_host,
    with_network,
    with_slow_links,
    without_messages,
)
from gnnplace.errors import InputError
from gnnplace.explaining.causes import SlowdownCause, StepAt, rank_causes
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
"""What a step's seconds go to."""


@dataclass(frozen=True)
class StepCondition:
    """A difference between a step and the planned one. By default, none.

    Attributes:
        offloads: Whether what the plan keeps on the host lies there; else it lies on the GPUs.
        messages: Whether messages between stages take time.
        replicas: Whether exchanges of replicas take time. Replicas and shards that a framework
            prices on one network are told apart by a step of one replica with as many
            micro-batches, so that their share is that of shards without replicas beside them; what
            shards of tokens (`cp`) add up of gradients is theirs then.
        exchanges: Whether any exchange takes time.
        checks: Whether collectives are checked; None: as in the plan's environment.
        host: Multiple of the seconds that the host takes for launches.
        across: Multiple of the seconds of exchanges between servers.
        inside: Multiple of the seconds of exchanges inside of servers.
        hides: Whether exchanges of replicas run behind passes as planned; else they wait for them.
        recompute: What is recomputed, as the word of a plan; None: as planned.
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
        """Return a framework whose host, network and checks are as the condition says."""
        if not self.messages:
            framework = without_messages(framework)
        if self.checks is not None:
            checks = framework.checks or environment("checked-collectives")
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
    """A plan's step, which can be priced under conditions and with single words changed."""

    @property
    @abstractmethod
    def spans_servers(self) -> bool:
        """Return whether the run is over several servers."""

    @abstractmethod
    def price(self, condition: StepCondition = PLANNED) -> Priced:
        """Return the priced draft of the step under a condition.

        Raises:
            InputError: If the plan cannot be under the condition.
        """

    @abstractmethod
    def price_changes(self) -> Iterator[tuple[str, PlanAnswer]]:
        """Yield the plan's single changes (`explaining.changes`) that can be, with their price."""


def step_parts(step: ExplainedStep) -> dict[str, float]:
    """Return the seconds of a step by what they are spent on. They add up to the step.

    Raises:
        InputError: If the plan cannot be priced.
    """
    resident = StepCondition(offloads=False)
    silent = replace(resident, messages=False)
    unchecked = replace(silent, checks=False)
    unhosted = replace(unchecked, host=0.0)
    idle = replace(unhosted, exchanges=False)
    without_recomputation = step.price(replace(idle, recompute="none"))

    # Of the whole step: what lies on the host, messages, and waits beside the busiest rank.
    resident_seconds = step.price(resident).step_time
    silent_step = step.price(silent)
    works = [
        _busiest_work(silent_step),
        *(_busiest_work(step.price(x)) for x in (unchecked, unhosted, idle)),
        _busiest_work(without_recomputation),
    ]
    checks, host, exchanged, recompute = (
        larger - smaller for larger, smaller in pairwise(works)
    )
    # Of what replicas and shards exchange together, shards have what is there without replicas.
    shards = _busiest_work(step.price(replace(unhosted, replicas=False)))
    shards -= _busiest_work(step.price(replace(idle, replicas=False)))

    rank_work = _rank_work(without_recomputation)
    busiest = max(range(len(rank_work)), key=rank_work.__getitem__)
    update = without_recomputation.ends[busiest] + _beside_passes(without_recomputation)
    parts = {
        "compute": works[-1] - update,
        "checks": checks,
        "host": host,
        "messages": resident_seconds - silent_step.step_time,
        "replicas": exchanged - shards,
        "shards": shards,
        "recompute": recompute,
        "update": update,
        "offload": step.price().step_time - resident_seconds,
        "bubble": silent_step.step_time - works[0],
    }
    return {name: parts[name] for name in PARTS}


def _busiest_work(priced: Priced) -> float:
    """Return the seconds that the busiest rank works in a step."""
    return max(_rank_work(priced)) + _beside_passes(priced)


def _beside_passes(priced: Priced) -> float:
    """Return the seconds of a step beside passes, exchanges and updates."""
    return priced.pricer.step_seconds(priced.draft)


def _rank_work(priced: Priced) -> list[float]:
    """Return the seconds that each rank works in its passes and after them. [P]"""
    count = priced.draft.microbatches
    return [
        count * sum(priced.costs[chunk].microbatch for chunk in chunks) + end
        for chunks, end in zip(priced.chunks, priced.ends, strict=True)
    ]


def step_causes(
    step: ExplainedStep, parts: Mapping[str, float], measured: float | None = None
) -> tuple[SlowdownCause, ...]:
    """Return the causes that would make a run slower than predicted, the likeliest first.

    Args:
        step: The step.
        parts: Its seconds by what they go to, of `step_parts`.
        measured: Seconds of a step of the run; None: every cause at its usual factor.
    """
    return rank_causes(
        cause_prices(step, parts),
        sum(parts.values()),
        measured,
        servers=step.spans_servers,
    )


def cause_prices(step: ExplainedStep, parts: Mapping[str, float]) -> StepAt:
    """Return a function that prices a plan's step under a cause at a factor.

    Arguments are those of `step_causes`. A cause that the plan cannot have changes nothing.
    """
    planned = sum(parts.values())
    # Slower kernels make passes longer, and so the waits for them.
    kernels = sum(parts[name] for name in ("compute", "recompute", "bubble"))

    def step_at(cause: str, factor: float) -> float:
        if cause == "outside":
            return planned * (1.0 + factor)
        if cause == "clock":
            return planned + kernels * (factor - 1.0)
        try:
            return step.price(_condition_of(cause, factor)).step_time
        except InputError:
            return planned

    return step_at


def _condition_of(cause: str, factor: float) -> StepCondition:
    """Return the condition of a step that a cause slows down by a factor."""
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
