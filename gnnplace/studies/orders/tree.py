"""A shallow tree that chooses traversal orders by features of a problem.

Formulation: of each problem p the loss of every order, l(p, o), is known: log step time over the
best of all orders. A leaf has the k orders S that minimise the sum over its problems of
min over o in S of l(p, o), taken one by one (the first is the best single order, each further one
the best beside those chosen). A split of one feature at one threshold is taken where it lowers the
sum over both sides most; the tree stops at ``depth``, at ``least`` problems a leaf, or where no
split lowers the mean loss by ``GAIN``. That is a policy tree (Athey and Wager, Econometrica 2021)
grown greedily as CART is (Breiman et al., 1984), not searched in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnplace.errors import FormatError
from gnnplace.files import read_json, write_json

FloatArray = NDArray[np.float64]
FORMAT, VERSION = "gnnplace-orders", 1
GAIN = 5e-4  # of the mean log step time over all problems, that a split must be worth
THRESHOLDS = 24  # tried for each feature, at quantiles


@dataclass(frozen=True)
class Tree:
    """A tree, or a leaf of one.

    Attributes:
        orders: of a leaf, the best first; of a split, what its problems would have as a leaf.
        problems: that it was fitted on.
        feature: that a split asks; empty for a leaf.
        threshold: at most this goes ``below``.
        below: one side.
        above: the other.
    """

    orders: tuple[str, ...]
    problems: int
    feature: str = ""
    threshold: float = 0.0
    below: Tree | None = None
    above: Tree | None = None

    def choose(self, features: Mapping[str, float]) -> tuple[str, ...]:
        """The orders for a problem of these features."""
        if self.below is None or self.above is None:
            return self.orders
        side = self.below if features[self.feature] <= self.threshold else self.above
        return side.choose(features)

    def lines(self, indent: str = "") -> list[str]:
        """The tree as text, a line a branch."""
        if self.below is None or self.above is None:
            return [f"{indent}{', '.join(self.orders)} ({self.problems} problems)"]
        head = f"{indent}{self.feature} "
        return [
            f"{head}<= {self.threshold:.4g}:",
            *self.below.lines(indent + "    "),
            f"{head}> {self.threshold:.4g}:",
            *self.above.lines(indent + "    "),
        ]


def fit(
    features: Sequence[Mapping[str, float]],
    losses: FloatArray,
    orders: Sequence[str],
    *,
    depth: int = 2,
    least: int = 20,
    count: int = 1,
) -> Tree:
    """The tree of these problems.

    Args:
        features: of each problem.
        losses: log step time over the best. [problems, orders]
        orders: names.
        depth: splits above a leaf, at most.
        least: problems of a leaf.
        count: orders of a leaf, k.
    """
    names = tuple(features[0]) if features else ()
    table = np.array([[entry[name] for name in names] for entry in features])
    grower = _Grower(table, losses, tuple(orders), names, least, count, GAIN * len(losses))
    return grower.grow(np.arange(len(losses)), depth)


def best_orders(losses: FloatArray, count: int) -> tuple[list[int], float]:
    """The ``count`` orders of a leaf, one by one, and their sum of losses."""
    chosen: list[int] = []
    so_far = np.full(len(losses), np.inf)
    for _ in range(min(count, losses.shape[1])):
        sums = np.minimum(losses, so_far[:, None]).sum(axis=0)
        sums[chosen] = np.inf
        chosen.append(int(sums.argmin()))
        so_far = np.minimum(so_far, losses[:, chosen[-1]])
    return chosen, float(so_far.sum())


@dataclass(frozen=True)
class _Grower:
    table: FloatArray
    losses: FloatArray
    orders: tuple[str, ...]
    names: tuple[str, ...]
    least: int
    count: int
    worth: float

    def grow(self, rows: NDArray[np.int64], depth: int) -> Tree:
        chosen, whole = best_orders(self.losses[rows], self.count)
        leaf = Tree(tuple(self.orders[o] for o in chosen), len(rows))
        split = self._split(rows) if depth else None
        if split is None or split[0] > whole - self.worth:
            return leaf
        _, column, threshold = split
        low = self.table[rows, column] <= threshold
        return Tree(
            leaf.orders,
            leaf.problems,
            self.names[column],
            threshold,
            self.grow(rows[low], depth - 1),
            self.grow(rows[~low], depth - 1),
        )

    def _split(self, rows: NDArray[np.int64]) -> tuple[float, int, float] | None:
        """Sum of losses, feature and threshold of the best split, if there is any."""
        found: list[tuple[float, int, float]] = []
        for column in range(len(self.names)):
            values = self.table[rows, column]
            for threshold in thresholds(values):
                low = values <= threshold
                if min(low.sum(), (~low).sum()) < self.least:
                    continue
                sides = (
                    best_orders(self.losses[rows[side]], self.count)[1] for side in (low, ~low)
                )
                found.append((sum(sides), column, float(threshold)))
        return min(found, default=None)


def thresholds(values: FloatArray) -> FloatArray:
    """Thresholds between different values, at most ``THRESHOLDS``, ascending."""
    distinct = np.unique(values)
    middles = (distinct[1:] + distinct[:-1]) / 2
    if len(middles) <= THRESHOLDS:
        return np.asarray(middles)
    wanted = np.quantile(values, np.linspace(0, 1, THRESHOLDS + 2)[1:-1])
    return np.unique(middles[np.searchsorted(middles, wanted).clip(max=len(middles) - 1)])


def write_tree(path: str | Path, tree: Tree, about: str) -> None:
    """Writes a recommendation: the tree and what it was fitted on.

    Raises:
        InputError: the folder cannot be written to.
    """
    write_json(path, {"format": FORMAT, "version": VERSION, "about": about, "tree": _data(tree)})


def read_tree(path: str | Path) -> Tree:
    """Reads a recommendation.

    Raises:
        FormatError: the file is missing or not a recommendation of this version.
    """
    data = read_json(path)
    if not isinstance(data, dict) or (data.get("format"), data.get("version")) != (FORMAT, VERSION):
        raise FormatError(f"{path}: not a {FORMAT} file of version {VERSION}")
    try:
        return _tree(data["tree"])
    except (KeyError, TypeError) as error:
        raise FormatError(f"{path}: tree: {error} is missing or malformed") from None


def _data(tree: Tree) -> dict[str, Any]:
    data: dict[str, Any] = {"orders": list(tree.orders), "problems": tree.problems}
    if tree.below is None or tree.above is None:
        return data
    split = {"feature": tree.feature, "threshold": tree.threshold}
    return data | split | {"below": _data(tree.below), "above": _data(tree.above)}


def _tree(data: Mapping[str, Any]) -> Tree:
    leaf = Tree(tuple(data["orders"]), int(data["problems"]))
    if "feature" not in data:
        return leaf
    sides = (_tree(data["below"]), _tree(data["above"]))
    return Tree(leaf.orders, leaf.problems, data["feature"], float(data["threshold"]), *sides)
