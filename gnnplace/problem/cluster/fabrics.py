"""What joins GPUs: measured figures of one message, by the machine that they were measured on.

A message of ``s`` bytes takes ``latency + s / bandwidth``. ``bandwidth`` is what the largest
message measured attains, ``latency`` what the smallest took beyond its bytes. Where no single
messages were measured, both are those of an all-gather of two GPUs, of which each sends one half to
the other, or the bus bandwidth and the latency of a step of an all-reduce; ``source`` says so.
Collectives of the same machines are in ``gnnplace/costs/tables/links.json``, with commits and
licences in ``LINKS.md`` beside it.

How links share what is between them is the presets' matter: behind an NVSwitch or PCIe with peer
copies each GPU has one port a direction, on dedicated NVLinks every pair its own channel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gnnplace.errors import InputError

GIGA = 1e9


@dataclass(frozen=True)
class Fabric:
    """A kind of connection, of one machine that it was measured on.

    Attributes:
        about: what it is, in words.
        latency: seconds of a message beside its bytes.
        bandwidth: bytes per second of a message.
        source: where the figures are from.
        between: whether it joins servers, and not the GPUs of one.
        server: bytes per second that all GPUs of a server send at once; None where each has a
            network card of its own, which no other shares.
    """

    about: str
    latency: float
    bandwidth: float
    source: str
    between: bool = False
    server: float | None = None


def _fabrics() -> dict[str, Fabric]:
    """The rows of ``fabrics.json``: microseconds and GB/s."""
    rows = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {
        name: Fabric(
            row["about"],
            row["latency_us"] / 1e6,
            row["bandwidth_gb_s"] * GIGA,
            row["source"],
            row.get("between", False),
            row["server_gb_s"] * GIGA if "server_gb_s" in row else None,
        )
        for name, row in rows.items()
    }


FABRICS: Mapping[str, Fabric] = _fabrics()
# What a user measured; its figures stand on the links themselves.
OWN_INSIDE, OWN_BETWEEN = "own-inside", "own-between"


def is_between(name: str) -> bool:
    """Whether a fabric joins servers.

    Raises:
        InputError: there is none of that name; the names are listed.
    """
    if name in (OWN_INSIDE, OWN_BETWEEN):
        return name == OWN_BETWEEN
    if name not in FABRICS:
        raise InputError(f"fabric {name!r}: unknown; known: {', '.join(FABRICS)}")
    return FABRICS[name].between
