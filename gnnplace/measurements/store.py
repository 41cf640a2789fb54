"""`MeasurementStore`: keeps every measured step, gives them back, forgets on demand."""

from __future__ import annotations

import hashlib
import json
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Row, Select, delete, insert, select
from sqlalchemy.engine import Connection

from gnnplace.errors import InputError
from gnnplace.measurements.database import (
    OUTCOMES,
    PROBLEMS,
    RUNS,
    STEPS,
    Database,
    add_once,
)
from gnnplace.measurements.records import (
    FAILED,
    INTERRUPTED,
    OPEN,
    Outcome,
    RunRecord,
    StepRecord,
    StoredRun,
    fastest,
    format_instant,
    is_disturbed,
    medians,
    pack_json,
    unpack_json,
)

NO_STORE = "none"
"""Instead of a store's URL: nothing is kept."""
BATCH = 500
"""Names in one `IN (...)`; databases limit them."""


@dataclass(frozen=True)
class Selection:
    """Conditions on runs. None and False set no condition.

    Attributes:
        model: Only runs of this model.
        fingerprint: Only runs of a problem whose fingerprint begins so.
        mode: "measured" or "emulated".
        run: The beginning of a run's id.
        before: Begun before this instant, ISO 8601 in UTC.
        failed: Whether only runs that failed or never ended are selected.
    """

    model: str | None = None
    fingerprint: str | None = None
    mode: str | None = None
    run: str | None = None
    before: str | None = None
    failed: bool = False

    def applied(self, query: Select[Any]) -> Select[Any]:
        """Return a query of runs joined with their outcomes, narrowed."""
        if self.model is not None:
            query = query.where(RUNS.c.model == self.model)
        if self.fingerprint is not None:
            query = query.where(
                RUNS.c.fingerprint.startswith(self.fingerprint, autoescape=True)
            )
        if self.mode is not None:
            query = query.where(RUNS.c.mode == self.mode)
        if self.run is not None:
            query = query.where(RUNS.c.id.startswith(self.run, autoescape=True))
        if self.before is not None:
            query = query.where(RUNS.c.began < self.before)
        if self.failed:
            bad = OUTCOMES.c.status.in_((FAILED, INTERRUPTED))
            query = query.where(bad | OUTCOMES.c.status.is_(None))
        return query


class MeasurementStore:
    """Runs and their steps in a database that several processes and machines may write to.

    Args:
        url: A path of a SQLite file, or a SQLAlchemy URL.

    Raises:
        InputError: the database cannot be opened, read or written; of any method.
    """

    def __init__(self, url: str | Path) -> None:
        if str(url) == NO_STORE:
            raise InputError(
                f"store {NO_STORE!r}: it means that nothing is kept; call open_store, or give "
                f"./{NO_STORE} for a file of that name"
            )
        self._database = Database(str(url))

    @property
    def url(self) -> str:
        """Return where the store is, without a password."""
        return self._database.shown

    def begin(self, run: RunRecord) -> None:
        """Keep a run that is about to start, and its problem."""
        text = json.dumps(
            run.problem, allow_nan=False, sort_keys=True, separators=(",", ":")
        )
        digest = hashlib.sha256(text.encode()).hexdigest()  # times and links included
        row = {
            **{key: getattr(run, key) for key in PLAIN},
            "problem": digest,
            "microbatches": int(run.problem.get("microbatches", 1)),
            "placer": run.placement.get("placer"),
            "placement": pack_json(run.placement),
            "machine": json.dumps(run.machine),
            "versions": json.dumps(run.versions),
        }
        problem = {
            "digest": digest,
            "fingerprint": run.fingerprint,
            "name": run.problem.get("name", ""),
            "data": pack_json(run.problem),
        }
        with self._database.writing() as connection:
            add_once(connection, PROBLEMS, problem)
            connection.execute(insert(RUNS), row)

    def add_steps(self, run: str, steps: Iterable[StepRecord]) -> None:
        """Keep steps of a run that has begun: all of them or none."""
        rows = [
            {
                "run": run,
                "step": step.step,
                "wall": step.wall,
                "virtual": step.virtual,
                "interrupted": step.interrupted,
                "timeline": step.timeline(),
            }
            for step in steps
        ]
        if rows:
            with self._database.writing() as connection:
                connection.execute(insert(STEPS), rows)

    def end(self, run: str, outcome: Outcome) -> None:
        """Keep how a run ended; a second outcome of one run is dropped."""
        row = {
            "run": run,
            **asdict(outcome),
            "ended": outcome.ended or format_instant(),
        }
        with self._database.writing() as connection:
            add_once(connection, OUTCOMES, row)

    def runs(
        self, selection: Selection | None = None, limit: int | None = None
    ) -> list[StoredRun]:
        """Run, the newest first."""
        query = (selection or Selection()).applied(
            select(RUNS, *OUTCOME_COLUMNS).outerjoin(
                OUTCOMES, OUTCOMES.c.run == RUNS.c.id
            )
        )
        query = query.order_by(RUNS.c.began.desc(), RUNS.c.id).limit(limit)
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
            times = _step_times(connection, [row.id for row in rows])
        return [_store_sample(row, times[row.id]) for row in rows]

    def steps(self, run: str) -> list[StepRecord]:
        """Return the steps of a run, in order."""
        query = select(STEPS).where(STEPS.c.run == run).order_by(STEPS.c.step)
        with self._database.reading() as connection:
            return [StepRecord.from_row(row) for row in connection.execute(query)]

    def problem(self, digest: str) -> object:
        """Return the data of a problem file, as a run was predicted with it.

        Raises:
            InputError: there is no such problem.
        """
        return self._pack_sample(
            select(PROBLEMS.c.data).where(PROBLEMS.c.digest == digest), digest
        )

    def placement(self, run: str) -> Any:
        """Return the data of a run's placement file.

        Raises:
            InputError: there is no such run.
        """
        return self._pack_sample(select(RUNS.c.placement).where(RUNS.c.id == run), run)

    def _pack_sample(self, query: Select[Any], key: str) -> object:
        with self._database.reading() as connection:
            data = connection.execute(query).scalar_one_or_none()
        if data is None:
            raise InputError(f"store {self.url!r}: has nothing by the name {key!r}")
        return unpack_json(data)

    def prune(self, selection: Selection, *, keep: int = 0) -> int:
        """Delete runs, their steps, and problems that no run is left of.

        Args:
            selection: Which runs are forgotten.
            keep: The newest of these stay.

        Returns:
            How many runs were forgotten.
        """
        names = [run.id for run in self.runs(selection)[keep:]]
        with self._database.writing() as connection:
            for part in _parts(names):
                connection.execute(delete(STEPS).where(STEPS.c.run.in_(part)))
                connection.execute(delete(OUTCOMES).where(OUTCOMES.c.run.in_(part)))
                connection.execute(delete(RUNS).where(RUNS.c.id.in_(part)))
            is_used = (
                select(RUNS.c.problem)
                .where(RUNS.c.problem == PROBLEMS.c.digest)
                .exists()
            )
            connection.execute(delete(PROBLEMS).where(~is_used))
        return len(names)


PLAIN = (
    "id",
    "began",
    "source",
    "model",
    "fingerprint",
    "predicted",
    "mode",
    "transport",
)
OUTCOME_COLUMNS = [
    OUTCOMES.c[key] for key in ("status", "error", "verified", "bitwise", "ended")
]


def store_url(url: str | None = None) -> str | None:
    """Return the URL or path of the store that measured steps are kept in.

    Args:
        url: What the user says, as with `--store`. If None or empty, `$GNNPLACE_STORE`, else
            `gnnplace/measurements.db` in `$XDG_DATA_HOME` (`~/.local/share`).

    Returns:
        None if that is `none`: nothing is kept.
    """
    named = url or os.environ.get("GNNPLACE_STORE")
    if named:
        if named == NO_STORE:
            return None
        return named
    home = os.environ.get("XDG_DATA_HOME")
    if home:
        folder = Path(home)
    else:
        folder = Path.home() / ".local" / "share"
    return str(folder / "gnnplace" / "measurements.db")


def open_store(url: str | None = None) -> MeasurementStore | None:
    """Open the store that `store_url` names; None if nothing is kept.

    Raises:
        InputError: It cannot be opened, or holds something else.
    """
    named = store_url(url)
    if named is None:
        return None
    return MeasurementStore(named)


def _parts(names: list[str]) -> list[list[str]]:
    return [names[i : i + BATCH] for i in range(0, len(names), BATCH)]


def _step_times(
    connection: Connection, runs: list[str]
) -> dict[str, list[tuple[float, float, bool]]]:
    times: dict[str, list[tuple[float, float, bool]]] = defaultdict(list)
    columns = (STEPS.c.run, STEPS.c.wall, STEPS.c.virtual, STEPS.c.interrupted)
    for part in _parts(runs):
        for row in connection.execute(select(*columns).where(STEPS.c.run.in_(part))):
            times[row.run].append((row.wall, row.virtual, row.interrupted))
    return times


def _store_sample(row: Row[Any], times: list[tuple[float, float, bool]]) -> StoredRun:
    (wall, virtual), (least_wall, least_virtual) = medians(times), fastest(times)
    outcome = Outcome(row.status, row.error, row.verified, row.bitwise, row.ended)
    return StoredRun(
        **{
            key: getattr(row, key)
            for key in (*PLAIN, "problem", "microbatches", "placer")
        },
        machine=json.loads(row.machine),
        versions=json.loads(row.versions),
        outcome=outcome if row.status else Outcome(OPEN),
        steps=len(times),
        wall=wall,
        virtual=virtual,
        disturbed=is_disturbed(times),
        fastest_wall=least_wall,
        fastest_virtual=least_virtual,
    )
