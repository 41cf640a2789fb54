"""``expert``: the rules of thumb that people place by, from module names.

* **Encoder and decoder apart** (Wu et al., 2016, GNMT): modules named encoder and decoder get half
  of the devices each, their layers in blocks.
* **Towers apart**: parallel top-level modules that no tensor connects directly get a device each,
  the largest first to the least loaded device.
* **Layers in blocks** (everything else): modules in order, equally many units a device, whatever
  they cost, as people cut a list of layers.

The rule is chosen by the names; without module names it is layers in blocks. O(n).
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.search.chunks import device_ranking
from gnnplace.placers.search.space import SearchSpace

SIDES = (("encoder",), ("decoder",))
SMALL_TOWER = 0.05  # A tower with less of the work than this is glue, not a tower.


class Expert(Placer):
    """Rules of thumb by network family."""

    name = "expert"

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        labels = unit_labels(space)
        devices = np.sort(device_ranking(space))
        chosen, rule = sides(space, labels, devices), "encoder and decoder apart"
        if chosen is None:
            chosen, rule = towers(space, labels, devices), "towers apart"
        if chosen is None:
            chosen, rule = blocks(space.unit_order, devices, len(labels)), "layers in blocks"
        device = space.spread(space.allow(chosen))
        return Found(device, space.sequence(device)[1], rule)


def unit_labels(space: SearchSpace) -> list[str]:
    """The most frequent top-level module of each unit's ops, '' for none. [U]"""
    votes: list[Counter[str]] = [Counter() for _ in range(space.problem.num_units)]
    for unit, module in zip(space.problem.unit_of, space.problem.module, strict=True):
        votes[unit][(module or "").partition(".")[0]] += 1
    return [vote.most_common(1)[0][0] for vote in votes]


def blocks(order: IntArray, devices: IntArray, num_units: int) -> IntArray:
    """Equally many units of ``order`` on each device; the rest on the first. [U]"""
    chosen = np.full(num_units, devices[0], dtype=np.int32)
    chosen[order] = devices[np.arange(len(order)) * len(devices) // max(1, len(order))]
    return chosen


def sides(space: SearchSpace, labels: list[str], devices: IntArray) -> IntArray | None:
    """Encoder units on the first half of the devices, the rest on the second; None if not so."""
    is_side = [[any(key in label.lower() for key in side) for label in labels] for side in SIDES]
    if len(devices) < 2 or not all(any(side) for side in is_side):
        return None
    half = len(devices) // 2
    encoder = np.array(is_side[0])
    order = space.unit_order
    first = blocks(order[encoder[order]], devices[:half], len(labels))
    second = blocks(order[~encoder[order]], devices[half:], len(labels))
    return np.where(encoder, first, second).astype(np.int32)


def towers(space: SearchSpace, labels: list[str], devices: IntArray) -> IntArray | None:
    """Unconnected top-level modules on devices of their own; None if there are fewer than two."""
    work = dict.fromkeys(labels, 0.0)
    for label, seconds in zip(labels, space.mean_work, strict=True):
        work[label] += float(seconds)
    total = sum(work.values())
    names = [name for name in work if name and work[name] >= SMALL_TOWER * total]
    names.sort(key=lambda name: -work[name])
    names = [name for name in names if not _touches(space, labels, name, set(names) - {name})]
    if len(names) < 2 or len(devices) < 2:
        return None
    load, home = np.zeros(len(devices)), {}
    for name in names:
        home[name] = int(load.argmin())
        load[home[name]] += work[name]
    return devices[[home.get(label, 0) for label in labels]].astype(np.int32)


def _touches(space: SearchSpace, labels: list[str], name: str, others: set[str]) -> bool:
    source, target, _ = space.problem.graph.edges
    unit = space.problem.unit_of
    pairs = {(labels[unit[a]], labels[unit[b]]) for a, b in zip(source, target, strict=True)}
    return any((name, other) in pairs or (other, name) in pairs for other in others)
