"""``gnnplace shard``: the best way to split every layer over the devices."""

from __future__ import annotations

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import (
    check_output,
    say,
    show_answer,
)
from gnnplace.cli.options import (
    read_all_constraints,
    split_options,
)
from gnnplace.errors import InputError
from gnnplace.foreign import check_installed
from gnnplace.problem import SearchGoal
from gnnplace.report import check_drawable, describe, write_answer
from gnnplace.sharding import (
    AnswerTables,
    SplitGoal,
    is_file,
    limit_split,
    shard_for,
    shard_frontier,
    shard_tables,
    write_sharding,
)


def run(args: Namespace) -> int:
    """Print the best strategy of a sharding problem, or all that no other beats."""
    _check(args)
    options, limit = limit_split(
        read_all_constraints(args), split_options(args), memory_limit=args.memory_limit
    )
    args.devices, args.memory_limit = options.devices, limit
    if args.pareto:
        tables = shard_tables(args.what, split_options(args))
        if args.tables is not None:
            write_sharding(args.tables, tables.problem)
        return _frontier(tables, args)
    return _best(args, SplitGoal(args.goal, args.memory_limit, args.time_limit))


def _check(args: Namespace) -> None:
    """Refuse options that would have no effect."""
    has_goal = args.goal != SearchGoal.TIME or args.time_limit is not None
    if has_goal and args.pareto:
        raise InputError(
            "--goal, --time-limit: --pareto finds every trade; leave them out"
        )
    if args.epsilon and not args.pareto:
        raise InputError("--epsilon: only --pareto has an error to allow")
    if is_file(args.what) and args.executable:
        raise InputError("--executable: a file of tables has no model to run")
    if is_file(args.what) and args.output is not None and not args.pareto:
        raise InputError(
            "--output: of a file of tables, only the frontier of --pareto is drawn"
        )
    check_output(args.output)
    check_output(args.html)
    if args.html is not None:
        check_installed("matplotlib")


def _best(args: Namespace, goal: SplitGoal) -> int:
    """Print the split that is best for a goal."""
    answer = shard_for(args.what, goal, split_options(args))
    tables = answer.tables
    if args.tables is not None:
        write_sharding(args.tables, tables.problem)
    split = tables.split(answer.result)
    described = describe(answer, goal=goal, split=split)
    write_answer(described, page=args.html)
    if split is not None and args.output is not None:
        gnnplace.make_split_plan(split, args.what, split_options(args)).save(
            args.output
        )
    show_answer(args, described)
    if args.output is not None and not args.json:
        say(f"run it: gnnplace execute {args.what} {args.output}")
    return 0


def _frontier(tables: AnswerTables, args: Namespace) -> int:
    if args.output is not None:
        check_drawable(args.output)
    if (args.output or args.html) is not None and not tables.problem.has_memory:
        raise InputError(
            "--output, --html: a problem without memory tables has no frontier to draw"
        )
    answer = shard_frontier(
        tables, epsilon=args.epsilon, memory_limit=args.memory_limit
    )
    described = describe(answer, tables=tables)
    write_answer(described, page=args.html, picture=args.output)
    show_answer(args, described)
    return 0
