"""Seconds of a message over a fabric, from the table of measured messages and collectives.

``tables/links.json`` has, for every fabric, series of bytes and seconds: ``p2p 1x2`` is a message
between two GPUs of a server, ``all_reduce 2x8`` an all-reduce over two servers of eight GPUs each.
A series gives seconds of any size. Between measured sizes, the logarithm of seconds is linear in
the logarithm of bytes. Above the largest, seconds are proportional to bytes. Below the smallest,
they are linear in bytes, beginning at the latency. Series never fall, so that more bytes never take
less time.

An estimate says where it comes from, and by how much it may be wrong:

* ``measured``: the fabric was measured with this many GPUs, at sizes within a factor of two;
* ``neighbour``: the fabric was measured, with another number of GPUs or at other sizes;
* ``formula``: the fabric was not measured; the collective's formula with the latency and bandwidth
  of messages.

Expected errors (``ERRORS``) are means of |predicted / measured - 1|. The measurements that a
prediction is compared with are left out of the table that predicts them.
``tests/costs/test_collectives.py`` computes them again.
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
"""Expected relative error of an estimate, by its provenance."""
P2P = "p2p"
TABLE = "tables/links.json"
SMALL = 4096.0  # bytes; up to this size a message takes little more than its latency
LEAST_SIZE = 1e-9  # bytes; takes the place of 0, which has no logarithm
MICROSECOND = 1e-6  # seconds


@dataclass(frozen=True)
class Estimate:
    """The estimated seconds of a message or collective, and where they come from.

    Attributes:
        seconds: Seconds that the message or collective takes.
        provenance: ``measured``, ``neighbour`` or ``formula``.
        error: The expected relative error of the seconds.
        source: Where the seconds come from, in words.
    """

    seconds: float
    provenance: str
    error: float
    source: str


class Key(NamedTuple):
    """What a series measures: an operation over ``servers``, each with ``per_server`` GPUs."""

    op: str
    servers: int
    per_server: int

    @property
    def devices(self) -> int:
        """Return the number of GPUs on all servers."""
        return self.servers * self.per_server

    def __str__(self) -> str:
        return f"{self.op} {self.servers}x{self.per_server}"


@dataclass(frozen=True, eq=False)
class SizeSeries:
    """A series of n measured sizes: bytes and seconds, both ascending. [n] each"""

    bytes: FloatArray
    seconds: FloatArray

    def at(self, size: FloatArray, floor: float = 0.0) -> FloatArray:
        """Return the seconds of messages of any size. [the shape of size]

        Args:
            size: Bytes of each message. [any shape]
            floor: Seconds of a message without bytes; at most those of the smallest measured one.
        """
        smallest, largest = self.bytes[0], self.bytes[-1]
        size = np.maximum(size, LEAST_SIZE)
        inside = np.exp(
            np.interp(np.log(size), np.log(self.bytes), np.log(self.seconds))
        )
        above = self.seconds[-1] * np.maximum(size / largest, 1.0)
        latency = min(floor, self.seconds[0])
        below = latency + (self.seconds[0] - latency) * size / smallest
        inside_or_below = np.where(size < smallest, below, inside)
        return np.where(size > largest, above, inside_or_below)

    def covers(self, size: float) -> bool:
        """Return whether a message of ``size`` bytes counts as measured.

        Its size is within a factor of two of the measured ones. Or it and the smallest measured one
        are both small, so that they take about the same time.
        """
        smallest, largest = self.bytes[0], self.bytes[-1]
        is_near = bool(smallest / 2 <= size <= 2 * largest)
        return is_near or bool(size <= smallest <= SMALL)


@dataclass(frozen=True, eq=False)
class LinkTable:
    """A table of fabrics: measured series, and the constants of messages.

    Attributes:
        series: Measured series by fabric; a fabric that was not measured is absent.
        latency: Seconds of a message without bytes, by fabric.
        bandwidth: Bytes per second of a message, by fabric.
        source: Where the measurements come from, in words, by fabric.
    """

    series: Mapping[str, Mapping[Key, SizeSeries]]
    latency: Mapping[str, float]
    bandwidth: Mapping[str, float]
    source: Mapping[str, str]

    def of(self, fabric: str) -> Mapping[Key, SizeSeries]:
        """Return the series of a fabric. A fabric that was not measured has none."""
        return self.series.get(fabric, {})


@cache
def load_shipped_links() -> LinkTable:
    """Return the table that comes with the package."""
    data = json.loads((files("gnnplace.costs") / TABLE).read_text(encoding="utf-8"))
    series: dict[str, dict[Key, SizeSeries]] = {}
    source: dict[str, str] = {}
    for name, entry in data.items():
        series[name] = {}
        for text, points in entry["series"].items():
            series[name][_parse_key(text)] = _parse_series(points)
        source[name] = ", ".join(entry["sources"])
    return LinkTable(
        series=series,
        latency={name: fabric.latency for name, fabric in FABRICS.items()},
        bandwidth={name: fabric.bandwidth for name, fabric in FABRICS.items()},
        source=source,
    )


def _parse_key(text: str) -> Key:
    """Parse a key of the table, such as ``all_reduce 2x8``."""
    op, group = text.split()
    servers, per_server = group.split("x")
    return Key(op=op, servers=int(servers), per_server=int(per_server))


def _parse_series(points: Mapping[str, list[float]]) -> SizeSeries:
    """Parse a series of the table, which has microseconds."""
    return SizeSeries(
        bytes=np.array(points["bytes"], dtype=np.float64),
        seconds=MICROSECOND * np.array(points["us"], dtype=np.float64),
    )


def price_message(fabric: str, size: float) -> Estimate:
    """Estimate the seconds of one message between two GPUs on an idle fabric.

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
    latency = table.latency[fabric]
    for key, series in table.of(fabric).items():
        if key.op != P2P:
            continue
        provenance = MEASURED if series.covers(size) else NEIGHBOUR
        return Estimate(
            seconds=float(series.at(np.array(size), latency)),
            provenance=provenance,
            error=ERRORS[provenance],
            source=table.source[fabric],
        )

    # No message was measured on this fabric.
    return Estimate(
        seconds=latency + size / table.bandwidth[fabric],
        provenance=FORMULA,
        error=ERRORS[FORMULA],
        source="latency and bandwidth of the fabric",
    )
