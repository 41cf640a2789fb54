"""``Constraints``: what a user asks of an answer; from words, a mapping or a YAML file.

A pattern is a shell's (``*``, ``?``, ``[…]``) over dotted module names, case and all; ``applying``
says what it matches. Devices are names or patterns over them. A file has the same keys::

    pin: {"encoder.*": "gpu:0", "head": ["gpu:0", "gpu:1"]}   # on one of these
    forbid: {"embed": "gpu:1"}                                # on none of these
    together: [["embed", "head"]]                             # on one device
    headroom: 10%
    max_devices: 2
    by_module: true                     # modules are whole: what a device map can say
    no_split: [GPT2Block]               # and so is every module of these classes
    max_memory: {0: 10GiB, "gpu:1": 20GB}
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import Field

from gnnplace.errors import InputError
from gnnplace.files import Schema, parse, read_size, read_yaml
from gnnplace.problem import Problem
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.cluster.headroom import read_headroom, with_slack
from gnnplace.problem.cluster.headroom import with_headroom as with_so_much

EVERY = "*"  # device pattern
Names: TypeAlias = str | list[str]
AUTO = "auto"


@dataclass(frozen=True)
class ConstraintRule:
    """Modules, by a pattern, and devices, by names or patterns."""

    pattern: str
    devices: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.pattern}={','.join(self.devices)}"


@dataclass(frozen=True)
class Constraints:
    """A user's conditions on an answer.

    Attributes:
        pin: modules that are on one of some devices.
        forbid: modules that are on none of some devices.
        together: patterns whose modules share one device.
        headroom: what stays free on every device, as ``with_headroom`` takes it; None: nothing.
        max_devices: devices that are used at most; None: all may be.
        by_module: every op is where its module is, as a device map of accelerate has it.
        no_split: names of classes whose modules are on one device each.
        max_memory: bytes that a device has at most, by its name or its number.
    """

    pin: tuple[ConstraintRule, ...] = ()
    forbid: tuple[ConstraintRule, ...] = ()
    together: tuple[tuple[str, ...], ...] = ()
    headroom: str | None = None
    max_devices: int | None = None
    by_module: bool = False
    no_split: tuple[str, ...] = ()
    max_memory: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        check_headroom(self.headroom)
        if self.max_devices is not None and self.max_devices < 1:
            raise InputError(f"max-devices {self.max_devices}: must be at least 1")

    def __bool__(self) -> bool:
        return self != Constraints()

    @property
    def patterns(self) -> Constraints:
        """Return the constraints of modules."""
        return replace(self, headroom=None, max_devices=None, max_memory=())

    @property
    def limits(self) -> Constraints:
        """Return the constraints of devices alone."""
        return Constraints(
            headroom=self.headroom,
            max_devices=self.max_devices,
            max_memory=self.max_memory,
        )

    @property
    def borders(self) -> Constraints:
        """Return the same borders between modules, without any device."""
        rules = tuple(
            ConstraintRule(rule.pattern, (EVERY,)) for rule in (*self.pin, *self.forbid)
        )
        return Constraints(
            pin=rules,
            together=self.together,
            by_module=self.by_module,
            no_split=self.no_split,
        )

    def to_data(self) -> dict[str, Any]:
        """Return the data of a constraints file, without what is not asked."""
        data: dict[str, Any] = {}
        for name, rules in (("pin", self.pin), ("forbid", self.forbid)):
            for rule in rules:
                devices = data.setdefault(name, {}).setdefault(rule.pattern, [])
                devices += [device for device in rule.devices if device not in devices]
        if self.together:
            data["together"] = [list(patterns) for patterns in self.together]
        limits: dict[str, Any] = {
            "headroom": self.headroom,
            "max_devices": self.max_devices,
            "by_module": self.by_module or None,
            "no_split": list(self.no_split) or None,
            "max_memory": dict(self.max_memory) or None,
        }
        return data | {key: value for key, value in limits.items() if value is not None}


Given: TypeAlias = Constraints | Mapping[str, Any] | str | Path


class ConstraintsFile(Schema):
    """The keys of a constraints file."""

    pin: dict[str, Names] = Field(default_factory=dict)
    forbid: dict[str, Names] = Field(default_factory=dict)
    together: list[Names] = Field(default_factory=list)
    headroom: str | int | float | None = None
    max_devices: Annotated[int, Field(ge=1)] | None = None
    by_module: bool = False
    no_split: Names = Field(default_factory=list)
    max_memory: dict[int | str, int | float | str] = Field(default_factory=dict)


def as_constraints(given: Given | None) -> Constraints:
    """Return constraints from a mapping, a file, None, or constraints themselves.

    Raises:
        FormatError: a malformed mapping or file; names the key path.
        InputError: headroom or a number of devices that cannot be.
    """
    if given is None:
        return Constraints()
    if isinstance(given, Constraints):
        return given
    if isinstance(given, str | Path):
        return read_constraints(given)
    return _from_data(given, "constraints")


def read_constraints(path: str | Path) -> Constraints:
    """Read a constraints file.

    Raises:
        FormatError: naming the file, the key path and the fault.
    """
    return _from_data(read_yaml(path) or {}, str(path))


def _from_data(data: object, source: str) -> Constraints:
    file = parse(ConstraintsFile, data, source)
    if isinstance(file.headroom, str | None):
        headroom = file.headroom
    else:
        headroom = f"{file.headroom:.0f}"
    return Constraints(
        pin=tuple(
            ConstraintRule(pattern, _names(devices))
            for pattern, devices in file.pin.items()
        ),
        forbid=tuple(
            ConstraintRule(pattern, _names(devices))
            for pattern, devices in file.forbid.items()
        ),
        together=tuple(_names(patterns) for patterns in file.together),
        headroom=headroom,
        max_devices=file.max_devices,
        by_module=file.by_module,
        no_split=_names(file.no_split),
        max_memory=_sizes(file.max_memory, f"{source}: max_memory"),
    )


def _sizes(
    given: Mapping[Any, int | float | str], what: str
) -> tuple[tuple[str, float], ...]:
    """Return bytes by device, from numbers or texts such as "10GiB"."""
    sizes: dict[str, float] = {}
    for device, size in given.items():
        try:
            sizes[str(device)] = float(read_size(str(size)))
        except ValueError:
            hint = "give bytes, as 10GiB or 2e9"
            raise InputError(f"{what}: {device}={size}: {hint}") from None
    return tuple(sizes.items())


def _names(given: Names) -> tuple[str, ...]:
    if isinstance(given, str):
        listed = given.split(",")
    else:
        listed = given
    return tuple(name.strip() for name in listed if name.strip())


@dataclass(frozen=True)
class ConstraintWords:
    """Constraints as a command line says them.

    Attributes:
        pin: Such as "encoder.*=gpu:0" or "head=gpu:0,gpu:1".
        forbid: Such as "decoder.*=gpu:1", devices written as for a pin.
        together: Such as "embed,head".
        headroom: Instead of a file's.
        max_devices: Instead of a file's.
        by_module: Ops are where their modules are.
        no_split: Names of classes of modules that are not split, such as "GPT2Block".
        max_memory: Such as "gpu:0=10GiB" or "0=10GiB".
    """

    pin: Iterable[str] = ()
    forbid: Iterable[str] = ()
    together: Iterable[str] = ()
    headroom: str | None = None
    max_devices: int | None = None
    by_module: bool = False
    no_split: Iterable[str] = ()
    max_memory: Iterable[str] = ()

    def constraints(self, base: Given | None = None) -> Constraints:
        """Return the constraints, added to those of a file; words win over its numbers.

        Args:
            base: A file, or constraints.

        Raises:
            InputError: A word that is no "PATTERN=DEVICE" or "DEVICE=BYTES".
        """
        file = as_constraints(base)
        sizes = dict(word.rpartition("=")[::2] for word in self.max_memory)
        max_memory = dict(file.max_memory) | dict(_sizes(sizes, "max-memory"))
        return Constraints(
            pin=(*file.pin, *(_rule("pin", word) for word in self.pin)),
            forbid=(*file.forbid, *(_rule("forbid", word) for word in self.forbid)),
            together=(*file.together, *(_names(word) for word in self.together)),
            headroom=file.headroom if self.headroom is None else self.headroom,
            max_devices=file.max_devices
            if self.max_devices is None
            else self.max_devices,
            by_module=file.by_module or self.by_module,
            no_split=(*file.no_split, *self.no_split),
            max_memory=tuple(max_memory.items()),
        )


def _rule(what: str, word: str) -> ConstraintRule:
    pattern, _, devices = word.rpartition("=")
    if not pattern.strip() or not _names(devices):
        raise InputError(
            f"{what} {word!r}: must be PATTERN=DEVICE, such as 'encoder.*=gpu:0' or "
            "'head=gpu:0,gpu:1'"
        )
    return ConstraintRule(pattern.strip(), _names(devices))


def check_headroom(headroom: str | float | None) -> None:
    """Refuse headroom that is neither a share, nor bytes, nor "auto". None is allowed.

    Raises:
        InputError: naming what was given and what may be.
    """
    if headroom is not None and headroom != AUTO:
        read_headroom(headroom)


def cluster_with_headroom(cluster: Cluster, headroom: str | float | None) -> Cluster:
    """Return the cluster with headroom on every device; see ``with_headroom``."""
    if headroom is None:
        return cluster
    if headroom == AUTO:
        return with_slack(cluster)
    return with_so_much(cluster, headroom)


def with_headroom(problem: Problem, headroom: str | float | None) -> Problem:
    """Return the problem with headroom on every device; None leaves it as it is.

    Args:
        problem: the problem whose devices keep so much free.
        headroom: a share of each device's memory, as "10%", or bytes, as 2e9 or "2GB"; or "auto":
            what CUDA, NCCL and the allocator take on GPUs (``costs.memory``).

    Raises:
        InputError: neither, or more than a device has.
    """
    if headroom is None:
        return problem
    return replace(problem, cluster=cluster_with_headroom(problem.cluster, headroom))
