"""``expert``: places by the rules of thumb that people use, from module names.

* **One device per recurrent layer** (Wu et al., 2016, GNMT, arXiv 1609.08144, section 3.3; the
  expert's placement of Mirhoseini et al., 2017, arXiv 1706.04972, section 4.1). As in
  `nmt/gnmt_model.py` of tensorflow/nmt, layer i of the encoder and layer i of the decoder are on
  device i modulo the number of devices, embeddings are on the first, ops between two layers on the
  device of the layer before, softmax and loss on the last. Gradients are where their values are. A
  recurrent layer is a module with gates: two sigmoids and a tanh of its own.
* **Encoder and decoder on different devices**: modules named encoder and decoder get half of the
  devices each, and their layers are split into blocks.
* **One device per tower**: parallel top-level modules that no tensor connects directly get a device
  each, the largest first, each on the least loaded device.
* **Blocks of layers** (everything else): modules in order, the same number of units on each device
  whatever they cost, as people cut a list of layers. Mirhoseini et al. compare their policy with
  this on Inception (the other practice that they name, one device, is ``single``).

The module names decide which rule applies; without names it is blocks of layers. O(n).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.search.chunks import device_ranking
from gnnplace.placers.search.space import SearchSpace
from gnnplace.problem import Problem

SIDES = (("encoder",), ("decoder",))
# The suffixes of a captured node's name and of its micro-batch.
DIGITS = re.compile(r"(_\d+)?(#\d+)?$")
SMALL_TOWER = 0.05  # A tower with less of the work than this is glue, not a tower.


class Expert(Placer):
    """Rules of thumb by network family."""

    name = "expert"

    def __init__(self, published: bool = True) -> None:
        """Use the published placement of recurrent layers, or the rules from names alone."""
        self.published = published

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        modules = space.problem.module
        labels = unit_labels(
            space, [(module or "").partition(".")[0] for module in modules]
        )
        devices = np.sort(device_ranking(space))
        unit_device = None
        rule = "recurrent layers apart"
        if self.published:
            unit_device = recurrent_layers(space, devices)
        if unit_device is None:
            unit_device = sides(space, labels, devices)
            rule = "encoder and decoder apart"
        if unit_device is None:
            unit_device = towers(space, labels, devices)
            rule = "towers apart"
        if unit_device is None:
            unit_device = blocks(space.unit_order, devices, len(labels))
            rule = "layers in blocks"
        device = space.spread(space.allow(unit_device))
        return Found(device, space.sequence(device)[1], rule)


def unit_labels(space: SearchSpace, labels: Sequence[str]) -> list[str]:
    """Return the most frequent label of each unit's ops. [U], of [N]"""
    votes: list[Counter[str]] = [Counter() for _ in range(space.problem.num_units)]
    for unit, label in zip(space.problem.unit_of, labels, strict=True):
        votes[unit][label] += 1
    return [vote.most_common(1)[0][0] for vote in votes]


def recurrent_layers(space: SearchSpace, devices: IntArray) -> IntArray | None:
    """Put layers with gates on a device each, by their depth in encoder or decoder; None if
    not so.
    """
    problem = space.problem
    modules = find_op_modules(problem)
    kinds = defaultdict[str, Counter[str]](Counter)
    for module, name, members in zip(
        modules, problem.graph.names, problem.members, strict=True
    ):
        kinds[module].update(DIGITS.sub("", node) for node in members or (name,))
    depth = dict[str, int]()
    layers = Counter[str]()
    depth_in_stack = 0
    for module in dict.fromkeys(modules):  # in the order of the forward pass
        if kinds[module]["sigmoid"] >= 2 and kinds[module]["tanh"] and module:
            stack = next((s for (s,) in SIDES if s in module.lower()), "")
            depth_in_stack = layers[stack]
            layers[stack] += 1
        depth[module] = 0 if kinds[module]["embedding"] else depth_in_stack
    if len(devices) < 2 or max(layers.values(), default=0) < 2:
        return None
    labels = unit_labels(space, modules)
    return devices[[depth[label] % len(devices) for label in labels]].astype(np.int32)


def find_op_modules(problem: Problem) -> list[str]:
    """Return the module of every op; of one without the module of its first input. [N]"""
    op_modules = [module or "" for module in problem.module]
    source, target, _ = problem.graph.edges
    # The last entry of a key counts, which in reversed edges is the first input.
    edges = zip(target[::-1].tolist(), source[::-1].tolist(), strict=True)
    first = dict(edges)
    for op in problem.graph.topological_order:
        if not op_modules[op] and op in first:
            op_modules[op] = op_modules[first[op]]
    return op_modules


def blocks(order: IntArray, devices: IntArray, num_units: int) -> IntArray:
    """Put equally many units of ``order`` on each device; the rest on the first. [U]"""
    unit_device = np.full(num_units, devices[0], dtype=np.int32)
    unit_device[order] = devices[
        np.arange(len(order)) * len(devices) // max(1, len(order))
    ]
    return unit_device


def sides(space: SearchSpace, labels: list[str], devices: IntArray) -> IntArray | None:
    """Return encoder units on the first half of the devices, the rest on the second; None if not
    so.
    """
    is_side = [
        [any(key in label.lower() for key in side) for label in labels]
        for side in SIDES
    ]
    if len(devices) < 2 or not all(any(side) for side in is_side):
        return None
    half = len(devices) // 2
    encoder = np.array(is_side[0])
    order = space.unit_order
    first = blocks(order[encoder[order]], devices[:half], len(labels))
    second = blocks(order[~encoder[order]], devices[half:], len(labels))
    return np.where(encoder, first, second).astype(np.int32)


def towers(space: SearchSpace, labels: list[str], devices: IntArray) -> IntArray | None:
    """Put unconnected top-level modules on devices of their own; None if there are fewer
    than two.
    """
    work = dict.fromkeys(labels, 0.0)
    for label, seconds in zip(labels, space.mean_work, strict=True):
        work[label] += float(seconds)
    total = sum(work.values())
    names = [name for name in work if name and work[name] >= SMALL_TOWER * total]
    names.sort(key=lambda name: -work[name])
    source, target, _ = space.problem.graph.edges
    unit = space.problem.unit_of
    edges = zip(source, target, strict=True)
    pairs = {(labels[unit[a]], labels[unit[b]]) for a, b in edges}
    met = {frozenset(pair) for pair in pairs if pair[0] != pair[1]}
    touched = {
        n for n in names if any(frozenset((n, neighbour)) in met for neighbour in names)
    }
    names = [name for name in names if name not in touched]
    if len(names) < 2 or len(devices) < 2:
        return None
    load = np.zeros(len(devices))
    home = {}
    for name in names:
        home[name] = int(load.argmin())
        load[home[name]] += work[name]
    return devices[[home.get(label, 0) for label in labels]].astype(np.int32)
