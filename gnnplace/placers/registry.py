"""All placers of the room by name, with their options: what help, suites and comparisons read.

A placer of your own is one row: in ``CONSTRUCTIONS`` if it builds a placement in milliseconds,
which makes it a member of the portfolio, else in ``SEARCHES``. Placers that need a policy have
their rows in ``gnnplace.policy.placing``.
"""

from __future__ import annotations

from gnnplace.placers.rows import Option, PlacerRow, Speed

ROOM = "gnnplace.placers"
CONSTRUCTIONS = (
    # Milliseconds on 1,000 ops and 8 devices: cheaper ones run first where time is short.
    PlacerRow("single", f"{ROOM}.baselines:Single", Speed.CONSTRUCTION, 1, executed=True),
    PlacerRow("round-robin", f"{ROOM}.baselines:RoundRobin", Speed.CONSTRUCTION, 8),
    PlacerRow(
        "contiguous",
        f"{ROOM}.contiguous:Contiguous",
        Speed.CONSTRUCTION,
        2,
        quick={"moves": False},
        executed=True,
    ),
    PlacerRow(
        "interleaved",
        f"{ROOM}.interleaved:Interleaved",
        Speed.CONSTRUCTION,
        5,
        quick={"moves": False},
    ),
    PlacerRow(
        "expert",
        f"{ROOM}.expert:Expert",
        Speed.CONSTRUCTION,
        10,
        quick={"published": False},
        executed=True,
    ),
    PlacerRow("heft", f"{ROOM}.heft:Heft", Speed.CONSTRUCTION, 6),
    PlacerRow(
        "heft-contention", f"{ROOM}.heft:HeftContention", Speed.CONSTRUCTION, 1.5, executed=True
    ),
    PlacerRow("etf", f"{ROOM}.etf:Etf", Speed.CONSTRUCTION, 7),
    PlacerRow("m-topo", f"{ROOM}.m_topo:MTopo", Speed.CONSTRUCTION, 9),
    PlacerRow("min-cut", f"{ROOM}.min_cut:MinCut", Speed.CONSTRUCTION, 4),
)
WORKERS = Option(int, 1, "Threads of the constraint solver.", minimum=1)
SEARCHES = (
    PlacerRow("random", f"{ROOM}.baselines:Random", Speed.CONSTRUCTION),
    PlacerRow("m-sct", f"{ROOM}.m_sct:MSct", Speed.CONSTRUCTION),
    PlacerRow("annealing", f"{ROOM}.constructions:Annealing", Speed.SEARCH),
    PlacerRow("coarse-annealing", f"{ROOM}.coarse_annealing:CoarseAnnealing", Speed.SEARCH),
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
