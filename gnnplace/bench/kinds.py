"""The kinds of suites: how a problem is loaded, how a cell runs, and what its row contains.

* ``place``: a placer searches; ``step_time`` is predicted seconds.
* ``execute``: a placer searches, then the placement runs on workers and is checked against one
  process, three times; ``step_time`` is measured (or emulated: the suite's ``mode``), the shortest
  step; ``typical`` is the median, ``predicted`` what was predicted.
* ``joint``: placers, recipes and plans of the same step; ``step_time`` is predicted seconds.

``clock`` says which of these a row's step time is. Times of different clocks never meet: the
digests of executed problems are not those of placed ones. Each kind is a file of its
own, imported where it is run: PyTorch takes longer to import than most cells.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from gnnplace.bench.exposure import PlacerTraining, find_training
from gnnplace.bench.placed import PlacedProblem
from gnnplace.bench.suite import EXECUTE, JOINT, Cell, ProblemEntry
from gnnplace.placing import find_placer
from gnnplace.placing import warm as warm_placers

Data = dict[str, Any]


class Loaded(Protocol):
    """The interface of what a cell works on."""

    def described(self, entry: ProblemEntry) -> Data:
        """Return the part of a row that tells of the problem."""

    def outcome(self, cell: Cell, mode: str, keep: str = "") -> Data:
        """Return the part of a row that tells what was found.

        Args:
            cell: What to run.
            mode: The mode of executions.
            keep: Folder for problem and placement; empty: they are not kept.

        Raises:
            GnnplaceError: Nothing was found, or it did not run.
        """


def load(kind: str, entry: ProblemEntry, folder: Path) -> Loaded:
    """Load and return what a cell works on; files are relative to ``folder``.

    Raises:
        GnnplaceError: The problem cannot be made.
    """
    if kind == JOINT:
        from gnnplace.bench.joint import Joint

        return Joint(entry)
    if kind == EXECUTE:
        from gnnplace.bench.executed import load_executable

        return load_executable(entry)
    return PlacedProblem(entry.load(folder))


def check_name(kind: str, name: str) -> None:
    """Refuse a name that no placer, or no method of planning, has.

    Raises:
        InputError: There is no such name, or a class of the user's own is wrong.
    """
    if kind == JOINT:
        from gnnplace.bench.joint import PLANNED

        if name in PLANNED:
            return
    find_placer(name)


def training(kind: str, name: str) -> PlacerTraining:
    """Return the known training of a placer, or of a method of planning."""
    if kind == JOINT:
        from gnnplace.bench.joint import PLANNED

        if name in PLANNED:
            return PlacerTraining()
    return find_training(name)


def warm_up(names: list[str], progress: Callable[[str], None] | None = None) -> None:
    """Compile what cells run, so that no cell's seconds contain it.

    Errors are ignored here: the cell itself raises them again and records them.

    Args:
        names: The names of the suite's placers.
        progress: Called with a line now and then while placers' kernels are compiled.
    """
    for name in names:
        with suppress(Exception):
            warm_placers([name], progress=progress)
