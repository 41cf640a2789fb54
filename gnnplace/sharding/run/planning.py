"""Plans for models: captured, costed by given or by measured figures, solved."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from gnnplace.errors import InputError
from gnnplace.sharding.captured.calls import CallGraph
from gnnplace.sharding.captured.costs import MeshMachine
from gnnplace.sharding.captured.graph import split_graph
from gnnplace.sharding.captured.layout import Mesh, SplitGraph, default_mesh
from gnnplace.sharding.captured.problem import CapturedProblem, captured_parts, completed, ddp_parts
from gnnplace.sharding.captured.recording import OutputModule, record_calls
from gnnplace.sharding.rules.registry import rules_of
from gnnplace.sharding.rules.rule import Rule
from gnnplace.sharding.run.apply import check_layers, device_mesh
from gnnplace.sharding.run.measure import clear_gradients, layer_seconds, measure_machine
from gnnplace.sharding.run.plan import Planned, ShardPlan, make_plan, plan_from_data, plan_to_data
from gnnplace.tracing.step import StepModule

Loss = Callable[..., torch.Tensor]


@dataclass(frozen=True, eq=False)
class LayerGraph:
    """A model's layers.

    Attributes:
        step: Model, loss and inputs.
        calls: The calls of the model and of its loss.
        rules: How each call can be split.
        operations: The same for the search.
    """

    step: StepModule
    calls: CallGraph
    rules: tuple[Rule, ...]
    operations: SplitGraph

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all parameters of the model."""
        named = self.step.model.named_parameters()
        return {name: tuple(parameter.shape) for name, parameter in named}


def layer_graph(model: nn.Module, inputs: Any, loss: Loss | None, name: str) -> LayerGraph:
    """Captures a model's layers.

    Args:
        model: The model that is split.
        inputs: Example inputs (with the loss's targets): positional, or a mapping.
        loss: One of the layers; None: the model's output is what it returns.
        name: The name of the model.

    Raises:
        CaptureError: the model cannot be captured; names the module.
    """
    step = StepModule(model, loss, inputs) if loss else OutputModule(model, None, inputs)
    calls = record_calls(step, name)
    rules = rules_of(calls)
    return LayerGraph(step, calls, rules, split_graph(calls, rules))


def plan_for(
    layers: LayerGraph,
    mesh: Mesh,
    machine: MeshMachine,
    *,
    memory_limit: float | None = None,
    seconds: tuple[float, ...] = (),
) -> Planned:
    """The best plan by given figures."""
    return make_plan(
        layers.calls,
        layers.operations,
        mesh,
        machine,
        seconds=seconds,
        memory_limit=memory_limit,
        parameters=layers.parameters,
        with_loss=layers.step.loss is not None,
    )


def plan_measured(
    model: nn.Module,
    inputs: Any,
    mesh: DeviceMesh,
    *,
    loss: Loss | None,
    name: str,
    machine: MeshMachine | None = None,
    memory_limit: float | None = None,
) -> ShardPlan:
    """The best plan by figures measured here; every process of the mesh calls this.

    The first process's plan counts, so that all have the same.

    Args:
        model: The model that is split.
        inputs: Example inputs of the whole batch.
        mesh: The mesh of devices that it is split over.
        loss: One of the layers, if given.
        name: The name of the model.
        machine: Figures to plan with; None: measured.
        memory_limit: Bytes that a device has.
    """
    layers = layer_graph(model, inputs, loss, name)
    seconds: tuple[float, ...] = ()
    if machine is None:
        machine, seconds = _figures(layers, mesh)
    plan = plan_for(
        layers, tuple(mesh.shape), machine, memory_limit=memory_limit, seconds=seconds
    ).plan
    shared: list[Any] = [plan_to_data(plan)]
    dist.broadcast_object_list(shared, src=0)
    made = plan_from_data(shared[0], "the plan")
    return replace(made, loss=loss, device_mesh=mesh)


def _figures(layers: LayerGraph, mesh: DeviceMesh) -> tuple[MeshMachine, tuple[float, ...]]:
    """Measured speeds, and on CPUs measured seconds of every layer."""
    machine = measure_machine(mesh)
    if mesh.device_type != "cpu":
        return machine, ()
    seconds = layer_seconds(layers.step, layers.calls, layers.rules)
    clear_gradients(layers.step.model)
    return machine, seconds


def predicted_here(plan: ShardPlan, layers: LayerGraph, mesh: DeviceMesh) -> ShardPlan:
    """A plan with its costs predicted by figures measured here; every process calls this.

    Raises:
        MismatchError: the plan was made for another model.
    """
    check_layers(plan, layers.calls, layers.rules)
    machine, seconds = _figures(layers, mesh)
    captured = CapturedProblem(layers.operations, plan.mesh, machine, seconds)
    chosen = completed(captured, [layer.split for layer in plan.layers])
    predicted = captured_parts(captured, chosen)
    return replace(plan, predicted=predicted, data_parallel=ddp_parts(captured))


def _processes() -> int:
    """Processes that there are, or that torchrun has started; 0: there is no group."""
    if dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", 0)) if "RANK" in os.environ else 0


def plan_model(
    model: nn.Module,
    inputs: Any,
    mesh: int | DeviceMesh,
    *,
    loss: Loss | None = None,
    machine: MeshMachine | None = None,
    memory_limit: float | None = None,
) -> ShardPlan:
    """See ``gnnplace.shard``."""
    name = type(model).__name__
    if isinstance(mesh, int):
        shape = default_mesh(mesh)
        if _processes() != math.prod(shape):
            layers = layer_graph(model, inputs, loss, name)
            found = plan_for(layers, shape, machine or MeshMachine(), memory_limit=memory_limit)
            return replace(found.plan, loss=loss)
        first = next(model.parameters(), None)
        mesh = device_mesh(shape, None, "cpu" if first is None else first.device.type)
    elif not isinstance(mesh, DeviceMesh):
        raise InputError(f"mesh {mesh!r}: must be a number of devices or a torch DeviceMesh")
    return plan_measured(
        model, inputs, mesh, loss=loss, name=name, machine=machine, memory_limit=memory_limit
    )
