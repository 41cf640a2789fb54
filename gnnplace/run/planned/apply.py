"""A plan on a user's model: every process gets its stages, its parts of parameters and its row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from gnnplace.errors import InputError, MismatchError
from gnnplace.plans.order.orders import Action
from gnnplace.plans.plan import Plan, PlanFile
from gnnplace.plans.reading import check_plan
from gnnplace.plans.segments.chain import joined_runs, layer_numbers
from gnnplace.plans.segments.chains import (
    batch_of,
    check_inputs,
    fingerprint,
    inputs_of,
    layers_of,
    told_inputs,
    with_batch,
)
from gnnplace.plans.segments.counts import counts_of
from gnnplace.plans.segments.cuts import Cuts, attention_runs, cuts_of
from gnnplace.plans.segments.placements import (
    Layouts,
    check_placements,
    check_stages,
    layouts_of,
)
from gnnplace.plans.segments.recording import MIXED
from gnnplace.plans.segments.stage_calls import StageCalls, moved_to, numbered_draws, pieces_of
from gnnplace.run.planned.batches import BatchForm
from gnnplace.run.planned.executor import Executor
from gnnplace.run.planned.parameters import Parameters, held_of
from gnnplace.run.planned.passes import StageCode, last_readers, output_of
from gnnplace.run.planned.runner import PlanRunner
from gnnplace.run.planned.seats import Seat, seats_of, take_seat
from gnnplace.run.planned.weights import scale_for
from gnnplace.run.planned.whole import is_whole, marks_of, refuse_again, refuse_parts, replaced
from gnnplace.sharding.captured.split import LayerGraph
from gnnplace.sharding.run.runner import PlacedCall
from gnnplace.sharding.run.runner import stages as placed_calls
from gnnplace.torch_names import FakeTensor
from gnnplace.tracing import BUFFER, Fingerprint, as_inputs, initialise_lazy, reading, refuse_meta
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
    inputs: Any,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    reduction: str | None = None,
    told: Callable[[Action | None], None] | None = None,
    attention: bool = True,
) -> PlanRunner:
    """Makes a model train as a plan says; see `JointPlan.apply`.

    `told` is called before every action, and with None while things get ready; without `attention`,
    the dropout of attention is off.
    """
    refuse_again(model)
    file, beat = plan.file, told or _nothing
    inputs = inputs_of(file) if inputs is None else inputs
    reduction = reduction or file.loss
    if reduction not in ("mean", "sum"):
        raise InputError(f"apply: reduction {reduction!r}: must be mean or sum")
    checked, ranks = check_plan(file), file.rank_of
    initialise_lazy(model, loss, inputs)
    workload = Workload(file.model, model, as_inputs(inputs, model), loss)
    refuse_meta(model, workload.inputs, "apply")
    form = BatchForm.of(workload.inputs, batch_of(workload), file.precision)
    with reading(model) as read:
        known = _recorded(file, workload, attention)
    fakes = [t for t in known.layers.calls.constants.values() if isinstance(t, FakeTensor)]
    if fakes:
        raise MismatchError("plan: the model makes constants from shapes alone; it cannot be run")
    where = _device(device, model)
    known = replace(known, layers=replace(known.layers, calls=moved_to(known.layers.calls, where)))
    beat(None)
    pieces = _pieces(file, known)
    holders = _holders(pieces, ranks, model)
    ties = [owners for owners in holders.values() if len(owners) > 1]
    seat = take_seat(seats_of(file), where, ties)
    beat(None)
    own = [k for k, rank in enumerate(ranks) if rank == seat.rank]
    code = _code(file, known, pieces, own, seat, holders)
    beat(None)
    keepers = _keepers(known, pieces, ranks, model)
    scale = 1.0 if reduction == "sum" else 1.0 / (plan.microbatches * seat.replicas)
    graph, store = known.layers.calls, code[own[0]].parameters
    if not is_whole(store, model):
        refuse_parts(model)
    runner = PlanRunner(
        file,
        model,
        store,
        Executor(seat, checked.rows[seat.rank], ranks, code, scale, beat),
        form,
        seed,
        keepers,
        holders,
        known.layers.step,
        graph.values[output_of(graph)[0]].dtype,
        scale_for(file.precision),
        Fingerprint(model, None, read, loss),
        counts_of(graph) if file.batch > file.microbatch_size else None,
        marks_of(store, model),
    )
    runner.marks.put()
    return runner


def _pieces(file: PlanFile, known: _Model) -> tuple[StageCalls, ...]:
    """The plan's stages of the model's calls."""
    graph, segments = known.layers.calls, known.cuts.segments
    number = {segment.name: k for k, segment in enumerate(segments)}
    layers = layer_numbers(segments)
    again = []
    for stage in file.stages:
        own, entry = [number[name] for name in stage.recompute.modules], stage.recompute
        if entry.kind == "selective":
            runs = [run for k in own for run in attention_runs(graph, range(*known.cuts.runs[k]))]
            again.append([[graph.calls[i].name for i in run] for run in runs])
        else:
            joined = joined_runs(layers, own, entry.layers)
            again.append([[n for k in run for n in segments[k].members] for run in joined])
    return pieces_of(graph, [stage.members for stage in file.stages], again)


def _code(
    file: PlanFile,
    known: _Model,
    pieces: Sequence[StageCalls],
    own: Sequence[int],
    seat: Seat,
    holders: dict[str, tuple[int, ...]],
) -> dict[int, StageCode]:
    """What this process runs of each of its stages."""
    layers, model = known.layers, known.workload.model
    layouts = layouts_of(layers, [pieces[k] for k in own], [file.stages[k] for k in own])
    zero, master = max(file.stages[k].zero for k in own), file.precision.endswith("-master")
    parameters = _held(seat, model, holders, layouts, zero, master)
    # Calls that keep parts of what shards gather: all but those of attention.
    attention = {
        i
        for run in known.cuts.runs
        for calls in attention_runs(layers.calls, range(*run))
        for i in calls
    }
    kind, word = seat.device.type, file.precision
    placed: tuple[PlacedCall, ...] = ()
    if seat.mesh is not None:
        placed = placed_calls(layers.calls, layers.rules, layouts.split, seat.mesh)
    return {
        k: StageCode(
            layers.calls,
            pieces[k],
            placed,
            model,
            parameters,
            numbered_draws(layers.calls, pieces[k].calls),
            partial(torch.autocast, kind, MIXED.get(word), word in MIXED, cache_enabled=False),
            last_readers(layers.calls, pieces[k]),
            layouts.several,
            (border_of(file, k - 1) if k else "whole", border_of(file, k)),
            file.microbatch_size,
            frozenset(pieces[k].calls) - attention if file.stages[k].regather else frozenset(),
        )
        for k in own
    }


def border_of(file: PlanFile, stage: int) -> str:
    """How what shards send from a stage to the next is cut; where they are unlike, it is whole."""
    pair = file.stages[stage : stage + 2]
    alike = len({(entry.axes, entry.border) for entry in pair}) == 1
    return pair[0].border if alike else "whole"


def _nothing(action: Action | None) -> None:
    """Tells nobody."""


def _device(device: torch.device | str | None, model: nn.Module) -> torch.device:
    if device is not None:
        return torch.device(device)
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def check_model(file: PlanFile, workload: Workload) -> None:
    """Whether a plan is of a model, and fits its calls, parameters and inputs.

    Args:
        file: of a plan that was checked.
        workload: the model, whose tensors may be fake.

    Raises:
        MismatchError: naming the key path and what differs.
    """
    check_inputs(file, told_inputs(with_batch(workload, file.batch).inputs))
    _recorded(file, replace(workload, name=file.model))


def _recorded(file: PlanFile, workload: Workload, attention: bool = True) -> _Model:
    """The model's calls at the plan's micro-batch, if it is the model of the plan.

    Raises:
        MismatchError: it is another one.
    """
    whole = layers_of(with_batch(workload, file.batch), file.precision, proven=False)
    short = file.model.removeprefix("hf:").partition("?")[0]  # what options are said of
    names = dict.fromkeys((file.model, short, type(workload.model).__name__))
    cuts = cuts_of(whole.calls, whole.rules)
    if file.fingerprint not in [fingerprint(replace(whole.calls, name=n), cuts) for n in names]:
        raise MismatchError(
            "plan: fingerprint: it was made for another model (its calls or their shapes differ, "
            "or model has another name); make a plan for this one"
        )
    share = with_batch(workload, file.microbatch_size)
    layers = layers_of(share, file.precision, as_run=attention)
    cuts = cuts_of(layers.calls, layers.rules)
    check_stages(cuts.segments, file.stages)
    check_placements(layers.calls, layers.rules, file.stages)
    return _Model(layers, cuts, share)


def _holders(
    pieces: Sequence[StageCalls], ranks: Sequence[int], model: nn.Module
) -> dict[str, tuple[int, ...]]:
    """Ranks that hold each parameter; the first has what no call reads."""
    found: dict[str, tuple[int, ...]] = {}
    for name, _ in model.named_parameters():
        owners = {r for piece, r in zip(pieces, ranks, strict=True) if name in piece.parameters}
        found[name] = tuple(sorted(owners)) or (0,)
    return found


def _held(
    seat: Seat,
    model: nn.Module,
    holders: dict[str, tuple[int, ...]],
    layouts: Layouts,
    zero: int,
    master: bool,
) -> Parameters:
    """This process's parameters, with the first process's numbers; the others leave the model."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    store = Parameters(seat, zero if seat.replicas * seat.shards > 1 else 0, {}, shapes)
    made: dict[int, nn.Parameter] = {}
    for name, parameter in list(model.named_parameters()):
        data = parameter.detach().to(seat.device)
        if seat.seats.count > 1:
            data = data.contiguous()
            dist.broadcast(data, 0)
        if seat.rank not in holders[name]:
            made[id(parameter)] = nn.Parameter(data.to("meta"), parameter.requires_grad)
            continue
        parameter.data = data
        home = layouts.homes.get(name, layouts.whole)
        summed = layouts.summed.get(name, (False,) * len(home))
        held = held_of(seat, name, parameter, home, summed, holders[name], store.zero, master)
        store.held[name] = held
        made[id(parameter)] = held.leaf
        for old in (parameter, held.leaf, held.part):
            if old is not held.learned and old.requires_grad:
                replaced(old)
        if held.split and zero == 3 and not held.tied:
            held.leaf.untyped_storage().resize_(0)
    for module in model.modules():
        for key, value in list(module._parameters.items()):
            if value is not None:
                module._parameters[key] = made[id(value)]
    for buffer in model.buffers():
        buffer.data = buffer.data.to(seat.device)
        if seat.seats.count > 1:
            dist.broadcast(buffer.data, 0)
    return store


def _keepers(
    known: _Model, pieces: Sequence[StageCalls], ranks: Sequence[int], model: nn.Module
) -> dict[str, tuple[int, ...]]:
    """Ranks that read each buffer of a checkpoint; the first has those that none reads."""
    graph = known.layers.calls
    read = [
        {graph.values[v].name for i in p.calls for v in graph.calls[i].reads
         if graph.values[v].source == BUFFER}
        for p in pieces
    ]  # fmt: skip
    kept = set(model.state_dict())
    found = {}
    for name in (name for name, _ in model.named_buffers() if name in kept):
        readers = {rank for names, rank in zip(read, ranks, strict=True) if name in names}
        found[name] = tuple(sorted(readers)) or (0,)
    return found
