"""Searches plans that obey pins, forbids and a limit on the number of devices.

A pinned layer is in a stage all of whose devices it is pinned to. A forbidden layer is in no stage
with a device that it is forbidden on.

Stages take devices in the cluster's order, and pins may contradict that order. So a second order is
searched, too: it leaves out devices that no layer may use, and sorts the others by the layers that
need them. With a limit of k devices every run of k neighbours is searched, unless plans would see
no difference to one before it; at most `MOST` runs, each with an equal part of the budget.
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
    list_device_counts,
    match_devices,
)

MOST = 6
"""Runs of neighbouring devices that are searched, at most."""


def find_obeying(
    chain: Chain,
    cluster: Cluster,
    options: SearchOptions,
    *,
    progress: Progress | None = None,
) -> list[Plan]:
    """Search the best plans that obey the constraints on layers and devices, the fastest first.

    Args:
        chain: The model.
        cluster: The devices, with the memory that plans may use.
        options: The options of the search, with the constraints. Their headroom is not read, as the
            cluster's memory is already without it.
        progress: Called with a line when a step of the work begins, and with what each pattern
            matches.

    Raises:
        InputError: If a pattern or device matches nothing, or the constraints keep ops or modules
            together.
        InfeasibleError: If no plan was found that obeys.
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
    runs = list(_list_device_runs(cluster, allowed, constraints.max_devices))
    plans_found: list[Plan] = []
    for devices in runs:
        part = cluster.part(devices)
        allowed_chain = replace(chain, allowed=allowed[:, list(devices)])
        run_options = replace(options, budget=options.budget / len(runs))
        plans = find_plans(allowed_chain, part, run_options, progress=progress)
        for plan in plans:
            if plan.feasible:
                plans_found.append(_add_notice(plan, len(runs)))
        if not constraints.patterns and not plans_found:
            plans_found += plans  # their reason says what is lacking
    if not plans_found:
        raise InfeasibleError(_explain_nothing(constraints))
    plans_found.sort(key=lambda plan: (not plan.feasible, plan.file.step_time))
    return plans_found[: options.top]


def find_fewest(
    chain: Chain,
    cluster: Cluster,
    options: SearchOptions,
    *,
    progress: Progress | None = None,
) -> list[Plan]:
    """Search the best plans on the fewest devices that any plan fits on.

    Powers of two are tried, then all devices. With a rate in the options, a plan must also make
    that many tokens a second (examples, if these are not rows of tokens). Arguments and errors are
    those of `find_obeying`.

    Returns:
        The plans, the fastest first. If no number of devices reaches the rate: the fastest plan of
        all, whose reason says so.
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
        best = plans[0]
        if not best.feasible:
            continue
        if rate is None or best.file.rate >= rate:
            return plans
        if fastest is None or best.step_time < fastest.step_time:
            fastest = best
    if fastest is None or rate is None:
        return plans or find_obeying(chain, cluster, options)
    file = fastest.file
    reason = (
        f"no plan that was found on up to {most_devices} devices makes {rate:,.0f} {file.unit}/s; "
        f"the fastest makes {file.rate:,.0f} on {len(file.memory)}: take more devices, or a larger "
        "batch"
    )
    return [replace(fastest, reason=reason)]


def find_allowed_devices(
    chain: Chain,
    cluster: Cluster,
    constraints: Constraints,
    progress: Callable[[str], None] | None = None,
) -> BoolArray:
    """Return whether each segment may be on each device. [segments, devices]

    Args:
        chain: The model.
        cluster: The devices.
        constraints: The pins and forbids.
        progress: Called with a line for what each pattern matches.

    Raises:
        InputError: If a pattern or device matches nothing.
        InfeasibleError: If pins and forbids leave a segment no device.
    """
    names = [device.name for device in cluster.devices]
    allowed = np.ones((len(chain), len(names)), dtype=bool)
    for rule_name, rules in (("pin", constraints.pin), ("forbid", constraints.forbid)):
        for rule in rules:
            matched = _match_segments(chain, rule.pattern, f"{rule_name} {rule}")
            devices = match_devices(rule.devices, names, matched.what)
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


def _match_segments(chain: Chain, pattern: str, constraint: str) -> Matched:
    """Return the segments that have a module that a pattern matches.

    Args:
        chain: The model.
        pattern: The pattern of module paths.
        constraint: The constraint that has the pattern, which errors begin with.

    Returns:
        The match, whose `ops` are the segments.

    Raises:
        InputError: If the pattern matches no module.
    """
    segment_indices: list[int] = []
    paths: list[str] = []
    for k, segment in enumerate(chain.segments):
        for path in segment.modules:
            segment_indices.append(k)
            paths.append(path)
    matches = Names(paths, [""] * len(paths)).matched(pattern, constraint)
    segments = np.zeros(len(chain), dtype=bool)
    for k, is_match in zip(segment_indices, matches.ops, strict=True):
        if is_match:
            segments[k] = True
    return Matched(constraint, segments, matches.modules)


def _list_device_runs(
    cluster: Cluster, allowed: BoolArray, max_devices: int | None
) -> Iterator[tuple[int, ...]]:
    """Yield the runs of neighbouring devices to plan on, at most `MOST`.

    Runs are taken from the cluster's order, then from the order of the layers that need a device.
    A run is left out if a layer may use none of its devices, or if plans see no difference between
    it and an earlier one.

    Args:
        cluster: The devices.
        allowed: Whether each segment may be on each device. [segments, devices]
        max_devices: Devices of a run at most; None: all of them.
    """
    count = min(max_devices or cluster.num_devices, cluster.num_devices)
    keys: set[tuple[object, ...]] = set()
    orders = (tuple(range(cluster.num_devices)), _order_by_layers(allowed))
    for order in dict.fromkeys(orders):
        size = min(count, len(order))
        for first in range(len(order) - size + 1):
            devices = order[first : first + size]
            if not allowed[:, list(devices)].any(axis=1).all():
                continue
            key = _make_run_key(cluster, allowed, devices)
            if key not in keys and len(keys) < MOST:
                keys.add(key)
                yield devices


def _order_by_layers(allowed: BoolArray) -> tuple[int, ...]:
    """Return the devices that any layer may use, by the mean position of the layers they serve.

    Only layers that may not be everywhere count. A device that serves none of them keeps its
    position in the cluster, scaled to the number of layers.

    Args:
        allowed: Whether each segment may be on each device. [segments, devices]
    """
    num_segments, num_devices = allowed.shape
    is_restricted = ~allowed.all(axis=1)
    positions = []
    for device in np.flatnonzero(allowed.any(axis=0)).tolist():
        served_segments = np.flatnonzero(is_restricted & allowed[:, device])
        if served_segments.size:
            position = float(served_segments.mean())
        else:
            position = (device + 0.5) / num_devices * num_segments
        positions.append((position, device))
    return tuple(device for _, device in sorted(positions))


def _make_run_key(
    cluster: Cluster, allowed: BoolArray, devices: tuple[int, ...]
) -> tuple[object, ...]:
    """Return a key that is equal for runs of devices between which plans see no difference.

    Plans see kinds, memory, links and what may be on each device, but no names.
    """
    pairs = np.ix_(devices, devices)
    kinds = [cluster.devices[device].kind for device in devices]
    memory = cluster.memory[list(devices)].tolist()
    return (
        tuple(zip(kinds, memory, strict=True)),
        cluster.latency[pairs].tobytes(),
        cluster.bandwidth[pairs].tobytes(),
        allowed[:, list(devices)].tobytes(),
    )


def _add_notice(plan: Plan, num_runs: int) -> Plan:
    """Return the plan with a notice of how many runs of devices were searched, if several."""
    if num_runs == 1:
        return plan
    notice = f"the best of {num_runs} orders or sets of devices that were searched"
    return replace(plan, notices=(*plan.notices, notice))


def _explain_nothing(constraints: Constraints) -> str:
    """Return the message that no plan obeys the constraints."""
    pins = [f"pin {rule}" for rule in constraints.pin]
    forbids = [f"forbid {rule}" for rule in constraints.forbid]
    rules = [*pins, *forbids]
    return (
        f"plan: no plan that was tried obeys {', '.join(map(repr, rules))}; stages are runs of "
        "layers on neighbouring devices: pin in the order of layers, or loosen one"
    )
