"""Kernels compiled, or loaded from disk, before a budget runs; and whether they have been.

Placers place two tiny problems; a search that a budget would cut short runs a few steps of its own
besides, so that all of it is compiled however slowly that goes. What only large problems need, the
search on narrow groups, is compiled for these alone, and the graph network for these and for first
choices without a budget. Numba keeps what it
compiled in ``cache_folder``; a note there says for which placers all is done, for these sources on
this machine, so that nobody has to import or compile anything to know.

Numba compiles on one core. Kernels of the learned placer and of the others have little in common:
with a second process (``beside``) both are done in some two thirds of the time, and what one of
them leaves in the cache on disk the other one loads.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np
from numba.core import event

from gnnplace.errors import GnnplaceError
from gnnplace.files import uncollected
from gnnplace.foreign import naming_extras
from gnnplace.graph import jit
from gnnplace.graph.kernels import flows_of_ops
from gnnplace.placers import NO_BUDGET, Found, SearchSpace
from gnnplace.placers.contract import training_chain
from gnnplace.placers.search.annealing import anneal
from gnnplace.placers.search.space import LEAST_TIGHT
from gnnplace.policy.placing import TIME, UNTRAINED, placer_for, shown_placers
from gnnplace.problem import Problem
from gnnplace.problem.microbatching import with_microbatches
from gnnplace.processes import ends_with_this
from gnnplace.simulation.kernels import run_kernel

if TYPE_CHECKING:
    from gnnplace.policy.learned import LearnedPlacer

Progress = Callable[[str], None]
LEARNED, OTHERS = "learned", ["portfolio", "annealing"]  # what ``best`` is made of
MODULE = "gnnplace.policy.warming"
WARMING = 0.02  # seconds of budget that reach a placer's search as well
FEW_MOVES = 20.0  # of the learned placer's search
EVERY = 2.0  # seconds between two lines of progress
# Kernels that a placer needs, for the line of progress; fewer where a second process helps. Others
# need no more than the portfolio.
NUMBER = {"best": 139, "learned": 120, "learned-untrained": 120, "single": 66}
ON_GROUPS = ("best", "learned", "learned-untrained", "narrow")  # search large problems on groups
FEWER = 102
GROUPS = 29  # besides, for large problems
ROOMS = ("graph", "simulation", "placers", "policy")  # of kernels


class WarmingScope(NamedTuple):
    """What kernels are compiled for.

    Attributes:
        large: Problems that are searched on narrow groups too.
        network: Answers of `learned` and `best` that the graph network decodes for.
    """

    large: bool
    network: bool


def warm(
    names: Iterable[str] | None = None,
    objective: str = TIME,
    progress: Progress | None = None,
    num_ops: int | None = None,
    budget: float | None = None,
) -> None:
    """Compiles, or loads from disk, the kernels of placers.

    Where those of ``best`` are missing, a second process compiles the learned placer's while this
    one compiles the others; what it leaves on disk is loaded here then.

    Args:
        names: the names of placers, all that are shown by default; one that is unknown is left to
            whoever places with it.
        objective: that they place for.
        progress: called with a line now and then while something is compiled.
        num_ops: ops of the problem that is to be placed; None: of any size.
        budget: seconds of search that are to come; None: some.
    """
    names = list(names or shown_placers())
    scope = find_scope(num_ops, budget)
    if progress is not None and not all(_is_noted(name, objective, scope) for name in names):
        progress(f"compiling kernels (once; kept in {cache_folder().parent})")
    names = [name for name in names if _is_known(name, objective)]
    # The compiler makes many objects that stay: to look for garbage takes a tenth of its time.
    with uncollected(), _telling(progress, names, scope.large):
        if objective == TIME and "best" in names and not is_warm(["best"], num_ops=0):
            with beside([LEARNED]):
                _warm_all([*OTHERS, *(["narrow"] if scope.large else [])], scope)
        _warm_all(names, scope, objective)
    for name in names:
        for large, network in product({False, scope.large}, {False, scope.network}):
            _note(name, objective, WarmingScope(large, network)).touch()


def _warm_all(names: list[str], scope: WarmingScope, objective: str = TIME) -> None:
    for problem in (training_chain(), with_microbatches(training_chain(memory=48.0), 2)):
        for name in names:
            with suppress(GnnplaceError), naming_extras():
                _warm_one(problem, name, objective, scope)


def find_scope(num_ops: int | None, budget: float | None = None) -> WarmingScope:
    """Return what is compiled for a problem of so many ops and a budget; None: of any size."""
    large = num_ops is None or num_ops >= LEAST_TIGHT
    return WarmingScope(large, network=large or budget == 0)


def _is_known(name: str, objective: str) -> bool:
    try:
        with naming_extras():
            return bool(placer_for(objective, name).name)
    except GnnplaceError:
        return False


def _warm_one(problem: Problem, name: str, objective: str, scope: WarmingScope) -> None:
    made: Any = placer_for(objective, name)
    space = SearchSpace(problem)
    learned = getattr(made, "learned", made) if name in ("best", LEARNED, UNTRAINED) else None
    if learned is not None and not scope.network:
        learned.network = None
    whole = made.place(problem, budget=0.0, space=space)
    if objective == TIME and name in ("best", "portfolio", "annealing"):
        start = Found(whole.placement.device, whole.simulation.order)
        anneal(space, start, np.random.default_rng(0), 0.0)
    if scope.large and objective == TIME and name in ON_GROUPS:
        _search_groups(space)
    if scope.large and objective == TIME and name in ("best", LEARNED):
        _ask_network(space)
    if objective == TIME and learned is not None:
        _search(space, learned)
    else:
        made.place(problem, budget=WARMING, space=space)


def _search_groups(space: SearchSpace) -> None:
    """A lap of the search on narrow groups, which only large problems get."""
    from gnnplace.placers.narrow import Expansion, ranked_starts
    from gnnplace.placers.search.chunk_search import ChunkSearch
    from gnnplace.placers.search.coarse_problem import narrow_groups

    narrow = narrow_groups(space, 4)
    coarse = SearchSpace(narrow.problem)
    starts = ranked_starts(coarse, narrow, ())
    Expansion(space, narrow).add(starts[0])
    ChunkSearch(coarse, narrow, starts, 0).run_lap()


def _ask_network(space: SearchSpace) -> None:
    """A decode of the graph network, which only large problems get."""
    from gnnplace.policy.decode.rollouts import Rollouts
    from gnnplace.policy.learned import LearnedPlacer, load_policy, network_decodes

    network = LearnedPlacer().find_network()
    if network is not None:  # else torch is missing, and nobody will ask it
        rollouts = Rollouts(space, load_policy())
        network_decodes(rollouts, network, rollouts.aims[0], np.inf)


def _search(space: SearchSpace, learned: LearnedPlacer | Any) -> None:
    """The first moves of the learned placer's search."""
    from gnnplace.policy.decode.rollouts import Rollouts
    from gnnplace.policy.learned import load_policy
    from gnnplace.policy.refine.passes import RefiningPasses
    from gnnplace.policy.search import Anytime

    graph = space.problem.graph
    flows_of_ops(*graph.edges, graph.num_ops)  # of problems without classes
    rollouts = Rollouts(space, learned.policy or load_policy())
    best = rollouts.greedy(most=1)[0]
    search = Anytime(RefiningPasses(rollouts), best, np.random.default_rng(0))
    search.length = FEW_MOVES
    search.cycle(NO_BUDGET)


def is_warm(names: Iterable[str], num_ops: int | None = None, budget: float | None = None) -> bool:
    """Whether ``warm`` once went through for all these placers and a problem and budget like it."""
    scope = find_scope(num_ops, budget)
    return all(_is_noted(name, TIME, scope) for name in names)


def _is_noted(name: str, objective: str, scope: WarmingScope) -> bool:
    return _note(name, objective, scope).exists()


def cache_folder() -> Path:
    """Where numba keeps the kernels of simulations."""
    return Path(run_kernel.stats.cache_path)


def _note(name: str, objective: str, scope: WarmingScope) -> Path:
    """The file that says that the kernels of a placer are in the cache."""
    rooms = [Path(__file__).parents[1] / room for room in ROOMS]
    sources = [path for room in rooms for path in sorted(room.rglob("*.py"))]
    states = [(str(path), path.stat().st_mtime_ns) for path in sources]
    machine = (platform.python_version(), numba.__version__, np.__version__)
    about = repr((name, objective, *scope, states, machine, platform.processor()))
    return cache_folder() / f"warm-{hashlib.sha256(about.encode()).hexdigest()[:16]}"


@contextmanager
def _telling(progress: Progress | None, names: list[str], large: bool) -> Iterator[None]:
    """Has lines of progress told while kernels are compiled; none if all are on disk."""
    if progress is None:
        yield
        return
    number = max((NUMBER.get(name, FEWER) for name in names), default=FEWER)
    number += GROUPS if large and any(name in ON_GROUPS for name in names) else 0
    listener = _Teller(progress, number)
    with event.install_listener("numba:compile", listener):
        yield


class _Teller(event.Listener):  # type: ignore[misc]
    """Tells how many kernels are there, every now and then, when one is compiled."""

    def __init__(self, progress: Progress, number: int) -> None:
        self.progress, self.number = progress, number
        self.next = time.perf_counter() + EVERY

    def on_start(self, event: Any) -> None:
        """Tells it if the last line is some time ago."""
        if time.perf_counter() < self.next:
            return
        self.next = time.perf_counter() + EVERY
        ready = sum(bool(kernel.signatures) for kernel in jit.KERNELS)
        number = max(self.number, ready + 1)
        folder = cache_folder().parent
        self.progress(f"compiling kernels (once; kept in {folder}): {ready} of {number}")

    def on_end(self, event: Any) -> None:
        """Nothing: the next start tells."""


@contextmanager
def beside(names: list[str]) -> Iterator[None]:
    """Has kernels of other placers compiled while the block runs; waits for them at its end.

    On a single core nothing is started. A process that fails is of no consequence: whoever needs a
    kernel that is not there compiles it.

    Args:
        names: the names of these placers.
    """
    if len(os.sched_getaffinity(0)) < 2:
        yield
        return
    command = [sys.executable, "-m", MODULE, *names]
    silent = subprocess.DEVNULL
    # A session of its own: Ctrl-C is for the process that waits, which ends this one.
    with subprocess.Popen(
        command,
        stdin=silent,
        stdout=silent,
        stderr=silent,
        start_new_session=True,
        preexec_fn=ends_with_this(),
    ) as process:
        try:
            yield
            process.wait()
        finally:
            process.terminate()


if __name__ == "__main__":
    # Of placers that are named, what small problems need: ``beside`` starts this.
    warm(sys.argv[1:] or None, progress=print, num_ops=0 if sys.argv[1:] else None)
