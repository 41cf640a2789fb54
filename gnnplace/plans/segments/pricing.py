"""`ModelCosts`: prices of the segments of a captured model, from the tables of `gnnplace.costs`.

Over shards each segment is split on its own (`segments.splits`). Examples are split over shards
only if a choice asks for it, since that is what replicas do. Equal segments are solved once.

A pass of a segment takes the larger of two times (its kernels with the gaps between them, and the
host's time to launch them; `costs.floors`), plus the collectives of its split. Besides the calls
there are sums of gradients, changes of buffers, and the update of every parameter, whose launches
begin while the backward pass still keeps the device busy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.costs import PASSES, Kernel, make_vector_kernel
from gnnplace.plans.mesh import MeshFabric
from gnnplace.plans.plan import StageEntry
from gnnplace.plans.segments.chain import (
    FASTEST,
    Basis,
    Degrees,
    SegmentCosts,
    SplitChoice,
    find_degrees,
)
from gnnplace.plans.segments.cuts import Cuts, attention_runs
from gnnplace.plans.segments.parts import Cut, Part, Parts, Times
from gnnplace.plans.segments.placements import (
    WHOLE_WORDS,
    border_layout,
    format_placements,
    parse_configuration,
)
from gnnplace.plans.segments.recording import Recorded
from gnnplace.plans.segments.splits import (
    Given,
    SegmentProblem,
    find_styles,
    find_summed_axes,
)
from gnnplace.sharding import (
    CALL,
    Configuration,
    LayerGraph,
    Layout,
    Mesh,
    best_strategy,
    count_layout_parts,
    count_parts,
    get_result_layout,
    gradient_layout,
    is_gathered,
    read_layout,
)
from gnnplace.tracing import (
    BUFFER,
    EXPERTS,
    PARAMETER,
    SHAPE,
    SPREAD,
    Rule,
    changes_in_place,
    first_label,
)

COLUMNS = (
    "forward",
    "backward",
    "weights",
    "update",
    "saved",
    "entering",
    "working",
    "parameters",
    "error",
    "frozen",
    "tied",
    "attention",
    "scores",
    "gathered",
    "whole",
)
"""Columns of `SegmentCosts` in the order in which a segment's row has them."""
FORWARD = COLUMNS.index("forward")
UPDATE = COLUMNS.index("update")
Split = tuple[tuple[Configuration, ...], tuple[float, float, float, float]]
"""Configurations of a segment's calls; seconds of its collectives: forward and backward, those of
the first that attention has, and of gathering again."""
Grid = tuple[Mesh, int]
"""Shards along each of their axes, and parts of the batch."""


@dataclass(eq=False)
class ModelCosts:
    """The costs of a captured model's segments; a `plans.segments.chain.CostSource`.

    Attributes:
        layers: The model's calls, rules and operations, of the whole batch.
        cuts: Where the calls are cut into segments.
        fabric: The cluster's links, for what shards exchange.
        batch: Number of examples of a step.
        precision: Precision of parameters and passes, in Lightning's words.
        optimizer: Name of the optimizer.
        parts: Kernels and times of parts of calls.
    """

    is_captured: ClassVar[bool] = True
    basis: ClassVar[Basis] = "captured"

    layers: LayerGraph
    cuts: Cuts
    fabric: MeshFabric
    batch: int
    precision: str
    optimizer: str
    parts: Parts = field(init=False)
    _prepared: set[object] = field(init=False, default_factory=set)
    _problems: dict[object, SegmentProblem] = field(init=False, default_factory=dict)
    _chosen: dict[object, Split] = field(init=False, default_factory=dict)
    _priced: dict[object, FloatArray] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.parts = Parts(self.layers, self.batch, self.precision)

    def costs(
        self, kind: str, axes: Mesh, examples: int, choice: SplitChoice = FASTEST
    ) -> SegmentCosts | None:
        """Return the costs of every segment; see `plans.segments.chain.CostSource`.

        None if the batch is no multiple of the examples.
        """
        if self.batch % examples:
            return None
        grid = (axes, self.batch // examples)
        first = {s.kind: k for k, s in reversed(list(enumerate(self.cuts.segments)))}
        if choice.labels is None:
            self._prepare(first.values(), kind, grid, choice)
            by_kind = {
                k: self._segment(number, kind, grid, choice)
                for k, number in first.items()
            }
            rows = [by_kind[s.kind] for s in self.cuts.segments]
        else:
            rows = [
                self._segment(k, kind, grid, choice)
                for k in range(len(self.cuts.segments))
            ]
        count = len(COLUMNS) + 1
        columns = np.array(rows).T.copy()
        launched = columns[count - 1]
        # Calls whose results are no part of the answer (masks, counts).
        for k in range(len(rows)):
            calls = [i for i in range(*self.cuts.runs[k]) if i in self.cuts.aside]
            none = (None,) * len(grid[0])
            forwards = [self.part(i, none, kind, grid).forward for i in calls]
            columns[FORWARD][k] += _pass(forwards, late=False)
        update = columns[UPDATE]
        waited = max(float(launched.sum() - update.sum()), 0.0)
        columns[UPDATE] = update + waited * update / max(float(update.sum()), 1e-30)
        named = dict(zip(COLUMNS, columns, strict=False))
        return SegmentCosts(**named, summed=columns[count:])

    def degrees(
        self, kind: str, axes: tuple[int, ...], examples: int, choice: SplitChoice
    ) -> Degrees:
        """Return the degrees of parallelism of a split, a free one's as tensor parallelism."""
        return find_degrees(axes, choice) or Degrees(
            tp=axes[-1], cp=1, ep=1, replicas=1
        )

    def _prepare(
        self, numbers: Iterable[int], kind: str, grid: Grid, choice: SplitChoice
    ) -> None:
        """Predict the parts of all calls of some segments at once, which takes less time."""
        key = kind, grid, find_styles(choice)
        if key in self._prepared:
            return
        self._prepared.add(key)
        replicated = (None,) * len(grid[0])
        splits = [self._cut(call, replicated, grid) for call in self.cuts.aside]
        for number in numbers:
            calls = self._calls(number)
            if math.prod(grid[0]) == 1:
                splits += [self._cut(i, (None,), grid) for i in calls]
                continue
            problem = self._problem(number, kind, grid, choice)
            options = problem.options[
                problem.num_entering : problem.num_entering + len(calls)
            ]
            splits += [
                self._cut(i, c, grid)
                for i, configurations in zip(calls, options, strict=True)
                for c in configurations
            ]
        self.parts.prepare(splits, kind)

    def placements(
        self,
        kind: str,
        axes: Mesh,
        examples: int,
        first: int,
        last: int,
        choice: SplitChoice,
    ) -> dict[str, list[str]]:
        """Return a plan's words for the split parameters and calls of a run of segments.

        Args:
            kind: The kind of device.
            axes: Devices that they are split over, along each axis.
            examples: Examples of a micro-batch on each replica.
            first: The first segment of the run.
            last: The segment after the last.
            choice: How the split is chosen.
        """
        grid = (axes, self.batch // examples)
        placements: dict[int, Configuration] = {}
        for number in range(first, last):
            split, _ = self._split(number, kind, grid, choice)
            placements.update(zip(self._calls(number), split, strict=True))
        return format_placements(
            self.layers.calls, self.find_part_rules(examples), placements
        )

    def find_part_rules(self, examples: int) -> list[Rule]:
        """Return the rules of every call on `examples` of the batch's examples, with fewer rows."""
        parts = self.batch // examples
        pairs = zip(self.layers.rules, self.layers.operations.ops, strict=True)
        return [
            rule.with_fewer_examples(op.batch, parts) if op.batch else rule
            for rule, op in pairs
        ]

    def list_stage_labels(
        self, entries: Sequence[StageEntry], examples: int
    ) -> tuple[tuple[str, Configuration], ...]:
        """Return the name and the labels of every call of a plan's stages.

        Args:
            entries: The stages.
            examples: Examples of a micro-batch on a replica.

        Raises:
            MismatchError: A call cannot be split so.
        """
        pairs = zip(
            self.layers.calls.calls, self.find_part_rules(examples), strict=True
        )
        rules = {call.name: rule for call, rule in pairs}
        return tuple(
            (
                name,
                parse_configuration(
                    rules[name],
                    entry.placements.get(name, WHOLE_WORDS),
                    entry.axes,
                    f"stages[{k}].placements.{name}",
                ),
            )
            for k, entry in enumerate(entries)
            for name in entry.members
        )

    @property
    def experts(self) -> int:
        """Return into how many parts all mixtures of experts can be cut; 0 if there are none."""
        rules = [rule for rule in self.layers.rules if rule.kind == "experts"]
        return math.gcd(*(rule.extents.get(EXPERTS, 1) for rule in rules))

    def _calls(self, number: int) -> list[int]:
        """Return the calls of a segment that are priced."""
        return [i for i in range(*self.cuts.runs[number]) if i not in self.cuts.aside]

    def part(self, call: int, split: Configuration, kind: str, grid: Grid) -> Part:
        """Return the part of a call on one device, with its times.

        Args:
            call: Index of the call.
            split: Label that each axis of the shards divides, or None.
            kind: The kind of device.
            grid: Shards along each of their axes, and parts of the batch.
        """
        return self.parts.part(self._cut(call, split, grid), kind)

    def _cut(self, call: int, split: Configuration, grid: Grid) -> tuple[int, Cut, int]:
        """Return what to record of a call; shards that divide examples leave it fewer of them."""
        counts = count_parts(split, grid[0])
        batch = self.layers.operations.ops[call].batch
        examples = (
            self.batch // grid[1] // (counts.pop(batch, 1) if batch is not None else 1)
        )
        return call, tuple(sorted(counts.items())), examples

    def _segment(
        self, number: int, kind: str, grid: Grid, choice: SplitChoice
    ) -> FloatArray:
        """Return a segment's row: `COLUMNS`, seconds of its update's launches, rows of `summed`.

        The seconds of launches are those beyond what the backward pass leaves the host idle.
        """
        calls = self._calls(number)
        split, exchanges = self._split(number, kind, grid, choice)
        key = (number, kind, grid, split, exchanges, choice.border, choice.regather)
        if key in self._priced:
            return self._priced[key]
        # Seconds of the passes, from kernels of the calls' parts.
        pairs = zip(calls, split, strict=True)
        parts = [self.part(call, choice, kind, grid) for call, choice in pairs]
        recorded = [p.recorded for p in parts]
        *passes, update, launched = self._seconds(number, split, parts, kind, grid)
        parameters, frozen, tied, summed = self._parameters(calls, split, grid)
        # Saved activations, fewer if shards gather values again instead of keeping them.
        gathered_bytes = self._count_saved_bytes(calls, split, recorded, grid)
        saved_bytes = gathered_bytes
        entering_layouts: dict[int, Layout] | None = None
        if choice.regather:
            entering_layouts = {
                v: self.border(v, grid, choice) for v in self.cuts.crossing[number]
            }
            saved_bytes = self._count_saved_bytes(
                calls, split, recorded, grid, entering_layouts=entering_layouts
            )
        # Twice the largest tensor is taken to be at work.
        largest = max((r.largest for r in recorded), default=0.0)
        times = [t for p in parts for t in (p.forward, p.whole)]
        error = sum(t.missed for t in times) / max(sum(t.kernels for t in times), 1e-30)
        column = self._priced[key] = np.array(
            [
                passes[0] + exchanges[0],
                passes[1] + exchanges[1],
                passes[2] + exchanges[3],
                update,
                saved_bytes,
                self._entering(number, grid, choice),
                2.0 * largest,
                parameters,
                error,
                frozen,
                tied,
                *self._attention(
                    number,
                    split,
                    parts,
                    grid,
                    saved_bytes,
                    exchanges[2],
                    entering_layouts,
                ),
                exchanges[3],
                gathered_bytes - saved_bytes,
                launched,
                *summed,
            ]
        )
        return column

    def _attention(
        self,
        number: int,
        split: Sequence[Configuration],
        parts: Sequence[Part],
        grid: Grid,
        saved_bytes: float,
        collective_seconds: float,
        entering_layouts: Mapping[int, Layout] | None,
    ) -> tuple[float, float]:
        """Return the seconds to make attention again from its inputs, and the bytes it frees.

        Args:
            number: The segment.
            split: Labels of each of its calls.
            parts: Parts of each of its calls.
            grid: Shards along each of their axes, and parts of the batch.
            saved_bytes: Bytes of a micro-batch that are kept without recomputation.
            collective_seconds: Seconds of the collectives in attention's forward pass.
            entering_layouts: See `_count_saved_bytes`.
        """
        calls = self._calls(number)
        recomputed = self.attention[number]
        if not recomputed:
            return 0.0, 0.0
        inside = [
            p.forward for i, p in zip(calls, parts, strict=True) if i in recomputed
        ]
        recorded = [p.recorded for p in parts]
        remaining_bytes = self._count_saved_bytes(
            calls, split, recorded, grid, recomputed, entering_layouts
        )
        seconds = _pass(inside, late=False) + collective_seconds
        return seconds, max(saved_bytes - remaining_bytes, 0.0)

    @cached_property
    def attention(self) -> tuple[frozenset[int], ...]:
        """Return each segment's calls that make attention's result; see `cuts.attention_runs`."""
        graph = self.layers.calls
        runs = (
            attention_runs(graph, self._calls(k)) for k in range(len(self.cuts.runs))
        )
        return tuple(frozenset(i for run in some for i in run) for some in runs)

    def find_example_labels(self, call: int) -> frozenset[str | None]:
        """Return the labels of an operation that cut its examples.

        The axis of examples is that of the inputs, and the first of a result that has as many.
        """
        graph = self.layers.operations
        op = graph.ops[call]
        labels = {op.batch, SPREAD}
        for value, axes in zip(op.results, op.shape.results, strict=True):
            if axes and axes[0] and graph.values[value].shape[0] == self.batch:
                labels.add(first_label(axes[0]))
        return frozenset(labels - {None})

    def _seconds(
        self,
        number: int,
        split: Sequence[Configuration],
        parts: Sequence[Part],
        kind: str,
        grid: Grid,
    ) -> tuple[float, float, float, float, float]:
        """Return the seconds of a segment's passes and its update.

        Args:
            number: The segment.
            split: Labels of each of its calls.
            parts: Parts of each of its calls.
            kind: The kind of device.
            grid: Shards along each of their axes, and parts of the batch.

        Returns:
            Seconds of the forward pass, of the gradients of activations, of those of weights, of
            the update's kernels, and of the update's launches less what the backward pass leaves
            the host idle.
        """
        run = range(*self.cuts.runs[number])
        summed, updates = self.beside(self._calls(number), split, kind, grid)
        stored = self.parts.beside(self.stored(run), kind)
        late = [summed, *(p.whole for p in parts)]
        forward = _pass([stored, *(p.forward for p in parts)], late=False)
        whole_pass = _pass(late, late=True)
        backward = min(
            _pass([summed, *(p.early for p in parts)], late=True), whole_pass
        )
        idle = whole_pass - sum(t.late for t in late)
        return (
            forward,
            backward,
            whole_pass - backward,
            updates.kernels,
            updates.late - idle,
        )

    def stored(self, run: Iterable[int]) -> list[Kernel]:
        """Return a kernel for every buffer that calls change, as ops of a placement have one.

        Eager PyTorch has none, but a module that keeps such buffers takes as long on the host. With
        them 20 published steps of CNNs on A100 are 21 % too short, without them 34 %.
        """
        graph = self.layers.calls
        stored = []
        for i in run:
            call = graph.calls[i]
            norm = call.kind == "batch_norm" and call.argument(5, "training", False)
            written = changes_in_place(call) or call.kind == "setitem"
            if norm:
                changed = call.reads
            else:
                changed = call.reads[:written]
            values = [graph.values[v] for v in changed]
            stored += [
                make_vector_kernel("copy_buffer", v.shape, 2 * v.bytes)
                for v in values
                if v.source == BUFFER
            ]
        return stored

    def beside(
        self,
        calls: Sequence[int],
        split: Sequence[Configuration],
        kind: str,
        grid: Grid,
    ) -> tuple[Times, Times]:
        """Return the times of kernels that are of no single call.

        Args:
            calls: Calls of a segment.
            split: Labels of each of them.
            kind: The kind of device.
            grid: Shards along each of their axes, and parts of the batch.

        Returns:
            Times to add up the gradients of what several calls read, and to update trained
            parameters.
        """
        graph = self.layers.calls
        rules = self.layers.rules
        name = f"{self.optimizer}_update"
        sums = []
        updates: dict[int, Kernel] = {}
        counted: set[int] = set()
        for i, configuration in zip(calls, split, strict=True):
            for value, axes in zip(graph.calls[i].reads, rules[i].reads, strict=True):
                info = graph.values[value]
                size = max(
                    math.prod(info.shape)
                    // count_layout_parts(read_layout(axes, configuration), grid[0]),
                    1,
                )
                if info.source == PARAMETER and info.gradient:
                    if info.shape:
                        length = info.shape[-1]
                    else:
                        length = 1
                    shape = (max(size // max(length, 1), 1), length)
                    updates[value] = make_vector_kernel(
                        name, shape, 4 * PASSES[name] * size
                    )
                # Gradients of a value are added up once for every reader after the first.
                elif info.gradient and value in counted:
                    local_size = size // grid[1]
                    sums.append(
                        make_vector_kernel(
                            "add", (local_size,), 3 * info.dtype.itemsize * local_size
                        )
                    )
                counted.add(value)
        return self.parts.beside(sums, kind), self.parts.beside(
            [*updates.values()], kind
        )

    def _parameters(
        self, calls: Sequence[int], split: Sequence[Configuration], grid: Grid
    ) -> tuple[float, float, float, FloatArray]:
        """Return the elements of parameters on a device, each parameter of the segment once.

        Returns:
            Elements that are trained; elements that are not; of the trained ones those that other
            segments read too; and those whose gradients are sums over shards, see `SegmentCosts`.
        """
        graph = self.layers.calls
        rules = self.layers.rules
        trained = 0.0
        frozen = 0.0
        tied = 0.0
        summed = np.zeros(2 ** len(grid[0]))
        shared = {t.name for t in self.cuts.tied}
        counted: set[int] = set()
        for i, configuration in zip(calls, split, strict=True):
            for value, axes in zip(graph.calls[i].reads, rules[i].reads, strict=True):
                info = graph.values[value]
                if info.source != PARAMETER or value in counted:
                    continue
                counted.add(value)
                size = math.prod(info.shape) / count_layout_parts(
                    read_layout(axes, configuration), grid[0]
                )
                if not info.gradient:
                    frozen += size
                    continue
                trained += size
                summed[find_summed_axes(gradient_layout(axes, configuration))] += size
                tied += size if info.name in shared else 0.0
        return trained, frozen, tied, summed[1:]

    def _count_saved_bytes(
        self,
        calls: Sequence[int],
        split: Sequence[Configuration],
        recorded: Sequence[Recorded],
        grid: Grid,
        recomputed: frozenset[int] = frozenset(),
        entering_layouts: Mapping[int, Layout] | None = None,
    ) -> float:
        """Return the bytes that a device keeps of a micro-batch; a tensor and its views count once.

        Args:
            calls: Calls of a segment.
            split: Labels of each of them.
            recorded: Kernels of the part of each.
            grid: Shards along each of their axes, and parts of the batch.
            recomputed: Calls that are recomputed. Only what they read of other calls is kept.
            entering_layouts: Layouts of the values that enter the segment. If given, values that
                are gathered are kept as they were before, except those that attention reads.
        """
        kept_bytes: dict[int, float] = {}
        made_bytes: dict[int, float] = {}
        graph = self.layers.calls
        rules = self.layers.rules
        roots = self.roots(calls)
        total = 0.0
        parts: dict[int, float] = {}  # of what is gathered again, and of views of it
        layouts = dict(entering_layouts or {})
        if entering_layouts is not None:
            attention = self._attending
        else:
            attention = frozenset[int]()
        for i, configuration, recording in zip(calls, split, recorded, strict=True):
            if i in recomputed:
                sizes = [
                    (v, made_bytes[v]) for v in graph.calls[i].reads if v in made_bytes
                ]
            else:
                total += recording.inner
                sizes = [*self.iterate_saved_values(i, configuration, recording, grid)]
                if entering_layouts is not None and i not in attention:
                    gathered = self._gathered(i, configuration, layouts, parts, grid[0])
                    sizes = [
                        (v, size / gathered.get(v, parts.get(v, 1.0)))
                        for v, size in sizes
                    ]
                for value, axes in zip(
                    graph.calls[i].results, rules[i].results, strict=True
                ):
                    layouts[value] = get_result_layout(axes, configuration)
                    made_bytes[value] = self._bytes(value, grid) / count_layout_parts(
                        layouts[value], grid[0]
                    )
            for value, size in sizes:
                root = roots.get(value, value)
                kept_bytes[root] = max(kept_bytes.get(root, 0.0), size)
        return total + sum(kept_bytes.values())

    def _gathered(
        self,
        index: int,
        chosen: Configuration,
        layouts: Mapping[int, Layout],
        parts: dict[int, float],
        mesh: Mesh,
    ) -> dict[int, float]:
        """Return how many times larger the gathered copy of each tensor is that a call all-gathers.

        A view has the number of its base.

        Args:
            index: Index of the call.
            chosen: Label that each axis of the shards divides, or None.
            layouts: Layout of every tensor that an earlier call made.
            parts: Numbers of tensors that are views. Those of this call's views are added.
            mesh: Shards along each of their axes.
        """
        call = self.layers.calls.calls[index]
        rule = self.layers.rules[index]
        gathered = {}
        for value, axes in zip(call.reads, rule.reads, strict=True):
            source_layout = layouts.get(value)
            read = read_layout(axes, chosen)
            if source_layout is not None and is_gathered(source_layout, read, mesh):
                gathered[value] = count_layout_parts(
                    source_layout, mesh
                ) / count_layout_parts(read, mesh)
        if self._is_view(index):
            share = gathered.get(call.reads[0], parts.get(call.reads[0], 1.0))
            parts.update(dict.fromkeys(call.results, share))
        return gathered

    @cached_property
    def _attending(self) -> frozenset[int]:
        """Return the calls that make attention's result, of all segments."""
        return frozenset().union(*self.attention)

    def roots(self, calls: Sequence[int]) -> dict[int, int]:
        """Return the tensor that each result of some calls is a view of; itself if it is none."""
        roots: dict[int, int] = {}
        for i in calls:
            call = self.layers.calls.calls[i]
            views = self._is_view(i)
            for value in call.results:
                roots[value] = (
                    roots.get(call.reads[0], call.reads[0]) if views else value
                )
        return roots

    def _is_view(self, index: int) -> bool:
        """Return whether a call makes views of the one tensor that it reads, of the same type."""
        call = self.layers.calls.calls[index]
        values = self.layers.calls.values
        views = self.layers.rules[index].kind == SHAPE and len(call.reads) == 1
        return views and all(
            values[v].dtype == values[call.reads[0]].dtype for v in call.results
        )

    def iterate_saved_values(
        self, index: int, chosen: Configuration, found: Recorded, grid: Grid
    ) -> Iterator[tuple[int, float]]:
        """Yield the values that a call keeps for its backward pass, with their bytes on a device.

        Args:
            index: Index of the call.
            chosen: Label that each axis of the shards divides, or None.
            found: Kernels of the call's part.
            grid: Shards along each of their axes, and parts of the batch.
        """
        graph = self.layers.calls
        call = self.layers.calls.calls[index]
        rule = self.layers.rules[index]
        for values, axes, keeps, layout in (
            (call.reads, rule.reads, found.reads, read_layout),
            (call.results, rule.results, found.results, get_result_layout),
        ):
            for value, labels, keep in zip(values, axes, keeps, strict=True):
                inside = (
                    value in self.cuts.derived
                    and graph.values[value].source != PARAMETER
                )
                if keep and inside:
                    parts = count_layout_parts(layout(labels, chosen), grid[0])
                    yield value, self._bytes(value, grid) / parts

    def _bytes(self, value: int, grid: Grid) -> float:
        """Return the bytes of a value for the examples of one replica's micro-batch."""
        return float(self.layers.operations.values[value].bytes) / grid[1]

    def entering_values(self, number: int, calls: Sequence[int]) -> tuple[int, ...]:
        """Return the values that a segment has of calls outside: what crosses, and masks."""
        graph = self.layers.operations
        results = {v for i in calls for v in graph.ops[i].results}
        needed_elsewhere = {
            v
            for i in calls
            for v in graph.ops[i].reads
            if graph.values[v].source == CALL and v not in results
        }
        return tuple(sorted(needed_elsewhere | set(self.cuts.crossing[number])))

    def _entering(self, number: int, grid: Grid, choice: SplitChoice) -> float:
        """Return the bytes on a device of what enters a segment."""
        crossing = self.cuts.crossing[number]
        return sum(
            self._bytes(value, grid)
            / count_layout_parts(self.border(value, grid, choice), grid[0])
            for value in crossing
        )

    def border(self, value: int, grid: Grid, choice: SplitChoice) -> Layout:
        """Return the layout over the shards of a value that crosses cuts."""
        shape = self.layers.operations.values[value].shape
        examples = self.batch // grid[1]
        if shape[:1] == (self.batch,):
            shape = (examples, *shape[1:])
        return border_layout(choice.border, shape, grid[0], examples)

    def _split(self, number: int, kind: str, grid: Grid, choice: SplitChoice) -> Split:
        """Return the labels of a segment's calls over the shards, and seconds of its collectives.

        They are those that `choice` gives, or else the best ones by an exact search. See `Split`
        for the seconds.
        """
        calls, alike = self._calls(number), self.cuts.segments[number].kind
        if math.prod(grid[0]) == 1:
            return tuple((None,) for _ in calls), (0.0, 0.0, 0.0, 0.0)
        given_labels: Given | None = None
        if choice.labels is not None:
            replicated = (None,) * len(grid[0])
            names = (self.layers.calls.calls[i].name for i in calls)
            given_labels = tuple(
                choice.labels_by_call.get(name, replicated) for name in names
            )
        choice_key = (
            choice
            if given_labels is None
            else (given_labels, choice.border, choice.regather)
        )
        key = (alike, kind, grid, choice_key)
        if key not in self._chosen:
            if given_labels is None:
                problem = self._problem(number, kind, grid, choice)
                configuration = best_strategy(problem.weighted(choice)).configuration
            else:
                problem = SegmentProblem.of(
                    self, number, calls, kind, grid, (), given_labels
                )
                configuration = problem.complete_labels(choice)
            places = range(problem.num_entering, problem.num_entering + len(calls))
            split = tuple(problem.options[k][configuration[k]] for k in places)
            attention, regather = self.attention[number], choice.regather
            self._chosen[key] = (
                split,
                problem.price_exchanges(configuration, attention, again=regather),
            )
        return self._chosen[key]

    def _problem(
        self, number: int, kind: str, grid: Grid, choice: SplitChoice
    ) -> SegmentProblem:
        """Return the problem of segments like one; choices of one style share its tables."""
        styles = find_styles(choice)
        key = (self.cuts.segments[number].kind, kind, grid, styles)
        if key not in self._problems:
            calls = self._calls(number)
            self._problems[key] = SegmentProblem.of(
                self, number, calls, kind, grid, styles
            )
        return self._problems[key]


def _pass(times: Sequence[Times], *, late: bool) -> float:
    """Return the seconds of a pass: the larger of its kernels and of the host's launches."""
    host = sum(t.late if late else t.early for t in times)
    return max(sum(t.kernels for t in times), host)
