"""Drafts that the search of a captured model starts from: the fastest plans in words.

A captured decoder that is priced by its sizes has the same prices as plans in words
(`plans.segments.sized`), of which the fastest are found exactly (`plans.spec_search`). From these
the search goes on to plans that words cannot express: stages cut inside layers, separate passes for
gradients of weights, other orders of actions.
"""

from __future__ import annotations

from dataclasses import replace

from gnnplace.errors import InputError
from gnnplace.plans.given import draft_spec
from gnnplace.plans.search.draft import Draft
from gnnplace.plans.segments.chain import Chain
from gnnplace.plans.segments.sized import SizedModelCosts
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_groups import SpecSpace
from gnnplace.plans.spec_search import search_specs
from gnnplace.problem import Cluster

NUM_SEEDS = 8
"""The plans in words from which a search starts."""


def seed_drafts(chain: Chain, cluster: Cluster) -> list[Draft]:
    """Return drafts of the fastest plans in words; none of a model that sizes do not price.

    Args:
        chain: The captured model.
        cluster: The devices.
    """
    source = chain.source
    if not isinstance(source, SizedModelCosts):
        return []
    setting = replace(source.sizes.setting, cluster=cluster)
    specs = search_specs(
        SpecSpace(setting, chain.batch, cluster.num_devices, PlanSpec()),
        accepts=can_run,
        num_best=NUM_SEEDS,
    )
    drafts: list[Draft] = []
    for candidate in specs.best:
        try:
            drafts.append(draft_spec(chain, cluster, candidate.spec))
        except InputError:
            continue  # the layers of the capture cannot be cut so
    return drafts


def can_run(spec: PlanSpec) -> bool:
    """Return whether the package's own runner has all that a plan in words says."""
    return spec.zero_group is None and spec.schedule_name != "gpipe"
