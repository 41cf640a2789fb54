"""A model by its name, or a module, as a chain of segments to plan for.

A batch may be split into micro-batches and replicas if its loss is the mean of the parts' losses.
This is checked by following the batch axis through the model to the loss (`tracing.batch.axis`),
under fake tensors, with four examples split in two. In a list of identical modules (the same class
and parameters) the first two stand for all, since the others do the same to the examples. A mean
over counts, such as of words without padding, is the mean of the parts' only if every part counts
the same number, which a notice says. A sum is refused.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnplace.costs import CAPTURED_OPTIMIZERS
from gnnplace.errors import (
    CaptureError,
    GnnplaceError,
    InputError,
    MismatchError,
    OtherLossError,
)
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.decoders.setting import HALVES
from gnnplace.plans.job import TrainingJob
from gnnplace.plans.mesh import MeshFabric
from gnnplace.plans.plan import PlanFile
from gnnplace.plans.segments.block_costs import BlockCosts
from gnnplace.plans.segments.chain import Chain, Input
from gnnplace.plans.segments.counts import find_counts
from gnnplace.plans.segments.cuts import Cuts, find_cuts
from gnnplace.plans.segments.pricing import ModelCosts
from gnnplace.plans.segments.recognition import read_configured_sizes, recognise_sizes
from gnnplace.plans.segments.recording import run_in_precision
from gnnplace.plans.segments.sized import (
    SizedModelCosts,
    with_blocks,
    with_decoder,
    with_sizes,
)
from gnnplace.problem import Cluster, find_kind
from gnnplace.sharding import LayerGraph, split_graph
from gnnplace.torch_names import pytree
from gnnplace.tracing import (
    ADDED,
    EVEN,
    SUMMED,
    UNRULED,
    UNSAID,
    CallGraph,
    Cutter,
    LayerCall,
    StepModule,
    check_cut,
    cut_workload,
    default_loss,
    find_rules,
    make_workload,
    record_calls,
)
from gnnplace.zoo import Workload

TYPES = {
    "bf16-true": torch.bfloat16,
    "bf16-master": torch.bfloat16,
    "16-true": torch.float16,
    "16-master": torch.float16,
}
DROPOUT_POSITIONS = {
    "scaled_dot_product_attention": 4,
    "multi_head_attention_forward": 10,
}
"""Position of the dropout among the arguments of calls of attention."""
EXAMPLES = 4
SHARES = 2
ALIKE = 2
BATCH = 1_000_000_000
"""Most examples of a step."""
SMALL = 1 << 28
"""Bytes of parameters of a model that may be made to decide by numbers whether it may be cut."""
COUNTED = (
    "the loss is a mean over counts, such as of words: micro-batches and replicas weigh as many as "
    "they count, or must count as many where it is no single mean"
)


def capture_chain(job: TrainingJob, cluster: Cluster) -> Chain:
    """Capture a model and cut it into segments, priced by its sizes where these are known.

    Arguments and errors are those of `capture_layer_chain`.
    """
    chain, workload = _capture(job, cluster)
    if chain.precision not in HALVES:
        return chain  # no framework prices it
    return with_sizes(chain, workload, cluster)


def capture_layer_chain(job: TrainingJob, cluster: Cluster) -> Chain:
    """Capture a model's calls and cut them into segments, priced by the captured kernels.

    Nothing is allocated.

    Args:
        job: What is trained. Its precision is "32-true" and its optimizer "adamw" where it names
            none.
        cluster: The devices that it is planned for.

    Raises:
        InputError: There is no such model, or its batch cannot be changed.
        CaptureError: The model cannot be captured, with the module that stops it.
    """
    return _capture(job, cluster)[0]


def recognise_decoder(workload: Workload) -> DecoderSizes | str:
    """Return the decoder that a model is by its configuration or its calls, or why it is none.

    Args:
        workload: The model, its inputs and its loss.

    Raises:
        CaptureError: It cannot be captured, with the module that stops it.
    """
    batch = count_examples(workload)
    sizes = read_configured_sizes(workload, batch)
    if sizes is not None:
        return sizes
    layers = capture_layers(workload, "32-true")
    return recognise_sizes(layers, workload.model, batch, mixtures=True)


def _capture(job: TrainingJob, cluster: Cluster) -> tuple[Chain, Workload]:
    """Return a model's segments and what was captured; see `capture_layer_chain`."""
    precision = job.precision or "32-true"
    optimizer = job.optimizer or "adamw"
    if optimizer not in CAPTURED_OPTIMIZERS:
        raise InputError(
            f"optimizer {optimizer}: is priced of models by their sizes; a captured model steps by "
            f"{', '.join(CAPTURED_OPTIMIZERS)}: give --optimizer with one of them"
        )
    if job.lora is not None:
        raise InputError(
            f"--lora {job.lora}: is priced of decoders of the catalogue by their sizes, in half "
            "precision on GPUs; for any other model give module:callable of it with its adapters"
        )
    # Whether the batch may be cut is decided before the model changes its type.
    example_workload = make_workload(job.model, job.inputs, job.loss, fake=True)
    workload = with_batch(example_workload, job.batch)
    mixes, notices = _mixes(
        job.model, example_workload, count_examples(workload), job.accept_other_loss
    )
    # Capture the calls; some of them forbid the cut as well.
    layers = capture_layers(workload, precision)
    notices = (*notices, *layers.calls.notices)
    if layers.calls.statistics and not mixes and not job.accept_other_loss:
        mixes = (
            f"buffer {layers.calls.statistics[0]!r} keeps statistics of the whole batch"
        )
    if (
        COUNTED in notices
        and not job.accept_other_loss
        and find_counts(layers.calls) is None
    ):
        mixes = "the loss divides by a count within a function that no rule knows; divide by a sum"
    # Cut the calls into segments, which the source prices.
    cuts = find_cuts(layers.calls, layers.rules)
    examples = count_examples(workload)
    source = ModelCosts(
        layers, cuts, MeshFabric(cluster), examples, precision, optimizer
    )
    source.parts.fullest = job.imbalance
    if source.experts:
        notices = (
            *notices,
            f"experts: the fullest device is priced with {job.imbalance:g} times the mean's rows "
            "(imbalance)",
        )
    # Notices say what a reader of the plan must know of its prices and cuts.
    joined = ""
    if cuts.shared:
        joined = (
            f"buffer {cuts.shared[0]!r} is changed by the forward pass and used in several layers: "
            "they stay in one stage"
        )
        notices = (*notices, joined)
    if any(find_kind(kind) == "cpu" for kind in cluster.kinds):
        rates = (
            "times on CPUs are estimated, by a roofline with assumed rates of one core"
        )
        notices = (rates, *notices)
    chain = Chain(
        workload.name,
        compute_fingerprint(layers.calls, cuts),
        cuts.segments,
        _border(layers.calls, cuts, examples),
        source,
        examples,
        precision,
        optimizer,
        cuts.tied,
        mixes=mixes,
        loss="sum" if SUMMED in notices else "mean",
        notices=notices,
        inputs=describe_inputs(workload.inputs),
        joined=joined,
        parameters=sum(map(torch.Tensor.numel, workload.model.parameters())),
    )
    return chain, workload


def move_chain_to_cluster(chain: Chain, cluster: Cluster) -> Chain:
    """Return a captured model for another cluster; the kernels that are known of it are kept.

    Raises:
        InputError: The model was not captured.
    """
    if not isinstance(chain.source, ModelCosts):
        raise InputError(
            f"{chain.name}: only a captured model can move to another cluster"
        )
    old = chain.source
    fabric = MeshFabric(cluster)
    source = ModelCosts(
        old.layers, old.cuts, fabric, old.batch, old.precision, old.optimizer
    )
    source.parts = old.parts
    notices = chain.notices
    if chain.recognition is not None:
        line = chain.recognition.line()
        notices = tuple(notice for notice in notices if notice != line)
    captured = replace(
        chain,
        source=source,
        framework=None,
        notices=notices,
        recognition=None,
        alternative=None,
        _known={},
    )
    if isinstance(old, BlockCosts):
        return with_blocks(captured, cluster)
    if not isinstance(old, SizedModelCosts):
        return captured
    return with_decoder(captured, old.sizes.setting.decoder, cluster)


def check_inputs(file: PlanFile, known: Sequence[Input]) -> None:
    """Check that a plan was made with a model's inputs, where both are known.

    Args:
        file: The plan.
        known: Name, shape and type of each input of the model.

    Raises:
        MismatchError: They differ; the message names the first that does.
    """
    file_inputs = [(x.name, tuple(x.shape), x.dtype) for x in file.inputs]
    for k, (file_input, model_input) in enumerate(
        zip_longest(file_inputs, known if file_inputs else ())
    ):
        if file_input != model_input and known:
            raise MismatchError(
                f"plan: inputs[{k}]: {_worded(file_input)}; the model has {_worded(model_input)}"
                " at this batch"
            )


def _worded(one: Input | None) -> str:
    if one is None:
        return "none"
    return f"{one[0] or ''} {list(one[1])} {one[2]}".strip()


def describe_inputs(inputs: Any) -> tuple[Input, ...]:
    """Return the name, shape and type of every input; nothing if any is no tensor."""
    if isinstance(inputs, dict):
        named = list(inputs.items())
    else:
        named = [(None, x) for x in inputs]
    if not all(isinstance(x, torch.Tensor) for _, x in named):
        return ()
    return tuple(
        (n, tuple(x.shape), str(x.dtype).removeprefix("torch.")) for n, x in named
    )


def make_plan_inputs(file: PlanFile) -> Any:
    """Return inputs like those that a plan was made with, all zeros.

    Raises:
        InputError: The plan's file does not have them, or they cannot be made here.
    """
    if not file.inputs:
        raise InputError(
            "apply: the plan's file has no shapes of inputs; give example inputs"
        )
    try:
        inputs = [
            torch.zeros(x.shape, dtype=getattr(torch, x.dtype)) for x in file.inputs
        ]
    except (AttributeError, TypeError, RuntimeError):
        raise InputError(
            "plan: inputs: cannot be made: unknown types, or too large"
        ) from None
    names = [x.name for x in file.inputs]
    if None in names:
        return tuple(inputs)
    return dict(zip(names, inputs, strict=True))


def _mixes(
    model: str | nn.Module, workload: Workload, examples: int, accept: bool
) -> tuple[str, tuple[str, ...]]:
    """Return why the batch must not be cut into micro-batches, or "", and notices.

    Call this before the model changes its type. If the rules cannot decide and the model is small,
    it is run on numbers.

    Args:
        model: The model, or its name.
        workload: The model with its inputs and loss.
        examples: Examples of a step.
        accept: Whether the batch may be cut although that changes the loss.
    """
    if examples == 1:
        return "", ()
    reason, notices = why_not(with_batch(workload, _choose_batch(workload)))
    size = sum(p.numel() * p.element_size() for p in workload.model.parameters())
    undecided = UNRULED in reason or UNSAID in reason
    if undecided and isinstance(model, str) and size < SMALL:
        real = make_workload(model)
        reason, notices = why_not(with_batch(real, _choose_batch(real)))
    if reason and accept:
        return "", (f"accepted although {reason}",)
    return reason, notices


def _choose_batch(workload: Workload) -> int:
    """Return a number of examples, `EXAMPLES` or more, with which to prove that a cut is possible.

    Some inputs have no batch but are shared by all examples. Neither the number nor that of a share
    is the first size of such an input, so that a size tells which axis is the batch.
    """
    batch = count_examples(workload)
    leaves = pytree.tree_leaves(workload.inputs)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    sizes = [int(tensor.shape[0]) for tensor in tensors if tensor.dim() > 0]
    shared = {size for size in sizes if size != batch}
    return next(
        e
        for e in itertools.count(EXAMPLES, SHARES)
        if shared.isdisjoint({e, e // SHARES})
    )


def capture_layers(
    workload: Workload, precision: str, *, as_run: bool = False, proven: bool = True
) -> LayerGraph:
    """Capture a workload's calls in a precision, with its loss, and the rules by which they split.

    Args:
        workload: Model, inputs and loss. The model changes its type if the precision is half.
        precision: Precision of parameters and passes, in Lightning's words.
        as_run: Whether to keep the dropout of attention, with the rules that attention has without
            it.
        proven: Whether to refuse a step that is more than its calls.

    Raises:
        CaptureError: The model cannot be captured, or takes a gradient within its forward pass.
    """
    model = workload.model
    if precision in TYPES:
        retype_model(model, TYPES[precision])
    inputs = pytree.tree_map(lambda x: cast_input(x, precision), workload.inputs)
    step = StepModule(model, workload.loss or default_loss, inputs)
    with run_in_precision(precision):
        recorded = record_calls(step, workload.name, proven=proven)
    inner = next((c for c in recorded.calls if c.function is torch.autograd.grad), None)
    if inner is not None:
        raise CaptureError(
            f"{workload.name}: {inner.name}: a gradient within the forward pass has no part that "
            "could be priced; split the model by gnnplace.shard, or place its ops (gnnplace place)"
        )
    calls = without_dropped_attention(recorded)
    rules = find_rules(calls)
    layer_calls = recorded if as_run else calls
    return LayerGraph(step, layer_calls, rules, split_graph(calls, rules))


def without_dropped_attention(graph: CallGraph) -> CallGraph:
    """Return the same calls with attention that keeps all its weights.

    A part of attention with dropout would draw other numbers than the whole, in replicas and
    micro-batches as well. Without dropout it takes as long, so that plans may split it.
    """

    def kept(call: LayerCall) -> LayerCall:
        position = DROPOUT_POSITIONS.get(call.kind)
        if position is None:
            return call
        args = call.args
        if len(args) > position:
            args = (*args[:position], 0.0, *args[position + 1 :])
        kwargs = {k: 0.0 if k == "dropout_p" else v for k, v in call.kwargs.items()}
        return replace(call, args=args, kwargs=kwargs)

    attention = [i for i, c in enumerate(graph.calls) if c.kind in DROPOUT_POSITIONS]
    return replace(
        graph,
        calls=tuple(kept(call) for call in graph.calls),
        random=tuple(i for i in graph.random if i not in attention),
    )


def retype_model(model: nn.Module, dtype: torch.dtype) -> None:
    """Change the type of a model's floating-point parameters and buffers; tied ones stay tied.

    `Module.to` cannot swap parameters that are fake and shared.
    """
    copies: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None or not parameter.is_floating_point():
                continue
            if id(parameter) not in copies:
                learns = parameter.requires_grad
                copied = copies[id(parameter)] = nn.Parameter(
                    parameter.detach().to(dtype), learns
                )
                copied._backward_hooks = parameter._backward_hooks
                copied._post_accumulate_grad_hooks = (
                    parameter._post_accumulate_grad_hooks
                )
            module._parameters[name] = copies[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None and buffer.is_floating_point():
                module._buffers[name] = buffer.to(dtype)


def cast_input(leaf: object, precision: str) -> Any:
    """Return an input in the type of a precision's parameters; unchanged if that is not half."""
    if (
        precision in TYPES
        and isinstance(leaf, torch.Tensor)
        and leaf.is_floating_point()
    ):
        return leaf.to(TYPES[precision])
    return leaf


def count_examples(workload: Workload) -> int:
    """Return the examples of a workload's inputs: the first dimension of its first tensor.

    Raises:
        InputError: No input has a first dimension, or it is empty.
    """
    for leaf in pytree.tree_leaves(workload.inputs):
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
            if leaf.shape[0] == 0:
                raise InputError(
                    f"{workload.name}: its inputs hold no example; give one or more"
                )
            return int(leaf.shape[0])
    raise InputError(f"{workload.name}: no input has a batch")


def with_batch(workload: Workload, batch: int | None) -> Workload:
    """Return the workload with `batch` examples: its own, repeated; None leaves it as it is.

    Raises:
        InputError: The number is not from 1 to `BATCH`.
    """
    if batch is None:
        return workload
    if not 1 <= batch <= BATCH:
        raise InputError(f"batch {batch}: must be from 1 to {BATCH:,}")
    num_examples = count_examples(workload)

    def resized(leaf: object) -> object:
        if (
            not isinstance(leaf, torch.Tensor)
            or leaf.dim() == 0
            or leaf.shape[0] != num_examples
        ):
            return leaf
        times = -(-batch // num_examples)
        return leaf.repeat(times, *[1] * (leaf.dim() - 1))[:batch]

    inputs = pytree.tree_map(resized, workload.inputs)
    return Workload(workload.name, workload.model, inputs, workload.loss)


def _border(
    graph: CallGraph, cuts: Cuts, batch: int
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the bytes an example of what crosses each cut. [segments + 1]"""
    crossing = [
        sum(graph.values[v].bytes for v in values) / batch for values in cuts.crossing
    ]
    return np.array([*crossing, 0.0])


def compute_fingerprint(graph: CallGraph, cuts: Cuts) -> str:
    """Return a hash of a model's structure: its calls, shapes but for the batch, and segments."""
    structure = []
    for call in graph.calls:
        shapes = [list(graph.values[value].shape[1:]) for value in call.results]
        structure.append([call.name, call.kind, shapes])
    runs = [list(run) for run in cuts.runs]
    data = json.dumps([graph.name, structure, runs])
    return hashlib.sha256(data.encode()).hexdigest()


def why_not(workload: Workload) -> tuple[str, tuple[str, ...]]:
    """Return why a workload of `EXAMPLES` examples cannot be cut, or what to know if it can.

    Returns:
        The reason, empty if it is proven that the batch may be cut; and notices.
    """
    try:
        try:
            with shorten_lists(workload.model):
                notes = _proven(workload)
        except OtherLossError:
            raise
        except GnnplaceError:  # such a model may count its layers
            notes = _proven(workload)
    except OtherLossError as error:
        return _reason(str(error)), ()
    except (CaptureError, InputError) as error:
        return f"it cannot be proven that the batch may be cut: {error}", ()
    if ADDED in notes or (SUMMED in notes and EVEN in notes):
        return (
            "the loss has a sum over the examples beside other terms, or depends on their number; "
            "return means instead",
            (),
        )
    if SUMMED in notes:
        return "", (SUMMED,)
    return "", (COUNTED,) if EVEN in notes else ()


def _proven(workload: Workload) -> tuple[str, ...]:
    """Return the notes of how the batch is cut into two shares.

    Raises:
        GnnplaceError: It is not proven that it may be cut.
    """
    loss = workload.loss or default_loss
    whole_step, part_step = (
        StepModule(workload.model, loss, w.inputs)
        for w in (workload, cut_workload(workload, SHARES))
    )
    cutter = Cutter(
        whole_step, part_step, SHARES, accept=False, name=workload.name, bare=True
    )
    check_cut(part_step, cutter)
    return cutter.batch.notes


@contextmanager
def shorten_lists(model: nn.Module) -> Iterator[None]:
    """Leave out, inside of the block, modules of each list that equal the two before them."""
    full_lists: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for module in [m for m in model.modules() if isinstance(m, nn.ModuleList)]:
        # The list's own methods would number what remains anew.
        modules: dict[str, Any] = module._modules
        children = dict(modules)
        run: list[Any] = []
        for name, child in children.items():
            structure = _structure(child)
            if run and run[-1] == structure:
                run = [*run, structure]
            else:
                run = [structure]
            if len(run) > ALIKE:
                del modules[name]
        full_lists.append((modules, children))
    try:
        yield
    finally:
        for modules, children in full_lists:
            modules.clear()
            modules.update(children)


def _structure(module: nn.Module | None) -> Any:
    if module is None:
        return None
    own_calls = [
        (name, tuple(p.shape), p.requires_grad) for name, p in module.named_parameters()
    ]
    return [type(m) for m in module.modules()], own_calls


def _reason(told: str) -> str:
    """Return an error's text without its leading name and its advice about captures."""
    return told.partition(": ")[2].partition("; leave the batch whole")[0]
