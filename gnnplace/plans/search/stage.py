"""The price of a stage: seconds of a micro-batch, seconds at the end of a step, bytes.

For a run of segments on a mesh of r replicas and t shards, and micro-batches of g examples in all
(g / r a replica), with the segments' costs at (t, g / r)::

    forward   sum of forward
    backward  sum of backward + forward of what is recomputed (all of a segment, or attention)
    weights   sum of weights
    end       gradients over replicas + the optimizer's step

ZeRO over the replicas (Rajbhandari et al., 2020, arXiv 1910.02054) has four stages. With 0,
gradients are all-reduced at the end of the step. With 1 they are reduce-scattered there, each
replica updates its part, and parameters are all-gathered. With 2, gradients are reduce-scattered
after every micro-batch. With 3, parameters are also gathered before every forward and backward
pass. No exchange overlaps with compute: published runs are nearer to that than to perfect overlap
(docs/plan.md).

The memory of a device is its state (`costs.memory.state_terms`), the activations of each
micro-batch in flight, and the largest working memory. When neighbouring segments are recomputed as
one run, all activations of the run are working memory at the same time. A recomputed segment saves
only its inputs; a run of neighbouring segments of one layer saves the inputs of its first segment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.costs import (
    ALL_GATHER,
    ALL_REDUCE,
    NO_EXCHANGES,
    PARAMETER,
    REDUCE_SCATTER,
    ReplicaExchanges,
    StateTerms,
    state_terms,
)
from gnnplace.plans.mesh import Mesh, MeshFabric
from gnnplace.plans.plan import border_words
from gnnplace.plans.segments.chain import (
    FASTEST,
    Chain,
    SegmentCosts,
    SplitChoice,
    Tied,
    run_starts,
)

if TYPE_CHECKING:
    from gnnplace.plans.search.draft import Draft

WORTHWHILE = 0.05
"""Part of what is kept that attention has where recomputing it alone is tried."""


@dataclass(frozen=True)
class Stage:
    """A run of segments on a mesh.

    Attributes:
        first: The first segment.
        last: The segment after the last.
        mesh: Devices, as replicas times shards.
        zero: ZeRO stage, over the replicas.
        recompute: Segments whose values are computed again for the backward pass.
        together: How many neighbouring layers keep one input, that of the first; 0: every segment
            keeps its own.
        attention: Whether the segments of `recompute` compute only their attention again.
        choice: How the split over the shards is chosen.
        zero_group: Replicas that ZeRO shards over; None: all.
    """

    first: int
    last: int
    mesh: Mesh
    zero: int = 0
    recompute: frozenset[int] = frozenset()
    together: int = 0
    attention: bool = False
    choice: SplitChoice = FASTEST
    zero_group: int | None = None


@dataclass(frozen=True)
class RankBytes:
    """The memory of one device of a rank.

    Attributes:
        terms: Bytes of parameters, gradients, optimizer and buckets.
        allocated: The most bytes that are allocated at an instant.
        reserved: The most bytes that the allocator has reserved, with what libraries take.
    """

    terms: StateTerms
    allocated: float
    reserved: float

    @property
    def state(self) -> float:
        """Return the bytes that stay for the whole step."""
        return self.terms.total


@dataclass(frozen=True, kw_only=True)
class StageBytes:
    """The bytes of one stage on each of its devices.

    Attributes:
        terms: Bytes of parameters, gradients and optimizer state.
        saved: Bytes that a micro-batch in flight keeps.
        working: Bytes at work beside these.
        recomputing: Bytes of `working` that are kept while something is computed again.
        resident: Bytes of parameters that stay gathered.
        updating: Bytes that the optimizer's step has beside the state.
        is_sharded: Whether replicas shard parameters in every micro-batch (ZeRO 2 and 3).
    """

    terms: StateTerms
    saved: float
    working: float
    recomputing: float = 0.0
    resident: float = 0.0
    updating: float = 0.0
    is_sharded: bool = False

    @property
    def state(self) -> float:
        """Return the bytes that stay for the whole step."""
        return self.terms.total


@dataclass(frozen=True, kw_only=True)
class StageCost(StageBytes):
    """The seconds and bytes of one stage on each of its devices.

    Attributes:
        forward: Seconds of a micro-batch's forward pass.
        backward: Seconds of the gradients of activations, recomputation included.
        weights: Seconds of the gradients of weights.
        recomputed: Seconds of `backward` that recompute.
        gathered: Seconds of `forward`, `backward` and `weights` that ZeRO exchanges.
        reduction: Seconds of exchanging gradients and parameters at the end of the step.
        update: Seconds of the optimizer's step.
        error: Expected relative error of the seconds of a micro-batch.
        exchanges: What replicas exchange once a step, if a framework says what hides it.
    """

    forward: float
    backward: float
    weights: float
    recomputed: float
    gathered: float
    reduction: float
    update: float
    error: float
    exchanges: ReplicaExchanges = NO_EXCHANGES

    @property
    def microbatch(self) -> float:
        """Return the seconds of a micro-batch, forward and backward."""
        return self.forward + self.backward + self.weights

    @property
    def end(self) -> float:
        """Return the seconds after the last micro-batch."""
        return self.reduction + self.update


@dataclass(frozen=True, eq=False)
class SegmentSums:
    """Prefix sums of segment costs, of which a run's cost is a difference. [segments + 1] each

    Attributes:
        costs: The costs that were summed up. [segments]
        forward: Seconds of the forward pass.
        backward: Seconds of the gradients of activations.
        weights: Seconds of the gradients of weights.
        update: Seconds of the optimizer's step.
        saved: Bytes kept for the backward pass.
        parameters: Elements of trained parameters.
        error: Expected error in seconds.
        frozen: Elements of parameters that are not trained.
        summed: Elements whose gradients are sums over shards. [sums, segments + 1]
        tied: Elements of each tied parameter, not summed up. [tied, segments]
    """

    costs: SegmentCosts
    forward: FloatArray
    backward: FloatArray
    weights: FloatArray
    update: FloatArray
    saved: FloatArray
    parameters: FloatArray
    error: FloatArray
    frozen: FloatArray
    summed: FloatArray
    tied: FloatArray  # of each tied parameter, not summed up. [tied, segments]


class SegmentRates(NamedTuple):
    """The part of single segments in exchanges, updates and memory. [segments] each

    Attributes:
        forward: Seconds of exchanges with a forward pass.
        backward: Seconds of exchanges before the gradients of activations.
        weights: Seconds of exchanges with the gradients of weights.
        end: Seconds after the last micro-batch.
        state: Bytes of state.
        recomputed: Seconds that computing a segment again adds at least.
        working: Bytes at work that a stage with the segment has at least.
    """

    forward: FloatArray
    backward: FloatArray
    weights: FloatArray
    end: FloatArray
    state: FloatArray
    recomputed: FloatArray
    working: FloatArray


Owners = tuple[FloatArray, Sequence[int], int]
"""Elements of parameters, devices that add up their gradients, and how many such groups."""


def group_by_owner(
    parameters: FloatArray, summed: FloatArray, mesh: Mesh
) -> list[Owners]:
    """Return parameters by who adds up their gradients: replicas, and shards that have copies.

    Args:
        parameters: Elements on a device. [...]
        summed: Elements whose gradients are sums over shards; see `SegmentCosts`. [sums, ...]
        mesh: The devices.
    """
    sums_over_axes = product((False, True), repeat=len(mesh.axes))
    parts = [np.maximum(parameters - summed.sum(axis=0), 0.0), *summed]
    return [
        (elements, *mesh.summing(axes))
        for elements, axes in zip(parts, sums_over_axes, strict=True)
        if elements.any() or not any(axes)
    ]


def exchanges(
    zero: int, precision: str, seconds: Callable[[str, int], float]
) -> tuple[float, float, float]:
    """Return the seconds of what replicas exchange, by ZeRO stage.

    Stage 0 all-reduces gradients once a step. Stage 1 reduce-scatters gradients and all-gathers
    parameters once a step. Stage 2 reduce-scatters with every micro-batch and all-gathers once a
    step. Stage 3 reduce-scatters with every micro-batch and all-gathers before every pass. Source:
    Rajbhandari et al., 2020, arXiv 1910.02054.

    Args:
        zero: ZeRO stage, 0 to 3.
        precision: Precision of parameters and passes, in Lightning's words.
        seconds: A function that returns the seconds of a collective by its name and bytes an
            element.

    Returns:
        Seconds of gathering before each pass of a micro-batch, of scattering after it, and of all
        that comes at the end of the step.
    """
    parameter, gradient, _ = PARAMETER[precision]
    if zero == 0:
        return 0.0, 0.0, seconds(ALL_REDUCE, gradient)
    gather = seconds(ALL_GATHER, parameter)
    scatter = seconds(REDUCE_SCATTER, gradient)
    if zero == 1:
        return 0.0, 0.0, gather + scatter
    if zero == 2:
        return (0.0, scatter, gather)
    return (gather, scatter, 0.0)


def sum_costs(costs: SegmentCosts, tied: FloatArray) -> SegmentSums:
    """Return the prefix sums of segment costs; errors are weighted by seconds.

    Args:
        costs: Costs of every segment.
        tied: Elements of each tied parameter. [tied, segments]
    """

    def sums(values: FloatArray) -> FloatArray:
        zeros = np.zeros((*values.shape[:-1], 1))
        return np.concatenate([zeros, np.cumsum(values, -1)], -1)

    seconds = costs.forward + costs.backward + costs.weights
    return SegmentSums(
        costs,
        sums(costs.forward),
        sums(costs.backward),
        sums(costs.weights),
        sums(costs.update),
        sums(costs.saved),
        sums(costs.parameters),
        sums(costs.error * seconds),
        sums(costs.frozen),
        sums(costs.summed),
        tied,
    )


@dataclass(frozen=True, eq=False)
class Pricer:
    """The pricer of a chain's stages on a cluster, for micro-batches of one size.

    Attributes:
        chain: The model as a chain of segments, with their prices.
        fabric: The cluster, and what exchanges take on it.
        size: Examples of a micro-batch, over all replicas.
    """

    chain: Chain
    fabric: MeshFabric
    size: int
    has_cheap_zero: ClassVar[bool] = True
    """Whether ZeRO 2 and 3 never take less time than ZeRO 1."""
    allows_rest: ClassVar[bool] = False
    """Whether interleaved ranks may have micro-batches that their number does not divide."""
    _sums: dict[
        tuple[tuple[str, ...], tuple[int, ...], int, SplitChoice], SegmentSums | None
    ] = field(default_factory=dict)

    def sums(
        self,
        mesh: Mesh,
        kinds: tuple[str, ...] | None = None,
        choice: SplitChoice = FASTEST,
    ) -> SegmentSums | None:
        """Return the prefix sums of segment costs on a mesh; None if the model cannot be cut so.

        Args:
            mesh: Devices, as replicas times shards.
            kinds: Kinds of devices to price for instead of the mesh's own.
            choice: How the split over the shards is chosen.
        """
        if self.size % mesh.replicas:
            return None
        kinds = kinds or self.fabric.kinds(mesh)
        key = (kinds, mesh.axes, self.size // mesh.replicas, choice)
        if key not in self._sums:
            costs = self.chain.costs(*key)
            self._sums[key] = (
                None
                if costs is None
                else sum_costs(costs, self.chain.count_tied(costs))
            )
        return self._sums[key]

    def cost(self, stage: Stage) -> StageCost | None:
        """Return the seconds and bytes of a stage; None if the model cannot be cut so."""
        sums = self.sums(stage.mesh, choice=stage.choice)
        if sums is None:
            return None
        forward, backward, weights, error, update, parameters, frozen = (
            float(total[stage.last] - total[stage.first])
            for total in (
                sums.forward,
                sums.backward,
                sums.weights,
                sums.error,
                sums.update,
                sums.parameters,
                sums.frozen,
            )
        )
        summed = sums.summed[:, stage.last] - sums.summed[:, stage.first]
        seconds = max(forward + backward + weights, 1e-30)
        costs = sums.costs
        # What is computed again, and what that frees.
        if stage.attention:
            recomputed_seconds = costs.attention
        else:
            recomputed_seconds = costs.forward
        recomputed = float(recomputed_seconds[sorted(stage.recompute)].sum())
        if not stage.attention:  # what is computed again keeps nothing that is gathered
            weights -= float(costs.gathered[sorted(stage.recompute)].sum())
        freed, recomputing = self._count_freed(stage, costs)
        # Elements of tied parameters count once for the update and the exchanges.
        update /= max(parameters, 1e-30)
        parameters -= self._twice(stage, sums)
        owned = group_by_owner(
            np.array(parameters), np.minimum(summed, parameters), stage.mesh
        )
        exchanged = [
            self.price_exchanges(stage.zero, float(elements), group, alike)
            for elements, group, alike in owned
        ]
        gather, scatter, reduction, _ = (sum(x) for x in zip(*exchanged, strict=True))
        # Frozen parameters are gathered under ZeRO 3 and never exchanged otherwise.
        gather_frozen, frozen_bytes = self.frozen(stage.zero, frozen, stage.mesh)
        terms = StateTerms(frozen=frozen_bytes)
        for num_elements, group, _ in owned:
            terms = terms.plus(self._terms(stage.zero, float(num_elements), len(group)))
        gather += gather_frozen
        parted = sum(
            float(elements) / (len(group) if stage.zero else 1)
            for elements, group, _ in owned
        )
        saved = float(sums.saved[stage.last] - sums.saved[stage.first])
        working = float(costs.working[stage.first : stage.last].max(initial=0.0))
        return StageCost(
            forward=forward + gather,
            backward=backward + recomputed + gather,
            weights=weights + scatter,
            recomputed=recomputed,
            gathered=2 * gather + scatter,
            reduction=reduction,
            update=update * parted,
            terms=terms,
            saved=saved - freed,
            working=working + recomputing,
            error=error / seconds,
        )

    def trained(self, stage: Stage) -> float:
        """Return the elements that a device of a stage trains, each parameter once."""
        sums = self.sums(stage.mesh, choice=stage.choice)
        if sums is None:
            return 0.0
        parameters = sums.parameters[stage.last] - sums.parameters[stage.first]
        return float(parameters) - self._twice(stage, sums)

    def _twice(self, stage: Stage, sums: SegmentSums) -> float:
        """Return the elements of tied parameters that a stage's sums count more than once."""
        total = 0.0
        for tied, elements in zip(self.chain.tied, sums.tied, strict=True):
            repeated = elements[
                [s for s in tied.segments if stage.first <= s < stage.last]
            ]
            total += float(repeated.sum() - repeated.max(initial=0.0))
        return total

    def price_exchanges(
        self,
        zero: int,
        parameters: float,
        group: Sequence[int],
        alike: int,
        *,
        least: bool = False,
    ) -> tuple[float, float, float, float]:
        """Price what the devices that add up the gradients of some parameters exchange.

        Args:
            zero: ZeRO stage.
            parameters: Number of elements.
            group: Devices that add up their gradients.
            alike: How many such groups exchange at the same time.
            least: Whether to return seconds of which every part of the parameters takes at least
                its share (`MeshFabric.rate`).

        Returns:
            Seconds of gathering parameters and of scattering gradients with every micro-batch,
            seconds of exchanges at the end of the step, and bytes of state on a device.
        """
        chain = self.chain

        def seconds(op: str, width: int) -> float:
            """Return the seconds of one collective for all parameters, `width` bytes each."""
            size = width * parameters
            if not least:
                return self.fabric.collective(op, size, group, alike)
            if len(group) > 1:
                return size * self.fabric.rate(op, size, group, alike)
            return 0.0

        gather, scatter, end = exchanges(zero, chain.precision, seconds)
        return gather, scatter, end, self._terms(zero, parameters, len(group)).total

    def _terms(self, zero: int, parameters: float, replicas: int) -> StateTerms:
        """Return the bytes of state on a device of parameters whose gradients replicas add up.

        Args:
            zero: ZeRO stage.
            parameters: Number of elements.
            replicas: Devices that add up their gradients.
        """
        return state_terms(
            parameters,
            optimizer=self.chain.optimizer,
            precision=self.chain.precision,
            zero=zero,
            replicas=replicas,
        )

    def frozen(
        self, zero: int, elements: float, mesh: Mesh, *, least: bool = False
    ) -> tuple[float, float]:
        """Price parameters that are not trained, which ZeRO 3 shards over the replicas too.

        Args:
            zero: ZeRO stage.
            elements: Elements on a device of a replica.
            mesh: The devices.
            least: See `price_exchanges`.

        Returns:
            Seconds of gathering them before a pass, and bytes on a device.
        """
        width = PARAMETER[self.chain.precision][0]
        if zero < 3 or mesh.replicas == 1 or not elements:
            return 0.0, width * elements
        group, alike = mesh.summing([False] * len(mesh.axes))
        seconds = self.price_exchanges(3, elements, group, alike, least=least)[0]
        return seconds, width * elements / mesh.replicas

    def share_by_segment(
        self,
        zero: int,
        costs: SegmentCosts,
        parameters: FloatArray,
        mesh: Mesh,
        choice: SplitChoice,
        *,
        least: bool = False,
    ) -> SegmentRates:
        """Return each segment's part of what exchanges and updates take, all segments on one stage.

        Args:
            zero: ZeRO stage.
            costs: Costs of every segment on the mesh.
            parameters: Elements on a device, those of a tied parameter once. [segments]
            mesh: The devices.
            choice: How the split over the shards is chosen.
            least: See `price_exchanges`.
        """
        rates = np.zeros((4, len(parameters)))
        for elements, group, alike in group_by_owner(
            parameters, np.minimum(costs.summed, parameters), mesh
        ):
            every = max(float(elements.sum()), 1.0)
            seconds = self.price_exchanges(zero, every, group, alike, least=least)
            rates += np.multiply.outer(np.array(seconds) / every, elements)
            part = elements / np.maximum(costs.parameters, 1e-30)
            rates[2] += costs.update * part / (len(group) if zero else 1)
        every = max(float(costs.frozen.sum()), 1.0)
        gather_frozen, frozen_bytes = self.frozen(zero, every, mesh, least=least)
        rates[[0, 3]] += np.multiply.outer(
            np.array([gather_frozen, frozen_bytes]) / every, costs.frozen
        )
        gather, scatter, end, state = rates
        recomputed = np.maximum(costs.forward - costs.gathered, 0.0)
        return SegmentRates(
            gather, gather, scatter, end, state, recomputed, costs.working
        )

    def find_most_freed(self, costs: SegmentCosts) -> FloatArray:
        """Return the bytes that recomputing each segment and its neighbours frees. [segments]"""
        layers = self.chain.layers
        begins = (layers[1:] != layers[:-1]) | (layers[1:] < 0)
        first = np.concatenate([[True], begins])
        return np.maximum(costs.saved - np.where(first, costs.entering, 0.0), 0.0)

    def _count_freed(self, stage: Stage, costs: SegmentCosts) -> tuple[float, float]:
        """Return bytes that recomputation frees of a micro-batch, and bytes that it has at work."""
        if not stage.recompute:
            return 0.0, 0.0
        recomputed = np.array(sorted(stage.recompute))
        if stage.attention:
            scores = costs.scores[recomputed]
            return float(scores.sum()), float(scores.max(initial=0.0))
        saved = costs.saved[recomputed]
        entering = costs.entering[recomputed]
        freed = float(saved.sum())
        working = saved + costs.whole[recomputed]
        if not stage.together:
            return freed - float(entering.sum()), float(working.max(initial=0.0))
        starts = run_starts(self.chain.layers, recomputed, stage.together)
        entering_runs = float(entering[starts].sum())
        return freed - entering_runs, float(np.add.reduceat(working, starts).max())

    def fitted(
        self,
        stages: Sequence[Stage],
        flying: Sequence[int],
        limit: float,
        zeros: Sequence[int] = (1, 2, 3),
    ) -> tuple[Stage, ...] | None:
        """Return one rank's stages with the least recomputation and ZeRO that fit; None if none do.

        ZeRO 1 takes no more time than 0, so it comes first where there are replicas. Of all that
        fit, the one with the least seconds of a step is taken.

        Args:
            stages: The stages that the devices of one rank have.
            flying: Micro-batches that each has in flight.
            limit: Usable bytes of a device.
            zeros: ZeRO stages to choose from, if there are replicas.
        """
        candidates: list[tuple[float, int, tuple[Stage, ...]]] = []
        sums = self.sums(stages[0].mesh, choice=stages[0].choice)
        several = stages[0].mesh.replicas > 1 or (
            sums is not None and bool(sums.summed.any())
        )
        for zero in zeros if several else (0,):
            for rank_stages in self._iterate_recomputed(
                [replace(s, zero=zero) for s in stages], flying, limit
            ):
                costs = [
                    cost for s in rank_stages if (cost := self.cost(s)) is not None
                ]
                count = self.chain.batch / self.size
                candidates.append(
                    (
                        sum(count * c.microbatch + c.end for c in costs),
                        zero,
                        rank_stages,
                    )
                )
            if (
                self.has_cheap_zero
                and zero == 1
                and candidates
                and not any(s.recompute for s in candidates[-1][2])
            ):
                break
        if candidates:
            return min(candidates, key=lambda one: one[:2])[2]
        return None

    def held(self, stages: Sequence[Stage], flying: Sequence[int]) -> float:
        """Return the bytes of a device with all these stages; inf if the model cannot be cut so.

        Args:
            stages: The stages of one rank.
            flying: Micro-batches that each has in flight.
        """
        costs: list[StageCost] = []
        saved = 0.0
        for stage, count in zip(stages, flying, strict=True):
            cost = self.cost(stage)
            if cost is None:
                return float(np.inf)
            costs.append(cost)
            saved += count * cost.saved
        return self.rank_bytes(costs, saved).reserved

    def rank_bytes(self, costs: Sequence[StageBytes], saved: float) -> RankBytes:
        """Return the bytes of a device of a rank.

        Args:
            costs: Costs of the rank's stages.
            saved: Bytes that are kept for backward passes at the fullest instant.
        """
        terms = StateTerms()
        working = 0.0
        for cost in costs:
            terms = terms.plus(cost.terms)
            working = max(working, cost.working)
        allocated = terms.total + saved + working
        return RankBytes(terms, allocated, allocated)

    def usable_memory(self, mesh: Mesh) -> float:
        """Return the bytes that a device of a mesh has for what `rank_bytes` reserves."""
        return self.fabric.memory(mesh)

    def message(self, size: int, before: Stage, after: Stage) -> float:
        """Return the seconds to send what crosses a cut.

        Every device sends its replica's part to its counterpart.

        Args:
            size: Examples of a micro-batch, over all replicas.
            before: The stage that sends in the forward pass.
            after: The stage that receives.
        """
        replicas = min(before.mesh.replicas, after.mesh.replicas)
        sent = float(self.chain.border[before.last]) * size / replicas
        axes = before.mesh.axes
        border = before.choice.border
        if axes == after.mesh.axes and border == after.choice.border:
            # Each shard sends its part along the axes that cut what crosses.
            for count, word in zip(axes, border_words(border, len(axes)), strict=True):
                if word != "whole":
                    sent /= count
        pairs: list[tuple[int, int]] = []
        for source, target in zip(
            before.mesh.devices, after.mesh.devices, strict=False
        ):
            if source != target:
                pairs.append((source, target))
        if pairs:
            return self.fabric.sends(sent, pairs[::-1])
        return 0.0

    def price_tied_reduction(
        self, tied: Tied, meshes: Sequence[Mesh], shards: int, num_devices: int
    ) -> float:
        """Return the seconds to add up the gradients of a parameter that several ranks have.

        Args:
            tied: The parameter.
            meshes: Meshes of these ranks.
            shards: Shards of the parameter on each.
            num_devices: Devices of the whole plan.
        """
        size = PARAMETER[self.chain.precision][1] * tied.elements / shards
        return self.fabric.collective(ALL_REDUCE, size, [mesh.first for mesh in meshes])

    def rank_end(self, costs: Sequence[StageCost], zero: int, following: int) -> float:
        """Return the seconds of a rank after its last pass.

        Args:
            costs: Costs of the rank's stages.
            zero: Stage of ZeRO.
            following: Micro-batches that pass a stage after the last one of the stage before.
        """
        seconds = 0.0
        for cost in costs:
            seconds += cost.end
        return seconds

    def step_seconds(self, draft: Draft) -> float:
        """Return the seconds of a step beside its passes, exchanges and updates."""
        return 0.0

    def _iterate_recomputed(
        self, stages: Sequence[Stage], flying: Sequence[int], limit: float
    ) -> Iterator[tuple[Stage, ...]]:
        """Yield stages with the least of each kind of recomputation that fits, if any is needed.

        Kinds are whole segments, with one input kept a layer or one a segment, and attention alone.
        Arguments are those of `fit_draft`.
        """
        plain = tuple(stages)
        if self.held(plain, flying) <= limit:
            yield plain
            return
        for together in (1, 0):  # one input a layer frees more, and has more at work
            kind = [replace(s, together=together) for s in stages]
            if (fitting := self._least(kind, flying, limit)) is not None:
                yield fitting
                break
        sums_of_stages = [
            s for stage in stages if (s := self.sums(stage.mesh, choice=stage.choice))
        ]
        if any(
            s.costs.scores.sum() > WORTHWHILE * s.costs.saved.sum()
            for s in sums_of_stages
        ):
            kind = [replace(s, attention=True) for s in stages]
            if (fitting := self._least(kind, flying, limit)) is not None:
                yield fitting

    def _least(
        self, stages: Sequence[Stage], flying: Sequence[int], limit: float
    ) -> tuple[Stage, ...] | None:
        """Return stages that recompute the fewest segments with which they fit; None if none fit.

        Segments are taken in the order of `worth`; arguments are those of `fit_draft`.
        """
        order = self.worth(stages, flying)

        def some(count: int) -> tuple[Stage, ...]:
            recomputed = [
                frozenset(s for c, s in order[:count] if c == k)
                for k in range(len(stages))
            ]
            return tuple(
                replace(s, recompute=a) for s, a in zip(stages, recomputed, strict=True)
            )

        if not order or self.held(some(len(order)), flying) > limit:
            return None
        too_few = 0
        enough = len(order)
        while too_few + 1 < enough:  # so few never fit, `enough` always do
            middle = (too_few + enough) // 2
            fits = self.held(some(middle), flying) <= limit
            too_few, enough = (too_few, middle) if fits else (middle, enough)
        return some(enough)

    def worth(
        self, stages: Sequence[Stage], flying: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Return the stage and segment of what is worth recomputing, most bytes a second first.

        A byte counts as often as micro-batches are in flight.

        Args:
            stages: The stages of one rank.
            flying: Micro-batches that each has in flight.
        """
        candidates: list[tuple[float, int, int]] = []
        for k, (stage, count) in enumerate(zip(stages, flying, strict=True)):
            sums = self.sums(stage.mesh, choice=stage.choice)
            if sums is None:
                return []
            run = np.arange(stage.first, stage.last)
            costs = sums.costs
            freed = costs.saved[run] - costs.entering[run]
            seconds = costs.forward[run] - costs.gathered[run]
            if stage.attention:
                freed = costs.scores[run]
                seconds = costs.attention[run]
            rate = count * freed / np.maximum(seconds, 1e-12)
            for i, segment in enumerate(run):
                if freed[i] > 0:
                    candidates.append((-float(rate[i]), k, int(segment)))
        return [(k, s) for _, k, s in sorted(candidates)]
