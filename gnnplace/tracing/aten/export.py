"""The joint forward and backward graph of a module; the private torch imports live here.

`aot_export_joint_with_descriptors` runs the model's own Python code on tensors without numbers,
then autograd, and traces both into one functional ATen graph. Everything that works through
autograd works here too: hooks, functions with their own backward, checkpointing, gradients inside
the forward pass. Inputs and outputs of the graph have descriptors, which are converted to `Slot`s
here, so that no other file depends on them. Inference is traced by `torch.export` (not strict). So
is a share of a batch whose loss has to be repaired, if nothing is lost by that (`_cut`).
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import fx

from gnnplace.errors import CaptureError, OtherLossError
from gnnplace.torch_names import (
    FakeTensor,
    FakeTensorMode,
    TracingContext,
    aot_export_joint_with_descriptors,
    detect_fake_mode,
    dispatch_has_kernel_for_dispatch_key,
    functorch_config,
    tracing,
)
from gnnplace.tracing.aten.deviations import check_layouts, check_memory, check_model
from gnnplace.tracing.aten.module_stack import module_paths
from gnnplace.tracing.aten.recompute import checkpoints
from gnnplace.tracing.aten.recurrent import recurrent_layers
from gnnplace.tracing.aten.traceable import TraceableStep
from gnnplace.tracing.aten.traced import (
    Slot,
    Traced,
    copies,
    inference,
    input_slot,
    joint_outputs,
    signature,
)
from gnnplace.tracing.batch import Cutter
from gnnplace.tracing.calls import as_one_call, user_functions
from gnnplace.tracing.fakes import make_fake_mode
from gnnplace.tracing.guards import (
    Attributes,
    as_eager,
    blame,
    custom_gradients,
    differs_later,
    lasting,
    loss_lines,
    other_autocasts,
    restore_attributes,
    watch_step,
)
from gnnplace.tracing.step import StepModule


@contextmanager
def silence_warnings() -> Iterator[None]:
    """Keep torch from writing pages about an error that is about to be said in one line.

    It logs them and prints a part of the graph to standard error.
    """
    loggers = [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if name.startswith("torch")
        and isinstance(logger, logging.Logger)
        and not logger.disabled
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
        step: The model and its loss as one module.
        inputs: Example tensors for it.
        backward: Differentiate the loss with respect to every parameter that requires it.
        cutter: The cutter of a share of a batch: proves that it may be cut, and repairs the loss.

    Raises:
        CaptureError: the model cannot be exported; the module and the line are named.
        OtherLossError: the share has another loss than the whole batch.
    """
    check_layouts(step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with (
                silence_warnings(),
                as_eager() as unchecked,
                restore_attributes(step),
                loss_lines(step.loss),
                recurrent_layers(training=backward),
                other_autocasts() as notes,
            ):
                traced = _trace(step, inputs, backward, cutter)
            return replace(traced, notes=tuple(dict.fromkeys([*notes, *unchecked])))
        except (CaptureError, OtherLossError):
            raise
        except Exception as error:
            raise CaptureError(blame(error, step)) from error


def check_cut(step: StepModule, cutter: Cutter) -> None:
    """Prove that a batch may be cut, by the forward pass alone.

    Args:
        step: Model and loss, with the inputs of a share.
        cutter: Proves that the step's batch may be cut.

    Raises:
        CaptureError: the model cannot be exported.
        OtherLossError: the share has another loss than the whole batch.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with (
                silence_warnings(),
                as_eager(),
                as_one_call(step),
                loss_lines(step.loss),
                other_autocasts(),
            ):
                with user_functions() as called:
                    exported = _export(step)
                custom_functions = list(dict.fromkeys(call.words for call in called))
                cutter(exported, _export, own=custom_functions, called=called)
        except (CaptureError, OtherLossError):
            raise
        except Exception as error:
            raise CaptureError(blame(error, step)) from error


def _trace(
    step: StepModule,
    inputs: tuple[torch.Tensor, ...],
    backward: bool,
    cutter: Cutter | None,
) -> Traced:
    """Trace a step within the guards of `trace`; a share's loss is repaired by `cutter`."""
    if not backward:
        exported = torch.export.export(step, inputs, strict=False)
        if cutter is not None:
            cutter(exported, _export)
        return inference(exported.run_decompositions(_composite_decompositions()))
    check_model(step)
    mode = _fake_mode(step, inputs)
    traceable = TraceableStep(step)
    with watch_step():
        traced = _joint(traceable, inputs, mode)
        _check_replaced(traced, traceable)
        if traceable.attributes.changed:
            _check_state(traced, traceable, inputs, mode)
    check_memory(traced)
    if cutter is None:
        return traced
    return _cut(step, inputs, traced, cutter, traceable.custom_gradients)


def _cut(
    step: StepModule,
    inputs: tuple[torch.Tensor, ...],
    traced: Traced,
    cutter: Cutter,
    custom_gradients: Sequence[str],
) -> Traced:
    """Return the step of a share, its loss repaired where it must be.

    A repair rewrites the exported forward pass. Its trace is taken only if the exported one, left
    as it is, gives the very step that autograd runs: what export drops would be lost otherwise.
    """
    exported = _export(step)
    module = cutter(exported, _export, own=custom_gradients)
    if not cutter.repaired:
        return traced
    retraced = _trace_rewritten(exported.module(check_guards=False), inputs, step)
    if signature(retraced, by_numbers=True) != signature(traced, by_numbers=True):
        fixed = "the model does more than a rewritten forward pass keeps"
        cutter(exported, _export, own=custom_gradients, fixed=fixed)
        return traced
    return _trace_rewritten(module, inputs, step)


def _export(step: StepModule) -> torch.export.ExportedProgram:
    """Export the forward pass of a step; the step is as before."""
    with restore_attributes(step), _fakes_as_buffers(step):
        return torch.export.export(step, step.inputs(), strict=False)


@contextmanager
def _fakes_as_buffers(step: StepModule) -> Iterator[None]:
    """Make plain attributes that are fake tensors buffers within.

    `torch.export` puts fake tensors of its own in the place of buffers alone, and one trace has
    fake tensors of one mode.
    """
    attributes = [
        (module, name, value)
        for module in step.modules()
        for name, value in module.__dict__.items()
        if isinstance(value, FakeTensor)
    ]
    for module, name, value in attributes:
        del module.__dict__[name]
        module._buffers[name] = value
    try:
        yield
    finally:
        for module, name, value in attributes:
            del module._buffers[name]
            module.__dict__[name] = value


def _trace_rewritten(
    module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], step: StepModule
) -> Traced:
    """Trace forward and backward of an exported forward pass."""
    _register_constants(module)
    with ExitStack() as stack:
        joint = aot_export_joint_with_descriptors(stack, module, inputs)
        graph = joint.graph_module.graph
    buffers = dict(step.named_buffers(remove_duplicate=False))
    placeholders = graph.find_nodes(op="placeholder")
    traceable = TraceableStep(step)

    def with_first_name(slot: Slot) -> Slot:
        return replace(slot, name=traceable.first_name(slot.name))

    slots = {
        node.name: with_first_name(input_slot(node.meta["desc"], buffers))
        for node in placeholders
    }
    named_tensors: list[tuple[str, torch.Tensor]] = [
        *module.named_parameters(remove_duplicate=False)
    ]
    named_tensors += module.named_buffers(remove_duplicate=False)
    tensors = {traceable.first_name(name): tensor for name, tensor in named_tensors}
    outputs = [
        (with_first_name(slot), node)
        for slot, node in joint_outputs(graph, buffers, ()).items()
    ]
    ordered = sorted(
        outputs, key=lambda pair: traceable.last_position(_gradient(pair[0]))
    )
    return Traced(graph, slots, tuple(ordered), tensors)


def _register_constants(module: torch.nn.Module) -> None:
    """Make buffers of the plain tensors that the exported graph refers to."""
    assert isinstance(module, fx.GraphModule)
    names = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    names |= {name for name, _ in module.named_buffers(remove_duplicate=False)}
    for node in module.graph.find_nodes(op="get_attr"):
        path, _, name = str(node.target).rpartition(".")
        owner = module.get_submodule(path)
        tensor = getattr(owner, name, None)
        if isinstance(tensor, torch.Tensor) and node.target not in names:
            delattr(owner, name)
            owner.register_buffer(name, tensor, persistent=False)
            names.add(str(node.target))


def _joint(
    traceable: TraceableStep, inputs: tuple[torch.Tensor, ...], mode: FakeTensorMode
) -> Traced:
    """Trace forward and backward by autograd; buffers that both change get the last value."""
    traced, recomputed = _joint_once(traceable, inputs, mode, in_graph=False)
    if recomputed and any(slot.kind == "buffer" for slot, _ in traced.outputs):
        traced, _ = _joint_once(traceable, inputs, mode, in_graph=True)
    return traced


def _joint_once(
    traceable: TraceableStep,
    inputs: tuple[torch.Tensor, ...],
    mode: FakeTensorMode,
    *,
    in_graph: bool,
) -> tuple[Traced, bool]:
    """Return what is traced, and whether a checkpointed region ran again."""
    with (
        ExitStack() as stack,
        tracing(TracingContext(mode)),
        checkpoints() as second_runs,
        module_paths(traceable.step),
        torch.enable_grad(),
        functorch_config.patch(backward_pass_autocast="off"),
        patch.object(torch.autograd, "grad", _make_backward(traceable)),
        patch.object(torch.Tensor, "register_hook", _make_hook(traceable)),
    ):
        joint = aot_export_joint_with_descriptors(
            stack, traceable, inputs, keep_inference_input_mutations=in_graph
        )
        graph = joint.graph_module.graph
    buffers = dict(traceable.step.named_buffers(remove_duplicate=False))
    placeholders = graph.find_nodes(op="placeholder")
    slots = {node.name: input_slot(node.meta["desc"], buffers) for node in placeholders}
    tensors: dict[str, torch.Tensor] = dict(traceable.named_parameters())
    tensors.update(traceable.named_buffers())
    outputs = joint_outputs(graph, buffers, traceable.rebound) | copies(graph, slots)
    # Gradients by the last name of their parameter: the order of updates in every saved file.
    ordered = sorted(
        outputs.items(), key=lambda pair: traceable.last_position(_gradient(pair[0]))
    )
    return Traced(graph, slots, tuple(ordered), tensors), bool(second_runs)


def _make_backward(traceable: TraceableStep) -> Callable[..., Any]:
    """Return `torch.autograd.grad` for tracing: it begins the step's backward pass."""
    original = torch.autograd.grad

    def grad(outputs: Any, *args: Any, **options: Any) -> object:
        traceable.custom_gradients += custom_gradients(outputs)
        with traceable.in_backward():
            return original(outputs, *args, **options)

    return grad


def _make_hook(traceable: TraceableStep) -> Callable[..., Any]:
    """Return `Tensor.register_hook` for tracing, which notes the hook."""
    original = torch.Tensor.register_hook

    def register(tensor: torch.Tensor, hook: Callable[..., Any]) -> object:
        traceable.custom_gradients.append(
            f"hook {getattr(hook, '__name__', '')!r} of a tensor"
        )
        return original(tensor, hook)

    return register


def _check_replaced(traced: Traced, traceable: TraceableStep) -> None:
    """Refuse a step that reads a plain attribute which it then binds to something else."""
    nodes = {node.name: node for node in traced.graph.find_nodes(op="placeholder")}
    for node, slot in traced.inputs.items():
        if (
            slot.kind == "constant"
            and slot.name in traceable.replaced
            and nodes[node].users
        ):
            raise CaptureError(lasting(repr(slot.name.removeprefix("model."))))


def _fake_mode(step: StepModule, inputs: tuple[torch.Tensor, ...]) -> FakeTensorMode:
    """Return the mode of a fake model, else one in which other tensors are constants."""
    mode = detect_fake_mode([*inputs, *step.parameters(), *step.buffers()])
    return mode or make_fake_mode()


def _check_state(
    traced: Traced,
    traceable: TraceableStep,
    inputs: tuple[torch.Tensor, ...],
    mode: FakeTensorMode,
) -> None:
    """Trace the step after this one, which must be the same.

    Raises:
        CaptureError: attributes that the forward pass sets make it another one.
    """
    names = ", ".join(
        repr(n.removeprefix("model.")) for n in traceable.attributes.changed[:3]
    )

    def renew(tensor: torch.Tensor) -> torch.Tensor:
        with (
            mode if isinstance(next(iter(inputs), None), FakeTensor) else nullcontext()
        ):
            return torch.zeros(tuple(tensor.shape), dtype=tensor.dtype)

    with Attributes(traceable.step).restored():
        traceable.attributes.advance(renew)
        try:
            is_same = signature(
                _joint(TraceableStep(traceable.step), inputs, mode)
            ) == signature(traced)
        except Exception:
            is_same = False
    if not is_same and differs_later(traceable.step, mode):
        raise CaptureError(lasting(names))


def _gradient(slot: Slot) -> str:
    """Return the parameter whose gradient an output is; empty of any other output."""
    if slot.kind == "gradient":
        return slot.name
    return ""


def _composite_decompositions() -> dict[Any, Any]:
    """Return decompositions of composite ops, such as `linear`, as autograd's trace has."""
    composite = "CompositeImplicitAutograd"
    return {
        op: function
        for op, function in torch.export.default_decompositions().items()
        if dispatch_has_kernel_for_dispatch_key(op.name(), composite)
    }
