"""Compares the numbers of a split batch with those of the whole batch, before anything is captured.

Loss and gradients of the exported forward pass of the whole batch are compared with the mean over
the passes of its shares, after their repair. Batch norm is frozen and dropout is off; these are the
two stated exceptions. Masks and padding are made unequal on purpose: if all examples had the same
length, a mean of means would be the mean, and an error would stay hidden.

One pass forward and backward of the whole batch, and one of its shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import psutil
import torch
from torch import fx, nn

from gnnplace.torch_names import BatchNormBase, DropoutBase, pytree
from gnnplace.tracing.batch.cut import COUNTED
from gnnplace.tracing.batch.state import Op, op_name
from gnnplace.tracing.batch.twins import draws
from gnnplace.tracing.guards import restore_attributes
from gnnplace.tracing.program import CutBatch
from gnnplace.tracing.rounding import (
    NEGLIGIBLE,
    SCALES,
    VANISHED,
    find_coarsest_tolerance,
    find_largest,
    relative_error,
)
from gnnplace.tracing.step import StepModule

ROOM = 0.5
"""Part of the free memory that the whole batch's tensors may take; beyond it nothing is run."""
SWITCHED = (BatchNormBase, DropoutBase)
"""Modules that do something else in training, which shares may do otherwise."""
OFF = {"training": False, "train": False, "dropout_p": 0.0, "dropout": 0.0}
"""Arguments that freeze batch norm and turn dropout off."""


def differences(
    whole: fx.GraphModule,
    share: fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    batch: CutBatch,
    *,
    uneven: bool = True,
) -> str | None:
    """Return what is off between the whole batch and its shares.

    Args:
        whole: Forward graph of the whole batch.
        share: The graph of a share, repaired.
        inputs: The inputs of the whole batch.
        batch: How it is cut.
        uneven: Make masks and padding unequal.

    Returns:
        Empty if nothing is; None if it cannot be told: the step draws random numbers elsewhere
        than in dropout, takes too much memory, or has no gradients to speak of.
    """
    frozen_whole = _freeze(whole)
    frozen_share = _freeze(share)
    if frozen_whole is None or frozen_share is None:
        return None
    if _bytes(whole) > ROOM * psutil.virtual_memory().available:
        return None
    difference = None
    if uneven:
        examples = [unequal(whole, inputs, batch)]
    else:
        examples = []
    for example in (*examples, tuple(inputs)):
        try:
            expected = _step(frozen_whole, example)
            difference = _compare_shares(
                frozen_whole, expected, frozen_share, example, batch
            )
        except (IndexError, RuntimeError):  # numbers that the model cannot take
            continue
        break
    return difference


def step_differences(
    step: StepModule, graph: fx.GraphModule, batch: CutBatch
) -> str | None:
    """Return what is off between a step's own gradients of the batch and of its shares.

    An exported forward pass says nothing of backward passes of its own, or of hooks. The step runs
    as it is, but for modules of batch norm and dropout. Gradients must be those of the shares, and
    grow as the loss does: a step that clips gradients would clip those of shares, whose mean has
    fewer examples, where others are large.

    Args:
        step: Step of the whole batch; it is left as it was.
        graph: Its exported forward pass.
        batch: How it is cut.

    Returns:
        As `differences`.
    """
    switched = [m for m in step.modules() if m.training and isinstance(m, SWITCHED)]
    buffers = {buffer: buffer.clone() for buffer in step.buffers()}
    if _bytes(graph) > ROOM * psutil.virtual_memory().available:
        return None
    with torch.random.fork_rng(), restore_attributes(step):
        random_state = torch.get_rng_state()
        for module in switched:
            module.training = False
        try:
            expected = _step(step, step.inputs())
            difference = _compare_shares(step, expected, step, step.inputs(), batch)
            if difference == "":
                difference = _find_gradient_not_growing(step, expected)
        except RuntimeError:  # such as numbers that the model cannot take
            return None
        finally:
            for module in switched:
                module.training = True
            for buffer, value in buffers.items():
                buffer.copy_(value)
        if torch.equal(random_state, torch.get_rng_state()):
            return difference
        return None


def _find_gradient_not_growing(
    step: StepModule, expected: Mapping[str, torch.Tensor]
) -> str:
    """Return which gradient does not grow as the loss does; empty if all do."""
    floor = NEGLIGIBLE * find_largest(
        gradient for name, gradient in expected.items() if name
    )
    allowed = find_coarsest_tolerance(_types(step))
    for scale in SCALES:
        for name, gradient in _step(step, step.inputs(), scale).items():
            if relative_error(gradient / scale, expected[name], floor) > allowed:
                parameter = name.removeprefix("model.")
                return f"the gradient of {parameter} does not grow as the loss does"
    return ""


def _compare_shares(
    whole: nn.Module,
    expected: Mapping[str, torch.Tensor],
    share: nn.Module,
    inputs: Sequence[torch.Tensor],
    batch: CutBatch,
) -> str | None:
    """Return what is off between the mean of the shares and the values of the whole batch."""
    for name, value in batch.values(inputs).items():
        setattr(share, name, value)
    total: dict[str, torch.Tensor] = {}
    for part in batch.cut(inputs):
        for name, tensor in _step(share, part).items():
            total[name] = total[name] + tensor if name in total else tensor
    gradients = dict(expected)
    loss = gradients.pop("")
    allowed = find_coarsest_tolerance(_types(whole))
    mean_loss = total[""] / batch.count
    error = relative_error(mean_loss, loss)
    if not error <= allowed:  # nor a number
        if error < 1e-5:
            near = f", off by {error:.2g} of it"
        else:
            near = ""
        return f"the loss is {float(mean_loss):.6g} instead of {float(loss):.6g}{near}"
    floor = NEGLIGIBLE * find_largest(gradients.values())
    if floor <= NEGLIGIBLE * VANISHED * float(loss.abs()):
        return None
    for name, tensor in gradients.items():
        error = relative_error(total[name] / batch.count, tensor, floor)
        if not error <= allowed:
            parameter = name.removeprefix("model.")
            return f"the gradient of {parameter} is off by {error:.2g} of its size"
    return ""


def _types(module: nn.Module) -> Iterator[torch.dtype]:
    """Yield types of the parameters and of the values in a graph and in those that it calls."""
    yield from (p.dtype for p in module.parameters())
    for inner in module.modules():
        for node in inner.graph.nodes if isinstance(inner, fx.GraphModule) else ():
            if isinstance(value := node.meta.get("val"), torch.Tensor):
                yield value.dtype


def _step(
    module: nn.Module, inputs: Sequence[torch.Tensor], scale: float = 1.0
) -> dict[str, torch.Tensor]:
    """Return gradients by parameter, and the loss by the empty name, times a scale."""
    named = {name: p for name, p in module.named_parameters() if p.requires_grad}
    with torch.enable_grad():
        loss = pytree.tree_leaves(module(*inputs))[0] * scale
        gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    pairs = zip(named, gradients, strict=True)
    return {"": loss.detach()} | {name: g for name, g in pairs if g is not None}


def _freeze(module: fx.GraphModule) -> fx.GraphModule | None:
    """Return a copy with batch norm frozen and dropout off, free to change its buffers; or None."""
    graph, places = fx.Graph(), {}  # type: ignore[var-annotated]
    graph.output(graph.graph_copy(module.graph, places))
    for node in graph.nodes:
        if node.op == "call_function":
            args, node.kwargs = switch_off(node)
            node.args = tuple(args)
            if draws(Op(node, node, {}, 1)):
                return None
    frozen = fx.GraphModule(module, graph)
    for node in graph.find_nodes(op="get_attr"):
        # All of them: graphs inside, as of autocast, change buffers that are handed to them.
        owner, _, name = str(node.target).rpartition(".")
        holder = frozen.get_submodule(owner)
        tensor = getattr(holder, name)
        if isinstance(tensor, torch.Tensor) and not isinstance(
            tensor, torch.nn.Parameter
        ):
            setattr(holder, name, tensor.clone())
    return frozen


def switch_off(node: fx.Node) -> tuple[list[Any], dict[str, Any]]:
    """Return an op's arguments with batch norm frozen and dropout off."""
    args = list(node.args)
    kwargs = dict(node.kwargs)
    schema = getattr(node.target, "_schema", None)
    for position, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.name not in OFF:
            continue
        if argument.name in ("training", "train"):
            name = op_name(node.target)
            if "norm" not in name and "dropout" not in name:
                continue
        if position < len(args):
            args[position] = OFF[argument.name]
        elif argument.name in kwargs:
            kwargs[argument.name] = OFF[argument.name]
    return args, kwargs


def _bytes(module: fx.GraphModule) -> int:
    """Return the bytes that forward tensors and their gradients take at most."""
    tensors: Iterable[Any] = (node.meta.get("val") for node in module.graph.nodes)
    return 2 * sum(
        t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor)
    )


def unequal(
    module: fx.GraphModule, inputs: Sequence[torch.Tensor], batch: CutBatch
) -> tuple[torch.Tensor, ...]:
    """Return the inputs with masks and padding that differ from example to example.

    Masks are tensors of 0 and 1 alone; targets of a loss with an ignored class are ignored more in
    the first examples than in the last.
    """
    random = torch.Generator().manual_seed(0)
    slots = list(module.graph.find_nodes(op="placeholder"))
    ignored = _make_ignored(module.graph)
    return tuple(
        tensor
        if axis is None
        else _make_uneven(tensor, axis, ignored.get(slot), random)
        for tensor, axis, slot in zip(inputs, batch.axes, slots, strict=True)
    )


def _make_uneven(
    tensor: torch.Tensor, axis: int, ignored: int | None, random: torch.Generator
) -> torch.Tensor:
    """Return a mask or targets with random entries taken out; other tensors as they are."""
    is_mask = bool(((tensor == 0) | (tensor == 1)).all()) and bool((tensor == 1).any())
    if ignored is None and not is_mask:
        return tensor
    shape = [1] * tensor.dim()
    shape[axis] = size = tensor.shape[axis]
    # 1 for the last example.
    chance = (torch.arange(size) + 1.0).div(size).reshape(shape)
    is_kept = torch.rand(tensor.shape, generator=random) < chance
    return torch.where(
        is_kept, tensor, torch.zeros_like(tensor) if ignored is None else ignored
    )


def _make_ignored(graph: fx.Graph) -> dict[fx.Node, int]:
    """Return inputs that are targets of a loss which ignores a class, with that class."""
    ignored: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if node.op != "call_function" or op_name(node.target) not in COUNTED:
            continue
        arguments = Op(node, node, {}, 1).args
        for source in _sources(arguments["target"]):
            ignored[source] = arguments["ignore_index"]
    return ignored


def _sources(node: fx.Node) -> set[fx.Node]:
    """Return integer inputs that a node is made of."""
    sources: set[fx.Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        value = current.meta.get("val")
        if not isinstance(value, torch.Tensor) or value.is_floating_point():
            continue
        if current.op == "placeholder" and value.dtype != torch.bool:
            sources.add(current)
        pending.extend(current.all_input_nodes)
    return sources
