"""What each command does: calls the api, prints, writes files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jsonargparse import Namespace
from rich.console import Console
from rich.table import Table

from gnnplace import api
from gnnplace.cluster import Cluster
from gnnplace.errors import InputError
from gnnplace.files import write_json
from gnnplace.first_answer import first_answer, is_problem_file
from gnnplace.intervals import compare_intervals, interval_keys, interval_row, interval_table
from gnnplace.microbatch_search import AUTO, Place, Size, choose, placing, search
from gnnplace.placement import Placement, placement_to_data
from gnnplace.placers import Result
from gnnplace.problem import Problem, read_problem, write_problem
from gnnplace.report import (
    Row,
    bytes_text,
    comparison_table,
    from_simulation,
    make_row,
    seconds_text,
    simulation_table,
    with_best_bound,
    write_page,
    write_trace,
)
from gnnplace.warming import is_warm

if TYPE_CHECKING:
    from gnnplace.measurements import MeasurementStore

OPTIONS_KEY = "x-capture"
OPTIONS = ("optimizer", "dtype", "forward_only", "groups", "microbatches")


def console() -> Console:
    """Where tables go; wide when it is neither a terminal nor told ``COLUMNS``."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return Console(width=wide, highlight=False)


def say(line: str) -> None:
    """Progress, on stderr so that stdout stays clean."""
    sys.stderr.write(f"  {line}\n")
    sys.stderr.flush()


def options_of(args: Namespace) -> api.CaptureOptions:
    """The capture options among a command's arguments; with `auto` of the whole batch."""
    given = {key: getattr(args, key) for key in OPTIONS}
    given["microbatches"] = 1 if given["microbatches"] == AUTO else given["microbatches"]
    return api.CaptureOptions(**given)


def open_store(url: str | None) -> MeasurementStore | None:
    """The store of measurements that a command writes to, or None.

    Raises:
        InputError: the one that was asked for cannot be opened; of the default one it is only told.
    """
    from gnnplace.measurements import MeasurementStore, default_store

    if url == "none":
        return None
    if url is not None:
        return MeasurementStore(url)
    try:
        return MeasurementStore(default_store())
    except InputError as error:
        say(f"measurements are not kept: {error}")
        return None


def say_kept(run: api.Executed) -> None:
    """Says so if the store did not take everything."""
    if run.fault:
        say(f"measurements are not all kept: {run.fault}")


def correction(path: str | None) -> Callable[[Problem], Problem]:
    """What a calibration file makes of a problem; nothing without one.

    Raises:
        FormatError: naming the file, the key path and the fault.
    """
    if path is None:
        return lambda problem: problem
    from gnnplace.measurements.calibration import calibrated, read_calibration

    calibration, overlap = read_calibration(path)
    return lambda problem: calibrated(problem, calibration, overlap)


def check_output(path: str) -> None:
    """Complains before the work, not after it, when the output's folder does not exist.

    Raises:
        InputError: naming the folder.
    """
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise InputError(f"output {path!r}: the folder {str(folder)!r} does not exist")
    if Path(path).is_dir():
        raise InputError(f"output {path!r}: is a folder; name a file")


def capture(args: Namespace) -> int:
    """Writes a captured graph as a problem with estimated CPU times on one device."""
    check_output(args.output)
    options = options_of(args)
    program = api.capture(args.model, options=options, fake=args.fake)
    problem = api.estimated_problem(program, options)
    write_problem(args.output, problem)
    console().print(
        f"{program.name}: {len(program.ops)} ops captured, {problem.num_ops} after grouping, "
        f"{bytes_text(problem.state.sum())} of state; written to {args.output}"
    )
    return 0


def profile(args: Namespace) -> int:
    """Writes a profiled problem."""
    check_output(args.output)
    correct = correction(args.calibration)
    problem = api.profile(args.model, args.cluster, options=options_of(args), progress=say)
    problem = correct(problem)
    write_problem(args.output, problem)
    share = float(problem.estimated.mean())
    origin = "measured" if share == 0 else "estimated" if share == 1 else "partly estimated"
    single = np.where(np.isfinite(problem.times), problem.times, 0).sum(axis=0).min()
    console().print(
        f"{problem.name}: {problem.num_ops} ops, {seconds_text(float(single))} of work on one "
        f"device ({origin} times), {problem.num_devices} devices; written to {args.output}"
    )
    return 0


def place(args: Namespace) -> int:
    """Places a problem or a model and writes the placement."""
    check_output(args.output)
    correct = correction(args.calibration)
    given = (args.order, args.objective, args.checkpoint)
    place = placing(args.placer, args.budget, args.seed, *given, args.workers)
    if args.objective == api.THROUGHPUT:
        api.throughput_placer(args.placer, args.workers, args.order, args.checkpoint)
    else:
        api.make_placer(args.placer, args.order, args.checkpoint)
    if args.microbatches == AUTO:
        _check_auto(args.objective)
        api.warm([args.placer], progress=say)
        options, problem, result = _found_size(args, place, correct)
    else:
        options = options_of(args)
        with _meanwhile(args, options):
            problem = correct(api.read_or_profile(args.what, args.cluster, options, say))
            api.warm([args.placer], args.objective, say)
        result = place(problem)
    data = placement_to_data(result.placement, problem) | interval_keys(result)
    data |= options_entry(options)
    write_json(args.output, data)
    console().print(f"{result}; written to {args.output}", soft_wrap=True)
    return 0


def options_entry(options: api.CaptureOptions) -> dict[str, Any]:
    """What a placement's file says of how the model was captured."""
    return {OPTIONS_KEY: {key: getattr(options, key) for key in OPTIONS}}


def _meanwhile(args: Namespace, options: api.CaptureOptions) -> AbstractContextManager[None]:
    """A first answer for a problem file while kernels are compiled, if they have to be."""
    plain = args.objective == api.TIME and args.calibration is None
    if not plain or not is_problem_file(args.what) or is_warm([args.placer]):
        return nullcontext()
    extra = options_entry(options)
    return first_answer(args.what, args.cluster, options, args.output, extra)


def _check_auto(objective: str) -> None:
    if objective == api.THROUGHPUT:
        raise InputError(
            "--microbatches auto finds the shortest step; with --objective throughput give a number"
        )


def _found_size(
    args: Namespace, place: Place, correct: Callable[[Problem], Problem]
) -> tuple[api.CaptureOptions, Problem, Result]:
    """The best number of micro-batches and its placement; prints what each came to."""
    sizes = search(args.what, args.cluster, options_of(args), place, say, correct)
    chosen = choose(sizes)
    console().print(sizes_table(sizes, chosen))
    assert chosen.result is not None
    return chosen.options, chosen.problem, chosen.result


def sizes_table(sizes: Sequence[Size], chosen: Size) -> Table:
    """What every number of micro-batches came to."""
    table = Table("micro-batches", "work on one device", "step, predicted", "remarks")
    for size in sizes:
        found = "-" if size.result is None else seconds_text(size.result.step_time)
        remark = size.note or ("chosen" if size is chosen else "")
        table.add_row(str(size.microbatches), seconds_text(size.work), found, remark)
    return table


def simulate(args: Namespace) -> int:
    """Predicts a placement's step; infeasible is an answer."""
    placement, problem = api.read_placement_for(args.placement, read_problem(args.problem))
    simulation = api.simulate(problem, placement)
    finite = np.isfinite(simulation.step_time)
    if args.json:
        names = [device.name for device in problem.cluster.devices]
        answer = {
            "step_time": simulation.step_time if finite else None,
            "peak_memory": dict(zip(names, simulation.peak_memory.tolist(), strict=True)),
            "feasible": simulation.feasible,
        }
        sys.stdout.write(json.dumps(answer) + "\n")
        return 0
    out = console()
    out.print(simulation_table(problem, simulation))
    out.print(f"predicted step time: {seconds_text(simulation.step_time) if finite else 'none'}")
    for fault in simulation.faults:
        out.print(f"infeasible: {fault}", soft_wrap=True)
    return 0


def compare(args: Namespace) -> int:
    """Every placer on one problem."""
    problem = api.read_or_profile(args.what, args.cluster, options_of(args), say)
    names = [name for name in args.placers.split(",") if name] or None
    api.warm(names, progress=say)
    if args.objective != api.TIME:
        return _compare_intervals(problem, names, args)
    results = api.compare(problem, names, budget=args.budget, seed=args.seed, progress=say)
    rows = with_best_bound([make_row(result) for result in results])
    if args.json:
        answer = {"problem": problem.name, "rows": [row.data() for row in rows]}
        sys.stdout.write(json.dumps(answer) + "\n")
        return 0
    out = console()
    out.print(comparison_table(rows, f"{problem.name} on {problem.num_devices} devices"))
    for line in summary_lines(rows):
        out.print(line, soft_wrap=True)
    return 0


def _compare_intervals(problem: Problem, names: list[str] | None, args: Namespace) -> int:
    """The same for the throughput objective."""
    if args.objective != api.THROUGHPUT:
        raise InputError(f"objective {args.objective!r}: must be 'time' or 'throughput'")
    api.warm(["best"], api.THROUGHPUT, say)
    search = {"budget": args.budget, "seed": args.seed, "progress": say}
    results = compare_intervals(problem, names, **search)
    if args.json:
        rows = [interval_row(result) for result in results]
        sys.stdout.write(json.dumps({"problem": problem.name, "rows": rows}) + "\n")
        return 0
    console().print(interval_table(results, f"{problem.name} on {problem.num_devices} devices"))
    return 0


def summary_lines(rows: Sequence[Row]) -> list[str]:
    """Lower bound, and what the best placement leaves open."""
    placed = [row for row in rows if row.predicted is not None]
    if not placed:
        return ["no placer found a feasible placement"]
    best = min(placed, key=lambda row: row.predicted or 0.0)
    lines = [
        f"lower bound {seconds_text(best.lower_bound)} (predicted, from the same op times): no "
        f"placement can be below it; the best here, {best.placer}, is within {best.gap or 0.0:.1%}"
    ]
    single = next((row for row in placed if row.placer == "single"), None)
    if single and single.predicted and best.predicted and best.predicted > 0.97 * single.predicted:
        lines.append("one device is best here: splitting gains less than 3 % (predicted)")
    return lines


def convert(args: Namespace) -> int:
    """Reads a public format."""
    check_output(args.output)
    cluster: Cluster | None = api.resolve_cluster(args.cluster) if args.cluster else None
    problem = api.convert(args.file, args.format, cluster)
    write_problem(args.output, problem)
    console().print(
        f"{problem.name}: {problem.num_ops} ops, {problem.graph.num_tensors} tensors, "
        f"{problem.num_devices} devices; written to {args.output}"
    )
    return 0


def report(args: Namespace) -> int:
    """A page about placements of one problem."""
    check_output(args.output)
    problem: Problem = read_problem(args.problem)
    base, placements = problem, []
    for path in args.placements:
        placement, problem = api.read_placement_for(path, base)
        placements.append(placement)
    simulations = [api.simulate(problem, placement) for placement in placements]
    names = _unique(
        [p.placer or Path(f).stem for p, f in zip(placements, args.placements, strict=True)]
    )
    timelines = [
        from_simulation(problem, s, name) for s, name in zip(simulations, names, strict=True)
    ]
    rows = [_row(p, s, n) for p, s, n in zip(placements, simulations, names, strict=True)]
    write_page(args.output, problem, rows, timelines, placements[0].device)
    if args.trace:
        write_trace(args.trace, timelines)
    console().print(f"written to {args.output}")
    return 0


def _unique(names: list[str]) -> list[str]:
    return [name if names.count(name) == 1 else f"{name} {i}" for i, name in enumerate(names, 1)]


def _row(placement: Placement, simulation: Any, name: str) -> Row:
    bound = placement.lower_bound
    gap = simulation.step_time / bound - 1 if bound else None
    return Row(
        placer=name,
        predicted=simulation.step_time if np.isfinite(simulation.step_time) else None,
        peak_memory=tuple(simulation.peak_memory.tolist()),
        lower_bound=bound,
        gap=gap,
        seconds=placement.seconds,
        error="; ".join(simulation.faults),
    )
