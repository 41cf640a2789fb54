"""``gnnplace place``: a device for every op and a sequence for every device.

``--device-map``: the answer of ``place`` as modules and devices, for accelerate.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import (
    check_output,
    console,
    correction,
    print_sections,
    say,
    say_idle,
)
from gnnplace.cli.options import (
    AUTO,
    capture_options,
    options_entry,
    placer_options,
    read_all_constraints,
)
from gnnplace.errors import GnnplaceError, InputError
from gnnplace.files import (
    is_written_in_place,
    pause_garbage_collection,
    read_json,
    read_text,
    write_json,
    write_text,
)
from gnnplace.placers import Result, SearchSpace
from gnnplace.problem import (
    CLUSTER_KEY,
    CONSTRAINTS_KEY,
    OPTIONS_KEY,
    Placement,
    Problem,
    placement_to_data,
    problem_to_data,
)
from gnnplace.report import check_table, describe, write_answer
from gnnplace.units import bytes_text

if TYPE_CHECKING:
    from gnnplace.explaining import Advice
    from gnnplace.placing import Size
    from gnnplace.tracing import Program


def check_device_map(args: Namespace) -> None:
    """Refuse, before the work, inputs that no device map can be made of.

    Raises:
        InputError: A problem file or micro-batches are given, or there is no such folder.
    """
    if args.device_map is None:
        return
    check_output(args.device_map)
    if gnnplace.is_problem_file(args.what):
        raise InputError(
            "--device-map: names modules; give the model, not its problem file"
        )
    if args.microbatches != 1:
        raise InputError(
            "--device-map: accelerate runs the batch as a whole; leave --microbatches out"
        )


def check_start(args: Namespace) -> None:
    """Refuse, before the work, options that a search cannot start from a placement with.

    Raises:
        InputError: The objective is not time, or `--max-devices` or `--microbatches auto` is given.
    """
    if args.objective != gnnplace.TIME:
        raise InputError(
            "--start: searches for --objective time start from it; leave it out"
        )
    if args.max_devices is not None:
        raise InputError(
            "--start: not with --max-devices; give a smaller --cluster instead"
        )
    if args.microbatches == AUTO:
        raise InputError(
            "--start: give the number of --microbatches that it was made with"
        )


def make_device_map(
    args: Namespace, program: Program | None, problem: Problem, placement: Placement
) -> dict[str, int | str] | None:
    """Return the device map of a placement, checked by running the model's own code.

    Returns None if no program is given, because then no device map is asked for.

    Raises:
        InputError: The placement splits a module; the message names it.
    """
    if program is None:
        return None
    device_map = gnnplace.device_map(program, problem, placement)
    unchecked = gnnplace.check_device_map(
        args.what, device_map, forward_only=args.forward_only
    )
    if unchecked:
        say(
            f"note: the device map was not checked by running the model's code: {unchecked}"
        )
    return device_map


ADVISING = 1.0  # seconds, at most, for what else is worth trying
LONG, MANY_OPS = 10.0, 20_000  # seconds of search, and ops, of which a line tells
LARGE_FILE = 2e7  # bytes that take more than a second to read


def run(args: Namespace) -> int:
    """Place a problem or a model and write the placement."""
    check_output(args.output, args.table, args.html, args.problem, args.trace)
    check_table(args.table)
    check_device_map(args)
    if args.start is not None:
        check_start(args)
    gnnplace.check_budget(args.budget)
    constraints = read_all_constraints(args)
    placer_settings = placer_options(args)
    # A wrong option is reported before the work.
    gnnplace.make_placer_for(args.objective, args.placer, **placer_settings)
    calibrated = correction(args.calibration)

    def correct(profiled: Problem) -> Problem:
        return gnnplace.limit_memory(calibrated(profiled), constraints)

    place = partial(
        gnnplace.place,
        placer=args.placer,
        budget=args.budget,
        seed=args.seed,
        objective=args.objective,
        constraints=gnnplace.Constraints(max_devices=constraints.max_devices),
        **placer_settings,
    )
    captured = capture_options(args, constraints=constraints.patterns)
    program: Program | None = None  # captured where a device map is made of it
    if args.device_map is not None:
        program = gnnplace.capture_for(args.what, args.cluster or AUTO, captured, say)
    options, problem, result = _place(args, captured, place, correct, program)
    mapped = make_device_map(args, program, problem, result.placement)
    data = placement_to_data(result.placement, problem) | result.get_file_keys()
    if gnnplace.is_problem_file(args.what) and options.constraints.together:
        # The fingerprint is the file's own: its groups are what they were.
        plain = gnnplace.read_on_cluster(args.what, args.cluster, options.microbatches)
        data["fingerprint"] = plain.fingerprint
    data |= {CONSTRAINTS_KEY: constraints.to_data()} if constraints else {}
    data |= {CLUSTER_KEY: args.cluster} if args.cluster and args.cluster != AUTO else {}
    if args.problem is not None:
        write_json(
            args.problem, problem_to_data(problem) | find_capture_entry(args, options)
        )
    write_json(args.output, data | find_capture_entry(args, options))
    write_answer(
        describe(result, problem=problem),
        table=args.table,
        page=args.html,
        trace=args.trace,
        chakra=args.chakra,
    )
    if mapped is not None:
        write_text(args.device_map, json.dumps(mapped, indent=1) + "\n")
    console(args.output).print(f"{result}; written to {args.output}", soft_wrap=True)
    advice = _advise(args, problem, result, constraints)
    print_sections(describe(result, problem=problem, advice=advice), args.output)
    return 0


def _advise(
    args: Namespace, problem: Problem, result: Result, asked: gnnplace.Constraints
) -> Advice | None:
    """Return what else is worth trying, if the objective is the time of a step."""
    if args.objective != gnnplace.TIME:
        return None
    how: dict[str, Any] = {"placer": args.placer, "max_devices": asked.max_devices}
    if not gnnplace.is_problem_file(args.what):
        how["can_cut"] = partial(can_cut, args, asked)
    seconds = min(ADVISING, args.budget)
    return gnnplace.advise(problem, result, seconds=seconds, **how)


def can_cut(args: Namespace, constraints: gnnplace.Constraints, count: int) -> bool:
    """Return whether the model of a command can be captured in so many micro-batches."""
    options = capture_options(
        args, constraints=constraints.patterns, microbatches=count
    )
    try:
        gnnplace.capture(args.what, options=options)
    except GnnplaceError:
        return False
    return True


Place = Callable[..., Result]  # of a problem, with other arguments of gnnplace.place


def _place(
    args: Namespace,
    options: gnnplace.CaptureOptions,
    place: Place,
    correct: Callable[[Problem], Problem],
    program: Program | None = None,
) -> tuple[gnnplace.CaptureOptions, Problem, Result]:
    if args.microbatches == AUTO:
        best = _choose_size(args, options, place, correct)
        assert best.result is not None
        return best.options, best.problem, best.result
    problem = correct(read_or_capture_problem(args, options, program))
    if args.start is not None:
        start = gnnplace.read_start(args.start, problem)
        place = partial(place, space=gnnplace.space_with_start(problem, start))
    with _meanwhile(args, options, problem.num_ops), pause_garbage_collection():
        space = SearchSpace(problem)
        gnnplace.warm(
            [args.placer], args.objective, say, problem.num_ops, args.budget, space
        )
        gc.freeze()  # what the compiler made stays: to look for garbage in it takes a second
    if args.budget >= LONG or problem.num_ops >= MANY_OPS:
        say(
            f"placing {problem.num_ops:,} ops on {problem.num_devices} devices with {args.placer}: "
            f"{args.budget:g} s of search"
        )
    return options, problem, place(problem)


def _meanwhile(
    args: Namespace, options: gnnplace.CaptureOptions, num_ops: int
) -> AbstractContextManager[None]:
    """Return a context that writes a first placement of a problem file while kernels compile.

    It does nothing if the kernels are compiled already or the answer needs more than the file.
    """
    changed = (
        args.calibration is not None
        or bool(read_all_constraints(args))
        or args.start is not None
    )
    plain = (
        args.objective == gnnplace.TIME
        and not changed
        and not is_written_in_place(args.output)
    )
    is_ready = not gnnplace.is_problem_file(args.what) or gnnplace.is_warm(
        [args.placer], num_ops=num_ops, budget=args.budget, tight=False
    )
    if not plain or is_ready:
        return nullcontext()
    from gnnplace.placing import writing_first_answer

    extra = find_capture_entry(args, options)
    return writing_first_answer(
        args.what, args.cluster, options.microbatches, args.output, extra
    )


def find_capture_entry(
    args: Namespace, options: gnnplace.CaptureOptions
) -> dict[str, Any]:
    """Return the entry of the placement's file that says how the model was captured.

    For a problem file it is that file's entry, if any, with the micro-batches of this command.
    """
    if not gnnplace.is_problem_file(args.what):
        return options_entry(options)
    if OPTIONS_KEY in read_text(args.what):
        data = read_json(args.what)
    else:
        data = {}
    if isinstance(data, dict):
        stored = data.get(OPTIONS_KEY)
    else:
        stored = None
    if options.microbatches > 1:
        cut = {"microbatches": options.microbatches}
    else:
        cut = {}
    entry = (stored if isinstance(stored, dict) else {}) | cut
    if entry:
        return {OPTIONS_KEY: entry}
    return {}


def read_or_capture_problem(
    args: Namespace, options: gnnplace.CaptureOptions, program: Program | None = None
) -> Problem:
    """Return the problem of a file or of a model. Torch is needed for a model alone.

    Args:
        args: The command's arguments, with the model or file and the cluster.
        options: How the model is captured.
        program: The model, if it has been captured already.
    """
    if program is not None:
        return gnnplace.profile(
            program, args.cluster or AUTO, options=options, progress=say
        )
    if gnnplace.is_problem_file(args.what):
        with suppress(OSError):  # it is said where it is read
            size = os.stat(args.what).st_size
            if size >= LARGE_FILE:
                say(f"reading {args.what}: {bytes_text(size)}")
        problem = gnnplace.read_on_cluster(
            args.what, args.cluster, options.microbatches
        )
        say_idle(problem)
        return gnnplace.apply_constraints(problem, options.constraints, say)
    return gnnplace.read_or_profile(args.what, args.cluster, options, say)


def _choose_size(
    args: Namespace,
    options: gnnplace.CaptureOptions,
    place: Place,
    correct: Callable[[Problem], Problem],
) -> Size:
    """Return the best number of micro-batches with its placement, and print the result of each."""
    if args.objective == gnnplace.THROUGHPUT:
        raise InputError(
            "--microbatches auto finds the shortest step; with --objective throughput give a number"
        )
    gnnplace.warm([args.placer], progress=say)
    sized_model = gnnplace.SizedModel(args.what, args.cluster, options, correct, say)
    sizes, best = gnnplace.choose_microbatches(sized_model, place)
    print_sections(describe(best, sizes=sizes), args.output)
    return best
