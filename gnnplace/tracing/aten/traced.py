"""What torch traced: a graph, and its ends (slots) by torch's private descriptors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind, OutputKind

from gnnplace.errors import CaptureError
from gnnplace.torch_names import FakeTensor, descriptors

_INPUTS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
    InputKind.USER_INPUT: "input",
}


@dataclass(frozen=True)
class Slot:
    """The meaning of a placeholder or an output of a traced graph.

    Attributes:
        kind: For a placeholder "parameter", "buffer", "constant", "input" or "tangent"; for an
            output "loss", "output", "gradient", "buffer" or "ignored".
        name: Qualified name in `StepModule`; of a gradient its parameter's, of an input its
            position; empty of a tangent, a loss and an output.
    """

    kind: str
    name: str


@dataclass(frozen=True)
class Traced:
    """A functional ATen graph and the meaning of its ends.

    Attributes:
        graph: The graph of ATen ops.
        inputs: What each placeholder stands for, by its name.
        outputs: Slot and node of every output that exists.
        tensors: Parameters, buffers and constants by qualified name (fake of a fake model).
        notes: What was seen while it was traced that people should know, each in one line.
    """

    graph: fx.Graph
    inputs: dict[str, Slot]
    outputs: tuple[tuple[Slot, fx.Node], ...]
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def signature(traced: Traced, *, by_numbers: bool = False) -> list[Any]:
    """Return what a traced graph computes: equal for equal steps, whatever its nodes are called.

    Args:
        traced: The graph.
        by_numbers: Constants are told by what they hold, not by their names.
    """
    constant_index: dict[str, int] = {}
    owner = traced.graph.owning_module

    def constant(kind: str, name: str, tensor: object) -> object:
        if not by_numbers or not isinstance(tensor, torch.Tensor):
            return (kind, name)
        index = constant_index.setdefault(name, len(constant_index))
        return ("constant", index, tuple(tensor.shape), tensor.dtype, _digest(tensor))

    node_keys: dict[fx.Node, Any] = {}
    lines: list[Any] = []
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            slot = traced.inputs[node.name]
            if slot.kind == "constant":
                tensor = traced.tensors.get(slot.name)
            else:
                tensor = None
            node_keys[node] = constant(slot.kind, slot.name, tensor)
        elif node.op == "call_function":
            if node.target is torch.ops.aten._assert_tensor_metadata.default:
                continue  # the exported forward pass has them, and they compute nothing
            node_keys[node] = len(lines)
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: node_keys[n])
            lines.append((str(node.target), repr(args), repr(kwargs)))
        else:
            name = str(node.target)
            node_keys[node] = constant(node.op, name, getattr(owner, name, None))
    return lines


def _digest(tensor: torch.Tensor) -> str:
    """Return a hash of a constant's numbers; empty if it has none."""
    if isinstance(tensor, FakeTensor) or tensor.layout != torch.strided:
        return ""
    numbers = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu().flatten()
    return sha256(numbers.view(torch.uint8).numpy().data).hexdigest()


def joint_outputs(
    graph: fx.Graph, buffers: Mapping[str, torch.Tensor], rebound: tuple[str, ...]
) -> dict[Slot, fx.Node]:
    """Return the node of every output by its slot.

    Of a buffer that is changed in place and bound anew it is the latter, which comes last.
    """
    output = graph.output_node()
    pairs = zip(output.meta["desc"], output.args[0], strict=True)  # type: ignore[arg-type]
    return {
        _output_slot(desc, buffers, rebound): node
        for desc, node in pairs
        if isinstance(node, fx.Node)
    }


def copies(graph: fx.Graph, slots: Mapping[str, Slot]) -> dict[Slot, fx.Node]:
    """Take out what the graph itself writes into buffers; return the last value of each."""
    written: dict[Slot, fx.Node] = {}
    for node in graph.find_nodes(
        op="call_function", target=torch.ops.aten.copy_.default
    ):
        target, value = node.args[:2]
        written[_find_changed_output(slots[target.name])] = value
        graph.erase_node(node)
    return written


def _find_changed_output(slot: Slot) -> Slot:
    """Return the output for an input that is changed in place.

    Raises:
        CaptureError: it is one that must not change.
    """
    if slot.kind == "buffer":
        return slot
    if slot.kind == "input":
        return Slot("ignored", slot.name)  # the next step gets inputs of its own
    name = slot.name.removeprefix("model.")
    raise CaptureError(
        f"the model changes {name} in place; only its buffers may change"
    )


def input_slot(desc: object, buffers: Mapping[str, torch.Tensor]) -> Slot:
    """Return the slot of an input; a buffer that is none of ``buffers`` is a constant.

    Raises:
        CaptureError: it is of a kind that no step has.
    """
    if isinstance(desc, descriptors.ParamAOTInput):
        return Slot("parameter", desc.target)
    if isinstance(desc, descriptors.BufferAOTInput):
        return Slot("buffer" if desc.target in buffers else "constant", desc.target)
    if isinstance(desc, descriptors.PlainAOTInput):
        return Slot("input", str(desc.idx))
    if isinstance(desc, descriptors.TangentAOTInput):
        return Slot("tangent", "")
    raise CaptureError(
        f"the traced graph has an input of a kind that is not supported: {desc}"
    )


def _output_slot(
    desc: object, buffers: Mapping[str, torch.Tensor], rebound: tuple[str, ...]
) -> Slot:
    """Return the slot of an output; outputs behind the loss are the rebound buffers, in order."""
    if isinstance(desc, descriptors.GradAOTOutput):
        return Slot("gradient", getattr(desc.grad_of, "target", ""))
    if isinstance(desc, descriptors.InputMutationAOTOutput):
        return _find_changed_output(input_slot(desc.mutated_input, buffers))
    if isinstance(desc, descriptors.PlainAOTOutput) and desc.idx > 0:
        return Slot("buffer", rebound[desc.idx - 1])
    return Slot("loss", "")


def inference(exported: torch.export.ExportedProgram) -> Traced:
    """Return the forward pass that torch exported, with slots for its inputs and outputs."""
    slots: dict[str, Slot] = {}
    position = 0
    for spec in exported.graph_signature.input_specs:
        name = spec.target or ""
        if spec.kind == InputKind.USER_INPUT:
            name = str(position)
            position = position + 1
        slots[spec.arg.name] = Slot(_INPUTS[spec.kind], name)
    nodes = {node.name: node for node in exported.graph.nodes}
    outputs = []
    for out in exported.graph_signature.output_specs:
        if out.arg is not None and getattr(out.arg, "name", None) in nodes:
            changed = out.kind == OutputKind.BUFFER_MUTATION
            if changed:
                slot = Slot("buffer", out.target or "")
            else:
                slot = Slot("output", "")
            outputs.append((slot, nodes[out.arg.name]))
    tensors = {**exported.state_dict, **exported.constants}
    return Traced(exported.graph, slots, tuple(outputs), tensors)
