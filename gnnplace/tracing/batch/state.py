"""How a value of a step changes if the batch is cut, and an op with its operands' states.

Let a batch be cut into M shares and let v be a value of the step. Of the whole batch it is V, of
share k it is v_k. The states say how V follows from the v_k:

* same: V = v_k for all k (a parameter, a constant).
* split: V = scale * concatenation of the v_k along one axis.
* sum: V = scale * sum of the v_k. A mean over examples is one with scale 1/M.
* position: V counts the examples, 0 to B - 1, along one axis, and v_k counts those of a share.
* mixed: none of these; `culprit` is the op that mixes examples.
* unknown: it may be any of these; `culprit` is an op without a rule.

A value is *from the batch* if it follows from the batch alone, without parameters and random
numbers: then V can be computed before the step and be given to every share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isclose
from typing import Any, NoReturn

import torch
from torch import fx

from gnnplace.torch_names import OpOverload
from gnnplace.tracing.guards import is_static

SAME = "same"
SPLIT = "split"
SUM = "sum"
POSITION = "position"
MIXED = "mixed"
UNKNOWN = "unknown"
UNRULED = "there is no rule for it"


@dataclass(frozen=True)
class State:
    """The relation between a value of the whole batch and those of its shares.

    Attributes:
        kind: One of the states above.
        dim: Axis of a split value or of positions.
        outer: Elements of that axis before the batch: an axis of 2 views x B examples has 2.
        scale: The scale of a split value or of a sum.
        from_batch: Whether it follows from the batch alone.
        culprit: The op that mixes examples, or that has no rule.
        why: What that op does, in a few words.
    """

    kind: str
    dim: int = 0
    outer: int = 1
    scale: float = 1.0
    from_batch: bool = False
    culprit: fx.Node | None = field(default=None, compare=False)
    why: str = ""

    @property
    def is_failure(self) -> bool:
        """Return whether nothing can be said of the shares."""
        return self.kind in (MIXED, UNKNOWN)

    def scaled(self, factor: float) -> State:
        """Return the state of this value times `factor` in the whole batch alone."""
        return replace(self, scale=self.scale * factor)

    def at(self, dim: int, outer: int | None = None) -> State:
        """Return the same state along another axis."""
        return replace(self, dim=dim, outer=self.outer if outer is None else outer)


def same(from_batch: bool = False) -> State:
    """Return the state of a value that is the same in every share."""
    return State(SAME, from_batch=from_batch)


def is_one(scale: float) -> bool:
    """Return whether a scale is 1 up to rounding."""
    return isclose(scale, 1.0, rel_tol=1e-9)


States = State | tuple[State, ...]
"""Of the one result of an op, or of each of its results."""


def only_state(states: States) -> State:
    """Return the state of the one result of an op."""
    assert isinstance(states, State)
    return states


class MixesError(Exception):
    """The op makes a value that does not follow from those of the shares; the text says why."""


class UndecidedError(Exception):
    """No rule covers the op with these operands; the text says why."""


class ChangeError(Exception):
    """An operand must be changed: to the whole batch's value, or to itself times a factor.

    Attributes:
        operand: The node of the operand.
        factor: What it is multiplied by; None: the whole batch's value takes its place.
    """

    def __init__(self, operand: fx.Node, factor: float | None) -> None:
        super().__init__(operand.name)
        self.operand = operand
        self.factor = factor


class Op:
    """An op in the graph of a share, beside the same op in the graph of the whole batch.

    Args:
        node: The op in the share's graph.
        twin: The op in the whole batch's graph.
        states: The states of the share's nodes before it.
        count: The number of shares, M.
    """

    def __init__(
        self, node: fx.Node, twin: fx.Node, states: Mapping[fx.Node, States], count: int
    ) -> None:
        self.node, self.twin, self.count = node, twin, count
        self._states = states
        target = node.target
        self.schema = target._schema if isinstance(target, OpOverload) else None
        self.name = op_name(target)
        self.args, self.whole_args = self._bound(node), self._bound(twin)

    def _bound(self, node: fx.Node) -> dict[str, Any]:
        """Return arguments by name, defaults included; by position of an op without a schema."""
        if self.schema is None:
            return {str(i): a for i, a in enumerate(node.args)} | dict(node.kwargs)
        names = [a.name for a in self.schema.arguments]
        arguments = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        return {
            a.name: arguments.get(a.name, a.default_value)
            for a in self.schema.arguments
        }

    def get(self, *names: str, default: object = None) -> Any:
        """Return the argument of the first of these names that the op has."""
        return next((self.args[name] for name in names if name in self.args), default)

    @property
    def operands(self) -> list[fx.Node]:
        """Return the tensors that it reads, each once."""
        return [n for n in self.node.all_input_nodes if not is_static(n)]

    def state(self, value: object) -> State:
        """Return the state of an argument; one that is no tensor is the same in all shares."""
        if not isinstance(value, fx.Node):
            return same(from_batch=True)
        state = self._states[value]
        if isinstance(state, State):
            return state
        return same()

    @property
    def from_batch(self) -> bool:
        """Return whether all operands follow from the batch alone."""
        return all(self.state(n).from_batch for n in self.operands)

    @cached_property
    def shapes(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return the shapes of its results in a share and in the whole batch."""
        return list(
            zip(result_shapes(self.node), result_shapes(self.twin), strict=False)
        )

    def split(self, dim: int, outer: int = 1, scale: float = 1.0) -> State:
        """Return the state of a result that is split along an axis."""
        return State(SPLIT, dim, outer, scale, self.from_batch)

    def plain(self, value: Any) -> State:
        """Return the state of an operand that the op is not linear in: same, or split with scale 1.

        Raises:
            ChangeError: it must be changed first.
            MixesError: it is a sum over examples.
        """
        state = self.state(value)
        if state.kind in (SUM, POSITION):
            if state.kind == SUM:
                summed = "a sum over the examples"
            else:
                summed = "the positions of the examples"
            self.give(value, f"it is not linear in {summed}")
        if state.kind == SPLIT and not is_one(state.scale):
            raise ChangeError(value, state.scale)
        return state

    def give(self, value: fx.Node, why: str) -> NoReturn:
        """Ask for the whole batch's value of an operand.

        Raises:
            ChangeError: it follows from the batch alone and has no batch axis.
            MixesError: it cannot be given.
        """
        if self.state(value).from_batch and get_node_shape(value) == get_node_shape(
            self.find_twin(value)
        ):
            raise ChangeError(value, None)
        raise MixesError(why)

    def find_twin(self, value: fx.Node) -> fx.Node:
        """Return an operand of this op in the graph of the whole batch."""
        pairs = zip(flat_nodes(self.node), flat_nodes(self.twin), strict=True)
        return next(twin for operand, twin in pairs if operand is value)


def flat_nodes(node: fx.Node) -> list[fx.Node]:
    """Return all nodes among a node's arguments, in order, repeated as they are."""
    nodes: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), nodes.append)
    return nodes


def op_name(target: object) -> str:
    """Return the name of an op without library, overload and trailing underscores."""
    if not isinstance(target, OpOverload):
        return str(getattr(target, "__name__", target))
    name = target._schema.name.partition("::")[2]
    if name.startswith("__"):
        return name
    return name.rstrip("_")


def get_node_shape(node: fx.Node) -> tuple[int, ...]:
    """Return the shape of a node's tensor; empty if it has none."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return tuple(int(s) for s in value.shape)
    return ()


def result_shapes(node: fx.Node) -> list[tuple[int, ...]]:
    """Return the shapes of the tensors that a node makes."""
    value = node.meta.get("val")
    if isinstance(value, list | tuple):
        items = value
    else:
        items = [value]
    tensors = (item if isinstance(item, torch.Tensor) else None for item in items)
    return [
        () if item is None else tuple(int(s) for s in item.shape) for item in tensors
    ]


def statics(value: object) -> Iterator[Any]:
    """Yield all arguments that are no nodes, in order."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from statics(item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from statics(item)
    elif not isinstance(value, fx.Node):
        yield value
