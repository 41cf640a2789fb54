"""A placement or a plan as a table by module: a file to read (.md) or to work with (.csv)."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import numpy as np

from gnnplace.errors import InputError
from gnnplace.files import write_text
from gnnplace.plans.plan import Plan
from gnnplace.problem import Problem
from gnnplace.problem.placement import Placement
from gnnplace.report.explanation.modules import module_rows

SUFFIXES = (".md", ".csv")
ALL = 10**9  # rows
Rows = list[list[str]]


def check_table(path: str | None) -> None:
    """Refuses a file that is neither Markdown nor CSV; None is none.

    Raises:
        InputError: naming what may be.
    """
    if path is not None and Path(path).suffix not in SUFFIXES:
        raise InputError(f"table {path!r}: name a file that ends in .md or .csv")


def placement_rows(problem: Problem, placement: Placement) -> tuple[list[str], Rows]:
    """Headings, and a row for every module on each device it has ops on, as the step needs them.

    Seconds are those of its ops there, bytes of their state.
    """
    labels, row = module_rows(problem, ALL)
    device = placement.device.astype(np.int64)
    seconds = problem.times[np.arange(problem.num_ops), device]
    key = row * problem.num_devices + device
    found, where = np.unique(key, return_inverse=True)
    ops = np.bincount(where.ravel())
    spent = np.bincount(where.ravel(), seconds)
    state = np.bincount(where.ravel(), problem.state)
    names = [one.name for one in problem.cluster.devices]
    rows = [
        [labels[k // len(names)], names[k % len(names)], str(count), f"{time:.6g}", f"{size:.0f}"]
        for k, count, time, size in zip(found.tolist(), ops, spent, state, strict=True)
    ]
    return ["module", "device", "ops", "seconds", "bytes of state"], rows


def plan_rows(plan: Plan) -> tuple[list[str], Rows]:
    """Headings, and a row for every module in each stage that has some of it."""
    rows = []
    for number, stage in enumerate(plan.file.stages):
        devices = " ".join(name for shards in stage.rows for name in shards)
        mesh = f"{len(stage.rows)} x {len(stage.rows[0])}"
        for module in stage.modules:
            again = "yes" if module in stage.recompute.modules else "no"
            rows.append([module, str(number), devices, mesh, str(stage.zero), again])
    return ["module", "stage", "devices", "replicas x shards", "ZeRO", "recomputed"], rows


def moved_between(before: Plan, after: Plan) -> dict[str, tuple[str, str]]:
    """Where each module is in two plans of one model, of those that are not alike in both."""

    def places(plan: Plan) -> dict[str, str]:
        found: dict[str, str] = {}
        for module, _, devices, mesh, zero, again in plan_rows(plan)[1]:
            more = f", ZeRO {zero}" * (zero != "0") + ", recomputed" * (again == "yes")
            here = f"{devices} ({mesh}{more})"
            found[module] = f"{found[module]}, {here}" if module in found else here
        return found

    one, other = places(before), places(after)
    return {m: (one[m], other[m]) for m in one if one[m] != other.get(m, one[m])}


def write_table(path: str | Path, headings: Sequence[str], rows: Rows) -> None:
    """Writes a table, whole or not at all.

    Raises:
        InputError: neither .md nor .csv, or the file cannot be written.
    """
    check_table(str(path))
    write_text(path, _csv(headings, rows) if Path(path).suffix == ".csv" else _md(headings, rows))


def _csv(headings: Sequence[str], rows: Rows) -> str:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(rows)
    return text.getvalue()


def _md(headings: Sequence[str], rows: Rows) -> str:
    lines = [list(headings), ["---"] * len(headings), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)
