"""Seconds of a message over a fabric, from the table of measured messages and collectives.

``tables/links.json`` has, for every fabric, series of bytes and seconds: ``p2p 1x2`` is a message
between two GPUs of a server, ``all_reduce 2x8`` an all-reduce over two servers of eight. Between
the sizes of a series, the logarithm of seconds is linear in the logarithm of bytes; above the
largest, seconds are proportional to bytes; below the smallest, they are linear, from the latency of
no bytes. Series never fall, so more bytes never take less.

An answer says where it comes from, and by how much it may be wrong:

* ``measured``: within a factor of two of sizes measured on this fabric with this many GPUs;
* ``neighbour``: from the same fabric with another number of GPUs, or sizes far from those measured;
* ``formula``: latency and bandwidth of messages, in the formula of the collective.

Expected errors (``ERRORS``) are means of |predicted / measured - 1|, each prediction made without
the rows that it predicts. ``leave_out`` computes them; ``tests/costs/test_collectives.py`` repeats
it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.errors import InputError
from gnnplace.problem import FABRICS

MEASURED = "measured"
NEIGHBOUR = "neighbour"
FORMULA = "formula"
ERRORS: Mapping[str, float] = {MEASURED: 0.04, NEIGHBOUR: 0.33, FORMULA: 0.37}
P2P = "p2p"
TABLE = "tables/links.json"


@dataclass(frozen=True)
class Estimate:
    """Seconds and what they stand on.

    Attributes:
        seconds: What the message or collective takes.
        provenance: ``measured``, ``neighbour`` or ``formula``.
        error: The expected relative error of the seconds.
        source: Where the seconds come from, in words.
    """

    seconds: float
    provenance: str
    error: float
    source: str


class Key(NamedTuple):
    """The subject of a series: a collective over ``servers`` of ``per_server`` GPUs."""

    op: str
    servers: int
    per_server: int

    @property
    def devices(self) -> int:
        """Return the number of GPUs in all."""
        return self.servers * self.per_server

    def __str__(self) -> str:
        return f"{self.op} {self.servers}x{self.per_server}"


@dataclass(frozen=True, eq=False)
class SizeSeries:
    """Measured seconds by bytes, both ascending. [n] each"""

    bytes: FloatArray
    seconds: FloatArray

    def at(self, size: FloatArray, floor: float = 0.0) -> FloatArray:
        """Return the seconds of so many bytes; no bytes take ``floor``, or less. [any shape]"""
        safe = np.maximum(size, 1e-9)
        inside = np.exp(
            np.interp(np.log(safe), np.log(self.bytes), np.log(self.seconds))
        )
        above = self.seconds[-1] * np.maximum(safe / self.bytes[-1], 1.0)
        fixed = min(floor, self.seconds[0])
        below = fixed + (self.seconds[0] - fixed) * safe / self.bytes[0]
        return np.where(
            safe > self.bytes[-1], above, np.where(safe < self.bytes[0], below, inside)
        )

    def covers(self, size: float) -> bool:
        """Return whether so many bytes are within a factor of two of what was measured."""
        return bool(self.bytes[0] / 2 <= size <= 2 * self.bytes[-1]) or (
            size <= self.bytes[0] <= 4096.0
        )


@dataclass(frozen=True, eq=False)
class LinkTable:
    """Measured series by fabric.

    Attributes:
        series: The measured series of each fabric.
        latency: Seconds of a message beside its bytes, by fabric.
        bandwidth: Bytes per second of a message, by fabric.
        source: Where the series come from, in words, by fabric.
    """

    series: Mapping[str, Mapping[Key, SizeSeries]]
    latency: Mapping[str, float]
    bandwidth: Mapping[str, float]
    source: Mapping[str, str]

    def of(self, fabric: str) -> Mapping[Key, SizeSeries]:
        """Return the series of a fabric; none where it was not measured."""
        return self.series.get(fabric, {})


@cache
def load_shipped_links() -> LinkTable:
    """Return the table in the package."""
    data = json.loads((files("gnnplace.costs") / TABLE).read_text(encoding="utf-8"))
    series = {
        name: {_key(text): _series(points) for text, points in entry["series"].items()}
        for name, entry in data.items()
    }
    return LinkTable(
        series,
        {name: fabric.latency for name, fabric in FABRICS.items()},
        {name: fabric.bandwidth for name, fabric in FABRICS.items()},
        {name: ", ".join(entry["sources"]) for name, entry in data.items()},
    )


def _key(text: str) -> Key:
    op, group = text.split()
    servers, per_server = group.split("x")
    return Key(op, int(servers), int(per_server))


def _series(points: Mapping[str, list[float]]) -> SizeSeries:
    sizes = np.array(points["bytes"], dtype=np.float64)
    return SizeSeries(sizes, 1e-6 * np.array(points["us"], dtype=np.float64))


def price_message(fabric: str, size: float) -> Estimate:
    """Return the seconds of one message on an idle fabric.

    Args:
        fabric: The name of the fabric.
        size: Bytes of the message.

    Raises:
        InputError: The fabric is unknown, or the size is negative.
    """
    table = load_shipped_links()
    if fabric not in table.latency:
        raise InputError(
            f"fabric {fabric!r}: unknown; known: {', '.join(table.latency)}"
        )
    if not 0 <= size < np.inf:
        raise InputError(f"a message of {size} bytes: must be a number from 0 on")
    messages = [s for key, s in table.of(fabric).items() if key.op == P2P]
    if messages:
        seconds = float(messages[0].at(np.array(size), table.latency[fabric]))
        if messages[0].covers(size):
            provenance = MEASURED
        else:
            provenance = NEIGHBOUR
        return Estimate(seconds, provenance, ERRORS[provenance], table.source[fabric])
    seconds = table.latency[fabric] + size / table.bandwidth[fabric]
    return Estimate(
        seconds, FORMULA, ERRORS[FORMULA], "latency and bandwidth of the fabric"
    )
