"""Joint plans beside baselines on a named suite: `python benchmarks/plans.py [SUITE] [RESULT]`.

Writes a table of predicted steps: by how much the plan that is found is ahead of each baseline, and
where its stages have unlike meshes. What fails is a row that says why. Rows that the result has
stay as they are: remove the file to make all of them again.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.errors import GnnplaceError
from gnnplace.plans import BASELINES
from gnnplace.plans.answers import find_baselines
from gnnplace.plans.job import SearchOptions, TrainingJob
from gnnplace.plans.plan import Plan
from gnnplace.plans.segments.chains import capture_chain
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.cluster.headroom import with_slack

ROOT = Path(__file__).parent
BUDGET = 2.0
COLUMNS = 6 + len(BASELINES)


def main() -> None:
    """Runs the suite."""
    suite = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "plans.yaml"
    result = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "results/plans.md"
    asked = yaml.safe_load(suite.read_text())
    known = count_rows(result)
    rows: list[str] = []
    for entry, name in itertools.product(asked["models"], asked["clusters"]):
        key = (entry["model"].partition("?")[0], name)
        if len(known.get(key, [])) < len(asked["memory"]):
            known[key] = rows_of(entry, name, asked)
            print(known[key][-1], flush=True)
        rows += known[key]
        others = [
            row for pair, own in known.items() if own[0] not in rows for row in own
        ]
        result.write_text(
            "\n".join([*head_of(suite.name, [*rows, *others]), *rows, *others]) + "\n"
        )


def count_rows(result: Path) -> dict[tuple[str, str], list[str]]:
    """Rows that were made before, by model and cluster."""
    found: dict[tuple[str, str], list[str]] = {}
    for line in result.read_text().splitlines() if result.exists() else ():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == COLUMNS and cells[0] not in ("model", "---"):
            found.setdefault((cells[0], cells[1]), []).append(line)
    return found


def head_of(suite: str, rows: list[str]) -> list[str]:
    """What comes before the rows: how they were made, and what they say."""
    return [
        "# Joint plans beside baselines",
        "",
        f"Made by `python benchmarks/plans.py` from `{suite}`, {BUDGET:g} s of search a row; "
        "steps are predicted. A baseline's column is how much longer its step is; – does not fit.",
        "",
        told_of(rows),
        "",
        f"| model | cluster | memory | plan, ms | {' | '.join(BASELINES)} | gap to bound | plan |",
        "|" + " --- |" * COLUMNS,
    ]


def told_of(rows: list[str]) -> str:
    """How often and by how much the plan is ahead of every baseline."""
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    fits = [c for c in cells if c[-1]]
    behind = [
        min(
            (float(x.rstrip("%")) for x in c[4 : 4 + len(BASELINES)] if x != "–"),
            default=math.inf,
        )
        for c in fits
    ]
    ahead = [(b, c) for b, c in zip(behind, fits, strict=True) if b >= 0.05]
    known = sorted(b for b, _ in ahead if math.isfinite(b))
    unlike = sum(" + " in c[-1] for _, c in ahead)
    return (
        f"There are {len(rows)} rows. In {len(fits)} a plan fits; in {len(ahead)} of them it is "
        f"ahead of every baseline that fits, by {statistics.median(known):.1f} % in the median and "
        f"{known[-1]:.1f} % at most, and in {unlike} of these its stages have unlike meshes."
        if known
        else f"There are {len(rows)} rows."
    )


def rows_of(entry: dict[str, Any], name: str, asked: dict[str, Any]) -> list[str]:
    """The rows of a model on a cluster, one a memory; or why there is none."""
    whole, started = resolve_cluster(name), time.monotonic()
    model = entry["model"].partition("?")[0]
    made = []
    try:
        options = {k: asked[k] for k in ("precision", "optimizer")}
        chain = capture_chain(
            TrainingJob(entry["model"], batch=entry["batch"], **options), whole
        )
        for part in asked["memory"]:
            found = find_baselines(
                chain, with_slack(reduced(whole, part)), SearchOptions(budget=BUDGET)
            )
            made.append(row_of(model, name, part, found))
    except GnnplaceError as error:
        made.append(f"| {model} | {name} | | {error} |" + " |" * (len(BASELINES) + 2))
    print(
        f"{model} on {name}: {time.monotonic() - started:.0f} s",
        file=sys.stderr,
        flush=True,
    )
    return made


def reduced(cluster: Cluster, part: float) -> Cluster:
    """The cluster with a part of the memory."""
    own = [d.model_copy(update={"memory": part * d.memory}) for d in cluster.devices]
    return Cluster(tuple(own), cluster.links, cluster.name)


def row_of(model: str, cluster: str, part: float, found: dict[str, Plan | None]) -> str:
    """A row of the table."""
    best = found["plan"]
    if best is None:
        return f"| {model} | {cluster} | {part:g} | nothing fits |" + " |" * (
            len(BASELINES) + 2
        )
    cells = []
    for name in BASELINES:
        other = found[name]
        cells.append(
            "–" if other is None else f"{other.step_time / best.step_time - 1:+.1%}"
        )
    bound = best.file.lower_bound
    gap = f"{best.step_time / bound - 1:.1%}" if bound else ""
    told = " | ".join([f"{1e3 * best.step_time:.1f}", *cells, gap, best.shape])
    return f"| {model} | {cluster} | {part:g} | {told} |"


if __name__ == "__main__":
    main()
