"""What a sweep varies: key paths of a recipe, each with a range or with choices.

``KEY=LOW..HIGH`` is a range with both ends, of whole numbers where both ends are whole and of real
ones otherwise; ``KEY=LOW..HIGH:log`` is drawn evenly in its logarithm; ``KEY=A|B|C`` are choices,
each of which may be a list (``[8, 16]``). The same in a YAML file, a line a key::

    model.init_args.learning_rate: 1.0e-4..1.0e-2:log
    model.init_args.layers: 1..4
    model.init_args.hidden: 32|64|128

Key paths are those of the recipe; ``init_args`` may be left out, as on the command line.
"""

from __future__ import annotations

import re

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import Trial

from gnnplace.errors import FormatError, InputError
from gnnplace.files import read_yaml

SearchSpace = dict[str, BaseDistribution]
RANGE = re.compile(r"(?P<low>\S+?)\.\.(?P<high>\S+?)(?P<log>:log)?")
HOW = "write LOW..HIGH, LOW..HIGH:log or A|B|C"


def read_space(path: str | None, assignments: list[str]) -> SearchSpace:
    """The search space of a file and of arguments, which win.

    Raises:
        InputError: it is malformed or empty.
    """
    space = {**(read_file(path) if path else {}), **parse_assignments(assignments)}
    if not space:
        raise InputError("sweep: nothing varies; give --space FILE or --set KEY=LOW..HIGH")
    return {full_key(key): values for key, values in space.items()}


def full_key(key: str) -> str:
    """A key path as recipes spell it: ``model.hidden`` is ``model.init_args.hidden``."""
    return re.sub(r"^(model|data)\.(?!init_args\.|class_path$)", r"\1.init_args.", key)


def read_file(path: str) -> SearchSpace:
    """The search space in a YAML file.

    Raises:
        FormatError: not a mapping from key paths to ranges or choices; names file and key.
    """
    data = read_yaml(path)
    if not isinstance(data, dict) or not data:
        raise FormatError(f"{path}: top level: must map key paths to values; {HOW}")
    try:
        return {str(key): parse_values(str(key), str(value)) for key, value in data.items()}
    except InputError as error:
        raise FormatError(f"{path}: {error}") from None


def parse_assignments(assignments: list[str]) -> SearchSpace:
    """The search space of ``KEY=VALUES`` arguments.

    Raises:
        InputError: naming the argument that is none.
    """
    space: SearchSpace = {}
    for assignment in assignments:
        key, equals, values = assignment.partition("=")
        if not equals or not key:
            raise InputError(f"--set {assignment}: must be KEY=VALUES; {HOW}")
        space[key] = parse_values(key, values)
    return space


def parse_values(key: str, text: str) -> BaseDistribution:
    """A range or choices.

    Raises:
        InputError: neither, or a range that is empty; names ``key``.
    """
    match = RANGE.fullmatch(text)
    if match is None:
        return _choices(key, text)
    low, high = _number(key, match["low"]), _number(key, match["high"])
    log = match["log"] is not None
    if low > high or (log and low <= 0):
        raise InputError(f"{key}: {text!r}: must rise, and from above 0 with ':log'")
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(low, high, log=log)


def _number(key: str, text: str) -> int | float:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if abs(value) < float("inf"):
            return value
    raise InputError(f"{key}: {text!r}: not a finite number; {HOW}")


def _choices(key: str, text: str) -> CategoricalDistribution:
    choices = [part.strip() for part in text.split("|")]
    if len(choices) < 2 or "" in choices:
        raise InputError(f"{key}: {text!r}: neither a range nor two choices or more; {HOW}")
    return CategoricalDistribution(choices)


def first_values(space: SearchSpace) -> dict[str, str]:
    """One allowed value of each key, to check the key paths with."""
    return {
        key: str(values.choices[0] if isinstance(values, CategoricalDistribution) else values.low)
        for key, values in space.items()
    }


def suggest(trial: Trial, key: str, values: BaseDistribution) -> None:
    """Gives ``trial`` a value for ``key``.

    Raises:
        InputError: the study has another kind of values for this key.
    """
    try:
        if isinstance(values, CategoricalDistribution):
            trial.suggest_categorical(key, values.choices)
        elif isinstance(values, IntDistribution):
            trial.suggest_int(key, values.low, values.high, log=values.log)
        elif isinstance(values, FloatDistribution):
            trial.suggest_float(key, values.low, values.high, log=values.log)
    except ValueError:
        raise InputError(f"{key}: the study has other choices; give another --study") from None
