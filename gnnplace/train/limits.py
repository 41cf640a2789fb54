"""Least values of the numbers in a recipe."""

from __future__ import annotations

import math

from gnnplace.errors import InputError


def check_least(section: str = "model", /, **limits: tuple[float, float]) -> None:
    """Raise InputError where an argument is no number or below its least value.

    Args:
        section: The section of the recipe that the arguments are in.
        **limits: Value and least value by the argument's name.
    """
    for name, (value, minimum) in limits.items():
        if not math.isfinite(value):
            raise InputError(f"{section}.{name}: {value} is no finite number")
        if value < minimum:
            raise InputError(f"{section}.{name}: {value} is below {minimum}")
