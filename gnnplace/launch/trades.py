"""Plans that trade step time for less memory or fewer devices, each the fastest of its kind.

FT and TensorOpt (Cai et al., 2020, arXiv 2004.10856) ask three questions of the plans that are best
in time and memory: the least time within a memory, the least memory within a time, the fewest
devices. A search answers the first; the others ask it again with less memory, or fewer devices.

The frontier of memory is walked from the fastest plan down: each next search may use `STEP` less
than the plan before it reserves, until nothing fits. Between two of its plans none is both faster
than the second and leaner than the first by more than that step.

Complexity: a search for each plan of the frontier; for the least memory some six more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gnnplace.errors import InfeasibleError
from gnnplace.launch.searching import LaunchAnswer, LauncherSearch
from gnnplace.problem import list_device_counts

STEP = 0.1
"""By how much less each plan of a frontier of memory may use."""
FINE_STEP = 0.01
"""How closely the least memory is found."""


def memory_frontier(search: LauncherSearch, launcher: str) -> Iterator[LaunchAnswer]:
    """Yield a launcher's fastest plans with less and less memory, the fastest of all first.

    Args:
        search: The search of the model on the cluster.
        launcher: The launcher's name.

    Raises:
        InfeasibleError: If nothing fits that the launcher can run.
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


def least_memory(search: LauncherSearch, launcher: str) -> LaunchAnswer:
    """Return a launcher's plan with the least memory, to within `FINE_STEP`.

    Where the search has a rate, of those that reach it.

    Args:
        search: The search of the model on the cluster.
        launcher: The launcher's name.

    Raises:
        InfeasibleError: If nothing fits that the launcher can run, or reaches the rate.
    """
    answer = search.find(launcher)
    factor = 0.5  # part of the bytes that the leanest plan so far reserves
    while factor < 1 - FINE_STEP / 2:
        try:
            answer = with_memory_below(search, answer, factor).find(launcher)
        except InfeasibleError:
            factor = (1 + factor) / 2
    return search.price_again(launcher, answer)


def device_frontier(search: LauncherSearch, launcher: str) -> Iterator[LaunchAnswer]:
    """Yield a launcher's fastest plans on more and more devices: powers of two, then all of them.

    Numbers of devices on which nothing fits, or which make no more tokens a second, are left out.

    Args:
        search: The search of the model on the cluster.
        launcher: The launcher's name.
    """
    rate = 0.0
    for count in list_device_counts(search.cluster.num_devices):
        try:
            answer = replace(search, num_devices=count).find(launcher)
        except InfeasibleError:
            continue
        if (answer.answer.tokens_per_second or 0.0) > rate:
            rate = answer.answer.tokens_per_second or 0.0
            yield answer


def with_memory_below(
    search: LauncherSearch, answer: LaunchAnswer, factor: float
) -> LauncherSearch:
    """Return a search whose devices have a part of the bytes that a plan reserves."""
    usable = answer.setting.framework.constants["usable"]
    assert answer.answer.peak is not None
    limit = factor * answer.answer.peak / usable
    return replace(search, memory_limit=limit, _settings={}, _spaces={}, _free={})
