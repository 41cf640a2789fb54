"""Which part bounds published steps where one is known to: `python -m benchmarks.published_bounds`.

The folder that is its argument holds `ultrascale-playbook/runs.csv.gz` and `vtrain/*.csv.gz`. What
bounds a row is known without any prediction of its step:

- `bubble`: of vTrain's runs those in which the last rank waits for over half of the step: with p
  ranks, m micro-batches and a head of r times the parameters of a stage's layers, for p - 1 stages
  beside m (1 + r) of its own (Narayanan et al., 2021, arXiv 2104.04473, section 2.2.1, where r is
  0).
- `shards`: of nanotron's sweep, runs without checked collectives and with shards over more than a
  server of eight: the same models take several times less with the shards inside of one.
- `checks`: of the same sweep, runs with checked collectives, as their own all-reduce says, that
  took over twice as long as the same plan without, ZeRO apart.

Broken allocations are left out, since no configuration says so.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.studies.published import ultrascale, vtrain
from benchmarks.studies.published.outcomes import Outcome
from gnnplace.explaining import SpecStep, step_parts

SERVER, LONGER = 8, 2.0


def known_rows(folder: Path) -> Iterator[tuple[str, Outcome]]:
    """Rows with what is known to bound them."""
    for row in vtrain.outcomes(folder):
        own, ranks = row.setting.decoder, row.plan.pp
        head = ranks * own.embedding / (own.layers * own.layer_matrices)
        if row.seconds and ranks - 1 > row.microbatches * (1 + head):
            yield "bubble", row
    rows = [row for row in ultrascale.outcomes(folder) if row.seconds is not None]
    plain: dict[object, float] = {}

    def of(row: Outcome) -> object:
        return row.setting.decoder, replace(row.plan, zero=0)

    for row in rows:
        if row.setting.framework.checks is None and row.seconds:
            key = of(row)
            plain[key] = min(row.seconds, plain.get(key, row.seconds))
            if row.plan.tp > SERVER:
                yield "shards", row
    for row in rows:
        usual = plain.get(of(row))
        if (
            row.setting.framework.checks is not None
            and usual
            and (row.seconds or 0.0) > LONGER * usual
        ):
            yield "checks", row


def bound_steps(folder: Path) -> dict[str, Counter[str]]:
    """How often each part is the largest, of the rows that one is known to bound, by that one."""
    found: dict[str, Counter[str]] = {}
    for known, row in known_rows(folder):
        parts = step_parts(SpecStep(row.setting, row.plan))
        found.setdefault(known, Counter())[max(parts, key=parts.__getitem__)] += 1
    return found


if __name__ == "__main__":
    for known, counts in bound_steps(Path(sys.argv[1])).items():
        told = ", ".join(f"{name} {n}" for name, n in counts.most_common())
        print(f"{known}: {counts[known]} of {counts.total()} ({told})")
