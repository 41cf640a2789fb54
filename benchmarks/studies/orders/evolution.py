"""Training under one order: evolution of the decoder's weights on the step time of one decode.

Formulation: the weights from features to scores, in units of each feature's spread among the
candidates of a decision, are the mean of a normal distribution with a diagonal covariance. A
generation draws ``POPULATION`` members, decodes the same ``BATCH`` problems with each and takes the
mean log step time as fitness, each problem's within ``MOST`` of the batch's median member. Mean,
variances and step size follow the better half: separable CMA-ES (Ros and Hansen, PPSN 2008) from
the package ``cmaes``, which for so few generations learns faster than the full covariance. Every
``EVERY`` generations the moving average of the means is scored on problems kept apart; the best of
these, the start among them, is what training returns.

All orders get the same problems, the same numbers of generations and decodes, and the same draws.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from cmaes import SepCMA
from numpy.typing import NDArray

from benchmarks.studies.orders.decoding import OneOrder, aim_of
from gnnplace.policy.decode.kernels import DYNAMIC

FloatArray = NDArray[np.float64]
POPULATION, BATCH, EVERY = 16, 32, 15
STEP_SIZE = 0.2
DECAY = 0.9  # of the moving average, a generation
MOST = 0.2  # greatest difference that counts, in log step time
LEAST_SPREAD = 0.02  # of a feature
SPREAD_OF = 24  # problems that spreads are taken from
KEPT = 0.4  # share of the problems that means are scored on


@dataclass(frozen=True, eq=False)
class Trained:
    """What training under an order gave.

    Attributes:
        weights: the best average of means.
        curve: mean log step time on the problems kept apart, above the start's; one entry every
            ``EVERY`` generations, the start first.
        decodes: how many were made.
        seconds: the seconds of this thread.
    """

    weights: FloatArray
    curve: list[float]
    decodes: int
    seconds: float


def train_order(
    problems: list[OneOrder], order: str, start: FloatArray, generations: int, seed: int
) -> Trained:
    """Evolves the weights of one order; the first problems are learned from, the others scored on.

    Args:
        problems: to learn from.
        order: one of ``STUDIED``.
        start: weights to begin with.
        generations: how many.
        seed: the seed of all draws.
    """
    begin, rng = time.thread_time(), np.random.default_rng([43, seed])
    used = round(len(problems) * (1.0 - KEPT))
    unit = units_of(problems[:SPREAD_OF], order, start)
    search = SepCMA(start * unit, STEP_SIZE, population_size=POPULATION, seed=seed)
    kept = problems[used:]
    first = log_seconds(kept, order, start)
    best, curve, average = start, [0.0], search.mean
    for generation in range(1, generations + 1):
        batch = [problems[i] for i in rng.choice(used, min(BATCH, used), replace=False)]
        members = [search.ask() for _ in range(POPULATION)]
        found = fitness(
            np.array([log_seconds(batch, order, m / unit) for m in members])
        )
        search.tell(list(zip(members, found.tolist(), strict=True)))
        average = DECAY * average + (1.0 - DECAY) * search.mean
        if generation % EVERY == 0:
            now = float((log_seconds(kept, order, average / unit) - first).mean())
            best = average / unit if now < min(curve) else best
            curve.append(now)
    decodes = generations * POPULATION * min(BATCH, used) + len(curve) * len(kept)
    return Trained(best, curve, decodes, time.thread_time() - begin)


def fitness(logs: FloatArray) -> FloatArray:
    """Mean over problems of each member's log seconds above the median member's. [members]"""
    return np.asarray((logs - np.median(logs, axis=0)).clip(-MOST, MOST).mean(axis=1))


def log_seconds(
    problems: list[OneOrder], order: str, weights: FloatArray
) -> FloatArray:
    """Log step time of one decode of each problem."""
    return np.log([one.one(order, weights) for one in problems])


def units_of(problems: list[OneOrder], order: str, start: FloatArray) -> FloatArray:
    """Standard deviation of each feature among the candidates of a decision, 1 of priorities."""
    rows = np.concatenate([_deviations(one, order, start) for one in problems])
    unit = np.ones(len(start))
    unit[: len(DYNAMIC)] = rows.std(axis=0).clip(min=LEAST_SPREAD)
    return unit


def _deviations(one: OneOrder, order: str, start: FloatArray) -> FloatArray:
    """Features of candidates less their decision's mean. [candidates, F]"""
    rollouts, aim = (
        one.rollouts(order, start),
        aim_of(order, one.space.problem.num_devices),
    )
    seen = rollouts.watch(aim, rollouts.walk(aim).unit_device)
    allowed = seen.allowed[..., None]
    mean = (seen.features * allowed).sum(axis=1, keepdims=True)
    mean = mean / allowed.sum(axis=1, keepdims=True).clip(min=1)
    return np.asarray((seen.features - mean)[seen.allowed], dtype=np.float64)
