"""The placers room: one algorithm a file, behind one contract.

A placer of your own: subclass ``Placer`` in a file of its own, import it here, add it to
``PLACERS``; the contract tests then run on it.
"""

from gnnplace.errors import InputError
from gnnplace.placers.annealing import Annealing as Annealing
from gnnplace.placers.base import Found as Found
from gnnplace.placers.base import Placer as Placer
from gnnplace.placers.base import Result as Result
from gnnplace.placers.coarse_annealing import CoarseAnnealing as CoarseAnnealing
from gnnplace.placers.contiguous import Contiguous as Contiguous
from gnnplace.placers.etf import Etf as Etf
from gnnplace.placers.exact.placer import Exact as Exact
from gnnplace.placers.expert import Expert as Expert
from gnnplace.placers.heft import Heft as Heft
from gnnplace.placers.heft import HeftContention as HeftContention
from gnnplace.placers.interleaved import Interleaved as Interleaved
from gnnplace.placers.m_sct import MSct as MSct
from gnnplace.placers.m_topo import MTopo as MTopo
from gnnplace.placers.min_cut import MinCut as MinCut
from gnnplace.placers.optuna_tpe import Optuna as Optuna
from gnnplace.placers.portfolio import Portfolio as Portfolio
from gnnplace.placers.random_placer import Random as Random
from gnnplace.placers.random_search import RandomSearch as RandomSearch
from gnnplace.placers.round_robin import RoundRobin as RoundRobin
from gnnplace.placers.single import Single as Single
from gnnplace.search.space import SearchSpace as SearchSpace

PLACERS: dict[str, type[Placer]] = {
    placer.name: placer
    for placer in (
        Single,
        RoundRobin,
        Random,
        Contiguous,
        Interleaved,
        Expert,
        Heft,
        HeftContention,
        Etf,
        MTopo,
        MSct,
        MinCut,
        Annealing,
        CoarseAnnealing,
        RandomSearch,
        Optuna,
        Portfolio,
        Exact,
    )
}


def placer(name: str) -> Placer:
    """A placer by its name.

    Raises:
        InputError: unknown; the names are listed.
    """
    if name not in PLACERS:
        raise InputError(f"placer {name!r}: unknown; placers: {', '.join(PLACERS)}")
    return PLACERS[name]()
