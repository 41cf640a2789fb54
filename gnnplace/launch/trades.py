"""Searches plans that trade step time for less memory or fewer devices.

FT and TensorOpt (Cai et al., 2020, arXiv 2004.10856) ask three questions of the plans that are
Pareto-optimal in time and memory: the least time within a memory, the least memory within a time,
and the fewest devices. A search by time answers the first. The others repeat that search with less
memory, or with fewer devices.

The frontier of memory is walked from the fastest plan down. Each search may use at most
1 - `STEP` of the bytes that the previous plan reserves, until nothing fits. So between two
neighbours of the frontier there is no plan that is faster than the second and reserves less than
that part of the first.

Complexity: one search for each plan of the frontier. The least memory takes about six
more: each that finds nothing halves the distance between its limit and the leanest plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gnnplace.errors import InfeasibleError
from gnnplace.launch.searching import LaunchAnswer, LauncherSearch
from gnnplace.problem import list_device_counts

STEP = 0.1
"""Part of a plan's bytes by which the next one of the memory frontier must be smaller."""
FINE_STEP = 0.01
"""Part of a plan's bytes to within which the least memory is found."""


def memory_frontier(search: LauncherSearch, launcher: str) -> Iterator[LaunchAnswer]:
    """Yield a launcher's fastest plans with less and less memory, the fastest of all first.

    Args:
        search: The search of the model on the cluster.
        launcher: The launcher's name.

    Raises:
        InfeasibleError: If the launcher can run no plan that fits.
    """
    answer = search.find(launcher)
    yield answer
    while True:
        limited = with_memory_below(search, answer, 1 - STEP)
        try:
            answer = limited.find(launcher)
        except InfeasibleError:
            return
        yield answer


def find_leanest_plan(search: LauncherSearch, launcher: str) -> LaunchAnswer:
    """Return a launcher's plan with the least memory, to within `FINE_STEP`.

    If the search has a rate, only plans that reach it count.

    Args:
        search: The search of the model on the cluster.
        launcher: The launcher's name.

    Raises:
        InfeasibleError: If the launcher can run no plan that fits and reaches the rate.
    """
    answer = search.find(launcher)
    # The limit of the next search, as a part of what the leanest plan so far reserves. If nothing
    # fits, the limit goes halfway back to that plan's bytes; if a plan fits, it is the leanest.
    factor = 0.5
    while factor < 1 - FINE_STEP / 2:
        try:
            answer = with_memory_below(search, answer, factor).find(launcher)
        except InfeasibleError:
            factor = (1 + factor) / 2
    return search.price_again(launcher, answer)


def device_frontier(search: LauncherSearch, launcher: str) -> Iterator[LaunchAnswer]:
    """Yield a launcher's fastest plans on more and more devices: powers of two, then all of them.

    A number of devices is left out if nothing fits on it, or if its plan makes no more tokens a
    second than that of fewer devices.

    Args:
        search: The search of the model on the cluster.
        launcher: The launcher's name.
    """
    best_rate = 0.0  # tokens a second
    for count in list_device_counts(search.cluster.num_devices):
        try:
            answer = replace(search, num_devices=count).find(launcher)
        except InfeasibleError:
            continue
        rate = answer.answer.tokens_per_second or 0.0
        if rate > best_rate:
            best_rate = rate
            yield answer


def with_memory_below(
    search: LauncherSearch, answer: LaunchAnswer, factor: float
) -> LauncherSearch:
    """Return the search with devices that have only a part of the bytes that a plan reserves.

    Args:
        search: The search that found the plan.
        answer: The plan with its price.
        factor: The part of the plan's peak, between 0 and 1.
    """
    # The search takes a device's memory; a plan's peak must fit the usable part of it.
    usable = answer.setting.framework.constants["usable"]
    assert answer.answer.peak is not None
    limit = factor * answer.answer.peak / usable
    return replace(search, memory_limit=limit, _settings={}, _spaces={}, _free={})
