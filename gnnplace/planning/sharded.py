"""`ShardPlan`: a plan of one stage whose layers are split over a mesh, for a model of any loss.

The split is optimal for the cost tables of layers (PaSE, arXiv 2407.04001: an exact elimination).
These tables do not price the optimizer or a pipeline, so the file has their seconds by part and no
step time. `gnnplace plan MODEL --cluster cpu:N --given plan.json` prices the file like any other
plan.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from gnnplace.errors import InputError, MismatchError
from gnnplace.plans import (
    TYPES,
    InputEntry,
    MemoryEntry,
    Plan,
    PlanFile,
    StageEntry,
    count_examples,
    cuts_of,
    fingerprint,
    format_placements,
    one_by_one,
    told_inputs,
    with_messages,
    without_dropped_attention,
)
from gnnplace.plans import action_words as words
from gnnplace.plans import read_plan as parsed_plan
from gnnplace.run.planned import mesh_here, split_model
from gnnplace.sharding import (
    LayerGraph,
    LayerSplit,
    Mesh,
    MeshMachine,
    SplitOptions,
    default_mesh,
    fastest_split,
    layer_graph,
    layer_tables,
    load_layers,
    measure_figures,
    mesh_machine,
)
from gnnplace.tracing import make_workload, rules_of
from gnnplace.zoo import Workload

Loss = Callable[..., torch.Tensor]
MOST_AXES = 2


@dataclass(frozen=True, eq=False)
class ShardPlan(Plan):
    """A split of every layer of a model over a mesh.

    Attributes:
        split: The strategy with its tables; None where the plan was read from a file.
        loss: One of the layers, if it was given.
        device_mesh: The mesh it was made for, if it was one of torch's.
    """

    split: LayerSplit | None = None
    loss: Loss | None = None
    device_mesh: DeviceMesh | None = field(default=None, repr=False)

    @property
    def mesh(self) -> Mesh:
        """Return the sizes of the mesh's dimensions."""
        return self.file.stages[0].axes

    def apply(
        self,
        model: nn.Module,
        mesh: DeviceMesh | None = None,
        *,
        loss: Loss | None = None,
    ) -> nn.Module:
        """Split a model over the mesh, in place. Every process of the mesh calls this.

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
            MismatchError: If the plan was made for another model. The message names the first
                difference.
            InputError: If there is no process group of the mesh's size.
        """
        return split_model(
            self.file, model, mesh or self.device_mesh, loss or self.loss
        )


def read_shard_plan(path: str | Path) -> ShardPlan:
    """Read a plan of one stage and one replica.

    Raises:
        FormatError: The message names the file, the key path and the fault.
        MismatchError: If it has more stages or replicas.
    """
    file = parsed_plan(path).file
    replicas = len(file.stages[0].devices)
    if len(file.stages) > 1 or replicas > 1:
        raise MismatchError(
            f"{path}: stages: {len(file.stages)} of {replicas} replicas; a model's own forward "
            "pass is one stage of one replica: train with gnnplace.read_plan(path).apply(model)"
        )
    return ShardPlan(file)


def plan_shard(
    model: str,
    options: SplitOptions | None = None,
    *,
    memory_limit: float | None = None,
    machine: MeshMachine | None = None,
    seconds: Sequence[float] = (),
) -> ShardPlan:
    """Search the best split of a model's layers that can be run.

    Args:
        model: A model by its name.
        options: The number of devices and their speeds.
        memory_limit: Bytes that a device has.
        machine: Measured figures, instead of the options' speeds.
        seconds: Measured seconds of each whole call, forward and backward.

    Raises:
        InputError, CaptureError: If there is no such model, or it cannot be captured.
        InfeasibleError: If nothing fits the memory.
    """
    options = options or SplitOptions()
    mesh = default_mesh(options.count(options.exchange()))
    tables = layer_tables(
        load_layers(model), mesh, machine or mesh_machine(options), seconds
    )
    split = tables.split(fastest_split(tables.problem, memory_limit))
    return plan_of_split(split, model, options)


def plan_of_split(split: LayerSplit, model: str, options: SplitOptions) -> ShardPlan:
    """Return the plan of one stage that runs a split of a model's layers.

    Args:
        split: How every layer is split.
        model: The model by its name, as in `plan_shard`.
        options: The options of that search. Their cluster names the devices.
    """
    exchange = options.exchange()
    count = math.prod(split.mesh)
    cluster = f"cpu:{count}"
    names = _numbered("cpu", count)
    if exchange is not None:
        cluster = exchange.cluster.name
        names = [device.name for device in exchange.cluster.devices[:count]]
    return ShardPlan(_file(split, model, cluster, names), split=split)


def shard_model(
    model: nn.Module,
    inputs: object,
    mesh: int | DeviceMesh,
    *,
    loss: Loss | None = None,
    machine: MeshMachine | None = None,
    memory_limit: float | None = None,
) -> ShardPlan:
    """Search the best split of a model's layers, to be applied to the model.

    With a process group of the mesh's size (or under torchrun) every process calls this, and the
    machine is measured.

    Args:
        model: The model that is split.
        inputs: Example inputs of the whole batch (with the loss's targets).
        mesh: The number of devices, or torch's mesh of one or two dimensions.
        loss: One of the layers, if given: the split model then returns it.
        machine: Figures to plan with; None: measured where the processes are.
        memory_limit: Bytes that a device has.

    Raises:
        CaptureError: If the model cannot be captured. The message names the module.
        InfeasibleError: If nothing fits the memory.
    """
    kind = next((p.device.type for p in model.parameters()), "cpu")
    torch_mesh = None
    if isinstance(mesh, int):
        axes = default_mesh(mesh)
        # The machine is measured only if the processes of the mesh are here.
        if "RANK" in os.environ:
            count = int(os.environ.get("WORLD_SIZE", 0))
        else:
            count = 0
        if dist.is_initialized():
            count = dist.get_world_size()
        if count == mesh:
            device_mesh = mesh_here(axes, kind)
        else:
            device_mesh = None
    elif isinstance(mesh, DeviceMesh):
        axes = tuple(n for n in mesh.shape if n > 1) or (1,)
        device_mesh = mesh
        torch_mesh = mesh
        if len(axes) > MOST_AXES:
            raise InputError(
                f"mesh {tuple(mesh.shape)}: layers are split over two dimensions"
            )
    else:
        raise InputError(
            f"mesh {mesh!r}: must be a number of devices or a torch DeviceMesh"
        )
    workload = make_workload(model, inputs, loss)
    layers = layer_graph(workload.model, workload.inputs, loss, type(model).__name__)
    seconds: tuple[float, ...] = ()
    if machine is None:
        machine, seconds = (
            (MeshMachine(), ())
            if device_mesh is None
            else measure_figures(layers, device_mesh)
        )
    tables = layer_tables(layers, axes, machine, seconds)
    split = tables.split(fastest_split(tables.problem, memory_limit))
    count = math.prod(axes)
    file = _file(split, type(model).__name__, f"{kind}:{count}", _numbered(kind, count))
    return ShardPlan(file, split=split, loss=loss, device_mesh=torch_mesh)


def _numbered(kind: str, count: int) -> list[str]:
    return [f"{kind}:{k}" for k in range(count)]


def _file(split: LayerSplit, model: str, cluster: str, devices: list[str]) -> PlanFile:
    """Return the split as a plan of one stage and one micro-batch, with its predicted times."""
    layers = split.layers
    calls = without_dropped_attention(split.layers.calls)
    cuts = cuts_of(calls, rules_of(calls))
    members = []
    for segment in cuts.segments:
        for name in segment.members:
            members.append(name)
    # A plan's file has placements of the calls of segments alone.
    inner = split.mesh[-1]
    inside = frozenset(members)
    chosen = {
        i: split.configurations[i]
        for i, call in enumerate(calls.calls)
        if call.name in inside
    }
    batch, inputs, precision = _setting(layers)
    seconds = split.predicted
    activations = split.activations
    memory = MemoryEntry(
        state=max(seconds.memory - activations, 0.0),
        activations=activations,
        working=0.0,
        slack=0.0,
    )
    return PlanFile(
        format="gnnplace-plan",
        version=2,
        model=model,
        fingerprint=fingerprint(calls, cuts),
        cluster=cluster,
        batch=batch,
        microbatch_size=batch,
        precision=precision,
        optimizer="adamw",
        inputs=inputs,
        stages=[
            StageEntry(
                modules=list(
                    dict.fromkeys(path for s in cuts.segments for path in s.modules)
                ),
                members=members,
                devices=[
                    [devices[k : k + inner] for k in range(0, len(devices), inner)]
                ],
                placements=format_placements(calls, layers.rules, chosen, split.homes),
            )
        ],
        ranks=[0],
        actions=words(with_messages(one_by_one(1, 1), (0,))),
        parts={
            "compute": seconds.compute,
            "collectives": seconds.reduction + seconds.resharding,
            "reduction": seconds.gradient,
        },
        memory=dict.fromkeys(devices, memory),
    )


def _setting(layers: LayerGraph) -> tuple[int, list[InputEntry], str]:
    """Return the number of examples, the inputs and the precision of a captured model."""
    step = layers.step
    inputs: Any = step.kwargs if step.kwargs and not step.args else step.args
    entries: list[InputEntry] = []
    for name, shape, dtype in told_inputs(inputs):
        entries.append(InputEntry(name=name, shape=list(shape), dtype=dtype))
    try:
        batch = count_examples(Workload("", step.model, inputs, None))
    except InputError:
        batch = 1
    types = {p.dtype for p in step.model.parameters()}
    precision = "32-true"
    for word, parameters_type in TYPES.items():
        if types == {parameters_type}:
            precision = word
            break
    return batch, entries, precision
