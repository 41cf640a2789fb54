"""Writes the columns of committed rows that follow from training cards: nobody types them in.

    python -m benchmarks.derive                        # all rows in benchmarks/results
    python -m benchmarks.derive benchmarks/results/standard/standard.jsonl

``parameters``, ``training_hours``, ``trained_on``, ``graph``, ``seen``, ``seen_how`` and
``seen_block`` of a row follow from its placer's card, its problem's digest, graph and family
(``gnnplace.bench.exposure``). Runs write them since there are cards; rows from before get them
here, and all rows get them anew when a card or the blocks of families change. Nothing else is
touched: what a run alone can know (``processor_seconds``, placements) stays missing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gnnplace.bench.cells import CellTask, exposure_columns
from gnnplace.bench.rows import read_rows
from gnnplace.bench.suite import Cell, SuiteFile, read_suite
from gnnplace.files import write_text

HERE = Path(__file__).parent
SUITES, RESULTS = HERE / "suites", HERE / "results"


def suites() -> dict[str, SuiteFile]:
    """Return the suites of the repository by title."""
    read = [read_suite(path) for path in sorted(SUITES.glob("*.yaml"))]
    return {suite.title: suite for suite in read}


def derived(
    rows: Sequence[dict[str, Any]], known: dict[str, SuiteFile]
) -> list[dict[str, Any]]:
    """Return rows with the columns that follow from cards; rows of no suite as they are."""
    result = []
    for row in rows:
        suite = known.get(str(row.get("suite")))
        entries = {entry.key: entry for entry in suite.problems} if suite else {}
        entry = entries.get(row["problem"])
        if suite is None or entry is None:
            result.append(row)
            continue
        task = CellTask(
            suite=suite.title,
            kind=suite.kind,
            mode=suite.mode,
            timeout=suite.timeout,
            folder=str(SUITES),
            cell=Cell(entry, row["placer"], row["seed"], row["budget"]),
        )
        result.append(row | exposure_columns(task, row.get("digest", "")))
    return result


def main(files: Sequence[str]) -> int:
    """Write the columns into files of rows, by default into all that are committed."""
    known = suites()
    for path in map(Path, files or map(str, sorted(RESULTS.glob("*/*.jsonl")))):
        if (
            path.parent.name not in {suite.name for suite in known.values()}
            and not files
        ):
            continue
        rows = derived(read_rows(path), known)
        write_text(
            path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
        )
        print(
            f"{path}: {sum(bool(row.get('seen')) for row in rows)} of {len(rows)} rows are seen"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
