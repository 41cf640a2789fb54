"""`ShardPlan`: a plan of one stage that splits every layer of a model over a mesh of devices.

The split is optimal for the layers' cost tables, found by exact elimination (PaSE, arXiv
2407.04001). These tables price neither the optimizer nor a pipeline, so the plan's file has the
seconds of compute, collectives and gradient reduction, and no step time. `gnnplace plan MODEL
--cluster cpu:N --given plan.json` prices the file like any other plan.
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
    compute_fingerprint,
    count_examples,
    describe_inputs,
    find_cuts,
    format_placements,
    one_by_one,
    with_messages,
    without_dropped_attention,
)
from gnnplace.plans import action_words as words
from gnnplace.plans import read_plan as parsed_plan
from gnnplace.run.planned import make_mesh_here, split_model
from gnnplace.run.split import measure_figures
from gnnplace.sharding import (
    LayerGraph,
    LayerSplit,
    Mesh,
    MeshMachine,
    SplitOptions,
    default_mesh,
    find_fastest_split,
    layer_graph,
    layer_tables,
    load_layers,
    mesh_machine,
)
from gnnplace.tracing import find_rules, make_workload
from gnnplace.zoo import Workload

Loss = Callable[..., torch.Tensor]
MOST_AXES = 2
"""Dimensions of a mesh that layers can be split over."""


@dataclass(frozen=True, eq=False)
class ShardPlan(Plan):
    """A split of every layer of a model over a mesh.

    Attributes:
        split: The configuration of every layer, with its cost tables; None if the plan was read
            from a file.
        loss: The loss, which is split like a layer; None if none was given.
        device_mesh: The torch mesh that the plan was made for; None if it was made for a number of
            devices.
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

        The model's parameters become DTensors. Its forward pass takes the unsharded inputs on every
        device and returns unsharded outputs. If the plan has a loss, the forward pass also takes
        the loss's targets and returns the loss.

        Args:
            model: The model that the plan was made for.
            mesh: The devices; by default those of the process group.
            loss: The loss. Required if the plan was made with one and was read from a file.

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
        FormatError: If the file is wrong; the message names it, the key path and the reason.
        MismatchError: If the plan has several stages or replicas.
    """
    file = parsed_plan(path).file
    replicas = len(file.stages[0].devices)
    if len(file.stages) > 1 or replicas > 1:
        raise MismatchError(
            f"{path}: stages: the plan has {len(file.stages)} stages of {replicas} replicas, and "
            "the forward pass of one model is one stage of one replica; train with "
            "gnnplace.read_plan(path).apply(model)"
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
    """Search the fastest split of a model's layers.

    Args:
        model: A model by its name.
        options: The number of devices and their speeds.
        memory_limit: Bytes that a device has; None: any number.
        machine: Measured speeds, instead of those of the options.
        seconds: Measured seconds of each call on one device, forward and backward; empty: they are
            predicted.

    Raises:
        InputError: If there is no such model.
        CaptureError: If the model cannot be captured.
        InfeasibleError: If no split fits the memory.
    """
    options = options or SplitOptions()
    mesh = default_mesh(options.count(options.exchange()))
    tables = layer_tables(
        load_layers(model), mesh, machine or mesh_machine(options), seconds
    )
    split = tables.split(find_fastest_split(tables.problem, memory_limit))
    return make_split_plan(split, model, options)


def make_split_plan(split: LayerSplit, model: str, options: SplitOptions) -> ShardPlan:
    """Return the plan that runs a split of a model's layers as its only stage.

    Args:
        split: How every layer is split.
        model: The model by its name, as in `plan_shard`.
        options: The options that the split was searched with. Their cluster names the devices;
            without one the devices are cpu:0, cpu:1 and so on.
    """
    exchange = options.exchange()
    count = math.prod(split.mesh)
    cluster = f"cpu:{count}"
    names = _number_devices("cpu", count)
    if exchange is not None:
        cluster = exchange.cluster.name
        names = [device.name for device in exchange.cluster.devices[:count]]
    return ShardPlan(_make_plan_file(split, model, cluster, names), split=split)


def shard_model(
    model: nn.Module,
    inputs: object,
    mesh: int | DeviceMesh,
    *,
    loss: Loss | None = None,
    machine: MeshMachine | None = None,
    memory_limit: float | None = None,
) -> ShardPlan:
    """Search the fastest split of a model's layers. `ShardPlan.apply` then splits the model.

    In a process group of the mesh's size, and under torchrun, every process must call this. The
    speeds are then measured.

    Args:
        model: The model to split.
        inputs: Example inputs of the whole batch, followed by the loss's targets if there is a
            loss.
        mesh: The number of devices, or a torch mesh of one or two dimensions.
        loss: The loss. If given, it is split like a layer, and the split model returns it.
        machine: Speeds to plan with; None: they are measured if the mesh's processes are running,
            else the defaults of `MeshMachine` are taken.
        memory_limit: Bytes that a device has; None: any number.

    Raises:
        CaptureError: If the model cannot be captured. The message names the module.
        InputError: If `mesh` is neither, or has more than two dimensions.
        InfeasibleError: If no split fits the memory.
    """
    kind = next((p.device.type for p in model.parameters()), "cpu")
    torch_mesh = None
    if isinstance(mesh, int):
        axes = default_mesh(mesh)
        # Speeds can be measured only if there is a process for each device of the mesh.
        num_processes = 0
        if dist.is_initialized():
            num_processes = dist.get_world_size()
        elif "RANK" in os.environ:
            num_processes = int(os.environ.get("WORLD_SIZE", 0))
        device_mesh = make_mesh_here(axes, kind) if num_processes == mesh else None
    elif isinstance(mesh, DeviceMesh):
        axes = tuple(n for n in mesh.shape if n > 1) or (1,)
        device_mesh = mesh
        torch_mesh = mesh
        if len(axes) > MOST_AXES:
            raise InputError(
                f"mesh {tuple(mesh.shape)}: layers can be split over {MOST_AXES} dimensions at "
                "most; give a mesh of fewer"
            )
    else:
        raise InputError(
            f"mesh {mesh!r}: must be a number of devices or a torch DeviceMesh"
        )
    workload = make_workload(model, inputs, loss)
    layers = layer_graph(workload.model, workload.inputs, loss, type(model).__name__)
    seconds: tuple[float, ...] = ()
    if machine is None:
        if device_mesh is None:
            machine = MeshMachine()
        else:
            machine, seconds = measure_figures(layers, device_mesh)
    tables = layer_tables(layers, axes, machine, seconds)
    split = tables.split(find_fastest_split(tables.problem, memory_limit))
    count = math.prod(axes)
    file = _make_plan_file(
        split, type(model).__name__, f"{kind}:{count}", _number_devices(kind, count)
    )
    return ShardPlan(file, split=split, loss=loss, device_mesh=torch_mesh)


def _number_devices(kind: str, count: int) -> list[str]:
    """Return the names of devices, such as "cpu:0" and "cpu:1"."""
    return [f"{kind}:{k}" for k in range(count)]


def _make_plan_file(
    split: LayerSplit, model: str, cluster: str, devices: list[str]
) -> PlanFile:
    """Return a split as the file of a plan of one stage and one micro-batch.

    Args:
        split: How every layer is split, with its predicted seconds and bytes.
        model: The model's name.
        cluster: The cluster's name.
        devices: Names of the devices, in the order of the mesh.
    """
    layers = split.layers
    calls = without_dropped_attention(split.layers.calls)
    cuts = find_cuts(calls, find_rules(calls))
    members: list[str] = []
    modules: dict[str, None] = {}  # without repetition, in the order of the segments
    for segment in cuts.segments:
        members.extend(segment.members)
        modules.update(dict.fromkeys(segment.modules))
    # Calls outside of all segments, such as those of masks, have no placement in a file.
    in_segments = frozenset(members)
    configurations = {
        i: split.configurations[i]
        for i, call in enumerate(calls.calls)
        if call.name in in_segments
    }
    # The only replica of the only stage: rows of devices along the mesh's last dimension.
    row_size = split.mesh[-1]
    rows = [devices[k : k + row_size] for k in range(0, len(devices), row_size)]
    batch, inputs, precision = _describe_batch(layers)
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
        fingerprint=compute_fingerprint(calls, cuts),
        cluster=cluster,
        batch=batch,
        microbatch_size=batch,
        precision=precision,
        optimizer="adamw",
        inputs=inputs,
        stages=[
            StageEntry(
                modules=list(modules),
                members=members,
                devices=[rows],
                placements=format_placements(
                    calls, layers.rules, configurations, split.homes
                ),
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


def _describe_batch(layers: LayerGraph) -> tuple[int, list[InputEntry], str]:
    """Return the number of examples, the inputs and the precision of a captured model.

    A model whose inputs have no batch has one example. The precision is that of all parameters, or
    "32-true" if they have several types.
    """
    step = layers.step
    inputs: Any = step.kwargs if step.kwargs and not step.args else step.args
    entries: list[InputEntry] = []
    for name, shape, dtype in describe_inputs(inputs):
        entries.append(InputEntry(name=name, shape=list(shape), dtype=dtype))
    try:
        batch = count_examples(Workload("", step.model, inputs, None))
    except InputError:
        batch = 1
    parameter_types = {p.dtype for p in step.model.parameters()}
    precision = "32-true"
    for word, precision_dtype in TYPES.items():
        if parameter_types == {precision_dtype}:
            precision = word
            break
    return batch, entries, precision
