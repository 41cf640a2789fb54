"""The search for a plan: micro-batches, meshes, cuts, recomputation, ZeRO, schedule, order.

For every size of a micro-batch (divisors of the batch, at most `space.SIZES` of them) there are
meshes (`space`), drafts on them by two kernels (`drafts`), and a bound (`bound`). Of a model whose
blocks a framework prices these are the four sizes with which plans without shards are the fastest:
with all twelve, none of 35 searches found a faster plan (nine encoders and encoder-decoders on
five clusters of 4 to 16 GPUs, 30 November 2026). The formula's
best drafts of all sizes are fitted to memory and timed, and the fastest of these are timed under
every schedule. Baselines are among the drafts that are timed. This part of the search does not
depend on the budget.

The rest is one sequence that the budget cuts off, so that a larger budget never makes the answer
worse. By turns it takes the next drafts of the list and better orders for the fastest plans. An
order is changed by the rules of its list schedule: what a rank may have in flight, and what it
prefers. A change is kept if the step takes no longer and every device still holds what is in
flight. Where memory is full, fewer micro-batches in flight make room for less recomputation, and
the stages are fitted again. Gradients of weights are passes of their own in every order that is
searched. One change takes one pass over the actions (`orders.run_list_schedule`). Changes are drawn
from a fixed seed, so that a longer search continues a shorter one.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter, itemgetter

import numpy as np

from gnnplace.plans.job import Progress, SearchOptions
from gnnplace.plans.mesh import MeshFabric
from gnnplace.plans.order.orders import SEARCHED, Rules, is_apart, time_listed
from gnnplace.plans.search.bound import bound_steps
from gnnplace.plans.search.draft import Draft, Priced, fit_draft, realize_draft
from gnnplace.plans.search.drafts import (
    Timed,
    draft_baselines,
    draft_evenly,
    draft_size,
    fastest,
    has_like_replicas,
)
from gnnplace.plans.search.framework_pricing import make_pricer
from gnnplace.plans.search.space import Space, micro_batch_sizes, price_space
from gnnplace.plans.search.stage import Pricer, Stage
from gnnplace.plans.segments.chain import Chain
from gnnplace.problem import Cluster

EACH = 4  # drafts of each baseline that are timed
SHORT_LIST, FEW = 24, 4  # drafts that are timed, and those under every schedule
LONG_LIST = 400  # drafts that are timed if there is time
FEW_SIZES = 4
"""Sizes of micro-batches that are searched where a framework prices the model's blocks."""
ORDERED = ("1f1b", "zero-bubble", "v")  # schedules whose order of actions is searched
NEAR = 1.25
"""By how much a plan may be slower than the best to be searched for other orders."""
GIVEN = "given"  # the name of the seeds among the baselines
OTHERS = ("zero-bubble", "v", "interleaved:2")
CHANGES = 2000  # of the order of each plan
TOGETHER = 20  # changes between two looks at the clock
# Micro-batches in flight, relative to the usual number, for all chunks.
FEWER = (-2, -1, 1, 2, 4)
Keep = Callable[[Draft], Priced | None]


@dataclass(frozen=True)
class FoundPlans:
    """The result of a search.

    Attributes:
        best: Plans, the fastest first.
        bound: Seconds that no plan of contiguous stages with these micro-batches is below.
        bound_of_one: Seconds that none of them with one stage a rank is below.
        tried: Number of drafts that the formula ranked.
        seconds: Wall seconds of the search.
        baselines: The fastest plan of each baseline that fits.
    """

    best: tuple[Priced, ...]
    bound: float
    bound_of_one: float
    tried: int
    seconds: float
    baselines: Mapping[str, Priced]


def search(
    chain: Chain,
    cluster: Cluster,
    options: SearchOptions | None = None,
    *,
    seeds: Sequence[Draft] = (),
    all_baselines: bool = False,
    progress: Progress | None = None,
) -> FoundPlans:
    """Search the best plans for a model on a cluster.

    Args:
        chain: The model as a chain of segments, with their prices.
        cluster: Its devices in topology order.
        options: The budget, and whether plans must be runnable. What comes first in the search is
            done in any case, and a larger budget is never worse.
        seeds: Plans that are known to be fast; where there are any, micro-batches of their sizes
            alone are searched.
        all_baselines: Whether baselines have micro-batches of every size all the same.
        progress: A function that is called with a line for each step.

    Raises:
        InputError: Devices that plans would put next to each other have no link.
    """
    options = options or SearchOptions()
    started = time.monotonic()
    fabric = MeshFabric(cluster)
    drafts: list[Timed] = []
    spaces: list[Space] = []
    drafts_by_name: defaultdict[str, list[Timed]] = defaultdict(list)
    # Make drafts and baselines for every size of micro-batches, ranked by the formula.
    searched = _micro_batch_sizes(chain, seeds)
    every = searched
    if all_baselines:
        every = _micro_batch_sizes(chain, ())
    elif chain.framework is not None and not seeds:
        searched = every = _fastest_sizes(chain, fabric, searched)
    for size in sorted({*searched, *every}, reverse=True):
        if progress is not None:
            progress(f"planning: micro-batches of {size} of {chain.batch} examples")
        space = price_space(make_pricer(chain, fabric, size), chain.batch // size)
        if size in searched:
            drafts += draft_size(space, runnable=options.runnable)
        for name, named_drafts in draft_baselines(space).items():
            drafts_by_name[name] += [
                x
                for x in named_drafts
                if not options.runnable or has_like_replicas(x[1])
            ]
        spaces.append(space)
    # Time the best of them.
    timed = {
        name: fastest(named_drafts, EACH)
        for name, named_drafts in drafts_by_name.items()
    }
    timed[GIVEN] = list(seeds)
    best, baselines = make_shortlist(
        chain, fabric, drafts, timed, started + options.budget
    )
    baselines.pop(GIVEN, None)
    bounds = (np.inf, np.inf)
    if best:
        # Seconds that every step takes are in no segment.
        step_seconds = best[0].pricer.step_seconds(best[0].draft)
        bound, bound_of_one = bound_steps(spaces, best[0].step_time - step_seconds)
        bounds = bound + step_seconds, bound_of_one + step_seconds
    seconds = time.monotonic() - started
    return FoundPlans(tuple(best), *bounds, len(drafts), seconds, baselines)


def _micro_batch_sizes(chain: Chain, seeds: Sequence[Draft]) -> list[int]:
    """Return the sizes of micro-batches that are searched, the largest first."""
    if chain.mixes:
        return [chain.batch]
    if seeds:
        return sorted({draft.size for draft in seeds}, reverse=True)
    return micro_batch_sizes(chain.batch)


def _fastest_sizes(chain: Chain, fabric: MeshFabric, sizes: Sequence[int]) -> list[int]:
    """Return the `FEW_SIZES` sizes of micro-batches with which plans without shards are fastest.

    Splits over shards, which take most of the search, are then priced with these alone. Sizes with
    which no plan without shards fits come last, the smallest first.

    Args:
        chain: The model, which a framework prices.
        fabric: The cluster, and what exchanges take on it.
        sizes: Sizes of micro-batches.
    """
    ranked: list[tuple[float, int]] = []
    for size in sizes:
        pricer = make_pricer(chain, fabric, size)
        space = price_space(pricer, chain.batch // size, has_shards=False)
        seconds = min((draft[0] for draft in draft_evenly(space)), default=np.inf)
        ranked.append((seconds, size))
    return [size for _, size in sorted(ranked)[:FEW_SIZES]]


@dataclass(eq=False)
class Shortlist:
    """The plans of one model on one cluster that were timed and fit.

    Attributes:
        chain: The model as a chain of segments, with their prices.
        fabric: The cluster, and what exchanges take on it.
        priced: Plans that fit, by draft.
    """

    chain: Chain
    fabric: MeshFabric
    priced: dict[Draft, Priced] = field(default_factory=dict)
    _pricers: dict[int, Pricer] = field(default_factory=dict)
    _seen: set[Draft] = field(default_factory=set)

    @property
    def best(self) -> list[Priced]:
        """Return the plans, the fastest first."""
        return sorted(self.priced.values(), key=attrgetter("step_time"))

    def pipelines(self, schedules: Sequence[str]) -> list[Priced]:
        """Return the fastest `FEW` plans of several stages that are near the best.

        Args:
            schedules: Their names, without what follows a colon.
        """
        plans: list[Priced] = []
        best = self.best
        if best:
            limit = NEAR * best[0].step_time
        else:
            limit = 0.0
        for priced in best:
            name = priced.draft.schedule.partition(":")[0]
            is_pipeline = len(priced.draft.stages) > 1 and name in schedules
            if is_pipeline and priced.step_time <= limit:
                plans.append(priced)
        return plans[:FEW]

    def pricer(self, size: int) -> Pricer:
        """Return the pricer for micro-batches of a size."""
        return self._pricers.setdefault(
            size, make_pricer(self.chain, self.fabric, size)
        )

    def add(self, draft: Draft) -> Priced | None:
        """Fit a draft to memory and time it; return None if it does not fit or may not be."""
        if not obeys(draft, self.chain):
            return None
        priced = fit_draft(self.pricer(draft.size), draft)
        if priced is None:
            return None
        return self.keep(priced)

    def seeded(self, drafts: Iterable[Draft]) -> Priced | None:
        """Time drafts with the ZeRO that they have, and return the fastest that fits."""
        best: Priced | None = None
        for draft in drafts:
            if not obeys(draft, self.chain):
                continue
            fitting = fit_draft(self.pricer(draft.size), draft, zero=False)
            if fitting is None:
                priced = None
            else:
                priced = self.keep(fitting)
            if priced is not None and (
                best is None or priced.step_time < best.step_time
            ):
                best = priced
        return best

    def keep(self, draft: Draft) -> Priced | None:
        """Time a draft as it is and keep it if it fits; return None if it does not or may not."""
        if draft not in self._seen:
            self._seen.add(draft)
            priced = realize_draft(self.pricer(draft.size), draft)
            fits = priced is not None and priced.lacking[1] <= 0
            if priced is not None and fits and obeys(draft, self.chain):
                self.priced[draft] = priced
        return self.priced.get(draft)


def obeys(draft: Draft, chain: Chain) -> bool:
    """Return whether every segment is on devices where it may be."""
    if chain.allowed is None:
        return True
    return all(
        chain.allowed[
            s.first : s.last, s.mesh.devices.start : s.mesh.devices.stop
        ].all()
        for s in draft.stages
    )


def make_shortlist(
    chain: Chain,
    fabric: MeshFabric,
    drafts: Sequence[Timed],
    seeds: Mapping[str, Sequence[Draft]],
    deadline: float = 0.0,
) -> tuple[list[Priced], dict[str, Priced]]:
    """Return the plans that fit, the fastest first, and the fastest of every baseline.

    Args:
        chain: The model as a chain of segments, with their prices.
        fabric: The cluster, and what exchanges take on it.
        drafts: Drafts with the formula's seconds.
        seeds: Drafts of baselines, which are timed whatever the formula says.
        deadline: When to stop, by `time.monotonic`. What comes first is done in any case.
    """
    shortlist = Shortlist(chain, fabric)
    baselines: dict[str, Priced] = {}
    for name, starts in seeds.items():
        priced = shortlist.seeded(starts)
        if priced is not None:
            baselines[name] = priced
    queue = iter([draft for _, draft in sorted(drafts, key=itemgetter(0))][:LONG_LIST])
    for draft in queue:
        shortlist.add(draft)
        if len(shortlist.priced) >= SHORT_LIST:
            break
    for priced in shortlist.pipelines(("1f1b",)):
        for schedule in OTHERS:
            scheduled = under(chain, priced.draft, schedule)
            if scheduled is not None:
                shortlist.add(scheduled)
    for _ in _more(shortlist, queue):
        if time.monotonic() > deadline:
            break
    return shortlist.best, baselines


def _more(made: Shortlist, queue: Iterator[Draft]) -> Iterator[None]:
    """Do, a step at a time, what is done as long as there is time: other orders, further drafts."""
    orders = improve_orders(made.pipelines(ORDERED), made.pricer, made.keep)
    for _, next_one in itertools.zip_longest(orders, queue):
        if next_one is not None:
            made.add(next_one)
        yield


def under(chain: Chain, draft: Draft, schedule: str) -> Draft | None:
    """Return a 1F1B draft under another schedule; None if it cannot run under it.

    Where the schedule has two chunks a rank, each stage is cut in two halves, and nothing is
    recomputed.
    """
    ranks = len(draft.stages)
    if ranks < 2 or draft.schedule != "1f1b":
        return None
    # ZB-H1 keeps the stages; the other schedules have two chunks a rank.
    if schedule == "zero-bubble":
        return replace(draft, schedule=schedule)
    # Both halves of a stage need a segment, and all ranks equal meshes.
    shapes: set[tuple[int, int]] = set()
    halves: set[int] = set()
    for stage in draft.stages:
        shapes.add((stage.mesh.replicas, stage.mesh.shards))
        halves |= {stage.first, (stage.first + stage.last) // 2, stage.last}
    if len(shapes) > 1:
        return None
    if schedule.startswith("interleaved") and draft.microbatches % ranks:
        return None
    bounds = sorted(halves)
    if len(bounds) - 1 != 2 * ranks:
        return None
    chunks = list(itertools.pairwise(bounds))
    order = [
        *range(ranks),
        *(reversed(range(ranks)) if schedule == "v" else range(ranks)),
    ]
    stages = [
        replace(draft.stages[p], first=a, last=b, recompute=frozenset())
        for p, (a, b) in zip(order, chunks, strict=True)
    ]
    return replace(draft, schedule=schedule, stages=tuple(stages))


def improve_orders(
    plans: Sequence[Priced], pricer_of: Callable[[int], Pricer], keep: Keep
) -> Iterator[None]:
    """Search better orders for plans, yielding after a few changes of each.

    Args:
        plans: Plans in order of step time, the fastest first.
        pricer_of: Returns the pricer for micro-batches of a size.
        keep: Called with every draft that is better; times it.
    """
    walks = [
        _walk(priced, pricer_of(priced.draft.size), keep)
        for priced in plans
        if len(priced.chunks) > 1
    ]
    while walks:
        for walk in list(walks):
            if next(walk, 0) is not None:
                walks.remove(walk)
            yield


def _walk(priced: Priced, pricer: Pricer, keep: Keep) -> Iterator[None]:
    """Try orders of several depths, then change the best of them, yielding in between."""
    if is_apart(priced.draft.schedule):
        starts = [priced]
    else:
        starts = []
    for fewer in (0, *FEWER):
        draft = _deeper(priced.draft, fewer)
        if draft is None:
            fitting = None
        else:
            fitting = fit_draft(pricer, draft)
        if fitting is None:
            start = None
        else:
            start = keep(fitting)
        starts += [start] if start is not None else []
        yield
    if not starts:
        return
    best = min(starts, key=attrgetter("step_time"))
    rng = np.random.default_rng(0)
    for _ in range(CHANGES // TOGETHER):
        best = _change_rules(best, rng, keep)
        yield


def _deeper(draft: Draft, more: int) -> Draft | None:
    """Return a draft with I and W apart whose limits in flight are `more` higher, within 1 to M.

    Nothing is recomputed in it yet. None for interleaved schedules, or if the limits stay the same.
    """
    if draft.schedule.startswith("v"):
        name = "v"
    else:
        name = "zero-bubble"
    if draft.schedule.startswith("interleaved"):
        return None
    shifted = np.array(draft.limit) + more
    limit = tuple(np.clip(shifted, 1, draft.microbatches).tolist())
    if more and limit == draft.limit:
        return None
    no = (False,) * len(limit)
    stages: list[Stage] = []
    for stage in draft.stages:
        stages.append(replace(stage, recompute=frozenset()))
    rules = Rules(limit, no, no)
    return replace(
        draft, schedule=f"{name}:{SEARCHED}", stages=tuple(stages), rules=rules
    )


def _change_rules(best: Priced, rng: np.random.Generator, keep: Keep) -> Priced:
    """Return a plan after `TOGETHER` changes of its rules; a change that slows it is undone."""
    draft = best.draft
    if draft.rules is None:
        no = (False,) * len(draft.stages)
        draft = replace(draft, rules=Rules(draft.limit, no, no))
    assert draft.rules is not None
    rules = draft.rules
    shortest = best.step_time
    room = []  # micro-batches that each chunk may have in flight, by what memory its rank has left
    for c, rank in enumerate(best.draft.ranks):
        free = best.memory[rank] - best.held(rank)
        additional = free / max(best.costs[c].saved, 1e-9)
        room.append(
            best.flying[c] + int(min(max(additional, 0.0), best.draft.microbatches))
        )
    for _ in range(TOGETHER):
        candidate = _other(rules, room, draft.microbatches, rng)
        seconds, _ = time_listed(best.line, candidate, best.ends)
        if seconds <= shortest:
            rules = candidate
            shortest = seconds
    if shortest >= best.step_time * (1 - 1e-9):
        return best
    name = draft.schedule.partition(":")[0]
    changed = keep(replace(draft, schedule=f"{name}:{SEARCHED}", rules=rules))
    if changed is not None and changed.step_time < best.step_time:
        return changed
    return best


def _other(
    rules: Rules, room: Sequence[int], most: int, rng: np.random.Generator
) -> Rules:
    """Return rules with one random change of one chunk: its limit or one of its preferences."""
    chunk = int(rng.integers(len(rules.limit)))
    kind = int(rng.integers(4))
    if kind < 2:
        by = int(rng.choice([-2, -1, 1, 2]))
        limit = list(rules.limit)
        limit[chunk] = max(1, min(limit[chunk] + by, room[chunk], most))
        return replace(rules, limit=tuple(limit))
    name = "late" if kind == 2 else "weights"
    flags = list(getattr(rules, name))
    flags[chunk] = not flags[chunk]
    return replace(rules, **{name: tuple(flags)})
