"""Which part bounds published steps where one is known to: `python -m benchmarks.published_bounds`.

The folder that is its argument holds `ultrascale-playbook/runs.csv.gz`. Rows are those of
`studies.published.ultrascale` whose seconds can be relied on, without checked collectives, and with
shards over more than a server of eight: the same models take several times less with the shards
inside of one, so that what bounds them is known to be the exchanges of shards. No row of the sweep
has bubbles over a half (a step has 256 examples), and broken allocations are left out, since no
configuration says so.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from benchmarks.studies.published.ultrascale import outcomes
from gnnplace.plans.decoders.explaining import row_parts

SERVER = 8


def bounds_of(folder: Path) -> Counter[str]:
    """How often each part is the largest, of the rows that shards are known to bound."""
    found: Counter[str] = Counter()
    for row in outcomes(folder):
        if row.seconds and row.setting.checks is None and row.plan.tp > SERVER:
            parts = row_parts(row.setting, row.plan)
            found[max(parts, key=parts.__getitem__)] += 1
    return found


if __name__ == "__main__":
    print(dict(bounds_of(Path(sys.argv[1]))))
