"""Makes the code that one process runs for its stages, with the parameters that it holds."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import nn

from gnnplace.plans import MIXED, PlanFile, attention_runs
from gnnplace.run.planned.layouts import Layouts, make_layouts
from gnnplace.run.planned.parameters import Parameters, make_local_parameter
from gnnplace.run.planned.passes import StageCode
from gnnplace.run.planned.seats import Seat
from gnnplace.run.planned.stages import StagedModel
from gnnplace.run.planned.whole import refuse_replaced_parameters
from gnnplace.run.split import PlacedCall, place_calls


def make_stage_codes(
    file: PlanFile, staged: StagedModel, seat: Seat
) -> dict[int, StageCode]:
    """Return what a process runs of each of its stages, by stage.

    Parameters of the other ranks leave the model, and those of this rank become its parts.

    Args:
        file: The file of the plan.
        staged: The model, cut into the stages of the plan.
        seat: The place of the process in the plan.
    """
    layers = staged.recorded.layers
    model = staged.recorded.workload.model
    pieces = staged.stages
    own_stages = [k for k, rank in enumerate(file.rank_of) if rank == seat.rank]
    borders = [_find_border(file, k) for k in range(len(file.stages))]
    layouts = make_layouts(
        layers, [pieces[k] for k in own_stages], [file.stages[k] for k in own_stages]
    )
    zero = max(file.stages[k].zero for k in own_stages)
    master = file.precision.endswith("-master")
    parameters = _make_parameters(seat, model, staged.holders, layouts, zero, master)
    # Calls that keep parts of what shards gather: all but those of attention.
    attention = {
        i
        for run in staged.recorded.cuts.runs
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
            autocast=partial(
                torch.autocast,
                kind,
                MIXED.get(word),
                word in MIXED,
                cache_enabled=False,
            ),
            converted=layouts.converted,
            cut=(borders[k - 1] if k else "whole", borders[k]),
            examples=file.microbatch_size,
            regather=(
                frozenset(pieces[k].calls) - attention
                if file.stages[k].regather
                else frozenset()
            ),
        )
        for k in own_stages
    }


def _find_border(file: PlanFile, stage: int) -> str:
    """Return how shards cut what a stage sends to the next: "whole" if their meshes differ."""
    pair = file.stages[stage : stage + 2]
    is_same = len({(entry.axes, entry.border) for entry in pair}) == 1
    if is_same:
        return pair[0].border
    return "whole"


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

    Args:
        seat: The place of the process in the plan.
        model: The user's model, whose parameters and buffers are replaced or moved.
        holders: The ranks that hold each parameter, by name.
        layouts: The layouts of the process's stages.
        zero: The ZeRO stage, 0 to 3.
        master: Whether the optimizer updates float32 copies of halves.
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
        home = layouts.homes.get(name, layouts.replicated)
        summed = layouts.summed.get(name, (False,) * len(home))
        local = make_local_parameter(
            seat, name, parameter, home, summed, holders[name], store.zero, master
        )
        store.held[name] = local
        replacements[id(parameter)] = local.leaf
        for old in (parameter, local.leaf, local.part):
            if old is not local.learned and old.requires_grad:
                refuse_replaced_parameters(old)
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
