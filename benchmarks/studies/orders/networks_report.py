"""The table of the order study with networks: step times by order and family, beside rivals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies.orders.statistics import Losses, ranking, ratio_interval
from gnnplace.bench.statistics import Interval
from gnnplace.errors import InputError

FloatArray = NDArray[np.float64]
PRETRAINED, OWN = "pretrained", "own"
RIVALS = ("single", "round-robin", "min-cut", "expert", "heft", "learned")
ABOUT = {
    PRETRAINED: "Trained on other families; every graph of the three.",
    OWN: "Trained further on the family's graphs of even number; its graphs of odd number.",
}


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of the study.

    Attributes:
        rows: as they were written.
        families: the family of each problem of ``pretrained``.
        steps: steps of the trainings to report.
    """

    rows: list[dict[str, Any]]
    families: list[str]
    steps: int

    def seconds(self, part: str, placer: str) -> FloatArray:
        """Seconds of each problem by seed; no rows if it was not run. [S, P]"""
        found = [
            row["one"]
            for row in sorted(self.rows, key=lambda row: int(row["seed"]))
            if (row["problem"], row["placer"], row["budget"])
            == (part, placer, self.steps)
        ]
        return np.array(found)

    def orders(self, part: str) -> list[str]:
        """Orders with rows of a part, in the order that they were run in."""
        names = [r["placer"] for r in self.rows if r["problem"] == part]
        return [name for name in dict.fromkeys(names) if name not in RIVALS]

    def list_families(self, part: str) -> list[str]:
        """The family of each problem of a part: of ``own`` every other one."""
        if part == PRETRAINED:
            return self.families
        kept = []
        for family in dict.fromkeys(self.families):
            kept += [family] * (self.families.count(family) // 2)
        return kept

    def single(self, part: str) -> FloatArray:
        """Seconds on one device of each problem of a part. [P]"""
        return self.rival(part, "single")

    def rival(self, part: str, name: str) -> FloatArray:
        """Seconds of a rival on each problem of a part. [P]"""
        every = self.seconds(PRETRAINED, name)[0]
        if part == PRETRAINED:
            return np.asarray(every)
        families = np.array(self.families)
        return np.concatenate(
            [every[families == f][1::2] for f in dict.fromkeys(self.families)]
        )


def networks_report(table: Table) -> str:
    """The report in Markdown.

    Raises:
        InputError: no row was made yet.
    """
    parts = [part for part in ABOUT if table.orders(part)]
    if not parts or not len(table.seconds(PRETRAINED, "single")):
        raise InputError("study: nothing to report yet; run it without --report")
    lines = [
        "# Traversal orders of a network that decides",
        "",
        "Written by `benchmarks.studies orders --network`; what it means is in `docs/orders.md`.",
        "Predicted step times of one greedy decode over those of one device, geometric means",
        "with 95 % intervals over graphs and seeds. Less is better.",
    ]
    for part in parts:
        lines += ["", f"## {part}", "", ABOUT[part], "", *_table(table, part), ""]
        lines += _rankings(table, part)
    return "\n".join(lines) + "\n"


def _table(table: Table, part: str) -> list[str]:
    families = list(dict.fromkeys(table.families))
    lines = [
        f"| decided by | seeds | {' | '.join(families)} | all |",
        "|---|---:|" + "---:|" * (len(families) + 1),
    ]
    entries = [
        (f"`gnn`, {order}", table.seconds(part, order)) for order in table.orders(part)
    ]
    rivals = [name for name in RIVALS if len(table.seconds(PRETRAINED, name))]
    entries += [(f"`{name}`", table.rival(part, name)[None]) for name in rivals]
    of = np.array(table.list_families(part))
    for name, seconds in entries:
        ratios = np.log(seconds / table.single(part))
        cells = [_shown(ratio_interval(ratios[:, of == f])) for f in families]
        cells.append(_shown(ratio_interval(ratios)))
        lines.append(f"| {name} | {len(seconds)} | {' | '.join(cells)} |")
    return lines


def _shown(interval: Interval) -> str:
    return f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _rankings(table: Table, part: str) -> list[str]:
    """Which order is best in each family, and which cannot be told apart from it."""
    orders = table.orders(part)
    seeds = min(len(table.seconds(part, order)) for order in orders)
    logs = np.log(np.stack([table.seconds(part, order)[:seeds] for order in orders]))
    losses = Losses(
        tuple(orders), tuple(table.list_families(part)), logs - logs.min(axis=(0, 1))
    )
    lines = [
        "| family | best order | surely | cannot be told apart |",
        "|---|---|---:|---|",
    ]
    for family in dict.fromkeys(table.families):
        lines.append(_ranked(family, losses.of_family(family), orders))
    return lines


def _ranked(family: str, values: FloatArray, orders: Sequence[str]) -> str:
    found = ranking(values, orders)
    others = ", ".join(name for name in found.alike if name != found.best) or "none"
    return f"| {family} | {found.best} | {100 * found.surely:.0f}% | {others} |"
