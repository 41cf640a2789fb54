"""The price of a stage as a framework trains it: `FrameworkPricer`.

A stage's forward pass takes the larger of its kernels and of the host's launches, and so does its
backward pass. `costs.frameworks.framework` prices what replicas exchange, hide, accumulate and
update. Parameters that are sharded over replicas (ZeRO 2 and 3) are all-gathered, and their
gradients reduce-scattered, with every micro-batch, layer by layer, hidden behind the layer before
or after. If a stage is only a part of the model, the exchanges of its first layer are exposed,
because nothing runs before it.

A rank's memory is its state, the activations of micro-batches in flight at their peak, and the
largest working memory; or state and the optimizer's working memory, if that is more. The
allocator's fragmentation is a factor on everything that is allocated during a step, and every
device has a context. Of sharded parameters, those of the embedding, the head and `blocks` layers
are gathered at the same time. The peak is at the loss or in the last layer's backward pass.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.costs import (
    GIBIBYTE,
    NO_EXCHANGES,
    NOTHING,
    Framework,
    ReplicaExchanges,
    ReplicaGroup,
    ReplicatedParameters,
    Seconds,
    StateTerms,
    compute_exposed_seconds,
    compute_uncovered_seconds,
)
from gnnplace.plans.mesh import Mesh, MeshFabric
from gnnplace.plans.search.stage import (
    Pricer,
    RankBytes,
    SegmentRates,
    SegmentSums,
    Stage,
    StageBytes,
    StageCost,
)
from gnnplace.plans.segments.chain import (
    Chain,
    Degrees,
    SegmentCosts,
    SplitChoice,
    Tied,
)

if TYPE_CHECKING:
    from gnnplace.plans.search.draft import Draft

ONCE = 1
"""The ZeRO stage whose exchanges are those of a step, and not of every micro-batch."""
ADDED_PASSES = 3
"""Times that a host's memory passes a gradient that is added up: two are read, one is written."""
SHARDED = 2
"""The ZeRO stage from which on replicas shard gradients in every micro-batch."""
PARAMETER_BYTES = 2.0
"""Bytes of a parameter that is gathered, and of a table that is frozen."""
LATE_VALUES = 16.0
"""Bytes a token and width that the last layer's backward pass has beside gradients (FSDP)."""


def make_pricer(chain: Chain, fabric: MeshFabric, size: int) -> Pricer:
    """Return the pricer of a chain's stages, by the terms that the chain was made for.

    Args:
        chain: The model as a chain of segments.
        fabric: The cluster, and what exchanges take on it.
        size: Examples of a micro-batch, over all replicas.
    """
    if chain.framework is None:
        kind = Pricer
    else:
        kind = FrameworkPricer
    return kind(chain, fabric, size)


class StageSetting(NamedTuple):
    """A stage with what its price depends on.

    Attributes:
        stage: The stage.
        costs: Costs of every segment of the model on the stage's mesh.
        degrees: How the mesh cuts a replica's work.
        group: The replicas that add up the stage's gradients.
        framework: The framework, on the slowest of the stage's devices.
        parameters: The stage's parameters on one device.
        key: What is equal for stages that differ in what they recompute alone.
    """

    stage: Stage
    costs: SegmentCosts
    degrees: Degrees
    group: ReplicaGroup
    framework: Framework
    parameters: ReplicatedParameters
    key: Hashable

    @property
    def run(self) -> slice:
        """Return the segments of the stage."""
        return slice(self.stage.first, self.stage.last)

    @property
    def is_whole(self) -> bool:
        """Return whether the stage is the whole model."""
        return self.stage.first == 0 and self.stage.last == len(self.costs.forward)


class BytesWhole(NamedTuple):
    """The bytes of a stage on each of its devices, but for what recomputation changes.

    Attributes:
        terms: Bytes of parameters, gradients and optimizer state.
        saved: Bytes that a micro-batch in flight keeps if nothing is recomputed.
        inputs: Bytes of gathered inputs that it keeps besides.
        working: Bytes at work beside what is computed again.
        loss: Bytes at work while the loss is computed, if that is another instant.
        gathered: Bytes of gathered parameters at work at either instant.
        resident: Bytes of parameters that stay gathered.
        updating: Bytes that the optimizer's step has beside the state.
    """

    terms: StateTerms
    saved: float
    inputs: float
    working: tuple[float, float]
    loss: float = 0.0
    gathered: float = 0.0
    resident: float = 0.0
    updating: float = 0.0


class StagePasses(NamedTuple):
    """Seconds of a stage's passes of one micro-batch.

    Attributes:
        forward: Seconds of the forward pass.
        backward: Seconds of the backward pass, with recomputation and the gradients of weights.
        exposed: Seconds of both that exchanges of sharded parameters add and compute does not hide.
    """

    forward: float
    backward: float
    exposed: float


@dataclass(frozen=True, eq=False)
class FrameworkPricer(Pricer):
    """The pricer of a chain's stages as its framework trains them; attributes as of `Pricer`."""

    has_cheap_zero: ClassVar[bool] = False  # ZeRO 3 may hide what ZeRO 1 has bare
    allows_rest: ClassVar[bool] = True
    _units: dict[tuple[Hashable, ...], FloatArray] = field(default_factory=dict)
    _costs: dict[Hashable, StageCost | None] = field(default_factory=dict)
    _messages: dict[Hashable, float] = field(default_factory=dict)
    _settings: dict[Hashable, StageSetting] = field(default_factory=dict)
    _exchanges: dict[Hashable, FloatArray] = field(default_factory=dict)
    _whole_bytes: dict[Hashable, BytesWhole] = field(default_factory=dict)

    @property
    def framework(self) -> Framework:
        """Return the framework whose terms the chain was made for."""
        assert self.chain.framework is not None
        return self.chain.framework

    def cost(self, stage: Stage) -> StageCost | None:
        """Return the seconds and bytes of a stage; None if the model cannot be cut so.

        Stages of the same kinds of segments on like devices cost the same, and are priced once.
        """
        key = self._key(stage)
        if key not in self._costs:
            self._costs[key] = self._priced(stage)
        return self._costs[key]

    def _key(self, stage: Stage) -> Hashable:
        """Return a key that is equal for stages of equal cost."""
        mesh = stage.mesh
        recomputed = bytearray(stage.last - stage.first)
        for segment in stage.recompute:
            recomputed[segment - stage.first] = 1
        return (
            self._kinds[stage.first : stage.last],
            bytes(recomputed),
            stage.attention,
            stage.together,
            stage.zero,
            stage.zero_group,
            stage.choice,
            self.fabric.kinds(mesh),
            (mesh.replicas, mesh.shards, mesh.outer),
        )

    @cached_property
    def _kinds(self) -> tuple[Hashable, ...]:
        """Return the kind of every segment; segments of one kind cost the same. [segments]"""
        return tuple(segment.kind for segment in self.chain.segments)

    def _priced(self, stage: Stage) -> StageCost | None:
        """Price a stage, as `cost` does, without looking it up."""
        sums = self.sums(stage.mesh, choice=stage.choice)
        if sums is None:
            return None
        setting = self._setting(stage, sums)
        costs = setting.costs
        run = setting.run
        framework = setting.framework
        constants = framework.constants
        zero = self.zero_as_run(stage.zero, is_whole=setting.is_whole)

        # What is computed again: attention alone, or everything of the recomputed segments.
        is_recomputed = np.zeros(len(costs.forward))
        is_recomputed[sorted(stage.recompute)] = 1.0
        recomputed = (
            costs.attention if stage.attention else costs.recomputed
        ) * is_recomputed
        passes = self._passes(setting, recomputed[run])

        forward, backward = self.apply_floor(
            passes.forward, passes.backward, self._host(setting)
        )
        forward = float(forward)
        backward = float(backward)
        weights = float(costs.weights[run].sum())
        # Below ZeRO 2 gradients are accumulated and exchanged once a step, in part behind passes.
        window = constants["hides_reduce"]
        exchanges = NO_EXCHANGES
        if zero >= SHARDED:
            summed = framework.sums_once(setting.parameters, setting.group)
            hidden = min(summed, window * float(backward))
            reduction = compute_exposed_seconds(
                summed, hidden, constants["overlap_replicas"]
            )
        else:
            weights += framework.accumulation(setting.parameters.count)
            exchanges = framework.replica_exchanges(
                zero, setting.parameters, setting.group
            )
            reduction = framework.reduction(
                zero, exchanges, window * forward, window * backward
            )
        weights = min(weights, backward)

        # What lies on the host takes no memory of the GPU but seconds of copies.
        bytes_in_all = self._bytes(setting)
        cost = StageCost(
            **vars(self._count_device_bytes(bytes_in_all)),
            forward=forward,
            backward=backward - weights,
            weights=weights,
            recomputed=float(recomputed[run].sum()),
            gathered=passes.exposed,
            reduction=reduction,
            update=framework.update(setting.parameters, setting.group)
            + self._products(setting),
            error=float(costs.error.mean()),
            exchanges=exchanges,
        )
        if framework.offload == NOTHING:
            return cost
        return self._with_host(setting, cost, copied=bytes_in_all.saved - cost.saved)

    def stage_bytes(
        self, stage: Stage, sums: SegmentSums | None = None
    ) -> StageBytes | None:
        """Return the bytes of a stage on its devices; None where no cut is possible.

        Args:
            stage: The stage.
            sums: On its mesh, where they are at hand.
        """
        if sums is None:
            sums = self.sums(stage.mesh, choice=stage.choice)
        if sums is None:
            return None
        return self._count_device_bytes(self._bytes(self._setting(stage, sums)))

    def _bytes(self, setting: StageSetting) -> StageBytes:
        """Return the bytes of a stage, nothing of it on the host."""
        stage = setting.stage
        if setting.key not in self._whole_bytes:
            self._whole_bytes[setting.key] = self._count_all_bytes(setting)
        unfreed = self._whole_bytes[setting.key]
        freed, recomputing = self._count_freed(stage, setting.costs)
        if stage.attention:
            recomputing = 0.0
        at_work = recomputing + unfreed.working[0] + unfreed.working[1]
        return StageBytes(
            terms=unfreed.terms,
            saved=unfreed.saved - freed + unfreed.inputs,
            working=unfreed.gathered + max(unfreed.loss, at_work),
            recomputing=recomputing,
            resident=unfreed.resident,
            updating=unfreed.updating,
            is_sharded=self.zero_as_run(stage.zero, is_whole=setting.is_whole)
            >= SHARDED,
        )

    def _count_all_bytes(self, setting: StageSetting) -> BytesWhole:
        """Return the bytes of a stage, but for what recomputation changes."""
        costs = setting.costs
        run = setting.run
        framework = setting.framework
        constants = framework.constants
        zero = self.zero_as_run(setting.stage.zero, is_whole=setting.is_whole)
        saved = float(costs.saved[run].sum())
        inputs = self._count_gathered_bytes(setting)
        # Whole parameters have buckets and buffers beside them; sharded ones are gathered at work.
        if zero >= SHARDED:
            return self._count_sharded_bytes(setting, saved, inputs)
        terms, updating = framework.compute_replicated_state(
            zero, setting.parameters, setting.group
        )
        if setting.degrees.tp > 1:
            gathered = constants["gather_buffers"] * self._stream(setting)
            terms = terms.plus(StateTerms(buckets=gathered))
        parameter = framework.state_bytes.parameter
        passing = constants["gradient_passing"] * parameter * setting.parameters.count
        largest = float(costs.working[run].max(initial=0.0))
        return BytesWhole(terms, saved, inputs, (largest, passing), updating=updating)

    def _count_device_bytes(self, whole: StageBytes) -> StageBytes:
        """Return the bytes of a stage without those that lie in the host's memory.

        Gradients of sharded parameters leave with every micro-batch, whole ones stay to be summed.

        Args:
            whole: Bytes of the stage with nothing on the host.
        """
        offloading = self.framework.offloading
        terms = whole.terms
        if offloading.activations:
            # What is copied passes while it is used: at work it is on the GPU.
            return replace(
                whole, saved=whole.saved - offloading.activations * whole.saved
            )
        if not offloading.optimizer:
            return whole
        terms = terms._replace(optimizer=0.0)
        if whole.is_sharded:
            terms = terms._replace(gradients=0.0)
            if offloading.parameters:
                terms = terms._replace(parameters=0.0, frozen=0.0)
        return replace(whole, terms=terms, updating=0.0)

    def host_bytes(self, stage: Stage) -> float:
        """Return the bytes of state that each device of a stage has in the host's memory."""
        sums = self.sums(stage.mesh, choice=stage.choice)
        if sums is None or not self.framework.offloading.optimizer:
            return 0.0
        bytes_in_all = self._bytes(self._setting(stage, sums))
        on_device = self._count_device_bytes(bytes_in_all)
        return bytes_in_all.terms.total - on_device.terms.total

    def _with_host(
        self, setting: StageSetting, cost: StageCost, copied: float
    ) -> StageCost:
        """Return the cost of a stage with the seconds of copies and updates on its hosts.

        `costs.frameworks.offloading` has what is hidden.

        Args:
            setting: The stage.
            cost: Its seconds with everything on the GPU.
            copied: Bytes that a micro-batch keeps on the host.
        """
        framework = setting.framework
        group = setting.group
        parameters = setting.parameters
        offloading = framework.offloading
        host = framework.host
        state = framework.state_bytes
        backward = cost.backward + cost.weights
        if offloading.activations:
            return replace(
                cost,
                forward=cost.forward
                + compute_uncovered_seconds(copied / host.link, cost.forward),
                backward=cost.backward
                + compute_uncovered_seconds(copied / host.link, backward),
            )
        sharded = (
            parameters.dense / group.shards + parameters.experts / group.expert_shards
        )
        sent = state.gradient * sharded / host.link
        if offloading.parameters:
            frozen = framework.compute_sharded_frozen(parameters, group)
        else:
            frozen = 0.0
        returned = (state.parameter * sharded + frozen) / host.link
        element_bytes = host.adam + framework.optimizer_kind.extra_bytes_moved
        update = element_bytes * sharded / host.memory
        # Parameters that stay gathered for the whole step pass once, as the optimizer's results do.
        if offloading.parameters and cost.is_sharded:
            late = cost.backward + compute_uncovered_seconds(
                max(sent, returned), backward
            )
            if framework.accumulates:
                # FSDP waits for the copy of a gradient that is added to another, and for the sum.
                added = ADDED_PASSES * state.gradient * sharded / host.memory
                late = (
                    cost.backward
                    + compute_uncovered_seconds(returned, backward)
                    + sent
                    + added
                )
            return replace(
                cost,
                forward=cost.forward
                + compute_uncovered_seconds(returned, cost.forward),
                backward=late,
                update=update,
            )
        # Gradients are scattered, and leave the GPU, with every micro-batch.
        if cost.is_sharded:
            late = cost.backward + compute_uncovered_seconds(sent, backward)
            return replace(cost, backward=late, update=update + returned)
        return replace(
            cost, update=compute_uncovered_seconds(sent, backward) + update + returned
        )

    def zero_as_run(self, zero: int, *, is_whole: bool) -> int:
        """Return the ZeRO stage whose exchanges and state a stage has.

        Some frameworks gather the parameters of a pipeline's stages once a step, and scatter the
        gradients once: that is ZeRO 1, but that the replicas' shards stay beside what is gathered.

        Args:
            zero: ZeRO stage of the plan.
            is_whole: Whether the stage is the whole model.
        """
        is_once = (
            zero >= SHARDED and not is_whole and self.framework.traits.gathers_once
        )
        return ONCE if is_once else zero

    def _setting(self, stage: Stage, sums: SegmentSums) -> StageSetting:
        """Return a stage with what its price depends on."""
        mesh = stage.mesh
        ends = stage.first, stage.last
        key = *ends, mesh, stage.zero, stage.zero_group, stage.choice
        if key not in self._settings:
            self._settings[key] = self._new_setting(stage, sums, key)
        return self._settings[key]._replace(stage=stage)

    def _new_setting(
        self, stage: Stage, sums: SegmentSums, key: Hashable
    ) -> StageSetting:
        """Return a stage with what its price depends on, its key as given."""
        costs = sums.costs
        mesh = stage.mesh
        run = slice(stage.first, stage.last)
        degrees = self._degrees(mesh, stage.choice)
        framework = self.framework
        if framework.kinds:
            kinds = self.fabric.kinds(mesh)
            slowest = max(
                kinds, key=lambda kind: framework.select_kind(kind).kernels.stream(1.0)
            )
            framework = framework.with_kernels_of(slowest)
        elements = float(costs.parameters[run].sum()) - self._twice(stage, sums)
        parameters = self._parameters(costs, run, elements)
        # A frozen table that embedding and head share.
        if not self.chain.tied and parameters.frozen:
            tied = costs.tied[run]
            repeated = PARAMETER_BYTES * float(tied.sum() - tied.max(initial=0.0))
            parameters = replace(parameters, frozen=parameters.frozen - repeated)
        group = self._group(mesh, degrees, zero=stage.zero, shards=stage.zero_group)
        return StageSetting(stage, costs, degrees, group, framework, parameters, key)

    def _parameters(
        self, costs: SegmentCosts, run: slice, elements: float
    ) -> ReplicatedParameters:
        """Return the parameters of a run of segments on one device.

        Args:
            costs: Costs of every segment on the mesh.
            run: The segments.
            elements: Elements of all their trained parameters, each tied one once.
        """
        experts = float(costs.experts[run].sum())
        return ReplicatedParameters(
            dense=elements - experts,
            experts=experts,
            num_layers=float(
                self._layers_before[run.stop] - self._layers_before[run.start]
            ),
            largest=float(costs.largest.max()),
            outside=elements - float(costs.matrices[run].sum()),
            frozen=float((costs.frozen_bytes - costs.frozen_experts)[run].sum()),
            frozen_experts=float(costs.frozen_experts[run].sum()),
        )

    def _products(self, setting: StageSetting) -> float:
        """Return the seconds of matrix products in the optimizer's step, which ZeRO shares out."""
        return float(setting.costs.update[setting.run].sum()) / setting.group.shards

    def replicas(
        self, mesh: Mesh, choice: SplitChoice, zero: int, shards: int | None = None
    ) -> ReplicaGroup:
        """Return the replicas that add up gradients.

        Args:
            mesh: The devices.
            choice: How the split over the shards is chosen.
            zero: ZeRO stage.
            shards: Replicas that ZeRO shards over; None: all.
        """
        return self._group(mesh, self._degrees(mesh, choice), zero=zero, shards=shards)

    def _group(
        self, mesh: Mesh, degrees: Degrees, *, zero: int, shards: int | None
    ) -> ReplicaGroup:
        """Return the replicas that add up gradients.

        Args:
            mesh: The devices.
            degrees: How the mesh cuts a replica's work.
            zero: ZeRO stage.
            shards: Replicas that ZeRO shards over; None: all.
        """
        count = mesh.replicas * degrees.cp * degrees.replicas
        shards = (shards or count) if zero else 1
        return self.framework.replica_group(
            count, shards, degrees.tp, degrees.ep, degrees.expert_tp
        )

    def _degrees(self, mesh: Mesh, choice: SplitChoice) -> Degrees:
        """Return the degrees of parallelism of a mesh."""
        kind = self.fabric.kinds(mesh)[0]
        examples = self.size // mesh.replicas
        return self.chain.source.degrees(kind, mesh.axes, examples, choice)

    @cached_property
    def _is_layer(self) -> BoolArray:
        """Return whether each segment is in a layer. [segments]"""
        return np.asarray(self.chain.layers >= 0)

    @cached_property
    def _layers_before(self) -> IntArray:
        """Return the number of layers that begin before each segment. [segments + 1]

        Stages begin with a layer.
        """
        layers = self.chain.layers
        begins = np.concatenate([[True], layers[1:] != layers[:-1]])
        of_layers = np.cumsum(begins & self._is_layer)
        return np.concatenate([[0], of_layers])

    @cached_property
    def _unit_numbers(self) -> IntArray:
        """Return the unit of every segment of the model; a layer is one. [segments]"""
        layers = self.chain.layers
        changes = (layers[1:] != layers[:-1]).astype(np.int64)
        return np.cumsum(np.concatenate([[0], changes]))

    def _unit_order(self, run: slice) -> IntArray:
        """Return the unit of every segment of a stage, counted from its first."""
        return np.asarray(self._unit_numbers[run] - self._unit_numbers[run.start])

    def _stream(self, setting: StageSetting) -> float:
        """Return how many numbers of a micro-batch pass from layer to layer on one device."""
        stage = setting.stage
        degrees = setting.degrees
        examples = self.size // stage.mesh.replicas // degrees.replicas
        # What crosses the cut before the second layer; one layer alone has what crosses any cut.
        layers = self.chain.layers
        border = self.chain.border
        later = np.flatnonzero(layers > layers[self._is_layer][0])
        between_layers = float(border[later[0]] if len(later) else border.max())
        return max(1.0, examples * between_layers / 2.0 // degrees.cp)

    def _passes(self, setting: StageSetting, recomputed: FloatArray) -> StagePasses:
        """Return the seconds of both passes: kernels and exchanges, without the host's launches.

        Args:
            setting: The stage.
            recomputed: Seconds of what is computed again in each of its segments.
        """
        costs = setting.costs
        run = setting.run
        framework = setting.framework
        stage = setting.stage
        parameters = setting.parameters
        forward = costs.forward[run]
        backward = costs.backward[run] + costs.weights[run]
        work = float((forward + backward + recomputed).sum())
        if self.zero_as_run(stage.zero, is_whole=setting.is_whole) < SHARDED:
            accumulation = framework.accumulation(parameters.count)
            return StagePasses(
                float(forward.sum()),
                float((backward + recomputed).sum()) + accumulation,
                0.0,
            )

        # An FSDP unit is a layer: what lies in one layer is gathered at once.
        order = self._unit_order(run)
        gather, scatter = self._unit_exchanges(
            costs, setting.group, order, run, setting.key
        )
        if stage.zero == 3:
            late = scatter + gather
        else:
            late = scatter
        into = sum_by_unit(order, forward)
        back = sum_by_unit(order, backward)
        # Attention that is computed again runs before the exchange of its layer begins.
        if stage.attention:
            under = back
        else:
            under = back + sum_by_unit(order, recomputed)
        is_layer = sum_by_unit(order, self._is_layer[run]) > 0
        hidden_gather = np.where(is_layer, framework.hidden_seconds(gather, into), 0.0)
        hidden_late = np.where(is_layer, framework.hidden_seconds(late, under), 0.0)
        bare = np.zeros(2)
        if is_layer.any():
            first = int(np.argmax(is_layer))
            bare = np.array([gather[first], scatter[first]])
            if not setting.is_whole:
                hidden_gather[first] = hidden_late[first] = 0.0
                bare = np.array([gather[first], late[first]])
        if stage.first == 0 and not is_layer[0]:  # the embedding
            bare += (gather[0], scatter[0])
        forward_seconds = float(forward.sum() + hidden_gather.sum()) + bare[0]
        backward_seconds = (
            float((backward + recomputed).sum() + hidden_late.sum()) + bare[1]
        )
        # Rounding may make it negative.
        exposed = max(forward_seconds + backward_seconds - work, 0.0)
        return StagePasses(
            float(forward_seconds), float(backward_seconds), float(exposed)
        )

    def _unit_exchanges(
        self,
        costs: SegmentCosts,
        group: ReplicaGroup,
        order: IntArray,
        run: slice,
        key: Hashable = None,
    ) -> FloatArray:
        """Return the seconds of every unit's gather and scatter. [2, units]

        Args:
            costs: Costs of every segment on the mesh.
            group: The replicas that add up the gradients.
            order: The unit of every segment of the run.
            run: The segments.
            key: What is equal for stages of equal exchanges; None: they are not kept.
        """
        if key in self._exchanges:
            return self._exchanges[key]
        columns = (
            costs.parameters - costs.experts,
            costs.experts,
            costs.frozen_bytes - costs.frozen_experts,
            costs.frozen_experts,
        )
        sizes = np.stack(
            [sum_by_unit(order, column[run]) for column in columns], axis=1
        )
        distinct, index = np.unique(np.round(sizes, 3), axis=0, return_inverse=True)
        seconds = np.zeros((len(distinct), 2))
        for unit, row in enumerate(distinct.tolist()):
            dense, experts, *frozen = row
            key = group, *row
            if key not in self._units:
                self._units[key] = self.framework.unit_exchanges(
                    dense, experts, group, (frozen[0], frozen[1])
                )
            seconds[unit] = self._units[key]
        exchanges = np.asarray(seconds[index.ravel()].T)
        if key is not None:
            self._exchanges[key] = exchanges
        return exchanges

    def _host(self, setting: StageSetting) -> float:
        """Return the seconds that the host takes to launch both passes of a micro-batch."""
        launches = float(setting.costs.host[setting.run].sum())
        return launches + self.get_other_host_seconds(
            setting.degrees.tp, is_whole=setting.is_whole
        )

    def get_other_host_seconds(self, tp: int, *, is_whole: bool) -> float:
        """Return the seconds that the host takes for a micro-batch beside launching kernels.

        Args:
            tp: Tensor-parallel shards.
            is_whole: Whether the stage is the whole model, which sends no messages.
        """
        framework = self.framework
        constants = self.framework.constants
        seconds = constants["host_pass"]
        if not is_whole:
            seconds += 2 * constants["host_message"]
        if framework.checks is not None and tp > 1:
            seconds += framework.checks["check"] * tp
        return seconds

    def apply_floor(
        self, forward: Seconds, backward: Seconds, host: Seconds
    ) -> tuple[Seconds, Seconds]:
        """Return the seconds of both passes, which last as long as the host's launches at least.

        Each of the three is a number or an array of numbers.

        Args:
            forward: Seconds of the forward pass's kernels.
            backward: Seconds of the backward pass's kernels.
            host: Seconds that the host takes to launch both passes.
        """
        share = self.framework.constants["host_forward"]
        return np.maximum(forward, share * host), np.maximum(
            backward, (1 - share) * host
        )

    def _count_gathered_bytes(self, setting: StageSetting) -> float:
        """Return the bytes of gathered inputs that a model in one stage keeps."""
        if not setting.is_whole or setting.stage.zero >= SHARDED:
            return 0.0
        gathered = setting.framework.constants["gathered_alone"] * (
            1 - 1 / setting.degrees.tp
        )
        return gathered * 4.0 * self._stream(setting) * setting.parameters.num_layers

    def _count_sharded_bytes(
        self, setting: StageSetting, saved: float, inputs: float
    ) -> BytesWhole:
        """Return the bytes of a stage whose parameters are sharded (FSDP).

        Args:
            setting: The stage.
            saved: Bytes that a micro-batch in flight keeps.
            inputs: Bytes of gathered inputs that it keeps besides.
        """
        stage = setting.stage
        costs = setting.costs
        run = setting.run
        constants = setting.framework.constants
        is_layer = self._is_layer[run]
        parameters = costs.parameters[run]
        order = self._unit_order(run)
        largest = float(sum_by_unit(order, parameters * is_layer).max(initial=0.0))
        inside = float(parameters[is_layer].sum())
        root = setting.parameters.count - inside
        # Frozen parameters are gathered beside those that are trained.
        frozen = costs.frozen_bytes[run]
        frozen_inside = float(frozen[is_layer].sum())
        frozen_all = setting.parameters.frozen + setting.parameters.frozen_experts
        resident = PARAMETER_BYTES * root + frozen_all - frozen_inside
        units = sum_by_unit(order, (PARAMETER_BYTES * parameters + frozen) * is_layer)
        gathered = constants["blocks"] * float(units.max(initial=0.0))
        if stage.zero < 3:  # parameters stay gathered after the forward pass
            resident += PARAMETER_BYTES * inside + frozen_inside
            gathered = 0.0
        if setting.framework.state_bytes.gradient == 4.0:
            wide = 4.0
        else:
            wide = 0.0
        gradients = 2.0 * root + (4.0 + wide) * largest
        gradients += float(costs.unpacked[run].max(initial=0.0))
        return BytesWhole(
            terms=setting.framework.compute_sharded_state(
                setting.parameters, setting.group
            ),
            saved=saved,
            inputs=inputs,
            working=(
                LATE_VALUES * self._stream(setting) / setting.degrees.tp,
                gradients,
            ),
            loss=float(costs.loss[run].max(initial=0.0)),
            gathered=gathered,
            resident=resident,
        )

    # The search: numbers of single segments.

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
        """Return each segment's part of what exchanges and updates take; see `Pricer`."""
        framework = self.framework
        group = self._group(mesh, self._degrees(mesh, choice), zero=zero, shards=None)
        everything = slice(0, len(parameters))
        replicated = self._parameters(costs, everything, float(parameters.sum()))
        none = np.zeros(len(parameters))
        part = parameters / max(replicated.count, 1e-30)
        end = framework.update(replicated, group) * part + costs.update / group.shards
        recomputed = np.where(self._is_layer, costs.recomputed, costs.forward)
        if zero >= SHARDED:
            gather, late = self.exposed(zero, costs, group)
            state = framework.compute_sharded_state(replicated, group).trained * part
            state = state + (costs.frozen_bytes - costs.frozen_experts) / group.shards
            state = state + costs.frozen_experts / group.expert_shards
            # Work that is added under an exchange costs what hiding costs.
            recomputed = recomputed * framework.network.rates["overlap"]
            return SegmentRates(gather, none, late, end, state, recomputed, costs.loss)
        accumulation = framework.accumulation(1.0) * parameters
        backward = float((costs.backward + costs.weights).sum())
        if least:
            end = end + framework.bound_reduction(zero, replicated, group) * part
        else:
            forward = float(costs.forward.sum())
            window = framework.constants["hides_reduce"]
            exchanges = framework.replica_exchanges(zero, replicated, group)
            seconds = framework.reduction(
                zero, exchanges, window * forward, window * backward
            )
            end = end + seconds * part
        state = (
            framework.compute_replicated_state(zero, replicated, group)[0].trained
            * part
        )
        state = state + costs.frozen_bytes
        return SegmentRates(
            none, none, accumulation, end, state, recomputed, costs.working
        )

    def exposed(
        self, zero: int, costs: SegmentCosts, group: ReplicaGroup
    ) -> FloatArray:
        """Return the seconds that gathers and late exchanges add, by segment. [2, segments]

        A unit's seconds are shared by its segments as its parameters are.

        Args:
            zero: ZeRO stage, 2 or 3.
            costs: Costs of every segment on the mesh.
            group: The replicas that shard parameters.
        """
        everything = slice(0, len(costs.forward))
        order = self._unit_order(everything)
        gather, scatter = self._unit_exchanges(costs, group, order, everything)
        if zero == 3:
            late = scatter + gather
        else:
            late = scatter
        forward = sum_by_unit(order, costs.forward)
        backward = sum_by_unit(order, costs.backward + costs.weights)
        is_layer = sum_by_unit(order, self._is_layer) > 0
        exposed = np.stack(
            [
                np.where(is_layer, self.framework.hidden_seconds(gather, forward), 0.0),
                np.where(is_layer, self.framework.hidden_seconds(late, backward), 0.0),
            ]
        )
        share = costs.parameters / np.maximum(
            sum_by_unit(order, costs.parameters)[order], 1e-30
        )
        return np.asarray(exposed[:, order] * share)

    # Ranks and steps.

    def rank_bytes(self, costs: Sequence[StageBytes], saved: float) -> RankBytes:
        """Return the bytes of a device of a rank; arguments as of `Pricer.rank_bytes`."""
        constants = self.framework.constants
        terms = StateTerms()
        for cost in costs:
            terms = terms.plus(cost.terms)
        state = terms.total
        resident = sum(cost.resident for cost in costs)
        updating = sum(cost.updating for cost in costs)
        recomputing = max(cost.recomputing for cost in costs)
        working = max(cost.working for cost in costs)
        is_sharded = any(cost.is_sharded for cost in costs)
        # The allocator's fragmentation is of what comes and goes with micro-batches.
        loose = 0.0
        if not is_sharded:
            loose = (constants["fragmentation"] - 1.0) * (saved + recomputing)
        moving = saved + working + resident
        allocated = state + max(moving, updating)
        reserved = (
            state + max(moving + loose, updating) + constants["context"] * GIBIBYTE
        )
        if is_sharded:
            workspace = 0.0
        else:
            workspace = self.framework.workspace
        return RankBytes(terms, allocated + workspace, reserved)

    def usable_memory(self, mesh: Mesh) -> float:
        """Return the bytes that a device of a mesh has for what `rank_bytes` reserves."""
        return self.framework.usable_memory(self.fabric.kinds(mesh))

    def rank_end(self, costs: Sequence[StageCost], zero: int, following: int) -> float:
        """Return the seconds of a rank after its last pass; arguments as of `Pricer.rank_end`.

        With several stages a rank the gradients of all but its first are complete some passes
        before the last one, and the parameters of all but its first are not needed at once: each
        of the others has the passes of as many micro-batches to hide behind as there are ranks.
        """
        if len(costs) == 1 or any(cost.is_sharded for cost in costs):
            return super().rank_end(costs, zero, following)
        framework = self.framework
        zero = min(zero, ONCE)  # nothing is exchanged with every micro-batch
        forward = 0.0
        backward = 0.0
        update = 0.0
        scattered = 0.0
        bucketed = 0.0
        gathered = 0.0
        for cost in costs:
            forward += cost.forward
            backward += cost.backward + cost.weights
            update += cost.update
            scattered += cost.exchanges.scattered
            bucketed += cost.exchanges.bucketed
            gathered += cost.exchanges.gathered
        window = self.window(len(costs), following)
        reduction = framework.reduction(
            zero,
            ReplicaExchanges(scattered, bucketed, gathered),
            window * forward,
            window * backward,
        )
        return reduction + update

    def window(self, chunks: Seconds, following: int) -> Seconds:
        """Return the micro-batches whose passes may hide what a rank exchanges at the end.

        Args:
            chunks: Stages of the rank; a number, or an array of them.
            following: Micro-batches that follow; see `rank_end`.
        """
        return (
            self.framework.constants["hides_reduce"] + (chunks - 1) * following
        ) / chunks

    def message(self, size: int, before: Stage, after: Stage) -> float:
        """Return the seconds to send what crosses a cut; arguments as of `Pricer.message`."""
        mesh = before.mesh
        across = mesh.count >= self.framework.network.per_server
        kind = self.fabric.kinds(mesh)[0]
        border = float(self.chain.border[before.last])
        key = size, kind, mesh.axes, mesh.replicas, before.choice, border, across
        if key not in self._messages:
            self._messages[key] = self._message(size, before, border, across=across)
        return self._messages[key]

    def _message(
        self, size: int, before: Stage, border: float, *, across: bool
    ) -> float:
        """Return the seconds to send what crosses a cut.

        Args:
            size: Examples of a micro-batch, over all replicas.
            before: The stage that sends.
            border: Bytes of an example that cross.
            across: Whether the stages are on several servers.
        """
        framework = self.framework
        constants = self.framework.constants
        degrees = self._degrees(before.mesh, before.choice)
        examples = size // before.mesh.replicas // degrees.replicas
        sent = examples * border / degrees.cp
        split = before.choice.border != "whole" or degrees.tp == 1
        if max(constants["splits_tokens"] * split, constants["splits_messages"]) > 0:
            sent /= degrees.tp
        return framework.network.message(sent, across) + constants["message_latency"]

    def price_tied_reduction(
        self, tied: Tied, meshes: Sequence[Mesh], shards: int, num_devices: int
    ) -> float:
        """Return the seconds to add up a tied parameter's gradients; see `Pricer`."""
        network = self.framework.network
        # Stages of a schedule that folds share devices: a single server may count twice.
        is_across = num_devices > network.per_server and network.card > 0
        members = 1 if is_across else 2
        tp = meshes[0].axes[-1]
        return network.reduce(2, 4.0 * tied.elements / tp, members)

    def step_seconds(self, draft: Draft) -> float:
        """Return the seconds of a step beside its passes, exchanges and updates."""
        framework = self.framework
        seconds = framework.constants["host_update"]
        if framework.checks is not None:
            stage = draft.stages[0]
            tp = self._degrees(stage.mesh, stage.choice).tp
            num_devices = stage.mesh.count * (max(draft.ranks) + 1)
            checks = framework.checks
            seconds += checks["checks_world"] * checks["check"] * num_devices
            seconds += checks["checks_end"] * checks["check"] * tp * (tp > 1)
        return seconds


def sum_by_unit(order: IntArray, column: FloatArray | BoolArray) -> FloatArray:
    """Return the sums of a column over the segments of each unit. [units]"""
    return np.asarray(np.bincount(order, column.astype(np.float64)), dtype=np.float64)
