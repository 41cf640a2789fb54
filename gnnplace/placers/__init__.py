"""Algorithms that place a problem's ops on devices, one a file, behind one contract.

A placer is a class (`Placer`) whose `search` returns a `Found`: a device for each op, and an order.
`Placer.place` repairs it, bounds it and makes a `Result` of it. From the top:

* `registry`: the table of placers that need no policy (`PLACERS`), with their options (`rows`).
* `plugins`: placers of installed packages, and classes by name.
* `constructions`: the portfolio of placers that build a placement in milliseconds.
* one file a placer: `heft`, `etf`, `m_sct`, `min_cut`, `contiguous`, `exact`, ...
* `search`: what every search stands on: the space (`SearchSpace`), its moves, annealing, groups of
  ops, memory repair, and the clock of budgets.
* `throughput`: the second objective, seconds between two steps of a pipeline.
* `few_devices`: the best sub-cluster of a number of devices.
* `contract`: checks that every placer must pass, also those of other packages.

Callers are `policy` (which finds a placer by its name, and searches from a policy's decodes),
`train` and `report`; they import from this file alone. Names are imported when they are first used.
The room never asks a policy, and never measures: `simulation` scores all placements.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.placers.base import Found as Found
    from gnnplace.placers.base import Placer as Placer
    from gnnplace.placers.base import Result as Result
    from gnnplace.placers.baselines import Single as Single
    from gnnplace.placers.coarse_annealing import GROUPS as GROUPS
    from gnnplace.placers.coarse_annealing import MOST_OPS as MOST_OPS
    from gnnplace.placers.coarse_annealing import has_time as has_time
    from gnnplace.placers.coarse_annealing import project_placement as project_placement
    from gnnplace.placers.constructions import Portfolio as Portfolio
    from gnnplace.placers.constructions import best_construction as best_construction
    from gnnplace.placers.constructions import best_member as best_member
    from gnnplace.placers.constructions import list_whole_members as list_whole_members
    from gnnplace.placers.constructions import quick_members as quick_members
    from gnnplace.placers.constructions import run_member as run_member
    from gnnplace.placers.constructions import run_members as run_members
    from gnnplace.placers.contiguous import Contiguous as Contiguous
    from gnnplace.placers.contract import training_chain as training_chain
    from gnnplace.placers.few_devices import place_on_few as place_on_few
    from gnnplace.placers.interleaved import Interleaved as Interleaved
    from gnnplace.placers.interleaved import round_priority as round_priority
    from gnnplace.placers.min_cut import MinCut as MinCut
    from gnnplace.placers.narrow import Expansion as Expansion
    from gnnplace.placers.narrow import NarrowSearch as NarrowSearch
    from gnnplace.placers.narrow import rank_starts as rank_starts
    from gnnplace.placers.plugins import (
        find_installed_placers as find_installed_placers,
    )
    from gnnplace.placers.plugins import load_installed_class as load_installed_class
    from gnnplace.placers.plugins import load_named_class as load_named_class
    from gnnplace.placers.registry import PLACERS as PLACERS
    from gnnplace.placers.rows import Option as Option
    from gnnplace.placers.rows import PlacerRow as PlacerRow
    from gnnplace.placers.rows import Speed as Speed
    from gnnplace.placers.rows import parse_name as parse_name
    from gnnplace.placers.search.annealing import Annealer as Annealer
    from gnnplace.placers.search.annealing import Habit as Habit
    from gnnplace.placers.search.annealing import SearchState as SearchState
    from gnnplace.placers.search.annealing import anneal as anneal
    from gnnplace.placers.search.annealing import anneal_moves as anneal_moves
    from gnnplace.placers.search.annealing import back_to_best as back_to_best
    from gnnplace.placers.search.annealing import start_state as start_state
    from gnnplace.placers.search.chunk_search import ChunkSearch as ChunkSearch
    from gnnplace.placers.search.chunks import device_ranking as device_ranking
    from gnnplace.placers.search.coarse_problem import CoarseProblem as CoarseProblem
    from gnnplace.placers.search.coarse_problem import coarse_problem as coarse_problem
    from gnnplace.placers.search.coarse_problem import (
        groups_take_all_time as groups_take_all_time,
    )
    from gnnplace.placers.search.coarse_problem import narrow_groups as narrow_groups
    from gnnplace.placers.search.coarse_problem import narrow_problem as narrow_problem
    from gnnplace.placers.search.moves import Neighbourhood as Neighbourhood
    from gnnplace.placers.search.moves import compute_energy as compute_energy
    from gnnplace.placers.search.moves import neighbourhood as neighbourhood
    from gnnplace.placers.search.moves import seed_kernel as seed_kernel
    from gnnplace.placers.search.repair import repair as repair
    from gnnplace.placers.search.space import LARGE as LARGE
    from gnnplace.placers.search.space import LEAST_TIGHT as LEAST_TIGHT
    from gnnplace.placers.search.space import NO_BUDGET as NO_BUDGET
    from gnnplace.placers.search.space import SearchSpace as SearchSpace
    from gnnplace.placers.search.space import choose_better as choose_better
    from gnnplace.placers.search.space import is_expired as is_expired
    from gnnplace.placers.search.space import read_clock as read_clock
    from gnnplace.placers.starts import read_start as read_start
    from gnnplace.placers.starts import space_with_start as space_with_start
    from gnnplace.placers.throughput import ThroughputResult as ThroughputResult
    from gnnplace.placers.throughput.placer import (
        compute_intervals as compute_intervals,
    )
    from gnnplace.placers.throughput.placer import (
        make_throughput_placer as make_throughput_placer,
    )

__getattr__, __dir__ = lazy_names(__name__)
