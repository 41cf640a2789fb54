"""Translate a traced ATen graph into the ops of a program."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from gnnplace.errors import CaptureError
from gnnplace.torch_names import OpOverload, pytree
from gnnplace.tracing.aten.recompute import Draws, Region, find_region
from gnnplace.tracing.guards import (
    OWN_GENERATOR,
    describe_number_dependence,
    is_static,
    node_place,
)
from gnnplace.tracing.program import (
    BACKWARD,
    FORWARD,
    PORTABLE,
    ProgramOp,
    Ref,
    ValueInfo,
    operations,
    value_info,
)
from gnnplace.tracing.signatures import is_random, is_view

ALIASES = (
    torch.ops.aten.detach.default,
    torch.ops.aten.alias.default,
    torch.ops.aten.lift_fresh_copy.default,
    torch.ops.aten.lift_fresh.default,
)


class Translator:
    """A translator of nodes in order; collects `ops`, `values` and `regions` of ops as it goes.

    Args:
        renamed: Value name of each placeholder's node name.
    """

    def __init__(self, renamed: Mapping[str, str]) -> None:
        self.ops: list[ProgramOp] = []
        self.values: dict[str, ValueInfo] = {}
        self.regions: dict[str, Region] = {}
        self._names: dict[str, str] = dict(renamed)
        self._draws = Draws()

    def value_name(self, node: fx.Node) -> str:
        """Return the name of the value that a translated node stands for."""
        return self._names[node.name]

    def rename(self, node: str, value: str) -> None:
        """Let the node of this name stand for a value."""
        self._names[node] = value

    def add(self, node: fx.Node) -> None:
        """Translate one `call_function` node.

        Raises:
            CaptureError: an op that is not a plain ATen overload.
        """
        if node.target is operator.getitem:
            self._add_element(node)
        elif node.target in ALIASES:
            self._names[node.name] = self.value_name(node.all_input_nodes[0])
        elif is_static(node):
            return
        elif isinstance(node.target, OpOverload):
            self.ops.append(self._op(node, node.target))
            if region := find_region(node.meta):
                self.regions[node.name] = region
        elif node.users:
            remedy = _branch(node)
            raise CaptureError(
                f"capture failed at op {node.name!r}{node_place(node)}: "
                f"{node.target} is not a plain ATen op{remedy}"
            )

    def _add_element(self, node: fx.Node) -> None:
        source, index = node.args
        assert isinstance(source, fx.Node)
        self._names[node.name] = f"{source.name}.{index}"

    def _op(self, node: fx.Node, target: OpOverload) -> ProgramOp:
        """Return the op of a node, with its function where ATen's own will not do."""
        args: tuple[Any, ...] = tuple(self._argument(item, node) for item in node.args)
        kwargs = {key: self._argument(item, node) for key, item in node.kwargs.items()}
        function: Callable[..., Any] = PORTABLE.get(target, target)
        if is_random(target, node.args, node.kwargs):
            function = operations.seeded
            args = (self._draws.name(node), str(target), *args)
        elif isinstance(node.meta["val"], list | tuple) and len(node.meta["val"]) == 1:
            function = operations.only
            args = (str(target), *args)
        # Autograd tags the nodes of its passes.
        is_backward = node.meta.get("partitioner_tag") == "is_backward"
        return ProgramOp(
            name=node.name,
            target=function,
            args=args,
            kwargs=kwargs,
            results=self._results(node),
            phase=BACKWARD if is_backward else FORWARD,
            module=find_module_path(node),
            view=is_view(target),
            is_outside_modules=not find_module_stack(node),
        )

    def _argument(self, value: object, reader: fx.Node) -> object:
        """Return an argument with `Ref`s in the place of nodes.

        Args:
            value: The argument.
            reader: The node that it is an argument of.

        Raises:
            CaptureError: a node that is no tensor.
        """
        if isinstance(value, fx.Node):
            if value.name not in self._names:
                place = node_place(value) or node_place(reader)
                raise CaptureError(f"capture failed{place}: {_no_tensor(value)}")
            return Ref(self.value_name(value))
        if isinstance(value, list | tuple):
            return type(value)(self._argument(item, reader) for item in value)
        if isinstance(value, dict):
            return {key: self._argument(item, reader) for key, item in value.items()}
        return value

    def _results(self, node: fx.Node) -> tuple[str | None, ...]:
        """Return the values that a node makes, and note what they are.

        Raises:
            CaptureError: their shapes depend on numbers.
        """
        value = node.meta.get("val")
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and set(map(type, leaf.shape)) - {int}:
                reason = describe_number_dependence(str(node.target), node_place(node))
                raise CaptureError(f"capture failed{node_place(node)}: {reason}")
        if isinstance(value, torch.Tensor):
            self._names[node.name] = node.name
            self.values[node.name] = value_info(value)
            return (node.name,)
        if not isinstance(value, list | tuple):
            return ()
        used = {user.args[1] for user in node.users if user.target is operator.getitem}
        return tuple(
            self._element(node, i, item, i in used) for i, item in enumerate(value)
        )

    def _element(
        self, node: fx.Node, index: int, value: object, used: bool
    ) -> str | None:
        """Return the value of one element of a tuple; None if nobody reads it."""
        if not used or not isinstance(value, torch.Tensor):
            return None
        name = f"{node.name}.{index}"
        self.values[name] = value_info(value)
        return name


def _branch(node: fx.Node) -> str:
    """Return what to write instead of an op that chooses between branches."""
    if "cond" not in str(node.target):
        return ""
    return "; compute both branches and choose with torch.where(condition, a, b)"


def _no_tensor(node: fx.Node) -> str:
    """Return the error of an argument that is no tensor: a number that was read, or an object."""
    if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
        return describe_number_dependence(str(node.target), node_place(node))
    # Arguments beside tensors and numbers.
    if node.op in ("placeholder", "get_attr"):
        return OWN_GENERATOR
    return f"{node.name!r} is no tensor; a captured step has no objects such as a torch.Generator"


def find_module_path(node: fx.Node) -> str | None:
    """Return the qualified name in the model of the module whose forward made the node."""
    stack = find_module_stack(node)
    if not stack:
        return None
    path = str(list(stack.values())[-1][0])
    return path.removeprefix("model").lstrip(".") or None


def find_module_stack(node: fx.Node) -> Mapping[str, Any]:
    """Return the modules that were being called when the node was made, the innermost last."""
    return (
        node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    )
