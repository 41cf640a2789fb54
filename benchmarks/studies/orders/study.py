"""The traversal-order study: trains and evaluates every order, row by row, resumable.

Wang et al. (2022, arXiv 2201.09676) report that the traversal order matters to a learned placer and
that the best one depends on the family of graphs. Here every order of ``STUDIED`` is trained by
itself (``evolution``) from the same weights, with the same problems and as many generations,
with several seeds (of problems and draws), and then evaluated on problems of families that were
seen in training and of others (``problems``); also untrained, as seed -1.

Rows, append-only JSON Lines, each with commit, versions, machine and seconds:

* ``problem`` a part, ``placer`` empty: the part's problems, with features.
* ``problem`` "training", or "training" and a family: weights that an order (``placer``) and a seed
  ended with, trained on all families seen or on the family alone.
* ``problem`` a part: seconds of each of its problems under an order with a seed's weights, of one
  decode (``one``) and of the best number of devices to aim at (``best_size``).

``budget`` is the number of generations. What is there is not run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.studies.orders.decoding import STUDIED, OneOrder, start_weights
from benchmarks.studies.orders.evolution import train_order
from benchmarks.studies.orders.folder import rows_of_folder
from benchmarks.studies.orders.problems import (
    HELD_OUT,
    OWN,
    SEEN,
    StudyProblem,
    families,
    generations_of,
    graph_features,
    study_problems,
    training_problems,
)
from benchmarks.studies.orders.report import count_parts, picture, report, written
from gnnplace.bench.rows import append, format_now, identity, provenance
from gnnplace.errors import InputError, MismatchError
from gnnplace.files import write_text
from gnnplace.placers import SearchSpace
from gnnplace.policy.learned import load_policy
from gnnplace.policy.weights import FEATURE_VERSION
from gnnplace.problem import compute_digest
from gnnplace.report.pictures import svg

FloatArray = NDArray[np.float64]
Say = Callable[[str], None]
TRAINING = "training"
UNTRAINED = -1
FILE = "orders.jsonl"
OWN_POOL = 0.3  # of as many problems is a training on one family
POOL = 400  # problems of a training, those included that means are scored on


@dataclass(frozen=True)
class Plan:
    """What is to be run.

    Attributes:
        orders: the orders of ``STUDIED``.
        seeds: the seeds of trainings, beside the untrained weights.
        generations: the number of generations of a training.
        parts: problems to evaluate on.
        pool: problems of a training.
    """

    orders: tuple[str, ...] = STUDIED
    seeds: tuple[int, ...] = (0, 1, 2)
    generations: int = 90
    parts: tuple[str, ...] = (SEEN, HELD_OUT)
    pool: int = POOL

    def __post_init__(self) -> None:
        unknown = [order for order in self.orders if order not in STUDIED]
        if unknown:
            raise InputError(
                f"order {unknown[0]!r}: unknown; orders: {', '.join(STUDIED)}"
            )
        if min(self.seeds, default=0) < 0 or self.generations < 1 or self.pool < 8:
            raise InputError(
                "study: seeds from 0, one generation, eight problems: give no less"
            )


@dataclass
class Study:
    """A study in a folder: what is there, what is to be added.

    Attributes:
        folder: the folder of rows and reports; made if it is not there.
        say: called with a line of progress.
        rows: that are there.
    """

    folder: Path
    say: Say
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rows = rows_of_folder(self.folder, FILE)
        self.policy = load_policy()
        self.pools: dict[tuple[int, str | None], list[OneOrder]] = {}
        self.parts: dict[str, list[StudyProblem]] = {}
        self.decoders: dict[str, list[OneOrder]] = {}

    def run(self, plan: Plan) -> None:
        """Runs what is missing of a plan, seed by seed.

        Raises:
            InputError: no such part.
            MismatchError: rows are of a policy with other features; they do not compare.
        """
        self._check_version()
        for part in plan.parts:
            self._problems(part)
            for order in plan.orders:
                start = start_weights(order, self.policy)
                self._evaluate(
                    part, order, UNTRAINED, 0, dict.fromkeys(families(part), start)
                )
        for number, seed in enumerate(plan.seeds):
            for order, part in product(plan.orders, plan.parts):
                budget = generations_of(part, plan.generations)
                if self.find(part, order, seed, budget) is None:
                    weights = self._weights(part, order, seed, plan)
                    self._evaluate(part, order, seed, budget, weights)
            self.pools.clear()
            self.say(f"seed {seed}: done, {number + 1} of {len(plan.seeds)}")

    def _check_version(self) -> None:
        versions = {
            str(row.get("feature_version", FEATURE_VERSION)) for row in self.rows
        }
        others = versions - {FEATURE_VERSION}
        if others:
            raise MismatchError(
                f"{self.folder / FILE}: weights of feature_version {min(others)}, but this "
                f"gnnplace has {FEATURE_VERSION}; give another folder, or --report alone"
            )

    def find(
        self, problem: str, placer: str, seed: int, budget: float
    ) -> dict[str, Any] | None:
        """The row of a cell, if it is there."""
        wanted = identity(
            {"problem": problem, "placer": placer, "seed": seed, "budget": budget}
        )
        return next((row for row in self.rows if identity(row) == wanted), None)

    def _add(
        self, problem: str, placer: str, seed: int, budget: float, found: Any
    ) -> None:
        cell = {"problem": problem, "placer": placer, "seed": seed, "budget": budget}
        row = {"study": "orders", **cell, "when": format_now(), **found, **provenance()}
        append(self.folder / FILE, row)
        self.rows.append(row)

    def _weights(
        self, part: str, order: str, seed: int, plan: Plan
    ) -> dict[str, FloatArray]:
        """The weights for each family of a part."""
        if part == OWN:
            return {
                name: self._train(order, seed, plan, name) for name in families(part)
            }
        return dict.fromkeys(families(part), self._train(order, seed, plan))

    def _train(
        self, order: str, seed: int, plan: Plan, family: str | None = None
    ) -> FloatArray:
        """The weights that an order and a seed end with, trained on all families or on one."""
        name = TRAINING if family is None else f"{TRAINING} {family}"
        generations = (
            plan.generations
            if family is None
            else generations_of(OWN, plan.generations)
        )
        row = self.find(name, order, seed, generations)
        if row is not None:
            return np.array(row["weights"])
        pool = self._pool(seed, plan.pool, family)
        start = start_weights(order, self.policy)
        trained = train_order(pool, order, start, generations, seed)
        weights = [round(w, 5) for w in trained.weights.tolist()]
        curve = [round(c, 5) for c in trained.curve]
        found: dict[str, Any] = {
            "weights": weights,
            "curve": curve,
            "decodes": trained.decodes,
        }
        found |= {"feature_version": FEATURE_VERSION}
        self._add(name, order, seed, generations, found | {"seconds": trained.seconds})
        self.say(
            f"{name}, seed {seed}, {order}: {min(curve):+.4f} in {trained.seconds:.0f} s"
        )
        return np.array(weights)

    def _pool(self, seed: int, size: int, family: str | None) -> list[OneOrder]:
        """Problems to train on; those of one family are fewer."""
        if (seed, family) not in self.pools:
            count = size if family is None else max(8, round(OWN_POOL * size))
            drawn = training_problems(seed, count, family)
            self.pools[seed, family] = [
                OneOrder(SearchSpace(p), self.policy) for p in drawn
            ]
        return self.pools[seed, family]

    def _evaluate(
        self,
        part: str,
        order: str,
        seed: int,
        budget: float,
        weights: Mapping[str, FloatArray],
    ) -> None:
        """Adds the row of a part, with the weights for each family, unless it is there."""
        if self.find(part, order, seed, budget) is not None:
            return
        begin = time.thread_time()
        entries = self._study_problems(part)
        if part not in self.decoders:
            spaces = [SearchSpace(entry.problem) for entry in entries]
            self.decoders[part] = [OneOrder(space, self.policy) for space in spaces]
        given = [weights[entry.family] for entry in entries]
        entrants = list(zip(self.decoders[part], given, strict=True))
        found = {
            "one": [round_sig(one.one(order, w)) for one, w in entrants],
            "best_size": [round_sig(one.best_size(order, w)) for one, w in entrants],
        }
        self._add(
            part, order, seed, budget, found | {"seconds": time.thread_time() - begin}
        )

    def _study_problems(self, part: str) -> list[StudyProblem]:
        if part not in self.parts:
            self.say(f"{part}: drawing problems")
            self.parts[part] = study_problems(part)
        return self.parts[part]

    def _problems(self, part: str) -> None:
        """The row that describes a part's problems."""
        if self.find(part, "", 0, 0) is not None:
            return
        begin = time.thread_time()
        entries = [
            described(entry, self.policy) for entry in self._study_problems(part)
        ]
        self._add(
            part, "", 0, 0, {"problems": entries, "seconds": time.thread_time() - begin}
        )


def study_orders(
    folder: str | Path,
    *,
    orders: str = "",
    seeds: int = 3,
    generations: int = 90,
    parts: Sequence[str] = (SEEN, HELD_OUT),
    run: bool = True,
    progress: Say = lambda line: None,
) -> None:
    """Runs what is missing of the study, and writes its tables and its picture.

    Args:
        folder: the folder of rows and reports; rows that are there are not run again.
        orders: traversal orders, separated by commas; all by default.
        seeds: trainings of each order.
        generations: the number of generations of each training.
        parts: problems to evaluate on.
        run: whether anything is run; otherwise what is there is reported.
        progress: called with a line of progress.

    Raises:
        InputError: an unknown order or part, or nothing to report.
        MismatchError: rows are of a policy with other features.
    """
    plan = Plan(orders_of(orders), tuple(range(seeds)), generations, tuple(parts))
    work = Study(Path(folder), progress)
    if run:
        work.run(plan)
    complete = count_parts(work.rows, plan.generations)
    files = written(work.folder)
    write_text(files["md"], report(complete))
    write_text(files["svg"], svg(picture(complete)))
    for path in files.values():
        progress(f"{path}: written")


def described(entry: StudyProblem, policy: Any) -> dict[str, Any]:
    """What a row says of a problem."""
    one = OneOrder(SearchSpace(entry.problem), policy)
    features = graph_features(one.fixed.graph)
    return {
        "name": entry.problem.name,
        "family": entry.family,
        "cluster": entry.cluster,
        "digest": compute_digest(entry.problem),
        "features": {name: round_sig(value) for name, value in features.items()},
        "auto": round_sig(one.fixed.greedy()[0].score),
    }


def round_sig(value: float, digits: int = 6) -> float:
    """``value`` to so many significant digits, to keep rows short."""
    return float(f"{value:.{digits}g}")


def orders_of(text: str) -> tuple[str, ...]:
    """Comma-separated orders; all for nothing."""
    return tuple(name for name in text.split(",") if name) or STUDIED
