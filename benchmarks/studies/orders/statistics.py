"""What the order study's step times say, and how surely.

For order o, seed s and problem p let l(o, s, p) be the log step time above the least of all orders
and seeds on p. A family's **mean** is over its problems and the seeds. **Bootstrap**: problems (of
each family apart) and seeds are resampled together, the same for all orders, so that differences
are paired; 95 % percentile intervals (Efron, 1979). An order **cannot be told apart** from the best
one if the interval of their difference holds zero. The best of many orders looks better than it is,
so what a choice is *worth* is measured on what it was not made on: problems in two halves and one
seed left out, choose on one side, measure on the other, ``SPLITS`` times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gnnplace.bench.statistics import LEVEL, Interval

FloatArray = NDArray[np.float64]
RESAMPLES, SPLITS = 2_000, 200
ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
Choice = Callable[[FloatArray, NDArray[np.int64]], NDArray[np.int64]]


@dataclass(frozen=True, eq=False)
class Losses:
    """Log step times above the best of each problem.

    Attributes:
        orders: names. O
        families: the families of each problem. P
        values: [O, S, P]
    """

    orders: tuple[str, ...]
    families: tuple[str, ...]
    values: FloatArray

    def of_family(self, family: str) -> FloatArray:
        """The family's values. [O, S, its problems]"""
        return np.asarray(self.values[:, :, np.array(self.families) == family])


@dataclass(frozen=True)
class Ranking:
    """What is known of the orders on some problems.

    Attributes:
        best: order of the least mean.
        means: mean loss of each order. [O]
        surely: share of resamples in which the best order is the best.
        alike: orders that cannot be told apart from the best, itself first, by their means.
        count: problems.
    """

    best: str
    means: FloatArray
    surely: float
    alike: tuple[str, ...]
    count: int


def resampled_means(values: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Mean loss of each order on resampled problems and seeds. [RESAMPLES, O]"""
    _, seeds, problems = values.shape
    by_seed = rng.multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES) / seeds
    by_problem = (
        rng.multinomial(problems, np.full(problems, 1 / problems), RESAMPLES) / problems
    )
    return np.einsum("bs,osp,bp->bo", by_seed, values, by_problem, optimize=True)


def ranking(values: FloatArray, orders: Sequence[str], seed: int = 0) -> Ranking:
    """Which order is best on these problems, and from which it cannot be told apart."""
    means = values.mean(axis=(1, 2))
    best = int(means.argmin())
    drawn = resampled_means(values, np.random.default_rng(seed))
    low = np.quantile(drawn - drawn[:, [best]], ENDS[0], axis=0)
    alike = [o for o in np.argsort(means, kind="stable") if low[o] <= 0.0]
    alike = [best, *(o for o in alike if o != best)]
    surely = float((drawn.argmin(axis=1) == best).mean())
    return Ranking(
        orders[best], means, surely, tuple(orders[o] for o in alike), values.shape[2]
    )


def ratio_interval(values: FloatArray, seed: int = 0) -> Interval:
    """Geometric mean of exp(values) with its interval over problems and seeds. [S, P]"""
    drawn = resampled_means(values[None], np.random.default_rng(seed))[:, 0]
    low, high = np.exp(np.quantile(drawn, ENDS))
    return Interval(
        float(np.exp(values.mean())), float(low), float(high), values.shape[1]
    )


def shares_of_variance(losses: Losses) -> dict[str, float]:
    """Shares of the variance of the losses within problems: what explains which order is better.

    Sums of squares of nested means, each family's mean order effect weighted by its problems:
    ``order`` alone, ``order x family``, ``order x problem``, and ``seed``, the rest.
    """
    centred = losses.values - losses.values.mean(axis=0, keepdims=True)
    total = float((centred**2).sum())
    order = centred.mean(axis=(1, 2), keepdims=True)
    of_problem = centred.mean(axis=1, keepdims=True)
    of_family = np.zeros_like(of_problem)
    for family in dict.fromkeys(losses.families):
        mine = np.array(losses.families) == family
        of_family[:, :, mine] = of_problem[:, :, mine].mean(axis=2, keepdims=True)
    size = losses.values.shape[1:]
    parts = {
        "order": float((order**2).sum() * np.prod(size)),
        "order x family": float(((of_family - order) ** 2).sum() * size[0]),
        "order x problem": float(((of_problem - of_family) ** 2).sum() * size[0]),
        "seed": float(((centred - of_problem) ** 2).sum()),
    }
    return {name: value / total for name, value in parts.items()}


def worth(
    losses: Losses, choice: Choice, rival: Choice, seed: int = 0
) -> Interval | None:
    """What one way of choosing an order is worth over another, on what neither has seen.

    Args:
        losses: the losses of all orders.
        choice: from losses [O, problems] and these problems' numbers to an order for every problem
            of the study.
        rival: the same.
        seed: the seed of the splits.

    Returns:
        Mean difference in percent of step time, below zero where ``choice`` is better, with its
        interval over problems and left-out seeds; None where there are too few of either.
    """
    _, seeds, problems = losses.values.shape
    if seeds < 2 or problems < 4:
        return None
    rng, total = np.random.default_rng(seed), np.zeros((2, seeds, problems))
    for split in range(SPLITS):
        left = split % seeds
        learned = losses.values[:, np.arange(seeds) != left].mean(axis=1)
        mine = halves(losses.families, rng)
        for here in (mine, ~mine):
            rows, others = np.flatnonzero(here), np.flatnonzero(~here)
            made = [way(learned[:, rows], rows)[others] for way in (choice, rival)]
            values = losses.values[:, left]
            total[0, left, others] += values[made[0], others] - values[made[1], others]
            total[1, left, others] += 1
    found = 100.0 * total[0] / total[1].clip(min=1)
    drawn = resampled_means(found[None], rng)[:, 0]
    low, high = np.quantile(drawn, ENDS)
    return Interval(float(found.mean()), float(low), float(high), problems)


def halves(families: Sequence[str], rng: np.random.Generator) -> NDArray[np.bool_]:
    """One half of the problems, of each family about half."""
    result = np.zeros(len(families), dtype=bool)
    for family in dict.fromkeys(families):
        mine = np.flatnonzero(np.array(families) == family)
        result[rng.permutation(mine)[: (len(mine) + int(rng.integers(2))) // 2]] = True
    return result


def one_for_all(losses: Losses) -> Choice:
    """The one order that is best on the problems at hand."""
    count = len(losses.families)
    return lambda values, rows: np.full(count, values.mean(axis=1).argmin())


def one_a_family(losses: Losses) -> Choice:
    """The order that is best on the family's problems at hand."""
    names = np.array(losses.families)

    def choose(values: FloatArray, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        result = np.full(len(names), values.mean(axis=1).argmin())
        for family in dict.fromkeys(names[rows].tolist()):
            result[names == family] = (
                values[:, names[rows] == family].mean(axis=1).argmin()
            )
        return result

    return choose
