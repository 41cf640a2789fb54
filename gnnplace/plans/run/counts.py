"""Means over counts, such as of words that are no padding: what every micro-batch weighs.

Let micro-batch k of all M have the loss l_k = s_k / n_k, n_k a count that follows from its inputs
alone. The loss of the batch is (sum of s_k) / N with N = sum of n_k, not the mean of the l_k; it is
the mean of w_k l_k with w_k = M n_k / N, and so are its gradients. The weights are 1 where all
count alike, to the last bit.

This repairs a loss that is one such mean: `cross_entropy` or `nll_loss` of classes, or a sum that
is divided by what inputs alone say, times or over numbers. In any other loss (a sum of two means)
all counts must be equal, which `weights` checks at every step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.utils import _pytree as pytree

from gnnplace.errors import InputError, OtherLossError
from gnnplace.sharding.captured.calls import (
    BUFFER,
    CONSTANT,
    INPUT,
    CallGraph,
    CallRef,
    LayerCall,
)

COUNTED = ("cross_entropy", "nll_loss")
DIVIDED = ("div", "truediv")
ADDED = ("sum", "nansum", "count_nonzero", "mean")
BOUNDED = ("clamp", "clip", "clamp_min", "max", "maximum")
"""How a count ends, and what a count that is not zero passes unchanged."""
LINEAR = ("mul", "neg", "to", "float", "double", "clone", "contiguous", *DIVIDED)
IGNORED = -100
Counted = tuple[int, int | None, int | None]
"""A count: value of the targets, what is ignored, value of class weights; or a divisor alone."""


@dataclass(frozen=True, eq=False)
class Counts:
    """What the means of a loss count.

    Attributes:
        graph: the model's calls on one micro-batch.
        calls: those that make what is counted, in order.
        counted: the counts.
        single: whether the loss is one mean over the first of them, so that weights repair it.
    """

    graph: CallGraph
    calls: tuple[int, ...]
    counted: tuple[Counted, ...]
    single: bool

    @torch.no_grad()
    def of(
        self, inputs: Sequence[torch.Tensor], buffers: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """Counts of a micro-batch, in double precision. [counts]"""
        values: dict[int, torch.Tensor] = dict(self.graph.constants)
        for i, value in enumerate(self.graph.values):
            if value.source == INPUT:
                values[i] = inputs[int(value.name)]
            elif value.source == BUFFER:
                values[i] = buffers[value.name]
        for index in self.calls:
            call = self.graph.calls[index]
            values.update(zip(call.results, call.made(values.__getitem__), strict=True))
        return torch.stack([_count(values, c).double().sum() for c in self.counted])

    def weights(self, table: torch.Tensor) -> list[float]:
        """What every micro-batch of every replica weighs.

        Args:
            table: counts of all. [micro-batches of all replicas, counts]

        Raises:
            InputError: counts differ and no weight repairs the loss, or one counts nothing.
        """
        if bool((table == table[0]).all()):
            return [1.0] * len(table)
        first = table[:, 0]
        if not self.single:
            raise InputError(
                "step: the loss has means over counts that differ between micro-batches or "
                "replicas, and is no single mean that weights could repair; give equal counts, or "
                "plan with one micro-batch and one replica"
            )
        if bool((first == 0).any()):
            raise InputError(
                "step: a micro-batch counts nothing (all its targets are ignored), and its mean is "
                "no number; give every micro-batch targets"
            )
        return [float(w) for w in first * len(table) / first.sum()]


def _count(values: Mapping[int, torch.Tensor], counted: Counted) -> torch.Tensor:
    target, ignored, weight = values[counted[0]], counted[1], counted[2]
    if ignored is None:
        return target.reshape(-1)[:1]
    kept = target != ignored
    if weight is None:
        return kept
    return values[weight][target.clamp(min=0)] * kept


def counts_of(graph: CallGraph) -> Counts | None:
    """The counts that a loss divides by; None where it has none that depend on inputs."""
    known, varying, makers = _known(graph)
    found: list[tuple[LayerCall, Counted]] = []
    for call in graph.calls:
        counted = _of_call(graph, call, known, varying)
        if counted is not None:
            found.append((call, counted))
    if not found:
        return None
    single = len(found) == 1 and found[0][0] is _last(graph)
    needed = {v for _, c in found for v in (c[0], c[2]) if v is not None}
    calls: list[int] = []
    for index in reversed(makers):
        if needed.intersection(graph.calls[index].results):
            needed.update(graph.calls[index].reads)
            calls.append(index)
    return Counts(graph, tuple(reversed(calls)), tuple(c for _, c in found), single)


def _known(graph: CallGraph) -> tuple[set[int], set[int], list[int]]:
    """Values that follow without parameters, those of them by inputs, and calls that make them."""
    sources = (INPUT, CONSTANT, BUFFER)
    known = {i for i, v in enumerate(graph.values) if v.source in sources}
    varying = {i for i in known if graph.values[i].source == INPUT}
    makers = []
    for index, call in enumerate(graph.calls):
        if known.issuperset(call.reads) and index not in graph.random and not call.changes:
            known.update(call.results)
            makers.append(index)
            varying.update(call.results if varying.intersection(call.reads) else ())
    return known, varying, makers


def _of_call(
    graph: CallGraph, call: LayerCall, known: set[int], varying: set[int]
) -> Counted | None:
    """What a call counts, if it is a mean over counts."""
    if known.issuperset(call.reads):
        return None
    if call.kind in DIVIDED:
        divisor = call.argument(1, "other")
        if not isinstance(divisor, CallRef) or divisor.value not in varying:
            return None
        if graph.values[divisor.value].shape:
            return None
        return _added(graph, divisor.value), None, None
    if call.kind not in COUNTED or call.argument(6, "reduction", "mean") != "mean":
        return None
    target, weight = call.argument(1, "target"), call.argument(2, "weight")
    if graph.values[target.value].dtype.is_floating_point or target.value not in varying:
        return None
    ignored = int(call.argument(4, "ignore_index", IGNORED))
    return target.value, ignored, None if weight is None else weight.value


def _added(graph: CallGraph, divisor: int) -> int:
    """The count behind a divisor, which adds up over the shares of a batch.

    Raises:
        OtherLossError: the divisor is something else, such as a count plus one.
    """
    made, value = {v: call for call in graph.calls for v in call.results}, divisor
    while (call := made.get(value)) is not None and call.kind not in ADDED:
        if call.kind not in (*LINEAR, *BOUNDED, "long", "int", "detach", "item") or not call.reads:
            raise OtherLossError(
                f"{graph.name}: the loss divides by what {call.name!r} makes, which does not add "
                "up over micro-batches and replicas; divide by a sum alone, or leave it whole "
                "(one micro-batch, one replica)"
            )
        value = call.reads[0]
    return value


def _last(graph: CallGraph) -> LayerCall | None:
    """The call that makes the loss, but for numbers that it is multiplied with, and sums of one."""
    made = {v: call for call in graph.calls for v in call.results}
    refs = [x.value for x in pytree.tree_leaves(graph.output) if isinstance(x, CallRef)]
    call = made.get(refs[0]) if len(refs) == 1 else None
    while call is not None and len(call.reads) == 1:
        alone = call.kind in ("sum", "mean") and not graph.values[call.reads[0]].shape
        if call.kind not in LINEAR and not alone:
            break
        call = made.get(call.reads[0])
    return call
