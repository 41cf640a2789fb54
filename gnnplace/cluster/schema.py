"""Devices and links, as they stand in files: validated, frozen."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gnnplace.files import Schema

Name = Annotated[str, Field(min_length=1)]
NonNegative = Annotated[float, Field(ge=0)]


class Device(Schema):
    """One place that runs ops, one at a time. ``memory`` in bytes."""

    name: Name
    kind: Name
    memory: NonNegative


class LinkCosts(Schema):
    """What a transfer costs: ``latency`` in seconds, ``bandwidth`` in bytes per second.

    Links that name the same ``channel`` share it; ``sender_busy``, ``send_overhead`` and
    ``receive_overhead`` (seconds a message) say what a transfer costs the devices themselves.
    """

    latency: NonNegative
    bandwidth: Annotated[float, Field(gt=0)]
    channel: Name | None = None
    sender_busy: bool = False
    send_overhead: NonNegative = 0.0
    receive_overhead: NonNegative = 0.0


class Link(LinkCosts):
    """A directed way for tensors from one device to another."""

    source: Name
    target: Name
