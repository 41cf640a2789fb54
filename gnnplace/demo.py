"""``gnnplace demo``: the whole road on one model, in under two minutes on two CPU cores."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from gnnplace import api
from gnnplace.commands import (
    console,
    open_store,
    options_of,
    say,
    say_kept,
    sizes_table,
    summary_lines,
)
from gnnplace.errors import GnnplaceError, InputError
from gnnplace.execute_command import eager_line
from gnnplace.measurements import MeasurementStore
from gnnplace.microbatch_search import AUTO, Size, choose, placing, search
from gnnplace.placement import Placement
from gnnplace.placers import Result
from gnnplace.problem import Problem, write_problem
from gnnplace.report import (
    Row,
    Timeline,
    comparison_table,
    from_execution,
    from_simulation,
    make_row,
    seconds_text,
    with_best_bound,
    write_page,
    write_trace,
)
from gnnplace.tracing import Program

EXECUTED = ("single", "expert", "contiguous", "heft-contention", "learned", "best")


@dataclass(frozen=True)
class Road:
    """What every station of the demo needs.

    Attributes:
        whole: the whole batch, where the number of micro-batches was searched for.
    """

    args: Namespace
    options: api.CaptureOptions
    program: Program
    problem: Problem
    store: MeasurementStore | None
    whole: Size | None = None


def demo(args: Namespace) -> int:
    """Captures, profiles, places, executes, verifies, prints one table, writes the report.

    Returns:
        0, or 1 if an execution computed something else than one device.
    """
    begin, folder = time.perf_counter(), output_folder(args.output)
    store = open_store(args.store)
    out = console()
    road = _searched(args, store) if args.microbatches == AUTO else _captured(args, store)
    problem = road.problem
    api.warm(progress=say)
    results = api.compare(problem, budget=args.budget, seed=args.seed, progress=say)
    runs = _execute_all(road, results)
    rows = with_best_bound([_row(result, runs) for result in results])
    out.print(comparison_table(rows, _title(road)))
    lines = [*summary_lines(rows), *_verdict(runs), *_whole_lines(road, runs)]
    for line in [*lines, *_eager_lines(road)]:
        out.print(line, soft_wrap=True)
    _write(folder, road, results, runs, rows)
    took = time.perf_counter() - begin
    out.print(f"wrote {folder}/report.html and {folder}/trace.json (open it in ui.perfetto.dev)")
    out.print(f"done in {took:.0f} s")
    return 0 if all(run.verification.passed for run in runs.values()) else 1


def _captured(args: Namespace, store: MeasurementStore | None) -> Road:
    options = options_of(args)
    say(f"capturing the training step of {args.model}")
    program = api.capture(args.model, options=options)
    say(f"captured {len(program.ops)} ops; profiling on {args.cluster}")
    problem = api.profile(program, args.cluster, options=options, progress=say)
    return Road(args, options, program, problem, store)


def _searched(args: Namespace, store: MeasurementStore | None) -> Road:
    """With the number of micro-batches whose best placement is predicted to be the fastest."""
    say(f"capturing and profiling the training step of {args.model} at every share of its batch")
    api.warm(["best"], progress=say)
    place = placing("best", args.budget, args.seed)
    sizes = search(args.model, args.cluster, options_of(args), place, say)
    chosen = choose(sizes)
    console().print(sizes_table(sizes, chosen))
    if chosen.program is None:
        raise InputError(f"model {args.model!r}: the demo needs a model, not a problem file")
    whole = sizes[0] if chosen.microbatches > 1 else None
    return Road(args, chosen.options, chosen.program, chosen.problem, store, whole)


def _verdict(runs: dict[str, api.Executed]) -> list[str]:
    """Says so if splitting turned out to be slower than one device, whatever was predicted."""
    times = {name: run.execution.step_time for name, run in runs.items()}
    if "best" not in times or times["best"] <= times.get("single", float("inf")):
        return []
    share = times["best"] / times["single"] - 1
    return [
        f"one device is best here, as run: the split that was predicted best is {share:.0%} slower"
    ]


def _whole_lines(road: Road, runs: dict[str, api.Executed]) -> list[str]:
    """One device with the whole batch: what micro-batches have to beat."""
    if road.whole is None or road.whole.program is None:
        return []
    say("executing the whole batch on one device")
    alone = api.place(road.whole.problem, placer="single", budget=0.0).placement
    run = _execute(replace(road, **_of(road.whole)), alone)
    line = f"one device, whole batch: {seconds_text(run.execution.step_time)}"
    if "best" in runs:
        gain = run.execution.step_time / runs["best"].execution.step_time
        line += f"; best with {road.problem.microbatches} micro-batches is {gain:.2f}x as fast"
    return [f"{line} ({run.verification.summary()})"]


def _of(size: Size) -> dict[str, Any]:
    return {"options": size.options, "program": size.program, "problem": size.problem}


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
            runs[result.placer] = _execute(road, result.placement)
    return runs


def _execute(road: Road, placement: Placement) -> api.Executed:
    run = api.execute(
        road.program,
        road.problem,
        placement,
        options=road.options,
        steps=road.args.steps,
        mode=road.args.mode,
        transport=road.args.transport,
        timeout=road.args.timeout,
        store=road.store,
        source="demo",
        label=road.args.model,
    )
    say_kept(run)
    return run


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
