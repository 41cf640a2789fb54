"""Runs a rule on two parts in two threads, and compares with the whole call."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn
from torch.utils import _pytree as pytree

from gnnplace.tracing.calls.graph import CallRef, LayerCall, fill
from gnnplace.tracing.recording.recorder import OutputModule, record_calls
from gnnplace.tracing.rules.registry import find_rule, find_rules
from gnnplace.tracing.rules.rule import Case, make_case

PARTS = 2


class Body(nn.Module):
    """A function as a module, with its tensors as parameters where they are differentiable."""

    def __init__(self, function, tensors):
        super().__init__()
        self.function = function
        self.tensors = tensors

    def forward(self, *inputs):
        return self.function(*inputs)


class Exchange:
    """Adds up tensors of all parts."""

    def __init__(self):
        self.barrier = threading.Barrier(PARTS)
        self.given = [None] * PARTS

    def total(self, index, tensor):
        self.given[index] = tensor
        self.barrier.wait(10)
        total = sum(self.given)
        self.barrier.wait(10)
        return total

    def largest(self, index, tensor):
        self.given[index] = tensor.detach()
        self.barrier.wait(10)
        found = torch.stack(self.given).amax(0)
        self.barrier.wait(10)
        return found

    def sent(self, index, rows, counts):
        self.given[index] = rows.split(counts)
        self.barrier.wait(10)
        found = torch.cat([parts[index] for parts in self.given])
        self.barrier.wait(10)
        return found


class PartShare:
    def __init__(self, label, index, exchange):
        self.label, self.place, self.exchange = label, index, exchange

    def parts(self, label):
        return PARTS if label == self.label else 1

    def index(self, label):
        return self.place if label == self.label else 0

    def total(self, tensor, label):
        return (
            self.exchange.total(self.place, tensor) if label == self.label else tensor
        )

    def largest(self, tensor, label):
        return (
            self.exchange.largest(self.place, tensor) if label == self.label else tensor
        )

    def sent(self, rows, counts, received, label):
        found = self.exchange.sent(self.place, rows, counts)
        assert label == self.label
        assert len(found) == sum(received)
        return found


def traced(function, *tensors):
    """The only call of a function that takes tensors."""
    step = OutputModule(Body(function, tensors), None, tuple(tensors))
    graph = record_calls(step, "test")
    return graph, find_rules(graph)


def check(function, *tensors, expected=None, examples=None):
    """Every label of the last call: two parts of it make the whole, gradients too.

    Args:
        function: makes one call.
        tensors: what it takes.
        expected: the labels that there must be.
        examples: the first axis of the tensors is rows of so many examples.

    Returns:
        The labels.
    """
    graph, rules = traced(function, *tensors)
    assert len(graph.calls) == 1, [call.name for call in graph.calls]
    call, rule = graph.calls[0], rules[0]
    if examples is not None:
        shapes = ((v, graph.values[v].shape) for v in call.reads)
        rows = {
            v: examples
            for v, shape in shapes
            if shape and shape[0] == tensors[0].shape[0]
        }
        rule = find_rule(make_case(graph, call, rows))
    order = [int(graph.values[v].name) for v in call.reads]
    for label in rule.extents:
        _check_label(call, rule, [tensors[i] for i in order], label)
    if expected is not None:
        assert set(rule.extents) == set(expected)
    return set(rule.extents)


def check_call(function, *args, **kwargs):
    """`check` of one call as it stands, also of functions that no capture records, such as ATen's.

    Returns:
        Its kind and the labels.
    """
    tensors = [
        x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)
    ]
    numbers = itertools.count()
    given = pytree.tree_map_only(
        torch.Tensor, lambda _: CallRef(next(numbers)), (args, kwargs)
    )
    reads = tuple(range(len(tensors)))
    changes = function is torch.Tensor.__setitem__
    call = LayerCall(
        "test", function, *given, reads, (), "", changes=changes, inplace=True
    )
    whole = _results(call, None, list(map(_leaf, tensors)), None)
    results = tuple(tuple(made.shape) for made in whole)
    rule = find_rule(Case(call, tuple(tuple(t.shape) for t in tensors), results))
    for label, extent in rule.extents.items():
        assert extent % PARTS == 0, f"{call.kind}: no case for {label}"
        _check_label(call, rule, tensors, label)
    return call.kind, set(rule.extents)


def _check_label(call, rule, tensors, label):
    whole_in = [_leaf(t) for t in tensors]
    whole = _results(call, None, whole_in, None)
    exchange = Exchange()
    pairs = list(zip(tensors, rule.reads, strict=True))
    parts_in = [
        [_leaf(_part(t, axes, label, i)) for t, axes in pairs] for i in range(PARTS)
    ]
    with ThreadPoolExecutor(PARTS) as pool:
        jobs = [
            pool.submit(
                _results, call, rule, parts_in[i], PartShare(label, i, exchange)
            )
            for i in range(PARTS)
        ]
        parts = [job.result(20) for job in jobs]
    made = [
        _joined([p[k] for p in parts], axes, label)
        for k, axes in enumerate(rule.results)
    ]
    for got, want in zip(made, whole, strict=True):
        torch.testing.assert_close(
            got.detach(), want.detach(), msg=f"{call.name} {label}"
        )
    if any(t.requires_grad for t in whole):
        _check_gradients(rule, label, whole, made, whole_in, parts_in)


def _check_gradients(rule, label, whole, made, whole_in, parts_in):
    torch.manual_seed(1)
    weights = [torch.randn(t.shape, dtype=torch.float64).to(t.dtype) for t in whole]
    _backward(whole, weights)
    _backward(made, weights)
    for k, (leaf, axes) in enumerate(zip(whole_in, rule.reads, strict=True)):
        if leaf.requires_grad and leaf.grad is not None:
            got = [part[k].grad if part[k].grad is not None else torch.zeros_like(part[k])
                   for part in parts_in]  # fmt: skip
            torch.testing.assert_close(
                _joined(got, axes, label), leaf.grad, msg=f"gradient {k} along {label}"
            )


def _backward(results, weights):
    pairs = zip(results, weights, strict=True)
    sums = [(t * w).sum() for t, w in pairs if t.requires_grad]
    sum(x.real if x.is_complex() else x for x in sums).backward()


def _leaf(tensor):
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _part(tensor, axes, label, index):
    axis, groups = _where(axes, label)
    if axis is None:
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    pieces = [
        piece.chunk(PARTS, axis)[index] for piece in tensor.detach().chunk(groups, axis)
    ]
    return torch.cat(pieces, axis).requires_grad_(tensor.requires_grad)


def _where(axes, label):
    """The axis that a label cuts, and how many groups it has."""
    for axis, found in enumerate(axes):
        for one in (found or "").split("/"):
            base, _, groups = one.partition("|")
            if base == label:
                return axis, int(groups or 1)
    return None, 1


def _joined(parts, axes, label):
    axis, groups = _where(axes, label)
    if axis is None:
        return sum(parts)
    pieces = zip(*(part.chunk(groups, axis) for part in parts), strict=True)
    return torch.cat([piece for group in pieces for piece in group], axis)


def _results(call, rule, tensors, share):
    rest = iter(tensors)
    args = fill(call.args, lambda _: next(rest))
    kwargs = fill(call.kwargs, lambda _: next(rest))
    if rule is not None and rule.run is not None:
        result = rule.run(call, args, kwargs, share)
    else:
        result = call.function(*args, **kwargs)
    if call.changes:
        return [args[0]]
    return [
        leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)
    ]
