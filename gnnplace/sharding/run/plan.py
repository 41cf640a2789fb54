"""``ShardPlan``: how every layer of a model is split over a mesh, and its file.

``{"format": "gnnplace-shard-plan", "version": 1, "model", "mesh": [2, 2], "loss": bool, "layers":
[{"name", "function", "split": [LABEL or null for each mesh dimension], "words", "reason"}],
"parameters": [{"name", "shape", "home": [axis, [axis, groups] or null for each mesh dimension]}],
"predicted": PARTS, "data_parallel": PARTS}``, PARTS being seconds of compute, reduction, gradient
and resharding and bytes of memory, all predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn

from gnnplace.errors import FormatError, MismatchError
from gnnplace.files import Schema, parse, read_json, write_json
from gnnplace.sharding import (
    ShardingProblem,
    ShardingResult,
    best_strategy,
    cheapest_within,
    warm,
    warm_frontier,
)
from gnnplace.sharding.captured.calls import CallGraph
from gnnplace.sharding.captured.costs import MeshMachine
from gnnplace.sharding.captured.layout import (
    PARAMETER,
    REPLICATED,
    Layout,
    Mesh,
    Place,
    SplitGraph,
    SplitOp,
    read_layout,
)
from gnnplace.sharding.captured.problem import (
    CapturedProblem,
    captured_parts,
    captured_tables,
    ddp_parts,
)
from gnnplace.sharding.costs import CostParts

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

FORMAT = "gnnplace-shard-plan"
Loss = Callable[..., torch.Tensor]


class LayerEntry(Schema):
    """A layer of a plan's file."""

    name: str
    function: str
    split: list[str | None]
    words: str = ""
    reason: str = ""
    kind: str = ""


class ParameterEntry(Schema):
    """A parameter of a plan's file: its shape and, by mesh dimension, the axis that is split.

    ``[axis, groups]`` is an axis of so many groups, each of which is split.
    """

    name: str
    shape: list[int]
    home: list[int | Annotated[list[int], Field(min_length=2, max_length=2)] | None]


class PartsEntry(Schema):
    """A predicted cost in parts."""

    compute: float
    reduction: float
    gradient: float
    resharding: float
    memory: float


class ShardPlanFile(Schema):
    """The keys of a plan's file."""

    format: Literal["gnnplace-shard-plan"]
    version: Literal[1]
    model: str
    mesh: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]
    loss: bool
    layers: list[LayerEntry]
    parameters: list[ParameterEntry]
    predicted: PartsEntry
    data_parallel: PartsEntry


@dataclass(frozen=True)
class PlannedLayer:
    """One layer.

    Attributes:
        name: Its module and, where that is not enough, its function.
        function: The function that it calls.
        kind: For people: "linear", "attention", …
        split: The label that each mesh dimension splits, or None.
        words: Such as "heads over 4, batch over 2".
        reason: Why it cannot be split, if so.
    """

    name: str
    function: str
    kind: str
    split: tuple[str | None, ...]
    words: str
    reason: str = ""


@dataclass(frozen=True)
class PlannedParameter:
    """Where a parameter lives."""

    shape: tuple[int, ...]
    home: Layout


@dataclass(frozen=True, eq=False)
class ShardPlan:
    """How every layer of a model is split.

    Attributes:
        model: The name of the model.
        mesh: Sizes of the mesh's dimensions.
        layers: In the order in which they run.
        parameters: How each parameter is split, by its name.
        predicted: Predicted cost of a training step.
        data_parallel: What data parallelism is predicted to cost.
        with_loss: The loss is one of the layers.
        loss: The loss, unless the plan was read from a file.
        device_mesh: The mesh it was made for, if it was one of torch's.
    """

    model: str
    mesh: Mesh
    layers: tuple[PlannedLayer, ...]
    parameters: dict[str, PlannedParameter]
    predicted: CostParts
    data_parallel: CostParts
    with_loss: bool
    loss: Loss | None = None
    device_mesh: DeviceMesh | None = field(default=None, repr=False)

    def apply(
        self, model: nn.Module, mesh: DeviceMesh | None = None, *, loss: Loss | None = None
    ) -> nn.Module:
        """Splits a model over the mesh, in place; every process of the mesh calls this.

        Its parameters become DTensors, and its forward pass takes the same whole inputs on every
        device and returns whole outputs. Where the plan has a loss, the forward pass takes the
        loss's targets as well and returns the loss.

        Args:
            model: The model that the plan was made for.
            mesh: Its devices; by default those of the process group.
            loss: Needed where the plan has one and was read from a file.

        Returns:
            The model.

        Raises:
            MismatchError: the plan was made for another model; names the first difference.
            InputError: there is no process group of the mesh's size.
        """
        from gnnplace.sharding.run.apply import apply_plan

        return apply_plan(self, model, mesh or self.device_mesh, loss or self.loss)

    def check(self, model: nn.Module) -> None:
        """Whether this is the model that the plan was made for, as far as its parameters say.

        Raises:
            MismatchError: names the first parameter that differs.
        """
        found = {name: tuple(p.shape) for name, p in model.named_parameters()}
        for name, shape in found.items():
            planned = self.parameters.get(name)
            if planned is None:
                raise MismatchError(f"plan of {self.model!r}: it has no parameter {name!r}")
            if planned.shape != shape:
                raise MismatchError(
                    f"plan of {self.model!r}: parameter {name!r} has the shape {list(shape)}, "
                    f"in the plan {list(planned.shape)}; make a plan for this model"
                )
        for name in self.parameters:
            if name not in found:
                raise MismatchError(
                    f"plan of {self.model!r}: the model has no parameter {name!r}; "
                    "make a plan for this model"
                )

    def save(self, path: str | Path) -> None:
        """Writes the plan's file at once or not at all."""
        write_json(path, plan_to_data(self))

    def lines(self) -> list[str]:
        """Each layer's split in words; calls that move axes or have no gradient are left out."""
        shown = [x for x in self.layers if x.kind not in ("shape", "data")]
        width = max((len(layer.name) for layer in shown), default=0)
        return [
            f"{x.name:{width}}  {x.words}" + (f" ({x.reason})" if x.reason else "") for x in shown
        ]


def read_shard_plan(path: str | Path) -> ShardPlan:
    """Reads a plan's file.

    Raises:
        FormatError: naming the file, the key path and the fault.
    """
    return plan_from_data(read_json(path), str(path))


def plan_to_data(plan: ShardPlan) -> dict[str, Any]:
    """A plan as JSON has it."""
    return {
        "format": FORMAT,
        "version": 1,
        "model": plan.model,
        "mesh": list(plan.mesh),
        "loss": plan.with_loss,
        "layers": [
            {"name": x.name, "function": x.function, "kind": x.kind, "split": list(x.split),
             "words": x.words, "reason": x.reason}
            for x in plan.layers
        ],
        "parameters": [
            {"name": name, "shape": list(p.shape),
             "home": [_home_entry(place) for place in p.home]}
            for name, p in plan.parameters.items()
        ],
        "predicted": vars(plan.predicted) | {},
        "data_parallel": vars(plan.data_parallel) | {},
    }  # fmt: skip


def _home_entry(place: Place) -> int | list[int] | None:
    if not place.cuts:
        return None
    return list(place) if place.groups else place.axis


def _home_place(entry: int | list[int] | None) -> Place:
    if entry is None:
        return REPLICATED
    return Place(entry) if isinstance(entry, int) else Place(*entry)


def _check_length(where: str, entries: Sequence[Any], mesh: Sequence[int]) -> None:
    if len(entries) != len(mesh):
        raise FormatError(f"{where}: must have one entry for each of {len(mesh)} mesh dimensions")


def plan_from_data(data: Any, source: str) -> ShardPlan:
    """The plan that JSON holds.

    Raises:
        FormatError: naming ``source``, the key path and the fault.
    """
    file = parse(ShardPlanFile, data, source)
    for i, layer in enumerate(file.layers):
        _check_length(f"{source}: layers[{i}].split", layer.split, file.mesh)
    for i, parameter in enumerate(file.parameters):
        _check_length(f"{source}: parameters[{i}].home", parameter.home, file.mesh)
    layers = [
        PlannedLayer(x.name, x.function, x.kind, tuple(x.split), x.words, x.reason)
        for x in file.layers
    ]
    parameters = {
        x.name: PlannedParameter(tuple(x.shape), tuple(_home_place(entry) for entry in x.home))
        for x in file.parameters
    }
    return ShardPlan(
        file.model,
        tuple(file.mesh),
        tuple(layers),
        parameters,
        CostParts(**file.predicted.model_dump()),
        CostParts(**file.data_parallel.model_dump()),
        file.loss,
    )


@dataclass(frozen=True, eq=False)
class Planned:
    """A plan and the tables that it is the best of."""

    plan: ShardPlan
    captured: CapturedProblem
    problem: ShardingProblem
    result: ShardingResult


def make_plan(
    graph: CallGraph,
    operations: SplitGraph,
    mesh: Mesh,
    machine: MeshMachine,
    *,
    seconds: Sequence[float] = (),
    memory_limit: float | None = None,
    parameters: dict[str, tuple[int, ...]] | None = None,
    with_loss: bool = True,
) -> Planned:
    """The best strategy of a captured model as a plan.

    Args:
        graph: The calls of the model.
        operations: The same as operations that can be split.
        mesh: Sizes of the mesh's dimensions.
        machine: Speeds of a device and of its link.
        seconds: Measured seconds of each whole operation, forward and backward.
        memory_limit: Bytes that a device has.
        parameters: Shapes of all parameters, those that no layer reads included.
        with_loss: The loss is one of the layers.

    Raises:
        InfeasibleError: nothing fits the memory.
    """
    captured = CapturedProblem(operations, mesh, machine, tuple(seconds))
    problem = captured_tables(captured)
    warm() if memory_limit is None else warm_frontier()
    found = (
        best_strategy(problem) if memory_limit is None else cheapest_within(problem, memory_limit)
    )
    plan = ShardPlan(
        graph.name,
        mesh,
        _layers(graph, captured, found.configuration),
        _parameters(captured, found.configuration, parameters or {}),
        captured_parts(captured, found.configuration),
        ddp_parts(captured),
        with_loss,
    )
    return Planned(plan, captured, problem, found)


def _layers(
    graph: CallGraph, captured: CapturedProblem, chosen: Sequence[int]
) -> tuple[PlannedLayer, ...]:
    made = []
    for i, (call, op) in enumerate(zip(graph.calls, captured.graph.ops, strict=True)):
        split = captured.options[i][chosen[i]]
        words = op.words(split, captured.mesh)
        reason = op.reason or _odd_batch(op, captured.mesh)
        made.append(PlannedLayer(call.name, call.kind, op.kind, split, words, reason))
    return tuple(made)


def _odd_batch(op: SplitOp, mesh: Mesh) -> str:
    """Why data parallelism is out of the question for an operation, if it is."""
    examples = dict(op.shape.extents).get(op.batch or "", 0)
    devices = math.prod(mesh)
    if op.batch is None or examples % devices == 0:
        return ""
    return f"a batch of {examples} has no {devices} equal parts"


def _parameters(
    captured: CapturedProblem, chosen: Sequence[int], shapes: dict[str, tuple[int, ...]]
) -> dict[str, PlannedParameter]:
    values, whole = captured.graph.values, (REPLICATED,) * len(captured.mesh)
    homes: dict[str, Layout] = {}
    for i, op in enumerate(captured.graph.ops):
        split = captured.options[i][chosen[i]]
        for value, axes in zip(op.reads, op.shape.reads, strict=True):
            homes[values[value].name] = read_layout(axes, split)
    for value, node in captured.position.items():
        homes[values[value].name] = captured.shared[value][chosen[node]][0]
    known = {v.name: v.shape for v in values if v.source == PARAMETER} | shapes
    return {name: PlannedParameter(shape, homes.get(name, whole)) for name, shape in known.items()}
