"""Kernels compiled, or loaded from disk, before a budget runs; and whether they have been.

Placers place two tiny problems, the second with micro-batches and little memory; a search that a
budget would cut short runs a few steps of its own besides, so that all of it is compiled however
slowly that goes. What only large problems need, the search on narrow groups, is compiled for these
alone, and the graph network for these and for first choices without a budget. A construction on a
problem of one micro-batch with memory to spare compiles what the first tiny problem needs. Numba
keeps what it compiled in ``cache_folder``; a note there says for which placers all is done, for
these sources on this machine, so that nobody has to import or compile anything to know.

Numba compiles on one core. The simulator, its bounds and annealing are what all searches share; the
learned placer's decoder and passes are its own. So a second process (``beside``) imports what it
needs while this one compiles the shared kernels, loads those from disk, and compiles the learned
placer's own while this one goes on with the others': nothing is compiled twice.
"""

from __future__ import annotations

import gc
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
from gnnplace.graph import KERNELS, sum_op_flows
from gnnplace.placers import (
    LEAST_TIGHT,
    NO_BUDGET,
    Found,
    SearchSpace,
    anneal,
    training_chain,
)
from gnnplace.placing.roster import (
    TIME,
    UNTRAINED,
    find_placer,
    placer_for,
    shown_placers,
)
from gnnplace.problem import Problem, with_microbatches
from gnnplace.processes import ends_with_this
from gnnplace.simulation import run_kernel

if TYPE_CHECKING:
    from gnnplace.policy import LearnedPlacer

Progress = Callable[[str], None]
LEARNED, OTHERS = "learned", ["portfolio", "annealing"]  # The members of ``best``
MODULE = "gnnplace.placing.warming"
WARMING = 0.02  # seconds of budget that reach a placer's search as well
FEW_MOVES = 20.0  # Moves of the learned placer's search
EVERY = 2.0  # seconds between two lines of progress
# Kernels that a placer needs, for the line of progress; fewer where a second process helps. Others
# need no more than the portfolio.
NUMBER = {"best": 139, "learned": 120, "learned-untrained": 120, "single": 66}
# The placers that search large problems on groups.
ON_GROUPS = ("best", "learned", "learned-untrained", "narrow")
FEWER = 102
GROUPS = 29  # Further kernels for large problems
ROOMS = ("graph", "simulation", "placers", "policy")  # The rooms that have kernels


class WarmingScope(NamedTuple):
    """The sorts of problems that kernels are compiled for.

    Attributes:
        large: Problems that are searched on narrow groups too.
        network: Answers of `learned` and `best` that the graph network decodes for.
        tight: Problems of several micro-batches, or whose memory some placement exceeds.
    """

    large: bool
    network: bool
    tight: bool = True


def warm(
    names: Iterable[str] | None = None,
    objective: str = TIME,
    progress: Progress | None = None,
    num_ops: int | None = None,
    budget: float | None = None,
    space: SearchSpace | None = None,
) -> None:
    """Compile the kernels of placers, or load them from disk.

    Where those of ``best`` are missing, a second process compiles the learned placer's own while
    this one compiles the others; what it leaves on disk is loaded here then.

    Args:
        names: The names of placers, all that are shown by default; one that is unknown is left to
            whoever places with it.
        objective: What they place for.
        progress: Called with a line now and then while something is compiled.
        num_ops: Ops of the problem that is to be placed; None: of any size.
        budget: Seconds of search that are to come; None: some.
        space: The problem that is to be placed, so that a construction compiles what it needs of
            it; None: any problem.
    """
    names = list(names or shown_placers())
    scope = find_scope(num_ops, budget)
    announced = scope._replace(tight=space is None)
    unnoted: list[str] = []
    registered: list[str] = []
    for name in names:
        if not _is_noted(name, objective, announced):
            unnoted.append(name)
        if _is_known(name, objective):
            registered.append(name)
    if progress is not None and unnoted:
        progress(f"compiling kernels (once; kept in {cache_folder().parent})")
    names = registered
    # The compiler makes many objects that stay: to look for garbage takes a tenth of its time.
    with uncollected(), _telling(progress, names, scope.large):
        if space is not None and all(
            find_placer(name)[0].is_construction for name in names
        ):
            is_tight = space.problem.microbatches > 1 or space.memory_matters
            scope = scope._replace(tight=is_tight)
        if objective == TIME and "best" in names and not is_warm(["best"], num_ops=0):
            with beside([LEARNED]) as go:
                _warm_shared(scope)
                go()
                _warm_all([*OTHERS, *(["narrow"] if scope.large else [])], scope)
        _warm_all(names, scope, objective)
    for name in names:
        for large, network, tight in product(
            {False, scope.large}, {False, scope.network}, {False, scope.tight}
        ):
            _note(name, objective, WarmingScope(large, network, tight)).touch()


def _warming_problems(scope: WarmingScope) -> list[Problem]:
    """Return the tiny problems that placers place; the second one is tight."""
    problems = [training_chain()]
    if scope.tight:
        problems.append(with_microbatches(training_chain(memory=48.0), 2))
    return problems


def _warm_all(names: list[str], scope: WarmingScope, objective: str = TIME) -> None:
    for problem in _warming_problems(scope):
        for name in names:
            with suppress(GnnplaceError), naming_extras():
                _warm_one(problem, name, objective, scope)


def _warm_shared(scope: WarmingScope) -> None:
    """Compile the simulator, its bounds and list schedules, which all placers share."""
    for problem in _warming_problems(scope):
        with suppress(GnnplaceError):
            space = SearchSpace(problem)
            result = placer_for(TIME, "single").place(problem, space=space)
            space.sequence(result.placement.device)


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
    placer: Any = placer_for(objective, name)
    space = SearchSpace(problem)
    if name in ("best", LEARNED, UNTRAINED):
        learned = getattr(placer, "learned", placer)
    else:
        learned = None
    if learned is not None and not scope.network:
        learned.network = None
    result = placer.place(problem, budget=0.0, space=space)
    if objective == TIME and name in ("best", "portfolio", "annealing"):
        start = Found(result.placement.device, result.simulation.order)
        anneal(space, start, np.random.default_rng(0), 0.0)
    if scope.large and objective == TIME and name in ON_GROUPS:
        _search_groups(space)
    if scope.large and objective == TIME and name in ("best", LEARNED):
        _ask_network(space)
    if objective == TIME and learned is not None:
        _search(space, learned)
    else:
        placer.place(problem, budget=WARMING, space=space)


def _search_groups(space: SearchSpace) -> None:
    """Run a lap of the search on narrow groups, which only large problems get."""
    from gnnplace.placers import ChunkSearch, Expansion, narrow_groups, rank_starts

    narrow = narrow_groups(space, 4)
    coarse = SearchSpace(narrow.problem)
    starts = rank_starts(coarse, narrow, ())
    Expansion(space, narrow).add(starts[0])
    ChunkSearch(coarse, narrow, starts, 0).run_lap()


def _ask_network(space: SearchSpace) -> None:
    """Run a decode of the graph network, which only large problems get."""
    from gnnplace.policy import LearnedPlacer, Rollouts, load_policy, network_decodes

    network = LearnedPlacer().find_network()
    if network is not None:  # else torch is missing, and nobody will ask it
        rollouts = Rollouts(space, load_policy())
        network_decodes(rollouts, network, rollouts.aims[0], np.inf)


def _search(space: SearchSpace, learned: LearnedPlacer) -> None:
    """Make the first moves of the learned placer's search."""
    from gnnplace.policy import Anytime, RefiningPasses, Rollouts, load_policy

    graph = space.problem.graph
    sum_op_flows(*graph.edges, graph.num_ops)  # of problems without classes
    rollouts = Rollouts(space, learned.policy or load_policy())
    best = rollouts.greedy(most=1)[0]
    search = Anytime(RefiningPasses(rollouts), best, np.random.default_rng(0))
    search.length = FEW_MOVES
    search.cycle(NO_BUDGET)


def is_warm(
    names: Iterable[str],
    num_ops: int | None = None,
    budget: float | None = None,
    tight: bool = True,
) -> bool:
    """Return whether ``warm`` once went through for all these placers and a problem like it.

    Args:
        names: The names of placers.
        num_ops: Ops of the problem; None: of any size.
        budget: Seconds of search; None: some.
        tight: Whether it may have several micro-batches or little memory.
    """
    scope = find_scope(num_ops, budget)._replace(tight=tight)
    return all(_is_noted(name, TIME, scope) for name in names)


def _is_noted(name: str, objective: str, scope: WarmingScope) -> bool:
    return _note(name, objective, scope).exists()


def cache_folder() -> Path:
    """Return where numba keeps the kernels of simulations."""
    dispatcher: Any = run_kernel  # numba's, which Python calls as the function
    return Path(dispatcher.stats.cache_path)


def _note(name: str, objective: str, scope: WarmingScope) -> Path:
    """Return the file that says that the kernels of a placer are in the cache."""
    rooms = [Path(__file__).parents[1] / room for room in ROOMS]
    sources = [path for room in rooms for path in sorted(room.rglob("*.py"))]
    states = [(str(path), path.stat().st_mtime_ns) for path in sources]
    machine = (platform.python_version(), numba.__version__, np.__version__)
    about = repr((name, objective, *scope, states, machine, platform.processor()))
    return cache_folder() / f"warm-{hashlib.sha256(about.encode()).hexdigest()[:16]}"


@contextmanager
def _telling(
    progress: Progress | None, names: list[str], large: bool
) -> Iterator[None]:
    """Have lines of progress told while kernels are compiled; none if all are on disk."""
    if progress is None:
        yield
        return
    number = max((NUMBER.get(name, FEWER) for name in names), default=FEWER)
    number += GROUPS if large and any(name in ON_GROUPS for name in names) else 0
    listener = _Teller(progress, number)
    with event.install_listener("numba:compile", listener):
        yield


class _Teller(event.Listener):  # type: ignore[misc]
    """A reporter of how many kernels are compiled."""

    def __init__(self, progress: Progress, number: int) -> None:
        self.progress = progress
        self.number = number
        self.next = time.perf_counter() + EVERY

    def on_start(self, event: object) -> None:
        """Tell it if the last line is some time ago."""
        if time.perf_counter() < self.next:
            return
        self.next = time.perf_counter() + EVERY
        ready = sum(bool(kernel.signatures) for kernel in KERNELS)
        number = max(self.number, ready + 1)
        folder = cache_folder().parent
        self.progress(
            f"compiling kernels (once; kept in {folder}): {ready} of {number}"
        )

    def on_end(self, event: object) -> None:
        """Do nothing: the next start tells."""


@contextmanager
def beside(names: list[str]) -> Iterator[Callable[[], None]]:
    """Have kernels of other placers compiled while the block runs; wait for them at its end.

    The block gets a function to call when the kernels that they share with its own are on disk.
    Until then the process imports. On a single core nothing is started. A process that fails is of
    no consequence: whoever needs a kernel that is not there compiles it.

    Args:
        names: The names of these placers.
    """
    if len(os.sched_getaffinity(0)) < 2:
        yield lambda: None
        return
    command = [sys.executable, "-m", MODULE, *names]
    silent = subprocess.DEVNULL
    # A session of its own: Ctrl-C is for the process that waits, which ends this one.
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=silent,
        stderr=silent,
        start_new_session=True,
        preexec_fn=ends_with_this(),
    ) as process:
        assert process.stdin is not None
        try:
            yield process.stdin.close
            process.stdin.close()
            process.wait()
        finally:
            process.terminate()


def _main(names: list[str]) -> None:
    """Compile what placers need; of placers that are named, what small problems need.

    With names, which is how ``beside`` starts it, it begins when its standard input ends.
    """
    if names:
        for name in names:
            _is_known(name, TIME)  # imports what the placer needs
        sys.stdin.read()
    warm(names or None, progress=print, num_ops=0 if names else None)


if __name__ == "__main__":
    _main(sys.argv[1:])
    gc.freeze()  # the compiler's objects: to look for garbage among them at the end takes a second
