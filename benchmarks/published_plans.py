"""Searched plans beside published ones, at equal prices: `python -m benchmarks.published_plans`.

Each row of a folder's `rows-given.csv` (`benchmarks.studies.published.scale`) is a plan that ran
for a model, a batch and a cluster. Its framework's plans are searched for the same question with
the row's own modes (compiled layers, hidden exchanges of shards, the type of gradients), and both
plans have the prices of that framework. A found plan must be no slower than the published one, and
no published plan may be below the bound.

Columns: `published` is the seconds that were published, `priced` those of the published plan at our
prices, `found` those of the plan that is found, `bound` those that no plan of the space is below,
`search_s` processor seconds of the search.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys
import time
from pathlib import Path

from benchmarks.studies.published import scale
from benchmarks.studies.published.outcomes import Outcome
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_groups import SpecSpace
from gnnplace.plans.spec_search import search_specs

MODES = ("compile", "tp_overlap", "gradients", "cuda_graphs")


def row_of(row: Outcome) -> dict[str, object]:
    """Return a published plan beside the one that is found for its question."""
    assert row.setting is not None
    modes = PlanSpec().with_words(**{name: getattr(row.plan, name) for name in MODES})
    batch = row.plan.batch or row.setting.decoder.batch
    space = SpecSpace(row.setting, batch, row.plan.num_devices, modes)
    began = time.process_time()
    found = search_specs(space, num_best=1)
    seconds = time.process_time() - began
    best = found.best[0] if found.best else None
    return {
        "question": row.question,
        "model": row.model,
        "framework": row.setting.framework.name,
        "gpus": row.plan.num_devices,
        "batch": batch,
        "published": row.seconds,
        "priced": row.answer.step_time,
        "fits": row.answer.feasible,
        "found": best.seconds if best else None,
        "bound": found.bound,
        "search_s": round(seconds, 2),
        "published_words": str(row.plan),
        "found_words": str(best.spec) if best else "",
    }


def main() -> None:
    """Ask every question of a folder, print rows as they come, and what came of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument(
        "--data", type=Path, required=True, help="the folder of rows-given.csv"
    )
    parser.add_argument("-o", "--output", type=Path, help="a CSV file")
    args = parser.parse_args()
    rows: list[dict[str, object]] = []
    asked: set[tuple[object, ...]] = set()
    outcomes = itertools.chain.from_iterable(scale.outcomes_by_set(args.data).values())
    for outcome in outcomes:
        key = outcome.setting, outcome.plan
        if outcome.setting is None or outcome.answer.step_time is None or key in asked:
            continue
        asked.add(key)
        rows.append(row_of(outcome))
        print(", ".join(f"{value}" for value in rows[-1].values()), flush=True)
    ratios = [
        float(str(row["found"])) / float(str(row["priced"]))
        for row in rows
        if row["found"] is not None and row["fits"]
    ]
    print(
        f"{len(rows)} published plans, {len(ratios)} fit by our bytes: found over published "
        f"at equal prices at most {max(ratios):.4f}, mean {sum(ratios) / len(ratios):.3f}"
    )
    if args.output is not None:
        with args.output.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    sys.exit(main())
