"""The tables of the order study by improvement walks: step times by order and family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies.orders.report import find_text
from benchmarks.studies.orders.statistics import (
    Losses,
    one_a_family,
    one_for_all,
    ranking,
    ratio_interval,
    shares_of_variance,
    worth,
)
from gnnplace.errors import InputError

FloatArray = NDArray[np.float64]
PAPER_FAMILIES = 3  # the first three families are the paper's
PAPER_ORDERS = (
    "alpha",
    "topological",
    "reverse-topological",
    "depth-first-pre",
    "depth-first-post",
    "breadth-first-sources",
)
ABOUT = {
    "paper": "Three T4, the links of the paper's simulator (7.6 GB/s, 25 µs)",
    "nvlink": "Three V100, NVLink (48 GB/s, 5 µs)",
}


@dataclass(frozen=True, eq=False)
class Table:
    """Rows of the study.

    Attributes:
        rows: As they were written.
        families: Family of each graph. [P]
        rivals: Placers beside the orders.
        marks: Numbers of walks that runs are looked at after.
    """

    rows: list[dict[str, Any]]
    families: tuple[str, ...]
    rivals: tuple[str, ...]
    marks: tuple[int, ...]

    def orders(self, machine: str) -> tuple[str, ...]:
        """Return the orders that have rows on a machine, as they were run."""
        names = [row["placer"] for row in self.rows if row["problem"] == machine]
        return tuple(name for name in dict.fromkeys(names) if name not in self.rivals)

    def rival(self, machine: str, name: str) -> FloatArray:
        """Return a rival's seconds on each graph. [P]"""
        return self._cell(machine, name, 0, 0)

    def log_ratios(self, machine: str, walks: int) -> FloatArray:
        """Return log step times over one device's, for seeds that all orders have. [O, S, P]"""
        orders = self.orders(machine)
        seeds = [
            {row["seed"] for row in self._rows_of(machine, order, walks)}
            for order in orders
        ]
        common = sorted(set.intersection(*seeds)) if seeds else []
        if not common:
            raise InputError("study: nothing to report; run it first")
        seconds = [
            [self._cell(machine, order, seed, walks) for seed in common]
            for order in orders
        ]
        return np.log(np.array(seconds)) - np.log(self.rival(machine, "single"))

    def _rows_of(self, machine: str, placer: str, walks: int) -> list[dict[str, Any]]:
        wanted = (machine, placer, walks)
        return [
            r for r in self.rows if (r["problem"], r["placer"], r["budget"]) == wanted
        ]

    def _cell(self, machine: str, placer: str, seed: int, walks: int) -> FloatArray:
        rows = [
            row for row in self._rows_of(machine, placer, walks) if row["seed"] == seed
        ]
        if not rows:
            raise InputError(f"study: no row of {placer} on {machine}; run it first")
        return np.array(rows[-1]["one"])


def improvement_report(table: Table, machines: Sequence[str]) -> str:
    """Return all tables in Markdown.

    Raises:
        InputError: There are no rows of a machine.
    """
    lines = [
        "# Traversal orders: improvement walks",
        "",
        "Written by `benchmarks.studies orders --improve` from the rows in "
        "`orders-improvement.jsonl`; what they mean is in",
        "[docs/orders.md](../../docs/orders.md#improvement-walks). Predicted step times over one "
        "device's, geometric means over graphs",
        "and runs. **Bold**: the best order of a row's family; *italic*: cannot be told apart from "
        "it (paired bootstrap over graphs and runs,",
        "95 %).",
        "",
    ]
    for machine in machines:
        for walks in table.marks:
            lines += _by_family(table, machine, walks)
    lines += _paper_orders(table, machines)
    lines += _dependence(table, machines)
    return "\n".join(lines) + "\n"


def _markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    head = [f"| {' | '.join(headings)} |", f"|---|{'---:|' * (len(headings) - 1)}"]
    return [*head, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _by_family(table: Table, machine: str, walks: int) -> list[str]:
    """Return the table of a machine after so many walks: families by orders."""
    orders, logs = table.orders(machine), table.log_ratios(machine, walks)
    single = np.log(table.rival(machine, "single"))
    rivals = [name for name in table.rivals if name != "single"]
    families = np.array(table.families)
    every = list(dict.fromkeys(table.families))
    groups = {name: families == name for name in every}
    groups["all of the paper's"] = np.isin(families, every[:PAPER_FAMILIES])
    groups["all"] = np.ones(len(families), dtype=bool)
    rows = []
    for name, members in groups.items():
        found = ranking(logs[:, :, members], orders)
        cells = []
        for order, mean in zip(orders, found.means, strict=True):
            text = f"{np.exp(mean):.3f}"
            if order == found.best:
                text = f"**{text}**"
            elif order in found.alike:
                text = f"*{text}*"
            cells.append(text)
        for rival in rivals:
            beside = np.log(table.rival(machine, rival)) - single
            cells.append(f"{np.exp(beside[members].mean()):.3f}")
        rows.append([name, str(int(members.sum())), *cells])
    title = f"## {ABOUT.get(machine, machine)}, {walks} walks, {logs.shape[1]} runs"
    return [title, "", *_markdown(("family", "graphs", *orders, *rivals), rows)]


def _paper_orders(table: Table, machines: Sequence[str]) -> list[str]:
    """Return which of the paper's own orders is best for each of its families."""
    families = np.array(table.families)
    rows = []
    for machine in machines:
        orders = table.orders(machine)
        kept = [index for index, order in enumerate(orders) if order in PAPER_ORDERS]
        names = [orders[index] for index in kept]
        if not names:
            continue
        for walks in table.marks:
            logs = table.log_ratios(machine, walks)[kept]
            for family in list(dict.fromkeys(table.families))[:PAPER_FAMILIES]:
                values = logs[:, :, families == family]
                found = ranking(values, names)
                worst = ratio_interval(
                    values[int(found.means.argmax())]
                    - values[int(found.means.argmin())]
                )
                ties = ", ".join(order for order in found.alike if order != found.best)
                where = f"{machine}, {walks} walks, {family}"
                surely = f"{found.surely:.0%}"
                rows.append(
                    [where, found.best, surely, find_text(worst), ties or "none"]
                )
    heads = ("graphs", "best order", "surely", "worst order over it")
    return [
        "## The paper's six orders, on its families",
        "",
        *_markdown((*heads, "cannot be told apart from the best"), rows),
        "*Surely*: the share of resamples of graphs and runs in which it is the best.",
        "",
    ]


def _dependence(table: Table, machines: Sequence[str]) -> list[str]:
    """Return how much orders matter, and what choosing one for each family is worth."""
    families = np.array(table.families)
    every = list(dict.fromkeys(table.families))
    rows = []
    for machine in machines:
        for walks in table.marks:
            logs, orders = table.log_ratios(machine, walks), table.orders(machine)
            own = tuple(order for order in orders if order in PAPER_ORDERS)
            for label, kept, names in (
                ("paper's families and orders", every[:PAPER_FAMILIES], own),
                ("paper's families", every[:PAPER_FAMILIES], orders),
                ("all families", every, orders),
            ):
                if not names:
                    continue
                members = np.isin(families, kept)
                listed = [orders.index(name) for name in names]
                ratios = logs[listed][:, :, members]
                values = ratios - ratios.min(axis=(0, 1))
                losses = Losses(names, tuple(families[members].tolist()), values)
                shares = ["-"] * 4  # every run came to the same under all orders
                if np.ptp(values, axis=0).any():
                    shares = [
                        f"{share:.0%}" for share in shares_of_variance(losses).values()
                    ]
                means = values.mean(axis=(1, 2))
                worst = ratio_interval(values[means.argmax()] - values[means.argmin()])
                gain = worth(losses, one_a_family(losses), one_for_all(losses))
                rows.append(
                    [
                        f"{machine}, {walks} walks, {label}",
                        names[int(means.argmin())],
                        find_text(worst),
                        *shares,
                        find_text(gain, "+.2f") if gain else "-",
                    ]
                )
    heads = ("problems", "best order", "worst order over it", "order", "order x family")
    return [
        "## Does the best order depend on the family?",
        "",
        *_markdown((*heads, "order x graph", "run", "an order a family, %"), rows),
        "Shares of the variance of log step times within graphs. Then what choosing an order for "
        "each family is worth over one order for",
        "all, chosen on half of the graphs and all runs but one, measured on the other half and "
        "the other run; below zero is better.",
    ]
