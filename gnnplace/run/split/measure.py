"""Measures the speeds that a split of layers is planned with.

There are three: that of a device (a large product, and an op on next to nothing), that of an
all-reduce between devices, and the seconds of every call of a model. Every measurement is repeated,
and the fastest repetition counts, since other processes disturb the slower ones. All devices get
the figures of the first one, so that they make the same plan.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from gnnplace.costs import ALL_REDUCE, share
from gnnplace.run.split.move import redistribute
from gnnplace.run.split.runner import DeviceShare, run_part
from gnnplace.sharding import PARTIAL, REPLICATED, LayerGraph, MeshMachine
from gnnplace.tracing import (
    BUFFER,
    CONSTANT,
    INPUT,
    PARAMETER,
    PREFIX,
    CallGraph,
    StepModule,
)

SMALL = 256
"""Elements of a tensor whose all-reduce is all latency."""
LARGE = 1 << 20
"""Elements of a tensor whose all-reduce gives the bandwidth."""
FLOAT_BYTES = 4
"""Bytes of an element of these tensors."""
FREE_BANDWIDTH = 1e12
"""Bytes a second that a device has to itself, which needs no collectives."""
LEAST_SECONDS = 1e-9
"""Seconds that a large all-reduce takes longer than a small one, at least."""
ROUNDS = 15
"""Repetitions of a collective or an op."""
TURNS = 4
"""Repetitions of a step."""
SIDE = 512
"""Rows and columns of the product that is timed on a CPU."""
LARGE_SIDE = 4096
"""Rows and columns of the product that is timed on a GPU."""


def measure_figures(
    layers: LayerGraph, mesh: DeviceMesh
) -> tuple[MeshMachine, tuple[float, ...]]:
    """Measure speeds and, on CPUs, the seconds of every call. Every device's process calls this.

    Args:
        layers: The model, which is not changed.
        mesh: The devices.

    Returns:
        The speeds, and the seconds of every call, forward and backward, on one device; empty on
        GPUs. Both are those of the first device.
    """
    machine = measure_machine(mesh)
    if mesh.device_type != "cpu":
        return machine, ()
    # A step leaves gradients and changed buffers in the model, so a copy of it runs.
    copied_layers = replace(layers, step=copy.deepcopy(layers.step))
    seconds = torch.tensor(layer_seconds(copied_layers, mesh), dtype=torch.float64)
    broadcast_from_first(seconds, mesh)
    return machine, tuple(seconds.tolist())


def measure_machine(mesh: DeviceMesh) -> MeshMachine:
    """Measure the speed of a device, and of all-reduces over the mesh's first dimension.

    Every device's process calls this. The figures are those of the first device.
    """
    latency, bandwidth = _measure_all_reduce(mesh)
    kind = mesh.device_type
    side = LARGE_SIDE if kind == "cuda" else SIDE
    square = torch.ones(side, side, device=kind)
    # A product of two square matrices takes 2 side^3 FLOP.
    rate = 2.0 * side**3 / _find_shortest(lambda: square @ square, kind)
    overhead = _measure_overhead(kind)
    figures = torch.tensor(
        [rate, bandwidth, latency, overhead], dtype=torch.float64, device=kind
    )
    broadcast_from_first(figures, mesh)
    flops, bandwidth, latency, overhead = figures.tolist()
    return MeshMachine(
        flops=flops, bandwidth=bandwidth, latency=latency, overhead=overhead
    )


def broadcast_from_first(tensor: torch.Tensor, mesh: DeviceMesh) -> None:
    """Overwrite a tensor with the numbers that it has on the mesh's first device, in place."""
    for dim in range(mesh.ndim):
        dist.broadcast(tensor, group=mesh.get_group(dim), group_src=0)


def _measure_all_reduce(mesh: DeviceMesh) -> tuple[float, float]:
    """Return the seconds of a small all-reduce, and the bytes a second that a large one sends."""
    size = mesh.size(0)
    if size == 1:
        return 0.0, FREE_BANDWIDTH
    partial = (PARTIAL, *[REPLICATED] * (mesh.ndim - 1))
    replicated = (REPLICATED,) * mesh.ndim

    def time_all_reduce(num_elements: int) -> float:
        local = torch.ones(num_elements, device=mesh.device_type)
        return _find_shortest(
            lambda: redistribute(local, mesh, partial, replicated), mesh.device_type
        )

    latency = time_all_reduce(SMALL)
    large_seconds = time_all_reduce(LARGE)
    sent_bytes = share(ALL_REDUCE, size) * FLOAT_BYTES * LARGE
    return latency, sent_bytes / max(large_seconds - latency, LEAST_SECONDS)


def _find_shortest(work: Callable[[], object], kind: str) -> float:
    """Return the shortest seconds of `ROUNDS` runs, after one to warm up.

    Args:
        work: The work to time.
        kind: The type of the device that does it, "cpu" or "cuda".
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


def _measure_overhead(kind: str) -> float:
    """Return the seconds that one op takes on next to nothing, forward and backward.

    Two ops are timed together, since a backward pass needs a sum at the end.
    """
    x = torch.ones(4, requires_grad=True, device=kind)
    return _find_shortest(lambda: torch.relu(x).sum().backward(), kind) / 2


def layer_seconds(layers: LayerGraph, mesh: DeviceMesh) -> tuple[float, ...]:
    """Measure the CPU seconds of every call on one device, forward and backward together.

    The forward pass is timed call by call, and the step is timed as one. The rest of the step is
    taken to be the backward pass. It is divided among the calls that a gradient flows through, in
    proportion to their forward passes.

    Args:
        layers: The model. Steps leave gradients and changed buffers in it.
        mesh: The mesh of this device.

    Returns:
        Seconds of every call, in order.
    """
    step = layers.step
    graph = layers.calls
    forward = [float("inf")] * len(graph.calls)
    step_seconds = float("inf")
    for _ in range(TURNS):
        seconds = _time_forward(layers, mesh)
        forward = [
            min(shortest, new) for shortest, new in zip(forward, seconds, strict=True)
        ]
        start = time.thread_time()
        loss = step(*step.inputs())
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            loss.sum().backward()
        step_seconds = min(step_seconds, time.thread_time() - start)
    has_gradient = [
        any(graph.values[v].gradient for v in call.results) for call in graph.calls
    ]
    pairs = list(zip(forward, has_gradient, strict=True))
    seconds_with_gradient = sum(seconds for seconds, flows in pairs if flows)
    backward = max(0.0, step_seconds - sum(forward))
    if seconds_with_gradient:
        factor = 1.0 + backward / seconds_with_gradient
    else:
        factor = 1.0
    return tuple(seconds * factor if flows else seconds for seconds, flows in pairs)


def _time_forward(layers: LayerGraph, mesh: DeviceMesh) -> list[float]:
    """Return the CPU seconds of the forward pass of every call, run one after the other."""
    values = _find_initial_values(layers.step, layers.calls)
    unsplit = DeviceShare(mesh, ())
    seconds = []
    for call, rule in zip(layers.calls.calls, layers.rules, strict=True):
        tensors = [values[v] for v in call.reads]
        start = time.thread_time()
        results = run_part(call, rule, unsplit, tensors)
        seconds.append(time.thread_time() - start)
        values.update(zip(call.results, results, strict=True))
    return seconds


def _find_initial_values(step: StepModule, graph: CallGraph) -> dict[int, torch.Tensor]:
    """Return the tensors that no call makes, by value.

    These are parameters, buffers, inputs and constants.
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
