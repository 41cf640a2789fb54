"""``gnnplace demo``: the whole road on one model, in under two minutes on two CPU cores."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jsonargparse import Namespace

from gnnplace import api
from gnnplace.commands import (
    console,
    eager_line,
    open_store,
    options_of,
    say,
    say_kept,
    summary_lines,
)
from gnnplace.errors import GnnplaceError, InputError
from gnnplace.measurements import MeasurementStore
from gnnplace.placers import Result
from gnnplace.problem import Problem, write_problem
from gnnplace.report import (
    Row,
    Timeline,
    comparison_table,
    from_execution,
    from_simulation,
    make_row,
    with_best_bound,
    write_page,
    write_trace,
)
from gnnplace.tracing import Program

EXECUTED = ("single", "expert", "contiguous", "heft-contention", "learned", "best")


@dataclass(frozen=True)
class Road:
    """What every station of the demo needs."""

    args: Namespace
    options: api.CaptureOptions
    program: Program
    problem: Problem
    store: MeasurementStore | None


def demo(args: Namespace) -> int:
    """Captures, profiles, places, executes, verifies, prints one table, writes the report.

    Returns:
        0, or 1 if an execution computed something else than one device.
    """
    begin, folder = time.perf_counter(), output_folder(args.output)
    store = open_store(args.store)
    options, out = options_of(args), console()
    say(f"capturing the training step of {args.model}")
    program = api.capture(args.model, options=options)
    say(f"captured {len(program.ops)} ops; profiling on {args.cluster}")
    problem = api.profile(program, args.cluster, options=options, progress=say)
    road = Road(args, options, program, problem, store)
    say("compiling the simulator and the placers (once; cached on disk)")
    api.warm()
    results = api.compare(problem, budget=args.budget, seed=args.seed, progress=say)
    runs = _execute_all(road, results)
    rows = with_best_bound([_row(result, runs) for result in results])
    out.print(comparison_table(rows, _title(road)))
    for line in [*summary_lines(rows), *_eager_lines(road)]:
        out.print(line, soft_wrap=True)
    _write(folder, road, results, runs, rows)
    took = time.perf_counter() - begin
    out.print(f"wrote {folder}/report.html and {folder}/trace.json (open it in ui.perfetto.dev)")
    out.print(f"done in {took:.0f} s")
    return 0 if all(run.verification.passed for run in runs.values()) else 1


def output_folder(output: str) -> Path:
    """Makes a folder for what a command writes.

    Raises:
        InputError: it cannot be made.
    """
    folder = Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"output {output!r}: cannot be made: {error.strerror}") from None
    return folder


def _title(road: Road) -> str:
    return (
        f"{road.problem.name}: {len(road.program.ops)} captured ops, {road.problem.num_ops} after "
        f"grouping, on {road.args.cluster}"
    )


def _name(result: Result | tuple[str, GnnplaceError]) -> str:
    return result[0] if isinstance(result, tuple) else result.placer


def _execute_all(
    road: Road, results: Sequence[Result | tuple[str, GnnplaceError]]
) -> dict[str, api.Executed]:
    runs = {}
    for result in results:
        if isinstance(result, Result) and result.placer in EXECUTED:
            say(f"executing and verifying {result.placer}")
            runs[result.placer] = api.execute(
                road.program,
                road.problem,
                result.placement,
                options=road.options,
                steps=road.args.steps,
                mode=road.args.mode,
                transport=road.args.transport,
                timeout=road.args.timeout,
                store=road.store,
                source="demo",
                label=road.args.model,
            )
            say_kept(runs[result.placer])
    return runs


def _row(result: Result | tuple[str, GnnplaceError], runs: dict[str, api.Executed]) -> Row:
    run = runs.get(_name(result))
    return make_row(result, run.execution, run.verification) if run else make_row(result)


def _eager_lines(road: Road) -> list[str]:
    if road.options.forward_only or road.options.dtype != "float32":
        return []
    say("timing eager PyTorch on one core and on all")
    return [eager_line(api.eager_step_times(road.args.model, road.options))]


def _write(
    folder: Path,
    road: Road,
    results: Sequence[Result | tuple[str, GnnplaceError]],
    runs: dict[str, api.Executed],
    rows: list[Row],
) -> None:
    timelines: list[Timeline] = []
    shown = [r for name in ("best", "single") for r in results if _name(r) == name]
    for result in shown:
        if isinstance(result, Result):
            name = result.placer
            if name in runs:
                timelines.append(from_execution(road.problem, runs[name].execution, name))
            timelines.append(from_simulation(road.problem, result.simulation, name))
    best = next(r for r in shown if isinstance(r, Result))
    write_problem(folder / "problem.json", road.problem)
    write_page(folder / "report.html", road.problem, rows, timelines, best.placement.device)
    write_trace(folder / "trace.json", timelines)
