"""A model's training step, or its inference, as a `Program`.

`capture` takes a module and its inputs; `capture_model` a name as well, at 1/M of the batch.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import nn

from gnnplace.errors import CaptureError, InputError, OtherLossError
from gnnplace.torch_names import FakeTensor, NormBase, pytree
from gnnplace.tracing.aten import Builder, give, notices, silence_warnings, trace
from gnnplace.tracing.batch import MEND, Cutter, UncutBatch, batch_axes, finish_share
from gnnplace.tracing.fakes import make_fake_mode
from gnnplace.tracing.guards import as_eager, batch_statistics
from gnnplace.tracing.inputs import as_inputs, leaves_by_path
from gnnplace.tracing.loading import apply_to_tensors, cut_workload, is_sized, load
from gnnplace.tracing.options import CaptureOptions
from gnnplace.tracing.program import CutBatch, Optimizer, Program
from gnnplace.tracing.program import make_optimizer as find_optimizer
from gnnplace.tracing.step import Inputs, StepModule, initialise_lazy
from gnnplace.zoo import Workload

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def capture(
    model: nn.Module,
    inputs: Inputs,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    optimizer: str | Optimizer = "sgd",
    dtype: str = "float32",
    forward_only: bool = False,
    name: str | None = None,
    whole: UncutBatch | None = None,
) -> Program:
    """Capture one step of a model as a program of ATen ops.

    The model is captured in the mode (train or eval) that it is in. Models whose parameters are
    fake (made under `FakeTensorMode`) are captured without a byte of them.

    Args:
        model: Left as it is; the program's `initial` shares its tensors, to be copied before
            anything changes them.
        inputs: Example inputs: positional, by keyword, or one tensor.
        loss: The loss, as `StepModule` takes it.
        optimizer: "sgd", "adamw", or one of `gnnplace.tracing.program.optimizers`.
        dtype: "float32": as it is; "bfloat16": parameters, buffers and inputs are converted.
        forward_only: Inference: no loss, backward or update.
        name: The name of the program; the model's class by default.
        whole: The batch that the inputs are a share of, to prove that it may be cut.

    Returns:
        The program, without dead code. What it does otherwise than the model stands in its
        `notices` and is given as `ChangedWarning`s.

    Raises:
        CaptureError: the model cannot be captured; names the module and the line.
        InputError: inputs, optimizer or dtype that cannot be used.
        OtherLossError: a share whose loss is another one than that of the whole batch.
    """
    method = find_optimizer(optimizer)
    model, inputs = _convert(model, as_inputs(inputs, model), dtype)
    step = StepModule(model, loss, inputs, forward_only=forward_only)
    name = name or type(model).__name__
    if whole is None:
        cutter = None
    else:
        cutter = _cutter(whole, step, dtype, name)
    traced = trace(step, step.inputs(), backward=not forward_only, cutter=cutter)
    builder = Builder(traced, step.sources(), step.inputs())
    if not forward_only:
        builder.add_updates(method)
    program = builder.program(
        name, fake=_is_fake(model, step), forward_only=forward_only
    )
    notice_lines = notices(step, traced, program.ops)
    give(notice_lines)
    if cutter is None:
        batch = CutBatch(1, (), whole=step)
    else:
        batch = cutter.batch
    classes = model.named_modules(remove_duplicate=False)
    return replace(
        finish_share(program, batch),
        notices=notice_lines,
        modules={path: type(module).__name__ for path, module in classes},
        state=_first_names(model),
    )


def _first_names(model: nn.Module) -> dict[str, str]:
    """Return, for every parameter and buffer, the first name of its tensor, persistent or not."""
    parameters = model.named_parameters(remove_duplicate=False)
    buffers = model.named_buffers(remove_duplicate=False)
    first_names: dict[int, str] = {}
    return {
        name: first_names.setdefault(id(tensor), name)
        for name, tensor in chain(parameters, buffers)
    }


def _cutter(whole: UncutBatch, share: StepModule, dtype: str, name: str) -> Cutter:
    """Return what proves that a share may stand for its part of the whole batch."""
    workload = whole.workload
    model, inputs = _convert(workload.model, workload.inputs, dtype)
    step = StepModule(model, workload.loss, inputs, forward_only=share.forward_only)
    return Cutter(step, share, whole.count, accept=whole.accept, name=name)


def _convert(model: nn.Module, inputs: Inputs, dtype: str) -> tuple[nn.Module, Inputs]:
    """Return the model and its inputs in a type of `DTYPES`; copies, unless it is float32.

    Raises:
        InputError: there is no such type.
    """
    if dtype not in DTYPES:
        raise InputError(f"dtype {dtype!r}: there are {', '.join(DTYPES)}")
    if dtype == "float32":
        return model, inputs
    target = DTYPES[dtype]

    def convert(leaf: object) -> object:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf.to(target)
        return leaf

    if any(isinstance(p, FakeTensor) for p in model.parameters()):
        # Fake tensors are not copied, or the copies would be of another mode than the inputs.
        tensors_by_id = {
            id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())
        }
        copied = copy.deepcopy(model, tensors_by_id)
        return apply_to_tensors(copied, convert), pytree.tree_map(convert, inputs)
    copied = copy.deepcopy(model)
    for parameter, copied_parameter in zip(
        model.parameters(), copied.parameters(), strict=True
    ):
        # A copy of a tensor has none of its hooks.
        copied_parameter._backward_hooks = parameter._backward_hooks
        copied_parameter._post_accumulate_grad_hooks = (
            parameter._post_accumulate_grad_hooks
        )
    return copied.to(target), pytree.tree_map(convert, inputs)


def _is_fake(model: nn.Module, step: StepModule) -> bool:
    """Return whether the model or an input has no memory."""
    tensors = chain(model.parameters(), model.buffers(), step.inputs())
    return any(isinstance(t, FakeTensor) for t in tensors)


def capture_model(
    model: str | nn.Module,
    inputs: object = None,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    options: CaptureOptions | None = None,
    fake: bool = False,
) -> Program:
    """Capture a model's training step (or inference) at 1/M of its batch.

    Args:
        model: ``module:callable``, ``hf:CONFIG``, a zoo name, or a module with ``inputs``.
        inputs: Example inputs of a module.
        loss: The loss of a module, as ``capture`` takes it.
        options: The optimizer, the precision, the number of micro-batches.
        fake: Never allocate the model's tensors; the program cannot be executed then.

    Raises:
        InputError: there is no such model, or its batch cannot be cut.
        OtherLossError: the op that mixes the examples of the batch is named.
        CaptureError: the module and the line that cannot be captured are named.
    """
    options = options or CaptureOptions()
    workload = make_workload(model, inputs, loss, fake=fake)
    share = None
    if options.microbatches > 1 and isinstance(model, str) and is_sized(model):
        # The callable has a parameter for its batch, so it builds the share itself.
        tensors = chain(
            workload.model.parameters(), pytree.tree_leaves(workload.inputs)
        )
        mode = next((t.fake_mode for t in tensors if isinstance(t, FakeTensor)), fake)
        share = load(model, share=options.microbatches, fake=mode)
    return capture_workload(
        workload,
        options.microbatches,
        share=share,
        optimizer=options.optimizer,
        dtype=options.dtype,
        forward_only=options.forward_only,
        accept_other_loss=options.accept_other_loss,
    )


def capture_workload(
    whole: Workload,
    count: int = 1,
    *,
    share: Workload | None = None,
    optimizer: str | Optimizer = "sgd",
    dtype: str = "float32",
    forward_only: bool = False,
    accept_other_loss: bool = False,
) -> Program:
    """Capture one of `count` shares of a workload's batch, if it may be cut.

    Args:
        whole: The workload with the inputs of the whole batch.
        count: The number of shares, M.
        share: A workload that was built for a share; by default the whole's inputs are cut.
        optimizer: The optimizer, as `capture` takes it.
        dtype: The type of parameters and inputs, as `capture` takes it.
        forward_only: Whether it is inference, as `capture` takes it.
        accept_other_loss: Capture it also where the mean of the shares' losses is another loss.

    Raises:
        OtherLossError: the op that mixes the examples of the batch is named.
        InputError, CaptureError: see `capture`.
    """
    workload = whole
    if count > 1:
        workload = bind_share(share or cut_workload(whole, count), whole, count)
        if not accept_other_loss:
            _check_buffers(whole, count)
    try:
        return capture(
            workload.model,
            workload.inputs,
            loss=workload.loss,
            optimizer=optimizer,
            dtype=dtype,
            forward_only=forward_only,
            name=workload.name,
            whole=UncutBatch(whole, count, accept_other_loss) if count > 1 else None,
        )
    except CaptureError as error:
        raise CaptureError(f"{error}{_uncut(workload, count)}") from error


def _check_buffers(whole: Workload, count: int) -> None:
    """Refuse a batch to be cut if a buffer keeps statistics of it, batch norm's own aside.

    A model that cannot be followed here is left to the capture to judge.

    Raises:
        OtherLossError: the buffer is named.
    """
    norms = [module for module in whole.model.modules() if isinstance(module, NormBase)]
    norm_buffers = {id(buffer) for module in norms for buffer in module.buffers()}
    if all(id(buffer) in norm_buffers for buffer in whole.model.buffers()):
        return
    try:
        with silence_warnings(), as_eager(), torch.random.fork_rng(devices=[]):
            step = StepModule(whole.model, whole.loss, whole.inputs)
            statistics = batch_statistics(step)
    except Exception:
        return
    if statistics:
        raise OtherLossError(
            f"{whole.name}, {count} micro-batches: buffer {statistics[0]!r} keeps statistics of "
            f"the whole batch, of which every micro-batch would keep its own; {MEND}"
        )


def _uncut(share: Workload, count: int) -> str:
    """Return the end of an error's line about an input that every share got as it is.

    Its first axis has another length than the batch's. Empty if there is no such input.
    """
    sizes = [
        tuple(x.shape) for x in pytree.tree_leaves(share.inputs) if hasattr(x, "shape")
    ]
    batch = sizes[0][0] if sizes and sizes[0] else 0
    uncut_size = next((size for size in sizes if size and size[0] != batch), None)
    if count == 1 or uncut_size is None:
        return ""
    return (
        f"; it is one of {count} shares of the batch, whose first input has {batch} examples; the "
        f"input of shape {list(uncut_size)} has another first axis and was given whole: give it "
        "one row an example, or leave micro-batches out"
    )


def say_batch(program: Program, progress: Callable[[str], None] | None) -> None:
    """Tell `progress` how the batch was cut, if anything was repaired, excepted or accepted."""
    batch = program.batch
    if progress is None or batch is None or batch.count == 1:
        return
    remarks = [*batch.notes, *batch.exceptions]
    remarks += [f"accepted although {batch.differs}"] if batch.differs else []
    if remarks:
        progress(f"{batch.count} micro-batches: {'; '.join(remarks)}")


def bind_share(share: Workload, whole: Workload, count: int) -> Workload:
    """Return a share that was built by itself, with the state and the first inputs of the whole.

    A builder may draw the batch before the parameters; its parameters would be others then.
    """
    share_state = share.model.state_dict()
    whole_state = whole.model.state_dict()
    with torch.no_grad():
        for name in share_state.keys() & whole_state.keys():
            if (
                share.model is not whole.model
                and share_state[name].shape == whole_state[name].shape
            ):
                share_state[name].copy_(whole_state[name])
    leaves, spec = pytree.tree_flatten(share.inputs)
    whole_leaves = pytree.tree_leaves(whole.inputs)
    tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    axes = batch_axes([leaves[i] for i in tensors], [whole_leaves[i] for i in tensors])
    for i, axis in zip(tensors, axes, strict=True):
        leaves[i] = (
            whole_leaves[i]
            if axis is None
            else whole_leaves[i].chunk(count, axis)[0].contiguous()
        )
    return replace(share, inputs=pytree.tree_unflatten(leaves, spec))


def make_workload(
    model: str | nn.Module,
    inputs: object = None,
    loss: Callable[..., torch.Tensor] | None = None,
    *,
    fake: bool = False,
) -> Workload:
    """Return the workload that is captured: a model, its inputs and its loss.

    Args:
        model: A module with `inputs`, or a name as `load` takes it.
        inputs: Example inputs of a module.
        loss: The loss of a module, as `StepModule` takes it.
        fake: Make a named model without memory.

    Raises:
        InputError: there is no such model, its inputs are missing, or the batch cannot be cut.
    """
    if isinstance(model, str):
        workload = load(model, fake=fake)
    elif inputs is None:
        raise InputError("capture: example inputs are needed with a module")
    else:
        initialise_lazy(model, loss, inputs)
        workload = Workload(type(model).__name__, model, as_inputs(inputs, model), loss)
    module = workload.model
    batch = workload.inputs
    leaves = [*module.parameters(), *module.buffers(), *pytree.tree_leaves(batch)]
    if not any(map(operator.attrgetter("is_meta"), filter(torch.is_tensor, leaves))):
        return workload
    module, batch = copy_as_fakes(module, batch)
    return replace(workload, model=module, inputs=batch)


def copy_as_fakes(model: nn.Module, inputs: object) -> tuple[nn.Module, Any]:
    """Return a copy of a model on the meta device, and inputs, as fake tensors of the CPU.

    Meta tensors do not mix with others and have no device of a cluster; fake ones do, and are
    planned without a byte of them.
    """
    mode = make_fake_mode()

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        with mode:
            fake_tensor = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype
            )
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(fake_tensor, tensor.requires_grad)
        return fake_tensor.requires_grad_(tensor.requires_grad and tensor.is_leaf)

    state = {
        id(tensor): fake(tensor)
        for tensor in chain(model.parameters(), model.buffers())
    }
    copied = copy.deepcopy(model, dict(state))
    fake_inputs = pytree.tree_map(
        lambda x: fake(x) if isinstance(x, torch.Tensor) else x, inputs
    )
    return copied, fake_inputs


def refuse_meta(model: nn.Module, inputs: object, what: str) -> None:
    """Refuse a model or inputs on the meta device where their numbers are needed.

    Raises:
        InputError: naming the first parameter, buffer or input.
    """
    leaves = leaves_by_path(inputs).items()
    named_inputs = (
        (f"input {path}", x) for path, x in leaves if isinstance(x, torch.Tensor)
    )
    named = chain(model.named_parameters(), model.named_buffers(), named_inputs)
    name = next((name for name, tensor in named if tensor.is_meta), None)
    if name is not None:
        raise InputError(
            f"{what}: {name} is on the meta device, without numbers, which only planning can do "
            "with; give it memory and numbers first (a model by model.to_empty(device='cpu'), then "
            "initialise or load it)"
        )
