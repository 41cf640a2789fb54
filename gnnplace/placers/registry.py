"""The placers that need no policy, by name and with their options.

The help, suites and comparisons read ``PLACERS``. To add a placer, add one row. A row of
``CONSTRUCTIONS`` is for a placer that builds a placement in milliseconds, and makes it a member of
the portfolio; every other placer has a row of ``SEARCHES``. Placers that need a policy have theirs
in ``gnnplace.placing.roster``.
"""

from __future__ import annotations

from gnnplace.placers.rows import Option, PlacerRow, Speed

ROOM = "gnnplace.placers"
CONSTRUCTIONS = (
    # ``cost``: milliseconds on 1,000 ops and 8 devices. Where time is short, cheap ones run first.
    PlacerRow(
        name="single",
        target=f"{ROOM}.baselines:Single",
        speed=Speed.CONSTRUCTION,
        cost=1,
        executed=True,
    ),
    PlacerRow(
        name="round-robin",
        target=f"{ROOM}.baselines:RoundRobin",
        speed=Speed.CONSTRUCTION,
        cost=8,
    ),
    PlacerRow(
        name="contiguous",
        target=f"{ROOM}.contiguous:Contiguous",
        speed=Speed.CONSTRUCTION,
        cost=2,
        quick={"moves": False},
        executed=True,
    ),
    PlacerRow(
        name="interleaved",
        target=f"{ROOM}.interleaved:Interleaved",
        speed=Speed.CONSTRUCTION,
        cost=5,
        quick={"moves": False},
    ),
    PlacerRow(
        name="expert",
        target=f"{ROOM}.expert:Expert",
        speed=Speed.CONSTRUCTION,
        cost=10,
        quick={"published": False},
        executed=True,
    ),
    PlacerRow(
        name="heft",
        target=f"{ROOM}.heft:Heft",
        speed=Speed.CONSTRUCTION,
        cost=6,
    ),
    PlacerRow(
        name="heft-contention",
        target=f"{ROOM}.heft:HeftContention",
        speed=Speed.CONSTRUCTION,
        cost=1.5,
        executed=True,
    ),
    PlacerRow(
        name="etf",
        target=f"{ROOM}.etf:Etf",
        speed=Speed.CONSTRUCTION,
        cost=7,
    ),
    PlacerRow(
        name="m-topo",
        target=f"{ROOM}.m_topo:MTopo",
        speed=Speed.CONSTRUCTION,
        cost=9,
    ),
    PlacerRow(
        name="min-cut",
        target=f"{ROOM}.min_cut:MinCut",
        speed=Speed.CONSTRUCTION,
        cost=4,
    ),
)
WORKERS = Option(int, 1, "Threads of the constraint solver.", least=1)
SEARCHES = (
    PlacerRow(
        name="random",
        target=f"{ROOM}.baselines:Random",
        speed=Speed.CONSTRUCTION,
    ),
    PlacerRow(
        name="m-sct",
        target=f"{ROOM}.m_sct:MSct",
        speed=Speed.CONSTRUCTION,
    ),
    PlacerRow(
        name="annealing",
        target=f"{ROOM}.constructions:Annealing",
        speed=Speed.SEARCH,
    ),
    PlacerRow(
        name="coarse-annealing",
        target=f"{ROOM}.coarse_annealing:CoarseAnnealing",
        speed=Speed.SEARCH,
    ),
    PlacerRow(
        name="narrow",
        target=f"{ROOM}.narrow:Narrow",
        speed=Speed.SEARCH,
    ),
    PlacerRow(
        name="random-search",
        target=f"{ROOM}.group_search:RandomSearch",
        speed=Speed.SEARCH,
    ),
    PlacerRow(
        name="optuna",
        target=f"{ROOM}.group_search:Optuna",
        speed=Speed.SEARCH,
        library="optuna",
    ),
    PlacerRow(
        name="portfolio",
        target=f"{ROOM}.constructions:Portfolio",
        speed=Speed.SEARCH,
    ),
    PlacerRow(
        name="exact",
        target=f"{ROOM}.exact:Exact",
        speed=Speed.SOLVER,
        options={"workers": WORKERS},
        library="ortools",
    ),
)
"""Placers that search, and two constructions that are not in the portfolio."""
PLACERS: dict[str, PlacerRow] = {row.name: row for row in (*CONSTRUCTIONS, *SEARCHES)}
