"""Which of the example inputs the model is called with, and which the loss gets as targets.

Inputs come as people write them: `x`, `(x, y)`, `{"input_ids": x, "labels": y}`, `((x, index), y)`
or `({"x": x, "index": index}, y)`, as data loaders give them. Only the structure is looked at,
never a tensor, so that the same holds for every batch:

1. A loss that requires more arguments than the output gets the last inputs, if the model takes the
   rest; of a dict it gets the entries that `forward` has no parameter for.
2. The model is called with what is left. A tuple or a dict that is all that is left is spread if
   `forward` cannot take it as it is, and a dict also if all its keys are parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import nn

from gnnplace.errors import InputError

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
Positional = tuple[Any, ...]
Keywords = dict[str, Any]
Loss = Callable[..., Any] | None


class Arguments(NamedTuple):
    """A call of a model and of its loss.

    Attributes:
        args: what the model gets by position.
        kwargs: what it gets by name.
        targets: what the loss gets behind the output.
    """

    args: Positional
    kwargs: Keywords
    targets: Positional


def arguments(model: nn.Module, loss: Loss, args: Positional, kwargs: Keywords) -> Arguments:
    """How a model and a loss are called with inputs.

    Args:
        model: Its `forward` says what it takes.
        loss: A function, a module, or None.
        args: Example inputs by position.
        kwargs: By keyword; a batch that is one dict.

    Raises:
        InputError: `forward` cannot take them.
    """
    extra = 0 if loss is None else min(max(0, _required(loss) - 1), len(args))
    shares = [(args[: len(args) - extra], args[len(args) - extra :])] if extra else []
    targets = args[len(args) - extra :]
    for given, last in (*shares, (args, targets)):
        taken = _taken(model, given, kwargs)
        if taken is not None:
            return Arguments(*taken, last)
    found = _of_dict(model, loss, kwargs) if not args else None
    if found is not None:
        return found
    raise InputError(_refusal(model, args, kwargs))


def _taken(
    model: nn.Module, args: Positional, kwargs: Keywords
) -> tuple[Positional, Keywords] | None:
    """How `forward` takes inputs: as they are, or with the one that there is spread."""
    only = args[0] if len(args) == 1 and not kwargs else None
    if isinstance(only, Mapping) and _is_named(model, only):
        return (), dict(only)
    if _binds(model, args, kwargs):
        return args, kwargs
    if isinstance(only, tuple | list) and _binds(model, tuple(only), {}):
        return tuple(only), {}
    if isinstance(only, Mapping) and _binds(model, (), dict(only)):
        return (), dict(only)
    return None


def _of_dict(model: nn.Module, loss: Loss, kwargs: Keywords) -> Arguments | None:
    """A dict of which `forward` takes some entries and the loss the others; or all as one."""
    own = {key: value for key, value in kwargs.items() if key in _names(model)}
    rest = tuple(value for key, value in kwargs.items() if key not in own)
    if own and loss is not None and _required(loss) - 1 == len(rest) and _binds(model, (), own):
        return Arguments((), own, rest)
    if not _binds(model, (kwargs,), {}):
        return None
    return Arguments((kwargs,), {}, (kwargs,) if loss is not None and _required(loss) > 1 else ())


def _is_named(model: nn.Module, entries: Mapping[Any, Any]) -> bool:
    known = _names(model)
    return bool(entries) and all(key in known for key in entries) and _binds(model, (), entries)


def _names(model: nn.Module) -> list[str]:
    return list(inspect.signature(model.forward).parameters)


def _required(function: Callable[..., Any]) -> int:
    """Arguments that a loss has to be given."""
    target = function.forward if isinstance(function, nn.Module) else function
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return 1
    return sum(p.kind in POSITIONAL and p.default is inspect.Parameter.empty for p in parameters)


def _binds(model: nn.Module, args: Positional, kwargs: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _refusal(model: nn.Module, args: Positional, kwargs: Keywords) -> str:
    forward = inspect.signature(model.forward)
    return (
        f"{type(model).__name__}.forward{forward} cannot take {len(args)} positional and "
        f"{len(kwargs)} keyword inputs; return inputs that fit beside the model, such as x, "
        "(x, target), ((x, index), target) or a dict of its parameters"
    )
