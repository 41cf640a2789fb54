"""The placers that need no policy, by name and with their options.

Help, suites and comparisons read this table.

To add a placer, add one row: to ``CONSTRUCTIONS`` if it builds a placement in milliseconds, which
makes it a member of the portfolio, otherwise to ``SEARCHES``. Placers that need a policy have their
rows in ``gnnplace.placing.roster``.
"""

from __future__ import annotations

from gnnplace.placers.rows import Option, PlacerRow, Speed

ROOM = "gnnplace.placers"
CONSTRUCTIONS = (
    # Milliseconds on 1,000 ops and 8 devices: cheaper ones run first where time is short.
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
    PlacerRow("random", f"{ROOM}.baselines:Random", Speed.CONSTRUCTION),
    PlacerRow("m-sct", f"{ROOM}.m_sct:MSct", Speed.CONSTRUCTION),
    PlacerRow("annealing", f"{ROOM}.constructions:Annealing", Speed.SEARCH),
    PlacerRow(
        "coarse-annealing", f"{ROOM}.coarse_annealing:CoarseAnnealing", Speed.SEARCH
    ),
    PlacerRow("narrow", f"{ROOM}.narrow:Narrow", Speed.SEARCH),
    PlacerRow("random-search", f"{ROOM}.group_search:RandomSearch", Speed.SEARCH),
    PlacerRow("optuna", f"{ROOM}.group_search:Optuna", Speed.SEARCH, library="optuna"),
    PlacerRow("portfolio", f"{ROOM}.constructions:Portfolio", Speed.SEARCH),
    PlacerRow(
        "exact",
        f"{ROOM}.exact:Exact",
        Speed.SOLVER,
        options={"workers": WORKERS},
        library="ortools",
    ),
)
PLACERS: dict[str, PlacerRow] = {row.name: row for row in (*CONSTRUCTIONS, *SEARCHES)}
