"""Weights of micro-batches whose losses are means over counts, such as of words without padding.

Let micro-batch k of all M have the loss l_k = s_k / n_k, n_k a count that follows from its inputs
alone. The loss of the batch is (sum of s_k) / N with N = sum of n_k, not the mean of the l_k; it is
the mean of w_k l_k with w_k = M n_k / N, and so are its gradients. If all counts are equal, the
weights are exactly 1.

This corrects a loss if all of its terms are such means, possibly scaled: `cross_entropy` or
`nll_loss` of classes, or a quotient whose divisor is a sum that depends on inputs alone. Terms with
different counts must split them over the micro-batches in the same shares. In any other loss (a
mean over counts plus one over examples) all counts must be equal. `weights` checks this at every
step.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from gnnplace.errors import InputError, OtherLossError
from gnnplace.torch_names import pytree
from gnnplace.tracing import BUFFER, CONSTANT, INPUT, CallGraph, CallRef, LayerCall

COUNTED = ("cross_entropy", "nll_loss")
WEIGHED = {"mse_loss": 4, "l1_loss": 4}
"""Losses whose mean is one over weights, where they have some, and where `reduction` stands."""
DIVIDED = ("div", "truediv")
ADDED = ("sum", "nansum", "count_nonzero", "mean")
BOUNDED = ("clamp", "clip", "clamp_min", "max", "maximum")
"""How a count ends, and what a count that is not zero passes unchanged."""
LINEAR = ("mul", "neg", "to", "float", "double", "clone", "contiguous", *DIVIDED)
KEPT = (
    "neg",
    "to",
    "float",
    "double",
    "clone",
    "contiguous",
    "sum",
    "mean",
    "view",
    "reshape",
    "flatten",
    "squeeze",
    "getitem",
    "stack",
    "add",
    "iadd",
    "radd",
    "sub",
)
FACTORS = ("mul", "imul", "rmul", "dot")
"""Calls that make a mean over counts of such means alone, and of one such factor."""
IGNORED = -100
Counted = tuple[int, int | None, int | None]
"""A count: value of the targets, what is ignored, value of class weights; or a divisor alone, or
weights twice, with None between."""


@dataclass(frozen=True, eq=False)
class Counts:
    """The counts that the means of a loss divide by.

    Attributes:
        graph: The model's calls on one micro-batch.
        calls: Calls that make what is counted, in order.
        counted: The counts.
        means: Whether all terms of the loss are means over one of them, so that weights repair it.
    """

    graph: CallGraph
    calls: tuple[int, ...]
    counted: tuple[Counted, ...]
    means: bool

    @torch.no_grad()
    def of(
        self, inputs: Sequence[torch.Tensor], buffers: Mapping[str, torch.Tensor]
    ) -> torch.Tensor:
        """Return the counts of a micro-batch, in double precision. [counts]

        Args:
            inputs: The tensors of the micro-batch, in the order in which the graph numbers them.
            buffers: The model's buffers by name.
        """
        values: dict[int, torch.Tensor] = dict(self.graph.constants)
        for i, value in enumerate(self.graph.values):
            if value.source == INPUT:
                values[i] = inputs[int(value.name)]
            elif value.source == BUFFER:
                values[i] = buffers[value.name]
        for index in self.calls:
            call = self.graph.calls[index]
            if call.inplace:
                values[call.reads[0]] = values[call.reads[0]].clone()
            values.update(zip(call.results, call.made(values.__getitem__), strict=True))
        return torch.stack([_count(values, c).double().sum() for c in self.counted])

    def weights(self, table: torch.Tensor) -> list[float]:
        """Return the weight of every micro-batch of every replica. [micro-batches of all replicas]

        Args:
            table: Counts of all of them. [micro-batches of all replicas, counts]

        Raises:
            InputError: Counts differ and no weight repairs the loss, or a micro-batch counts
                nothing.
        """
        if bool((table == table[0]).all()):
            return [1.0] * len(table)
        is_given = [_is_input(self.graph, counted) for counted in self.counted]
        shared = table[:, is_given]
        computed = table[:, [not one for one in is_given]]
        if self.means and bool((computed == 0).any()):
            raise InputError(
                "step: a micro-batch counts nothing (all its targets are ignored), and its mean is "
                "no number; give every micro-batch targets"
            )
        parts = computed * len(computed) / computed.sum(0)
        is_uneven = bool((shared != shared[0]).any()) or bool(
            ((parts - parts[:, :1]).abs() > 1e-12).any()
        )
        if is_uneven or not self.means:
            raise InputError(
                "step: the loss has means over counts that differ between micro-batches or "
                "replicas, and is no single mean that weights could repair; give equal counts, or "
                "plan with one micro-batch and one replica"
            )
        return parts[:, 0].tolist()


def _count(values: Mapping[int, torch.Tensor], counted: Counted) -> torch.Tensor:
    target = values[counted[0]]
    ignored = counted[1]
    weight = counted[2]
    if ignored is None:
        return target.reshape(-1)[: 1 if weight is None else None]
    is_counted = target != ignored
    if weight is None:
        return is_counted
    return values[weight][target.clamp(min=0)] * is_counted


def find_counts(graph: CallGraph) -> Counts | None:
    """Return the counts that a loss divides by; None if none of them depends on inputs.

    Raises:
        OtherLossError: A divisor is no count that adds up over the shares of a batch.
    """
    known_values, varying, makers = _find_known_values(graph)
    found: dict[int, Counted] = {}
    for index, call in enumerate(graph.calls):
        counted = _find_call_count(graph, call, known_values, varying)
        if counted is not None:
            found[index] = counted
    if not found:
        return None
    counts = tuple(dict.fromkeys(found.values()))
    needed = {v for c in counts for v in (c[0], c[2]) if v is not None}
    calls: list[int] = []
    for index in reversed(makers):
        if needed.intersection(graph.calls[index].results):
            needed.update(graph.calls[index].reads)
            calls.append(index)
    computed = [i for i, c in found.items() if not _is_input(graph, c)]
    return Counts(
        graph, tuple(reversed(calls)), counts, _has_mean_factors(graph, computed)
    )


def _is_input(graph: CallGraph, counted: Counted) -> bool:
    """Return whether a divisor is an input itself, such as a temperature, which all shares have."""
    return counted[1:] == (None, None) and graph.values[counted[0]].source == INPUT


def _has_mean_factors(graph: CallGraph, counted: Collection[int]) -> bool:
    """Return whether every term of the loss has one factor that is a mean over a count.

    The loss is then of degree one in what the calls `counted` divide by, and has no other term.

    Args:
        graph: The model's calls.
        counted: Indices of calls that are means over counts.
    """
    means: set[int] = set()
    for index, call in enumerate(graph.calls):
        within = [v in means for v in call.reads]
        if index not in counted and not any(within):
            continue
        means.update(call.results)
        if index in counted:
            linear = not any(within)
        elif call.kind in (*FACTORS, *DIVIDED):
            linear = sum(within) == 1 and (call.kind in FACTORS or within[0])
        else:
            if call.kind in ("add", "iadd", "radd", "sub"):
                numbers = call.args
            else:
                numbers = ()
            linear = call.kind in KEPT and all(within)
            linear &= not any(isinstance(x, int | float) and x != 0 for x in numbers)
        if not linear:
            return False
    refs = [x.value for x in pytree.tree_leaves(graph.output) if isinstance(x, CallRef)]
    return means.issuperset(refs)


def _find_known_values(graph: CallGraph) -> tuple[set[int], set[int], list[int]]:
    """Return the values known without parameters, those of them by inputs, and their calls."""
    sources = (INPUT, CONSTANT, BUFFER)
    known_values = {i for i, v in enumerate(graph.values) if v.source in sources}
    varying = {i for i in known_values if graph.values[i].source == INPUT}
    makers = []
    for index, call in enumerate(graph.calls):
        is_local = call.inplace or not call.changes
        if (
            known_values.issuperset(call.reads)
            and index not in graph.random
            and is_local
        ):
            known_values.update(call.results)
            makers.append(index)
            varying.update(call.results if varying.intersection(call.reads) else ())
    return known_values, varying, makers


def _find_call_count(
    graph: CallGraph, call: LayerCall, known: set[int], varying: set[int]
) -> Counted | None:
    """Return what a call counts if it is a mean over counts; otherwise None."""
    alone = known.issuperset(call.reads)  # of inputs
    if call.kind in DIVIDED:
        divisor = call.argument(1, "other")
        if not isinstance(divisor, CallRef) or divisor.value not in varying:
            return None
        if graph.values[divisor.value].shape:
            return None
        try:
            return _find_added_count(graph, divisor.value), None, None
        except OtherLossError:
            if not alone:
                raise
            return None
    if not alone and call.kind in WEIGHED and len(call.reads) > 2:
        weight = call.reads[2]
        mean = call.argument(WEIGHED[call.kind], "reduction", "mean") == "mean"
        if mean and weight in varying:
            return (weight, None, weight)
        return None
    if (
        alone
        or call.kind not in COUNTED
        or call.argument(6, "reduction", "mean") != "mean"
    ):
        return None
    target = call.argument(1, "target")
    weight = call.argument(2, "weight")
    if (
        graph.values[target.value].dtype.is_floating_point
        or target.value not in varying
    ):
        return None
    ignored = int(call.argument(4, "ignore_index", IGNORED))
    return target.value, ignored, None if weight is None else weight.value


def _find_added_count(graph: CallGraph, divisor: int) -> int:
    """Return the count behind a divisor, which adds up over the shares of a batch.

    Raises:
        OtherLossError: The divisor is something else, such as a count plus one.
    """
    makers = {v: call for call in graph.calls for v in call.results}
    value = divisor
    while (call := makers.get(value)) is not None and call.kind not in ADDED:
        if (
            call.kind not in (*LINEAR, *BOUNDED, "long", "int", "detach", "item")
            or not call.reads
        ):
            raise OtherLossError(
                f"{graph.name}: the loss divides by what {call.name!r} makes, which does not add "
                "up over micro-batches and replicas; divide by a sum alone, or leave it whole "
                "(one micro-batch, one replica)"
            )
        value = call.reads[0]
    return value
