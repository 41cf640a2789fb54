"""`Framework`: the seconds and bytes that a training framework takes for a step on given GPUs.

One object owns everything a framework does to a step beside the model's kernels: which exchanges
are hidden and what hiding costs, how replicas exchange gradients and parameters, what the host
takes to launch kernels, how gradients accumulate, what the optimizer reads and writes, bytes of
state, buckets and workspace, and which words of a plan it knows. Its numbers stand with their
sources in `constants.json`; what is no number stands in `TRAITS`.

Formulas. A reduce-scatter or an all-gather of B bytes is `costs.network`'s. Two that run at the
same time, of s and w seconds with s <= w, take w + overlap * s (`hidden_seconds`). Replicas
exchange gradients behind the last backward passes, or all at their end (`reduction`): ZeRO 1 and
Megatron's distributed optimizer scatter them and gather parameters, hidden or not.
Parameters that are sharded (ZeRO 2 and 3, FSDP, Zhao et al., 2023, arXiv 2304.11277) are gathered
and their gradients scattered with every micro-batch, a layer at a time (`unit_exchanges`). Where
ZeRO shards over groups of g replicas, a g-th of the gradients is summed over the groups besides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.costs.collectives import ALL_GATHER, REDUCE_SCATTER
from gnnplace.costs.frameworks.constants import (
    ConstantSet,
    load_framework_constants,
    load_mode_constants,
)
from gnnplace.costs.frameworks.offloading import (
    NOTHING,
    Host,
    Offloading,
    get_host,
    parse_offloading,
)
from gnnplace.costs.kernels import Kernels
from gnnplace.costs.memory import PARAMETER, StateTerms
from gnnplace.costs.network import ServerNetwork
from gnnplace.costs.optimizers import OptimizerKind, get_optimizer_kind

Seconds = TypeVar("Seconds", float, FloatArray)
"""A number of seconds, or an array of them."""

GIBIBYTE = 2.0**30
FULLEST_TENSOR = 0.6
"""Part of a layer's largest matrix that a bucket has which it fills alone."""
SIZES = 2.0 ** -np.arange(0.0, 14.0, 0.25)
"""Parts of an exchange at which its least seconds a byte are looked for."""
HIDES_NOTHING = "none"
HIDES_REDUCE = "reduce"
HIDES_ALL = "reduce+gather"
HIDDEN = (HIDES_NOTHING, HIDES_REDUCE, HIDES_ALL)
"""Exchanges of replicas that may be hidden, the fewest first."""


@dataclass(frozen=True)
class Traits:
    """A framework's defaults, and the words of a plan that it knows.

    Attributes:
        cut: How it cuts layers into stages, a rule of `plans.decoders.stages`.
        precision: Its usual precision, in Lightning's words.
        gradients: The type in which it sums gradients, "fp32" or "same".
        zero_stages: ZeRO stages that it has.
        schedules: Pipeline schedules that it has.
        gathers_once: Whether in a pipeline parameters that replicas shard (ZeRO 3) are gathered
            once a step and gradients scattered once, after the last micro-batch.
        hides: Exchanges of replicas that it hides: "none", "reduce" or "reduce+gather".
        attention: The attention that its published runs had, by the library's name for its rates.
        cuda_graphs: Which launches it captures; the first where nothing is said and it can be.
        compiles: Whether it compiles whole layers.
        zero_groups: ZeRO stages that may share over groups of replicas.
        may_hide: Exchanges of replicas that it hides besides where a plan asks for it.
        kernels: The attention on some kinds of GPUs, where it is another there.
        overlaps_shards: Whether exchanges of shards may run under the products beside them.
        offloads: Values of the word `offload` that it has, without their numbers.
        recomputes_by_rank: Whether every pipeline rank may recompute another number of layers.
        recomputes_modules: Whether single modules of every layer may be recomputed.
    """

    cut: str
    precision: str
    gradients: str
    zero_stages: tuple[int, ...]
    schedules: tuple[str, ...]
    hides: str
    attention: str
    cuda_graphs: tuple[str, ...] = ("off",)
    compiles: bool = False
    zero_groups: tuple[int, ...] = ()
    may_hide: str = HIDES_NOTHING
    kernels: Mapping[str, str] = field(default_factory=dict)
    overlaps_shards: bool = False
    offloads: tuple[str, ...] = ()
    gathers_once: bool = False
    recomputes_by_rank: bool = False
    recomputes_modules: bool = False

    def find_attention(self, kind: str) -> str:
        """Return the attention on a kind of GPU."""
        return self.kernels.get(kind, self.attention)


TRAITS: Mapping[str, Traits] = {
    "pytorch": Traits(
        cut="least",
        precision="bf16-mixed",
        gradients="same",
        zero_stages=(0, 1, 2, 3),
        zero_groups=(2, 3),
        schedules=("1f1b", "gpipe", "interleaved", "zero-bubble", "v", "zbv"),
        hides=HIDES_ALL,
        attention="triton",
        cuda_graphs=("off", "layers", "iteration"),
        compiles=True,
        offloads=("optimizer", "optimizer+parameters", "activations"),
        recomputes_by_rank=True,
    ),
    "nanotron": Traits(
        cut="cost",
        precision="bf16-master",
        gradients="fp32",
        zero_stages=(0, 1),
        schedules=("1f1b", "gpipe"),
        hides=HIDES_NOTHING,
        attention="flash",
        overlaps_shards=True,
    ),
    "megatron-lm": Traits(
        cut="equal",
        precision="bf16-master",
        gradients="fp32",
        zero_stages=(0, 1),
        zero_groups=(1,),
        schedules=("1f1b", "interleaved"),
        hides=HIDES_NOTHING,
        may_hide=HIDES_ALL,
        attention="flash",
        cuda_graphs=("off", "layers", "iteration"),
        offloads=("optimizer", "activations"),
        kernels={"h100": "cudnn", "h200": "cudnn", "gh200": "cudnn"},
        overlaps_shards=True,
        recomputes_modules=True,
    ),
    "megatron-deepspeed": Traits(
        cut="even",
        precision="bf16-master",
        gradients="same",
        zero_stages=(0, 1),
        schedules=("1f1b",),
        hides=HIDES_NOTHING,
        attention="products",
        offloads=("optimizer",),
    ),
    "internevo": Traits(
        cut="equal",
        precision="bf16-master",
        gradients="same",
        zero_stages=(0, 1),
        zero_groups=(1,),
        schedules=("1f1b", "interleaved"),
        hides=HIDES_REDUCE,
        attention="flash",
    ),
    "torchtitan": Traits(
        cut="ends",
        precision="bf16-mixed",
        gradients="fp32",
        zero_stages=(0, 2, 3),
        zero_groups=(2, 3),
        schedules=("1f1b", "gpipe", "interleaved", "zbv"),
        hides=HIDES_ALL,
        attention="flash",
        gathers_once=True,
        cuda_graphs=("iteration", "off"),
        compiles=True,
        overlaps_shards=True,
        offloads=("optimizer+parameters", "activations"),
    ),
}
"""Traits by framework, from the frameworks' sources of November 2026. The published runs of
PyTorch's FSDP had the attention of triton of 2023; for a newer one name `flash-attention`."""


class Tested(NamedTuple):
    """The published runs that a framework's prices were tested on.

    Attributes:
        num_runs: Published runs whose step was predicted.
        median_error: Median of their relative errors.
        kinds: Kinds of GPUs that they ran on.
        most_devices: Devices of the largest.
        has_experts: Whether layers of some had experts.
    """

    num_runs: int
    median_error: float
    kinds: tuple[str, ...]
    most_devices: int
    has_experts: bool = False


A100 = ("a100", "a100-80")
TESTED: Mapping[str, Tested] = {
    "nanotron": Tested(
        num_runs=636,
        median_error=0.052,
        kinds=("h100",),
        most_devices=512,
    ),
    "pytorch": Tested(
        num_runs=148,
        median_error=0.030,
        kinds=(*A100, "h100"),
        most_devices=1024,
        has_experts=True,
    ),
    "megatron-deepspeed": Tested(
        num_runs=844,
        median_error=0.072,
        kinds=A100,
        most_devices=384,
    ),
    "megatron-lm": Tested(
        num_runs=95,
        median_error=0.021,
        kinds=(*A100, "h100", "b200"),
        most_devices=6144,
        has_experts=True,
    ),
    "internevo": Tested(
        num_runs=46,
        median_error=0.033,
        kinds=A100,
        most_devices=1024,
    ),
}
"""Published runs by framework, `python -m benchmarks.studies published --data FOLDER`
(docs/given.md). Constants were fitted on a part of them."""


def describe_tests(framework: str) -> str:
    """Describe in a few words how well a framework's prices were tested."""
    tested = TESTED.get(framework)
    if tested is None:
        return "not compared with published runs"
    return f"{tested.num_runs} published runs: median error {tested.median_error:.1%}"


def list_untested_properties(
    framework: str,
    kinds: Sequence[str],
    num_devices: int,
    has_experts: bool,
    offload: str = NOTHING,
) -> tuple[str, ...]:
    """Return the properties of a plan that no published run of its framework had.

    Args:
        framework: Its name.
        kinds: Kinds of devices of the plan.
        num_devices: Devices of the plan.
        has_experts: Whether layers have experts.
        offload: What leaves the GPUs, a value of the word `offload`.
    """
    tested = TESTED.get(framework)
    if tested is None:
        return (f"{framework} at all",)
    unlike = [f"on {kind}" for kind in kinds if kind not in tested.kinds]
    if num_devices > tested.most_devices:
        unlike.append(f"on more than {tested.most_devices:,} devices")
    if has_experts and not tested.has_experts:
        unlike.append("with experts")
    if offload != NOTHING:
        unlike.append(f"with offload={offload}")
    return tuple(unlike)


class StateBytes(NamedTuple):
    """Bytes of training state for each parameter.

    Attributes:
        parameter: The parameter itself.
        gradient: Its gradient, as replicas exchange it.
        optimizer: What the optimizer keeps of matrices of layers, the float32 copy of half
            parameters too.
        optimizer_outside: What it keeps of all other parameters.
    """

    parameter: float
    gradient: float
    optimizer: float
    optimizer_outside: float


@dataclass(frozen=True)
class ReplicaGroup:
    """The devices that add up one gradient.

    Attributes:
        count: Replicas, those of context parallelism too.
        shards: Replicas that ZeRO shards over; 1 without ZeRO.
        copies: Devices of the stage that hold the same experts (expert parallelism leaves so many).
        members: Replicas of the group in one server.
        near_copies: Devices with the same experts in one server.
    """

    count: int
    shards: int
    copies: int
    members: int
    near_copies: int

    @property
    def expert_shards(self) -> int:
        """Return the number of devices that ZeRO shards the state of an expert over."""
        return max(1, self.shards * self.copies // self.count)

    @property
    def of_experts(self) -> ReplicaGroup:
        """Return the group of devices that add up the gradients of an expert."""
        return ReplicaGroup(
            count=self.copies,
            shards=self.expert_shards,
            copies=self.copies,
            members=self.near_copies,
            near_copies=self.near_copies,
        )


@dataclass(frozen=True)
class ReplicatedParameters:
    """Parameters of a stage on one device.

    Attributes:
        dense: Elements of parameters that every replica has.
        experts: Elements of the experts that are on this device.
        num_layers: Layers of the stage.
        largest: Elements of the largest matrix of a layer.
        outside: Elements of `dense` that are in no matrix of a layer: tables, norms and biases.
        frozen: Bytes of parameters that are not trained, experts' apart.
        frozen_experts: Bytes of experts that are not trained.
    """

    dense: float
    experts: float
    num_layers: float
    largest: float
    outside: float = 0.0
    frozen: float = 0.0
    frozen_experts: float = 0.0

    @property
    def count(self) -> float:
        """Return the elements of all parameters."""
        return self.dense + self.experts


class ReplicaExchanges(NamedTuple, Generic[Seconds]):
    """Seconds that replicas exchange once a step, by what they may run under.

    The seconds are those of one stage, or of several as arrays.

    Attributes:
        scattered: Exchanges of gradients alone, which may run under backward passes.
        bucketed: The same in the buckets in which a framework starts them under work.
        gathered: Exchanges of updated parameters, which may run under forward passes.
    """

    scattered: Seconds
    bucketed: Seconds
    gathered: Seconds


NO_EXCHANGES = ReplicaExchanges(0.0, 0.0, 0.0)


def compute_exposed_seconds(
    exchange: Seconds, hidden: Seconds, share: float
) -> Seconds:
    """Return the seconds that an exchange adds to the work that runs beside a part of it.

    What is hidden still costs a share of itself: it takes processors and memory from the work.

    Args:
        exchange: Seconds of the exchange alone.
        hidden: Seconds of it during which the work goes on.
        share: What the hidden part costs of itself.
    """
    return exchange - hidden + share * hidden


def get_hidden_replica_share() -> float:
    """Return what hidden exchanges of PyTorch's replicas still cost of themselves."""
    return load_framework_constants("pytorch")["overlap_replicas"]


@dataclass(frozen=True, eq=False)
class Framework:
    """A framework's prices of a step's parts, on the devices of one cluster.

    Attributes:
        name: The name of the framework.
        constants: Its numbers, with those of an environment.
        checks: Numbers of an environment that checks collectives; None of any other.
        precision: The precision of parameters and passes, in Lightning's words.
        optimizer: Its name, of `costs.optimizers`.
        kernels: Seconds of kernels on one device, of several kinds on the slowest.
        network: Seconds of exchanges.
        memory: Bytes of a device that may be allocated and reserved, of several kinds the fewest.
        kinds: The framework on each kind of device, where there are several.
        gradients: The type in which gradients are summed; empty: the framework's own.
        hides: Exchanges of replicas that are hidden; empty: the framework's own.
        hides_shards: Whether exchanges of shards run under the products beside them.
        offload: What leaves the GPU for the host, a value of the word `offload`.
        accumulates: Whether a host adds up the gradients of several micro-batches.
        factored: Sums of rows and columns that a factored optimizer keeps for each parameter of a
            matrix of a layer, and of all others; the model's means.
    """

    name: str
    constants: ConstantSet
    checks: ConstantSet | None
    precision: str
    optimizer: str
    kernels: Kernels
    network: ServerNetwork
    memory: float
    kinds: Mapping[str, Framework] = field(default_factory=dict)
    gradients: str = ""
    hides: str = ""
    hides_shards: bool = False
    offload: str = NOTHING
    accumulates: bool = False
    factored: tuple[float, float] = (0.0, 0.0)
    _least: dict[Hashable, ReplicaExchanges[float]] = field(
        init=False, default_factory=dict, compare=False, repr=False
    )

    @property
    def traits(self) -> Traits:
        """Return the framework's traits: what it does where a plan does not say."""
        return TRAITS[self.name]

    @property
    def workspace(self) -> float:
        """Return the bytes beside tensors in a device's log, of libraries and of the framework."""
        return self.kernels.rates["workspace"] + self.constants["workspace"]

    @cached_property
    def state_bytes(self) -> StateBytes:
        """Return the bytes of state for each parameter."""
        parameter, gradient, moment = PARAMETER[self.precision]
        kind = self.optimizer_kind
        copy = moment * self.precision.endswith("-master")
        matrices = kind.kept_bytes(moment)
        outside = kind.kept_bytes(moment)
        if kind.is_factored:
            matrices, outside = (moment * numbers for numbers in self.factored)
        elif kind.is_orthogonal:  # AdamW steps what is no matrix of a layer
            outside = get_optimizer_kind("adamw").kept_bytes(moment)
        return StateBytes(
            parameter=float(parameter),
            gradient=4.0 if self.sums_in_fp32 else float(gradient),
            optimizer=float(matrices + copy),
            optimizer_outside=float(outside + copy),
        )

    @property
    def optimizer_kind(self) -> OptimizerKind:
        """Return the kind of the optimizer: what it keeps and moves."""
        return get_optimizer_kind(self.optimizer)

    def optimizer_bytes(
        self, parameters: ReplicatedParameters, group: ReplicaGroup
    ) -> float:
        """Return the bytes of the optimizer's state on a device.

        Args:
            parameters: Parameters of the stage, on one device.
            group: The replicas, and how many of them share the state.
        """
        sharded = (
            parameters.dense / group.shards + parameters.experts / group.expert_shards
        )
        state = self.state_bytes
        apart = (
            (state.optimizer_outside - state.optimizer)
            * parameters.outside
            / group.shards
        )
        return state.optimizer * sharded + apart

    @property
    def sums_in_fp32(self) -> bool:
        """Return whether gradients are summed in float32 beside those of the passes."""
        return (self.gradients or self.traits.gradients) == "fp32"

    @property
    def hidden_exchanges(self) -> str:
        """Return the exchanges of replicas that are hidden, the plan's or the framework's own."""
        return self.hides or self.traits.hides

    @property
    def offloading(self) -> Offloading:
        """Return the offloading: what leaves the GPU for the host."""
        return parse_offloading(self.offload)

    @cached_property
    def host(self) -> Host:
        """Return the host of a GPU."""
        return get_host(self.kernels.kind, self.network.per_server)

    def select_kind(self, kind: str) -> Framework:
        """Return the framework on one kind of device; itself if there is one kind alone."""
        return self.kinds.get(kind, self)

    def with_kernels_of(self, kind: str) -> Framework:
        """Return the framework with the kernels of one kind of device.

        A kind owns its kernels; the network and the constants are the cluster's.
        """
        return replace(self, kernels=self.select_kind(kind).kernels)

    def usable_memory(self, kinds: tuple[str, ...]) -> float:
        """Return the bytes that tensors may have on every one of some kinds of devices."""
        frameworks = [self.select_kind(kind) for kind in kinds]
        return min(
            framework.memory * framework.constants["usable"] for framework in frameworks
        )

    def fit_probability(self, reserved: float, usable: float) -> float:
        """Return the probability that a device has so many reserved bytes.

        The logarithm of what is reserved over what is predicted is normal.

        Args:
            reserved: Predicted bytes.
            usable: Bytes that the device has for them.
        """
        spread = self.constants["memory_spread"]
        deviations = math.log(usable / max(reserved, 1.0)) / spread
        return 0.5 * (1 + math.erf(deviations / math.sqrt(2)))

    def step_interval(
        self, seconds: float, num_devices: int, has_experts: bool
    ) -> tuple[float, float]:
        """Return the interval that four in five steps lie in, in seconds.

        `low` and `high` are of published runs that a plan resembles. Their distances from 1, on a
        log scale, are `experts_away` times as large for layers with experts, and `away` times for
        every property of the plan that no published run of the framework had.

        Args:
            seconds: Predicted of a step.
            num_devices: Devices of the plan.
            has_experts: Whether layers have experts.
        """
        constants = self.constants
        kinds = tuple(self.kinds) or (self.kernels.kind,)
        away = len(
            list_untested_properties(
                self.name, kinds, num_devices, has_experts, self.offload
            )
        )
        width = constants["away"] ** away
        if has_experts:
            width *= constants["experts_away"]
        return seconds * constants["low"] ** width, seconds * constants["high"] ** width

    # Exchanges.

    def hidden_seconds(
        self, exchange: Seconds, work: Seconds, share: float | None = None
    ) -> Seconds:
        """Return the seconds that an exchange adds to work that runs at the same time.

        Args:
            exchange: Seconds of the exchange alone; a number, or an array of them.
            work: Seconds of the work alone; a number or an array too.
            share: What the hidden part still costs of itself; None: the hardware's `overlap`.
        """
        share = self.network.rates["overlap"] if share is None else share
        return compute_exposed_seconds(exchange, np.minimum(exchange, work), share)

    def replica_group(
        self,
        count: int,
        shards: int,
        tp: int,
        experts: int = 1,
        expert_tp: int | None = None,
    ) -> ReplicaGroup:
        """Return a group of replicas; the `tp` shards of each are neighbours.

        Experts are numbered as Megatron-Core's are: the shards of an expert are neighbours, devices
        with unlike experts next, those with the same ones furthest.

        Args:
            count: Replicas, those of context parallelism too.
            shards: Replicas that ZeRO shards over; 1 without ZeRO.
            tp: Tensor-parallel shards of each.
            experts: Groups of devices with unlike experts.
            expert_tp: Shards of an expert; None: as many as of every matrix.
        """
        per_server = self.network.per_server
        members = max(1, min(count, per_server // min(tp, per_server)))
        apart = experts * (expert_tp or tp)
        copies = max(1, count * tp // apart)
        near_copies = max(1, min(copies, per_server // min(apart, per_server)))
        return ReplicaGroup(count, shards, copies, members, near_copies)

    def scatter(self, size: float, group: ReplicaGroup) -> float:
        """Return the seconds to reduce-scatter gradients in groups and sum them over groups.

        Args:
            size: Bytes of gradients on a device.
            group: All replicas, and how many of them a group that scatters has.
        """
        shards = group.shards
        inside = min(group.members, shards)
        seconds = self.network.exchange(REDUCE_SCATTER, shards, size, inside)
        return seconds + self._sum_over_groups(size, group)

    def _sum_over_groups(self, size: float, group: ReplicaGroup) -> float:
        """Return the seconds to sum over groups what each has scattered; see `scatter`."""
        shards = group.shards
        inside = min(group.members, shards)
        groups = max(1, group.count // shards)
        between = min(groups, group.members // inside)
        return self.network.reduce(groups, size / shards, between)

    def sums_once(self, parameters: ReplicatedParameters, group: ReplicaGroup) -> float:
        """Return the seconds of gradients that groups sum once a step, bare (ZeRO 2 and 3).

        PyTorch's FSDP, and what is built on it, sums them with every micro-batch instead, within
        `unit_exchanges`: then it is 0.

        Args:
            parameters: Parameters of the stage, on one device.
            group: The replicas, and how many of them a group that shards has.
        """
        if not self.constants["groups_once"]:
            return 0.0
        gradient = self.state_bytes.gradient
        seconds = 0.0
        for elements, holders in (
            (parameters.dense, group),
            (parameters.experts, group.of_experts),
        ):
            if elements:
                seconds += self._sum_over_groups(gradient * elements, holders)
        return seconds

    def unit_exchanges(
        self,
        dense: float,
        experts: float,
        group: ReplicaGroup,
        frozen: tuple[float, float] = (0.0, 0.0),
    ) -> FloatArray:
        """Return the seconds of an FSDP unit's exchanges with every micro-batch.

        Args:
            dense: Elements of the unit that all replicas shard.
            experts: Elements of its experts, which fewer replicas have.
            group: The replicas.
            frozen: Bytes of the unit that are not trained, and of its experts; gathered alone.

        Returns:
            Seconds of gathering the parameters, and of scattering their gradients. [2]
        """
        seconds = np.zeros(2)
        for elements, frozen_bytes, holders in (
            (dense, frozen[0], group),
            (experts, frozen[1], group.of_experts),
        ):
            gathered = 2.0 * elements + frozen_bytes
            if not gathered:
                continue
            inside = min(holders.members, holders.shards)
            shards = holders.shards
            seconds[0] += self.network.exchange(ALL_GATHER, shards, gathered, inside)
            if elements:
                size = self.state_bytes.gradient * elements
                if self.constants["groups_once"]:
                    # The sum over groups comes once a step (`sums_once`).
                    seconds[1] += self.network.exchange(
                        REDUCE_SCATTER, shards, size, inside
                    )
                else:
                    seconds[1] += self.scatter(size, holders)
        return seconds

    def replica_exchanges(
        self, zero: int, parameters: ReplicatedParameters, group: ReplicaGroup
    ) -> ReplicaExchanges[float]:
        """Return the seconds that replicas exchange once a step, ZeRO 0 and 1.

        Args:
            zero: ZeRO stage.
            parameters: Parameters of the stage, on one device.
            group: The replicas.
        """
        if group.count > 1:
            dense = parameters.dense
        else:
            dense = 0.0
        if group.copies > 1:
            experts = parameters.experts
        else:
            experts = 0.0
        if not (dense or experts):
            return NO_EXCHANGES
        summed = self._summed(zero, dense, group)
        if experts:
            of_experts = self._summed(zero, experts, group.of_experts)
        else:
            of_experts = 0.0
        if dense:
            bucketed = self._price_in_buckets(zero, parameters, group)
        else:
            bucketed = 0.0
        gathered = 0.0
        if zero:
            gathered = self._gather_updated(dense, parameters.num_layers, group)
            gathered += self._gather_updated(experts, 0.0, group.of_experts)
        return ReplicaExchanges(summed + of_experts, bucketed + of_experts, gathered)

    def reduction(
        self,
        zero: int,
        exchanges: ReplicaExchanges[Seconds],
        forward: Seconds,
        backward: Seconds,
    ) -> Seconds:
        """Return the seconds that exchanges of replicas add to a step, ZeRO 0 and 1.

        A framework that hides exchanges starts them in buckets, which has its price: it is never
        charged more than that of not hiding them.

        Args:
            zero: ZeRO stage.
            exchanges: Seconds of the replicas' exchanges, alone.
            forward: Seconds of forward passes that may hide the gathers of parameters.
            backward: Seconds of backward passes that may hide the sums of gradients.
        """
        hides = self.hidden_exchanges
        share = self.constants["overlap_replicas"]
        seconds = exchanges.scattered
        is_ddp = zero == 0 and bool(self.constants["ddp"])
        if is_ddp:
            seconds = self.hidden_seconds(exchanges.bucketed, backward, share)
        elif hides != HIDES_NOTHING:
            hidden = self.hidden_seconds(exchanges.bucketed, backward, share)
            seconds = np.minimum(seconds, hidden)
        if zero == 0:
            return seconds
        if hides == HIDES_ALL:
            return seconds + self.hidden_seconds(exchanges.gathered, forward, share)
        return seconds + exchanges.gathered

    def _summed(self, zero: int, elements: float, group: ReplicaGroup) -> float:
        """Return the seconds of summing gradients at once: a scatter under ZeRO, else a reduce."""
        size = self.state_bytes.gradient * elements
        if zero and self.constants["scatters"]:
            return self.scatter(size, group)
        return self.network.reduce(group.count, size, group.members)

    def _price_in_buckets(
        self, zero: int, parameters: ReplicatedParameters, group: ReplicaGroup
    ) -> float:
        """Return the seconds of summing gradients of dense parameters in buckets."""
        constants = self.constants
        bucket = max(constants["bucket"], constants["bucket_member"] * group.count)
        buckets = max(
            1.0, parameters.dense / max(bucket, FULLEST_TENSOR * parameters.largest)
        )
        if zero and constants["scatters"]:
            hops = (group.count - 1) * self.network.rates["ring_latency"]
            return self._summed(zero, parameters.dense, group) + (buckets - 1) * hops
        size = self.state_bytes.gradient * parameters.dense / buckets
        seconds = self.network.reduce(group.count, size, group.members)
        if self.checks is not None:
            seconds = max(seconds, self.checks["check"] * group.count)
        return buckets * seconds

    def _gather_updated(
        self, elements: float, num_layers: float, group: ReplicaGroup
    ) -> float:
        """Return the seconds of gathering parameters after a sharded step of the optimizer.

        Args:
            elements: Elements of parameters on a device; 0: nothing is gathered.
            num_layers: Layers whose tensors are gathered or broadcast one by one.
            group: The devices that have them.
        """
        constants = self.constants
        shards = group.shards
        if not elements:
            return 0.0
        inside = min(group.members, shards)
        size = constants["gather_bytes"] * 2.0 * elements
        seconds = self.network.exchange(ALL_GATHER, shards, size, inside)
        if shards > inside:
            broadcasts = constants["broadcasts_layer"] * num_layers
            calls = constants["gathers_layer"] * num_layers + min(broadcasts, shards)
            seconds += calls * (shards - 1) * self.network.rates["ring_latency"]
        if self.checks is not None:
            seconds += 2 * self.checks["check"] * shards
        return seconds

    def bound_exchanges(
        self, zero: int, parameters: ReplicatedParameters, group: ReplicaGroup
    ) -> ReplicaExchanges[float]:
        """Return a lower bound of the seconds of exchanges, of which none is hidden.

        No part of the parameters takes less than its share of them.

        Broadcasts, checks, and the exchanges of experts come besides, which are not counted.

        Args:
            zero: ZeRO stage, 0 or 1.
            parameters: Parameters of the whole model, on one device.
            group: The replicas.
        """
        if group.count == 1:
            return NO_EXCHANGES
        key = zero, parameters.dense, group
        if key not in self._least:
            network = self.network
            size = self.state_bytes.gradient * parameters.dense
            inside = min(group.members, group.shards)
            if zero and self.constants["scatters"]:
                scattered = _least_rate(
                    lambda x: network.exchange(REDUCE_SCATTER, group.shards, x, inside),
                    size,
                )
            else:
                scattered = _least_rate(
                    lambda x: network.reduce(group.count, x, group.members), size
                )
            gathered = 0.0
            if zero:
                gathered = _least_rate(
                    lambda x: network.exchange(ALL_GATHER, group.shards, x, inside),
                    self.constants["gather_bytes"] * 2.0 * parameters.dense,
                )
            self._least[key] = ReplicaExchanges(scattered, scattered, gathered)
        return self._least[key]

    def bound_reduction(
        self, zero: int, parameters: ReplicatedParameters, group: ReplicaGroup
    ) -> float:
        """Return a lower bound of the seconds that exchanges of replicas add to a step.

        No part of the parameters takes less than its share of them.

        All that may be hidden is; arguments as of `bound_exchanges`.
        """
        return self.reduction(
            zero, self.bound_exchanges(zero, parameters, group), math.inf, math.inf
        )

    # The optimizer, gradients, and bytes.

    def accumulation(self, elements: float) -> float:
        """Return the seconds of adding a micro-batch's gradients to the sums."""
        if self.sums_in_fp32:
            name = "accumulate"
        else:
            name = "accumulate_same"
        return self.kernels.stream(self.constants[name] * elements)

    def update(self, parameters: ReplicatedParameters, group: ReplicaGroup) -> float:
        """Return the seconds of the optimizer's kernels that move bytes."""
        constants = self.constants
        kind = self.optimizer_kind
        sharded = (
            parameters.dense / group.shards + parameters.experts / group.expert_shards
        )
        size = (constants["update_part"] + kind.extra_bytes_moved) * sharded
        if kind.is_orthogonal:  # AdamW steps the others
            size -= kind.extra_bytes_moved * parameters.outside / group.shards
        return self.kernels.stream(constants["update_whole"] * parameters.count + size)

    def compute_replicated_state(
        self, zero: int, parameters: ReplicatedParameters, group: ReplicaGroup
    ) -> tuple[StateTerms, float]:
        """Return the bytes of state of parameters that every replica holds (ZeRO 0 and 1).

        Args:
            zero: ZeRO stage.
            parameters: Parameters of the stage, on one device.
            group: The replicas.

        Returns:
            Bytes that stay for the whole step, and those that the optimizer's step has besides.
        """
        constants = self.constants
        gradient = self.state_bytes.gradient
        if group.count > 1 and zero == 0:
            buckets = constants["bucket_bytes"]
        else:
            buckets = 0.0
        sharded_gradient = 0.0
        if self.precision == "16-master":
            gradient += constants["half_gradient"]
            sharded_gradient = constants["half_gradient_parted"]
        elif self.sums_in_fp32:
            gradient += constants["both_gradients"]
        sharded = (
            parameters.dense / group.shards + parameters.experts / group.expert_shards
        )
        parameter_bytes = parameters.count * self.state_bytes.parameter
        if zero and self.traits.gathers_once:
            # The replicas' shards stay, beside what is gathered of them in half precision.
            parameter_bytes = (
                self.state_bytes.parameter * sharded + 2.0 * parameters.count
            )
        terms = StateTerms(
            parameters=parameter_bytes,
            gradients=parameters.count * gradient + sharded_gradient * sharded,
            optimizer=self.optimizer_bytes(parameters, group),
            buckets=parameters.count * buckets,
            frozen=parameters.frozen + parameters.frozen_experts,
        )
        updating = constants["update_part_passing"] * parameters.count / group.shards
        if zero and group.count > 1:
            passing = constants["update_passing"] * (2 + 1.0 / group.shards)
            updating += passing * parameters.count
        return terms, updating

    def compute_sharded_state(
        self, parameters: ReplicatedParameters, group: ReplicaGroup
    ) -> StateTerms:
        """Return the bytes of state of parameters that replicas shard (ZeRO 2 and 3)."""
        sharded = (
            parameters.dense / group.shards + parameters.experts / group.expert_shards
        )
        return StateTerms(
            parameters=self.state_bytes.parameter * sharded,
            gradients=self.state_bytes.gradient * sharded,
            optimizer=self.optimizer_bytes(parameters, group),
            frozen=self.compute_sharded_frozen(parameters, group),
        )

    def compute_sharded_frozen(
        self, parameters: ReplicatedParameters, group: ReplicaGroup
    ) -> float:
        """Return the bytes of a device's shards of parameters that are not trained."""
        dense = parameters.frozen / group.shards
        return dense + parameters.frozen_experts / group.expert_shards


def _least_rate(seconds: Callable[[float], float], size: float) -> float:
    """Return the seconds of so many bytes at the lowest seconds per byte of any smaller size."""
    if size <= 0:
        return 0.0
    return size * min(seconds(part) / part for part in (size * SIZES).tolist())


class RunningWords(NamedTuple):
    """Words of a plan that change what a framework makes of a step.

    Attributes:
        compiled: Whether layers and the loss run under `torch.compile`.
        graphs: What is captured as a CUDA graph: "off", "layers" or "iteration"; what it leaves of
            a host's floor is no more than there was.
        gradients: The type in which gradients are summed; empty: the framework's own.
        hides: Exchanges of replicas that are hidden; empty: the framework's own.
        hides_shards: Whether exchanges of shards run under the products beside them.
        offload: What leaves the GPU for the host.
        accumulates: Whether a step has several micro-batches, whose gradients a host adds up.
    """

    compiled: bool = False
    graphs: str = "off"
    gradients: str = ""
    hides: str = ""
    hides_shards: bool = False
    offload: str = NOTHING
    accumulates: bool = False


@lru_cache(maxsize=512)
def make_running_framework(framework: Framework, words: RunningWords) -> Framework:
    """Return a framework adapted to the words of a plan, such as `compile=on`.

    Args:
        framework: A framework with an eager step that hides what it hides by default.
        words: What the plan says.
    """
    constants = dict(framework.constants.constants)
    if words.compiled:
        constants |= load_mode_constants("compile=on").constants
    for name, constant in load_mode_constants(
        f"cuda_graphs={words.graphs}"
    ).constants.items():
        constants[name] = min(constants[name], constant, key=lambda one: one.value)
    kinds: dict[str, Framework] = {}
    for kind, on_kind in framework.kinds.items():
        kinds[kind] = make_running_framework(on_kind, words)
    return replace(
        framework,
        constants=ConstantSet(framework.constants.owner, constants),
        kinds=kinds,
        gradients=words.gradients,
        hides=words.hides,
        hides_shards=words.hides_shards,
        offload=words.offload,
        accumulates=words.accumulates,
    )
