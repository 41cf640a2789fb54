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

from benchmarks.pase.layers import (
    ANY,
    Axes,
    Network,
    Operation,
    SplitSpace,
    configurations,
    data_parallel,
    in_words,
)
from gnnplace.arrays import FloatArray
from gnnplace.costs import (
    ALL_REDUCE,
    ALL_TO_ALL,
    Exchange,
    compute_gradient_seconds,
    share,
)
from gnnplace.errors import InputError
from gnnplace.sharding import CostParts, Edge, ShardingProblem
from gnnplace.sharding.solver.classes import Classes, ClassTable
from gnnplace.simulation import message_seconds


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
                raise InputError(
                    f"{name}: {getattr(self, name):g} is not a positive number"
                )


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
    """Compute the seconds and bytes of every configuration of an operation. Arrays [K]"""
    splits = configurations(operation, devices, space)
    parts = {d.name: splits[:, i] for i, d in enumerate(operation.dimensions)}
    compute = (
        3.0
        * operation.flops
        / splits.prod(axis=1)
        / machine.flops
        * _waiting(operation, parts)
    )
    seconds = message_seconds(machine.element, machine.bandwidth)
    reduced = _all_reduce(operation, parts, operation.output, machine)
    if operation.needs_gradient:
        for axes in operation.inputs:
            reduced = reduced + _all_reduce(operation, parts, axes, machine)
    reduced = reduced + _halo(operation, parts) + _between_stages(operation, parts)
    gradient = np.zeros(len(splits))
    stored = _local(operation, parts, operation.saved or operation.output)
    for axes in operation.parameters:
        gradient = gradient + _all_reduce(
            operation, parts, axes, machine, bucketed=True
        )
        stored = stored + machine.state * _local(operation, parts, axes)
    return LayerCosts(
        compute=compute,
        reduction=reduced * seconds,
        gradient=gradient * seconds,
        memory=stored * machine.element,
    )


def _local(operation: Operation, parts: dict[str, NDArray], axes: Axes) -> FloatArray:
    """Return the elements of a tensor on one device, for every configuration. [K]"""
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
    """Return the elements that pass a device's link when a tensor is summed over what it lacks. [K]

    On a known fabric, as many as would take its seconds; gradients go in buckets there.
    """
    group = np.ones(len(next(iter(parts.values()))))
    for name, split in parts.items():
        if name not in axes:
            group = group * split
    local = _local(operation, parts, axes)
    if machine.exchange is not None:
        if bucketed:
            exchange = machine.exchange.bucketed
        else:
            exchange = machine.exchange.seconds
        seconds = exchange(ALL_REDUCE, group, local * machine.element)
        return seconds * machine.bandwidth / machine.element
    return share(ALL_REDUCE, group) * local


def _halo(operation: Operation, parts: dict[str, NDArray]) -> FloatArray:
    """Return the elements of borders that are sent on, and of their gradients sent back. [K]"""
    total = np.zeros(len(next(iter(parts.values()))))
    for name, positions, border in operation.halo:
        total += 2.0 * (parts[name] > 1) * positions * _local(operation, parts, border)
    return total


def _waiting(operation: Operation, parts: dict[str, NDArray]) -> FloatArray | float:
    """Return the time of a pipeline over the time of its work: k stages and n shares take n + k - 1
    turns (GPipe: Huang et al., 2019, arXiv 1811.06965). [K]
    """
    if operation.stages is None:
        return 1.0
    name, shares = operation.stages
    return (shares + parts[name] - 1.0) / shares


def _between_stages(
    operation: Operation, parts: dict[str, NDArray]
) -> FloatArray | float:
    """Return the elements that a stage sends on, and their gradients that come back. [K]"""
    if operation.stages is None:
        return 0.0
    return (
        2.0
        * (parts[operation.stages[0]] > 1)
        * _local(operation, parts, operation.output)
    )


@lru_cache(maxsize=4096)
def edge_costs(
    producer: Operation,
    consumer: Operation,
    port: int,
    devices: int,
    machine: Machine,
    space: SplitSpace = ANY,
) -> EdgeCosts:
    """Price the producer's output, in every split, becoming the consumer's input in every split.

    Args:
        producer: whose output it is.
        consumer: whose input it is.
        port: which of the consumer's inputs.
        devices: the number of devices to split over.
        machine: speeds of a device and of its link.
        space: which splits are allowed, as for ``configurations``.
    """
    axes = consumer.inputs[port]
    produced = layouts(producer, producer.output, devices, space)
    consumed = layouts(consumer, axes, devices, space)
    size = producer.elements(producer.output) * machine.element
    needed = np.broadcast_to(
        size / consumed[0].prod(axis=1), (len(produced[0]), len(consumed[0]))
    )
    local = (size / produced[0].prod(axis=1))[:, None]
    common = size / _overlaps(produced[0], consumed[0])
    if consumer.needs_gradient:
        gradient = local - common
    else:
        gradient = 0.0
    received = needed - common
    if machine.exchange is None:
        seconds = message_seconds(received + gradient, machine.bandwidth)
    else:
        seconds = _resharding(received, devices, machine) + _resharding(
            gradient, devices, machine
        )
    time = ClassTable(seconds, produced[1], consumed[1])
    copies = ClassTable(np.where(received > 0, needed, 0.0), produced[1], consumed[1])
    return EdgeCosts(time.spread(), copies.spread(), time)


def _resharding(
    received: FloatArray | float, devices: int, machine: Machine
) -> FloatArray:
    """Return the seconds in which every device gets bytes from all others, as in an all-to-all."""
    assert machine.exchange is not None
    sizes = np.asarray(received) * devices / max(devices - 1, 1)
    return machine.exchange.seconds(
        ALL_TO_ALL, np.full(sizes.shape, float(devices)), sizes
    )


def _overlaps(produced: FloatArray, consumed: FloatArray) -> FloatArray:
    """Return the number of parts that two layouts together cut a tensor into.

    An axis that one of them does not have is whole there.

    Args:
        produced: Parts of each axis. [layouts, axes]
        consumed: Parts of each axis. [other layouts, other axes]
    """
    parts = np.ones((len(produced), len(consumed)))
    for axis in range(max(produced.shape[1], consumed.shape[1])):
        if axis < produced.shape[1]:
            first_parts = produced[:, axis]
        else:
            first_parts = np.ones(len(produced))
        if axis < consumed.shape[1]:
            second_parts = consumed[:, axis]
        else:
            second_parts = np.ones(len(consumed))
        parts *= np.maximum(first_parts[:, None], second_parts)
    return parts


@lru_cache(maxsize=4096)
def layouts(
    operation: Operation, axes: Axes, devices: int, space: SplitSpace
) -> tuple[FloatArray, Classes]:
    """Return the ways in which configurations lay out a tensor, and which configuration has which.

    Returns:
        Parts of each axis [layouts, axes], and the layout of each configuration.
    """
    splits = configurations(operation, devices, space)
    names = [d.name for d in operation.dimensions]
    columns = [
        splits[:, names.index(a)] if a is not None else splits[:, 0] * 0 + 1
        for a in axes
    ]
    code = np.zeros(len(splits), np.int64)
    for column in columns:
        code = code * (devices + 1) + column
    _, first, of = np.unique(code, return_index=True, return_inverse=True)
    parts = np.array(columns, np.float64).reshape(
        len(columns), len(splits)
    )  # a scalar has no axis
    return parts.T[first], Classes(of, first)


def sharding_problem(
    network: Network,
    devices: int,
    machine: Machine | None = None,
    *,
    space: SplitSpace = ANY,
) -> ShardingProblem:
    """Build the cost tables of a network; equal layers and equal pairs of layers share them.

    Args:
        network: the layers and what each reads.
        devices: the number of devices to split over.
        machine: speeds of a device and of its link.
        space: which splits are allowed.
    """
    machine = machine or Machine()
    index = {layer.name: i for i, layer in enumerate(network.layers)}
    node_costs = [
        layer_costs(x.operation, devices, machine, space) for x in network.layers
    ]
    totals = {id(costs): costs.total for costs in node_costs}
    edges = []
    for layer in network.layers:
        for port, source in enumerate(layer.inputs):
            if source is not None:
                producer = network.layers[index[source]].operation
                costs = edge_costs(
                    producer, layer.operation, port, devices, machine, space
                )
                ends = (index[source], index[layer.name])
                edges.append(Edge(*ends, costs.time, costs.memory, costs.over_classes))
    return ShardingProblem(
        name=network.name,
        devices=devices,
        names=tuple(index),
        cost=tuple(totals[id(costs)] for costs in node_costs),
        edges=tuple(edges),
        memory=tuple(costs.memory for costs in node_costs),
    )


PARTS = ("compute", "reduction", "gradient", "resharding", "memory")


@dataclass(frozen=True)
class Setting:
    """What a network's tables were made for."""

    network: Network
    devices: int
    machine: Machine
    space: SplitSpace = ANY

    def words(self, configuration: Sequence[int]) -> list[str]:
        """Return each layer's split in words, such as ``heads over 4, batch over 2``."""
        pairs = zip(self.network.layers, configuration, strict=True)
        return [
            in_words(
                x.operation, configurations(x.operation, self.devices, self.space)[k]
            )
            for x, k in pairs
        ]

    def parts(self, configuration: Sequence[int]) -> CostParts:
        """Return what a strategy costs, one configuration index a layer, all layers together."""
        layers = self.by_layer(configuration)
        return CostParts(
            *(sum(getattr(part, name) for part in layers) for name in PARTS)
        )

    def by_layer(self, configuration: Sequence[int]) -> list[CostParts]:
        """Return what a strategy costs layer by layer, with the resharding of inputs."""
        machine = self.machine
        devices = self.devices
        space = self.space
        layers = self.network.layers
        indices = dict(zip((x.name for x in layers), configuration, strict=True))
        operations = {x.name: x.operation for x in layers}
        parts = []
        for layer, k in zip(layers, configuration, strict=True):
            layer_cost = layer_costs(layer.operation, devices, machine, space)
            resharding = 0.0
            memory = float(layer_cost.memory[k])
            for port, source in enumerate(layer.inputs):
                if source is None:
                    continue
                costs = edge_costs(
                    operations[source], layer.operation, port, devices, machine, space
                )
                cell = (indices[source], indices[layer.name])
                resharding += float(costs.time[cell])
                memory += float(costs.memory[cell])
            parts.append(
                CostParts(
                    compute=float(layer_cost.compute[k]),
                    reduction=float(layer_cost.reduction[k]),
                    gradient=float(layer_cost.gradient[k]),
                    resharding=resharding,
                    memory=memory,
                )
            )
        return parts

    def ddp(self) -> CostParts:
        """Return what data parallelism costs as PyTorch's DDP does it.

        Every device runs all layers on its share of the batch, layers that cannot be split as well,
        and the gradients of all parameters are all-reduced once; nothing else is exchanged.
        """
        devices = self.devices
        machine = self.machine
        operations = [layer.operation for layer in self.network.layers]
        examples = max(
            d.extent for x in operations for d in x.dimensions if d.name == "batch"
        )
        share = math.ceil(examples / devices) / examples
        parameters = sum(x.elements(axes) for x in operations for axes in x.parameters)
        results = sum(x.elements(x.saved or x.output) for x in operations)
        size = parameters * machine.element
        reduced = compute_gradient_seconds(
            machine.exchange, machine.bandwidth, devices, size
        )
        return CostParts(
            compute=3.0 * share * sum(x.flops for x in operations) / machine.flops,
            reduction=0.0,
            gradient=reduced,
            resharding=0.0,
            memory=(share * results + machine.state * parameters) * machine.element,
        )

    def data_parallel(self) -> tuple[int, ...]:
        """Return the configuration of data parallelism: every layer split along the batch alone."""
        return tuple(
            data_parallel(layer.operation, self.devices, self.space)
            for layer in self.network.layers
        )
