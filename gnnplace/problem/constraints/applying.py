"""Constraints on what is placed: pins, forbids and colocation classes, and borders of groups.

A pin to one device becomes a problem's ``pin``; every other pin, and every forbid, its ``forbid``.
Ops that stay together become one colocation class, merged with all classes that share an op with
it. With ``by_module``, the ops that are in or follow one unit of the model stay together. Headroom
becomes the devices' ``reserve``. The maximal number of devices is not a property of a problem: see
``placers.few_devices``.

``max_memory`` gives bytes by device, as in accelerate. A device is given by name, or by number as
PyTorch numbers GPUs: ``0`` is the first device that is not a CPU. Other devices keep their memory.

Matching of patterns over module names.

``encoder`` matches the module ``encoder`` and all inside it, and so does ``encoder.*``; in general
a pattern matches an op if it matches the name of the op's module or that of a module around it
(``fnmatch``, case and all; ``*`` also matches dots). Where no op has a module, as in problems of
other programs, patterns are over the names of ops, without the number of a micro-batch.
Complexity: O(distinct names x depth) a pattern.
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
ELSEWHERE = ("cpu", "disk")  # Where accelerate puts what fits on no GPU
CPU = "cpu"


@dataclass(frozen=True, eq=False)
class Resolved:
    """Constraints over the ops of one graph.

    Attributes:
        pins: what each pin matches, and its rule.
        forbids: what each forbid matches, and its rule.
        together: what each set of patterns matches.
    """

    pins: tuple[tuple[Matched, ConstraintRule], ...]
    forbids: tuple[tuple[Matched, ConstraintRule], ...]
    together: tuple[Matched, ...]

    @property
    def matched(self) -> tuple[Matched, ...]:
        """Return what each pattern matched, in the order of the constraints."""
        return (
            *(m for m, _ in self.pins),
            *(m for m, _ in self.forbids),
            *self.together,
        )

    def borders(self, n: int) -> LongArray:
        """Return a number for each op: no group has ops of two numbers. [n]"""
        if not self.matched:
            return np.zeros(n, dtype=np.int64)
        rows = np.stack([matched.ops for matched in self.matched], axis=1)
        return np.unique(rows, axis=0, return_inverse=True)[1].ravel().astype(np.int64)

    def devices(self, cluster: Cluster) -> list[tuple[BoolArray, BoolArray]]:
        """Yield, for each pin and forbid, its ops and the devices that are left to them. [n], [D]

        Raises:
            InputError: no device is named so.
        """
        names = [device.name for device in cluster.devices]
        pins = [
            (m.ops, devices_matched(rule.devices, names, m.what))
            for m, rule in self.pins
        ]
        return pins + [
            (m.ops, ~devices_matched(rule.devices, names, m.what))
            for m, rule in self.forbids
        ]

    def of_groups(self, group: IntArray, count: int) -> Resolved:
        """Return the same over groups of ops, none of which crosses a border.

        Args:
            group: group of each op. [n]
            count: number of groups G.
        """

        def grouped(matched: Matched) -> Matched:
            ops = np.zeros(count, dtype=bool)
            ops[group[matched.ops]] = True
            return replace(matched, ops=ops)

        return Resolved(
            tuple((grouped(matched), rule) for matched, rule in self.pins),
            tuple((grouped(matched), rule) for matched, rule in self.forbids),
            tuple(map(grouped, self.together)),
        )

    def classes(self, colocate: Sequence[str | None]) -> tuple[str | None, ...]:
        """Return the colocation classes after those that must stay together are merged. [n]"""
        labels = list(colocate)
        for matched in self.together:
            members = np.flatnonzero(matched.ops).tolist()
            met = dict.fromkeys(labels[i] for i in members if labels[i] is not None)
            name = next(iter(met), None) or _fresh(matched.what, labels)
            for i in members:
                labels[i] = name
            labels = [name if label in met else label for label in labels]
        return tuple(labels)


def _fresh(name: str, taken: Sequence[str | None]) -> str:
    if name not in taken:
        return name
    return _fresh(f"{name}'", taken)


def resolve(
    constraints: Constraints,
    modules: Sequence[str | None],
    ops: Sequence[str],
    progress: Progress | None = None,
    units: Sequence[str | None] | None = None,
) -> Resolved:
    """Return what constraints match.

    Args:
        constraints: the pins, forbids and sets that a user asks for.
        modules: module of each op, or None. [n]
        ops: name of each op. [n]
        progress: called with a line for each pattern: how many modules and ops it matches.
        units: For each op and by module, what it shares its device with, or None. [n]

    Raises:
        InputError: a pattern matches nothing; shows names that are like it. Or the answer is to be
            by module, and nobody knows the model.
    """
    names = Names(modules, ops)
    if units is None and (constraints.by_module or constraints.no_split):
        raise InputError(
            "by-module, no-split: a problem's file has no modules; give the model"
        )
    resolved = Resolved(
        tuple(
            (names.matched(rule.pattern, f"pin {rule}"), rule)
            for rule in constraints.pin
        ),
        tuple(
            (names.matched(rule.pattern, f"forbid {rule}"), rule)
            for rule in constraints.forbid
        ),
        tuple(_any_of(names, patterns) for patterns in constraints.together),
    )
    for matched in resolved.matched if progress is not None else ():
        assert progress is not None
        progress(str(matched))
    return replace(resolved, together=(*resolved.together, *_units(units or ())))


def _units(units: Sequence[str | None]) -> list[Matched]:
    """Return the ops of each unit."""
    unit_names = np.array(
        [name if name is not None else "\0" for name in units], dtype=object
    )
    names = dict.fromkeys(name for name in units if name is not None)
    return [Matched(name or "model", unit_names == name, 1) for name in names]


def _any_of(names: Names, patterns: Sequence[str]) -> Matched:
    label = f"together {','.join(patterns)}"
    matches = [names.matched(pattern, label) for pattern in patterns]
    ops = np.logical_or.reduce([one.ops for one in matches])
    return Matched(label, ops, len(np.unique(names.index[ops])))


def constrained(
    problem: Problem, constraints: Constraints, progress: Progress | None = None
) -> Problem:
    """Return the problem with what is asked of its modules and memory.

    Args:
        problem: what is placed; its groups stay as they are.
        constraints: what is asked; ``max_devices`` is left to who places.
        progress: called with a line for each pattern.

    Raises:
        InputError: a pattern or device matches nothing.
        InfeasibleError: constraints leave an op, or ops that share a device, no device.
    """
    captured = (problem.captured or {}).get("constraints") or {}
    if captured.get("by_module") or captured.get("no_split"):
        # Its colocation classes say so.
        constraints = replace(constraints, by_module=False, no_split=())
    if constraints.patterns:
        resolved = resolve(constraints, problem.module, problem.graph.names, progress)
        together = replace(problem, colocate=resolved.classes(problem.colocate))
        problem = on_devices(together, resolved)
    return limited(problem, constraints)


def limited(problem: Problem, constraints: Constraints) -> Problem:
    """Return the problem with its devices' memory limited, and headroom in it.

    Raises:
        InputError: no such device, or more headroom than a device has.
    """
    return with_headroom(
        with_max_memory(problem, constraints.max_memory), constraints.headroom
    )


def on_devices(problem: Problem, resolved: Resolved) -> Problem:
    """Return the problem with pins and forbids; classes are as they are.

    Raises:
        InputError: no device is named so.
        InfeasibleError: an op, or ops that share a device, have none left.
    """
    permitted = np.ones((problem.num_ops, problem.num_devices), dtype=bool)
    for ops, devices in resolved.devices(problem.cluster):
        permitted[ops] &= devices
    sole = (permitted.sum(axis=1) == 1) & (problem.pin < 0) & (problem.num_devices > 1)
    barred = ~permitted & ~sole[:, None]
    if problem.forbid is not None:
        barred |= problem.forbid
    restricted = replace(
        problem,
        pin=np.where(sole, permitted.argmax(axis=1), problem.pin).astype(np.int32),
        forbid=barred if barred.any() else None,
    )
    _check(restricted, resolved)
    return restricted


def _check(problem: Problem, resolved: Resolved) -> None:
    """Raise an error that names the constraints which leave a unit no device."""
    for unit in np.flatnonzero(~problem.unit_allowed.any(axis=1)).tolist():
        members = problem.unit_of == unit
        rules = [repr(m.what) for m in resolved.matched if (m.ops & members).any()]
        if rules:
            raise InfeasibleError(_contradiction(problem, members, rules))


def _contradiction(problem: Problem, own: BoolArray, mine: Sequence[str]) -> str:
    op = int(np.flatnonzero(own)[0])
    modules = list(
        dict.fromkeys(problem.module[i] or "" for i in np.flatnonzero(own).tolist())
    )
    shown = ", ".join(filter(None, modules[:4])) + (", ..." if len(modules) > 4 else "")
    if own.sum() > 1 and shown:
        shared = f" and what shares a device with it (of {shown})"
    else:
        shared = ""
    if (problem.pin[own] >= 0).any():
        also = " with the problem's own pins"
    else:
        also = ""
    return (
        f"op {problem.graph.names[op]!r}{shared}: {' and '.join(mine)}{also} leave no device; "
        "loosen one of them"
    )


def with_max_memory(problem: Problem, most: Sequence[tuple[str, float]]) -> Problem:
    """Return the problem with at most so many bytes on some devices.

    Args:
        problem: the problem whose devices are limited.
        most: devices, by their name or number, and bytes.

    Raises:
        InputError: there is no such device.
    """
    if not most:
        return problem
    devices = list(problem.cluster.devices)
    for name, size in most:
        for index in _indices(problem.cluster, name):
            memory = min(devices[index].memory, size)
            devices[index] = devices[index].model_copy(update={"memory": memory})
    return replace(problem, cluster=replace(problem.cluster, devices=tuple(devices)))


def _indices(cluster: Cluster, name: str) -> list[int]:
    """Return the devices of a name; none for a "cpu" or "disk" that the cluster does not have."""
    exact = [i for i, device in enumerate(cluster.devices) if device.name == name]
    gpus = [i for i, device in enumerate(cluster.devices) if device.kind != CPU]
    if exact:
        return exact
    if name.isdigit() and int(name) < len(gpus):
        return [gpus[int(name)]]
    if name in ELSEWHERE:
        return [i for i, d in enumerate(cluster.devices) if d.kind == name]
    device_names = ", ".join(device.name for device in cluster.devices[:8])
    raise InputError(
        f"max-memory {name!r}: no device is called so; devices: {device_names}"
    )


INSIDE = ".*"
NEAR, LIKENESS = 3, 0.5  # names that an error shows, and how alike they are at least


@dataclass(frozen=True, eq=False)
class Matched:
    """The modules and ops that a pattern matches.

    Attributes:
        what: the constraint in words, such as "pin encoder.*=gpu:0".
        ops: whether it matches each op. [n]
        modules: number of distinct modules of these ops.
    """

    what: str
    ops: BoolArray
    modules: int

    def __str__(self) -> str:
        return f"{self.what}: {_count(self.modules, 'module')}, {_count(int(self.ops.sum()), 'op')}"


def _count(number: int, what: str) -> str:
    if number == 1:
        return f"{number} {what}"
    return f"{number} {what}s"


class Names:
    """The names that patterns are over.

    Args:
        modules: module of each op, or None. [n]
        ops: name of each op. [n]
    """

    def __init__(self, modules: Sequence[str | None], ops: Sequence[str]) -> None:
        self.of_modules = any(modules)
        if self.of_modules:
            shown = modules
        else:
            shown = [name.partition("#")[0] for name in ops]
        index_by_name: dict[str, int] = {}
        self.index = np.array(
            [index_by_name.setdefault(name or "", len(index_by_name)) for name in shown]
        )
        self.names = list(index_by_name)

    def matched(self, pattern: str, what: str) -> Matched:
        """Return the ops that a pattern matches.

        Raises:
            InputError: it matches none; shows names that are like it.
        """
        plain = pattern.removesuffix(INSIDE)
        hit = np.array(
            [
                name != "" and any(fnmatchcase(p, plain) for p in _around(name))
                for name in self.names
            ]
        )
        if not hit.any():
            raise InputError(
                f"{what}: no {self._noun} matches {pattern!r}{self._near(plain)}"
            )
        return Matched(what, hit[self.index], int(hit.sum()))

    @property
    def _noun(self) -> str:
        if self.of_modules:
            return "module"
        return "op"

    def _near(self, pattern: str) -> str:
        candidates = dict.fromkeys(
            part for name in self.names for part in _around(name) if part
        )
        near = get_close_matches(pattern, candidates, NEAR, LIKENESS)
        if near:
            return f"; near: {', '.join(map(repr, near))}"
        first = ", ".join(
            map(repr, list(dict.fromkeys(n.split(".")[0] for n in candidates))[:8])
        )
        if first:
            return f"; {self._noun}s are {first}"
        return ""


def _around(name: str) -> list[str]:
    """Return a module's name and those of the modules around it, the innermost first."""
    parts = name.split(".")
    return [".".join(parts[:k]) for k in range(len(parts), 0, -1)]


def devices_matched(
    patterns: Sequence[str], devices: Sequence[str], what: str
) -> BoolArray:
    """Return the devices that one of some names or patterns matches. [D]

    Raises:
        InputError: one matches none; shows the devices there are.
    """
    matched = np.zeros(len(devices), dtype=bool)
    for pattern in patterns:
        hit = np.array([fnmatchcase(name, pattern) for name in devices])
        if not hit.any():
            shown = get_close_matches(pattern, devices, NEAR, LIKENESS) or list(
                devices[:4]
            )
            if len(shown) < len(devices):
                ellipsis = ", ..."
            else:
                ellipsis = ""
            raise InputError(
                f"{what}: no device is named {pattern!r}; devices: {', '.join(shown)}{ellipsis}"
            )
        matched |= hit
    return matched
