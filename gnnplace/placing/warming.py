"""Warming: compiling kernels, or loading them from disk, before a budget runs.

**What is compiled.** ``warm`` has placers place two tiny problems; the second one is *tight*, with
micro-batches and little memory. Searches also run a few steps by themselves, because a budget
could end before their kernels are compiled. ``WarmingScope`` says what else is needed: the search
on narrow groups only for large problems, the graph network for these and for answers without a
budget. A construction on a problem that is not tight needs the first tiny problem only.

**What is remembered.** Numba keeps compiled kernels in ``cache_folder``. An empty file there, a
*note*, says that all kernels of a placer are compiled, for these sources on this machine. So
``is_warm`` needs to import and compile nothing.

**Two processes.** Numba compiles on one core. All searches share the simulator, its bounds and
annealing; only the learned placer needs its decoder and passes. So while this process compiles the
shared kernels, a second one (`warm_beside`) does its imports. Then it loads the shared kernels from
disk and compiles the learned placer's, while this one compiles those of the other placers. Nothing
is compiled twice.
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
from gnnplace.files import pause_garbage_collection
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
    list_shown_placers,
    make_placer_for,
)
from gnnplace.problem import Problem, with_microbatches
from gnnplace.processes import ends_with_this
from gnnplace.simulation import run_kernel

if TYPE_CHECKING:
    from gnnplace.policy import LearnedPlacer

Progress = Callable[[str], None]
# The members of ``best``: the learned placer, and those that this process compiles meanwhile.
LEARNED = "learned"
OTHERS = ["portfolio", "annealing"]
MODULE = "gnnplace.placing.warming"
WARMING = 0.02  # seconds of a budget that reaches a placer's search
FEW_MOVES = 20.0  # moves of the learned placer's search
EVERY = 2.0  # seconds between two lines of progress

# Numbers of kernels, for the line of progress.
NUMBER = {"best": 139, "learned": 120, "learned-untrained": 120, "single": 66}
FEWER = 102  # of any other placer: those of the portfolio
GROUPS = 29  # more of them for large problems, of the placers ``ON_GROUPS``
ON_GROUPS = ("best", "learned", "learned-untrained", "narrow")

DIGEST_DIGITS = 16  # of a note's name
ROOMS = ("graph", "simulation", "placers", "policy")  # packages that have kernels


class WarmingScope(NamedTuple):
    """The kinds of problems that kernels are compiled for.

    Attributes:
        large: Whether problems are so large that they are also searched on narrow groups.
        network: Whether `learned` and `best` ask the graph network.
        tight: Whether problems may have several micro-batches, or too little memory for some
            placement.
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

    If kernels of ``best`` are missing, a second process compiles those of the learned placer
    meanwhile, and they are then loaded from disk.

    Args:
        names: The names of placers; by default all that comparisons show. An unknown name is
            skipped here; placing with it is an error.
        objective: The objective that they place for.
        progress: Called with a line now and then while kernels are compiled.
        num_ops: Number of ops of the problem to be placed; None: any number.
        budget: Seconds that the problem will be searched; None: any budget but 0.
        space: The problem to be placed, so that constructions compile only what it needs. None:
            any problem.
    """
    names = list(names or list_shown_placers())
    scope = find_scope(num_ops, budget)
    announced = scope._replace(tight=space is None)
    is_noted = all(_is_noted(name, objective, announced) for name in names)
    if progress is not None and not is_noted:
        progress(f"compiling kernels (once; kept in {cache_folder().parent})")
    names = [name for name in names if _is_known(name, objective)]

    # The compiler makes many objects that stay: collecting garbage would take a tenth of the time.
    with pause_garbage_collection(), _report_progress(progress, names, scope.large):
        if space is not None and all(
            find_placer(name)[0].is_construction for name in names
        ):
            is_tight = space.problem.microbatches > 1 or space.memory_matters
            scope = scope._replace(tight=is_tight)
        if objective == TIME and "best" in names and not is_warm(["best"], num_ops=0):
            with warm_beside([LEARNED]) as start_compiling:
                _warm_shared(scope)
                start_compiling()
                placers = [*OTHERS, "narrow"] if scope.large else OTHERS
                _warm_all(placers, scope)
        _warm_all(names, scope, objective)

    # What is compiled for a scope is enough for every narrower one.
    narrower_scopes = product(
        {False, scope.large}, {False, scope.network}, {False, scope.tight}
    )
    for large, network, tight in narrower_scopes:
        noted_scope = WarmingScope(large=large, network=network, tight=tight)
        for name in names:
            _find_note(name, objective, noted_scope).touch()


def _warming_problems(scope: WarmingScope) -> list[Problem]:
    """Return the tiny problems that placers place; a second one, if there is one, is tight."""
    problems = [training_chain()]
    if scope.tight:
        problems.append(with_microbatches(training_chain(memory=48.0), 2))
    return problems


def _warm_all(names: list[str], scope: WarmingScope, objective: str = TIME) -> None:
    """Compile the kernels of placers; those that fail, or need a missing library, are skipped."""
    for problem in _warming_problems(scope):
        for name in names:
            with suppress(GnnplaceError), naming_extras():
                _warm_one(problem, name, objective, scope)


def _warm_shared(scope: WarmingScope) -> None:
    """Compile the simulator, its bounds and list scheduling, which all placers share."""
    for problem in _warming_problems(scope):
        with suppress(GnnplaceError):
            space = SearchSpace(problem)
            result = make_placer_for(TIME, "single").place(problem, space=space)
            space.sequence(result.placement.device)


def find_scope(num_ops: int | None, budget: float | None = None) -> WarmingScope:
    """Return what has to be compiled for a problem.

    Args:
        num_ops: Number of ops of the problem; None: any number.
        budget: Seconds that it will be searched; None: any budget but 0.
    """
    large = num_ops is None or num_ops >= LEAST_TIGHT
    return WarmingScope(large=large, network=large or budget == 0)


def _is_known(name: str, objective: str) -> bool:
    """Return whether a placer of this name can be made; its modules are imported."""
    try:
        with naming_extras():
            return bool(make_placer_for(objective, name).name)
    except GnnplaceError:
        return False


def _warm_one(problem: Problem, name: str, objective: str, scope: WarmingScope) -> None:
    """Compile the kernels that a placer needs for a problem."""
    placer: Any = make_placer_for(objective, name)
    space = SearchSpace(problem)
    if name in ("best", LEARNED, UNTRAINED):
        learned = getattr(placer, "learned", placer)
    else:
        learned = None
    if learned is not None and not scope.network:
        learned.network = None
    result = placer.place(problem, budget=0.0, space=space)

    # Parts of the search that a short budget may not reach.
    if objective == TIME and name in ("best", "portfolio", "annealing"):
        start = Found(result.placement.device, result.simulation.order)
        anneal(space, start, np.random.default_rng(0), 0.0)
    if scope.large and objective == TIME and name in ON_GROUPS:
        _search_groups(space)
    if scope.large and objective == TIME and name in ("best", LEARNED):
        _ask_network(space)
    if objective == TIME and learned is not None:
        _search_moves(space, learned)
    else:
        placer.place(problem, budget=WARMING, space=space)


def _search_groups(space: SearchSpace) -> None:
    """Run a lap of the search on narrow groups, which only large problems need."""
    from gnnplace.placers import ChunkSearch, Expansion, narrow_groups, rank_starts

    narrow = narrow_groups(space, 4)
    coarse = SearchSpace(narrow.problem)
    starts = rank_starts(coarse, narrow, ())
    Expansion(space, narrow).add(starts[0])
    ChunkSearch(coarse, narrow, starts, 0).run_lap()


def _ask_network(space: SearchSpace) -> None:
    """Decode once with the graph network."""
    from gnnplace.policy import LearnedPlacer, Rollouts, load_policy, network_decodes

    network = LearnedPlacer().find_network()
    if network is not None:  # without torch there is none, and nothing will ask it
        rollouts = Rollouts(space, load_policy())
        network_decodes(rollouts, network, rollouts.aims[0], np.inf)


def _search_moves(space: SearchSpace, learned: LearnedPlacer) -> None:
    """Run the first moves of the learned placer's search."""
    from gnnplace.policy import Anytime, RefiningPasses, Rollouts, load_policy

    graph = space.problem.graph
    # Only problems without colocation classes need this kernel.
    sum_op_flows(*graph.edges, graph.num_ops)
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
    """Return whether ``warm`` has compiled all kernels of these placers for such a problem.

    Args:
        names: The names of placers.
        num_ops: Number of ops of the problem; None: any number.
        budget: Seconds that it will be searched; None: any budget but 0.
        tight: Whether it may have several micro-batches or little memory.
    """
    scope = find_scope(num_ops, budget)._replace(tight=tight)
    return all(_is_noted(name, TIME, scope) for name in names)


def _is_noted(name: str, objective: str, scope: WarmingScope) -> bool:
    return _find_note(name, objective, scope).exists()


def cache_folder() -> Path:
    """Return the folder where numba keeps compiled kernels of simulations."""
    dispatcher: Any = (
        run_kernel  # to mypy a function; numba's object has more attributes
    )
    return Path(dispatcher.stats.cache_path)


def _find_note(name: str, objective: str, scope: WarmingScope) -> Path:
    """Return the path of the note that a placer's kernels are compiled for a scope.

    Its name is a digest of all that compiled kernels depend on, such as the sources' times.
    """
    package = Path(__file__).parents[1]
    states = []
    for room in ROOMS:
        for path in sorted((package / room).rglob("*.py")):
            states.append((str(path), path.stat().st_mtime_ns))
    versions = (platform.python_version(), numba.__version__, np.__version__)
    key = repr((name, objective, *scope, states, versions, platform.processor()))
    digest = hashlib.sha256(key.encode()).hexdigest()
    return cache_folder() / f"warm-{digest[:DIGEST_DIGITS]}"


@contextmanager
def _report_progress(
    progress: Progress | None, names: list[str], large: bool
) -> Iterator[None]:
    """Report progress while the block compiles kernels; if all are on disk, nothing is reported."""
    if progress is None:
        yield
        return
    num_kernels = max((NUMBER.get(name, FEWER) for name in names), default=FEWER)
    if large and any(name in ON_GROUPS for name in names):
        num_kernels += GROUPS
    listener = _CompilationReporter(progress, num_kernels)
    with event.install_listener("numba:compile", listener):
        yield


class _CompilationReporter(event.Listener):  # type: ignore[misc]
    """A listener to the compiler that reports how many kernels are compiled.

    Args:
        progress: Called with the lines of the report.
        num_kernels: The number of kernels that will be compiled, about.
    """

    def __init__(self, progress: Progress, num_kernels: int) -> None:
        self.progress = progress
        self.num_kernels = num_kernels
        self.next_report = time.perf_counter() + EVERY

    def on_start(self, event: object) -> None:
        """Report the number of kernels, if the last report is some time ago."""
        if time.perf_counter() < self.next_report:
            return
        self.next_report = time.perf_counter() + EVERY
        num_compiled = sum(bool(kernel.signatures) for kernel in KERNELS)
        # The kernel that starts now is not compiled yet.
        num_kernels = max(self.num_kernels, num_compiled + 1)
        folder = cache_folder().parent
        self.progress(
            f"compiling kernels (once; kept in {folder}): {num_compiled} of {num_kernels}"
        )

    def on_end(self, event: object) -> None:
        """Do nothing: the start of the next compilation reports."""


@contextmanager
def warm_beside(names: list[str]) -> Iterator[Callable[[], None]]:
    """Compile kernels of other placers in a second process while the block runs, and wait for it.

    The block gets a function, which it calls when the kernels that all placers share are on disk.
    Until then the second process only imports. With a single core there is no second process. If it
    fails, nothing is lost: a kernel that is missing is compiled where it is needed.

    Args:
        names: The names of the placers.
    """
    if len(os.sched_getaffinity(0)) < 2:
        yield lambda: None
        return
    command = [sys.executable, "-m", MODULE, *names]
    # In another process group, so that Ctrl-C only reaches this process, which then ends the other.
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
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
    """Compile all kernels; or with names, as `warm_beside` starts it, those for small problems.

    With names, compiling begins when the standard input ends.
    """
    if not names:
        warm(progress=print)
        return
    for name in names:
        _is_known(name, TIME)  # imports the placer's modules
    sys.stdin.read()
    warm(names, progress=print, num_ops=0)


if __name__ == "__main__":
    _main(sys.argv[1:])
    # At the end of the process, collecting the compiler's objects would take a second.
    gc.freeze()
