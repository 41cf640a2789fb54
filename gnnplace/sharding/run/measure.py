"""Speeds of the devices at hand, of collectives between them and of layers, measured."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gnnplace.costs import ALL_REDUCE, share
from gnnplace.sharding.captured.costs import MeshMachine
from gnnplace.sharding.captured.layout import PARTIAL, REPLICATED
from gnnplace.sharding.captured.recording import PREFIX
from gnnplace.sharding.captured.split import LayerGraph
from gnnplace.sharding.run.move import redistribute
from gnnplace.sharding.run.runner import DeviceShare, run_part
from gnnplace.tracing import BUFFER, CONSTANT, INPUT, PARAMETER, CallGraph, StepModule

SMALL = 256
LARGE = 1 << 20
"""Elements of the tensors whose sums are timed."""
ROUNDS = 15
TURNS = 4
"""Runs of a collective and of a step, of which the fastest counts."""
SIDE = 512
LARGE_SIDE = 4096
"""Rows and columns of the product that is timed on CPUs and on GPUs."""


def measure_figures(
    layers: LayerGraph, mesh: DeviceMesh
) -> tuple[MeshMachine, tuple[float, ...]]:
    """Measure speeds and, on CPUs, the seconds of every call; all devices call it.

    The numbers are those of the first device, so that all plan alike. The model is left as it was.
    """
    machine = measure_machine(mesh)
    if mesh.device_type != "cpu":
        return machine, ()
    copied_layers = replace(layers, step=copy.deepcopy(layers.step))
    seconds = torch.tensor(layer_seconds(copied_layers, mesh), dtype=torch.float64)
    broadcast_from_first(seconds, mesh)
    return machine, tuple(seconds.tolist())


def measure_machine(mesh: DeviceMesh) -> MeshMachine:
    """Measure the speed of a device and of collectives over the mesh's first dimension; all devices
    call it.

    The numbers are those of the first device, so that all plan alike.
    """
    latency, bandwidth = _collectives(mesh)
    kind = mesh.device_type
    side = LARGE_SIDE if kind == "cuda" else SIDE
    square = torch.ones(side, side, device=kind)
    rate = 2.0 * side**3 / _timed(lambda: square @ square, kind)
    figures = [rate, bandwidth, latency, _overhead(kind)]
    shared = torch.tensor(figures, dtype=torch.float64, device=kind)
    broadcast_from_first(shared, mesh)
    flops, bandwidth, latency, overhead = shared.tolist()
    return MeshMachine(
        flops=flops, bandwidth=bandwidth, latency=latency, overhead=overhead
    )


def broadcast_from_first(tensor: torch.Tensor, mesh: DeviceMesh) -> None:
    """Give a tensor the numbers that the mesh's first device has."""
    for dim in range(mesh.ndim):
        dist.broadcast(tensor, group=mesh.get_group(dim), group_src=0)


def _collectives(mesh: DeviceMesh) -> tuple[float, float]:
    """Return the seconds of a small all-reduce, and the bytes per second that a large one
    reaches.
    """
    size = mesh.size(0)
    if size == 1:
        return 0.0, 1e12
    partial = (PARTIAL, *[REPLICATED] * (mesh.ndim - 1))
    replicated = (REPLICATED,) * mesh.ndim

    def reduce(count: int) -> float:
        local = torch.ones(count, device=mesh.device_type)
        return _timed(
            lambda: redistribute(local, mesh, partial, replicated), mesh.device_type
        )

    latency = reduce(SMALL)
    large = reduce(LARGE)
    sent = share(ALL_REDUCE, size) * 4 * LARGE
    return latency, sent / max(large - latency, 1e-9)


def _timed(work: Callable[[], object], kind: str) -> float:
    """Return the least seconds after a first run: what takes longer was disturbed by other
    processes.
    """
    work()
    if kind == "cuda":
        torch.cuda.synchronize()
    shortest = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        work()
        if kind == "cuda":
            torch.cuda.synchronize()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


def _overhead(kind: str) -> float:
    """Return the seconds of an operation on next to nothing, forward and backward."""
    x = torch.ones(4, requires_grad=True, device=kind)
    return _timed(lambda: torch.relu(x).sum().backward(), kind) / 2


def layer_seconds(layers: LayerGraph, mesh: DeviceMesh) -> tuple[float, ...]:
    """Measure the CPU seconds of every call on one device, forward and backward.

    The forward pass is timed call by call, the whole step as it is; what the step takes beyond the
    calls' forward passes is shared out in proportion among those that a gradient flows through.

    Args:
        layers: the model, which is left with gradients and what a forward pass changes.
        mesh: The mesh of this device.
    """
    step = layers.step
    graph = layers.calls
    forward = [float("inf")] * len(graph.calls)
    step_seconds = float("inf")
    for _ in range(TURNS):
        seconds = _forward_seconds(layers, mesh)
        forward = [min(a, b) for a, b in zip(forward, seconds, strict=True)]
        start = time.thread_time()
        loss = step(*step.inputs())
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            loss.sum().backward()
        step_seconds = min(step_seconds, time.thread_time() - start)
    flows = [
        any(graph.values[v].gradient for v in call.results) for call in graph.calls
    ]
    with_gradient = sum(t for t, flow in zip(forward, flows, strict=True) if flow)
    backward = max(0.0, step_seconds - sum(forward))
    if with_gradient:
        factor = 1.0 + backward / with_gradient
    else:
        factor = 1.0
    return tuple(
        t * factor if flow else t for t, flow in zip(forward, flows, strict=True)
    )


def _forward_seconds(layers: LayerGraph, mesh: DeviceMesh) -> list[float]:
    """Return the CPU seconds of the forward pass of every call, one after the other."""
    values = _initial_values(layers.step, layers.calls)
    alone = DeviceShare(mesh, ())
    seconds = []
    for call, rule in zip(layers.calls.calls, layers.rules, strict=True):
        tensors = [values[v] for v in call.reads]
        start = time.thread_time()
        results = run_part(call, rule, alone, tensors)
        seconds.append(time.thread_time() - start)
        values.update(zip(call.results, results, strict=True))
    return seconds


def _initial_values(step: StepModule, graph: CallGraph) -> dict[int, torch.Tensor]:
    """Return the tensors that no call makes, by value: parameters, buffers, inputs and
    constants.
    """
    state = {**dict(step.named_parameters()), **dict(step.named_buffers())}
    values: dict[int, torch.Tensor] = {}
    inputs = step.inputs()
    for index, value in enumerate(graph.values):
        if value.source in (PARAMETER, BUFFER):
            values[index] = state.get(PREFIX + value.name, state.get(value.name))  # type: ignore[assignment]
        elif value.source == INPUT:
            values[index] = inputs[int(value.name)]
        elif value.source == CONSTANT and index in graph.constants:
            values[index] = graph.constants[index]
    return values
