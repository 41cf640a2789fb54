"""Standings: every placer and budget against the best known, the portfolio and a rival.

For problem p let b be the best known step time, h that of the heuristics' portfolio (one
construction), t that of the placer (geometric mean over seeds).

* **ratio**: geometric mean of t / b.
* **gap closed**: mean of (h - t) / (h - b): 0 like the portfolio, 1 like the best known, below 0 if
  worse. Where h is within ``TIE`` of b the problem says nothing: it is counted apart.
* **gap closed, pooled**: sum of log(h / t) over sum of log(h / b) of the same problems. One problem
  with a tiny gap can ruin the mean; it can't ruin this.
* **wins, losses, ties** against a rival at the same budget: t shorter or longer than the rival's by
  more than ``TIE``. Who finds nothing feasible where the other does loses.

Problems on which a placer finds nothing feasible are in no mean of its; they are counted.

Best known step times: the minimum over all rows of all runs, and a file that keeps it.

A problem is told by its key and its digest, so that a figure of a problem that has changed since
is never compared with.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from gnnplace.bench.rows import DIGEST
from gnnplace.bench.statistics import Interval, geometric_interval, mean_interval
from gnnplace.files import Schema, parse, read_json, write_text

ProblemId = tuple[str, str]
# The suffix of the digest of a problem whose placements are executed.
RUN_SUFFIX = "-run"


class BestKnown(Schema):
    """The shortest step that anybody found for a problem.

    Attributes:
        step_time: Predicted seconds.
        digest: The digest of the problem.
        placer: The placer that found it.
        budget: Seconds that it had.
        seed: The seed that it ran with.
        commit: The commit of the code.
    """

    step_time: Annotated[float, Field(gt=0)]
    digest: Annotated[str, Field(pattern=DIGEST)]
    placer: str
    budget: float
    seed: int
    commit: str


class BestKnownFile(Schema):
    """The keys of a file of best known step times; ``problems`` by key."""

    format: Literal["gnnplace-best-known"]
    version: Literal[1]
    problems: dict[str, BestKnown]


def problem_id(row: Mapping[str, Any]) -> ProblemId:
    """Return key and digest of a row's problem.

    Rows of problems that could not be made have an empty digest.
    """
    return row["problem"], row.get("digest", "")


def was_run(problem: ProblemId) -> bool:
    """Return whether step times are of runs, which are valid for one machine and day only."""
    return problem[1].endswith(RUN_SUFFIX)


def read_best_known(path: str | Path) -> dict[ProblemId, BestKnown]:
    """Read a file; a missing one is empty.

    Raises:
        FormatError: The file is malformed; the message names it and the key path.
    """
    if not Path(path).is_file():
        return {}
    problems = parse(BestKnownFile, read_json(path), str(path)).problems
    return {(key, best.digest): best for key, best in problems.items()}


def merge_best_known(
    known: Mapping[ProblemId, BestKnown], rows: Iterable[Mapping[str, Any]]
) -> dict[ProblemId, BestKnown]:
    """Return the best known step times after rows are added; the first of equals stays."""
    result = dict(known)
    for row in rows:
        key = problem_id(row)
        if row["feasible"] and (
            key not in result or row["step_time"] < result[key].step_time
        ):
            taken = {k: row[k] for k in ("step_time", "placer", "budget", "seed")}
            result[key] = BestKnown(digest=key[1], commit=row["commit"] or "", **taken)
    return result


def write_best_known(path: str | Path, known: Mapping[ProblemId, BestKnown]) -> None:
    """Write a file atomically, a problem a line; of two problems of one key the last given stays.

    Raises:
        InputError: The file cannot be written.
    """
    entries = {key: best.model_dump_json() for (key, _), best in known.items()}
    lines = [
        f"{json.dumps(key, ensure_ascii=False)}: {entries[key]}"
        for key in sorted(entries)
    ]
    body = ",\n".join(lines)
    write_text(
        path,
        f'{{"format": "gnnplace-best-known", "version": 1, "problems": {{\n{body}\n}}}}\n',
    )


def highest_bounds(rows: Iterable[Mapping[str, Any]]) -> dict[ProblemId, float]:
    """Return the highest lower bound of each problem that some row has one for, in seconds.

    Those of ``exact`` are left out: what it proves holds for its model of a step alone.
    """
    bounds: dict[ProblemId, float] = {}
    for row in rows:
        if (
            row["feasible"]
            and row.get("lower_bound")
            and not row["placer"].startswith("exact")
        ):
            problem = problem_id(row)
            bounds[problem] = max(bounds.get(problem, 0.0), row["lower_bound"])
    return bounds


def is_closed(step_time: float, bound: float) -> bool:
    """Return whether a step is so near to the lower bound that its problem counts as solved."""
    return step_time <= (1 + CLOSED) * bound


CLOSED = 0.01  # a best known step within this of its bound makes a problem easy
TIE = 0.01
PORTFOLIO = ("portfolio", 0.0)
RIVAL = "annealing"
Entrant = tuple[str, float]  # Placer and budget.
Times = dict[ProblemId, float]


@dataclass(frozen=True)
class Standing:
    """The result of a placer with a budget.

    Attributes:
        placer: Its name.
        budget: Seconds that it had.
        seconds: Mean seconds that it took.
        ratio: The ratio over the best known.
        closed: Gap closed, over problems with a gap.
        pooled: Gap closed, pooled; nan without problems with a gap.
        ties_apart: Problems without a gap.
        wins: Problems won against the rival.
        losses: Problems lost.
        ties: Problems neither won nor lost.
        rows: Cells.
        infeasible: Cells without a feasible placement.
    """

    placer: str
    budget: float
    seconds: float
    ratio: Interval | None
    closed: Interval | None
    pooled: float
    ties_apart: int
    wins: int
    losses: int
    ties: int
    rows: int
    infeasible: int


def standings(
    rows: Iterable[Mapping[str, Any]],
    best: Mapping[ProblemId, BestKnown],
    rival: str = RIVAL,
) -> list[Standing]:
    """Return standings of all placers and budgets among ``rows``, by budget, the best ratio first.

    Args:
        rows: Cells, of any number of files.
        best: Best known step times; at least those of the rows.
        rival: The placer that wins and losses are counted against.
    """
    cells: dict[Entrant, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        cells[row["placer"], row["budget"]].append(row)
    times = {
        entrant: step_times(entrant_rows) for entrant, entrant_rows in cells.items()
    }
    tried = {
        entrant: {problem_id(row) for row in entrant_rows}
        for entrant, entrant_rows in cells.items()
    }
    base = times.get(PORTFOLIO, {})
    result = []
    for entrant, entrant_rows in cells.items():
        rival_entrant = (rival, entrant[1])
        both = tried[entrant] & tried.get(rival_entrant, set())
        wins, losses, ties = _versus(times[entrant], times.get(rival_entrant, {}), both)
        step_time = times[entrant]
        best_time = {p: best[p].step_time for p in step_time}
        shared = [p for p in step_time if p in base]
        # A gap is there to close where the portfolio is more than TIE above the best known.
        open_ = [p for p in shared if base[p] > (1 + TIE) * best_time[p]]
        closed = []
        for p in open_:
            open_gap = base[p] - best_time[p]
            closed.append((base[p] - step_time[p]) / open_gap)
        gained = sum(np.log(base[p] / step_time[p]) for p in open_)
        gap = sum(np.log(base[p] / best_time[p]) for p in open_)
        result.append(
            Standing(
                *entrant,
                seconds=float(np.mean([row["seconds"] for row in entrant_rows])),
                ratio=geometric_interval(
                    [step_time[p] / best_time[p] for p in step_time]
                ),
                closed=mean_interval(closed),
                pooled=float(gained / gap) if open_ else float("nan"),
                ties_apart=len(shared) - len(open_),
                wins=wins,
                losses=losses,
                ties=ties,
                rows=len(entrant_rows),
                infeasible=sum(not row["feasible"] for row in entrant_rows),
            )
        )

    def precedence(standing: Standing) -> tuple[float, float, str]:
        ratio = standing.ratio.mean if standing.ratio else np.inf
        return standing.budget, ratio, standing.placer

    return sorted(result, key=precedence)


def step_times(rows: Iterable[Mapping[str, Any]]) -> Times:
    """Return, by problem, the geometric mean step time over the seeds that found something."""
    seconds: dict[ProblemId, list[float]] = defaultdict(list)
    for row in rows:
        if row["feasible"]:
            seconds[problem_id(row)].append(row["step_time"])
    means = {}
    for problem, values in seconds.items():
        log_mean = np.mean(np.log(values))
        means[problem] = float(np.exp(log_mean))
    return means


def _versus(
    mine: Times, rivals: Times, both: Iterable[ProblemId]
) -> tuple[int, int, int]:
    """Return wins, losses and ties on the problems that both tried."""
    wins = 0
    losses = 0
    ties = 0
    for problem in both:
        ours = mine.get(problem, np.inf)
        theirs = rivals.get(problem, np.inf)
        if ours < theirs / (1 + TIE):
            wins += 1
        elif theirs < ours / (1 + TIE):
            losses += 1
        else:
            ties += 1
    return wins, losses, ties
