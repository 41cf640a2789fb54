"""The planner's view of a model: a chain of segments, and the costs of each on a mesh.

A *segment* is a run of calls between two cuts that few values cross. A *stage* of a plan is a run
of segments. A skip connection over several segments crosses all cuts between them; its value is
relayed through the stages, and counts in `border`.

Costs come from a `CostSource`, which prices every segment once for each kind of device, number of
shards and number of examples. Equal segments share their costs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isqrt
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, TypeGuard

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.costs import Framework
from gnnplace.plans.plan import find_layer

if TYPE_CHECKING:
    from gnnplace.plans.segments.block_costs import Recognition
    from gnnplace.plans.segments.pricing import ModelCosts

Basis = Literal["captured", "blocks", "sizes"]
Input = tuple[str | None, tuple[int, ...], str]
"""Name, shape and type of an input."""


@dataclass(frozen=True)
class Segment:
    """A run of calls.

    Attributes:
        name: Name of its first call.
        members: Names of its calls, in order.
        modules: Paths of the modules that they are in, each once.
        kind: Number of its structure; equal segments have the same and cost the same.
    """

    name: str
    members: tuple[str, ...]
    modules: tuple[str, ...]
    kind: int


def layer_starts(segments: Sequence[Segment]) -> dict[str, int]:
    """Return the first segment of every layer by the layer's name, in order."""
    starts: dict[str, int] = {}
    for k, segment in enumerate(segments):
        for module in segment.modules:
            if layer := find_layer(module):
                starts.setdefault(layer, k)
    return starts


def layer_numbers(segments: Sequence[Segment]) -> IntArray:
    """Return the number of every segment's layer: the last that begins there or before. [segments]

    A segment that is in no layer has a negative number of its own.
    """
    starts = sorted(layer_starts(segments).values())
    inside = [any(find_layer(module) for module in s.modules) for s in segments]
    return np.array(
        [
            bisect_right(starts, k) - 1 if is_inside else -1 - k
            for k, is_inside in enumerate(inside)
        ],
        dtype=np.int64,
    )


def join_runs(layers: IntArray, again: Iterable[int], together: int) -> list[list[int]]:
    """Return recomputed segments by the run that keeps one input. [runs][segments]

    Args:
        layers: Number of the layer of every segment of the model. [segments]
        again: The segments of one stage that are recomputed.
        together: Neighbours of so many layers are one run; 0: every segment is one.
    """
    recomputed = np.array(sorted(again), dtype=np.int32)
    if not len(recomputed):
        return []
    starts = run_starts(layers, recomputed, together)
    return [run.tolist() for run in np.split(recomputed, starts[1:])]


LAST_LAYER = np.iinfo(np.int64).max
"""A number that no layer has."""


def run_starts(layers: IntArray, recomputed: IntArray, together: int) -> IntArray:
    """Return the positions in `recomputed` at which runs begin; see `join_runs`. [runs]

    Args:
        layers: Number of the layer of every segment of the model. [segments]
        recomputed: The segments of one stage that are recomputed, in order; one at least.
        together: Neighbours of so many layers are one run; 0: every segment is one.
    """
    if not together:
        return np.arange(len(recomputed), dtype=np.int32)
    numbers = layers[recomputed]
    is_layer = numbers >= 0
    first = numbers[is_layer].min(initial=LAST_LAYER)
    groups = (numbers - first) // together
    joins = np.diff(recomputed) == 1
    joins &= is_layer[1:] & is_layer[:-1] & (groups[1:] == groups[:-1])
    return np.flatnonzero(np.concatenate([[True], ~joins])).astype(np.int32)


@dataclass(frozen=True)
class Tied:
    """A trained parameter that several segments read, such as a table of embedding and head.

    Attributes:
        name: Name of the parameter.
        segments: Segments that read it, in order.
        elements: Number of its elements.
    """

    name: str
    segments: tuple[int, ...]
    elements: float


FREE, WEIGHTS, CONTEXT = "free", "weights", "context"  # styles of splits
EXPERTS = "experts"
EXAMPLES = "examples"
MICROBATCHES = 1 << 14
"""Most micro-batches of a step: every one is an action of every stage, priced and written down."""


def list_divisors(number: int) -> list[int]:
    """Return all divisors of a number, in ascending order. O(sqrt(number))"""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


@dataclass(frozen=True)
class SplitChoice:
    """The rule by which segments choose their split over the shards.

    Every segment takes the split with the least sum of seconds a micro-batch, `once` times the
    seconds that come once a step, and bytes at their prices.

    Attributes:
        style: What may be split, along the inner axis if there are two. "free": any label but
            examples. "weights": every matrix of weights is cut (Megatron's split). "context": no
            weight is cut; tokens, or heads of attention, are. "experts": as "context", and every
            shard has experts of its own, to which rows are sent. "examples": examples are cut, and
            rows are sent to experts.
        outer: Style along the outer axis; empty if there is one axis.
        border: What crosses cuts, over the shards: "whole", or cut along its "tokens", its second
            axis, or its "examples", where it has them and there are equal parts. Two axes have a
            word each, such as "examples,tokens", or one for both.
        state: Seconds a micro-batch that a byte of state is worth.
        saved: Seconds that a byte kept of one micro-batch is worth.
        step_share: Part of the seconds that come once a step which is charged to one micro-batch,
            such as 1 / micro-batches.
        zero: ZeRO stage that bytes of state are counted with.
        replicas: Replicas over which this ZeRO shards.
        regather: Whether shards keep only their part of what they gather, and gather it again
            (Korthikanti et al., 2022, arXiv 2205.05198, section 4.2.2).
        context: Shards of the outer axis that cut tokens, in a model that is priced by its sizes.
        experts: Devices with unlike experts, in such a model, among the outer axis and the replicas
            that it stands for.
        expert_shards: Shards of an expert's matrices, in such a model; 0: as many as of every
            matrix. With fewer, each part of the shards has experts of its own.
        labels: Labels of every call by its name, one for each axis, if they are given and not
            chosen.
    """

    style: str = FREE
    outer: str = ""
    border: str = "whole"
    state: float = 0.0
    saved: float = 0.0
    step_share: float = 0.0
    zero: int = 0
    replicas: int = 1
    regather: bool = False
    context: int = 1
    experts: int = 1
    expert_shards: int = 0
    labels: tuple[tuple[str, tuple[str | None, ...]], ...] | None = None

    @cached_property
    def labels_by_call(self) -> dict[str, tuple[str | None, ...]]:
        """Return the given labels of every call, by its name; empty if none are given."""
        return dict(self.labels or ())


FASTEST = SplitChoice()


class Degrees(NamedTuple):
    """The degrees of parallelism within one replica.

    Attributes:
        tp: Shards of every matrix.
        cp: Shards of the tokens.
        ep: Groups of devices with unlike experts.
        replicas: Replicas among the devices of the outer axis.
        etp: Shards of an expert; 0: as many as of every matrix.
    """

    tp: int
    cp: int
    ep: int
    replicas: int
    etp: int = 0

    @property
    def expert_tp(self) -> int:
        """Return the number of shards of an expert."""
        return self.etp or self.tp


def find_degrees(axes: tuple[int, ...], choice: SplitChoice) -> Degrees | None:
    """Return how a mesh cuts one replica's work; None where a split is no such degrees.

    Args:
        axes: Devices along each axis of the shards, the outer one first.
        choice: How the split over them is chosen.
    """
    if choice.context > 1 or choice.experts > 1 or choice.expert_shards:
        outer, tp = (axes[0], axes[1]) if len(axes) == 2 else (1, axes[0])
        groups_beside = tp // choice.expert_shards if choice.expert_shards else 1
        return Degrees(
            tp=tp,
            cp=choice.context,
            ep=choice.experts * groups_beside,
            replicas=outer // choice.context,
            etp=choice.expert_shards,
        )
    styles = (choice.outer, choice.style) if len(axes) == 2 else (choice.style,)
    tp = cp = ep = replicas = 1
    for count, style in zip(axes, styles, strict=True):
        if count == 1:
            continue
        if style == WEIGHTS:
            tp *= count
        elif style == CONTEXT:
            cp *= count
        elif style == EXPERTS:  # every shard has tokens and experts of its own
            cp, ep = cp * count, ep * count
        elif style == EXAMPLES:
            replicas, ep = replicas * count, ep * count
        elif style == "":  # replicas that stand on the outer axis
            replicas *= count
        else:
            return None
    return Degrees(tp, cp, ep, replicas)


def _no_column() -> FloatArray:
    """Return zero for every segment."""
    return np.zeros(1)


def _no_rows() -> FloatArray:
    """Return one row of zeros for every segment."""
    return np.zeros((1, 1))


SHARED_COLUMNS = (
    "frozen",
    "tied",
    "attention",
    "scores",
    "gathered",
    "whole",
    "recomputed",
    "host",
    "loss",
    "experts",
    "matrices",
    "largest",
    "frozen_bytes",
    "frozen_experts",
    "unpacked",
    "summed",
)
"""Columns of `SegmentCosts` that may be given for one segment."""


@dataclass(frozen=True, eq=False)
class SegmentCosts:
    """The seconds and bytes of segments on one device of a mesh, for one micro-batch.

    Columns with a default may be given for one segment, and are then the same for all.

    Attributes:
        forward: Seconds of the forward pass, collectives of the shards included. [segments]
        backward: Seconds of the gradients of activations, collectives included. [segments]
        weights: Seconds of the gradients of weights that can wait. [segments]
        update: Seconds of the optimizer's step, once a step. [segments]
        saved: Bytes that are kept for the backward pass. [segments]
        entering: Bytes that a segment reads of those before it; kept if it is recomputed.
            [segments]
        working: Bytes of the largest values at work. [segments]
        parameters: Elements of trained parameters on this device. [segments]
        error: Expected relative error of the seconds. [segments]
        frozen: Elements of parameters on this device that are not trained. [segments]
        tied: Elements of `parameters` that other segments read too. [segments]
        attention: Seconds of `forward` that selective recomputation takes again. [segments]
        scores: Bytes of `saved` that selective recomputation frees. [segments]
        gathered: Seconds of `weights` that gather again what shards gathered. [segments]
        whole: Bytes by which `saved` is less since gathered values are not kept. [segments]
        summed: Elements of `parameters` that several shards have alike and whose gradients are sums
            over these shards. With two axes, the rows are sums over the inner one, over the outer
            one, and over both. [1 or 3, segments]
        recomputed: Seconds of what full recomputation computes again. This and all that follow are
            known only if a framework's terms are. [segments]
        host: Seconds that the host takes to launch both passes. [segments]
        loss: Bytes of `working` that the loss has. [segments]
        experts: Elements of `parameters` that are experts'. [segments]
        matrices: Elements of `parameters` in matrices of layers, those of experts included.
            [segments]
        largest: Elements of the largest matrix. [segments]
        frozen_bytes: Bytes of parameters on this device that are not trained. [segments]
        frozen_experts: Bytes of `frozen_bytes` that are experts'. [segments]
        unpacked: Bytes of the largest frozen matrix that is unpacked at work. [segments]
    """

    forward: FloatArray
    backward: FloatArray
    weights: FloatArray
    update: FloatArray
    saved: FloatArray
    entering: FloatArray
    working: FloatArray
    parameters: FloatArray
    error: FloatArray
    frozen: FloatArray = field(default_factory=_no_column)
    tied: FloatArray = field(default_factory=_no_column)
    attention: FloatArray = field(default_factory=_no_column)
    scores: FloatArray = field(default_factory=_no_column)
    gathered: FloatArray = field(default_factory=_no_column)
    whole: FloatArray = field(default_factory=_no_column)
    recomputed: FloatArray = field(default_factory=_no_column)
    host: FloatArray = field(default_factory=_no_column)
    loss: FloatArray = field(default_factory=_no_column)
    experts: FloatArray = field(default_factory=_no_column)
    matrices: FloatArray = field(default_factory=_no_column)
    largest: FloatArray = field(default_factory=_no_column)
    frozen_bytes: FloatArray = field(default_factory=_no_column)
    frozen_experts: FloatArray = field(default_factory=_no_column)
    unpacked: FloatArray = field(default_factory=_no_column)
    summed: FloatArray = field(default_factory=_no_rows)

    def __post_init__(self) -> None:
        for name in SHARED_COLUMNS:
            column = np.asarray(getattr(self, name))
            shape = (*column.shape[:-1], *self.forward.shape)
            object.__setattr__(self, name, np.broadcast_to(column, shape))


class CostSource(Protocol):
    """A source of the costs of segments.

    Attributes:
        is_captured: Whether it prices a captured model's calls: then it is a `ModelCosts`.
        basis: What its prices are of: captured kernels, a model's blocks, or its sizes.
    """

    is_captured: ClassVar[bool]
    basis: ClassVar[Basis]

    def degrees(
        self, kind: str, axes: tuple[int, ...], examples: int, choice: SplitChoice
    ) -> Degrees:
        """Return the degrees of parallelism that a split stands for; arguments as of `costs`."""
        ...

    def costs(
        self,
        kind: str,
        axes: tuple[int, ...],
        examples: int,
        choice: SplitChoice = FASTEST,
    ) -> SegmentCosts | None:
        """Return the costs of segments on a kind of device; None if the model cannot be cut so.

        Args:
            kind: The kind of device.
            axes: Devices that layers are split over, along each axis of the shards.
            examples: Examples of a micro-batch on each replica.
            choice: How the split over them is chosen.
        """
        ...


def is_captured(source: CostSource) -> TypeGuard[ModelCosts]:
    """Return whether a source prices a captured model's calls, without importing torch to ask."""
    return source.is_captured


@dataclass(frozen=True, eq=False)
class Chain:
    """A model to plan for.

    Attributes:
        name: Name of the model.
        fingerprint: Hash of its structure.
        segments: Runs of calls, in their order.
        border: Bytes an example of what crosses the cut before each segment, and after the last,
            where nothing does. [segments + 1]
        source: The source of the segments' costs.
        batch: Examples of a step.
        precision: Precision of parameters and passes, in Lightning's words.
        optimizer: Name of the optimizer, one of `costs.optimizers`.
        tied: Parameters that several segments read.
        mixes: Why the batch cannot be cut into micro-batches or replicas; empty if it can.
        loss: How a step's loss follows from those of its micro-batches: their mean or their sum.
        notices: What is priced otherwise than it runs, each in one line.
        inputs: Name or None, shape and type of each input; empty if inputs are nested.
        allowed: Whether each segment may be on each device of the cluster; None: all may.
            [segments, devices]
        framework: The framework whose terms price the stages; None: exchanges are bare, and nothing
            is added.
        layer: Number of every segment's layer, negative outside of layers; None: numbers follow
            from names of modules. [segments]
        joined: Why layers that could be apart stay in one stage; empty if none do.
        parameters: Number of parameters; None if it is not known.
        recognition: What of a captured model's step a framework's kernels price; None if none does.
        alternative: The model at the other price of what has two: eager kernels as captured, and
            one fused kernel each. Intervals span both. None if nothing has.
    """

    name: str
    fingerprint: str
    segments: tuple[Segment, ...]
    border: FloatArray
    source: CostSource
    batch: int
    precision: str = "32-true"
    optimizer: str = "sgd"
    tied: tuple[Tied, ...] = ()
    mixes: str = ""
    loss: Literal["mean", "sum"] = "mean"
    notices: tuple[str, ...] = ()
    inputs: tuple[Input, ...] = ()
    allowed: BoolArray | None = None
    framework: Framework | None = None
    layer: IntArray | None = None
    joined: str = ""
    parameters: int | None = None
    recognition: Recognition | None = None
    alternative: Chain | None = None
    _known: dict[tuple[str, tuple[int, ...], int, SplitChoice], SegmentCosts | None] = (
        field(default_factory=dict)
    )

    def __len__(self) -> int:
        return len(self.segments)

    def count_tied(self, costs: SegmentCosts) -> FloatArray:
        """Return the elements of each tied parameter on a device, by segment. [tied, segments]

        Several tied parameters of one segment share its `costs.tied` by their sizes.
        """
        sizes = np.zeros((len(self.tied), len(costs.tied)))
        for row, tied in zip(sizes, self.tied, strict=True):
            row[list(tied.segments)] = tied.elements
        return sizes * (costs.tied / np.maximum(sizes.sum(axis=0), 1e-30))

    @cached_property
    def layers(self) -> IntArray:
        """Return the number of every segment's layer; see `layer_numbers`. [segments]"""
        if self.layer is None:
            return layer_numbers(self.segments)
        return self.layer

    def costs(
        self,
        kinds: Sequence[str],
        axes: tuple[int, ...],
        examples: int,
        choice: SplitChoice = FASTEST,
    ) -> SegmentCosts | None:
        """Return the costs on the slowest of several kinds of devices, each priced once.

        None if the model cannot be cut so. Arguments are those of `CostSource.costs`.
        """
        costs_of_kinds = []
        for kind in dict.fromkeys(kinds):
            key = (kind, axes, examples, choice if max(axes) > 1 else FASTEST)
            if key not in self._known:
                self._known[key] = self.source.costs(*key)
            priced = self._known[key]
            if priced is None:
                return None
            costs_of_kinds.append(priced)
        if len(costs_of_kinds) == 1:
            return costs_of_kinds[0]
        return _slowest(costs_of_kinds)


def _slowest(several: Sequence[SegmentCosts]) -> SegmentCosts:
    """Return the largest of each number, since devices of a mesh wait for the slowest."""
    fields = SegmentCosts.__dataclass_fields__
    return SegmentCosts(
        **{n: np.max([getattr(c, n) for c in several], axis=0) for n in fields}
    )
