"""``gnnplace plan``: stages, replicas, shards, recomputation and the order of actions together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.console import (
    check_output,
    say,
    show_answer,
)
from gnnplace.cli.launch_files import check_launch_output, read_launch_file
from gnnplace.cli.numbers import from_args
from gnnplace.cli.options import read_all_constraints
from gnnplace.errors import InputError
from gnnplace.files import write_text
from gnnplace.foreign import check_installed
from gnnplace.launch import LaunchPlan, with_priced_schedule
from gnnplace.planning import (
    FitAnswer,
    fit_plan,
    judge_fit,
    make_study_plan,
    plan_devices,
    read_given,
)
from gnnplace.plans import (
    ConvergenceOptions,
    SearchOptions,
    TrainingJob,
    find_named,
    find_preset,
    make_training,
    parse_spec,
    plan_batches,
)
from gnnplace.problem import SearchGoal
from gnnplace.report import (
    ClusterPrices,
    MachinePlans,
    check_table,
    describe,
    parse_token_count,
    read_prices,
    write_answer,
)
from gnnplace.units import seconds_text

if TYPE_CHECKING:
    from gnnplace.launch import LaunchAnswer
    from gnnplace.plans import Plan

AUTO = "auto"
TRIES = 3
GROUP_UNUSED = ("pin", "forbid", "together", "constraints")


def is_priced_by_row(
    given: str, framework: str | None, environment: str | None
) -> bool:
    """Return whether a table of plans is asked for, or words at a framework's constants.

    Raises:
        InputError: The file says itself what an option would say.
    """
    if given.endswith(".csv"):
        return True
    if framework in (None, "pytorch") and environment is None:
        return False
    if "=" not in given:
        raise InputError(
            f"--given {given}: a file says its framework; leave --framework out"
        )
    return True


def _price(args: Namespace, headroom: str | float) -> int:
    """Price every plan of a table, print the best first, and write them in their order."""
    unused = next(
        (n for n in ("html", "trace", "table") if getattr(args, n) is not None), None
    )
    if unused is not None or args.tries:
        raise InputError(
            f"--{unused or 'try'}: is of one plan; leave it out with a table of plans"
        )
    priced = gnnplace.price_plans(
        args.what,
        args.cluster,
        args.given,
        framework_name=args.framework,
        environment_name=args.environment,
        batch=args.batch,
        precision=args.precision,
        optimizer=args.optimizer,
        lora=args.lora,
        memory_limit=args.memory_limit,
        headroom=headroom,
        accept_other_loss=args.accept_other_loss,
        progress=say,
    )
    if args.output is not None:
        write_text(args.output, priced.csv())
    show_answer(args, describe(priced, given=args.given))
    return 0


def _is_launch_file(args: Namespace) -> bool:
    """Return whether a launch file is given that is priced from sizes, and no plan written."""
    words = "=" in args.given or args.given.endswith(".csv")
    if args.output is not None or words or not gnnplace.is_launch_file(args.given):
        return False
    from gnnplace.plans import find_decoder

    # Other models are captured.
    return args.what is None or find_decoder(args.what) is not None


def _read_given(args: Namespace) -> str | LaunchPlan | None:
    """Return the value of `--given`: a launch file as it was read, anything else as text."""
    text: str | None = args.given
    if text is None or "=" in text or text.endswith(".csv"):
        return text
    if not gnnplace.is_launch_file(text):
        return text
    return read_launch_file(args, text, args.source_launcher)[0]


def _price_launch_file(
    args: Namespace, prices: ClusterPrices | None, tokens: float | None
) -> int:
    """Print what the plan of a launch file takes.

    Args:
        args: The options.
        prices: What GPU-hours cost; None where costs are not asked for.
        tokens: Tokens of a whole run.
    """
    priced = _answer_launch_file(args)
    answer = describe(
        priced,
        model=args.what or args.given,
        cluster=args.cluster,
        prices=None if prices is None else prices.prices,
        tokens=tokens,
    )
    show_answer(args, answer)
    return 0


def _search_plans(args: Namespace, cluster: str, batch: int | None) -> list[Plan]:
    """Search the fastest plan for one of several clusters, or batches, that options describe."""
    constraints = read_all_constraints(
        args, headroom=None if args.headroom == AUTO else args.headroom
    )
    return list(
        gnnplace.plan(
            args.what,
            cluster,
            batch=batch,
            precision=args.precision,
            optimizer=args.optimizer,
            lora=args.lora,
            memory_limit=args.memory_limit,
            headroom=constraints.headroom or args.headroom,
            budget=args.budget,
            runnable=args.runnable,
            accept_other_loss=args.accept_other_loss,
            imbalance=args.imbalance,
            constraints=replace(constraints, headroom=None),
            modes=args.modes,
            launcher=args.launcher,
            framework=args.framework,
            environment=args.environment,
            progress=say,
        )
    )


def _check_epochs(args: Namespace, *names: str) -> None:
    """Check that options are left out that an answer for several batches has no use for.

    Args:
        args: The options.
        *names: Options that this answer does not take, beside those that none does.

    Raises:
        InputError: One is given.
    """
    names = ("given", "trace", "table", "rate", "pareto", "price", *names)
    unused = next((name for name in names if getattr(args, name)), None)
    if unused is not None or args.tries or args.fits or args.top > 1:
        name = unused or ("try" if args.tries else "fits" if args.fits else "top")
        name = name.replace("_", "-")
        raise InputError(f"--{name}: is of one batch; leave it out with --goal epochs")


def _plan_epochs(args: Namespace, tokens: float | None) -> int:
    """Print with how many groups of devices, or with which batch, training ends first.

    Args:
        args: The options.
        tokens: Tokens that training needs at small batches, if examples are rows of tokens.
    """
    if "," in (args.cluster or "") and not Path(args.cluster).is_file():
        return _compare_machines(args)
    if _is_of_groups(args):
        return _study_groups(args, tokens)
    return _plan_batches(args, tokens)


def _is_of_groups(args: Namespace) -> bool:
    """Return whether `--goal epochs` is answered by groups of devices, each with a fixed batch.

    It is for problem files and models that are captured. Others are searched for every batch.
    """
    if args.what is None:
        return False
    if gnnplace.is_problem_file(args.what):
        return True
    words = (args.launcher, args.framework, args.environment, args.modes, args.lora)
    if any(word is not None for word in words):
        return False
    if args.cluster is None:
        return True
    cluster = gnnplace.resolve_cluster(args.cluster)
    return find_named(TrainingJob(args.what), cluster) is None


def _study_groups(args: Namespace, tokens: float | None) -> int:
    """Split the devices into groups in every way, and print when training ends with each.

    Args:
        args: The options.
        tokens: Tokens that training needs at small batches, if examples are rows of tokens.

    Raises:
        InputError: An option is for one batch alone, or for other models.
    """
    from gnnplace.plans import HybridOptions

    _check_epochs(args, *GROUP_UNUSED)
    if gnnplace.is_problem_file(args.what) and args.output is not None:
        raise InputError(
            f"--output {args.output}: is a plan of layers; a problem file has ops alone"
        )
    if args.imbalance != 1.0:
        raise InputError(
            "--imbalance: is of one batch; leave it out with --goal epochs"
        )
    study = gnnplace.study_hybrid(
        args.what,
        args.cluster,
        options=from_args(HybridOptions, args, tokens=tokens),
        progress=say,
    )
    remarks = []
    # What is written is a plan of layers, whatever the table shares a step by.
    code = 0
    if args.output is not None:
        plan = make_study_plan(study, args.cluster or "")
        if plan.feasible:
            plan.save(args.output)
            step = seconds_text(plan.step_time)
            remarks.append(
                f"{args.output}: {plan.shape}, {step} a step; execute runs it"
            )
        else:
            remarks.append(f"{args.output}: not written: {plan.reason}")
            code = 3
    answer = describe(study, remarks=remarks)
    write_answer(answer, page=args.html)
    show_answer(args, answer)
    return code


def _plan_batches(args: Namespace, tokens: float | None) -> int:
    """Search the batch with which training ends first, and print its plan below what was tried.

    Args:
        args: The options.
        tokens: Tokens that training needs at small batches, if examples are rows of tokens.

    Raises:
        InputError: An option is for one batch alone.
    """
    _check_epochs(args, "html")
    if args.links is not None:
        raise InputError(
            "--links: is of captured models and problem files; --cluster has the links of others"
        )
    first = _search_plans(args, args.cluster, args.batch)[0]
    options = from_args(ConvergenceOptions, args)
    length = None
    if first.file.tokens is not None:
        length = first.file.tokens // first.file.batch
    preset = find_preset(args.what or "", first.parameters, length, tokens)
    training = make_training(preset, options, first.file.batch)

    def plan_of(batch: int) -> Plan:
        """Return the fastest plan with a batch."""
        if batch == first.file.batch:
            return first
        say(f"planning: a batch of {batch:,}")
        return _search_plans(args, args.cluster, batch)[0]

    entries = plan_batches(plan_of, training)
    best = min(entries, key=lambda entry: entry.seconds)
    if args.output is not None:
        _write_plan(args, best.plan)
    show_answer(args, describe(best, entries=entries, training=training))
    return 0


def _check_machine_options(args: Namespace, clusters: list[str]) -> None:
    """Check that nothing but what several clusters are compared by was asked for.

    Raises:
        InputError: An option is for one cluster alone, or clusters have no names of their own.
    """
    for name in (
        "given",
        "launcher",
        "framework",
        "environment",
        "html",
        "trace",
        "table",
    ):
        if getattr(args, name) is not None:
            raise InputError(f"--{name}: is of one cluster; give --cluster one name")
    is_comparable = args.goal in (SearchGoal.TIME, SearchGoal.COST) and not args.tries
    if not is_comparable or "" in clusters or len(set(clusters)) < len(clusters):
        raise InputError(
            f"--cluster {args.cluster}: several clusters must have names of their own, and are "
            "compared by time or cost, without --try"
        )


def _compare_machines(args: Namespace) -> int:
    """Search a plan for each of several clusters, and print the best of all.

    Raises:
        InputError: An option is for one cluster alone, or a price is missing.
    """
    clusters = [name.strip() for name in args.cluster.split(",")]
    _check_machine_options(args, clusters)
    devices = {cluster: gnnplace.resolve_cluster(cluster) for cluster in clusters}
    prices = None
    if args.price is not None:
        prices = read_prices(",".join(args.price), list(devices.values()))
    if args.tokens is None:
        tokens = None
    else:
        tokens = parse_token_count(args.tokens)
    plans = {
        cluster: _search_plans(args, cluster, args.batch)[0] for cluster in clusters
    }
    machines = MachinePlans(
        plans, devices, prices, tokens, cheapest_first=args.goal == SearchGoal.COST
    )
    # The best one alone is written and printed as a plan.
    if args.output is not None and machines.best.feasible:
        machines.best.save(args.output)
    show_answer(args, describe(machines))
    return 0 if machines.best.feasible else 3


def _write_answer(
    args: Namespace,
    plans: Sequence[Plan],
    prices: ClusterPrices | None,
    tokens: float | None,
) -> int:
    """Write the files that options ask for, print plans, and return the exit code.

    Args:
        args: The options.
        plans: The fastest first.
        prices: What GPU-hours cost; None where costs are not asked for.
        tokens: Tokens of a whole run.
    """
    best = plans[0]
    answer = describe(
        best,
        tokens=tokens,
        prices=prices,
        runners_up=plans[1:] if args.top > 1 else None,
        output=args.output,
        has_next=_is_free(args),
    )
    if args.output is not None and best.feasible:
        _write_plan(args, best)
    table = args.table if best.feasible else None
    write_answer(answer, table=table, page=args.html, trace=args.trace)
    show_answer(args, answer)
    return 0 if best.feasible or args.given is not None else 3


def _is_free(args: Namespace) -> bool:
    """Return whether a plan is searched, or given in words, and not by a file."""
    return args.given is None or "=" in args.given


def _write_plan(args: Namespace, plan: Plan) -> None:
    """Write a plan to the output: NAME.json is the plan's file, others are the launcher's."""
    is_of_launcher = args.launcher is not None and _is_free(args)
    if not is_of_launcher or args.output.endswith(".json"):
        plan.save(args.output)
    else:
        write_text(args.output, gnnplace.export_plan(plan, args.launcher).text)


def _fits(args: Namespace) -> int:
    """Print what fills the fullest device, and what would make a plan fit.

    Raises:
        InputError: An option is for a plan's times alone, or a table of plans is given.
    """
    names = ("html", "trace", "table", "output", "price", "rate", "pareto")
    unused = next((name for name in names if getattr(args, name) is not None), None)
    if unused is not None or args.tries or args.runnable:
        name = unused or ("try" if args.tries else "runnable")
        raise InputError(f"--{name}: is of a plan's times; leave it out with --fits")
    if args.given is not None and args.given.endswith(".csv"):
        raise InputError(
            "--fits: is of one plan; give it in words, or leave --fits out"
        )
    if args.modes is not None and args.given is not None:
        raise InputError(
            f"--modes {args.modes}: are words of plans that are searched; a plan that "
            "is given says them itself"
        )
    source = _read_given(args)
    if isinstance(source, LaunchPlan):
        answer = _launch_file_fit(args)
    else:
        answer = _plan_fit(args, source)
    show_answer(args, describe(answer))
    return 0 if answer.fits else 3


def _plan_fit(args: Namespace, source: str | None) -> FitAnswer:
    """Return whether a plan fits that is searched, or given in words or by its file."""
    constraints = read_all_constraints(
        args, headroom=None if args.headroom == AUTO else args.headroom
    )
    job = TrainingJob(
        args.what,
        batch=args.batch,
        precision=args.precision,
        optimizer=args.optimizer,
        lora=args.lora,
    )
    options = SearchOptions(
        budget=args.budget,
        goal=SearchGoal.TIME if args.goal == SearchGoal.COST else args.goal,
        launcher=args.launcher,
        framework=args.framework,
        environment=args.environment,
        modes=None if args.modes is None else parse_spec(args.modes, "modes"),
    )
    cluster = plan_devices(
        args.cluster, args.memory_limit, constraints.headroom or args.headroom
    )
    if source is None:
        plan = None
    else:
        plan = read_given(source)
    assert not isinstance(plan, LaunchPlan)
    return fit_plan(job, cluster, plan, options, say)


def _launch_file_fit(args: Namespace) -> FitAnswer:
    """Return whether the plan of a launch file fits."""
    priced = _answer_launch_file(args)
    return judge_fit(priced.setting, with_priced_schedule(priced.plan, priced.setting))


def _answer_launch_file(args: Namespace) -> LaunchAnswer:
    """Return the price of the plan of the given launch file.

    Raises:
        InputError: Adapters are asked for, which the file itself says.
    """
    if args.lora is not None:
        raise InputError(
            f"--lora {args.lora}: is of a plan in words; the launch file says its own"
        )
    plan, launcher = read_launch_file(
        args, args.given, args.source_launcher or args.launcher
    )
    return gnnplace.price_launch_plan(
        plan,
        launcher,
        args.cluster,
        model=args.what,
        framework=args.framework,
        environment=args.environment,
        batch=args.batch,
        memory_limit=args.memory_limit,
    )


def _check_goal(args: Namespace, rate: float | None) -> None:
    """Check what is searched for, and the options that are of one goal.

    Raises:
        InputError: There is no such goal, or an option is of another.
    """
    if args.goal not in list(SearchGoal):
        raise InputError(f"--goal {args.goal}: must be one of {', '.join(SearchGoal)}")
    if rate is not None and (
        args.goal not in (SearchGoal.GPUS, SearchGoal.MEMORY) or args.given is not None
    ):
        raise InputError(
            "--rate: is for --goal gpus and memory, which search for fewer of these"
        )
    if args.pareto is not None and (args.given or "," in (args.cluster or "")):
        raise InputError("--pareto: is of plans that are searched, on one cluster")
    for name in ("examples", "epochs_table", "least_epochs", "critical_batch", "links"):
        if getattr(args, name) is not None and args.goal != SearchGoal.EPOCHS:
            option = name.replace("_", "-")
            raise InputError(
                f"--{option}: is for --goal epochs, which alone asks for it"
            )
    if args.goal == SearchGoal.COST and args.price is None:
        raise InputError(
            "--goal cost: needs --price, USD a GPU-hour by kind, as h100=2.49"
        )
    if args.cluster is None and args.goal != SearchGoal.EPOCHS:
        raise InputError(
            "--cluster: is needed to plan for; a problem file with --goal epochs has its own"
        )


def run(args: Namespace) -> int:
    """Search plans, or predict a given one."""
    check_output(args.output, args.html, args.trace, args.table)
    check_launch_output(args.output, args.launcher)
    check_table(args.table)
    if args.html is not None:
        check_installed("matplotlib")
    tokens = None if args.tokens is None else parse_token_count(args.tokens)
    if args.rate is None:
        rate = None
    else:
        rate = parse_token_count(args.rate, "--rate")
    _check_goal(args, rate)
    if args.goal == SearchGoal.EPOCHS:
        return _plan_epochs(args, tokens)
    if "," in args.cluster and not Path(args.cluster).is_file():
        return _compare_machines(args)
    prices = None
    if args.price is not None:
        cluster = gnnplace.resolve_cluster(args.cluster)
        usd = read_prices(",".join(args.price), [cluster])
        prices = ClusterPrices(cluster, usd)
    constraints = read_all_constraints(
        args, headroom=None if args.headroom == AUTO else args.headroom
    )
    if args.fits:
        return _fits(args)
    launched = args.given is not None and _is_launch_file(args)
    by_row = (
        args.given is not None
        and not launched
        and is_priced_by_row(args.given, args.framework, args.environment)
    )
    if args.imbalance != 1.0 and (launched or by_row):
        raise InputError(
            "--imbalance: is of plans of a captured model, searched or in words"
        )
    if launched:
        return _price_launch_file(args, prices, tokens)
    if by_row and prices is not None:
        raise InputError("--price: is of one plan; leave it out with a table of plans")
    if by_row:
        return _price(args, headroom=constraints.headroom or args.headroom)
    if args.tries and args.given is not None:
        raise InputError(
            "--try: chooses among plans that are searched; leave --given out, or run the plan with "
            "gnnplace execute"
        )
    plans = gnnplace.plan(
        args.what,
        args.cluster,
        batch=args.batch,
        precision=args.precision,
        optimizer=args.optimizer,
        lora=args.lora,
        memory_limit=args.memory_limit,
        headroom=constraints.headroom or args.headroom,
        budget=args.budget,
        top=args.top,
        given=_read_given(args),
        tries=TRIES if args.tries else 0,
        runnable=args.runnable,
        accept_other_loss=args.accept_other_loss,
        imbalance=args.imbalance,
        constraints=replace(constraints, headroom=None),
        # Every GPU of the cluster is paid, so that its fastest plan is its cheapest.
        goal=SearchGoal.TIME if args.goal == SearchGoal.COST else args.goal,
        rate=rate,
        pareto=args.pareto,
        modes=args.modes,
        # A file that is given says its own launcher.
        launcher=args.launcher if _is_free(args) else None,
        framework=args.framework if args.given is None else None,
        environment=args.environment if args.given is None else None,
        progress=say,
    )
    return _write_answer(args, plans, prices, tokens)
