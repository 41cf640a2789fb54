"""`SegmentProblem`: the split of one segment over shards, by exact elimination.

The search of `gnnplace.sharding` (PaSE, arXiv 2407.04001) with the prices of plans: an operation's
cost is that of the kernels of its part, forward and backward, those between operations are
collectives. What enters and leaves the segment is whole on every shard, or cut along its tokens.
Beside the seconds of a micro-batch a `SplitChoice` weighs, for every configuration of a call,
seconds once a step (sums over shards of the gradients of what each has whole), bytes of state and
bytes kept. Tables are made once; a choice changes their weights alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray
from gnnplace.costs.collectives import ALL_REDUCE
from gnnplace.costs.memory import PARAMETER as STATE_BYTES
from gnnplace.costs.memory import state_bytes
from gnnplace.errors import InputError
from gnnplace.plans.mesh import Mesh, MeshFabric
from gnnplace.plans.segments.chain import CONTEXT, EXPERTS, FREE, SplitChoice
from gnnplace.plans.segments.placements import TOKENS, is_cut_by_tokens
from gnnplace.sharding import ShardingProblem
from gnnplace.sharding.captured.calls import PARAMETER
from gnnplace.sharding.captured.costs import MeshMachine, move
from gnnplace.sharding.captured.layout import (
    PARTIAL,
    Shape,
    SplitGraph,
    SplitOp,
    gradient_layout,
    parts_in,
    read_layout,
)
from gnnplace.sharding.captured.problem import CapturedProblem, captured_tables, completed
from gnnplace.sharding.rules.experts import DISPATCH

if TYPE_CHECKING:
    from gnnplace.plans.segments.pricing import ModelCosts

CUT = "cut"
BARRED = 1e6  # seconds of what a choice does not have; far above what segments take


@dataclass(eq=False)
class SegmentProblem(CapturedProblem):
    """The split of one segment over shards.

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
    _tables: ShardingProblem | None = None
    _extras: list[FloatArray] = field(default_factory=list)

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
        crossing = {*source.cuts.crossing[number], *leaving}
        own = {v for i in calls for v in graph.ops[i].results}

        def cut(value: int) -> bool:
            return value in crossing and is_cut_by_tokens(graph.values[value].shape, mesh[0])

        begins = [_border(f"border {v}", graph, (), (v,), cut(v)) for v in entering]
        inner = [source._whole_examples(i) for i in calls]
        ends = [_border(f"leaves {v}", graph, (v,), (), cut(v)) for v in leaving if v in own]
        operations = SplitGraph(graph.name, (*begins, *inner, *ends), graph.values)
        machine = ShardMachine(fabric=source.fabric, place=whole, parts=float(mesh[1]))
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

    def _allowed(self, op: int, choice: SplitChoice) -> BoolArray:
        """Which of an operation's configurations a choice has. [K]"""
        found, it, values = self.options[op], self.graph.ops[op], self.graph.values
        if not self.before <= op < self.before + len(self.calls):
            cut = np.array([c == (CUT,) for c in found])
            return cut if choice.tokens and cut.any() else ~cut
        if choice.style == FREE:
            return np.ones(len(found), dtype=np.bool_)
        own = [(v, axes) for v, axes in zip(it.reads, it.shape.reads, strict=True)
               if values[v].source == PARAMETER]  # fmt: skip
        if choice.style == EXPERTS and (DISPATCH,) in found:
            return np.array([c == (DISPATCH,) for c in found])
        if choice.style in (CONTEXT, EXPERTS):
            return np.array([not any(read_layout(a, c)[0].cuts for _, a in own) for c in found])
        matrices = [a for v, a in own if values[v].gradient and len(values[v].shape) > 1]
        parted = np.array([all(read_layout(a, c)[0].cuts for a in matrices) for c in found])
        return parted if parted.any() else ~parted

    def node_key(self, op: int) -> object:
        """Calls of one shape may have other kernels."""
        place = op - self.before
        inner = self.source is not None and 0 <= place < len(self.calls)
        own = self.source.parts.call_key(self.calls[place]) if self.source and inner else None
        return super().node_key(op), own

    def weighted(self, choice: SplitChoice) -> ShardingProblem:
        """The tables of a choice: seconds of a micro-batch, and what else it weighs."""
        if self._tables is None:
            self._tables = captured_tables(self)
        if not self._extras:
            self._extras = [self._extra(op) for op in range(len(self.graph.ops))]
        assert self.source is not None
        of = partial(state_bytes, 1.0, optimizer=self.source.optimizer,
                     precision=self.source.precision, zero=choice.zero)  # fmt: skip
        apart = choice.state * of(replicas=choice.replicas)
        summed = choice.state * of(replicas=choice.replicas * self.mesh[0])
        frozen = choice.state * STATE_BYTES[self.source.precision][0]
        price = np.array([choice.once, apart, summed, frozen, choice.saved])
        cost = list(self._tables.cost)
        for op, extra in enumerate(self._extras):
            barred = np.where(self._allowed(op, choice), 0.0, BARRED)
            cost[op] = cost[op] + price @ extra + barred
        return replace(self._tables, cost=tuple(cost), memory=())

    def _extra(self, op: int) -> FloatArray:
        """What an operation's configurations take beside seconds of a micro-batch.

        Seconds once a step; elements of parameters that are parts or the same everywhere, of those
        whose gradients are sums over shards, of frozen ones; bytes kept. [5, K]
        """
        options, place = self.options[op], op - self.before
        found = np.zeros((5, len(options)))
        if self.source is None or not 0 <= place < len(self.calls):
            return found
        source, call = self.source, self.calls[place]
        graph, rule = source.layers.calls, source.layers.rules[call]
        width = STATE_BYTES[source.precision][1]
        for k, chosen in enumerate(options):
            recorded = source.part(call, chosen, self.kind, self.priced).recorded
            found[4, k] = recorded.inner
            for value, axes in zip(graph.calls[call].reads, rule.reads, strict=True):
                info = graph.values[value]
                if info.source != PARAMETER:
                    continue
                size = math.prod(info.shape) / parts_in(read_layout(axes, chosen), self.mesh)
                if not info.gradient:
                    found[3, k] += size
                elif gradient_layout(axes, chosen)[0] == PARTIAL:
                    found[2, k] += size
                    members = range(self.mesh[0])
                    found[0, k] += source.fabric.collective(ALL_REDUCE, width * size, members)
                else:
                    found[1, k] += size
            for value, size in source.kept_values(call, chosen, recorded, self.priced):
                found[4, k] += size / max(self._keepers.get(value, 1), 1)
        return found

    @cached_property
    def _keepers(self) -> dict[int, int]:
        """How many calls keep each value where they are whole; views of one tensor are one."""
        assert self.source is not None
        source, roots = self.source, self.source.roots(self.calls)
        count: Counter[int] = Counter()
        for call in self.calls:
            found = source.part(call, (None,), self.kind, self.priced).recorded
            kept = source.kept_values(call, (None,), found, self.priced)
            count.update(roots.get(value, value) for value, _ in kept)
        it = source.layers.calls
        values = {v for c in self.calls for v in (*it.calls[c].reads, *it.calls[c].results)}
        return {value: count[roots.get(value, value)] for value in values}

    def given(self, choice: SplitChoice, names: Sequence[str]) -> tuple[int, ...]:
        """The strategy in which every call has the label that was given.

        Args:
            choice: with the labels of calls by name.
            names: of the calls, which are those of a segment that is like this one.
        """
        labels = dict(choice.labels or ())
        wanted = []
        for op, options in enumerate(self.options):
            place = op - self.before
            name = names[place] if 0 <= place < len(names) else None
            first = options[int(self._allowed(op, choice).argmax())]
            wanted.append((labels[name],) if name in labels else first)
        return completed(self, wanted)

    def compute(self, op: int) -> FloatArray:
        """Seconds of an operation's configurations, from kernels. [K]"""
        place = op - self.before
        if not 0 <= place < len(self.calls) or self.source is None:
            return np.zeros(len(self.options[op]))
        source, call = self.source, self.calls[place]
        found = [source.part(call, c, self.kind, self.priced) for c in self.options[op]]
        return np.array([p.forward.kernels + p.whole.kernels for p in found])

    def gradients(self, op: int) -> FloatArray:
        """Gradients of parameters are summed once a step, see `_extra`. [K]"""
        return np.zeros(len(self.options[op]))

    def exchanged(self, chosen: Sequence[int]) -> tuple[float, float]:
        """Seconds of collectives in the forward and in the backward pass."""
        ops = range(len(self.graph.ops))
        there = back = sum(float(self.exchanges(op)[chosen[op]]) for op in ops) / 2
        for link in self.links:
            if link.parameter:
                continue
            before, after = link.before[chosen[link.u]], link.after[chosen[link.v]]
            ahead = move(link.info.bytes, before[0], after[0], self.mesh, self.machine).total
            there += ahead
            back += link.cost(before, after).total - ahead
        return there, back


def _border(
    name: str, graph: SplitGraph, reads: tuple[int, ...], results: tuple[int, ...], cut: bool
) -> SplitOp:
    """An operation that stands for what is whole on every shard, or cut along its tokens."""

    def axes(values: tuple[int, ...]) -> tuple[tuple[str | None, ...], ...]:
        return tuple(
            tuple(CUT if cut and k == TOKENS else None for k in range(len(graph.values[v].shape)))
            for v in values
        )

    size = graph.values[(*reads, *results)[0]].shape[TOKENS] if cut else 1
    shape = Shape(((CUT, size),) if cut else (), axes(reads), axes(results), 0.0, True)
    return SplitOp(name, "border", shape, reads, results)


@dataclass(frozen=True)
class ShardMachine(MeshMachine):
    """Collectives of one replica's shards on a part of the batch."""

    fabric: MeshFabric | None = None
    place: Mesh | None = None
    parts: float = 1.0

    def collective(self, op: str, devices: int, size: float) -> float:
        """Seconds of a collective of the shards."""
        if self.fabric is None or self.place is None:
            raise InputError("collective: no cluster")
        return self.fabric.collective(op, size / self.parts, list(self.place.devices))
