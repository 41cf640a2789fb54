"""A framework on a host or a network of another speed, by which explanations tell parts apart."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gnnplace.costs import ConstantSet, Framework, ServerNetwork

HOST = ("host_layer", "host_layer_shards", "host_pass", "host_message", "host_update")
"""Constants of the host's launches."""


class SilentNetwork(ServerNetwork):
    """A network whose messages between stages take nothing."""

    def message(self, size: float, across: bool) -> float:
        """Return 0: a message takes no seconds."""
        return 0.0


class IdleNetwork(SilentNetwork):
    """A network that takes nothing."""

    def exchange(self, op: str, count: int, size: float, members: int) -> float:
        """Return 0: an exchange takes no seconds."""
        return 0.0

    def dispatch(
        self, count: int, leaving: float, staying: float, members: int, attained: float
    ) -> float:
        """Return 0: an all-to-all takes no seconds."""
        return 0.0

    def reduce(self, count: int, size: float, members: int) -> float:
        """Return 0: an all-reduce takes no seconds."""
        return 0.0


@dataclass(frozen=True)
class ScaledNetwork(ServerNetwork):
    """A network whose exchanges inside of servers take `inside_factor` times as long."""

    inside_factor: float = 1.0

    def message(self, size: float, across: bool) -> float:
        """Return the seconds of a message."""
        seconds = super().message(size, across)
        if across:
            return seconds
        return self.inside_factor * seconds

    def _within(self, op: str, count: int, size: float) -> float:
        return self.inside_factor * super()._within(op, count, size)


def scale_constants(
    constants: ConstantSet, names: tuple[str, ...], factor: float
) -> ConstantSet:
    """Return the constants with some of them times a factor."""
    rows = constants.constants
    scaled = {
        name: replace(rows[name], value=factor * rows[name].value)
        for name in names
        if name in rows
    }
    return ConstantSet(constants.owner, {**rows, **scaled})


def with_host(framework: Framework, factor: float) -> Framework:
    """Return a framework whose host takes so many times as long to launch kernels."""
    return replace(
        framework, constants=scale_constants(framework.constants, HOST, factor)
    )


def with_network(framework: Framework, kind: type[ServerNetwork]) -> Framework:
    """Return a framework on another kind of the same network."""
    network = framework.network
    changed = kind(
        per_server=network.per_server,
        fabric=network.fabric,
        inside=network.inside,
        card=network.card,
        latency=network.latency,
        rates=network.rates,
    )
    return replace(framework, network=changed)


def with_slow_links(
    framework: Framework, *, across: float = 1.0, inside: float = 1.0
) -> Framework:
    """Return a framework whose exchanges take so many times as long.

    Args:
        framework: The framework.
        across: Times, of the bytes between servers.
        inside: Times, of all that is exchanged inside of a server.
    """
    network = framework.network
    slowed = ScaledNetwork(
        per_server=network.per_server,
        fabric=network.fabric,
        inside=network.inside,
        card=network.card / across,
        latency=network.latency,
        rates={**network.rates, "server_links": network.rates["server_links"] / across},
        inside_factor=inside,
    )
    return replace(framework, network=slowed)


def without_messages(framework: Framework) -> Framework:
    """Return a framework whose messages between stages take nothing."""
    constants = scale_constants(framework.constants, ("message_latency",), 0.0)
    return with_network(replace(framework, constants=constants), SilentNetwork)
