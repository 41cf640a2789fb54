"""`ModelCosts`: what the segments of a captured model take, from the tables of `gnnplace.costs`.

Over t shards each segment is split on its own, its borders whole on every shard, by the exact
elimination of `gnnplace.sharding` (PaSE, arXiv 2407.04001): an operation's cost is that of the
kernels of its part, forward and backward, those between operations are collectives. Examples are
never split over shards: that is what replicas are for. Equal segments are solved once.

A pass of a segment takes the larger of its kernels with the gaps between them and what the host
takes to launch them (`costs.floors`), plus the collectives of its split. Beside those of calls
these are sums of gradients, buffers that are changed, and an update of every parameter, whose
launches begin while the backward pass keeps the device busy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.costs.profiling.description import PASSES, Kernel, vector
from gnnplace.errors import InputError
from gnnplace.plans.mesh import Mesh, MeshFabric
from gnnplace.plans.segments.chain import SegmentCosts
from gnnplace.plans.segments.cuts import Cuts
from gnnplace.plans.segments.parts import Part, Parts, Times
from gnnplace.plans.segments.placements import placements_of
from gnnplace.plans.segments.recording import Recorded
from gnnplace.sharding import best_strategy
from gnnplace.sharding.captured.calls import BUFFER, PARAMETER
from gnnplace.sharding.captured.costs import MeshMachine, move
from gnnplace.sharding.captured.layout import (
    CALL,
    Configuration,
    Shape,
    SplitGraph,
    SplitOp,
    made_layout,
    mesh_configurations,
    parts_in,
    read_layout,
)
from gnnplace.sharding.captured.problem import CapturedProblem, captured_tables
from gnnplace.sharding.run.planning import LayerGraph

UPDATE = [f.name for f in fields(SegmentCosts)].index("update")


@dataclass(eq=False)
class ModelCosts:
    """Prices a model's segments; a `plans.segments.chain.CostSource`.

    Attributes:
        layers: the model's calls, rules and operations, of the whole batch.
        cuts: where the calls are cut into segments.
        fabric: of the cluster, for what shards exchange.
        batch: the number of examples of a step.
        precision: of parameters and passes, in Lightning's words.
        optimizer: the name of the optimizer.
        parts: kernels and times of parts of calls.
    """

    layers: LayerGraph
    cuts: Cuts
    fabric: MeshFabric
    batch: int
    precision: str
    optimizer: str
    parts: Parts = field(init=False)

    def __post_init__(self) -> None:
        self.parts = Parts(self.layers, self.batch, self.precision)

    def costs(self, kind: str, shards: int, examples: int) -> SegmentCosts | None:
        """Costs of every segment; see `plans.segments.chain.CostSource`."""
        if self.batch % examples:
            return None
        mesh = (shards, self.batch // examples)
        first = {s.kind: k for k, s in reversed(list(enumerate(self.cuts.segments)))}
        splits = [
            (i, chosen[0])
            for number in first.values()
            for i in self._calls(number)
            for chosen in mesh_configurations(self._whole_examples(i).shape, mesh[:1])
        ]
        self.parts.prepare(splits, kind, shards, examples)  # together, which takes less
        by_kind: dict[int, FloatArray] = {}
        for k, number in first.items():
            by_kind[k] = self._segment(number, kind, mesh)
        *columns, launched = np.array([by_kind[s.kind] for s in self.cuts.segments]).T.copy()
        update = columns[UPDATE]
        waited = max(float(launched.sum() - update.sum()), 0.0)
        columns[UPDATE] = update + waited * update / max(float(update.sum()), 1e-30)
        return SegmentCosts(*columns)

    def placements(
        self, kind: str, shards: int, examples: int, first: int, last: int
    ) -> dict[str, list[str]]:
        """How parameters and calls of a run of segments are split over shards.

        Args:
            kind: the kind of device.
            shards: devices that they are split over.
            examples: of a micro-batch on each replica.
            first: the first segment of the run.
            last: the segment after the last.
        """
        mesh = (shards, self.batch // examples)
        found: dict[int, Configuration] = {}
        known: dict[int, tuple[Configuration, ...]] = {}
        for number in range(first, last):
            alike = self.cuts.segments[number].kind
            calls = self._calls(number)
            if alike not in known:
                known[alike] = self._split(number, calls, kind, mesh)[0]
            found.update(zip(calls, known[alike], strict=True))
        return placements_of(self.layers.calls, self.layers.rules, found)

    def _calls(self, number: int) -> list[int]:
        """Calls of a segment that are priced."""
        return [i for i in range(*self.cuts.runs[number]) if i not in self.cuts.aside]

    def part(self, call: int, split: Configuration, kind: str, mesh: tuple[int, int]) -> Part:
        """A part of a call, over shards and parts of the batch."""
        return self.parts.part((call, split[0]), kind, mesh[0], self.batch // mesh[1])

    def _segment(self, number: int, kind: str, mesh: tuple[int, int]) -> FloatArray:
        """The fields of `SegmentCosts` for one segment, and what the host takes for its update.

        That is beyond what its backward pass leaves the host idle.
        """
        calls = self._calls(number)
        split, moved = self._split(number, calls, kind, mesh)
        parts = [self.part(i, c, kind, mesh) for i, c in zip(calls, split, strict=True)]
        recorded = [p.recorded for p in parts]
        *passes, update, launched = self._seconds(number, split, parts, kind, mesh)
        parameters, frozen = self._parameters(calls, split, mesh)
        kept = self._kept(calls, split, recorded, mesh)
        entering = self._entering(number, mesh)
        largest = max((r.largest for r in recorded), default=0.0)
        return np.array(
            [
                passes[0] + moved[0],
                passes[1] + moved[1],
                passes[2],
                update,
                kept,
                entering,
                2.0 * largest,
                parameters,
                _error([t for p in parts for t in (p.forward, p.whole)]),
                frozen,
                launched,
            ]
        )

    def _whole_examples(self, call: int) -> SplitOp:
        """An operation whose examples stay together: a micro-batch may be one alone.

        The axis of examples is that of the inputs, and the first of a result that has as many.
        """
        graph = self.layers.operations
        op = graph.ops[call]
        batch = {op.batch}
        for value, axes in zip(op.results, op.shape.results, strict=True):
            if axes and axes[0] and graph.values[value].shape[0] == self.batch:
                batch.add(axes[0])
        extents = tuple(pair for pair in op.shape.extents if pair[0] not in batch)
        return replace(op, shape=replace(op.shape, extents=extents))

    def _seconds(
        self,
        number: int,
        split: Sequence[Configuration],
        parts: Sequence[Part],
        kind: str,
        mesh: tuple[int, int],
    ) -> tuple[float, float, float, float, float]:
        """Seconds of the forward pass, of gradients of activations and of weights, of the update.

        The last are of its launches, less what the backward pass leaves the host idle. Calls that
        make no part of the answer (masks, counts of batches) run where they stand.
        """
        run = range(*self.cuts.runs[number])
        aside = [self.part(i, (None,), kind, mesh) for i in run if i in self.cuts.aside]
        summed, updates = self.beside(self._calls(number), split, kind, mesh)
        stored = self.parts.beside(self.stored(run), kind)
        late = [summed, *(p.whole for p in parts)]
        forward = _pass([stored, *(p.forward for p in (*parts, *aside))], late=False)
        whole = _pass(late, late=True)
        backward = min(_pass([summed, *(p.early for p in parts)], late=True), whole)
        idle = whole - sum(t.late for t in late)
        return forward, backward, whole - backward, updates.kernels, updates.late - idle

    def stored(self, run: Iterable[int]) -> list[Kernel]:
        """A kernel for every buffer that calls change, as ops of a placement have one.

        Eager PyTorch has none, but a module that keeps such buffers takes as long on the host: with
        them 20 published steps of CNNs on A100 are 21 % too short, without them 34 %.
        """
        graph, stored = self.layers.calls, []
        for i in run:
            call = graph.calls[i]
            norm = call.kind == "batch_norm" and call.argument(5, "training", False)
            if norm or getattr(call.function, "__name__", "").endswith("_"):
                values = [graph.values[v] for v in call.reads]
                stored += [
                    vector("copy_buffer", v.shape, 2 * v.bytes)
                    for v in values
                    if v.source == BUFFER
                ]
        return stored

    def beside(
        self, calls: Sequence[int], split: Sequence[Configuration], kind: str, mesh: tuple[int, int]
    ) -> tuple[Times, Times]:
        """Sums of the gradients of what several calls read; updates of trained parameters."""
        graph, rules = self.layers.calls, self.layers.rules
        name, sums = f"{self.optimizer}_update", []
        updates: dict[int, Kernel] = {}
        seen: set[int] = set()
        for i, chosen in zip(calls, split, strict=True):
            for value, axes in zip(graph.calls[i].reads, rules[i].reads, strict=True):
                info = graph.values[value]
                size = max(
                    math.prod(info.shape) // parts_in(read_layout(axes, chosen), mesh[:1]), 1
                )
                if info.source == PARAMETER and info.gradient:
                    length = info.shape[-1] if info.shape else 1
                    shape = (max(size // max(length, 1), 1), length)
                    updates[value] = vector(name, shape, 4 * PASSES[name] * size)
                elif info.gradient and value in seen:
                    own = size // mesh[1]
                    sums.append(vector("add", (own,), 3 * info.dtype.itemsize * own))
                seen.add(value)
        return self.parts.beside(sums, kind), self.parts.beside([*updates.values()], kind)

    def _parameters(
        self, calls: Sequence[int], split: Sequence[Configuration], mesh: tuple[int, int]
    ) -> tuple[float, float]:
        """Elements on a device, trained and frozen, each parameter of the segment once."""
        graph, rules, total = self.layers.calls, self.layers.rules, [0.0, 0.0]
        seen: set[int] = set()
        for i, chosen in zip(calls, split, strict=True):
            for value, axes in zip(graph.calls[i].reads, rules[i].reads, strict=True):
                info = graph.values[value]
                if info.source == PARAMETER and value not in seen:
                    seen.add(value)
                    cut = parts_in(read_layout(axes, chosen), mesh[:1])
                    total[not info.gradient] += float(np.prod(info.shape)) / cut
        return total[0], total[1]

    def _kept(
        self,
        calls: Sequence[int],
        split: Sequence[Configuration],
        recorded: Sequence[Recorded],
        mesh: tuple[int, int],
    ) -> float:
        """Bytes kept of a micro-batch on a device; views of one tensor once."""
        graph, rules = self.layers.calls, self.layers.rules
        kept: dict[int, float] = {}
        root: dict[int, int] = {}
        total = 0.0
        for i, chosen, found in zip(calls, split, recorded, strict=True):
            call, rule = graph.calls[i], rules[i]
            total += found.inner
            views = rule.kind == "shape" and len(call.reads) == 1
            for value in call.results:
                root[value] = root.get(call.reads[0], call.reads[0]) if views else value
            for values, axes, keeps, layout in (
                (call.reads, rule.reads, found.reads, read_layout),
                (call.results, rule.results, found.results, made_layout),
            ):
                for value, labels, keep in zip(values, axes, keeps, strict=True):
                    info = graph.values[value]
                    if not keep or info.source == PARAMETER or value not in self.cuts.derived:
                        continue
                    own = root.get(value, value)
                    size = self._bytes(own, mesh) / parts_in(layout(labels, chosen), mesh[:1])
                    kept[own] = max(kept.get(own, 0.0), size)
        return total + sum(kept.values())

    def _bytes(self, value: int, mesh: tuple[int, int]) -> float:
        """Of the examples of one replica's micro-batch."""
        return float(self.layers.operations.values[value].bytes) / mesh[1]

    def entering_values(self, number: int, calls: Sequence[int]) -> tuple[int, ...]:
        """Values that calls outside of a segment make for it: what crosses, and masks and such."""
        graph = self.layers.operations
        own = {v for i in calls for v in graph.ops[i].results}
        others = {
            v
            for i in calls
            for v in graph.ops[i].reads
            if graph.values[v].source == CALL and v not in own
        }
        return tuple(sorted(others | set(self.cuts.crossing[number])))

    def _entering(self, number: int, mesh: tuple[int, int]) -> float:
        return sum(self._bytes(value, mesh) for value in self.cuts.crossing[number])

    def _split(
        self, number: int, calls: Sequence[int], kind: str, mesh: tuple[int, int]
    ) -> tuple[tuple[Configuration, ...], tuple[float, float]]:
        """The best configuration of every call over the shards, and seconds of its collectives."""
        if mesh[0] == 1:
            return tuple((None,) for _ in calls), (0.0, 0.0)
        problem = SegmentProblem.of(self, number, calls, kind, mesh)
        chosen = best_strategy(captured_tables(problem)).configuration
        split = tuple(problem.options[k + problem.before][chosen[k + problem.before]]
                      for k in range(len(calls)))  # fmt: skip
        return split, problem.exchanged(chosen)


@dataclass(eq=False)
class SegmentProblem(CapturedProblem):
    """The split of one segment over shards, its borders whole.

    Attributes:
        source: what prices its operations.
        calls: numbers of the calls of the segment.
        kind: the kind of device.
        priced: shards, and parts of the batch.
        before: operations that stand for the border.
    """

    source: ModelCosts | None = None
    calls: tuple[int, ...] = ()
    kind: str = ""
    priced: tuple[int, int] = (1, 1)
    before: int = 0

    @classmethod
    def of(
        cls,
        source: ModelCosts,
        number: int,
        calls: Sequence[int],
        kind: str,
        mesh: tuple[int, int],
    ) -> SegmentProblem:
        """The problem of a segment on one kind of device."""
        graph = source.layers.operations
        whole = Mesh(0, 1, mesh[0])
        entering = source.entering_values(number, calls)
        last = number + 1 >= len(source.cuts.runs)
        leaving = () if last else source.cuts.crossing[number + 1]
        own = {v for i in calls for v in graph.ops[i].results}
        begins = [_border(f"border {v}", graph, (), (v,)) for v in entering]
        inner = [source._whole_examples(i) for i in calls]
        ends = [_border(f"leaves {v}", graph, (v,), ()) for v in leaving if v in own]
        operations = SplitGraph(graph.name, (*begins, *inner, *ends), graph.values)
        machine = _Shards(fabric=source.fabric, place=whole, parts=float(mesh[1]))
        return cls(
            operations,
            mesh[:1],
            machine,
            source=source,
            calls=tuple(calls),
            kind=kind,
            priced=mesh,
            before=len(begins),
        )

    def compute(self, op: int) -> FloatArray:
        """Seconds of an operation's configurations, from kernels. [K]"""
        place = op - self.before
        if not 0 <= place < len(self.calls) or self.source is None:
            return np.zeros(len(self.options[op]))
        source, call = self.source, self.calls[place]
        found = [source.part(call, c, self.kind, self.priced) for c in self.options[op]]
        return np.array([p.forward.kernels + p.whole.kernels for p in found])

    def gradients(self, op: int) -> FloatArray:
        """Gradients of parameters are whole or parts: shards have the same examples. [K]"""
        return np.zeros(len(self.options[op]))

    def exchanged(self, chosen: Sequence[int]) -> tuple[float, float]:
        """Seconds of collectives in the forward and in the backward pass."""
        there = back = 0.0
        for link in self.links:
            if link.parameter:
                continue
            before, after = link.before[chosen[link.u]], link.after[chosen[link.v]]
            ahead = move(link.info.bytes, before[0], after[0], self.mesh, self.machine).total
            there += ahead
            back += link.cost(before, after).total - ahead
        return there, back


def _pass(times: Sequence[Times], *, late: bool) -> float:
    """Seconds of a pass: the larger of its kernels and of what the host takes for them."""
    host = sum(t.late if late else t.early for t in times)
    return max(sum(t.kernels for t in times), host)


def _error(times: Sequence[Times]) -> float:
    """Expected relative error of the kernels, by their seconds."""
    return sum(t.missed for t in times) / max(sum(t.kernels for t in times), 1e-30)


def _border(
    name: str, graph: SplitGraph, reads: tuple[int, ...], results: tuple[int, ...]
) -> SplitOp:
    """An operation that stands for what is whole on every shard."""

    def axes(values: tuple[int, ...]) -> tuple[tuple[str | None, ...], ...]:
        return tuple((None,) * len(graph.values[v].shape) for v in values)

    return SplitOp(name, "border", Shape((), axes(reads), axes(results), 0.0, True), reads, results)


@dataclass(frozen=True)
class _Shards(MeshMachine):
    """Collectives of one replica's shards on a part of the batch."""

    fabric: MeshFabric | None = None
    place: Mesh | None = None
    parts: float = 1.0

    def collective(self, op: str, devices: int, size: float) -> float:
        """Seconds of a collective of the shards."""
        if self.fabric is None or self.place is None:
            raise InputError("collective: no cluster")
        return self.fabric.collective(op, size / self.parts, list(self.place.devices))
