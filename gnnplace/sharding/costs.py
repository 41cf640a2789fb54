"""Costs of configurations (PaSE, arXiv 2407.04001: computation, reductions, gradient
synchronisation and data transfer between neighbours), in seconds of one training step.

With splits k_d of the dimensions d, a tensor of E elements has E / prod(k_d, d along it) elements
on each device, and:

* compute: 3 F / prod(k_d) FLOP for F forward FLOP: the backward pass of a product is two products
  of the same size (Goodfellow, Bengio, Courville, 2016, section 6.5).
* a tensor that is summed over dimensions it does not have is all-reduced over the product k of
  their splits: ``costs.collectives.share`` of its bytes pass every link. The output is summed in
  the forward pass, the gradient of an input and that of a parameter in the backward pass.
* resharding: a device needs E / prod(consumer's splits) and holds, with the devices assigned so
  that the two overlap the most, E / prod(max of both splits) of it; the rest is sent, and the
  gradient goes the other way. On a cluster whose fabric is known (``Machine.exchange``),
  all-reduces and resharding (as an all-to-all of all devices) take what ``costs.collectives`` says
  instead.
* a stack of layers over k stages works as a pipeline; every stage sends its output on and gets the
  gradient back; what comes out of the last is summed (with zeros) like a partial output.
* memory: parameters with gradients and optimizer state, outputs kept for the backward pass, and
  copies of inputs that came in another split.

A strategy of a network in words and in parts of its cost, beside data parallelism.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import FloatArray
from gnnplace.costs.collectives import ALL_REDUCE, ALL_TO_ALL, Exchange, gradient_seconds, share
from gnnplace.errors import InputError
from gnnplace.sharding.layers import (
    ANY,
    Axes,
    Network,
    Operation,
    SplitSpace,
    configurations,
    data_parallel,
    in_words,
)
from gnnplace.sharding.problem import Edge, ShardingProblem
from gnnplace.sharding.solver.classes import Classes, ClassTable
from gnnplace.simulation.transfer import message_seconds


@dataclass(frozen=True)
class Machine:
    """One device and its link; the defaults are those of the PaSE authors' cost model.

    Attributes:
        flops: FLOP per second that layers reach.
        bandwidth: bytes per second of the link.
        element: bytes of an element.
        state: copies of a parameter that stay: itself, its gradient and Adam's two moments.
        exchange: what collectives take on a cluster whose fabric is known; else the formulas above.

    Raises:
        InputError: a speed that is not positive.
    """

    flops: float = 10e12
    bandwidth: float = 16e9
    element: int = 4
    state: int = 4
    exchange: Exchange | None = None

    def __post_init__(self) -> None:
        for name in ("flops", "bandwidth"):
            if not 0 < getattr(self, name) < np.inf:
                raise InputError(f"{name}: {getattr(self, name):g} is not a positive number")


@dataclass(frozen=True, eq=False)
class LayerCosts:
    """Seconds and bytes of an operation's configurations. Arrays [K]"""

    compute: FloatArray
    reduction: FloatArray
    gradient: FloatArray
    memory: FloatArray

    @property
    def total(self) -> FloatArray:
        """Seconds in all."""
        return self.compute + self.reduction + self.gradient


@dataclass(frozen=True, eq=False)
class EdgeCosts:
    """Seconds and bytes between two operations' configurations. Arrays [K_u, K_v]

    Attributes:
        over_classes: ``time`` over classes of configurations.
    """

    time: FloatArray
    memory: FloatArray
    over_classes: ClassTable


@lru_cache(maxsize=4096)
def layer_costs(
    operation: Operation, devices: int, machine: Machine, space: SplitSpace = ANY
) -> LayerCosts:
    """Costs of every configuration of ``operation``."""
    splits = configurations(operation, devices, space)
    parts = {d.name: splits[:, i] for i, d in enumerate(operation.dimensions)}
    compute = (
        3.0 * operation.flops / splits.prod(axis=1) / machine.flops * _waiting(operation, parts)
    )
    seconds = message_seconds(machine.element, machine.bandwidth)
    reduced = _all_reduce(operation, parts, operation.output, machine)
    if operation.needs_gradient:
        for axes in operation.inputs:
            reduced = reduced + _all_reduce(operation, parts, axes, machine)
    reduced = reduced + _halo(operation, parts) + _between_stages(operation, parts)
    gradient = np.zeros(len(splits))
    stored = _local(operation, parts, operation.kept or operation.output)
    for axes in operation.parameters:
        gradient = gradient + _all_reduce(operation, parts, axes, machine, bucketed=True)
        stored = stored + machine.state * _local(operation, parts, axes)
    return LayerCosts(compute, reduced * seconds, gradient * seconds, stored * machine.element)


def _local(operation: Operation, parts: dict[str, NDArray], axes: Axes) -> FloatArray:
    """Elements of a tensor on one device."""
    split = np.ones(len(next(iter(parts.values()))))
    for name in axes:
        split = split * (parts[name] if name is not None else 1.0)
    return operation.elements(axes) / split


def _all_reduce(
    operation: Operation,
    parts: dict[str, NDArray],
    axes: Axes,
    machine: Machine,
    *,
    bucketed: bool = False,
) -> FloatArray:
    """Elements that pass a device's link when the tensor is summed over all it does not have.

    On a known fabric, as many as would take its seconds; gradients go in buckets there.
    """
    group = np.ones(len(next(iter(parts.values()))))
    for name, split in parts.items():
        if name not in axes:
            group = group * split
    local = _local(operation, parts, axes)
    if machine.exchange is not None:
        exchange = machine.exchange.bucketed if bucketed else machine.exchange.seconds
        seconds = exchange(ALL_REDUCE, group, local * machine.element)
        return seconds * machine.bandwidth / machine.element
    return share(ALL_REDUCE, group) * local


def _halo(operation: Operation, parts: dict[str, NDArray]) -> FloatArray:
    """Elements of borders, sent in the forward pass and their gradients in the backward pass."""
    total = np.zeros(len(next(iter(parts.values()))))
    for name, positions, border in operation.halo:
        total += 2.0 * (parts[name] > 1) * positions * _local(operation, parts, border)
    return total


def _waiting(operation: Operation, parts: dict[str, NDArray]) -> FloatArray | float:
    """Time of a pipeline by that of its work: k stages and n shares take n + k - 1 turns (GPipe:
    Huang et al., 2019, arXiv 1811.06965).
    """
    if operation.stages is None:
        return 1.0
    name, shares = operation.stages
    return (shares + parts[name] - 1.0) / shares


def _between_stages(operation: Operation, parts: dict[str, NDArray]) -> FloatArray | float:
    """Elements that a stage sends on, and their gradients that come back."""
    if operation.stages is None:
        return 0.0
    return 2.0 * (parts[operation.stages[0]] > 1) * _local(operation, parts, operation.output)


@lru_cache(maxsize=4096)
def edge_costs(
    producer: Operation,
    consumer: Operation,
    port: int,
    devices: int,
    machine: Machine,
    space: SplitSpace = ANY,
) -> EdgeCosts:
    """Costs of the producer's output, in every split, becoming the consumer's input in every split.

    Args:
        producer: whose output it is.
        consumer: whose input it is.
        port: which of the consumer's inputs.
        devices: the number of devices to split over.
        machine: speeds of a device and of its link.
        space: which splits are allowed, as for ``configurations``.
    """
    axes = consumer.inputs[port]
    made = layouts(producer, producer.output, devices, space)
    read = layouts(consumer, axes, devices, space)
    size = producer.elements(producer.output) * machine.element
    need = np.broadcast_to(size / read[0].prod(axis=1), (len(made[0]), len(read[0])))
    there = (size / made[0].prod(axis=1))[:, None]
    common = size / _overlaps(made[0], read[0])
    back = there - common if consumer.needs_gradient else 0.0
    moved = need - common
    seconds = (
        message_seconds(moved + back, machine.bandwidth)
        if machine.exchange is None
        else _resharding(moved, devices, machine) + _resharding(back, devices, machine)
    )
    time = ClassTable(seconds, made[1], read[1])
    copies = ClassTable(np.where(moved > 0, need, 0.0), made[1], read[1])
    return EdgeCosts(time.spread(), copies.spread(), time)


def _resharding(moved: FloatArray | float, devices: int, machine: Machine) -> FloatArray:
    """Seconds of every device getting ``moved`` bytes from the others, as in an all-to-all."""
    assert machine.exchange is not None
    sizes = np.asarray(moved) * devices / max(devices - 1, 1)
    return machine.exchange.seconds(ALL_TO_ALL, np.full(sizes.shape, float(devices)), sizes)


def _overlaps(held: FloatArray, wanted: FloatArray) -> FloatArray:
    """Parts of a tensor that two layouts together cut it into; a missing axis is whole.

    Args:
        held: [layouts, axes]
        wanted: [other layouts, other axes]
    """
    parts = np.ones((len(held), len(wanted)))
    for axis in range(max(held.shape[1], wanted.shape[1])):
        mine = held[:, axis] if axis < held.shape[1] else np.ones(len(held))
        other = wanted[:, axis] if axis < wanted.shape[1] else np.ones(len(wanted))
        parts *= np.maximum(mine[:, None], other)
    return parts


@lru_cache(maxsize=4096)
def layouts(
    operation: Operation, axes: Axes, devices: int, space: SplitSpace
) -> tuple[FloatArray, Classes]:
    """Ways in which configurations lay out a tensor, and which configuration has which.

    Returns:
        parts of each axis [layouts, axes] and the layout of each configuration.
    """
    splits = configurations(operation, devices, space)
    names = [d.name for d in operation.dimensions]
    columns = [splits[:, names.index(a)] if a is not None else splits[:, 0] * 0 + 1 for a in axes]
    code = np.zeros(len(splits), np.int64)
    for column in columns:
        code = code * (devices + 1) + column
    _, first, of = np.unique(code, return_index=True, return_inverse=True)
    parts = np.array(columns, np.float64).reshape(len(columns), len(splits))  # a scalar has no axis
    return parts.T[first], Classes(of, first)


def sharding_problem(
    network: Network, devices: int, machine: Machine | None = None, *, space: SplitSpace = ANY
) -> ShardingProblem:
    """Cost tables of a network; equal layers and equal pairs of layers share them.

    Args:
        network: the layers and what each reads.
        devices: the number of devices to split over.
        machine: speeds of a device and of its link.
        space: which splits are allowed.
    """
    machine = machine or Machine()
    index = {layer.name: i for i, layer in enumerate(network.layers)}
    own = [layer_costs(x.operation, devices, machine, space) for x in network.layers]
    totals = {id(costs): costs.total for costs in own}
    edges = []
    for layer in network.layers:
        for port, source in enumerate(layer.inputs):
            if source is not None:
                producer = network.layers[index[source]].operation
                costs = edge_costs(producer, layer.operation, port, devices, machine, space)
                ends = (index[source], index[layer.name])
                edges.append(Edge(*ends, costs.time, costs.memory, costs.over_classes))
    return ShardingProblem(
        network.name,
        devices,
        tuple(index),
        tuple(totals[id(costs)] for costs in own),
        tuple(edges),
        tuple(costs.memory for costs in own),
    )


PARTS = ("compute", "reduction", "gradient", "resharding", "memory")


@dataclass(frozen=True)
class CostParts:
    """Seconds of one training step, and bytes on a device."""

    compute: float
    reduction: float
    gradient: float
    resharding: float
    memory: float

    @property
    def total(self) -> float:
        """Seconds in all; nothing overlaps."""
        return self.compute + self.reduction + self.gradient + self.resharding


@dataclass(frozen=True)
class Setting:
    """What a network's tables were made for."""

    network: Network
    devices: int
    machine: Machine
    space: SplitSpace = ANY

    def words(self, configuration: Sequence[int]) -> list[str]:
        """Each layer's split, such as ``heads over 4, batch over 2``."""
        pairs = zip(self.network.layers, configuration, strict=True)
        return [
            in_words(x.operation, configurations(x.operation, self.devices, self.space)[k])
            for x, k in pairs
        ]

    def parts(self, configuration: Sequence[int]) -> CostParts:
        """What one configuration index a layer costs, all layers together."""
        layers = self.by_layer(configuration)
        return CostParts(*(sum(getattr(part, name) for part in layers) for name in PARTS))

    def by_layer(self, configuration: Sequence[int]) -> list[CostParts]:
        """What one configuration index a layer costs, with the resharding of its inputs."""
        machine, devices, space = self.machine, self.devices, self.space
        layers = self.network.layers
        chosen = dict(zip((x.name for x in layers), configuration, strict=True))
        operations = {x.name: x.operation for x in layers}
        found = []
        for layer, k in zip(layers, configuration, strict=True):
            own = layer_costs(layer.operation, devices, machine, space)
            moved, memory = 0.0, float(own.memory[k])
            for port, source in enumerate(layer.inputs):
                if source is None:
                    continue
                costs = edge_costs(
                    operations[source], layer.operation, port, devices, machine, space
                )
                cell = (chosen[source], chosen[layer.name])
                moved, memory = moved + float(costs.time[cell]), memory + float(costs.memory[cell])
            compute, reduction = float(own.compute[k]), float(own.reduction[k])
            found.append(CostParts(compute, reduction, float(own.gradient[k]), moved, memory))
        return found

    def ddp(self) -> CostParts:
        """What data parallelism costs as PyTorch's DDP does it.

        Every device runs all layers on its share of the batch, layers that cannot be split as well,
        and the gradients of all parameters are all-reduced once; nothing else is exchanged.
        """
        devices, machine = self.devices, self.machine
        operations = [layer.operation for layer in self.network.layers]
        examples = max(d.extent for x in operations for d in x.dimensions if d.name == "batch")
        share = math.ceil(examples / devices) / examples
        learned = sum(x.elements(axes) for x in operations for axes in x.parameters)
        made = sum(x.elements(x.kept or x.output) for x in operations)
        size = learned * machine.element
        reduced = gradient_seconds(machine.exchange, machine.bandwidth, devices, size)
        return CostParts(
            3.0 * share * sum(x.flops for x in operations) / machine.flops,
            0.0,
            reduced,
            0.0,
            (share * made + machine.state * learned) * machine.element,
        )

    def data_parallel(self) -> tuple[int, ...]:
        """The configuration of data parallelism: every layer split along the batch alone."""
        return tuple(
            data_parallel(layer.operation, self.devices, self.space)
            for layer in self.network.layers
        )
