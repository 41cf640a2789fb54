"""Best known step times: the minimum over all rows of all runs, and a file that keeps it.

A problem is told by its key and its digest, so that a figure of a problem that has changed since
is never compared with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from gnnplace.bench.rows import ruled
from gnnplace.files import Schema, parse, read_json, write_text

ProblemId = tuple[str, str]
RUN_SUFFIX = "-run"  # of the digest of a problem whose placements are executed


class BestKnown(Schema):
    """The shortest step that anybody found for a problem.

    Attributes:
        step_time: predicted seconds.
        digest: the digest of the problem.
        placer: who found it.
        budget: seconds that it had.
        seed: that it ran with.
        commit: the commit of the code.
    """

    step_time: Annotated[float, Field(gt=0)]
    digest: str
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
    """Key and digest of a row's problem; rows of problems that could not be made have no digest."""
    return row["problem"], row.get("digest", "")


def was_run(problem: ProblemId) -> bool:
    """Whether step times of the problem are of runs, which belong to one machine and day."""
    return problem[1].endswith(RUN_SUFFIX)


def read_best_known(path: str | Path) -> dict[ProblemId, BestKnown]:
    """Reads a file; a missing one is empty.

    Raises:
        FormatError: naming the file and the key path.
    """
    if not Path(path).is_file():
        return {}
    problems = parse(BestKnownFile, read_json(path), str(path)).problems
    known = (best.model_copy(update={"digest": ruled(best.digest)}) for best in problems.values())
    return {(key, best.digest): best for key, best in zip(problems, known, strict=True)}


def merged(
    known: Mapping[ProblemId, BestKnown], rows: Iterable[Mapping[str, Any]]
) -> dict[ProblemId, BestKnown]:
    """What is known with what rows found; the first of equals stays."""
    result = dict(known)
    for row in rows:
        key = problem_id(row)
        if row["feasible"] and (key not in result or row["step_time"] < result[key].step_time):
            taken = {k: row[k] for k in ("step_time", "placer", "budget", "seed", "commit")}
            result[key] = BestKnown(digest=key[1], **taken)
    return result


def write_best_known(path: str | Path, known: Mapping[ProblemId, BestKnown]) -> None:
    """Writes a file atomically, a problem a line; of two problems of one key the last given stays.

    Raises:
        InputError: it cannot be written.
    """
    entries = {key: best.model_dump_json() for (key, _), best in known.items()}
    lines = [f"{_quoted(key)}: {entries[key]}" for key in sorted(entries)]
    body = ",\n".join(lines)
    write_text(
        path, f'{{"format": "gnnplace-best-known", "version": 1, "problems": {{\n{body}\n}}}}\n'
    )


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
