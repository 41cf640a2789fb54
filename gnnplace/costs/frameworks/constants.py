"""Constants of a training step, each once, with its owner, unit and source.

A step's seconds are hardware x library x framework x environment. What hardware owns (sustained
clocks, bytes a second in a step, what hidden exchanges cost) holds for every framework; what a
framework owns (its host's floor, its sums of gradients, what it keeps) is fitted on rows of that
framework alone, with the hardware's constants held. They stand in ``constants.json``::

    {"hardware": {NAME: {"value", "unit", "source"}}, "library": {…}, "any": {NAME: …},
     "frameworks": {FRAMEWORK: {NAME: …}}, "modes": {WORD=VALUE: {NAME: …}},
     "environments": {ENVIRONMENT: {NAME: …}}}

`any` has what holds for every framework that does not have its own, `modes` what compiled layers
and captured launches have instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from gnnplace.errors import InputError, suggestion

HARDWARE = "hardware"
LIBRARY = "library"
ANY = "any framework"
DEFAULT_FRAMEWORK = "pytorch"


@dataclass(frozen=True)
class Constant:
    """A number that predictions assume.

    Attributes:
        owner: "hardware", "library", "any framework", "framework NAME", "mode NAME"
            or "environment NAME".
        name: What it is called in the data.
        value: The value in that unit.
        unit: Such as "s" or "bytes a parameter"; a factor has "1".
        source: Where it is from, and on what it was fitted.
    """

    owner: str
    name: str
    value: float
    unit: str
    source: str


@dataclass(frozen=True)
class ConstantSet:
    """The numbers of one owner, by name."""

    owner: str
    constants: Mapping[str, Constant]

    def __getitem__(self, name: str) -> float:
        return self.constants[name].value

    def of(self, name: str, kind: str) -> float:
        """Return the value for a kind of device: `NAME.KIND`, else `NAME`.

        Raises:
            KeyError: There is neither.
        """
        constant = self.constants.get(f"{name}.{kind}", self.constants.get(name))
        if constant is None:
            raise KeyError(f"{self.owner}: {name} of {kind}")
        return constant.value


@cache
def _data() -> dict[str, Any]:
    text = (
        files("gnnplace.costs.frameworks").joinpath("constants.json").read_text("utf-8")
    )
    data: dict[str, Any] = json.loads(text)
    return data


def _set(owner: str, rows: Mapping[str, Any]) -> ConstantSet:
    return ConstantSet(
        owner, {name: Constant(owner, name, **row) for name, row in rows.items()}
    )


@cache
def load_hardware_constants() -> ConstantSet:
    """Return the constants of devices and networks, whatever runs on them."""
    return _set(HARDWARE, _data()["hardware"])


@cache
def load_library_constants() -> ConstantSet:
    """Return the rates of fused attention."""
    return _set(LIBRARY, _data()["library"])


def load_framework_constants(name: str) -> ConstantSet:
    """Return a framework's constants, with those that hold for any framework.

    Raises:
        InputError: The framework's constants are not known; the message lists those that are.
    """
    constants = _named("framework", name, _data()["frameworks"])
    return ConstantSet(
        constants.owner, {**_set(ANY, _data()["any"]).constants, **constants.constants}
    )


def load_mode_constants(name: str) -> ConstantSet:
    """Return the constants that a mode such as "compile=on" replaces."""
    return _set(f"mode {name}", _data()["modes"].get(name, {}))


def load_environment_constants(names: str) -> ConstantSet:
    """Return the constants of environments, several joined by "+".

    Of a constant that two of them have, the last counts.

    Raises:
        InputError: An environment is unknown; the message lists those that are known.
    """
    sets = [
        _named("environment", name, _data()["environments"])
        for name in names.split("+")
    ]
    constants: dict[str, Constant] = {}
    for constant_set in sets:
        constants |= constant_set.constants
    return ConstantSet(f"environment {names}", constants)


def _named(what: str, name: str, known: Mapping[str, Any]) -> ConstantSet:
    if name not in known:
        near = suggestion(name, known)
        raise InputError(
            f"--{what} {name!r}: unknown; use one of {', '.join(known)}{near}"
        )
    return _set(f"{what} {name}", known[name])


def iterate_constants(
    framework_name: str, environment_name: str | None = None
) -> Iterator[Constant]:
    """Yield every constant that a framework's predictions rest on.

    The hardware's come first, those of modes last.

    Raises:
        InputError: There is no such framework or environment.
    """
    sets = [
        load_hardware_constants(),
        load_library_constants(),
        load_framework_constants(framework_name),
    ]
    if environment_name is not None:
        sets.append(load_environment_constants(environment_name))
    for constants in (*sets, *map(load_mode_constants, _data()["modes"])):
        yield from constants.constants.values()
