"""A model cut into the stages of a plan: their calls, and which ranks have which tensors.

The model is recorded twice: on the plan's whole batch, to check by its fingerprint that it is the
plan's model, and on one micro-batch, whose calls are then cut into stages and run.

A cut may be at any call. An earlier stage sends a later one the values that it computes from
parameters and that the later one reads. A value that skips stages is passed on by each of them.
Values that depend only on inputs, buffers and constants (masks, positions) are not sent: every
stage that reads them computes them. A call that only updates a buffer belongs to the stage of the
call after it.

Complexity: O(calls + (values + parameters) x stages).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from gnnplace.errors import InputError, MismatchError
from gnnplace.plans import (
    Cuts,
    PlanFile,
    attention_runs,
    capture_layers,
    check_inputs,
    check_placements,
    check_stages,
    compute_fingerprint,
    describe_inputs,
    find_cuts,
    join_runs,
    layer_numbers,
    with_batch,
)
from gnnplace.sharding import LayerGraph
from gnnplace.torch_names import FakeTensor, pytree
from gnnplace.tracing import BUFFER, CALL, PARAMETER, CallGraph
from gnnplace.zoo import Workload


@dataclass(frozen=True, eq=False)
class RecordedModel:
    """A model's calls on one micro-batch, with the inputs that they were recorded on.

    Attributes:
        layers: The calls and their rules.
        cuts: Where the calls may be cut into segments.
        workload: The model with inputs of one micro-batch.
    """

    layers: LayerGraph
    cuts: Cuts
    workload: Workload


@dataclass(frozen=True, eq=False)
class StagedModel:
    """A recorded model whose calls are cut into a plan's stages.

    Attributes:
        recorded: The calls, with constants on the device of this process.
        stages: The calls of every stage.
        holders: The ranks that hold each parameter, by name; rank 0 has what no call reads.
        keepers: The ranks that read each buffer of a checkpoint, by name.
    """

    recorded: RecordedModel
    stages: tuple[StageCalls, ...]
    holders: dict[str, tuple[int, ...]]
    keepers: dict[str, tuple[int, ...]]

    @property
    def graph(self) -> CallGraph:
        """Return the calls of one micro-batch."""
        return self.recorded.layers.calls

    @property
    def loss_type(self) -> torch.dtype:
        """Return the element type of the loss."""
        return self.graph.values[self.graph.outputs[0]].dtype

    @property
    def shared(self) -> list[tuple[int, ...]]:
        """Return the ranks of every parameter that several ranks hold."""
        return [ranks for ranks in self.holders.values() if len(ranks) > 1]


def stage_model(
    file: PlanFile, recorded: RecordedModel, device: torch.device
) -> StagedModel:
    """Cut a model's calls into a plan's stages.

    Args:
        file: The file of a plan that was checked.
        recorded: The model's calls on real tensors.
        device: Where this process computes; constants of the calls are moved there.

    Raises:
        MismatchError: The model cannot be run from its calls.
    """
    if any(
        isinstance(constant, FakeTensor)
        for constant in recorded.layers.calls.constants.values()
    ):
        raise MismatchError(
            "plan: the model makes constants from shapes alone; it cannot be run"
        )
    calls = move_calls(recorded.layers.calls, device)
    recorded = replace(recorded, layers=replace(recorded.layers, calls=calls))
    stages = _cut_stages(file, recorded)
    return StagedModel(
        recorded=recorded,
        stages=stages,
        holders=_find_holders(stages, file.rank_of, recorded.workload.model),
        keepers=_find_keepers(recorded, stages, file.rank_of, recorded.workload.model),
    )


def check_model(file: PlanFile, workload: Workload) -> None:
    """Check that a plan is of a model, and fits its calls, parameters and inputs.

    Args:
        file: The file of a plan that was checked.
        workload: the model, whose tensors may be fake.

    Raises:
        MismatchError: naming the key path and what differs.
    """
    check_inputs(file, describe_inputs(with_batch(workload, file.batch).inputs))
    record_model(file, replace(workload, name=file.model))


def record_model(
    file: PlanFile, workload: Workload, attention: bool = True
) -> RecordedModel:
    """Record the model's calls on the plan's micro-batch, if it is the model of the plan.

    Args:
        file: The file of a plan that was checked.
        workload: The model and inputs of any batch; tensors may be fake.
        attention: Whether attention drops weights.

    Raises:
        MismatchError: It is another model.
    """
    of_batch = capture_layers(
        with_batch(workload, file.batch), file.precision, proven=False
    )
    short = file.model.removeprefix("hf:").partition("?")[0]  # what options are said of
    names = dict.fromkeys((file.model, short, type(workload.model).__name__))
    cuts = find_cuts(of_batch.calls, of_batch.rules)
    if file.fingerprint not in [
        compute_fingerprint(replace(of_batch.calls, name=n), cuts) for n in names
    ]:
        raise MismatchError(
            "plan: fingerprint: it was made for another model (its calls or their shapes differ, "
            "or model has another name); make a plan for this one"
        )
    share = with_batch(workload, file.microbatch_size)
    layers = capture_layers(share, file.precision, as_run=attention)
    cuts = find_cuts(layers.calls, layers.rules)
    check_stages(cuts.segments, file.stages)
    check_placements(layers.calls, layers.rules, file.stages)
    return RecordedModel(layers, cuts, share)


def _cut_stages(file: PlanFile, recorded: RecordedModel) -> tuple[StageCalls, ...]:
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


def _find_holders(
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


def _find_keepers(
    recorded: RecordedModel,
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


@dataclass(frozen=True)
class StageCalls:
    """The calls of one stage.

    Attributes:
        calls: Indices of the stage's calls among the graph's, in order.
        entering: Values that the previous stage sends.
        leaving: Values that are sent to the next stage.
        recomputed: Runs of `calls` that are recomputed, each as the position of its first call and
            the position after its last.
        parameters: Names of the parameters that the calls read, in the order of reading.
        draws: By the index of a call that draws, the number of its first draw among all draws of
            the model; empty where draws are not seeded.
    """

    calls: tuple[int, ...]
    entering: tuple[int, ...]
    leaving: tuple[int, ...]
    recomputed: tuple[tuple[int, int], ...]
    parameters: tuple[str, ...]
    draws: Mapping[int, int] = field(default_factory=dict)


def make_stage_calls(
    graph: CallGraph,
    members: Sequence[Sequence[str]],
    recomputed: Sequence[Sequence[Sequence[str]]],
) -> tuple[StageCalls, ...]:
    """Return the calls of every stage of a plan.

    Args:
        graph: The calls of one micro-batch.
        members: Names of each stage's calls. [stages]
        recomputed: For each stage, the names of the calls of every run that is recomputed. [stages]

    Raises:
        MismatchError: If `members` are not the model's calls, or not in the model's order.
        InputError: If several stages use a buffer that the forward pass changes.
    """
    stage_by_call = _assign_stages(graph, members)
    makers = {value: i for i, call in enumerate(graph.calls) for value in call.results}
    stage_calls = [
        _find_stage_calls(graph, stage_by_call, makers, stage)
        for stage in range(len(members))
    ]
    _check_state(graph, stage_calls)
    crossing = _find_crossing(graph, stage_by_call, makers, stage_calls)
    first_draws: dict[int, int] = {}
    for number, index in enumerate(graph.random):
        first_draws.setdefault(index, number)
    stages = []
    for stage, calls in enumerate(stage_calls):
        stages.append(
            StageCalls(
                calls=calls,
                entering=crossing[stage],
                leaving=crossing[stage + 1],
                recomputed=_find_runs(graph, calls, recomputed[stage]),
                parameters=_find_parameters(graph, calls),
                draws={i: first_draws[i] for i in calls if i in first_draws},
            )
        )
    return tuple(stages)


def move_calls(graph: CallGraph, device: torch.device) -> CallGraph:
    """Return the same calls for another device.

    The device replaces every device among the calls' arguments. Constants are copied to it.

    Args:
        graph: Calls that were recorded on one device.
        device: The device that they are to run on.
    """

    def move_leaf(leaf: object) -> object:
        if isinstance(leaf, torch.device):
            return device
        return leaf

    calls = []
    for call in graph.calls:
        args = pytree.tree_map(move_leaf, call.args)
        kwargs = pytree.tree_map(move_leaf, call.kwargs)
        calls.append(replace(call, args=args, kwargs=kwargs))
    constants = {value: tensor.to(device) for value, tensor in graph.constants.items()}
    return replace(graph, calls=tuple(calls), constants=constants)


def _assign_stages(
    graph: CallGraph, members: Sequence[Sequence[str]]
) -> dict[int, int]:
    """Return the stage of every call that belongs to one stage only, by the call's index.

    These are the calls of `members`, and those that only update a buffer: they are in the stage of
    the call after them. Other calls depend on no parameter, and are absent.

    Args:
        graph: The calls of one micro-batch.
        members: Names of each stage's calls. [stages]

    Raises:
        MismatchError: If `members` are not the model's calls, or not in the model's order.
    """
    index = {call.name: i for i, call in enumerate(graph.calls)}
    stages: dict[int, int] = {}
    for stage, names in enumerate(members):
        for name in names:
            if name not in index:
                raise MismatchError(
                    f"plan: stages[{stage}].members: the model has no call {name!r}; make a plan "
                    "for this model"
                )
            stages[index[name]] = stage
    order = [stages[i] for i in sorted(stages)]
    if order != sorted(order):
        raise MismatchError(
            "plan: stages: their calls are not in the order of the model's calls; make a plan for "
            "this model"
        )
    for i, call in enumerate(graph.calls):
        if i not in stages and any(
            graph.values[v].source == PARAMETER for v in call.reads
        ):
            raise MismatchError(
                f"plan: stages: no stage has the model's call {call.name!r}; make a plan for this "
                "model"
            )
    # From the last call backwards, so that the stage of the next call is known.
    updates = {i for indices in graph.changed.values() for i in indices}
    next_stage = len(members) - 1
    for i in reversed(range(len(graph.calls))):
        next_stage = stages.get(i, next_stage)
        if i in updates:
            stages.setdefault(i, next_stage)
    return stages


def _check_state(graph: CallGraph, stage_calls: Sequence[Sequence[int]]) -> None:
    """Check that a buffer which the forward pass changes is used by one stage only.

    Every stage has a copy of the buffers that it reads, and would miss the changes of others.

    Raises:
        InputError: If several stages use one; the message names the buffer and the stages.
    """
    for name, updates in graph.changed.items():
        users = {*graph.readers(name), *updates}
        stages = []
        for stage, calls in enumerate(stage_calls):
            if users.intersection(calls):
                stages.append(stage)
        if len(stages) > 1:
            raise InputError(
                f"plan: buffer {name!r} is changed by the forward pass and used in stages "
                f"{stages[0]} and {stages[-1]}, which would each have their own; keep these layers "
                "in one stage, or give a plan without stages (pp=1)"
            )


def _find_stage_calls(
    graph: CallGraph, stage_by_call: dict[int, int], makers: dict[int, int], stage: int
) -> tuple[int, ...]:
    """Return the calls that a stage runs, in order.

    These are its own calls, and those of no stage whose results it needs, directly or not.

    Args:
        graph: The calls of one micro-batch.
        stage_by_call: Stage of every call that belongs to one, as `_assign_stages` returns it.
        makers: The call that makes each value.
        stage: Index of the stage.
    """
    calls = {i for i, call_stage in stage_by_call.items() if call_stage == stage}
    needed = [value for i in calls for value in graph.calls[i].reads]
    if stage == max(stage_by_call.values()):
        needed += graph.outputs
    while needed:
        maker = makers.get(needed.pop())
        if maker is not None and maker not in calls and maker not in stage_by_call:
            calls.add(maker)
            needed += graph.calls[maker].reads
    return tuple(sorted(calls))


def _find_crossing(
    graph: CallGraph,
    stage_by_call: dict[int, int],
    makers: dict[int, int],
    stage_calls: Sequence[Sequence[int]],
) -> list[tuple[int, ...]]:
    """Return the values that cross each border, before every stage and after the last one.

    Nothing crosses the first and the last border.

    Args:
        graph: The calls of one micro-batch.
        stage_by_call: Stage of every call that belongs to one, as `_assign_stages` returns it.
        makers: The call that makes each value.
        stage_calls: Calls of every stage. [stages]

    Returns:
        Values in rising order. [stages + 1]
    """
    # The last stage that reads each value. Stages come in order, so later ones overwrite.
    last_reader: dict[int, int] = {}
    num_stages = len(stage_calls)
    for stage, calls in enumerate(stage_calls):
        for i in calls:
            last_reader.update(dict.fromkeys(graph.calls[i].reads, stage))
    for value in graph.outputs:
        last_reader[value] = num_stages - 1
    crossing: list[list[int]] = [[] for _ in range(num_stages + 1)]
    for value in sorted(last_reader):
        is_made = graph.values[value].source == CALL
        if not is_made or makers.get(value) not in stage_by_call:
            continue
        making_stage = stage_by_call[makers[value]]
        for stage in range(making_stage + 1, last_reader[value] + 1):
            crossing[stage].append(value)
    return [tuple(values) for values in crossing]


def _find_runs(
    graph: CallGraph, calls: Sequence[int], recomputed: Sequence[Sequence[str]]
) -> tuple[tuple[int, int], ...]:
    """Return the runs of positions in `calls` that are recomputed.

    A run goes from the first to the last of its names. Names of other stages are left out.

    Args:
        graph: The calls of one micro-batch.
        calls: Indices of the stage's calls.
        recomputed: Names of the calls of every run.
    """
    positions_by_name = {graph.calls[i].name: k for k, i in enumerate(calls)}
    runs = []
    for names in recomputed:
        positions = [
            positions_by_name[name] for name in names if name in positions_by_name
        ]
        if positions:
            runs.append((min(positions), max(positions) + 1))
    return tuple(sorted(runs))


def _find_parameters(graph: CallGraph, calls: Sequence[int]) -> tuple[str, ...]:
    """Return the names of the parameters that calls read, in the order of reading."""
    reads = (graph.values[v] for i in calls for v in graph.calls[i].reads)
    return tuple(dict.fromkeys(v.name for v in reads if v.source == PARAMETER))
