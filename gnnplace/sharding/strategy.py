"""A strategy of a network in words and in parts of its cost, beside data parallelism."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gnnplace.costs.collectives import gradient_seconds
from gnnplace.sharding.costs import Machine, edge_costs, layer_costs
from gnnplace.sharding.layers import ANY, Network, Space, configurations, data_parallel, in_words

PARTS = ("compute", "reduction", "gradient", "resharding", "memory")


@dataclass(frozen=True)
class Parts:
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
    space: Space = ANY

    def words(self, configuration: Sequence[int]) -> list[str]:
        """Each layer's split, such as ``heads over 4, batch over 2``."""
        pairs = zip(self.network.layers, configuration, strict=True)
        return [
            in_words(x.operation, configurations(x.operation, self.devices, self.space)[k])
            for x, k in pairs
        ]

    def parts(self, configuration: Sequence[int]) -> Parts:
        """What one configuration index a layer costs, all layers together."""
        layers = self.by_layer(configuration)
        return Parts(*(sum(getattr(part, name) for part in layers) for name in PARTS))

    def by_layer(self, configuration: Sequence[int]) -> list[Parts]:
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
            found.append(Parts(compute, reduction, float(own.gradient[k]), moved, memory))
        return found

    def ddp(self) -> Parts:
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
        return Parts(
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
