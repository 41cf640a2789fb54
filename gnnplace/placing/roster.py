"""Placing a problem with a placer by name, and comparing many.

All placers by name: those of the placers room and those with a policy.

Torch is imported when a placer with a policy is made, not before; numba and the algorithms when a
placer is made at all, so that to list placers takes next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gnnplace.errors import GnnplaceError, InputError
from gnnplace.foreign import naming_extras
from gnnplace.graph import FIXED_ORDERS, WALKED, check_network_order, check_order
from gnnplace.placers import (
    PLACERS,
    Option,
    PlacerRow,
    Speed,
    find_installed_placers,
    load_installed_class,
    load_named_class,
    parse_name,
)
from gnnplace.problem import (
    Constraints,
    Given,
    Problem,
    apply_constraints,
    as_constraints,
)

if TYPE_CHECKING:
    from gnnplace.placers import Placer, Result, SearchSpace, ThroughputResult
    from gnnplace.policy import Improvement, LearnedPlacer


Progress = Callable[[str], None]
Failure = tuple[str, GnnplaceError]
DEFAULT_BUDGET = 2.0
TIME = "time"
THROUGHPUT = "throughput"


@dataclass(frozen=True)
class PlaceOptions:
    """The placer, and its budget.

    Attributes:
        placer: One of ``placer_names()``, ``module:Class`` or ``path/to/file.py:Class``.
        budget: Seconds of each search.
        seed: The seed of all randomness.
    """

    placer: str = "best"
    budget: float = DEFAULT_BUDGET
    seed: int = 0


def make_placer_for(objective: str, name: str | Placer, **options: object) -> Placer:
    """Return a placer by its name, for an objective; see ``place``.

    Raises:
        InputError: an unknown objective, placer or option.
        UnsupportedError: the placer does not minimise this objective.
    """
    if objective == THROUGHPUT:
        from gnnplace.placers import make_throughput_placer

        if isinstance(name, str):
            placer_name = name
        else:
            placer_name = name.name
        return make_throughput_placer(placer_name, **options)
    if objective == TIME:
        return make_placer(name, **options)
    raise InputError(f"objective {objective!r}: must be 'time' or 'throughput'")


def check_budget(budget: float) -> None:
    """Refuse a budget that no search can keep.

    Raises:
        InputError: it is negative or not a number.
    """
    if not budget >= 0:
        raise InputError(f"budget {budget}: must not be negative")


def place(
    problem: Problem,
    *,
    placer: str | Placer = "best",
    budget: float = DEFAULT_BUDGET,
    seed: int = 0,
    objective: str = TIME,
    space: SearchSpace | None = None,
    constraints: Given | None = None,
    **options: object,
) -> Result:
    """Find devices and sequences for a problem.

    Args:
        problem: what to place; cut it with ``with_microbatches`` for pipelines.
        placer: one of ``placer_names()``, ``module:Class`` or ``path/to/file.py:Class``; options
            may stand behind it (``exact?workers=2``). Or a placer itself.
        budget: seconds to search, from here on.
        seed: the seed of all randomness.
        objective: ``time``: seconds of one step; ``throughput``: seconds between two pipelined
            steps (the result is a ``ThroughputResult``).
        space: the problem's search space, if there is one already, as to start from a placement
            (``space_with_start``).
        constraints: what is asked beyond the problem: ``Constraints``, a mapping or a YAML file.
            The result is one of ``problem`` all the same.
        options: options of the placer: ``workers`` of ``exact``, ``order`` and ``checkpoint`` of
            ``learned`` and ``best``. None stands for an option that is not given.

    Raises:
        InputError: an unknown placer, objective or option, or a negative budget.
        UnsupportedError, InfeasibleError: see ``Placer.place``.
    """
    check_budget(budget)
    if seed < 0:
        raise InputError(f"seed {seed}: must not be negative")
    searcher = make_placer_for(objective, placer, **options)
    limits = as_constraints(constraints)
    captured_limit = ((problem.captured or {}).get("constraints") or {}).get(
        "max_devices"
    )
    # The problem was captured with that in mind.
    if captured_limit is not None and not limits.max_devices:
        limits = replace(limits, max_devices=captured_limit)
    if space is not None and space.starts and (limits or objective == THROUGHPUT):
        raise InputError(
            "start: searches for the time of a step start from a placement, without max-devices; "
            "constrain the problem itself or give a smaller cluster"
        )
    if not limits:
        return searcher.place(problem, budget=budget, seed=seed, space=space)
    if limits.max_devices is not None and objective == THROUGHPUT:
        raise InputError(
            "max-devices: with --objective throughput give a smaller cluster"
        )
    problem = apply_constraints(problem, limits)
    if limits.max_devices is None:
        return searcher.place(problem, budget=budget, seed=seed)
    from gnnplace.placers import place_on_few

    return place_on_few(problem, searcher, limits.max_devices, budget=budget, seed=seed)


def compare(
    problem: Problem,
    names: Iterable[str] | None = None,
    *,
    budget: float = DEFAULT_BUDGET,
    seed: int = 0,
    constraints: Given | None = None,
    progress: Progress | None = None,
) -> list[Result | Failure]:
    """Return results of many placers on one problem; a placer that cannot stands with its error.

    A result is named as its placer was, with the options behind the name.

    Args:
        problem: the problem to place.
        names: the names of placers; all that are shown by default.
        budget: seconds for each placer.
        seed: the seed of all randomness.
        constraints: The constraints, as ``place`` takes them.
        progress: called with a line before each placer.
    """
    limits = as_constraints(constraints)
    problem = apply_constraints(problem, limits)
    device_limit = Constraints(max_devices=limits.max_devices)
    from gnnplace.placers import SearchSpace

    space = SearchSpace(problem)
    results: list[Result | Failure] = []
    for name in names or list_shown_placers():
        if progress is not None:
            progress(f"placing with {name}")
        try:
            settings: dict[str, Any] = {"placer": name, "budget": budget, "seed": seed}
            with naming_extras():
                result = place(
                    problem, space=space, constraints=device_limit, **settings
                )
            # By the whole name: two checkpoints of one placer are two rows.
            results.append(replace(result, placer=name))
        except GnnplaceError as error:
            results.append((name, error))
    return results


def compare_intervals(
    problem: Problem,
    names: Iterable[str] | None = None,
    *,
    budget: float = DEFAULT_BUDGET,
    seed: int = 0,
    constraints: Given | None = None,
    progress: Callable[[str], None] | None = None,
) -> list[ThroughputResult | Failure]:
    """Return intervals of pipelined steps: of searches for throughput, and what all others come to.

    Arguments are those of ``compare``; constraints have none on the number of devices.

    Raises:
        InputError: devices are limited in number.
    """
    limits = as_constraints(constraints)
    if limits.max_devices is not None:
        raise InputError(
            "max-devices: compare it for the time of a step, not for throughput"
        )
    problem = apply_constraints(problem, limits)
    from gnnplace.placers import compute_intervals

    results = compare(problem, names, budget=budget, seed=seed, progress=progress)
    return compute_intervals(
        problem, results, budget=budget, seed=seed, progress=progress
    )


UNTRAINED = "learned-untrained"
AUTO = "auto"


def _orders(order: str | None) -> tuple[str, ...] | None:
    """Return the traversal orders to decode in; None lets the policy choose.

    Raises:
        InputError: there is no such order.
    """
    if order is None or order == AUTO:
        return None
    check_order(order, AUTO, *WALKED)
    return (order,)


def _improvement(walks: int) -> Improvement | None:
    """Return the improvement walks that are asked for; None where there are none."""
    if walks == 0:
        return None
    from gnnplace.policy import Improvement

    return Improvement(walks)


def _make_learned(
    order: str | None = None, checkpoint: str | None = None, improve: int = 0
) -> LearnedPlacer:
    orders = _orders(order)
    improvement = _improvement(improve)
    from gnnplace.policy import LearnedPlacer, load_policy

    if checkpoint is None:
        policy = None
    else:
        policy = load_policy(checkpoint)
    return LearnedPlacer(policy, orders, improvement=improvement)


def _make_untrained(order: str | None = None, improve: int = 0) -> Placer:
    orders = _orders(order)
    improvement = _improvement(improve)
    from gnnplace.policy import make_untrained

    return make_untrained(orders, improvement)


def _gnn(
    order: str | None = None, checkpoint: str | None = None, trust: int = 0
) -> Placer:
    if order is not None:
        check_network_order(order, AUTO)
    from gnnplace.policy import GnnPlacer, load_gnn, trust_classes

    with trust_classes(bool(trust)):
        if checkpoint is None:
            policy = None
        else:
            policy = load_gnn(checkpoint)
    return GnnPlacer(policy, None if order == AUTO else order)


def _best(order: str | None = None, checkpoint: str | None = None) -> Placer:
    from gnnplace.policy import Best

    return Best(_make_learned(order, checkpoint))


TOLD = (
    f"Traversal order of the policy: {', '.join(FIXED_ORDERS)}, or module:function; of learned "
    f"also {', '.join(WALKED)}; by default it chooses among several."
)
ORDER = Option(str, None, TOLD)
CHECKPOINT = Option(
    str,
    None,
    "Folder of a network that training exported, or a .ckpt file of it; by default the package's.",
)
TRUST = Option(
    int,
    0,
    "1: an encoder or order that a checkpoint names is imported wherever it is.",
    least=0,
)
IMPROVE = Option(
    int,
    0,
    "Improvement walks at most, which take the place of decodes: over the placement of --start, or "
    "all on one device, each op in --order is given a device anew while all others keep theirs; "
    "0: decodes construct.",
    least=0,
)
POLICY_OPTIONS = {"order": ORDER, "checkpoint": CHECKPOINT}
POLICIES = (
    PlacerRow(
        "learned",
        _make_learned,
        Speed.SEARCH,
        options=POLICY_OPTIONS | {"improve": IMPROVE},
        executed=True,
    ),
    PlacerRow(
        "gnn",
        _gnn,
        Speed.SEARCH,
        options=POLICY_OPTIONS | {"trust": TRUST},
        library="torch",
    ),
    PlacerRow(
        UNTRAINED,
        _make_untrained,
        Speed.SEARCH,
        options={"order": ORDER, "improve": IMPROVE},
        shown=False,
    ),
    PlacerRow("best", _best, Speed.SEARCH, options=POLICY_OPTIONS, executed=True),
)
ROSTER: dict[str, PlacerRow] = PLACERS | {row.name: row for row in POLICIES}


def placer_names() -> tuple[str, ...]:
    """Return the names of all placers; those of packages that are installed beside this one come
    last.
    """
    return (*ROSTER, *find_installed_placers(frozenset(ROSTER)))


def list_shown_placers() -> tuple[str, ...]:
    """Return the names of the placers that a comparison shows unasked: all but the untrained
    control.
    """
    hidden = {row.name for row in ROSTER.values() if not row.shown}
    return tuple(name for name in placer_names() if name not in hidden)


def placer_options() -> dict[str, Option]:
    """Return every option that some placer has, by name."""
    return {
        key: option for row in ROSTER.values() for key, option in row.options.items()
    }


def find_placer(name: str) -> tuple[PlacerRow, dict[str, Any]]:
    """Return the row of a placer, and the options written behind its name.

    Args:
        name: one of ``placer_names()``, ``module:Class`` or ``path/to/file.py:Class``; options may
            stand behind it: ``exact?workers=2``.

    Raises:
        InputError: an unknown placer, or a class that is none.
    """
    base, written = parse_name(name)
    plugins = find_installed_placers(frozenset(ROSTER))
    if base in ROSTER:
        return ROSTER[base], written
    if base in plugins:
        return load_installed_class(plugins[base]), written
    if ":" in base:
        return load_named_class(base), written
    names = ", ".join(placer_names())
    raise InputError(f"placer {base!r}: unknown; placers: {names}, or module:Class")


def make_placer(name: str | Placer, **options: object) -> Placer:
    """Return a placer by its name.

    Args:
        name: A placer's name, as ``find_placer`` takes it, or a placer, which is returned.
        options: options of the placer; None stands for an option that is not given.

    Raises:
        InputError: an unknown placer or option, or an option that the placer does not have.
        FormatError, MismatchError: the checkpoint is missing, malformed or of another version.
    """
    from gnnplace.placers import Placer

    if isinstance(name, Placer):
        if set_options := [key for key, value in options.items() if value is not None]:
            raise InputError(
                f"{set_options[0]}: the placer {name.name!r} is made; give it to its class"
            )
        return name
    row, written = find_placer(name)
    base = row.name
    row_options = written | {
        key: value for key, value in options.items() if value is not None
    }
    for key in row_options:
        having = [row.name for row in ROSTER.values() if key in row.options]
        if having and key not in row.options:
            raise InputError(
                f"placer {base!r}: {key} is an option of {', '.join(having)} alone"
            )
    return row.made(row_options)
