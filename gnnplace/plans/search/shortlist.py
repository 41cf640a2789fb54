"""The best drafts priced exactly: memory, recomputation, schedules, and orders that are searched.

The formula's best drafts are fitted to memory and timed, and the fastest of these under every
schedule. What is done first does not depend on the time that there is; what is done after that is
one sequence that a budget cuts off, so that more of it never makes the answer worse: by turns the
next drafts of the list, and better orders for the fastest plans (`improving`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gnnplace.plans.mesh import Fabric
from gnnplace.plans.search.draft import Draft, Priced, fitted, realized
from gnnplace.plans.search.drafts import Timed
from gnnplace.plans.search.improving import improved
from gnnplace.plans.search.stage import Pricer, Stage
from gnnplace.plans.segments.chain import Chain

SHORT_LIST, FEW = 24, 4  # drafts that are timed, and those under every schedule
LONG_LIST = 400  # drafts that are timed if there is time
OTHERS = ("zero-bubble", "v", "interleaved:2")


@dataclass(eq=False)
class Shortlist:
    """Plans of one model on one cluster.

    Attributes:
        chain: the model.
        fabric: the cluster.
        found: plans that fit, by draft.
    """

    chain: Chain
    fabric: Fabric
    found: dict[Draft, Priced] = field(default_factory=dict)
    _pricers: dict[int, Pricer] = field(default_factory=dict)
    _seen: set[Draft] = field(default_factory=set)

    @property
    def best(self) -> list[Priced]:
        """The fastest first."""
        return sorted(self.found.values(), key=lambda x: x.step_time)

    def pricer(self, size: int) -> Pricer:
        """Of micro-batches of a size."""
        return self._pricers.setdefault(size, Pricer(self.chain, self.fabric, size))

    def add(self, draft: Draft) -> Priced | None:
        """Fits a draft to memory and times it; None: it does not fit, or may not be."""
        if not obeys(draft, self.chain):
            return None
        made = fitted(self.pricer(draft.size), draft)
        return None if made is None else self.keep(made)

    def seeded(self, drafts: Iterable[Draft]) -> Priced | None:
        """Times drafts with the ZeRO that they have; the fastest that fits."""
        best: Priced | None = None
        for draft in drafts:
            if not obeys(draft, self.chain):
                continue
            made = fitted(self.pricer(draft.size), draft, zero=False)
            priced = None if made is None else self.keep(made)
            if priced is not None and (best is None or priced.step_time < best.step_time):
                best = priced
        return best

    def keep(self, draft: Draft) -> Priced | None:
        """Times a draft as it is; None: it does not fit, or may not be."""
        if draft not in self._seen:
            self._seen.add(draft)
            priced = realized(self.pricer(draft.size), draft)
            fits = priced is not None and priced.lacking[1] <= 0
            if priced is not None and fits and obeys(draft, self.chain):
                self.found[draft] = priced
        return self.found.get(draft)


def obeys(draft: Draft, chain: Chain) -> bool:
    """Whether every segment is where it may be."""
    if chain.allowed is None:
        return True
    return all(
        chain.allowed[s.first : s.last, s.mesh.devices.start : s.mesh.devices.stop].all()
        for s in draft.stages
    )


def shortlisted(
    chain: Chain,
    fabric: Fabric,
    drafts: Sequence[Timed],
    seeds: Mapping[str, Sequence[Draft]],
    deadline: float = 0.0,
) -> tuple[list[Priced], dict[str, Priced]]:
    """Plans that fit, the fastest first; and of every baseline the fastest.

    Args:
        chain: the model.
        fabric: the cluster.
        drafts: with the formula's seconds.
        seeds: drafts of baselines, which are timed whatever the formula says.
        deadline: when to stop, by `time.monotonic`.
    """
    made = Shortlist(chain, fabric)
    known = {name: made.seeded(drafts) for name, drafts in seeds.items()}
    queue = iter([draft for _, draft in sorted(drafts, key=lambda pair: pair[0])][:LONG_LIST])
    for draft in queue:
        made.add(draft)
        if len(made.found) >= SHORT_LIST:
            break
    for priced in made.best[:FEW]:
        for schedule in OTHERS:
            other = under(chain, priced.draft, schedule)
            if other is not None:
                made.add(other)
    for _ in _more(made, queue):
        if time.monotonic() > deadline:
            break
    return made.best, {name: priced for name, priced in known.items() if priced is not None}


def _more(made: Shortlist, queue: Iterator[Draft]) -> Iterator[None]:
    """What is done as long as there is time, a step at a time."""
    orders = improved(made.best[:FEW], made.pricer, made.keep)
    for _, next_one in itertools.zip_longest(orders, queue):
        if next_one is not None:
            made.add(next_one)
        yield


def under(chain: Chain, draft: Draft, schedule: str) -> Draft | None:
    """The draft under another schedule: with twice the chunks where that has several a rank."""
    ranks = len(draft.stages)
    if ranks < 2 or draft.schedule != "1f1b":
        return None
    if schedule == "zero-bubble":
        return replace(draft, schedule=schedule)
    if len({(s.mesh.replicas, s.mesh.shards) for s in draft.stages}) > 1:
        return None
    if schedule.startswith("interleaved") and draft.microbatches % ranks:
        return None
    halves = [_halves(s) for s in draft.stages]
    bounds = sorted({b for half in halves for b in half})
    if len(bounds) - 1 != 2 * ranks:
        return None
    chunks = list(itertools.pairwise(bounds))
    order = [*range(ranks), *(reversed(range(ranks)) if schedule == "v" else range(ranks))]
    stages = [
        replace(draft.stages[p], first=a, last=b, recompute=frozenset())
        for p, (a, b) in zip(order, chunks, strict=True)
    ]
    return replace(draft, schedule=schedule, stages=tuple(stages))


def _halves(stage: Stage) -> tuple[int, int, int]:
    return stage.first, (stage.first + stage.last) // 2, stage.last
