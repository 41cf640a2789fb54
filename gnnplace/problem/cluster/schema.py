"""Devices and links, as they stand in files: validated, frozen."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from gnnplace.files import Bytes, Rate, Schema
from gnnplace.problem.cluster.fabrics import is_between

Name = Annotated[str, Field(min_length=1)]
NonNegative = Annotated[float, Field(ge=0)]


def _channels(value: Any) -> Any:
    """One name, or a tuple of several different ones, or None.

    Raises:
        ValueError: what is wrong; pydantic adds the key path.
    """
    if value is None or (isinstance(value, str) and value):
        return value
    if not isinstance(value, list | tuple):
        raise ValueError("must be a name or a list of names")
    if not value:
        raise ValueError("an empty list; leave the key out for a channel of the link's own")
    for name in value:
        if not isinstance(name, str) or not name:
            raise ValueError(f"must be a name or a list of names, not {name!r} in the list")
        if value.count(name) > 1:
            raise ValueError(f"{name!r} is repeated")
    return value[0] if len(value) == 1 else tuple(value)


def _as_in_files(value: str | tuple[str, ...] | None) -> Any:
    return list(value) if isinstance(value, tuple) else value


Channel = Annotated[
    str | tuple[str, ...] | None, BeforeValidator(_channels), PlainSerializer(_as_in_files)
]


def _known(value: Any) -> Any:
    if isinstance(value, str):
        is_between(value)  # refuses names that it does not know
    return value


class Device(Schema):
    """One place that runs ops, one at a time. ``memory`` in bytes, of it ``reserve`` stays free."""

    name: Name
    kind: Name
    memory: Bytes
    reserve: Bytes = 0.0


class LinkCosts(Schema):
    """What a transfer costs: ``latency`` in seconds, ``bandwidth`` in bytes per second.

    Links that name the same ``channel`` share it; one that names several holds them all at once.
    ``sender_busy``, ``send_overhead`` and ``receive_overhead`` (seconds a message) say what a
    transfer costs the devices themselves. ``fabric`` names the measured machine that it is part of
    (``gnnplace.problem.cluster.fabrics``): what collectives over it take is known then.
    """

    latency: NonNegative
    bandwidth: Rate
    channel: Channel = None
    sender_busy: bool = False
    send_overhead: NonNegative = 0.0
    receive_overhead: NonNegative = 0.0
    fabric: Annotated[str | None, BeforeValidator(_known)] = None


class Link(LinkCosts):
    """A directed way for tensors from one device to another."""

    source: Name
    target: Name

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the channels that the link holds; none if it has one of its own."""
        if self.channel is None:
            return ()
        return (self.channel,) if isinstance(self.channel, str) else self.channel
