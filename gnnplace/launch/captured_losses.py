"""What a captured plan loses in a launcher's words, each thing with its price.

What a launcher cannot carry is given up one thing at a time: the order of actions, cuts inside of
layers, the split over shards, recomputation of some layers, then what this launcher lacks. After
each the step is priced again, so that the seconds and bytes of all lines add up to the difference
between the plan and what is written. The written text is read back: a field that comes back as
another is a line, too.

Complexity: a capture of the model, and a price of the plan for each thing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gnnplace.costs import resolve_cluster
from gnnplace.errors import GnnplaceError, InputError
from gnnplace.launch.from_plan import LAUNCHED
from gnnplace.launch.importing import make_captured_spec
from gnnplace.launch.launch_plan import LaunchPlan
from gnnplace.launch.writing import Loss
from gnnplace.plans import (
    Chain,
    DecoderSizes,
    Draft,
    MeshFabric,
    ModelCosts,
    Orders,
    Plan,
    PlanFile,
    Priced,
    capture_file_chain,
    draft_plan,
    draft_spec,
    find_layer_bounds,
    from_config,
    make_pricer,
    read_orders,
    realize_draft,
    split_by_spec,
    with_recomputation,
    with_splits,
)
from gnnplace.problem import Cluster, with_slack
from gnnplace.tracing import make_workload


def find_captured_sizes(model: str, file: PlanFile) -> tuple[DecoderSizes | None, str]:
    """Return the sizes of a plan's model, or None, and the reason to give if there are none."""
    shape = file.inputs[0].shape if file.inputs else []
    try:
        config = getattr(make_workload(model, fake=True).model, "config", None)
    except GnnplaceError as error:
        return None, f"sizes of the model: {error}"
    is_known = len(shape) == 2 and getattr(config, "model_type", None) in LAUNCHED
    if is_known:
        sizes = from_config(model, config, shape[1])
    else:
        sizes = None
    return sizes, f"sizes of the model: {model!r} is no decoder whose layers are known"


@dataclass(eq=False)
class Prices:
    """Prices of the plans of one model on one cluster.

    Attributes:
        model: Name of the model.
        cluster: The cluster.
        chain: The captured model, in the precision of the plan.
    """

    model: str
    cluster: Cluster
    chain: Chain

    @classmethod
    def of(cls, plan: Plan, model: str, cluster: str | Cluster | None) -> Prices:
        """Capture the model of a plan.

        Raises:
            GnnplaceError: If the model or the cluster cannot be made again.
        """
        file = plan.file
        devices = with_slack(
            resolve_cluster(cluster or file.cluster_file or file.cluster)
        )
        return cls(
            model, devices, capture_file_chain(file, model, devices, file.precision)
        )

    def losses(
        self,
        plan: Plan,
        base: LaunchPlan,
        steps: list[tuple[str, LaunchPlan]],
        *,
        ordered: bool = False,
    ) -> tuple[list[Loss], float]:
        """Return the price of each thing that is lost, in order, and the seconds of what is left.

        Args:
            plan: The captured plan.
            base: The plan in the launchers' terms.
            steps: What is given up, each with the plan without it.
            ordered: Whether the order of actions is written, also one that was searched.

        Raises:
            MismatchError: If the model is not the plan's.
            InputError: If what is left cannot be priced.
        """
        first = draft_plan(self.chain, self.cluster, plan)
        previous = _realize(self.chain, self.cluster, first, read_orders(plan))
        losses = []
        for line, draft in self._list_given_up(first, base, ordered):
            priced = _realize(self.chain, self.cluster, draft)
            losses.append(_loss(line, previous, priced))
            previous = priced
        chain = self.chain
        for line, nearest in steps:
            if nearest.precision != chain.precision:
                precision = nearest.precision or "32-true"
                chain = capture_file_chain(
                    plan.file, self.model, self.cluster, precision
                )
            words, _ = make_captured_spec(nearest)
            priced = _realize(
                chain, self.cluster, draft_spec(chain, self.cluster, words)
            )
            losses.append(_loss(line, previous, priced))
            previous = priced
        return losses, previous.step_time

    def _list_given_up(
        self, draft: Draft, base: LaunchPlan, ordered: bool
    ) -> Iterator[tuple[str, Draft]]:
        """Yield drafts that give up, one thing at a time, what no launcher can express.

        Each draft gives up what the drafts before it do, and comes with a line for the user.
        """
        chain = self.chain
        pricer = make_pricer(self.chain, MeshFabric(self.cluster), draft.size)
        if not ordered and ":searched" in draft.schedule:
            name = draft.schedule.partition(":")[0]
            draft = replace(draft, schedule=name, rules=None)
            yield f"order of actions: was searched; that of {name} is written", draft
        count = len(draft.stages)
        if base.layers is not None and count > 1:
            bounds = find_layer_bounds(chain, base.layers, count)
            moved_stages = [
                k for k, s in enumerate(draft.stages) if s.first != bounds[k]
            ]
            draft = draft.with_cuts(bounds)
            if moved_stages:
                numbers = ", ".join(map(str, moved_stages))
                yield (
                    f"stage {numbers}: begins inside of a layer; whole layers are written",
                    draft,
                )
        if draft.stages[0].mesh.shards > 1:
            split = split_by_spec(base.spec)
            split_draft = with_splits(pricer, draft, split.choices)
            if self._placements(split_draft) != self._placements(draft):
                reason = (
                    f"split over {split.num_shards} shards: is not {split.description}, which is "
                    "written"
                )
                yield reason, split_draft
            draft = split_draft
        stages = [with_recomputation(chain, s, base.recompute) for s in draft.stages]
        if stages != list(draft.stages):
            draft = replace(draft, stages=tuple(stages))
            yield f"recompute: by segments; {base.recompute} is written", draft

    def _placements(self, draft: Draft) -> list[object]:
        source = self.chain.source
        if not isinstance(source, ModelCosts):
            return []
        kinds = [self.cluster.devices[s.mesh.first].kind for s in draft.stages]
        return [
            source.placements(
                kind,
                s.mesh.axes,
                draft.size // s.mesh.replicas,
                s.first,
                s.last,
                s.choice,
            )
            for kind, s in zip(kinds, draft.stages, strict=True)
        ]


def _realize(
    chain: Chain, cluster: Cluster, draft: Draft, orders: Orders | None = None
) -> Priced:
    priced = realize_draft(
        make_pricer(chain, MeshFabric(cluster), draft.size), draft, orders
    )
    if priced is None:
        raise InputError(f"{chain.name}: cannot be cut as it would be written")
    return priced


def _loss(told: str, before: Priced, after: Priced) -> Loss:
    peak_before, peak_after = (
        max(plan.held(rank) for rank in range(len(plan.chunks)))
        for plan in (before, after)
    )
    return Loss(told, after.step_time - before.step_time, peak_after - peak_before)
