"""The joint forward and backward graph of a module; the private torch imports live here.

Route: `torch.export.export` (not strict) resolves Python control flow and tied parameters, then
`aot_export_joint_with_descriptors` traces forward and backward into one functional ATen graph
whose inputs and outputs carry descriptors. They are translated into `Slot`s here, so that no
other file depends on them.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd import descriptors
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.export.graph_signature import InputKind, OutputKind

from gnnplace.errors import CaptureError
from gnnplace.tracing.blame import blame
from gnnplace.tracing.step import StepModule


@dataclass(frozen=True)
class Slot:
    """What a placeholder or an output of a traced graph means.

    Attributes:
        kind: Of a placeholder "parameter", "buffer", "constant", "input" or "tangent"; of an
            output "loss", "output", "gradient" or "buffer".
        name: Qualified name in `StepModule` (of a gradient: its parameter's; of an input: its
            position; of the rest: empty).
    """

    kind: str
    name: str


@dataclass(frozen=True)
class Traced:
    """A functional ATen graph and the meaning of its ends.

    Attributes:
        graph: The graph.
        inputs: By placeholder name.
        outputs: Slot and node of every output that exists.
        tensors: Parameters, buffers and constants by qualified name (fake of a fake model).
    """

    graph: fx.Graph
    inputs: dict[str, Slot]
    outputs: tuple[tuple[Slot, fx.Node], ...]
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


def trace(step: StepModule, inputs: tuple[torch.Tensor, ...], *, backward: bool) -> Traced:
    """Trace a step.

    Args:
        step: Model and loss.
        inputs: Example tensors for it.
        backward: Differentiate the loss with respect to every parameter that requires it.

    Raises:
        CaptureError: the model cannot be exported; names the module and the line.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            exported = torch.export.export(step, inputs, strict=False)
            if backward:
                return _joint(exported.module(check_guards=False), inputs)
            return _inference(exported.run_decompositions({}))
        except CaptureError:
            raise
        except Exception as error:
            raise CaptureError(blame(error, step)) from error


def _joint(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Traced:
    with ExitStack() as stack:
        joint = aot_export_joint_with_descriptors(stack, module, inputs)
        graph = joint.graph_module.graph
    placeholders = graph.find_nodes(op="placeholder")
    slots = {node.name: _input_slot(node.meta["desc"]) for node in placeholders}
    tensors: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    tensors.update(module.named_buffers(remove_duplicate=False))
    return Traced(graph, slots, _joint_outputs(graph), tensors)


def _joint_outputs(graph: fx.Graph) -> tuple[tuple[Slot, fx.Node], ...]:
    output = graph.output_node()
    pairs = zip(output.meta["desc"], output.args[0], strict=True)  # type: ignore[arg-type]
    return tuple((_output_slot(d), n) for d, n in pairs if isinstance(n, fx.Node))


def _input_slot(desc: Any) -> Slot:
    if isinstance(desc, descriptors.ParamAOTInput):
        return Slot("parameter", desc.target)
    if isinstance(desc, descriptors.BufferAOTInput):
        return Slot("buffer", desc.target)
    if isinstance(desc, descriptors.PlainAOTInput):
        return Slot("input", str(desc.idx))
    if isinstance(desc, descriptors.TangentAOTInput):
        return Slot("tangent", "")
    raise CaptureError(f"the traced graph has an input of a kind that is not supported: {desc}")


def _output_slot(desc: Any) -> Slot:
    if isinstance(desc, descriptors.GradAOTOutput):
        return Slot("gradient", getattr(desc.grad_of, "target", ""))
    if isinstance(desc, descriptors.InputMutationAOTOutput):
        source = desc.mutated_input
        if isinstance(source, descriptors.BufferAOTInput):
            return Slot("buffer", source.target)
        raise CaptureError(f"the model changes {source} in place; only buffers may change")
    return Slot("loss", "")


_INPUTS = {
    InputKind.PARAMETER: "parameter",
    InputKind.BUFFER: "buffer",
    InputKind.CONSTANT_TENSOR: "constant",
    InputKind.USER_INPUT: "input",
}


def _inference(exported: torch.export.ExportedProgram) -> Traced:
    slots: dict[str, Slot] = {}
    position = 0
    for spec in exported.graph_signature.input_specs:
        name = spec.target or ""
        if spec.kind == InputKind.USER_INPUT:
            name, position = str(position), position + 1
        slots[spec.arg.name] = Slot(_INPUTS[spec.kind], name)
    nodes = {node.name: node for node in exported.graph.nodes}
    outputs = []
    for out in exported.graph_signature.output_specs:
        if out.arg is not None and getattr(out.arg, "name", None) in nodes:
            changed = out.kind == OutputKind.BUFFER_MUTATION
            slot = Slot("buffer", out.target or "") if changed else Slot("output", "")
            outputs.append((slot, nodes[out.arg.name]))
    tensors = {**exported.state_dict, **exported.constants}
    return Traced(exported.graph, slots, tuple(outputs), tensors)
