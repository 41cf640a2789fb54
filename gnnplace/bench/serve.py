"""What a worker process of ``workers`` runs: ``python -m gnnplace.bench.serve KIND PLACER...``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from gnnplace.bench.cells import CellTask, Row, run_task
from gnnplace.bench.kinds import warm_up


def serve(names: Sequence[str]) -> None:
    """Tasks from standard input, answers to standard output, both lines of JSON.

    Whatever else is printed goes to standard error. It ends when nobody asks or listens any more.

    Args:
        names: kind of the suite and placers, to compile before the first cell; may be empty.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(row: Row) -> None:
        answers.write(json.dumps(row) + "\n")
        answers.flush()

    if names:
        warm_up(names[0], list(names[1:]))
    with suppress(BrokenPipeError):
        for line in sys.stdin:
            answer(run_task(CellTask.from_json(line), lambda row: answer({**row, "begun": True})))


if __name__ == "__main__":
    serve(sys.argv[1:])
