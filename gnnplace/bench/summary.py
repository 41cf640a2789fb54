"""Summary of rows: geometric mean of step time over the best of each problem, wins, failures."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from rich.table import Table


def ratios(rows: list[dict[str, Any]]) -> dict[tuple[str, float], list[float]]:
    """Step times over the best row of the same problem, by placer and budget."""
    best: dict[str, float] = {}
    for row in rows:
        if row["feasible"]:
            best[row["problem"]] = min(row["step_time"], best.get(row["problem"], np.inf))
    result: dict[tuple[str, float], list[float]] = defaultdict(list)
    for row in rows:
        if row["feasible"]:
            ratio = row["step_time"] / best[row["problem"]] if best[row["problem"]] else 1.0
            result[row["placer"], row["budget"]].append(ratio)
    return result


def summary_table(rows: list[dict[str, Any]], name: str) -> Table:
    """Placers by their geometric mean, the best first."""
    table = Table(title=f"{name}: predicted step time over the best row", title_justify="left")
    table.add_column("placer")
    for heading in ("budget", "geometric mean", "within 1 %", "worst", "rows", "failed", "seconds"):
        table.add_column(heading, justify="right")
    found = ratios(rows)
    keys = {(row["placer"], row["budget"]) for row in rows}
    for key in sorted(keys, key=lambda key: (_mean(found.get(key, [])), key)):
        mine = [row for row in rows if (row["placer"], row["budget"]) == key]
        table.add_row(key[0], f"{key[1]:g} s", *_cells(found.get(key, []), mine))
    return table


def _mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values)))) if values else np.inf


def _cells(values: list[float], rows: list[dict[str, Any]]) -> list[str]:
    failed = sum(not row["feasible"] for row in rows)
    seconds = f"{np.mean([row['seconds'] for row in rows]):.3g}"
    if not values:
        return ["-", "-", "-", str(len(rows)), str(failed), seconds]
    close = sum(value <= 1.01 for value in values) / len(values)
    return [
        f"{_mean(values):.3f}",
        f"{close:.0%}",
        f"{max(values):.2f}",
        str(len(rows)),
        str(failed),
        seconds,
    ]
