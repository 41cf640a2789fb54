"""The search for a plan: micro-batches, meshes, cuts, recomputation, ZeRO, schedule, order.

For every size of a micro-batch (divisors of the batch, at most `space.SIZES` of them) the meshes
(`space`), drafts on them by two kernels (`drafts`), and a bound (`bound`). The best drafts of all
sizes are priced exactly and timed under every schedule (`shortlist`), and the orders of the fastest
are searched (`improving`) for as long as the budget lasts. The rest does not depend on the budget.
Plans of `baselines` are among those that are timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from gnnplace.plans.baselines import BASELINES, baselines_of, fastest
from gnnplace.plans.mesh import Fabric
from gnnplace.plans.search.bound import bounds_of
from gnnplace.plans.search.draft import Priced
from gnnplace.plans.search.drafts import Timed, drafts_of, has_like_replicas
from gnnplace.plans.search.shortlist import shortlisted
from gnnplace.plans.search.space import Space, micro_batch_sizes, space_of
from gnnplace.plans.search.stage import Pricer
from gnnplace.plans.segments.chain import Chain
from gnnplace.problem.cluster import Cluster

FEW = 4  # drafts of each baseline that are timed


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        best: plans, the fastest first.
        bound: seconds that no plan of contiguous stages with these micro-batches is below.
        bound_of_one: seconds that none of them with one stage a rank is below.
        tried: drafts that were looked at.
        seconds: of the search.
        baselines: the fastest plan of each that fits.
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
    *,
    budget: float = 10.0,
    runnable: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Found:
    """The best plans for a model on a cluster.

    Args:
        chain: the model.
        cluster: its devices in topology order.
        budget: seconds; what comes first is done in any case, and more is never worse.
        runnable: only plans that can be run: with the same number of replicas in all stages.
        progress: is told what is done.

    Raises:
        InputError: devices that plans would put next to each other have no link.
    """
    started = time.monotonic()
    fabric = Fabric(cluster)
    drafts: list[Timed] = []
    spaces: list[Space] = []
    known: dict[str, list[Timed]] = {name: [] for name in BASELINES}
    for size in [chain.batch] if chain.mixes else micro_batch_sizes(chain.batch):
        if progress is not None:
            progress(f"planning: micro-batches of {size} of {chain.batch} examples")
        space = space_of(Pricer(chain, fabric, size), chain.batch // size)
        drafts += drafts_of(space, runnable=runnable)
        for name, own in baselines_of(space).items():
            known[name] += [x for x in own if not runnable or has_like_replicas(x[1])]
        spaces.append(space)
    seeds = {name: fastest(own, FEW) for name, own in known.items()}
    best, baselines = shortlisted(chain, fabric, drafts, seeds, started + budget)
    bounds = bounds_of(spaces, best[0].step_time) if best else (np.inf, np.inf)
    seconds = time.monotonic() - started
    return Found(tuple(best), *bounds, len(drafts), seconds, baselines)
