"""Profiles the zoo's training steps on one GPU, keeps them as a data set, and runs them.

Of each model, number type and batch: op times by CUDA events between the ops of the step
(`gnnplace.costs.profiling`), the step as simulated from them on one GPU, and the same step
executed on it (CUDA events, numbers checked, the allocator's peak beside the predicted memory).
Written to `data_sets/gpu-KIND/`: one problem file each, `rows.jsonl`, a card with all rows, and
`ops.csv`, the ops of all steps as a table for `gnnplace profile --table`. A row that is there is
not made again (its ops come from the cache of measured times); a case that fails is a row. At the
end every model's ops are predicted from the table of the other models: the card tells how far off.

    python benchmarks/gpu.py [--device cuda:1] [--models mlp,gpt2] [--batches 1,4,16] [-o FOLDER]

`--device cpu:1` is a rehearsal on one CPU core.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gnnplace
from gnnplace.arrays import FloatArray
from gnnplace.costs.calibration import NINETY, with_rows
from gnnplace.costs.prediction import predict
from gnnplace.costs.profiling.description import describe
from gnnplace.costs.profiling.profiler import op_times
from gnnplace.costs.rows import Rows, join_rows, write_rows
from gnnplace.costs.tables import load_shipped_tables
from gnnplace.errors import GnnplaceError
from gnnplace.files import write_text
from gnnplace.problem import Problem, write_problem
from gnnplace.tracing.program.program import Program
from gnnplace.zoo.workload import default_batch, list_workload_names

DTYPES = "float32,bfloat16"
BATCHES = "1,4,16"
LEAST = 1e-7  # seconds: below it the clock ticked, and nothing was timed
CARD = """# Measured op times: {kind}

Training steps (forward, backward, SGD) of the package's zoo, every op measured on one device: the
median of several warm steps. {clock}

* **What**: one problem file a step (`gnnplace place NAME.json --cluster C ...` takes it); the
  device kind is `{kind}`, so that plans for several of them start from measured times. Views and
  chains of small ops are grouped; times of a group are sums of its ops'.
* **Machine**: {machine}; torch {torch}.
* **Made by** `python benchmarks/gpu.py --device {device}`; again on another device by the same.
* **Licence**: Apache-2.0, as the package. Random weights and inputs; no data of others is in it.
* **Known gaps**: one device of one kind, no links; the ops run one after the other with an event
  between them, so that launches which overlap with work in an eager step count in full.

*measured* is the step executed by the package on that device (median of {steps} steps), *simulated*
what its simulator makes of the op times; *peak* is what the device handed out at most, *predicted*
the simulator's peak.

| step | type | batch | ops | simulated | measured | off | peak | predicted | |
|---|---|---:|---:|---:|---:|---:|---:|---:|---|
"""


@dataclass(frozen=True)
class Case:
    """A training step to profile."""

    model: str
    dtype: str
    batch: int

    @property
    def name(self) -> str:
        """Of its problem file."""
        return f"{self.model}-{self.dtype}-{self.batch}"

    @property
    def workload(self) -> str:
        """As `gnnplace capture` takes it."""
        return f"{self.model}?batch={self.batch}"


def measured_rows(program: Program, seconds: FloatArray, kind: str) -> Rows:
    """What was measured of a program's ops, as rows of a table.

    On a GPU the median of its views, which launch nothing, is what two events take by themselves
    and comes off every op. An op of two kernels is split over them as the shipped tables would.

    Args:
        program: As it was measured.
        seconds: Of each op. [ops]
        kind: Of the device.
    """
    found = describe(program)
    kernel = np.asarray(seconds, dtype=np.float64)
    if kind != "cpu" and found.view.any():
        kernel = np.maximum(kernel - np.median(kernel[found.view]), 0.0)
    share = predict(found.rows, kind, load_shipped_tables()).seconds
    whole = np.bincount(found.owner, share, len(kernel))
    mine = kernel[found.owner] * share / np.maximum(whole[found.owner], 1e-30)
    rows = found.rows
    keep = mine > LEAST
    if kind != "cpu":
        keep &= ~found.view[found.owner]
    return Rows(rows.op, rows.dtype, rows.sizes, rows.bytes, mine).take(keep)


def merged_rows(tables: Iterable[Rows]) -> Rows:
    """One row an op and its sizes, with the median of its seconds."""
    rows = join_rows(tables)
    key = [
        rows.op,
        rows.dtype,
        *rows.sizes.T.astype(np.int64),
        rows.bytes.astype(np.int64),
    ]
    names = np.array(["|".join(map(str, parts)) for parts in zip(*key, strict=True)])
    _, first, number = np.unique(names, return_index=True, return_inverse=True)
    order = np.argsort(number, kind="stable")
    groups = np.split(
        rows.seconds[order], np.searchsorted(number[order], range(1, len(first)))
    )
    merged = rows.take(first)
    median = np.array([np.median(group) for group in groups])
    return Rows(merged.op, merged.dtype, merged.sizes, merged.bytes, median)


def main() -> None:
    """Profiles, runs, writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--device", default="cuda:1", help="cuda:1: one GPU; cpu:1: a rehearsal"
    )
    parser.add_argument("--models", default=",".join(list_workload_names()))
    parser.add_argument("--dtypes", default=DTYPES)
    parser.add_argument("--batches", default=BATCHES, help="times the usual batch")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument(
        "-o", "--output", default=None, help="folder; data_sets/gpu-KIND"
    )
    arguments = parser.parse_args()
    cluster = gnnplace.resolve_cluster(arguments.device)
    kind = cluster.kinds[0]
    folder = Path(arguments.output or f"data_sets/gpu-{kind}")
    folder.mkdir(parents=True, exist_ok=True)
    rows = read_rows(folder / "rows.jsonl")
    for case in cases(arguments):
        if case.name not in rows:
            rows[case.name] = row_of(case, arguments.device, folder, arguments.steps)
            lines = "".join(json.dumps(row) + "\n" for row in rows.values())
            write_text(folder / "rows.jsonl", lines)
            print(line(rows[case.name]), flush=True)
    tables = {
        case: ops_of(case, kind)
        for case in cases(arguments)
        if "error" not in rows[case.name]
    }
    if tables:
        write_rows(folder / "ops.csv", {kind: merged_rows(tables.values())})
    told = card(kind, arguments, list(rows.values())) + left_out(tables, kind)
    write_text(folder / "README.md", told)


def ops_of(case: Case, kind: str) -> Rows:
    """The ops of a step, as they were measured: from the cache, where they still are."""
    program = gnnplace.capture(
        case.workload, options=gnnplace.CaptureOptions(dtype=case.dtype)
    )
    return measured_rows(program, op_times(program, kind).seconds, kind)


def left_out(tables: dict[Case, Rows], kind: str) -> str:
    """Every model's ops predicted from the other models', beside what was measured."""
    lines = [
        "\n| model, its ops from the others' | ops | step off | op off, by time | within 90 % |"
    ]
    lines.append("|---|---:|---:|---:|---:|")
    for model in dict.fromkeys(case.model for case in tables):
        mine = [rows for case, rows in tables.items() if case.model == model]
        others = [rows for case, rows in tables.items() if case.model != model]
        if not others:
            return ""
        asked = merged_rows(mine)
        found = predict(
            asked, kind, with_rows(load_shipped_tables(), {kind: merged_rows(others)})
        )
        log = np.log(found.seconds / asked.seconds)
        step = found.seconds.sum() / asked.seconds.sum() - 1
        each = np.average(np.abs(np.expm1(log)), weights=asked.seconds)
        within = np.mean(np.abs(log) <= NINETY * found.error)
        lines.append(
            f"| {model} | {len(asked)} | {step:+.1%} | {each:.1%} | {within:.0%} |"
        )
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def cases(arguments: argparse.Namespace) -> Iterator[Case]:
    """All steps that are asked for."""
    for model in arguments.models.split(","):
        for dtype in arguments.dtypes.split(","):
            for factor in arguments.batches.split(","):
                yield Case(model, dtype, int(factor) * default_batch(model))


def read_rows(path: Path) -> dict[str, dict[str, Any]]:
    """Rows that were made before, by the name of their step."""
    if not path.exists():
        return {}
    found = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    return {row["step"]: row for row in found}


def row_of(case: Case, device: str, folder: Path, steps: int) -> dict[str, Any]:
    """Profiles and runs one step; writes its problem."""
    row = {"step": case.name, "type": case.dtype, "batch": case.batch}
    try:
        return row | measured(case, device, folder, steps)
    except (
        GnnplaceError,
        RuntimeError,
    ) as error:  # torch has RuntimeErrors for what it lacks
        return row | {"error": str(error).splitlines()[0]}


def measured(case: Case, device: str, folder: Path, steps: int) -> dict[str, Any]:
    """What a step came to."""
    options = gnnplace.CaptureOptions(dtype=case.dtype)
    program = gnnplace.capture(case.workload, options=options)
    problem = gnnplace.profile(program, device, options=options)
    write_problem(folder / f"{case.name}.json", problem)
    placement = gnnplace.place(problem, placer="single", budget=0).placement
    simulated = gnnplace.simulate(problem, placement)
    run = gnnplace.execute(
        program,
        problem,
        placement,
        options=options,
        run=gnnplace.ExecutionOptions(steps=steps, mode="measured"),
        record=gnnplace.RecordOptions(label=case.name),
    )
    return {
        "ops": problem.num_ops,
        "simulated": simulated.step_time,
        "measured": run.execution.step_time,
        "peak": run.execution.peak_memory.get(_device(problem)),
        "predicted_peak": float(simulated.peak_memory.max()),
        "verified": run.verification.passed,
        "bitwise": run.verification.bitwise,
    }


def _device(problem: Problem) -> str:
    return problem.cluster.devices[0].name


def card(kind: str, arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> str:
    """The data card with all rows."""
    clock = "CUDA events between the ops are the clock."
    if kind == "cpu":
        clock = "A rehearsal: the CPU time of one thread is the clock."
    about = {
        "kind": kind,
        "clock": clock,
        "torch": torch.__version__,
        "steps": arguments.steps,
    }
    head = CARD.format(**about, machine=platform.platform(), device=arguments.device)
    return head + "".join(f"{line(row)}\n" for row in rows)


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    cells = [row["step"], row["type"], str(row["batch"])]
    if "error" in row:
        return (
            "| "
            + " | ".join([*cells, *[""] * 6, row["error"].replace("|", "/")])
            + " |"
        )
    off = 100 * (row["simulated"] / row["measured"] - 1)
    peaks = (row["peak"], row["predicted_peak"])
    cells += [
        str(row["ops"]),
        *(f"{1e3 * row[key]:.2f} ms" for key in ("simulated", "measured")),
    ]
    cells += [
        f"{off:+.1f} %",
        *("-" if b is None else f"{b / 1e6:.0f} MB" for b in peaks),
    ]
    return (
        "| " + " | ".join([*cells, "" if row["verified"] else "NUMBERS DIFFER"]) + " |"
    )


if __name__ == "__main__":
    main()
