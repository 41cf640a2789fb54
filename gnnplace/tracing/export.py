"""The joint forward and backward graph of a module; the private torch imports live here.

Route: `torch.export.export` (not strict) resolves Python control flow and tied parameters, then
`aot_export_joint_with_descriptors` traces forward and backward into one functional ATen graph
whose inputs and outputs carry descriptors. A model with autograd functions of its own skips the
first step, which would lose their backward. The descriptors become `Slot`s here, so that no
other file depends on them.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd import descriptors
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.export.graph_signature import InputKind, OutputKind

from gnnplace.errors import CaptureError, OtherLossError
from gnnplace.tracing.blame import blame, loss_lines
from gnnplace.tracing.cutting import Cutter
from gnnplace.tracing.guard import custom_functions, unchanged
from gnnplace.tracing.recurrent import recurrent_layers
from gnnplace.tracing.step import StepModule


@dataclass(frozen=True)
class Slot:
    """What a placeholder or an output of a traced graph means.

    Attributes:
        kind: Of a placeholder "parameter", "buffer", "constant", "input" or "tangent"; of an
            output "loss", "output", "gradient", "buffer" or "ignored".
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


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch from writing pages about an error that is about to be said in one line.

    It logs them and prints a part of the graph to standard error.
    """
    loggers = [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if name.startswith("torch") and isinstance(logger, logging.Logger) and not logger.disabled
    ]
    for logger in loggers:
        logger.disabled = True
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        for logger in loggers:
            logger.disabled = False


def trace(
    step: StepModule,
    inputs: tuple[torch.Tensor, ...],
    *,
    backward: bool,
    cutter: Cutter | None = None,
) -> Traced:
    """Trace a step.

    Args:
        step: Model and loss.
        inputs: Example tensors for it.
        backward: Differentiate the loss with respect to every parameter that requires it.
        cutter: Of a share of a batch: proves that it may be cut, and repairs the loss.

    Raises:
        CaptureError: the model cannot be exported; names the module and the line.
        OtherLossError: the share has another loss than the whole batch.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with (
                quiet(),
                unchanged(step),
                loss_lines(step.loss),
                recurrent_layers(training=backward),
            ):
                return _trace(step, inputs, backward, cutter)
        except (CaptureError, OtherLossError):
            raise
        except Exception as error:
            raise CaptureError(blame(error, step)) from error


def _trace(
    step: StepModule, inputs: tuple[torch.Tensor, ...], backward: bool, cutter: Cutter | None
) -> Traced:
    with custom_functions() as custom:
        exported = torch.export.export(step, inputs, strict=False)
    if not backward:
        if cutter is not None:
            cutter(exported, _export)
        return _inference(exported.run_decompositions(_composite_decompositions()))
    if custom:  # only autograd itself knows their backward: trace the model as it is
        if cutter is not None:
            cutter(exported, _export, fixed=f"its autograd function {custom[0]!r} is traced as is")
        return _joint(step, inputs, step)
    module = cutter(exported, _export) if cutter else exported.module(check_guards=False)
    _register_constants(module)
    return _joint(module, inputs, step)


def _export(step: StepModule) -> torch.export.ExportedProgram:
    """The forward pass of another step."""
    with unchanged(step):
        return torch.export.export(step, step.inputs(), strict=False)


def _joint(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], step: StepModule) -> Traced:
    with ExitStack() as stack:
        joint = aot_export_joint_with_descriptors(stack, module, inputs)
        graph = joint.graph_module.graph
    own = dict(step.named_buffers(remove_duplicate=False))
    placeholders = graph.find_nodes(op="placeholder")
    slots = {node.name: _input_slot(node.meta["desc"], own) for node in placeholders}
    tensors: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    tensors.update(module.named_buffers(remove_duplicate=False))
    return Traced(graph, slots, _joint_outputs(graph), tensors)


def _register_constants(module: torch.nn.Module) -> None:
    """Make buffers of the plain tensors that the exported graph refers to."""
    assert isinstance(module, fx.GraphModule)
    known = {*dict(module.named_parameters()), *dict(module.named_buffers())}
    for node in module.graph.find_nodes(op="get_attr"):
        path, _, name = str(node.target).rpartition(".")
        owner = module.get_submodule(path)
        tensor = getattr(owner, name, None)
        if isinstance(tensor, torch.Tensor) and node.target not in known:
            delattr(owner, name)
            owner.register_buffer(name, tensor, persistent=False)
            known.add(str(node.target))


def _joint_outputs(graph: fx.Graph) -> tuple[tuple[Slot, fx.Node], ...]:
    output = graph.output_node()
    pairs = zip(output.meta["desc"], output.args[0], strict=True)  # type: ignore[arg-type]
    return tuple((_output_slot(d), n) for d, n in pairs if isinstance(n, fx.Node))


def _input_slot(desc: Any, buffers: Mapping[str, torch.Tensor]) -> Slot:
    if isinstance(desc, descriptors.ParamAOTInput):
        return Slot("parameter", desc.target)
    if isinstance(desc, descriptors.BufferAOTInput):
        return Slot("buffer" if desc.target in buffers else "constant", desc.target)
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
        if isinstance(source, descriptors.PlainAOTInput):
            return Slot("ignored", "")  # the next step gets inputs of its own
        name = getattr(source, "target", source)
        raise CaptureError(f"the model changes {name} in place; only its buffers may change")
    return Slot("loss", "")


def _composite_decompositions() -> dict[Any, Any]:
    """Decompositions of composite ops, such as `linear`, into what autograd's trace has too."""
    composite = "CompositeImplicitAutograd"
    return {
        op: function
        for op, function in torch.export.default_decompositions().items()
        if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), composite)
    }


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
