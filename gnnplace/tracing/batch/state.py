"""What a value of a step becomes when the batch is cut, and an op with its operands' states.

Let a batch be cut into M shares and let v be a value of the step. Of the whole batch it is V, of
share k it is v_k. The states say how V follows from the v_k:

* same: V = v_k for all k (a parameter, a constant).
* split: V = scale * concatenation of the v_k along one axis.
* sum: V = scale * sum of the v_k. A mean over examples is one with scale 1/M.
* position: V counts the examples, 0 to B - 1, along one axis, and v_k counts those of a share.
* mixed: none of these; `culprit` is the op that mixes examples.
* unknown: it may be any of these; `culprit` is an op without a rule.

A value is also *known* if it follows from the batch alone, without parameters and random numbers:
then V can be computed before the step and be given to every share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isclose
from typing import Any

import torch
from torch import fx

from gnnplace.torch_names import OpOverload
from gnnplace.tracing.guards import is_static

SAME, SPLIT, SUM, POSITION = "same", "split", "sum", "position"
MIXED, UNKNOWN = "mixed", "unknown"
UNRULED = "there is no rule for it"


@dataclass(frozen=True)
class State:
    """How a value of the whole batch follows from those of its shares.

    Attributes:
        kind: One of the states above.
        dim: Axis of a split value or of positions.
        outer: Elements of that axis before the batch: an axis of 2 views x B examples has 2.
        scale: The scale of a split value or of a sum.
        known: It follows from the batch alone.
        culprit: The op that mixes examples, or that has no rule.
        why: What that op does, in a few words.
    """

    kind: str
    dim: int = 0
    outer: int = 1
    scale: float = 1.0
    known: bool = False
    culprit: fx.Node | None = field(default=None, compare=False)
    why: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether nothing can be said of the shares."""
        return self.kind in (MIXED, UNKNOWN)

    def scaled(self, factor: float) -> State:
        """The state of this value times `factor` in the whole batch alone."""
        return replace(self, scale=self.scale * factor)

    def at(self, dim: int, outer: int | None = None) -> State:
        """The same along another axis."""
        return replace(self, dim=dim, outer=self.outer if outer is None else outer)


def same(known: bool = False) -> State:
    """A value that every share has alike."""
    return State(SAME, known=known)


def is_one(scale: float) -> bool:
    """Whether a scale is 1 up to rounding."""
    return isclose(scale, 1.0, rel_tol=1e-9)


class MixesError(Exception):
    """The op makes a value that is none of its shares' (says why, in a few words)."""


class UndecidedError(Exception):
    """No rule covers the op with these operands (says why, in a few words)."""


class ChangeError(Exception):
    """An operand must be another one: the whole batch's value, or itself times a factor.

    Attributes:
        operand: The node of the operand.
        factor: What it is multiplied by; None: the whole batch's value takes its place.
    """

    def __init__(self, operand: fx.Node, factor: float | None) -> None:
        super().__init__(operand.name)
        self.operand, self.factor = operand, factor


class Op:
    """An op in the graph of a share, beside the same op in the graph of the whole batch.

    Args:
        node: In the share's graph.
        twin: In the whole batch's graph.
        states: The states of the share's nodes before it.
        count: The number of shares, M.
        known: Operands that are wholly given; see `ChangeError`.
    """

    def __init__(
        self, node: fx.Node, twin: fx.Node, states: Mapping[fx.Node, Any], count: int
    ) -> None:
        self.node, self.twin, self.count = node, twin, count
        self._states = states
        target = node.target
        self.schema = target._schema if isinstance(target, OpOverload) else None
        self.name = op_name(target)
        self.args, self.whole_args = self._bound(node), self._bound(twin)

    def _bound(self, node: fx.Node) -> dict[str, Any]:
        if self.schema is None:
            return {str(i): a for i, a in enumerate(node.args)} | dict(node.kwargs)
        names = [a.name for a in self.schema.arguments]
        found = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
        return {a.name: found.get(a.name, a.default_value) for a in self.schema.arguments}

    def get(self, *names: str, default: Any = None) -> Any:
        """The argument of the first of these names that the op has."""
        return next((self.args[name] for name in names if name in self.args), default)

    @property
    def operands(self) -> list[fx.Node]:
        """Tensors that it reads, each once."""
        return [n for n in self.node.all_input_nodes if not is_static(n)]

    def state(self, value: Any) -> State:
        """State of an argument; whatever is no tensor is the same in all shares."""
        if not isinstance(value, fx.Node):
            return same(known=True)
        found = self._states[value]
        return found if isinstance(found, State) else same()

    @property
    def known(self) -> bool:
        """Whether all that it reads is known."""
        return all(self.state(n).known for n in self.operands)

    @cached_property
    def shapes(self) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Shapes of its results in a share and in the whole batch."""
        return list(zip(result_shapes(self.node), result_shapes(self.twin), strict=False))

    def split(self, dim: int, outer: int = 1, scale: float = 1.0) -> State:
        """A result that is split along an axis."""
        return State(SPLIT, dim, outer, scale, self.known)

    def plain(self, value: Any) -> State:
        """State of an operand of an op that is not linear in it: same, or split with scale 1.

        Raises:
            ChangeError: it must be changed first.
            MixesError: it is a sum over examples.
        """
        state = self.state(value)
        if state.kind in (SUM, POSITION):
            self.give(value, f"it is not linear in {place_word(state)}")
        if state.kind == SPLIT and not is_one(state.scale):
            raise ChangeError(value, state.scale)
        return state

    def give(self, value: fx.Node, why: str) -> None:
        """Ask for the whole batch's value of an operand.

        Raises:
            ChangeError: it is known and has no batch axis.
            MixesError: it is neither split nor alike in all shares.
        """
        if self.state(value).known and shape_of(value) == shape_of(self.twin_of(value)):
            raise ChangeError(value, None)
        raise MixesError(why)

    def twin_of(self, value: fx.Node) -> fx.Node:
        """An operand of this op in the graph of the whole batch."""
        pairs = zip(flat_nodes(self.node), flat_nodes(self.twin), strict=True)
        return next(other for mine, other in pairs if mine is value)


def place_word(state: State) -> str:
    """What a state is, for people."""
    return "a sum over the examples" if state.kind == SUM else "the positions of the examples"


def flat_nodes(node: fx.Node) -> list[fx.Node]:
    """All nodes among a node's arguments, in order, repeated as they are."""
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), found.append)
    return found


def op_name(target: Any) -> str:
    """Name of an op without its library, its overload and the underscore of a change in place."""
    if not isinstance(target, OpOverload):
        return str(getattr(target, "__name__", target))
    name = target._schema.name.partition("::")[2]
    return name if name.startswith("__") else name.rstrip("_")


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Shape of a node's tensor; empty of anything else."""
    value = node.meta.get("val")
    return tuple(int(s) for s in value.shape) if isinstance(value, torch.Tensor) else ()


def result_shapes(node: fx.Node) -> list[tuple[int, ...]]:
    """Shapes of the tensors that a node makes."""
    value = node.meta.get("val")
    items = value if isinstance(value, list | tuple) else [value]
    tensors = (item if isinstance(item, torch.Tensor) else None for item in items)
    return [() if item is None else tuple(int(s) for s in item.shape) for item in tensors]


def statics(value: Any) -> Iterator[Any]:
    """All arguments that are no nodes, in order."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from statics(item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from statics(item)
    elif not isinstance(value, fx.Node):
        yield value
