"""The order study's report: tables in Markdown, and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies.orders.decoding import STUDIED
from benchmarks.studies.orders.problems import PARTS, generations_of
from benchmarks.studies.orders.statistics import (
    Losses,
    Ranking,
    one_a_family,
    one_for_all,
    ranking,
    ratio_interval,
    shares_of_variance,
    worth,
)
from gnnplace.bench.statistics import Interval
from gnnplace.errors import InputError
from gnnplace.report.pictures import heat

if TYPE_CHECKING:
    from gnnplace.report import Picture

FloatArray = NDArray[np.float64]
ONE, BEST_SIZE = "one", "best_size"
UNTRAINED = -1
NOISE = "noise"
DARKEST = 20.0  # percent above the best from which on a shade is no darker
REFERENCE = (
    "upward-rank"  # what orders are told against: the one that the package tries first
)


@dataclass(frozen=True, eq=False)
class Part:
    """A part's problems and what every order got on them.

    Attributes:
        name: the name of the part.
        orders: that every seed has.
        seeds: the seeds of trainings.
        problems: as the rows describe them.
        trained: seconds by what was decoded, [O, S, P].
        untrained: the same with the package's weights, [O, P].
    """

    name: str
    orders: tuple[str, ...]
    seeds: tuple[int, ...]
    problems: list[dict[str, Any]]
    trained: dict[str, FloatArray]
    untrained: dict[str, FloatArray]

    @property
    def families(self) -> tuple[str, ...]:
        """Of each problem."""
        return tuple(entry["family"] for entry in self.problems)

    @property
    def features(self) -> list[dict[str, float]]:
        """Of each problem."""
        return [entry["features"] for entry in self.problems]

    def losses(self, what: str = ONE) -> Losses:
        """Log step times above the best of all orders and seeds."""
        logs = np.log(self.trained[what])
        return Losses(self.orders, self.families, logs - logs.min(axis=(0, 1)))


def count_parts(rows: Sequence[dict[str, Any]], generations: int) -> list[Part]:
    """The parts that rows are complete for, in the order of ``PARTS``.

    Orders are those that were evaluated trained, seeds those that all of these orders have.

    Raises:
        InputError: there is no such part.
    """
    found = [_part(name, rows, generations_of(name, generations)) for name in PARTS]
    complete = [part for part in found if part is not None]
    if not complete:
        raise InputError(
            "study: nothing to report; run it first, with the same --generations"
        )
    return complete


def _part(name: str, rows: Sequence[dict[str, Any]], generations: int) -> Part | None:
    mine = {
        (r["placer"], r["seed"]): r
        for r in rows
        if r["problem"] == name and r["placer"]
    }
    mine = {
        k: r for k, r in mine.items() if k[1] == UNTRAINED or r["budget"] == generations
    }
    described = [r for r in rows if r["problem"] == name and not r["placer"]]
    every = sorted({seed for _, seed in mine if seed != UNTRAINED})
    begun = {order for order, seed in mine if seed != UNTRAINED}
    orders = tuple(
        order for order in STUDIED if order in begun and (order, UNTRAINED) in mine
    )
    seeds = tuple(s for s in every if all((order, s) in mine for order in orders))
    if not described or not seeds:
        return None
    trained = {
        what: np.array([[mine[o, s][what] for s in seeds] for o in orders])
        for what in (ONE, BEST_SIZE)
    }
    untrained = {
        what: np.array([mine[o, UNTRAINED][what] for o in orders])
        for what in (ONE, BEST_SIZE)
    }
    return Part(name, orders, seeds, described[0]["problems"], trained, untrained)


def report(parts: Sequence[Part]) -> str:
    """All tables as Markdown.

    Args:
        parts: ``seen`` first.
    """
    lines = ["# Traversal orders: tables", ""]
    lines += [
        "Written by `benchmarks.studies orders` from the rows in `orders.jsonl`; what they mean is"
    ]
    lines += ["in [docs/orders.md](../../docs/orders.md).", ""]
    lines += _by_order(parts)
    for part in parts:
        lines += _by_family(part)
    lines += [*_by_cluster(parts), *_dependence(parts)]
    return "\n".join(lines) + "\n"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    head = [f"| {' | '.join(headings)} |", f"|---|{'---:|' * (len(headings) - 1)}"]
    return [*head, *(f"| {' | '.join(row)} |" for row in rows), ""]


def find_text(interval: Interval, form: str = ".3f") -> str:
    """An interval in a few words."""
    return f"{interval.mean:{form}} [{interval.low:{form}}, {interval.high:{form}}]"


def _by_order(parts: Sequence[Part]) -> list[str]:
    lines = ["## Every order over all families", ""]
    lines += [
        "Geometric mean of step time over the least of all orders and seeds with one decode"
    ]
    lines += ["(with the best number of devices: over the least of those).", ""]
    for part in parts:
        losses, sizes = part.losses(), part.losses(BEST_SIZE)
        best = np.log(part.trained[ONE]).min(axis=(0, 1))
        before = np.exp((np.log(part.untrained[ONE]) - best).mean(axis=1))
        rows = [
            [
                order,
                find_text(ratio_interval(losses.values[i])),
                f"{before[i]:.3f}",
                find_text(ratio_interval(sizes.values[i])),
            ]
            for i, order in sorted(
                enumerate(part.orders), key=lambda entry: losses.values[entry[0]].mean()
            )
        ]
        count, seeds = len(part.problems), len(part.seeds)
        lines += [f"**{part.name}**: {count} problems, {seeds} seeds.", ""]
        heads = (
            "order",
            "one decode, trained",
            "untrained",
            "best number of devices, trained",
        )
        lines += _table(heads, rows)
        auto = np.log([entry["auto"] for entry in part.problems]) - best
        told = find_text(ratio_interval(auto[None]))
        lines += [
            f"All that the placer decodes by itself, unrefined, package's weights: {told}.",
            "",
        ]
    return lines


def _by_family(part: Part) -> list[str]:
    losses = part.losses()
    overall = ranking(losses.values, part.orders)
    lines = [f"## Families: {part.name}", ""]
    lines += [f"Best over all of them: **{overall.best}**.", ""]
    rows = []
    for family in dict.fromkeys(part.families):
        values = losses.of_family(family)
        rows.append(_family_row(family, ranking(values, part.orders), values, part))
    over = f"over {part.orders[_reference(part)]}"
    heads = ("family", "problems", "best order", "surely", "its ratio", over)
    return [*lines, *_table((*heads, "cannot be told apart from the best"), rows)]


def _family_row(
    family: str, found: Ranking, values: FloatArray, part: Part
) -> list[str]:
    best, common = part.orders.index(found.best), _reference(part)
    gain = ratio_interval(values[best] - values[common])
    others = [order for order in found.alike if order != found.best]
    told = ", ".join(others[:6]) + (
        f" and {len(others) - 6} more" if len(others) > 6 else ""
    )
    return [
        family,
        str(found.count),
        found.best,
        f"{found.surely:.0%}",
        f"{np.exp(found.means[best]):.3f}",
        "the same"
        if best == common
        else find_text(gain) + (" " + NOISE if gain.high >= 1 else ""),
        told or "none",
    ]


def _by_cluster(parts: Sequence[Part]) -> list[str]:
    lines = ["## Types of clusters and micro-batches", ""]
    rows = []
    for part in parts:
        names = np.array([entry["cluster"] for entry in part.problems])
        shares = np.array(
            [entry["features"]["microbatches"] for entry in part.problems]
        )
        groups = {
            f"cluster {name}": names == name for name in dict.fromkeys(names.tolist())
        }
        groups |= {"one micro-batch": shares == 1, "four micro-batches": shares > 1}
        for name, mine in groups.items():
            if mine.any():
                found = ranking(part.losses().values[:, :, mine], part.orders)
                alike = ", ".join(order for order in found.alike if order != found.best)
                row = [
                    f"{part.name}, {name}",
                    str(found.count),
                    found.best,
                    f"{found.surely:.0%}",
                ]
                rows.append([*row, alike or "none"])
    heads = (
        "problems of",
        "count",
        "best order",
        "surely",
        "cannot be told apart from it",
    )
    return [*lines, *_table(heads, rows)]


def _dependence(parts: Sequence[Part]) -> list[str]:
    lines = ["## Does the best order depend on the family?", ""]
    rows = []
    for part in parts:
        losses = part.losses()
        shares = shares_of_variance(losses)
        gain = worth(losses, one_a_family(losses), one_for_all(losses))
        least = -100.0 * float((losses.values[_common(part)].mean(axis=0)).mean())
        row = [part.name, *(f"{share:.0%}" for share in shares.values())]
        rows.append([*row, find_text(gain, "+.2f") if gain else "-", f"{least:+.2f}"])
    heads = ("problems", "order", "order x family", "order x problem", "seed")
    lines += _table(
        (*heads, "an order a family, %", "the best of each problem, %"), rows
    )
    return [
        *lines,
        "Shares of the variance of log step times within problems. Then what choosing an order for",
        "each family is worth over one order for all, chosen on half of the problems and all seeds",
        "but one, measured on the other half and the other seed; and what always knowing the best",
        "order and seed of each problem would be worth, which nobody can know.",
        "",
    ]


def _common(part: Part) -> int:
    """The best order over all of a part's problems."""
    return part.orders.index(ranking(part.losses().values, part.orders).best)


def _reference(part: Part) -> int:
    """``REFERENCE``, or the best over all where that was not studied."""
    return part.orders.index(REFERENCE) if REFERENCE in part.orders else _common(part)


def picture(parts: Sequence[Part]) -> Picture:
    """Families by orders: how far each order is behind the family's best, in percent."""
    orders = tuple(o for o in STUDIED if any(o in part.orders for part in parts))
    title = "Step time above the family's best order, %"
    tables = {part.name: _behind(part, orders) for part in parts}
    return heat(tables, orders, title=title, unit="%", most=DARKEST)


def _behind(part: Part, orders: Sequence[str]) -> dict[str, list[float]]:
    """Of each family, percent above its best for each order; nan for one that was not studied."""
    losses, table = part.losses(), {}
    for family in dict.fromkeys(part.families):
        means = losses.of_family(family).mean(axis=(1, 2))
        behind = dict(
            zip(part.orders, 100 * np.expm1(means - means.min()), strict=True)
        )
        table[family] = [float(behind.get(order, np.nan)) for order in orders]
    return table


def written(folder: Path) -> dict[str, Path]:
    """Files of a report."""
    return {name: folder / f"orders.{name}" for name in ("md", "svg")}
