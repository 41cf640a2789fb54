"""Applying constraints: `apply_constraints` turns what a user asks for into attributes of a
problem.

* A pin to one device becomes the problem's ``pin``. Every other pin, and every forbid, becomes
  ``forbid``.
* Ops that stay together become one colocation class, which is merged with all classes that share an
  op with it. With ``by_module``, the ops of each unit of the model stay together.
* Headroom becomes the devices' ``reserve``.
* ``max_memory`` limits bytes by device, as in accelerate. A device is given by its name, or by a
  number as PyTorch numbers GPUs: ``0`` is the first device that is not a CPU.
* The largest number of devices is no attribute of a problem: see ``placers.few_devices``.

**Patterns** (``Names``). A pattern matches an op if it matches the name of the op's module or of a
module around that (``fnmatch`` with upper and lower case; ``*`` also matches dots). So ``encoder``
matches the module ``encoder`` and all inside it, as does ``encoder.*``. If no op has a module, as
in problems of other programs, patterns are matched with the names of ops, without the number of a
micro-batch. Complexity: O(distinct names x depth) for each pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

import numpy as np

from gnnplace.arrays import BoolArray, IntArray, LongArray
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.problem import Problem
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.constraints.constraints import (
    ConstraintRule,
    Constraints,
    with_headroom,
)

Progress = Callable[[str], None]
ELSEWHERE = ("cpu", "disk")  # where accelerate puts what fits on no GPU
CPU = "cpu"


@dataclass(frozen=True, eq=False)
class Resolved:
    """Constraints with the ops of one graph that they match.

    Attributes:
        pins: The ops that each pin matches, and its rule.
        forbids: The ops that each forbid matches, and its rule.
        together: The ops that each set of patterns matches.
    """

    pins: tuple[tuple[Matched, ConstraintRule], ...]
    forbids: tuple[tuple[Matched, ConstraintRule], ...]
    together: tuple[Matched, ...]

    @property
    def matched(self) -> tuple[Matched, ...]:
        """Return the ops of all patterns: of pins, of forbids, then of those that stay together."""
        pinned = tuple(matched for matched, _ in self.pins)
        forbidden = tuple(matched for matched, _ in self.forbids)
        return (*pinned, *forbidden, *self.together)

    def borders(self, n: int) -> LongArray:
        """Return a number for each op. Ops of different numbers must not be in one group. [n]

        Ops have the same number if the same patterns match them.
        """
        if not self.matched:
            return np.zeros(n, dtype=np.int64)
        rows = np.stack([matched.ops for matched in self.matched], axis=1)
        _, number = np.unique(rows, axis=0, return_inverse=True)
        return number.ravel().astype(np.int64)

    def devices(self, cluster: Cluster) -> list[tuple[BoolArray, BoolArray]]:
        """Return, for each pin and forbid, its ops and the devices that it leaves them. [n], [D]

        Raises:
            InputError: A pattern matches no device.
        """
        names = [device.name for device in cluster.devices]
        ops_and_devices: list[tuple[BoolArray, BoolArray]] = []
        for matched, rule in self.pins:
            pinned = match_devices(rule.devices, names, matched.what)
            ops_and_devices.append((matched.ops, pinned))
        for matched, rule in self.forbids:
            forbidden = match_devices(rule.devices, names, matched.what)
            ops_and_devices.append((matched.ops, ~forbidden))
        return ops_and_devices

    def of_groups(self, group: IntArray, count: int) -> Resolved:
        """Return the same constraints over groups of ops. No group crosses a border.

        Args:
            group: Group of each op, from 0. [n]
            count: The number of groups, G.
        """

        def match_groups(matched: Matched) -> Matched:
            groups = np.zeros(count, dtype=bool)
            groups[group[matched.ops]] = True
            return replace(matched, ops=groups)

        return Resolved(
            pins=tuple((match_groups(matched), rule) for matched, rule in self.pins),
            forbids=tuple(
                (match_groups(matched), rule) for matched, rule in self.forbids
            ),
            together=tuple(map(match_groups, self.together)),
        )

    def classes(self, colocate: Sequence[str | None]) -> tuple[str | None, ...]:
        """Return the colocation class of each op, after ops that stay together are merged. [n]"""
        labels = list(colocate)
        for matched in self.together:
            members = np.flatnonzero(matched.ops).tolist()
            # Classes that share an op with these, in the order of ops; all become the first one.
            merged = dict.fromkeys(labels[i] for i in members if labels[i] is not None)
            name = next(iter(merged), None) or _find_free_name(matched.what, labels)
            for i in members:
                labels[i] = name
            labels = [name if label in merged else label for label in labels]
        return tuple(labels)


def _find_free_name(name: str, names: Sequence[str | None]) -> str:
    """Return ``name``, with as many primes added as make it differ from all ``names``."""
    while name in names:
        name = f"{name}'"
    return name


def resolve(
    constraints: Constraints,
    modules: Sequence[str | None],
    ops: Sequence[str],
    progress: Progress | None = None,
    units: Sequence[str | None] | None = None,
) -> Resolved:
    """Find the ops that constraints match.

    Args:
        constraints: The pins, forbids and sets that a user asks for.
        modules: Module of each op, or None. [n]
        ops: Name of each op. [n]
        progress: Called with a line for each pattern: how many modules and ops it matches.
        units: The unit of the model whose device each op shares, for ``by_module``; None for an op
            without one. [n]

    Raises:
        InputError: A pattern matches nothing; the message shows similar names. Or placements by
            module are asked for, but ``units`` are not known.
    """
    names = Names(modules, ops)
    if units is None and (constraints.by_module or constraints.no_split):
        raise InputError(
            "by-module, no-split: a problem file does not have the model's modules; give the model"
        )
    resolved = Resolved(
        pins=tuple(
            (names.matched(rule.pattern, f"pin {rule}"), rule)
            for rule in constraints.pin
        ),
        forbids=tuple(
            (names.matched(rule.pattern, f"forbid {rule}"), rule)
            for rule in constraints.forbid
        ),
        together=tuple(
            _match_any(names, patterns) for patterns in constraints.together
        ),
    )
    if progress is not None:
        for matched in resolved.matched:
            progress(str(matched))
    return replace(resolved, together=(*resolved.together, *_match_units(units or ())))


def _match_units(units: Sequence[str | None]) -> list[Matched]:
    """Return the ops of each unit of the model.

    Args:
        units: Unit of each op, or None. [n]
    """
    # A name that no unit has stands for None, which numpy would not compare by entry.
    no_unit = "\0"
    unit_names = np.array(
        [name if name is not None else no_unit for name in units], dtype=object
    )
    distinct_names = dict.fromkeys(name for name in units if name is not None)
    return [
        Matched(what=name or "model", ops=unit_names == name, modules=1)
        for name in distinct_names
    ]


def _match_any(names: Names, patterns: Sequence[str]) -> Matched:
    """Return the ops that any of the patterns matches; each must match some."""
    label = f"together {','.join(patterns)}"
    matches = [names.matched(pattern, label) for pattern in patterns]
    ops = np.logical_or.reduce([matched.ops for matched in matches])
    num_modules = len(np.unique(names.index[ops]))
    return Matched(what=label, ops=ops, modules=num_modules)


def apply_constraints(
    problem: Problem, constraints: Constraints, progress: Progress | None = None
) -> Problem:
    """Return the problem with constraints applied to its ops, and to the memory of its devices.

    Args:
        problem: The problem; its groups stay as they are.
        constraints: The constraints. ``max_devices`` is not applied: it is an option of the search.
        progress: Called with a line for each pattern.

    Raises:
        InputError: A pattern matches no op or no device.
        InfeasibleError: The constraints leave no device to an op, or to ops that share a device.
    """
    captured = (problem.captured or {}).get("constraints") or {}
    if captured.get("by_module") or captured.get("no_split"):
        # The problem was captured by module: its colocation classes have the modules already.
        constraints = replace(constraints, by_module=False, no_split=())
    if constraints.patterns:
        resolved = resolve(constraints, problem.module, problem.graph.names, progress)
        problem = replace(problem, colocate=resolved.classes(problem.colocate))
        problem = apply_pins(problem, resolved)
    return limit_memory(problem, constraints)


def limit_memory(problem: Problem, constraints: Constraints) -> Problem:
    """Return the problem with ``max_memory`` and headroom applied to its devices.

    Raises:
        InputError: There is no such device, or more headroom is asked for than a device has.
    """
    problem = with_max_memory(problem, constraints.max_memory)
    return with_headroom(problem, constraints.headroom)


def apply_pins(problem: Problem, resolved: Resolved) -> Problem:
    """Return the problem with pins and forbids applied. Colocation classes stay as they are.

    Raises:
        InputError: A pattern matches no device.
        InfeasibleError: No device is left to an op, or to ops that share a device.
    """
    permitted = np.ones((problem.num_ops, problem.num_devices), dtype=bool)
    for ops, devices in resolved.devices(problem.cluster):
        permitted[ops] &= devices

    # An op with a single device left is pinned to it, and needs no forbids.
    has_one_device = permitted.sum(axis=1) == 1
    is_pinned = has_one_device & (problem.pin < 0) & (problem.num_devices > 1)
    pin = np.where(is_pinned, permitted.argmax(axis=1), problem.pin)
    forbid = ~permitted & ~is_pinned[:, None]
    if problem.forbid is not None:
        forbid |= problem.forbid
    restricted = replace(
        problem,
        pin=pin.astype(np.int32),
        forbid=forbid if forbid.any() else None,
    )
    _check_devices_left(restricted, resolved)
    return restricted


def _check_devices_left(problem: Problem, resolved: Resolved) -> None:
    """Check that every unit that constraints match has a device left.

    Raises:
        InfeasibleError: A unit has none; the message names the constraints that match its ops.
    """
    for unit in np.flatnonzero(~problem.unit_allowed.any(axis=1)).tolist():
        members = problem.unit_of == unit
        rules = []
        for matched in resolved.matched:
            if (matched.ops & members).any():
                rules.append(repr(matched.what))
        # A unit that no constraint matches had no device before.
        if rules:
            raise InfeasibleError(_describe_contradiction(problem, members, rules))


def _describe_contradiction(
    problem: Problem, members: BoolArray, rules: Sequence[str]
) -> str:
    """Describe a unit that has no device left, and the constraints that match its ops.

    Args:
        problem: The problem.
        members: Whether an op is in the unit. [n]
        rules: The constraints, in words.
    """
    ops = np.flatnonzero(members).tolist()
    modules = list(dict.fromkeys(problem.module[i] or "" for i in ops))
    shown = ", ".join(filter(None, modules[:MOST_SHOWN]))
    if len(modules) > MOST_SHOWN:
        shown += ", ..."
    shared = ""
    if len(ops) > 1 and shown:
        shared = f" and the ops that share a device with it (of {shown})"
    own_pins = ""
    if (problem.pin[members] >= 0).any():
        own_pins = " with the problem's own pins"
    return (
        f"op {problem.graph.names[ops[0]]!r}{shared}: {' and '.join(rules)}{own_pins} "
        "leave no device; loosen one of them"
    )


def with_max_memory(problem: Problem, most: Sequence[tuple[str, float]]) -> Problem:
    """Return the problem with less memory on some devices. Others keep theirs.

    Args:
        problem: The problem whose devices are limited.
        most: Names or numbers of devices, each with the largest number of bytes.

    Raises:
        InputError: There is no such device.
    """
    if not most:
        return problem
    devices = list(problem.cluster.devices)
    for name, most_bytes in most:
        for index in _find_devices(problem.cluster, name):
            memory = min(devices[index].memory, most_bytes)
            devices[index] = devices[index].model_copy(update={"memory": memory})
    return replace(problem, cluster=replace(problem.cluster, devices=tuple(devices)))


def _find_devices(cluster: Cluster, name: str) -> list[int]:
    """Return the devices that a name or number of ``max_memory`` means.

    For a "cpu" or "disk" that the cluster does not have, there are none.

    Raises:
        InputError: There is no such device.
    """
    same_name = [i for i, device in enumerate(cluster.devices) if device.name == name]
    if same_name:
        return same_name
    gpus = [i for i, device in enumerate(cluster.devices) if device.kind != CPU]
    if name.isdigit() and int(name) < len(gpus):
        return [gpus[int(name)]]
    if name in ELSEWHERE:
        return [i for i, device in enumerate(cluster.devices) if device.kind == name]
    shown = cluster.devices[:MOST_NAMES]
    device_names = ", ".join(device.name for device in shown)
    raise InputError(
        f"max-memory {name!r}: no device is called so; devices: {device_names}"
    )


INSIDE = ".*"  # ends a pattern of all that is inside a module
NEAR = 3  # similar names that an error shows
LIKENESS = 0.5  # similarity of these names, at least (``difflib``)
MOST_SHOWN = 4  # modules or devices that an error lists
MOST_NAMES = 8  # names that an error lists if none is similar


@dataclass(frozen=True, eq=False)
class Matched:
    """The ops that a pattern matches.

    Attributes:
        what: The constraint in words, such as "pin encoder.*=gpu:0".
        ops: Whether the pattern matches an op. [n]
        modules: The number of distinct modules of these ops.
    """

    what: str
    ops: BoolArray
    modules: int

    def __str__(self) -> str:
        modules = _format_count(self.modules, "module")
        ops = _format_count(int(self.ops.sum()), "op")
        return f"{self.what}: {modules}, {ops}"


def _format_count(number: int, noun: str) -> str:
    """Return a number with a noun, which is in the plural unless the number is 1."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"


class Names:
    """The names that patterns are matched with: those of modules, or of ops if there are none.

    Args:
        modules: Module of each op, or None. [n]
        ops: Name of each op. [n]

    Attributes:
        of_modules: Whether the names are those of modules.
        names: The distinct names.
        index: Index in ``names`` of each op's name. [n]
    """

    def __init__(self, modules: Sequence[str | None], ops: Sequence[str]) -> None:
        self.of_modules = any(modules)
        if self.of_modules:
            op_names = modules
        else:
            # What follows a "#" is the number of the micro-batch.
            op_names = [name.partition("#")[0] for name in ops]
        index_by_name: dict[str, int] = {}
        index = []
        for name in op_names:
            index.append(index_by_name.setdefault(name or "", len(index_by_name)))
        self.index = np.array(index)
        self.names = list(index_by_name)

    def matched(self, pattern: str, what: str) -> Matched:
        """Return the ops that a pattern matches.

        Args:
            pattern: The pattern.
            what: The constraint in words, for messages.

        Raises:
            InputError: The pattern matches no op; the message shows similar names.
        """
        plain = pattern.removesuffix(INSIDE)
        is_match = np.zeros(len(self.names), dtype=bool)
        for i, name in enumerate(self.names):
            if name != "":
                enclosing = _list_enclosing(name)
                is_match[i] = any(fnmatchcase(module, plain) for module in enclosing)
        if not is_match.any():
            raise InputError(
                f"{what}: no {self._noun} matches {pattern!r}{self._suggest_names(plain)}"
            )
        return Matched(what=what, ops=is_match[self.index], modules=int(is_match.sum()))

    @property
    def _noun(self) -> str:
        """Return the noun for one of the names in a message."""
        if self.of_modules:
            return "module"
        return "op"

    def _suggest_names(self, pattern: str) -> str:
        """Return the end of a message: similar names, or if there are none, the outermost ones."""
        candidates: dict[str, None] = {}
        for name in self.names:
            candidates |= dict.fromkeys(filter(None, _list_enclosing(name)))
        similar = get_close_matches(pattern, candidates, NEAR, LIKENESS)
        if similar:
            return f"; near: {', '.join(map(repr, similar))}"
        outermost = list(dict.fromkeys(name.split(".")[0] for name in candidates))
        if outermost:
            shown = ", ".join(map(repr, outermost[:MOST_NAMES]))
            return f"; {self._noun}s are {shown}"
        return ""


def _list_enclosing(name: str) -> list[str]:
    """Return a module's name and those of the modules around it, the innermost first."""
    parts = name.split(".")
    return [".".join(parts[:k]) for k in range(len(parts), 0, -1)]


def match_devices(
    patterns: Sequence[str], devices: Sequence[str], what: str
) -> BoolArray:
    """Return the devices that any of some names or patterns matches. [D]

    Args:
        patterns: Names or patterns.
        devices: Name of each device. [D]
        what: The constraint in words, for messages.

    Raises:
        InputError: A pattern matches no device; the message shows names of devices.
    """
    matched = np.zeros(len(devices), dtype=bool)
    for pattern in patterns:
        is_match = np.array([fnmatchcase(name, pattern) for name in devices])
        if not is_match.any():
            shown = get_close_matches(pattern, devices, NEAR, LIKENESS)
            shown = shown or list(devices[:MOST_SHOWN])
            if len(shown) < len(devices):
                ellipsis = ", ..."
            else:
                ellipsis = ""
            raise InputError(
                f"{what}: no device is named {pattern!r}; devices: {', '.join(shown)}{ellipsis}"
            )
        matched |= is_match
    return matched
