"""The first answer of ``gnnplace place``: a placement that runs, while kernels are compiled.

Without compiled kernels the search begins a minute late. Meanwhile a second process places the
problem in plain Python (``NUMBA_DISABLE_JIT``): on one device if that fits, otherwise in chunks,
otherwise repaired, with the placers of these names. It writes the placement and prints a line; the
result of the search replaces it. If the kernels are compiled already, none of this happens.
Complexity: a handful of simulations in Python, tens of microseconds an op each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from gnnplace.costs import read_on_cluster
from gnnplace.errors import GnnplaceError
from gnnplace.files import write_json
from gnnplace.placers import (
    Contiguous,
    Found,
    Placer,
    Result,
    SearchSpace,
    Single,
    repair,
)
from gnnplace.problem import placement_to_data
from gnnplace.processes import ends_with_this
from gnnplace.simulation import LowerBounds, quick_bounds

REPAIRING = 20.0  # seconds that a repair may take


class Plain(Placer):
    """One device, or else chunks, or else what a repair makes of them."""

    name = "first answer"

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        """Try one device, then chunks; repair the better of them if neither fits the memory."""
        answers = []
        for placer in (Single(), Contiguous(moves=False)):
            one = placer.search(space, rng, deadline)
            answers.append(Found(one.device, one.order, placer.name))
            if space.simulator.excess(one.device, one.order)[1] == 0:
                return answers[-1]
        best = min(answers, key=lambda one: space.score(one.device, one.order))
        order = repair(space, best.device, best.order, time.perf_counter() + REPAIRING)
        return Found(*order, f"{best.note}, repaired")

    def _bounds(self, space: SearchSpace) -> LowerBounds:
        """Return the quick ones: the other bounds take seconds in Python."""
        return quick_bounds(space.problem, space.compiled)


@contextmanager
def writing_first_answer(
    what: str,
    cluster: str | None,
    microbatches: int,
    output: str,
    extra: dict[str, Any],
) -> Iterator[None]:
    """Have a first answer made in another process while the block runs.

    Args:
        what: a problem file.
        cluster: instead of the problem's own.
        microbatches: shares that the batch is cut into.
        output: The file of the placement.
        extra: entries of the placement's file besides.
    """
    about: dict[str, Any] = {
        "what": what,
        "cluster": cluster,
        "microbatches": microbatches,
    }
    about |= {"output": output, "extra": extra}
    command = [sys.executable, "-m", "gnnplace.placing.first_answer", json.dumps(about)]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    # A session of its own: Ctrl-C is for the process that searches, which ends this one.
    with subprocess.Popen(
        command, env=environment, start_new_session=True, preexec_fn=ends_with_this()
    ) as process:
        try:
            yield
        finally:
            process.terminate()


def _answer(
    what: str,
    cluster: str | None,
    microbatches: int,
    output: str,
    extra: dict[str, Any],
) -> None:
    problem = read_on_cluster(what, cluster, microbatches)
    result: Result = Plain().place(problem)
    write_json(output, placement_to_data(result.placement, problem) | extra)
    sys.stderr.write(
        f"  first answer ({result.note}): predicted {result.step_time:.6g} s; written to {output}\n"
    )


if __name__ == "__main__":
    # Whoever started this reads the same problem and says what is wrong with it.
    with suppress(GnnplaceError):
        _answer(**json.loads(sys.argv[1]))
