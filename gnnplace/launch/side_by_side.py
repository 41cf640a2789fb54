"""The fastest plan that each launcher can run, side by side, for a model priced by its sizes.

Each launcher's plans are priced for the framework that it starts (`LauncherSearch`). The fastest of
all is the answer; the others are its alternatives. Each is a plan that its launcher can express
exactly.
"""

from __future__ import annotations

import math
from dataclasses import replace

from gnnplace.costs import DEFAULT_FRAMEWORK, resolve_cluster
from gnnplace.errors import GnnplaceError, InfeasibleError, InputError, MismatchError
from gnnplace.launch.layer_details import layer_details
from gnnplace.launch.registry import LAUNCHERS, get_launcher
from gnnplace.launch.searching import LaunchAnswer, LauncherSearch, make_launch_plan
from gnnplace.launch.trades import (
    FINE_STEP,
    device_frontier,
    find_leanest_plan,
    memory_frontier,
)
from gnnplace.plans import (
    OWN,
    AlternativeEntry,
    DecoderSizes,
    NamedModel,
    Plan,
    PlanFile,
    PlanSpec,
    PricingSetting,
    Progress,
    SearchOptions,
    TradeEntry,
    build_named_chain,
    find_decoder,
    find_memory_limit,
    make_plan,
    make_pricing_setting,
    parse_spec,
    price,
    price_spec,
    with_adapters,
)
from gnnplace.problem import Cluster, SearchGoal, with_slack

NOTABLE = 5e-4
"""By how much a launcher's plan must be slower than its framework's fastest to be said."""


def launcher_plans(
    named: NamedModel,
    cluster: Cluster,
    options: SearchOptions,
    precision: str | None,
    progress: Progress | None = None,
) -> list[Plan]:
    """Return the fastest plans that a launcher can run, the fastest of each launcher beside them.

    Args:
        named: The model, whose sizes are known.
        cluster: The devices, all of one kind.
        options: The launcher or the framework that is asked for; None: all of them. Whether few
            devices are enough, the budget of each search, and the number of plans.
        precision: The precision in Lightning's words; None: each framework's usual one.
        progress: Called with a line for each thing that is done.

    Returns:
        Plans of the launcher whose plan is the fastest, the fastest first.

    Raises:
        InputError: If there is no such launcher or framework, or it cannot train the model.
        InfeasibleError: If no launcher can be told a plan that fits.
    """
    search = _make_searches(named, cluster, options, precision)
    search = replace(search, progress=progress)
    # What a launcher cannot train is a reason beside the others' plans.
    plans: dict[str, list[Plan]] = {}
    entries: dict[str, AlternativeEntry] = {}
    names = list_launchers(options)
    for name in names:
        try:
            answer = _find(search, name, options)
        except GnnplaceError as error:
            if len(names) == 1:
                raise
            entries[name] = AlternativeEntry(reason=str(error))
            continue
        plans[name] = _make_plans(named, answer, name, options)
        file = plans[name][0].file
        entries[name] = AlternativeEntry(
            step_time=file.step_time, interval=file.interval, feasible=True, plan=file
        )
    if not plans:
        reasons = "; ".join(entry.reason or "" for entry in entries.values())
        raise InfeasibleError(f"no launcher can be told a plan that fits: {reasons}")

    def rank(name: str) -> float:
        """Return what the first launcher has the least of: seconds of a step, or bytes."""
        if name not in plans:
            return math.inf
        plan = plans[name][0]
        if options.goal == SearchGoal.MEMORY:
            return max(memory.all for memory in plan.file.memory.values())
        return plan.step_time

    ordered = sorted(entries, key=rank)
    best, *slower = plans[ordered[0]][: options.top]
    keys = {
        "alternatives": {name: entries[name] for name in ordered},
        "trades": _trades(search, ordered[0], options),
    }
    file = best.file.model_copy(update=keys)
    notices = best.notices
    if options.launcher is not None and options.goal != SearchGoal.MEMORY:
        notices += _slower_than_free(search, options.launcher, best.step_time)
    return [replace(best, file=file, notices=notices), *slower]


def price_words(
    named: NamedModel,
    cluster: Cluster,
    spec: PlanSpec,
    options: SearchOptions,
    precision: str | None,
) -> Plan:
    """Price a plan in words for a launcher, and return it as a plan that converts to it.

    Args:
        named: The model, whose sizes are known.
        cluster: The devices.
        spec: The plan.
        options: The launcher, and an environment.
        precision: The precision in Lightning's words; None: the framework's usual one.

    Raises:
        InputError: If there is no such launcher, or its framework cannot train the plan.
        InfeasibleError: If the launcher cannot say the model's sizes.
    """
    assert options.launcher is not None
    search = _make_searches(named, cluster, options, precision)
    answer = search.price_given(options.launcher, spec)
    setting = answer.setting
    chain = build_named_chain(named.row, setting)
    plan = make_plan(chain, cluster, price_spec(setting, spec))
    words = {
        "words": str(spec),
        "launcher": options.launcher,
        "environment": options.environment,
        "gradients": spec.gradients or setting.framework.traits.gradients,
    }
    return replace(plan, file=plan.file.model_copy(update=words))


def _make_searches(
    named: NamedModel,
    cluster: Cluster,
    options: SearchOptions,
    precision: str | None,
) -> LauncherSearch:
    """Return the searches of launchers' plans for a model. Arguments as of `launcher_plans`."""
    job = named.job
    sizes = named.sizes
    assert sizes is not None
    return LauncherSearch(
        replace(sizes, batch=job.batch or sizes.batch),
        cluster,
        precision=precision,
        optimizer=job.optimizer,
        framework=options.framework,
        environment=options.environment,
        memory_limit=find_memory_limit(cluster),
        fewest=options.goal == SearchGoal.GPUS,
        rate=options.rate,
        modes=options.modes or PlanSpec(),
        offloads=options.goal == SearchGoal.TIME
        and options.rate is None
        and options.trades is None,
        budget=options.budget,
        details=layer_details(named.row.name),
    )


def _find(
    search: LauncherSearch, launcher: str, options: SearchOptions
) -> LaunchAnswer:
    """Return a launcher's best plan by the goal.

    Raises:
        InfeasibleError: If it can train no plan that fits, or the model's adapters not at all.
    """
    adapters = search.decoder.adapters
    if launcher == OWN and adapters is not None:
        raise InfeasibleError(
            f"{OWN}: runs a model with its adapters by module:callable, which makes them; --lora "
            f"{adapters} is priced for other launchers"
        )
    if options.goal == SearchGoal.MEMORY:
        return find_leanest_plan(search, launcher)
    return search.find(launcher, num_best=options.top)


def _trades(
    search: LauncherSearch, launcher: str, options: SearchOptions
) -> list[TradeEntry]:
    """Return a launcher's plans that trade time for memory or devices, where they are asked for."""
    if options.trades is None:
        return []
    if options.trades == SearchGoal.MEMORY:
        plans = memory_frontier
    else:
        plans = device_frontier
    trades: list[TradeEntry] = []
    for answer in plans(replace(search, fewest=False, rate=None), launcher):
        plan = answer.best[0]
        assert plan.answer.peak is not None
        trades.append(
            TradeEntry(
                words=str(plan.spec),
                num_devices=plan.spec.num_devices,
                memory=plan.answer.peak,
                step_time=plan.seconds,
            )
        )
    return trades


def _slower_than_free(
    search: LauncherSearch, launcher: str, seconds: float
) -> tuple[str, ...]:
    """Return a line if a launcher's framework could train faster than the launcher can be told."""
    free = search.free(launcher)
    if free is None or seconds / free.seconds - 1 < NOTABLE:
        return ()
    return (
        f"{seconds / free.seconds - 1:.1%} slower than the fastest that the framework could train, "
        f"which {launcher} cannot be told: {free.spec}, {free.seconds:.4g} s",
    )


def start_command(launcher: str, path: str) -> str:
    """Return the command that starts a run by a launcher's file."""
    return get_launcher(launcher).command.replace("FILE", path)


def list_launchers(options: SearchOptions) -> tuple[str, ...]:
    """Return the launchers whose plans are searched, the package's own runner among them.

    Raises:
        InputError: If there is no such launcher.
    """
    if options.launcher is not None:
        if options.launcher != OWN:
            get_launcher(options.launcher)
        return (options.launcher,)
    names = (*LAUNCHERS, OWN)
    if options.framework is None:
        return names
    owners = {name: entry.framework for name, entry in LAUNCHERS.items()}
    owners[OWN] = DEFAULT_FRAMEWORK
    return tuple(name for name in names if owners[name] == options.framework)


def _make_plans(
    named: NamedModel, answer: LaunchAnswer, launcher: str, options: SearchOptions
) -> list[Plan]:
    """Return the plans that a search found for a launcher, the fastest first.

    Args:
        named: The model of the catalogue.
        answer: The answer of the search.
        launcher: The launcher's name, or `OWN`.
        options: The options of the search.
    """
    setting = answer.setting
    bound = answer.answer.lower_bound
    chain = build_named_chain(named.row, setting)
    step = answer.best[0].seconds
    if launcher == OWN:
        who = "gnnplace runs"
    else:
        who = f"{launcher} can be told"
    claim = (
        f"none of the plans that {who} is faster at the prices of {answer.framework} "
        f"({answer.bounded:,} bounded, {answer.tried:,} priced)"
    )
    if bound is not None and bound < step * (1 - 1e-9):
        claim = f"no plan that {who} takes less than the bound, at the prices of {answer.framework}"
    if options.goal == SearchGoal.MEMORY:
        bound = None
        claim = f"none of the plans that {who} has {FINE_STEP:.0%} less on its fullest device"
    plans: list[Plan] = []
    for spec_answer in answer.best:
        plan = make_plan(chain, setting.cluster, price_spec(setting, spec_answer.spec))
        words = {
            "words": str(spec_answer.spec),
            "launcher": launcher,
            "environment": options.environment,
            "gradients": spec_answer.spec.gradients
            or setting.framework.traits.gradients,
            "lower_bound": bound,
            "claim": claim,
        }
        plans.append(replace(plan, file=plan.file.model_copy(update=words)))
    return plans


def price_plan_in_words(named: NamedModel, cluster: Cluster, plan: Plan) -> Plan:
    """Price a plan in words that was read from a file, and return it as a plan.

    Raises:
        MismatchError: If it is a plan of another model.
        InputError: If the plan does not fit the model, the cluster or the framework.
    """
    file = plan.file
    sizes = named.sizes
    assert sizes is not None
    assert file.words is not None
    setting = make_file_setting(file, sizes, cluster)
    chain = build_named_chain(named.row, setting)
    if chain.fingerprint != file.fingerprint:
        raise MismatchError(f"{file.model}: the plan is of a model with other sizes")
    priced = make_plan(chain, cluster, price_spec(setting, parse_spec(file.words)))
    copied = ("words", "launcher", "environment", "gradients", "lower_bound", "claim")
    words = {name: getattr(file, name) for name in copied}
    return replace(priced, file=priced.file.model_copy(update=words))


def make_file_setting(
    file: PlanFile, sizes: DecoderSizes, cluster: Cluster
) -> PricingSetting:
    """Return the sizes, devices and framework that a plan in words of a file is priced for.

    Args:
        file: The plan's file.
        sizes: Sizes of its model.
        cluster: The devices.
    """
    if file.tokens:
        length = file.tokens // file.batch
    else:
        length = sizes.length
    return make_pricing_setting(
        with_adapters(replace(sizes, batch=file.batch, length=length), file.lora),
        cluster,
        framework_name=file.framework,
        environment_name=file.environment,
        precision=file.precision,
        optimizer=file.optimizer,
        memory_limit=find_memory_limit(cluster),
    )


def price_file(
    file: PlanFile, cluster: str | Cluster | None = None, model: str | None = None
) -> LaunchAnswer:
    """Price a plan in words that was read from a file, and return it in the launchers' terms.

    Args:
        file: The plan's file, with words.
        cluster: The devices; None: those of the file.
        model: The model by its name, where the file's is no name of one.

    Raises:
        InputError: If the model has no sizes that are known, or the cluster cannot be made.
    """
    devices = with_slack(resolve_cluster(cluster or file.cluster_file or file.cluster))
    name = model or file.model
    sizes = find_decoder(name, num_devices=devices.num_devices)
    if sizes is None or file.words is None:
        raise InputError(
            f"{name}: is no decoder of text whose sizes are known; give --model"
        )
    setting = make_file_setting(file, sizes, devices)
    spec = parse_spec(file.words)
    return LaunchAnswer(make_launch_plan(setting, spec), price(setting, spec), setting)
