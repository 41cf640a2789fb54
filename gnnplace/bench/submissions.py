"""Submissions: rows of a method with their placements, which anybody can simulate anew.

A submission is a file of rows (JSON lines, ``.xz`` or not) that has a row for every cell: problems
that a method failed on are rows too. ``check_rows`` builds every problem from its suite, simulates
every placement, and refuses rows that are not what they say. ``compute_coverage`` counts problems,
seeds and budgets: what is incomplete is not ranked, and says why.

Placements are written by the numbers of ops and devices (``index_placement``), which takes a
tenth of a placement file.
"""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from gnnplace.bench.exposure import UNDECLARED, PlacerTraining
from gnnplace.bench.rows import SECONDS, get_budget_unit, identity, read_rows
from gnnplace.bench.suite import PLACE, ProblemEntry, SuiteFile, read_suite, suite_path
from gnnplace.errors import FormatError, InputError
from gnnplace.placers import parse_name
from gnnplace.placing import ROSTER
from gnnplace.policy import CARD, read_card
from gnnplace.problem import (
    Placement,
    Problem,
    compute_digest,
    placement_from_data,
    read_placement,
)
from gnnplace.simulation import simulate

REQUIRED = (
    "suite",
    "problem",
    "placer",
    "seed",
    "budget",
    "feasible",
    "seconds",
    "processor_seconds",
    "step_time",
    "machine",
    "by",
    "code",
    "parameters",
    "trained_on",
    "training_hours",
)
EXACT = 1e-9  # relative: the simulator's arithmetic is the same everywhere
COMPRESSED = ".xz"
Row = Mapping[str, Any]
Data = dict[str, Any]


def index_placement(placement: Placement) -> Data:
    """Return a placement by numbers: each op's device, and the ops of each device in order."""
    data: Data = {"device": placement.device.tolist()}
    if placement.sequence is not None:
        data["sequence"] = [ops.tolist() for ops in placement.sequence]
    return data


def read_row_placement(row: Row, problem: Problem, where: str) -> Placement:
    """Return the placement of a row, by numbers or as the content of a placement file.

    Raises:
        FormatError: It is malformed, or of another problem.
    """
    data = row["placement"]
    if not isinstance(data, dict) or "format" in data:
        return placement_from_data(data, problem, where)
    device = _read_whole_numbers(
        data.get("device"), problem.num_devices, f"{where}: placement.device"
    )
    if len(device) != problem.num_ops:
        raise FormatError(
            f"{where}: placement.device: has {len(device)} ops, the problem {problem.num_ops}"
        )
    if "sequence" not in data:
        return Placement(device)
    sequence = data["sequence"]
    if not isinstance(sequence, list) or len(sequence) != problem.num_devices:
        raise FormatError(
            f"{where}: placement.sequence: must list the ops of {problem.num_devices} devices"
        )
    parts = [
        _read_whole_numbers(ops, problem.num_ops, f"{where}: placement.sequence[{d}]")
        for d, ops in enumerate(sequence)
    ]
    for d, ops in enumerate(parts):
        if not np.array_equal(np.sort(ops), np.flatnonzero(device == d)):
            raise FormatError(
                f"{where}: placement.sequence[{d}]: its ops are not those that are on the device"
            )
    return Placement(device, tuple(parts))


def _read_whole_numbers(values: object, limit: int, where: str) -> np.ndarray[Any, Any]:
    """Return a list of whole numbers from 0 to below ``limit`` as an array."""
    is_list = isinstance(values, list)
    if not is_list or not all(type(v) is int and 0 <= v < limit for v in values):  # type: ignore[attr-defined]
        raise FormatError(
            f"{where}: must be a list of whole numbers from 0 to {limit - 1}"
        )
    return np.array(values, dtype=np.int32)


def read_submission(path: Path) -> list[Data]:
    """Read a file of rows, compressed if its name ends with ``.xz``.

    Raises:
        InputError: The file cannot be read.
        FormatError: A line is no row.
    """
    if path.suffix != COMPRESSED:
        return read_rows(path)
    try:
        text = lzma.decompress(path.read_bytes())
    except (OSError, lzma.LZMAError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    lines = text.decode().splitlines()
    rows = [json.loads(line) for line in lines]
    for number, row in enumerate(rows, 1):
        if (
            not isinstance(row, dict)
            or not {"problem", "placer", "seed", "budget"} <= row.keys()
        ):
            raise FormatError(
                f"{path}: line {number}: not a result row; mend or remove it"
            )
    return rows


def write_submission(path: Path, rows: Sequence[Row]) -> None:
    """Write a file of rows, compressed if its name ends with ``.xz``.

    Raises:
        InputError: It cannot be written.
    """
    text = "".join(
        json.dumps(row, allow_nan=False, separators=(",", ":")) + "\n" for row in rows
    )
    data = text.encode()
    if path.suffix == COMPRESSED:
        data = lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from None


@dataclass(frozen=True)
class Declaration:
    """A submitter's statement on the rows of a submission.

    Attributes:
        by: The author, and where a paper is.
        code: Where the code is; of the package's own placers its commit by default.
        training: Columns of a training card for a placer that has none by itself; None if there
            are none.
    """

    by: str
    code: str = ""
    training: Mapping[str, Any] | None = None


def make_declaration(*, by: str, code: str, card: str, untrained: bool) -> Declaration:
    """Return the declaration that a command line makes about rows.

    Args:
        by: The author.
        code: Where the code is.
        card: Folder of a training card; empty for none.
        untrained: Whether the placer was not trained.

    Raises:
        InputError: The folder has no card, or there are a card and no training.
    """
    if card and untrained:
        raise InputError("--card, --untrained: give one of them")
    training = None
    if untrained:
        training = PlacerTraining().columns() | {
            "seen": False,
            "seen_how": "",
            "seen_block": False,
        }
    if card:
        read = read_card(card)
        if read is None:
            raise InputError(f"--card {card!r}: the folder has no {CARD}")
        training = PlacerTraining((read,)).columns()
    return Declaration(by=by, code=code, training=training)


def pack_rows(path: Path, declaration: Declaration) -> list[Data]:
    """Return the rows of a run with ``--keep`` as they are submitted, the failed ones too.

    Raises:
        InputError: A feasible row has no kept placement, its suite is unknown, or nobody says where
            its placer's code is.
    """
    result = []
    for number, row in enumerate(read_rows(path), 1):
        position = f"{path}: line {number}"
        columns = {key: value for key, value in row.items() if key != "kept"}
        submitted = columns | {
            "by": declaration.by,
            "code": _code(row, declaration, position),
        }
        if (
            row.get("trained_on", UNDECLARED) == UNDECLARED
            and declaration.training is not None
        ):
            submitted |= declaration.training
        if row["feasible"] and "placement" not in row:
            if "kept" not in row:
                raise InputError(
                    f"{position}: {row['problem']}: no placement was kept; use --keep"
                )
            problem = load_row_problem(row, position)
            placement = read_placement(path.parent / "kept" / row["kept"], problem)
            submitted["placement"] = index_placement(placement)
        result.append(submitted)
    return result


def _code(row: Row, declaration: Declaration, where: str) -> str:
    """Return the place where the code of a row's placer is."""
    if declaration.code:
        return declaration.code
    if parse_name(row["placer"])[0] in ROSTER:
        return f"gnnplace@{row.get('commit') or 'unknown'}"
    raise InputError(
        f"{where}: placer {row['placer']!r}: say where its code is: --code URL"
    )


@cache
def find_suite(title: str) -> SuiteFile | None:
    """Return the suite of a title such as ``standard@1``; None if there is none of that version."""
    name, _, version = title.partition("@")
    path = suite_path(name)
    if path is None:
        return None
    suite = read_suite(path)
    if suite.version == int(version or 1):
        return suite
    return None


def load_row_problem(row: Row, where: str) -> Problem:
    """Return the problem that a row names, from its suite.

    Raises:
        InputError: There is no such suite of that version, or no such problem in it.
    """
    entry, folder = _find_entry(row, where)
    return _problem(entry.model_dump_json(), str(folder))


def _find_entry(row: Row, where: str) -> tuple[ProblemEntry, Path]:
    """Return the entry of a row's problem in its suite, and the suite's folder.

    Raises:
        InputError: There is no such suite of that version, or no such problem in it.
    """
    title = str(row["suite"])
    suite = find_suite(title)
    path = suite_path(title.partition("@")[0])
    if path is None:
        raise InputError(f"{where}: suite {title!r}: there is no such suite")
    if suite is None:
        taken = f"rows of {read_suite(path).title}, of kind place, are taken"
        raise InputError(f"{where}: suite {title!r}: {taken}")
    if suite.kind != PLACE:
        raise InputError(
            f"{where}: suite {title!r}: rows of kind {suite.kind} are not taken"
        )
    for entry in suite.problems:
        if entry.key == row["problem"]:
            return entry, path.parent
    raise InputError(
        f"{where}: problem {row['problem']!r}: {suite.title} has no such problem"
    )


@lru_cache(maxsize=2)
def _problem(entry: str, folder: str) -> Problem:
    return ProblemEntry.model_validate_json(entry).load(Path(folder))


def check_row(row: Row, where: str) -> None:
    """Check a submitted row: it must be complete, and its placement must take what it says.

    The digest must be the problem's. Costs that are computed when the problem is made differ in
    their last bits between processors (NumPy's exponentials have another rounding with AVX-512),
    and their digest with them. There another digest is accepted if the placement takes the row's
    step time, to `EXACT`.

    Raises:
        InputError: The row lacks something, or something is otherwise than it says.
        FormatError: The placement is malformed, or of another problem.
    """
    if missing := [key for key in REQUIRED if key not in row]:
        raise InputError(f"{where}: {missing[0]!r} is missing; `pack` writes it")
    if not row["feasible"]:
        if row["step_time"] is not None:
            raise InputError(
                f"{where}: an infeasible row has a step_time of {row['step_time']!r}"
            )
        return
    if "placement" not in row:
        raise InputError(f"{where}: 'placement' is missing; `pack` writes it")
    entry, folder = _find_entry(row, where)
    problem = _problem(entry.model_dump_json(), str(folder))
    is_same = compute_digest(problem) == row["digest"]
    if not is_same and not entry.is_computed:
        raise InputError(_other_digest(problem, row, where))
    simulation = simulate(problem, read_row_placement(row, problem, where))
    if simulation.faults:
        raise InputError(f"{where}: infeasible: {simulation.faults[0]}")
    if abs(simulation.step_time - row["step_time"]) <= EXACT * simulation.step_time:
        return
    if not is_same:
        raise InputError(_other_digest(problem, row, where))
    raise InputError(
        f"{where}: the step takes {simulation.step_time!r} s, the row says {row['step_time']!r}"
    )


def _other_digest(problem: Problem, row: Row, where: str) -> str:
    """Return the message for a row of another version of its problem."""
    return f"{where}: the problem's digest is {compute_digest(problem)}, the row's {row['digest']}"


def check_rows(rows: Sequence[Row], source: str) -> None:
    """Check every row of a submission, and that no cell has two.

    Raises:
        InputError, FormatError: See ``check_row``; or two rows of one cell.
    """
    keys = [(row["suite"], row.get("by"), *identity(row)) for row in rows]
    cells = Counter(keys)
    if repeated := [cell for cell, count in cells.items() if count > 1]:
        suite, _, problem, placer, seed, *_ = repeated[0]
        raise InputError(
            f"{source}: {cells[repeated[0]]} rows of one cell: {suite}, {problem}, {placer}, seed "
            f"{seed}; leave one"
        )

    def suite_and_problem(pair: tuple[int, Row]) -> tuple[str, str]:
        _, row = pair
        return row["suite"], row["problem"]

    for number, row in sorted(enumerate(rows, 1), key=suite_and_problem):
        check_row(row, f"{source}: line {number}")


def check_files(paths: Iterable[str | Path]) -> tuple[int, list[Coverage]]:
    """Check every row of files; return how many there are, and what each method covers.

    Raises:
        InputError, FormatError: A row is not what it says.
    """
    rows: list[Data] = []
    for path in map(Path, paths):
        submitted = read_submission(path)
        check_rows(submitted, str(path))
        rows += submitted
    return len(rows), compute_coverage(rows)


@dataclass(frozen=True)
class Coverage:
    """The part of a suite that the rows of one method with one budget cover.

    Attributes:
        placer: The method, with who submitted it.
        suite: Title of the suite.
        budget: Seconds or simulated steps that it had.
        unit: The unit of the budget.
        rows: Its rows.
        cells: Number of cells that a complete submission has.
        reasons: Why it is not ranked, the most telling first; none if it is.
    """

    placer: str
    suite: str
    budget: float
    unit: str
    rows: tuple[Row, ...]
    cells: int
    reasons: tuple[str, ...]

    @property
    def ranked(self) -> bool:
        """Return whether it is complete."""
        return not self.reasons

    def __str__(self) -> str:
        if self.unit == SECONDS:
            unit = "s"
        else:
            unit = self.unit
        text = f"{self.suite}: {self.placer}, {self.budget:g} {unit}"
        if self.ranked:
            return f"{text}: complete, {self.cells} cells"
        return f"{text}: not ranked: {'; '.join(self.reasons)}"


def method_name(row: Row) -> str:
    """Return a row's method as the leaderboard names it: its placer, and who submitted it."""
    by = row.get("by", "")
    if by and by != "gnnplace":
        return f"{row['placer']} ({by})"
    return str(row["placer"])


def compute_coverage(rows: Sequence[Row]) -> list[Coverage]:
    """Return how much of its suite each method with each budget covers."""
    groups: dict[tuple[str, str, float, str], list[Row]] = {}
    for row in rows:
        suite_title = str(row["suite"])
        key = (
            suite_title,
            method_name(row),
            float(row["budget"]),
            get_budget_unit(row),
        )
        groups.setdefault(key, []).append(row)
    result = []
    for (title, placer, budget, unit), members in groups.items():
        suite = find_suite(title)
        cells = 0
        if suite is None:
            reasons: tuple[str, ...] = (f"there is no suite {title}",)
        else:
            cells = len(suite.problems) * len(
                _seeds(suite, members[0]["placer"], budget)
            )
            reasons = tuple(_reasons(suite, members, budget, unit))
        result.append(
            Coverage(
                placer=placer,
                suite=title,
                budget=budget,
                unit=unit,
                rows=tuple(members),
                cells=cells,
                reasons=reasons,
            )
        )
    return result


def _seeds(suite: SuiteFile, placer: str, budget: float) -> Sequence[int]:
    """Return the seeds that a complete submission has: one without a budget, else the suite's."""
    method = suite.methods.get(placer)
    if budget == 0:
        return suite.seeds[:1]
    return (method.seeds if method else None) or suite.seeds


def _reasons(
    suite: SuiteFile, rows: Sequence[Row], budget: float, unit: str
) -> Iterator[str]:
    """Yield why rows of one method with one budget are not ranked."""
    seeds = _seeds(suite, rows[0]["placer"], budget)
    budgets = suite.budgets if unit == SECONDS else suite.steps
    if budget not in (0.0, *budgets):
        listed = ", ".join(f"{number:g}" for number in budgets) or "none"
        yield f"the budgets of {suite.title} are {listed} {unit}"
    cells = {(row["problem"], row["seed"]) for row in rows}
    missing = [
        (entry.key, seed)
        for entry in suite.problems
        for seed in seeds
        if (entry.key, seed) not in cells
    ]
    if missing:
        problems = {entry.key for entry in suite.problems} - {
            row["problem"] for row in rows
        }
        total = len(suite.problems) * len(seeds)
        text = f"{len(missing)} of {total} cells have no row"
        if problems:
            text += f": {len(problems)} of {len(suite.problems)} problems are missing"
        else:
            text += f", such as seed {missing[0][1]} of {missing[0][0]}"
        yield text
    unkept = sum("placement" not in row for row in rows if row["feasible"])
    if unkept:
        yield f"{unkept} of {len(rows)} rows keep no placement"
    if any(row.get("trained_on", []) == UNDECLARED for row in rows):
        yield "nothing says what it was trained on"
    if any(
        str(row.get("seen_how", "")).startswith("trained on problem") for row in rows
    ):
        yield "it was trained on problems of the suite"
