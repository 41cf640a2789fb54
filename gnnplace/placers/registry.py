"""All placers of the room by name, with their options: what help, suites and comparisons read.

A placer of your own is one row: in ``constructions.CONSTRUCTIONS`` if it builds a placement in
milliseconds, which makes it a member of the portfolio, else in ``SEARCHES`` here. Placers that need
a policy have their rows in ``gnnplace.policy.placing``.
"""

from __future__ import annotations

from gnnplace.placers.base import Option, PlacerRow, Speed
from gnnplace.placers.baselines import Random
from gnnplace.placers.coarse_annealing import CoarseAnnealing
from gnnplace.placers.constructions import CONSTRUCTIONS, Annealing, Portfolio
from gnnplace.placers.exact import Exact
from gnnplace.placers.group_search import Optuna, RandomSearch
from gnnplace.placers.m_sct import MSct
from gnnplace.placers.narrow import Narrow

WORKERS = Option(int, 1, "Threads of the constraint solver.", least=1)
SEARCHES = (
    PlacerRow("random", Random, Speed.CONSTRUCTION),
    PlacerRow("m-sct", MSct, Speed.CONSTRUCTION),
    PlacerRow("annealing", Annealing, Speed.SEARCH),
    PlacerRow("coarse-annealing", CoarseAnnealing, Speed.SEARCH),
    PlacerRow("narrow", Narrow, Speed.SEARCH),
    PlacerRow("random-search", RandomSearch, Speed.SEARCH),
    PlacerRow("optuna", Optuna, Speed.SEARCH),
    PlacerRow("portfolio", Portfolio, Speed.SEARCH),
    PlacerRow("exact", Exact, Speed.SOLVER, options={"workers": WORKERS}),
)
PLACERS: dict[str, PlacerRow] = {row.name: row for row in (*CONSTRUCTIONS, *SEARCHES)}
