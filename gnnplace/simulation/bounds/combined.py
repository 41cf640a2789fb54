"""Lower bounds on the step time: no placement of a problem can be below them.

* **Critical path**: the longest path of least times, by ranks of copies (``copies``), branches
  being serial where they don't pay for transfers (``serial``).
* **Work**: all work shared out over the devices (``work``).
* **Windows** (after Fernandez and Bussell, 1973): ops that cannot start before ``a`` and leave at
  least ``b`` seconds of path after them do their work within step time - a - b (``fill``).
* **Units**: a unit is on one device, one op after the other (``one_machine``).
* **Fill**: what a pipeline cannot do yet, or no longer, at its ends (``fill``).
* **Work and path**: few fast devices hold no whole path M times (``work_and_path``).
* **Transfers**: neighbours are on one device or pay for a transfer (``transfers``).

All bounds but *work* use heads (least times before an op) and tails (least times after it). Heads
and tails count a transfer only where it is that or running branches one after the other, or where
pins, kinds or memory force it; only the last two bounds count more. The result is lowered by one
part in 10^12, so that a different order of summation cannot put a simulated step below it.
Complexity: O(n D + n log n + edges), plus that of each bound, given in its file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from gnnplace.problem import Problem
from gnnplace.simulation.bounds.relaxation import Relaxation
from gnnplace.simulation.bounds.serial import with_serial_runs
from gnnplace.simulation.bounds.transfers import with_transfers
from gnnplace.simulation.bounds.work_and_path import work_and_path
from gnnplace.simulation.compiled import Compiled, compute_least_times

ROUNDING = 1e-12


@dataclass(frozen=True)
class LowerBounds:
    """The bounds by name, in seconds; 0 where one was not looked for."""

    critical_path: float
    work: float = 0.0
    windows: float = 0.0
    units: float = 0.0
    fill: float = 0.0
    work_and_path: float = 0.0
    transfers: float = 0.0

    @property
    def best(self) -> float:
        """Return the largest bound."""
        return float(max(asdict(self).values()))

    @property
    def binding(self) -> str:
        """Return the name of the largest bound."""
        values = asdict(self)
        return max(values, key=lambda name: values[name]).replace("_", " ")


def quick_bounds(problem: Problem, compiled: Compiled) -> LowerBounds:
    """Return two bounds that take a moment: paths of least times, and all least times shared out
    evenly.

    For those who have no time for the others; each is a weaker form of its namesake. O(n).

    Args:
        problem: the problem that is bounded.
        compiled: The compiled problem, with heads and tails of paths.
    """
    shortest_times = compute_least_times(problem)
    path = float((compiled.head + shortest_times + compiled.tail).max())
    work = float(shortest_times.sum()) / problem.num_devices
    return LowerBounds(path * (1.0 - ROUNDING), work * (1.0 - ROUNDING))


def lower_bounds(problem: Problem) -> LowerBounds:
    """Return all bounds of ``problem``."""
    relaxation = with_serial_runs(Relaxation.of(problem))
    values = relaxation.bounds()
    values["work_and_path"] = work_and_path(relaxation)
    values["transfers"] = with_transfers(relaxation, max(values.values()))
    return LowerBounds(
        **{key: value * (1.0 - ROUNDING) for key, value in values.items()}
    )


def lower_bound(problem: Problem) -> float:
    """Return the best lower bound on the step time of ``problem``, in seconds."""
    return lower_bounds(problem).best
