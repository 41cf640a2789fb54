"""A framework on a host or a network of another speed, by which explanations tell parts apart."""

from __future__ import annotations

from dataclasses import replace

from gnnplace.costs.frameworks.constants import ConstantSet
from gnnplace.costs.frameworks.framework import Framework
from gnnplace.costs.network import ServerNetwork

HOST = ("host_layer", "host_layer_shards", "host_pass", "host_message", "host_update")
"""Constants of the host's launches."""


class SilentNetwork(ServerNetwork):
    """A network whose messages between stages take nothing."""

    def message(self, size: float, across: bool) -> float:
        """Return no seconds."""
        return 0.0


class IdleNetwork(SilentNetwork):
    """A network that takes nothing."""

    def exchange(self, op: str, count: int, size: float, members: int) -> float:
        """Return no seconds."""
        return 0.0

    def reduce(self, count: int, size: float, members: int) -> float:
        """Return no seconds."""
        return 0.0


class SlowNetwork(ServerNetwork):
    """A network that takes twice as long."""

    def exchange(self, op: str, count: int, size: float, members: int) -> float:
        """Return twice the seconds."""
        return 2.0 * super().exchange(op, count, size, members)

    def reduce(self, count: int, size: float, members: int) -> float:
        """Return twice the seconds."""
        return 2.0 * super().reduce(count, size, members)

    def message(self, size: float, across: bool) -> float:
        """Return twice the seconds."""
        return 2.0 * super().message(size, across)


def scaled_constants(constants: ConstantSet, names: tuple[str, ...], factor: float) -> ConstantSet:
    """Return the constants with some of them times a factor."""
    rows = constants.constants
    scaled = {
        name: replace(rows[name], value=factor * rows[name].value) for name in names if name in rows
    }
    return ConstantSet(constants.owner, {**rows, **scaled})


def with_host(framework: Framework, factor: float) -> Framework:
    """Return a framework whose host takes so many times as long to launch kernels."""
    return replace(framework, constants=scaled_constants(framework.constants, HOST, factor))


def with_network(framework: Framework, kind: type[ServerNetwork]) -> Framework:
    """Return a framework on another kind of the same network."""
    network = framework.network
    changed = kind(
        each=network.each,
        fabric=network.fabric,
        inside=network.inside,
        card=network.card,
        latency=network.latency,
        rates=network.rates,
    )
    return replace(framework, network=changed)


def without_messages(framework: Framework) -> Framework:
    """Return a framework whose messages between stages take nothing."""
    constants = scaled_constants(framework.constants, ("message_latency",), 0.0)
    return with_network(replace(framework, constants=constants), SilentNetwork)
