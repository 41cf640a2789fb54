"""The first answer of ``gnnplace place``: a placement that can run, while kernels are compiled.

If no kernel is compiled yet, the search begins a minute late. Meanwhile a second process places the
problem in plain Python (``NUMBA_DISABLE_JIT``): on one device if the problem fits in its memory,
otherwise in contiguous chunks, otherwise by a repair of the better of these two. It writes the
placement's file and prints a line; the result of the search later replaces the file. With compiled
kernels, ``gnnplace place`` starts no second process.

Complexity: a handful of simulations in Python, each some tens of microseconds an op.
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

REPAIRING = 20.0  # seconds that the repair may take


class Plain(Placer):
    """A placer for plain Python, which tries one device, then chunks, then a repair."""

    name = "first answer"

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        """Try one device, then chunks; repair the better of them if neither fits the memory."""
        answers = []
        for placer in (Single(), Contiguous(moves=False)):
            result = placer.search(space, rng, deadline)
            answer = Found(result.device, result.order, placer.name)
            _, excess_bytes = space.simulator.excess(answer.device, answer.order)
            if excess_bytes == 0:
                return answer
            answers.append(answer)

        best = min(answers, key=lambda answer: space.score(answer.device, answer.order))
        repair_deadline = time.perf_counter() + REPAIRING
        device, order = repair(space, best.device, best.order, repair_deadline)
        return Found(device, order, f"{best.note}, repaired")

    def _bounds(self, space: SearchSpace) -> LowerBounds:
        """Return only the quick bounds: the others take seconds in Python."""
        return quick_bounds(space.problem, space.compiled)


@contextmanager
def writing_first_answer(
    what: str,
    cluster: str | None,
    microbatches: int,
    output: str,
    extra: dict[str, Any],
) -> Iterator[None]:
    """Make a first answer in another process while the block runs; end that process after it.

    Args:
        what: The path of a problem file.
        cluster: The cluster to place on; None: the problem's own.
        microbatches: Number of micro-batches that the batch is cut into.
        output: The path of the placement's file, which is written.
        extra: More entries of the placement's file.
    """
    arguments: dict[str, Any] = {
        "what": what,
        "cluster": cluster,
        "microbatches": microbatches,
        "output": output,
        "extra": extra,
    }
    module = "gnnplace.placing.first_answer"
    command = [sys.executable, "-m", module, json.dumps(arguments)]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    # In another process group, so that Ctrl-C only reaches this process, which then ends the other.
    with subprocess.Popen(
        command, env=environment, start_new_session=True, preexec_fn=ends_with_this()
    ) as process:
        try:
            yield
        finally:
            process.terminate()


def _write_answer(
    what: str,
    cluster: str | None,
    microbatches: int,
    output: str,
    extra: dict[str, Any],
) -> None:
    """Place the problem, write the placement and print a line; see ``writing_first_answer``."""
    problem = read_on_cluster(what, cluster, microbatches)
    result: Result = Plain().place(problem)
    write_json(output, placement_to_data(result.placement, problem) | extra)
    sys.stderr.write(
        f"  first answer ({result.note}): predicted {result.step_time:.6g} s; written to {output}\n"
    )


if __name__ == "__main__":
    # The process that started this one reads the same problem, and reports its errors.
    with suppress(GnnplaceError):
        _write_answer(**json.loads(sys.argv[1]))
