"""Placements that a search starts from: a placement's file, or a device map by module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.errors import FormatError, InputError
from gnnplace.files import read_json
from gnnplace.placers.search.space import Found, SearchSpace
from gnnplace.problem import Placement, Problem, list_faults, placement_from_data

NOTE = "the start as it was given"


def read_start(path: str | Path, problem: Problem) -> Placement:
    """Read a placement of a problem, or a device map of the model that it was captured from.

    Raises:
        FormatError: A malformed file; names the key path.
        MismatchError: The placement was made for another problem.
    """
    data = read_json(path)
    if isinstance(data, dict) and "format" not in data:
        return Placement(_map_devices(data, problem, str(path)))
    return placement_from_data(data, problem, str(path))


def _map_devices(device_map: dict[str, Any], problem: Problem, source: str) -> IntArray:
    """Return the device of each op by a map of module names, the longest name first. [n]

    An op whose module the map does not name goes where its unit is, or where the unit before it is.
    """
    device_of_module = {
        module: _find_device(module, device, problem, source)
        for module, device in device_map.items()
    }
    space = SearchSpace(problem)
    device_of_unit = np.full(problem.num_units, -1, np.int32)
    for op, module in enumerate(problem.module):
        name = module or ""
        while name and name not in device_of_module:
            name = name.rpartition(".")[0]
        unit = problem.unit_of[op]
        if module is not None and device_of_unit[unit] < 0:
            device_of_unit[unit] = device_of_module.get(name, -1)
    named = device_of_unit[space.unit_order]
    if (named < 0).all():
        raise FormatError(
            f"{source}: names no module of {problem.name!r}; give a placement's file, or a device "
            "map of the model that the problem was captured from"
        )
    # Units without a name take the device of the one before them in the graph, the first of all
    # that of the first one with a name.
    positions = np.where(named >= 0, np.arange(len(named)), -1)
    latest = np.maximum.accumulate(positions)
    latest[latest < 0] = np.flatnonzero(named >= 0)[0]
    device_of_unit[space.unit_order] = named[latest]
    return space.spread(space.allow(device_of_unit))


def _find_device(module: str, device: object, problem: Problem, source: str) -> int:
    """Return the index of a device that a map names, by its number or its name.

    Raises:
        FormatError: There is none.
    """
    count = problem.num_devices
    if isinstance(device, int) and not isinstance(device, bool) and 0 <= device < count:
        return device
    if isinstance(device, str) and device in problem.cluster.device_index:
        return problem.cluster.device_index[device]
    names = ", ".join(d.name for d in problem.cluster.devices)
    raise FormatError(
        f"{source}: {module}: no device is {device!r}; the devices are {names}, or 0 to {count - 1}"
    )


def space_with_start(problem: Problem, start: Placement) -> SearchSpace:
    """Return a search space whose searches start from a placement too and never find a worse one.

    Raises:
        InputError: The placement cannot run: a pin, a forbid, a kind or a missing link is against
            it.
        DeadlockError: Its sequences contradict the graph.
    """
    if problems := list_faults(problem, start.device):
        raise InputError(f"start: {problems[0]}; loosen that, or give another start")
    space = SearchSpace(problem)
    space.starts = (Found(start.device, space.simulator.find_order(start), NOTE),)
    return space
