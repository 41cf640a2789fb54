"""Assemble a program: inputs, ops, gradients, buffer copies and optimizer updates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch
from torch import fx

from gnnplace.errors import CaptureError
from gnnplace.tracing.aten.recompute import order_recomputed
from gnnplace.tracing.aten.traced import Slot, Traced
from gnnplace.tracing.aten.translate import Translator
from gnnplace.tracing.program import (
    BACKWARD,
    FORWARD,
    UPDATE,
    Optimizer,
    Program,
    ProgramInput,
    ProgramOp,
    Ref,
    ValueInfo,
    alias_roots,
    operations,
    value_info,
)
from gnnplace.tracing.step import check_scalar

TANGENT = "tangent"
PHASES = (FORWARD, BACKWARD, UPDATE)


class Builder:
    """The parts of a program, collected node by node.

    Args:
        traced: The graph that torch traced, and its ends.
        sources: A name for each user input.
        examples: The user's example inputs, as tensors.
    """

    def __init__(
        self,
        traced: Traced,
        sources: tuple[str, ...],
        examples: tuple[torch.Tensor, ...],
    ) -> None:
        self._traced = traced
        self._sources = sources
        self._examples = examples
        self._inputs: dict[str, ProgramInput] = {}
        self._initial: dict[str, torch.Tensor] = {}
        self._owner: dict[int, str] = {}
        self._gradients: dict[str, list[str]] = {}
        self._buffers: dict[str, str] = {}
        self._outputs: list[str] = []
        self._translator = Translator({})
        for node in traced.graph.nodes:
            self._add_node(node)
        self._sparse: set[str] = set()
        for slot, node in traced.outputs:
            if slot.kind == "gradient" and node.meta["val"].is_sparse:
                self._sparse.add(self._translator.value_name(node))
            if slot.kind != "ignored":
                self._add_output(slot, self._translator.value_name(node))

    @property
    def _ops(self) -> list[ProgramOp]:
        return self._translator.ops

    @property
    def _values(self) -> dict[str, ValueInfo]:
        return self._translator.values

    def _add_node(self, node: fx.Node) -> None:
        """Add what a node of the graph is: an input, a constant or an op."""
        if node.op == "placeholder":
            slot = self._traced.inputs[node.name]
            value = node.meta.get("val")
            if not isinstance(value, torch.Tensor):
                return
            if slot.kind == "tangent":
                self._translator.rename(node.name, self._add_tangent(value))
            else:
                self._translator.rename(node.name, self._add_slot(slot, value))
        elif node.op == "get_attr":
            owner = self._traced.graph.owning_module
            constant = getattr(owner, str(node.target), None)
            if isinstance(constant, torch.Tensor):
                self._translator.rename(
                    node.name, self._add_input("constant", str(node.target), constant)
                )
        elif node.op == "call_function":
            self._translator.add(node)

    def _add_slot(self, slot: Slot, value: torch.Tensor) -> str:
        """Add the input that a placeholder stands for; return its value's name."""
        if slot.kind == "input":
            position = int(slot.name)
            return self._add_input(
                "input", self._sources[position], self._examples[position]
            )
        tensor = self._traced.tensors.get(slot.name, value)
        name = slot.name.removeprefix("model.")
        if id(tensor) in self._owner:
            return self._owner[id(tensor)]
        return self._add_input(slot.kind, name, tensor)

    def _add_input(self, kind: str, source: str, tensor: torch.Tensor) -> str:
        """Add a value that exists before the first op; return its name.

        Raises:
            CaptureError: another tensor has the name already.
        """
        name = f"{kind}.{source}"
        if self._owner.get(id(tensor)) == name:
            return name  # a constant that the graph names twice
        if name in self._inputs:
            raise CaptureError(
                f"the model and its loss both have a {kind} {source!r}; rename one"
            )
        info = value_info(tensor)
        self._inputs[name] = ProgramInput(kind, source, info)
        self._values[name] = info
        self._initial[name] = tensor.detach()
        if kind != "input":
            self._owner[id(tensor)] = name
        return name

    def _add_tangent(self, value: torch.Tensor) -> str:
        """Add the gradient of the loss with respect to itself, a scalar one; return its name."""
        check_scalar(value)
        options = {"dtype": value.dtype, "device": torch.device("cpu")}
        target = torch.ops.aten.full.default
        args = (list(value.shape), 1.0)
        op = ProgramOp(TANGENT, target, args, options, (TANGENT,), BACKWARD, None)
        self._ops.append(op)
        self._values[TANGENT] = value_info(value)
        return TANGENT

    def _add_output(self, slot: Slot, value: str) -> None:
        """Note what an output of the graph is: a gradient, a new buffer or a result."""
        if slot.kind == "gradient":
            if slot.name:
                parameter = self._get_value(slot.name)
                self._gradients.setdefault(parameter, []).append(value)
        elif slot.kind == "buffer":
            self._add_copy(self._get_value(slot.name), value)
        else:
            self._outputs.append(value)

    def _get_value(self, qualified: str) -> str:
        """Return the value of a parameter or buffer by its qualified name in the step."""
        return self._owner[id(self._traced.tensors[qualified])]

    def _add_copy(self, buffer: str, value: str) -> None:
        """Add the op that stores the new value of a buffer."""
        source = self._inputs[buffer].source
        self._buffers[source] = value
        module = source.rpartition(".")[0] or None
        args = (Ref(buffer), Ref(value))
        name = f"copy.{source}"
        late = any(op.phase == BACKWARD for op in self._ops if value in op.results)
        phase = BACKWARD if late else FORWARD
        self._ops.append(
            ProgramOp(name, operations.copy_buffer, args, {}, (), phase, module)
        )

    def add_updates(self, method: Optimizer) -> None:
        """Add the optimizer's state and an update op for every parameter with a gradient."""
        for parameter, gradients in self._gradients.items():
            self._gradients[parameter] = [self._sum(parameter, gradients)]
            self._add_update(parameter, method)

    def _sum(self, parameter: str, gradients: list[str]) -> str:
        """Add up the gradients of a parameter that has several; return the value of the sum."""
        total = gradients[0]
        source = self._inputs[parameter].source
        for i, gradient in enumerate(gradients[1:]):
            name = f"tied.{source}.{i}"
            args = (Ref(total), Ref(gradient))
            target = torch.ops.aten.add.Tensor
            self._ops.append(ProgramOp(name, target, args, {}, (name,), BACKWARD, None))
            self._values[name] = self._values[total]
            total = name
        return total

    def _add_update(self, parameter: str, method: Optimizer) -> None:
        """Add an optimizer's state and update of a parameter.

        Raises:
            CaptureError: its gradient is sparse, and the optimizer does not take that.
        """
        source = self._inputs[parameter].source
        if (
            not self._sparse.isdisjoint(self._gradients[parameter])
            and not method.takes_sparse()
        ):
            raise CaptureError(
                f"parameter {source!r} has a sparse gradient, which {method.name} with these "
                "constants does not take, as in PyTorch; use sgd without decay, or sparse=False"
            )
        names = [
            self._add_input("optimizer", f"{source}:{label}", tensor)
            for label, tensor in method.states(self._initial[parameter], source).items()
        ]
        gradients = [Ref(name) for name in self._gradients[parameter]]
        state = [Ref(name) for name in names]
        args = (Ref(parameter), gradients, *state, *method.constants)
        name = f"update.{source}"
        module = source.rpartition(".")[0] or None
        self._ops.append(ProgramOp(name, method.update, args, {}, (), UPDATE, module))

    def program(self, name: str, *, fake: bool, forward_only: bool) -> Program:
        """Return the program, without dead code and with the order of in-place changes."""
        if forward_only:
            losses = []
        else:
            losses = self._outputs[:1]
        gradients = {self._inputs[p].source: g[0] for p, g in self._gradients.items()}
        # What leads neither to the loss or an output nor to a gradient is dead.
        needed = {*(losses or self._outputs), *gradients.values()}
        ops = order_recomputed(live(self._ops, needed), self._translator.regions)
        ops = with_order(sorted(ops, key=lambda op: PHASES.index(op.phase)))
        read = {r for op in ops for r in op.reads} | needed
        inputs = {
            n: i for n, i in self._inputs.items() if n in read or i.kind == "parameter"
        }
        results = {r for op in ops for r in op.results}
        return Program(
            name=name,
            ops=tuple(ops),
            inputs=inputs,
            values={
                n: v for n, v in self._values.items() if n in inputs or n in results
            },
            loss=None if forward_only else self._outputs[0],
            gradients=gradients,
            buffers=self._buffers,
            initial={} if fake else {n: self._initial[n] for n in inputs},
            outputs=tuple(self._outputs) if forward_only else (),
        )


def live(ops: Iterable[ProgramOp], needed: set[str]) -> list[ProgramOp]:
    """Return the ops that lead to a needed value or change an input in place."""
    needed = set(needed)
    live_ops = []
    for op in reversed(list(ops)):
        if not op.results or not needed.isdisjoint(op.results):
            live_ops.append(op)
            needed.update(op.reads)
    return live_ops[::-1]


def with_order(ops: list[ProgramOp]) -> list[ProgramOp]:
    """Fill in `after`: an in-place change comes after all that read what it changes."""
    roots = alias_roots(ops)
    readers: dict[str, dict[str, None]] = {}
    for op in ops:
        for read in op.reads:
            for root in roots.get(read, (read,)):
                readers.setdefault(root, {})[op.name] = None
    return [_after(op, readers) if not op.results else op for op in ops]


def _after(op: ProgramOp, readers: Mapping[str, Mapping[str, None]]) -> ProgramOp:
    """Return an op that changes a value in place, `after` all that read it."""
    changed = op.args[0].name
    return replace(
        op, after=tuple(name for name in readers[changed] if name != op.name)
    )
