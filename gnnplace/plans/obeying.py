"""Plans that obey pins, forbids and a limit on devices.

A pinned layer is in a stage whose devices are among those it is pinned to. A layer that is
forbidden on a device is in no stage with that device. Stages take devices in the order of layers.
So besides the cluster's own order another one is tried, in which devices stand where the layers
that need them are, without devices that no layer may use. A limit of k devices means k neighbours:
every run of k that differs from the others is searched, each with its share of the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from gnnplace.arrays import BoolArray
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.plans.answers import find_plans
from gnnplace.plans.job import Progress, SearchOptions
from gnnplace.plans.plan import Plan
from gnnplace.plans.segments.chain import Chain
from gnnplace.problem import (
    Cluster,
    Constraints,
    Matched,
    Names,
    devices_matched,
    list_device_counts,
)

MOST = 6  # runs of neighbours that are searched


def find_obeying(
    chain: Chain,
    cluster: Cluster,
    options: SearchOptions,
    *,
    progress: Progress | None = None,
) -> list[Plan]:
    """Search the best plans that obey the constraints on layers and devices, the fastest first.

    Headroom is the cluster's already. `progress` is also told what each pattern matches. Other
    arguments are those of `find_plans`.

    Raises:
        InputError: If a pattern or device matches nothing, or modules are to stay together.
        InfeasibleError: If no plan that was tried obeys.
    """
    constraints = options.constraints
    if constraints.together:
        raise InputError(
            "together: a plan's stages are runs of layers; pin the layers instead"
        )
    if constraints.by_module or constraints.no_split:
        raise InputError(
            "by-module, no-split: a plan cuts calls, not modules; leave them out"
        )
    allowed = find_allowed_devices(chain, cluster, constraints, progress)
    tried = list(_clusters(cluster, allowed, constraints.max_devices))
    plans_found: list[Plan] = []
    for devices in tried:
        part = cluster.part(devices)
        allowed_chain = replace(chain, allowed=allowed[:, list(devices)])
        shared_options = replace(options, budget=options.budget / len(tried))
        plans = find_plans(allowed_chain, part, shared_options, progress=progress)
        plans_found += [_told(plan, len(tried)) for plan in plans if plan.feasible]
        if not constraints.patterns and not plans_found:
            plans_found += plans  # their reason says what is lacking
    if not plans_found:
        raise InfeasibleError(_nothing(constraints))
    return sorted(
        plans_found, key=lambda plan: (not plan.feasible, plan.file.step_time)
    )[: options.top]


def find_fewest(
    chain: Chain,
    cluster: Cluster,
    options: SearchOptions,
    *,
    progress: Progress | None = None,
) -> list[Plan]:
    """Search the best plans on as few devices as hold any: powers of two, then all of them.

    Arguments are those of `find_obeying`. With a rate, plans must make so many tokens a second, or
    examples where these are no tokens.

    Errors are those of `find_obeying`. Where no number of devices reaches the rate, the answer is
    the fastest plan of all, which says so as the reason why it is not feasible.
    """
    constraints = options.constraints
    rate = options.rate
    plans = list[Plan]()
    most_devices = constraints.max_devices or cluster.num_devices
    fastest: Plan | None = None
    for count in list_device_counts(most_devices):
        if progress is not None:
            progress(f"planning: on {count} devices")
        try:
            limited = replace(
                options, constraints=replace(constraints, max_devices=count)
            )
            plans = find_obeying(chain, cluster, limited)
        except InfeasibleError:
            continue
        if plans[0].feasible and (rate is None or plans[0].file.rate >= rate):
            return plans
        if plans[0].feasible and (
            fastest is None or plans[0].step_time < fastest.step_time
        ):
            fastest = plans[0]
    if fastest is None or rate is None:
        return plans or find_obeying(chain, cluster, options)
    file = fastest.file
    line = (
        f"no plan that was found on up to {most_devices} devices makes {rate:,.0f} {file.unit}/s; "
        f"the fastest makes {file.rate:,.0f} on {len(file.memory)}: take more devices, or a larger "
        "batch"
    )
    return [replace(fastest, reason=line)]


def find_allowed_devices(
    chain: Chain,
    cluster: Cluster,
    asked: Constraints,
    progress: Callable[[str], None] | None = None,
) -> BoolArray:
    """Return whether each segment may be on each device. [segments, devices]

    Args:
        chain: The model.
        cluster: The devices.
        asked: The pins and forbids.
        progress: Called with a line for what each pattern matches.

    Raises:
        InputError: If a pattern or device matches nothing.
        InfeasibleError: If pins and forbids leave a segment no device.
    """
    names = [device.name for device in cluster.devices]
    allowed = np.ones((len(chain), len(names)), dtype=bool)
    for rule_name, rules in (("pin", asked.pin), ("forbid", asked.forbid)):
        for rule in rules:
            matched = _segments(chain, rule.pattern, f"{rule_name} {rule}")
            devices = devices_matched(rule.devices, names, matched.what)
            allowed[matched.ops] &= devices if rule_name == "pin" else ~devices
            if progress is not None:
                segments = int(matched.ops.sum())
                progress(
                    f"{matched.what}: {matched.modules} modules, {segments} segments"
                )
    for segment in np.flatnonzero(~allowed.any(axis=1)).tolist():
        raise InfeasibleError(
            f"plan: pins and forbids leave {chain.segments[segment].name!r} no device; loosen one"
        )
    return allowed


def _segments(chain: Chain, pattern: str, what: str) -> Matched:
    """Find the segments that have a module that a pattern matches."""
    pairs = [
        (k, path)
        for k, segment in enumerate(chain.segments)
        for path in segment.modules
    ]
    matches = Names([path for _, path in pairs], [""] * len(pairs)).matched(
        pattern, what
    )
    segments = np.zeros(len(chain), dtype=bool)
    hits = zip(pairs, matches.ops, strict=True)
    segments[[segment for (segment, _), is_hit in hits if is_hit]] = True
    return Matched(what, segments, matches.modules)


def _clusters(
    cluster: Cluster, allowed: BoolArray, most: int | None
) -> Iterator[tuple[int, ...]]:
    """Yield the devices to plan on, in order: runs of neighbours that differ in what plans see.

    Runs are taken from the cluster's order and from the order of the layers that need a device.
    """
    count = min(most or cluster.num_devices, cluster.num_devices)
    patterns: set[tuple[object, ...]] = set()
    for order in dict.fromkeys(
        (tuple(range(cluster.num_devices)), _by_layers(allowed))
    ):
        size = min(count, len(order))
        for first in range(len(order) - size + 1):
            devices = order[first : first + size]
            if not allowed[:, list(devices)].any(axis=1).all():
                continue
            key = _alike(cluster, allowed, devices)
            if key not in patterns and len(patterns) < MOST:
                patterns.add(key)
                yield devices


def _by_layers(allowed: BoolArray) -> tuple[int, ...]:
    """Return the devices that any layer may use, by the mean place of the layers that need them."""
    segments, count = allowed.shape
    bound = ~allowed.all(axis=1)
    places = []
    for d in np.flatnonzero(allowed.any(axis=0)).tolist():
        bound_segments = np.flatnonzero(bound & allowed[:, d])
        if bound_segments.size:
            place = float(bound_segments.mean())
        else:
            place = (d + 0.5) / count * segments
        places.append((place, d))
    return tuple(d for _, d in sorted(places))


def _alike(
    cluster: Cluster, allowed: BoolArray, devices: tuple[int, ...]
) -> tuple[object, ...]:
    """Return a key that is equal for runs of devices between which plans see no difference."""
    at = np.ix_(devices, devices)
    names = [cluster.devices[device].kind for device in devices]
    memory = cluster.memory[list(devices)].tolist()
    kinds = tuple(zip(names, memory, strict=True))
    links = cluster.latency[at].tobytes(), cluster.bandwidth[at].tobytes()
    return kinds, *links, allowed[:, list(devices)].tobytes()


def _told(plan: Plan, tried: int) -> Plan:
    """Return the plan with a notice of how many sets of devices were tried, if more than one."""
    if tried == 1:
        return plan
    notice = f"the best of {tried} orders or sets of devices that were searched"
    return replace(plan, notices=(*plan.notices, notice))


def _nothing(asked: Constraints) -> str:
    rules = [f"pin {rule}" for rule in asked.pin] + [
        f"forbid {rule}" for rule in asked.forbid
    ]
    return (
        f"plan: no plan that was tried obeys {', '.join(map(repr, rules))}; stages are runs of "
        "layers on neighbouring devices: pin in the order of layers, or loosen one"
    )
