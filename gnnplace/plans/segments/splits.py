"""`SegmentProblem`: the split of one segment over shards, by exact elimination.

This is the search of `gnnplace.sharding` (PaSE, arXiv 2407.04001) with the prices of plans. The
cost of an operation is that of its shard's kernels, forward and backward; the cost between two
operations is that of collectives. Inputs and outputs of the segment are whole on every shard, or
split along tokens or examples. With two axes of shards, a style for each axis limits the
configurations of every call. With one axis, all configurations are allowed except those over
examples and those that a style excludes.

Besides the seconds of a micro-batch, a `SplitChoice` weighs, for every configuration of a call, the
seconds that occur once a step (sums over shards of the gradients of replicated parameters), the
bytes of state and the saved bytes. Tables are made once; a choice only changes their weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray
from gnnplace.costs import ALL_REDUCE, state_terms
from gnnplace.costs import PARAMETER as STATE_BYTES
from gnnplace.errors import InputError
from gnnplace.plans.mesh import Mesh, MeshFabric
from gnnplace.plans.segments.chain import CONTEXT, EXAMPLES, EXPERTS, FREE, SplitChoice
from gnnplace.plans.segments.placements import TOKENS
from gnnplace.sharding import (
    PARTIAL,
    CapturedProblem,
    Configuration,
    Layout,
    MeshMachine,
    Shape,
    ShardingProblem,
    SplitGraph,
    SplitOp,
    build_captured_tables,
    complete_strategy,
    count_layout_parts,
    get_result_layout,
    gradient_layout,
    is_gathered,
    move,
    read_layout,
)
from gnnplace.tracing import DISPATCH, PARAMETER, SPREAD

if TYPE_CHECKING:
    from gnnplace.plans.segments.pricing import Grid, ModelCosts

Given = tuple[Configuration, ...]
"""Labels of the calls of a segment."""
BARRED = 1e6  # seconds of what a choice does not have; far above what segments take


@dataclass(eq=False)
class SegmentProblem(CapturedProblem):
    """The problem of splitting one segment over shards.

    Attributes:
        source: The source of its operations' costs.
        calls: Indices of the calls of the segment.
        kind: The kind of device.
        priced: Shards along each axis, and parts of the batch.
        styles: Style of each axis of the shards; empty if `labels` are given.
        labels: Labels of each call; empty if they are to be chosen.
        num_entering: Number of operations that stand for values that enter the segment. They come
            before those of the calls.
    """

    source: ModelCosts | None = None
    calls: tuple[int, ...] = ()
    kind: str = ""
    priced: Grid = ((1,), 1)
    styles: tuple[str, ...] = (FREE,)
    labels: Given = ()
    num_entering: int = 0
    _tables: ShardingProblem | None = None
    _extras: list[FloatArray] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        source: ModelCosts,
        number: int,
        calls: Sequence[int],
        kind: str,
        grid: Grid,
        styles: tuple[str, ...],
        labels: Given = (),
    ) -> SegmentProblem:
        """Return the problem of a segment on one kind of device.

        Args:
            source: The source of costs.
            number: The segment.
            calls: Indices of its calls.
            kind: The kind of device.
            grid: Shards along each of their axes, and parts of the batch.
            styles: Style of each axis of the shards.
            labels: Labels of each call; empty if they are to be chosen.
        """
        graph, (axes, parts) = source.layers.operations, grid
        entering = source.entering_values(number, calls)
        last = number + 1 >= len(source.cuts.runs)
        leaving = () if last else source.cuts.crossing[number + 1]
        crossing = {*source.cuts.crossing[number], *leaving}
        own = {v for i in calls for v in graph.ops[i].results}
        examples = source.batch // parts if EXAMPLES in styles or labels else 0

        def border(
            name: str, reads: tuple[int, ...], results: tuple[int, ...]
        ) -> SplitOp:
            (value,) = (*reads, *results)
            sizes = border_sizes(graph.values[value].shape, source.batch, examples)
            known = sizes if value in crossing else {}
            return _border(f"{name} {value}", graph, reads, results, known)

        # One operation stands for each value that enters or leaves the segment.
        begins = [border("border", (), (v,)) for v in entering]
        ends = [border("leaves", (v,), ()) for v in leaving if v in own]
        inner = [graph.ops[i] if labels else _fewer(source, i, examples) for i in calls]
        operations = SplitGraph(graph.name, (*begins, *inner, *ends), graph.values)
        machine = ShardMachine(
            fabric=source.fabric, place=Mesh.over(0, 1, axes), parts=float(parts)
        )
        return cls(
            operations,
            axes,
            machine,
            source=source,
            calls=tuple(calls),
            kind=kind,
            priced=grid,
            styles=styles,
            labels=labels,
            num_entering=len(begins),
        )

    def configurations(self, op: int) -> tuple[Configuration, ...]:
        """Return how an operation may be split, in the styles of the axes. [K]"""
        place = op - self.num_entering
        inside = 0 <= place < len(self.calls)
        if inside and self.labels:
            return (self.labels[place],)
        configurations = super().configurations(op)
        if not inside or self.styles == (FREE,):
            return configurations
        allowed = self._match_styles(op, configurations, self.styles)
        return tuple(c for c, fine in zip(configurations, allowed, strict=True) if fine)

    def _find_allowed(self, op: int, choice: SplitChoice) -> BoolArray:
        """Return which of an operation's configurations a choice allows. [K]"""
        options = self.options[op]
        if 0 <= op - self.num_entering < len(self.calls):
            styles = find_styles(choice, alone=True)
            if self.styles != (FREE,) or styles == (FREE,):
                return np.ones(len(options), dtype=np.bool_)
            return self._match_styles(op, options, styles)
        assert self.source is not None
        it = self.graph.ops[op]
        (value,), (axes,) = (
            (*it.reads, *it.results),
            (*it.shape.reads, *it.shape.results),
        )
        wanted = self.source.border(value, self.priced, choice)
        fits = np.array([get_result_layout(axes, c) == wanted for c in options])
        return fits if fits.any() else np.array([not any(c) for c in options])

    def _match_styles(
        self, op: int, found: Sequence[Configuration], styles: Sequence[str]
    ) -> BoolArray:
        """Return which configurations are in the styles of all axes. [K]

        Where none is, those in the style of one axis are, the outer one first; else those that
        split nothing.
        """
        every = [
            self._match_style(op, found, style, axis)
            for axis, style in enumerate(styles)
        ]
        for allowed in (np.logical_and.reduce(every), *every):
            if allowed.any():
                return allowed
        return np.array([not any(c) for c in found])

    def _match_style(
        self, op: int, found: Sequence[Configuration], style: str, axis: int
    ) -> BoolArray:
        """Return which configurations are in the style of one axis. [K]"""
        assert self.source is not None
        it, values = self.graph.ops[op], self.graph.values
        labels = np.array([c[axis] for c in found], dtype=object)
        if style == EXAMPLES:
            wanted = next(
                x for x in (SPREAD, it.batch, None) if x is None or x in labels
            )
            return np.array([label == wanted for label in labels])
        examples = self.source.find_example_labels(self.calls[op - self.num_entering])
        inside = np.array([label not in examples for label in labels])
        if style == FREE:
            return inside
        if style == EXPERTS and DISPATCH in labels:
            return np.array([label == DISPATCH for label in labels])
        of_style = [
            (v, axes)
            for v, axes in zip(it.reads, it.shape.reads, strict=True)
            if values[v].source == PARAMETER
        ]
        if style in (CONTEXT, EXPERTS):
            cuts = [
                any(read_layout(a, c)[axis].cuts for _, a in of_style) for c in found
            ]
            return inside & ~np.array(cuts)
        matrices = [a for v, a in of_style if len(values[v].shape) > 1]
        parted = np.array(
            [all(read_layout(a, c)[axis].cuts for a in matrices) for c in found]
        )
        return inside & (parted if (inside & parted).any() else ~parted)

    def node_key(self, op: int) -> object:
        """Return what decides an operation's costs: its shape, and the kernels of its call."""
        place = op - self.num_entering
        inner = self.source is not None and 0 <= place < len(self.calls)
        signature = (
            self.source.parts.call_key(self.calls[place])
            if self.source and inner
            else None
        )
        return super().node_key(op), signature

    def weighted(self, choice: SplitChoice) -> ShardingProblem:
        """Return the tables for a choice: seconds of a micro-batch, and what else it weighs.

        What the choice does not allow costs `BARRED` seconds more.
        """
        if self._tables is None:
            self._tables = build_captured_tables(self)
        if not self._extras:
            self._extras = [self._extra(op) for op in range(len(self.graph.ops))]
        assert self.source is not None
        of = partial(
            state_terms,
            1.0,
            optimizer=self.source.optimizer,
            precision=self.source.precision,
            zero=choice.zero,
        )
        frozen = choice.state * STATE_BYTES[self.source.precision][0]
        frozen /= choice.replicas if choice.zero == 3 else 1
        price = [choice.step_share, frozen, choice.saved]
        for over in product((False, True), repeat=len(self.mesh)):
            alike = math.prod(
                n for n, summed in zip(self.mesh, over, strict=True) if summed
            )
            price.append(choice.state * of(replicas=choice.replicas * alike).total)
        cost = list(self._tables.cost)
        for op, extra in enumerate(self._extras):
            barred = np.where(self._find_allowed(op, choice), 0.0, BARRED)
            cost[op] = cost[op] + np.array(price) @ extra + barred
        return replace(self._tables, cost=tuple(cost), memory=())

    def _extra(self, op: int) -> FloatArray:
        """Return what an operation's configurations take beside seconds of a micro-batch.

        The rows are seconds once a step, elements of frozen parameters, bytes kept, and elements of
        trained parameters by the axes of shards over which their gradients are sums, those that are
        none first. What several operations read counts for the first. [3 + 2 ** axes, K]
        """
        options, place = self.options[op], op - self.num_entering
        extra = np.zeros((3 + 2 ** len(self.mesh), len(options)))
        if self.source is None or not 0 <= place < len(self.calls):
            return extra
        source, call = self.source, self.calls[place]
        graph, rule = source.layers.calls, source.layers.rules[call]
        width = STATE_BYTES[source.precision][1]
        for k, configuration in enumerate(options):
            recorded = source.part(call, configuration, self.kind, self.priced).recorded
            extra[2, k] = recorded.inner
            pairs = zip(graph.calls[call].reads, rule.reads, strict=True)
            for slot, (value, axes) in enumerate(pairs):
                info = graph.values[value]
                is_first = self.readers[value][0] == (op, slot)
                if info.source != PARAMETER or not is_first:
                    continue
                # Elements count in the row of the axes over which their gradient is a sum.
                size = math.prod(info.shape) / count_layout_parts(
                    read_layout(axes, configuration), self.mesh
                )
                if not info.gradient:
                    extra[1, k] += size
                    continue
                gradient = gradient_layout(axes, configuration)
                extra[3 + find_summed_axes(gradient), k] += size
                if PARTIAL in gradient:
                    members = Mesh.over(0, 1, self.mesh).summing(
                        [place == PARTIAL for place in gradient]
                    )
                    extra[0, k] += source.fabric.collective(
                        ALL_REDUCE, width * size, *members
                    )
            for value, size in source.iterate_saved_values(
                call, configuration, recorded, self.priced
            ):
                extra[2, k] += size / max(self._keepers.get(value, 1), 1)
        return extra

    @cached_property
    def _keepers(self) -> dict[int, int]:
        """Return how many calls keep each value if all are whole; views count with their base."""
        assert self.source is not None
        source, roots = self.source, self.source.roots(self.calls)
        count: Counter[int] = Counter()
        for call in self.calls:
            replicated = (None,) * len(self.mesh)
            recorded = source.part(call, replicated, self.kind, self.priced).recorded
            kept_values = source.iterate_saved_values(
                call, replicated, recorded, self.priced
            )
            count.update(roots.get(value, value) for value, _ in kept_values)
        values: set[int] = set()
        for index in self.calls:
            layer_call = source.layers.calls.calls[index]
            values.update((*layer_call.reads, *layer_call.results))
        return {value: count[roots.get(value, value)] for value in values}

    def complete_labels(self, choice: SplitChoice) -> tuple[int, ...]:
        """Return the strategy in which every call has the labels that were given."""
        first = (
            int(self._find_allowed(op, choice).argmax())
            for op in range(len(self.options))
        )
        return complete_strategy(
            self, [self.options[op][k] for op, k in enumerate(first)]
        )

    def compute(self, op: int) -> FloatArray:
        """Return the seconds of an operation's configurations, those of their kernels. [K]"""
        place = op - self.num_entering
        if not 0 <= place < len(self.calls) or self.source is None:
            return np.zeros(len(self.options[op]))
        source, call = self.source, self.calls[place]
        parts = [source.part(call, c, self.kind, self.priced) for c in self.options[op]]
        return np.array([p.forward.kernels + p.whole.kernels for p in parts])

    def exchanges(self, op: int) -> FloatArray:
        """Return the seconds of what an operation's parts exchange. [K]

        Where rows are sent to experts, all wait for the fullest device.
        """
        sent = any(
            label in (DISPATCH, SPREAD)
            for label, _ in self.graph.ops[op].shape.exchanges
        )
        factor = self.source.parts.fullest if sent and self.source is not None else 1.0
        return factor * super().exchanges(op)

    def gradients(self, op: int) -> FloatArray:
        """Return zeros: gradients of parameters are summed once a step, see `_extra`. [K]"""
        return np.zeros(len(self.options[op]))

    def price_shared_gradient(self, value: int) -> FloatArray:
        """Return zeros, as `gradients` does. [K]"""
        return np.zeros(len(self.shared[value]))

    def price_exchanges(
        self, chosen: Sequence[int], some: Collection[int] = (), *, again: bool = False
    ) -> tuple[float, float, float, float]:
        """Return the seconds of a strategy's collectives for one micro-batch.

        Args:
            chosen: Number of every operation's configuration.
            some: Calls whose collectives of the forward pass are returned apart as well.
            again: Whether what others gather and keep is gathered again.

        Returns:
            Seconds of the forward pass, of the backward pass, of `some` in the forward pass, and of
            gathering again.
        """
        gradient_sums = [
            float(self.exchanges(op)[chosen[op]]) / 2
            for op in range(len(self.graph.ops))
        ]
        places = {
            self.num_entering + k for k, call in enumerate(self.calls) if call in some
        }
        forward = back = sum(gradient_sums)
        inside, gathered = sum(gradient_sums[op] for op in places), 0.0
        kept_values = self._kept(chosen, places) if again else frozenset()
        for link in self.links:
            if link.parameter:
                continue
            source_layout, target_layout = (
                link.sources[chosen[link.u]],
                link.targets[chosen[link.v]],
            )
            ahead = move(
                link.info.bytes,
                source_layout[0],
                target_layout[0],
                self.mesh,
                self.machine,
            ).total
            forward += ahead
            inside += ahead if link.v in places else 0.0
            if link.value in kept_values and is_gathered(
                source_layout[0], target_layout[0], self.mesh
            ):
                gathered += ahead if link.v not in places else 0.0
            back += link.cost(source_layout, target_layout).total - ahead
        return forward, back, inside, gathered

    def _kept(self, chosen: Sequence[int], apart: Collection[int]) -> frozenset[int]:
        """Return the values that operations keep for their backward pass, and bases of views."""
        assert self.source is not None
        source, kept_values, roots = (
            self.source,
            set[int](),
            self.source.roots(self.calls),
        )
        for place, call in enumerate(self.calls, self.num_entering):
            if place not in apart:
                split = self.options[place][chosen[place]]
                recorded = source.part(call, split, self.kind, self.priced).recorded
                kept_values.update(
                    v
                    for v, _ in source.iterate_saved_values(
                        call, split, recorded, self.priced
                    )
                )
        return frozenset(
            kept_values | {roots.get(value, value) for value in kept_values}
        )


def find_summed_axes(gradient: Layout) -> int:
    """Return over which axes of the shards a gradient is a sum, a bit for each.

    The bits are 1 for the inner axis and 2 for the outer one; 0 is no sum.
    """
    return sum((place == PARTIAL) << k for k, place in enumerate(reversed(gradient)))


def find_styles(choice: SplitChoice, *, alone: bool = False) -> tuple[str, ...]:
    """Return the style of each axis of the shards.

    All styles of one axis but examples share the tables of the free one.

    Args:
        choice: How splits are chosen.
        alone: Whether to return the choice's own style, and not that of its tables.
    """
    if choice.outer:
        return (choice.outer, choice.style)
    return (choice.style,) if alone or choice.style == EXAMPLES else (FREE,)


def _fewer(source: ModelCosts, call: int, examples: int) -> SplitOp:
    """Return an operation with `examples` examples that may be cut; 0: they stay together."""
    op, examples_labels = (
        source.layers.operations.ops[call],
        source.find_example_labels(call),
    )
    kept_labels = {op.batch, SPREAD} if examples else set()
    extents = [
        (label, math.gcd(n, examples) if label in examples_labels else n)
        for label, n in op.shape.extents
        if label not in examples_labels or label in kept_labels
    ]
    return replace(op, shape=replace(op.shape, extents=tuple(extents)))


def border_sizes(shape: Sequence[int], batch: int, examples: int) -> dict[int, int]:
    """Return the axes along which what crosses a cut may be split, and their sizes.

    Args:
        shape: Shape of what crosses, for the whole batch.
        batch: Examples of a step.
        examples: Examples of a micro-batch; 0 if examples are not to be cut.
    """
    first = {0: examples} if examples and shape[:1] == (batch,) else {}
    return first | ({TOKENS: shape[TOKENS]} if len(shape) > TOKENS + 1 else {})


def _border(
    name: str,
    graph: SplitGraph,
    reads: tuple[int, ...],
    results: tuple[int, ...],
    sizes: Mapping[int, int],
) -> SplitOp:
    """Return an operation that stands for what crosses a border: whole, or cut along some axes.

    Args:
        name: Name of the operation.
        graph: Operations and values of the model.
        reads: What leaves the segment there.
        results: What enters the segment there.
        sizes: Axes that may be cut, and their sizes.
    """

    def axes(values: tuple[int, ...]) -> tuple[tuple[str | None, ...], ...]:
        return tuple(
            tuple(
                str(k) if k in sizes else None
                for k in range(len(graph.values[v].shape))
            )
            for v in values
        )

    extents = tuple((str(axis), size) for axis, size in sizes.items())
    shape = Shape(extents, axes(reads), axes(results), 0.0, True)
    return SplitOp(name, "border", shape, reads, results)


@dataclass(frozen=True)
class ShardMachine(MeshMachine):
    """The links of one replica's shards, on a part of the batch.

    Attributes:
        fabric: The cluster, and what exchanges take on it.
        place: The mesh of the shards.
        parts: Parts of the batch; what is exchanged is smaller by as many times.
        joined: Whether what changes along all axes alike is one collective.
    """

    fabric: MeshFabric | None = None
    place: Mesh | None = None
    parts: float = 1.0
    joined: bool = True

    def collective(
        self, op: str, devices: int, size: float, dims: tuple[int, ...] = ()
    ) -> float:
        """Return the seconds of a collective of the shards along the axes `dims`.

        Raises:
            InputError: There is no cluster.
        """
        if self.fabric is None or self.place is None:
            raise InputError("collective: no cluster")
        members = self.place.summing([k in dims for k in range(len(self.place.axes))])
        return self.fabric.collective(op, size / self.parts, *members)
