"""All placers of the room by name, with their options: what help, suites and comparisons read.

A placer of your own is one row: in ``constructions.CONSTRUCTIONS`` if it builds a placement in
milliseconds, which makes it a member of the portfolio, else in ``SEARCHES`` here. Placers that need
a policy have their rows in ``gnnplace.policy.placing``.
"""

from __future__ import annotations

from gnnplace.placers.base import Option, Row, Speed
from gnnplace.placers.baselines import Random
from gnnplace.placers.coarse_annealing import CoarseAnnealing
from gnnplace.placers.constructions import CONSTRUCTIONS, Annealing, Portfolio
from gnnplace.placers.exact import Exact
from gnnplace.placers.group_search import Optuna, RandomSearch
from gnnplace.placers.m_sct import MSct
from gnnplace.placers.narrow import Narrow

WORKERS = Option(int, 1, "Threads of the constraint solver.", least=1)
SEARCHES = (
    Row("random", Random, Speed.CONSTRUCTION),
    Row("m-sct", MSct, Speed.CONSTRUCTION),
    Row("annealing", Annealing, Speed.SEARCH),
    Row("coarse-annealing", CoarseAnnealing, Speed.SEARCH),
    Row("narrow", Narrow, Speed.SEARCH),
    Row("random-search", RandomSearch, Speed.SEARCH),
    Row("optuna", Optuna, Speed.SEARCH),
    Row("portfolio", Portfolio, Speed.SEARCH),
    Row("exact", Exact, Speed.SOLVER, options={"workers": WORKERS}),
)
PLACERS: dict[str, Row] = {row.name: row for row in (*CONSTRUCTIONS, *SEARCHES)}
