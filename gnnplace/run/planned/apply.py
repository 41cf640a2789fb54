"""A plan on a user's model: every process gets its stages, its parts of parameters and its row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from gnnplace.errors import InputError, MismatchError
from gnnplace.plans import (
    MIXED,
    Action,
    Cuts,
    Layouts,
    Plan,
    PlanFile,
    StageCalls,
    attention_runs,
    capture_layers,
    check_inputs,
    check_placements,
    check_plan,
    check_stages,
    count_examples,
    cuts_of,
    find_counts,
    fingerprint,
    join_runs,
    layer_numbers,
    make_layouts,
    make_plan_inputs,
    make_stage_calls,
    moved_to,
    number_draws,
    told_inputs,
    with_batch,
)
from gnnplace.run.planned.batches import BatchForm
from gnnplace.run.planned.executor import Executor
from gnnplace.run.planned.parameters import Parameters, make_local_parameter
from gnnplace.run.planned.passes import StageCode, last_readers, list_outputs
from gnnplace.run.planned.runner import PlanRunner
from gnnplace.run.planned.seats import Seat, make_seats, take_seat
from gnnplace.run.planned.weights import find_loss_scale
from gnnplace.run.planned.whole import (
    is_whole,
    make_marks,
    refuse_again,
    refuse_parts,
    replaced,
)
from gnnplace.sharding import LayerGraph, PlacedCall, place_calls
from gnnplace.torch_names import FakeTensor
from gnnplace.tracing import (
    BUFFER,
    Fingerprint,
    as_inputs,
    initialise_lazy,
    reading,
    refuse_meta,
)
from gnnplace.zoo import Workload


@dataclass(frozen=True, eq=False)
class _Model:
    """A model's calls on one micro-batch, with the inputs that they were recorded on."""

    layers: LayerGraph
    cuts: Cuts
    workload: Workload


def apply_plan(
    plan: Plan,
    model: nn.Module,
    inputs: object,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    reduction: str | None = None,
    notify: Callable[[Action | None], None] | None = None,
    attention: bool = True,
) -> PlanRunner:
    """Make a model train as a plan says; see `JointPlan.apply`.

    `notify` is called before every action, and with None while things get ready. Without
    `attention`, the dropout of attention is off.
    """
    refuse_again(model)
    file = plan.file
    beat = notify or _ignore
    inputs = make_plan_inputs(file) if inputs is None else inputs
    reduction = reduction or file.loss
    if reduction not in ("mean", "sum"):
        raise InputError(f"apply: reduction {reduction!r}: must be mean or sum")
    checked = check_plan(file)
    ranks = file.rank_of
    initialise_lazy(model, loss, inputs)
    workload = Workload(file.model, model, as_inputs(inputs, model), loss)
    refuse_meta(model, workload.inputs, "apply")
    form = BatchForm.of(workload.inputs, count_examples(workload), file.precision)
    with reading(model) as read:
        recorded = _record(file, workload, attention)
    graph = recorded.layers.calls
    fakes = [t for t in graph.constants.values() if isinstance(t, FakeTensor)]
    if fakes:
        raise MismatchError(
            "plan: the model makes constants from shapes alone; it cannot be run"
        )
    # Constants of the calls go to this process's device, as parameters do.
    torch_device = _device(device, model)
    graph = moved_to(graph, torch_device)
    recorded = replace(recorded, layers=replace(recorded.layers, calls=graph))
    beat(None)
    pieces = _cut_stages(file, recorded)
    holders = _holders(pieces, ranks, model)
    ties = [owners for owners in holders.values() if len(owners) > 1]
    seat = take_seat(make_seats(file), torch_device, ties)
    beat(None)
    own_stages = [k for k, rank in enumerate(ranks) if rank == seat.rank]
    code = _make_code(file, recorded, pieces, own_stages, seat, holders)
    beat(None)
    keepers = _keepers(recorded, pieces, ranks, model)
    scale = 1.0 if reduction == "sum" else 1.0 / (plan.microbatches * seat.replicas)
    store = code[own_stages[0]].parameters
    if not is_whole(store, model):
        refuse_parts(model)
    runner = PlanRunner(
        file=file,
        model=model,
        parameters_here=store,
        executor=Executor(seat, checked.rows[seat.rank], ranks, code, scale, beat),
        form=form,
        seed=seed,
        keepers=keepers,
        holders=holders,
        whole=recorded.layers.step,
        loss_type=graph.values[list_outputs(graph)[0]].dtype,
        scale=find_loss_scale(file.precision),
        recorded=Fingerprint(model, None, read, loss),
        counts=find_counts(graph) if file.batch > file.microbatch_size else None,
        marks=make_marks(store, model),
    )
    runner.marks.put()
    return runner


def _cut_stages(file: PlanFile, recorded: _Model) -> tuple[StageCalls, ...]:
    """Cut the model's calls into the plan's stages."""
    graph = recorded.layers.calls
    segments = recorded.cuts.segments
    number = {segment.name: k for k, segment in enumerate(segments)}
    layers = layer_numbers(segments)
    recomputed = []
    for stage in file.stages:
        entry = stage.recompute
        indices = [number[name] for name in entry.modules]
        if entry.kind == "selective":
            runs = [
                run
                for k in indices
                for run in attention_runs(graph, range(*recorded.cuts.runs[k]))
            ]
            recomputed.append([[graph.calls[i].name for i in run] for run in runs])
        else:
            joined = join_runs(layers, indices, entry.layers)
            recomputed.append(
                [[n for k in run for n in segments[k].members] for run in joined]
            )
    return make_stage_calls(graph, [stage.members for stage in file.stages], recomputed)


def _make_code(
    file: PlanFile,
    recorded: _Model,
    pieces: Sequence[StageCalls],
    own_stages: Sequence[int],
    seat: Seat,
    holders: dict[str, tuple[int, ...]],
) -> dict[int, StageCode]:
    """Return what this process runs of each of its stages, by stage."""
    layers = recorded.layers
    model = recorded.workload.model
    layouts = make_layouts(
        layers, [pieces[k] for k in own_stages], [file.stages[k] for k in own_stages]
    )
    zero = max(file.stages[k].zero for k in own_stages)
    master = file.precision.endswith("-master")
    parameters = _make_parameters(seat, model, holders, layouts, zero, master)
    # Calls that keep parts of what shards gather: all but those of attention.
    attention = {
        i
        for run in recorded.cuts.runs
        for calls in attention_runs(layers.calls, range(*run))
        for i in calls
    }
    kind = seat.device.type
    word = file.precision
    placed: tuple[PlacedCall, ...] = ()
    if seat.mesh is not None:
        placed = place_calls(layers.calls, layers.rules, layouts.split, seat.mesh)
    return {
        k: StageCode(
            graph=layers.calls,
            piece=pieces[k],
            placed=placed,
            model=model,
            parameters=parameters,
            draws=number_draws(layers.calls, pieces[k].calls),
            autocast=partial(
                torch.autocast,
                kind,
                MIXED.get(word),
                word in MIXED,
                cache_enabled=False,
            ),
            done=last_readers(layers.calls, pieces[k]),
            converted=layouts.converted,
            cut=(find_border(file, k - 1) if k else "whole", find_border(file, k)),
            examples=file.microbatch_size,
            regather=(
                frozenset(pieces[k].calls) - attention
                if file.stages[k].regather
                else frozenset()
            ),
        )
        for k in own_stages
    }


def find_border(file: PlanFile, stage: int) -> str:
    """Return how shards cut what a stage sends to the next: "whole" if their meshes differ."""
    pair = file.stages[stage : stage + 2]
    is_same = len({(entry.axes, entry.border) for entry in pair}) == 1
    if is_same:
        return pair[0].border
    return "whole"


def _ignore(action: Action | None) -> None:
    """Ignore an action."""


def _device(device: torch.device | str | None, model: nn.Module) -> torch.device:
    if device is not None:
        return torch.device(device)
    first = next(model.parameters(), None)
    if first is None:
        return torch.device("cpu")
    return first.device


def check_model(file: PlanFile, workload: Workload) -> None:
    """Check that a plan is of a model, and fits its calls, parameters and inputs.

    Args:
        file: The file of a plan that was checked.
        workload: the model, whose tensors may be fake.

    Raises:
        MismatchError: naming the key path and what differs.
    """
    check_inputs(file, told_inputs(with_batch(workload, file.batch).inputs))
    _record(file, replace(workload, name=file.model))


def _record(file: PlanFile, workload: Workload, attention: bool = True) -> _Model:
    """Record the model's calls on the plan's micro-batch, if it is the model of the plan.

    Raises:
        MismatchError: it is another one.
    """
    of_batch = capture_layers(
        with_batch(workload, file.batch), file.precision, proven=False
    )
    short = file.model.removeprefix("hf:").partition("?")[0]  # what options are said of
    names = dict.fromkeys((file.model, short, type(workload.model).__name__))
    cuts = cuts_of(of_batch.calls, of_batch.rules)
    if file.fingerprint not in [
        fingerprint(replace(of_batch.calls, name=n), cuts) for n in names
    ]:
        raise MismatchError(
            "plan: fingerprint: it was made for another model (its calls or their shapes differ, "
            "or model has another name); make a plan for this one"
        )
    share = with_batch(workload, file.microbatch_size)
    layers = capture_layers(share, file.precision, as_run=attention)
    cuts = cuts_of(layers.calls, layers.rules)
    check_stages(cuts.segments, file.stages)
    check_placements(layers.calls, layers.rules, file.stages)
    return _Model(layers, cuts, share)


def _holders(
    pieces: Sequence[StageCalls], ranks: Sequence[int], model: nn.Module
) -> dict[str, tuple[int, ...]]:
    """Return the ranks that hold each parameter; rank 0 has what no call reads."""
    holders: dict[str, tuple[int, ...]] = {}
    for name, _ in model.named_parameters():
        owners = {
            r
            for piece, r in zip(pieces, ranks, strict=True)
            if name in piece.parameters
        }
        holders[name] = tuple(sorted(owners)) or (0,)
    return holders


def _make_parameters(
    seat: Seat,
    model: nn.Module,
    holders: dict[str, tuple[int, ...]],
    layouts: Layouts,
    zero: int,
    master: bool,
) -> Parameters:
    """Make this process's parameters, with the first process's numbers.

    Parameters of the other ranks leave the model (for the device "meta").
    """
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    store = Parameters(seat, zero if seat.replicas * seat.shards > 1 else 0, {}, shapes)
    replacements: dict[int, nn.Parameter] = {}
    for name, parameter in list(model.named_parameters()):
        data = parameter.detach().to(seat.device)
        if seat.seats.count > 1:
            data = data.contiguous()
            dist.broadcast(data, 0)
        # A parameter of other ranks has no memory here; `state_dict` and names stay as they are.
        if seat.rank not in holders[name]:
            replacements[id(parameter)] = nn.Parameter(
                data.to("meta"), parameter.requires_grad
            )
            continue
        parameter.data = data
        home = layouts.homes.get(name, layouts.whole)
        summed = layouts.summed.get(name, (False,) * len(home))
        local = make_local_parameter(
            seat, name, parameter, home, summed, holders[name], store.zero, master
        )
        store.held[name] = local
        replacements[id(parameter)] = local.leaf
        for old in (parameter, local.leaf, local.part):
            if old is not local.learned and old.requires_grad:
                replaced(old)
        if local.split and zero == 3 and not local.tied:
            local.leaf.untyped_storage().resize_(0)
    for module in model.modules():
        for key, value in list(module._parameters.items()):
            if value is not None:
                module._parameters[key] = replacements[id(value)]
    for buffer in model.buffers():
        buffer.data = buffer.data.to(seat.device)
        if seat.seats.count > 1:
            dist.broadcast(buffer.data, 0)
    return store


def _keepers(
    recorded: _Model,
    pieces: Sequence[StageCalls],
    ranks: Sequence[int],
    model: nn.Module,
) -> dict[str, tuple[int, ...]]:
    """Return the ranks that read each buffer of a checkpoint; rank 0 has those that none reads."""
    graph = recorded.layers.calls
    read_buffers = [
        {
            graph.values[value].name
            for call in piece.calls
            for value in graph.calls[call].reads
            if graph.values[value].source == BUFFER
        }
        for piece in pieces
    ]
    saved = set(model.state_dict())
    keepers = {}
    for name in (name for name, _ in model.named_buffers() if name in saved):
        readers = {
            rank
            for names, rank in zip(read_buffers, ranks, strict=True)
            if name in names
        }
        keepers[name] = tuple(sorted(readers)) or (0,)
    return keepers
