"""The placers that search for throughput, by name, with their options."""

from __future__ import annotations

from typing import Any

from gnnplace.errors import UnsupportedError
from gnnplace.placers.base import Placer
from gnnplace.placers.registry import WORKERS
from gnnplace.placers.row import Row, Speed, parse_name
from gnnplace.placers.throughput.placer import ContiguousThroughput, Throughput

PLACERS: dict[str, Row] = {
    row.name: row
    for row in (
        Row("best", Throughput, Speed.SOLVER, options={"workers": WORKERS}),
        Row("exact", Throughput, Speed.SOLVER, options={"workers": WORKERS}),
        Row("contiguous", ContiguousThroughput, Speed.CONSTRUCTION, options={"workers": WORKERS}),
    )
}


def make_throughput_placer(name: str, **options: Any) -> Placer:
    """A placer for throughput: ``contiguous`` splits alone, ``best`` and ``exact`` all of it.

    Raises:
        InputError: an option that the placer does not have.
        UnsupportedError: a placer that minimises the step time.
    """
    base, written = parse_name(name)
    if base not in PLACERS:
        known = ", ".join(PLACERS)
        raise UnsupportedError(
            f"placer {base!r} minimises the step time; for objective 'throughput' use {known}"
        )
    given = {key: value for key, value in options.items() if value is not None}
    return PLACERS[base].made(written | given)
