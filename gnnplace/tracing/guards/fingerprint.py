"""`Fingerprint`: what a recorded step takes for granted of model and optimizer, and what changed.

A recording is of a model as it was: which tensors its modules hold, their types and flags, their
hooks, the plain attributes that its code read (`training`, a dropout's `p`, a configuration), and
the parameters and the state of the optimizer. `changes` compares all that before a step, by
comparisons of lists in C: O(modules + tensors), below 0.2 ms for GPT-2. (That a tensor is on
another device is seen by its memory.) What code reads outside of the modules, of the loss too, is
compared with it (`outside_reads`).

An attribute that the step writes itself (a counter) is no change: `proof` has said already
that no later step depends on it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import chain
from operator import attrgetter
from threading import Lock
from typing import Any, NamedTuple

import torch
from torch import nn

from gnnplace.tracing.guards.attributes import DATA, OPAQUE, OWN, WRITES, content, owners, same
from gnnplace.tracing.guards.outside_reads import (
    HELD,
    array_data,
    inside,
    outside,
    tensors_in,
    version,
)

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
HIDDEN = (*OWN, *HOOKS, "_is_full_backward_hook", "_forward_hooks_with_kwargs",
          "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs",
          "_non_persistent_buffers_set", "forward", "_flat_weights")  # fmt: skip
"""What torch itself reads of modules."""
LEARNS, DTYPE, DEVICE, *TENSOR_HOOKS = map(
    attrgetter,
    ("requires_grad", "dtype", "device", "_backward_hooks", "_post_accumulate_grad_hooks"),
)
NAMES = ("requires_grad", "dtype", "device", "hooks", "post-accumulate hooks")
SAVED = ("architectures", "dtype", "_name_or_path")
"""What transformers (5.23) writes into a configuration where it saves a model; nothing computes by
it."""
MEMORY, STATE = "memory", "state"
"""Kinds of changes that a step can follow: other memory of a tensor, other optimizer state."""


class Reads(dict[tuple[int, str], tuple[Any, Any]]):
    """Value of an attribute, and the plain data inside of it, by module's id and name.

    Attributes:
        writes: ids of objects and keys of them that the code changes itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writes: set[tuple[int, Any]] = set()


class Change(NamedTuple):
    """What is otherwise than it was recorded.

    Attributes:
        kind: `MEMORY`, `STATE`, or something that no step can follow.
        words: what changed; of `MEMORY` the tensor alone.
    """

    kind: str
    words: str


class _Reader:
    """What is read and written of the modules of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.ids = {id(m) for _, m in owners(model)}
        self.found = Reads()
        self.written: set[tuple[int, str]] = set()


_READERS: list[_Reader] = []
"""Those of all threads."""
_LOCK = Lock()


@contextmanager
def reading(model: nn.Module) -> Iterator[Reads]:
    """Notes plain attributes of modules that code reads within, but for those that it writes."""
    reader = _Reader(model)
    with _LOCK:
        _READERS.append(reader)
        WRITES.append(reader.found.writes)
        if len(_READERS) == 1:
            nn.Module.__getattribute__ = _noting  # type: ignore[method-assign, assignment]
            nn.Module.__setattr__ = _writing  # type: ignore[method-assign, assignment]
    try:
        yield reader.found
    finally:
        with _LOCK:
            _READERS.remove(reader)
            WRITES[:] = [noted for noted in WRITES if noted is not reader.found.writes]
            if not _READERS:
                del nn.Module.__getattribute__
                nn.Module.__setattr__ = _PUT  # type: ignore[method-assign]
        for key, (value, inside) in [*reader.found.items()]:
            if key in reader.written or data_in(value) != inside:
                del reader.found[key]


_PUT = nn.Module.__setattr__


def _noting(self: Any, name: str) -> Any:
    value = object.__getattribute__(self, name)
    if (
        name[:2] != "__"
        and name not in HIDDEN
        and name in object.__getattribute__(self, "__dict__")
    ):
        key = id(self), name
        for reader in _READERS[:]:
            if id(self) in reader.ids and key not in reader.found:
                reader.found[key] = value, data_in(value)
    return value


def _writing(self: Any, name: str, value: Any) -> None:
    for reader in _READERS[:]:
        reader.written.add((id(self), name))
    _PUT(self, name, value)


def data_in(value: Any) -> Any:
    """Plain data that an object, dict or list holds: of a configuration its entries."""
    if isinstance(value, (*OPAQUE, *DATA)):
        return None
    held = content(value)
    if held is None:
        return array_data(value)
    if isinstance(held, dict):
        return [(k, x) for k, x in held.items() if isinstance(x, DATA)]
    return [x for x in held if isinstance(x, DATA)]


def _entries(
    value: Any, writes: Collection[tuple[int, Any]] = ()
) -> tuple[dict[Any, Any], list[Any]]:
    """The dict in which an object keeps its data, and keys of what is plain; else none."""
    held = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    whole = content(value)
    if not isinstance(whole, dict) or whole.keys() != held.keys():
        return {}, []  # such as a list, or a generator of random numbers
    odd = {key for i, key in writes if i == id(value)}
    odd.update(SAVED if hasattr(value, "save_pretrained") else ())
    return held, [key for key, x in held.items() if isinstance(x, DATA) and key not in odd]


class Fingerprint:
    """What is so while a step is recorded.

    Args:
        model: that was recorded; it is not kept from changing.
        optimizer: of the loop, if it has one.
        read: what `reading` noted.
        loss: of the step, if it is not the model's own.
        follows: says of a tensor that is not the model's whether the step follows numbers that
            change in place; None: of every one.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        read: Reads,
        loss: Any = None,
        *,
        follows: Callable[[torch.Tensor], bool] | None = None,
    ) -> None:
        self._model, self._optimizer = model, optimizer
        modules = dict(model.named_modules())
        paths = {id(m): name or "model" for name, m in owners(model)}
        self._paths = [paths[id(m)] for m in modules.values()]
        self._tables = [getattr(m, k) for m in modules.values() for k in OWN]
        self._hooks = [getattr(m, k) for m in modules.values() for k in HOOKS]
        self._titles = [title for title, _ in _state(model)]
        self._tensors = [tensor for _, tensor in _state(model)]
        held = {id(m): m.__dict__ for _, m in owners(model)}
        self._forwards = [*held.values()]
        values = [value for value, _ in read.values()]
        slots = outside([*(m for _, m in owners(model)), loss, *values], {*paths})
        self._attributes = [(held[i], name, f"module {paths[i]!r}") for i, name in read]
        self._attributes += slots
        known: dict[int, tuple[Any, str, str]] = {}  # what can change inside
        for where, name, title in self._attributes:
            whole = where.get(name)
            for x in inside(whole):
                if (x is whole or isinstance(x, HELD)) and data_in(x) and type(x) is not tuple:
                    known.setdefault(id(x), (x, name, title))
        self._inside = [(*x, _entries(x[0], read.writes)) for x in known.values()]
        now = (where.get(name) for where, name, _ in self._attributes)
        found = tensors_in(now) if follows else []
        own = {*map(id, self._tensors)}
        self._constants = [x for x in found if id(x) not in own and follows and not follows(x)]
        self.take()

    def take(self) -> None:
        """What is so now is right."""
        self._filled = [table for table in self._tables if table]
        self._empty = [table for table in self._tables if not table]
        self._devices = [*map(DEVICE, self._tensors)]
        self._known, self._known_hooks = self._now(), [*map(tuple, self._hooks)]

    def take_state(self) -> None:
        """The optimizer's state is right as it is now."""
        self._known[-1] = self._state_now()

    def _now(self) -> list[list[Any]]:
        groups = self._optimizer.param_groups if self._optimizer else []
        ids = map(id, chain.from_iterable(map(dict.values, self._filled)))
        return [
            [any(self._empty), *map(len, self._filled), *ids],
            [*map(tuple, filter(None, self._hooks))],
            [*map(LEARNS, self._tensors)],
            [*map(DTYPE, self._tensors)],
            *(self._hooked(table) for table in TENSOR_HOOKS),
            [*map(torch.Tensor.data_ptr, self._tensors)],
            [held.get(name) for held, name, _ in self._attributes],
            [(len(held), *map(held.get, keys)) if keys else data_in(value)
             for value, _, _, (held, keys) in self._inside],
            [*map(id, chain.from_iterable(group["params"] for group in groups))],
            [*map(version, self._constants)],
            [held.get("forward") for held in self._forwards],
            self._state_now(),
        ]  # fmt: skip

    def _hooked(self, table: Callable[[torch.Tensor], Any]) -> list[Any]:
        """Hooks in a table of each tensor, which grows in place; nothing where there are none."""
        tables = [*map(table, self._tensors)]
        return [tuple(x or ()) for x in tables] if any(tables) else []

    def _state_now(self) -> list[Any]:
        held = self._optimizer.state.values() if self._optimizer else ()
        return [*map(id, chain.from_iterable(map(dict.values, held)))]

    def changes(self) -> list[Change]:
        """What is not so any more; empty in nearly every step."""
        now = self._now()
        try:
            if now == self._known:
                return []
        except (RuntimeError, ValueError):  # tensors or arrays among attributes
            pass
        return [*self._of_modules(now), *self._of_tensors(now), *self._of_attributes(now),
                *self._of_optimizer(now)]  # fmt: skip

    def _of_modules(self, now: list[list[Any]]) -> Iterator[Change]:
        if now[0] != self._known[0]:
            own = dict(_state(self._model))
            pairs = zip(self._titles, self._tensors, strict=True)
            odd = next((t for t, x in pairs if own.get(t) is not x), "a module or parameter")
            yield Change("identity", f"{odd} is another object than when the step was recorded")
        if now[1] != self._known[1]:
            hooks = zip(map(tuple, self._hooks), self._known_hooks, strict=True)
            i = next(i for i, (a, b) in enumerate(hooks) if a != b) // len(HOOKS)
            yield Change("hooks", f"module {self._paths[i]!r} has other hooks than when recorded")

    def _of_tensors(self, now: list[list[Any]]) -> Iterator[Change]:
        now, known = now[2:7], self._known[2:7]
        for i, title in enumerate(self._titles):
            pairs = [
                (a[i] if a else (), b[i] if b else ()) for a, b in zip(now, known, strict=True)
            ]
            pairs.insert(2, (self._tensors[i].device, self._devices[i]))
            for name, (a, b) in zip(NAMES, pairs, strict=False):
                if a != b and "hooks" in name:
                    yield Change(name, f"{title} has other {name} than when recorded")
                elif a != b:
                    yield Change(name, f"{title}: its {name} was {b}, now it is {a}")
            if pairs[-1][0] != pairs[-1][1] and all(a == b for a, b in pairs[:3]):
                yield Change(MEMORY, title)

    def _of_attributes(self, now: list[list[Any]]) -> Iterator[Change]:
        pairs = zip(self._attributes, now[7], self._known[7], strict=True)
        for (_, name, title), a, b in pairs:
            if not same(b, a):
                plain = isinstance(a, DATA) and isinstance(b, DATA)
                told = f"was {b}, now it is {a}" if plain else "is another one"
                yield Change(name, f"{title}: its {name} {told}")
        for (_, name, title, _), a, b in zip(self._inside, now[8], self._known[8], strict=True):
            if a != b:
                yield Change(name, f"{title}: its {name} holds other values")
        if now[10] != self._known[10]:
            yield Change("constant", self._constant(now[10]))
        if any(map(operator.is_not, now[11], self._known[11])):
            yield Change("forward", "a module has another forward than when recorded")

    def _constant(self, now: list[Any]) -> str:
        """Which of the tensors that are constants has changed."""
        pairs = zip(self._constants, now, self._known[10], strict=True)
        tensor = next(x for x, a, b in pairs if a != b)
        for held, name, title in self._attributes:
            if any(x is tensor for x in inside(held.get(name))):
                return f"{title}: its tensor {name} has other numbers; register it as a buffer"
        return "a tensor that is no buffer has other numbers; register it as a buffer of the model"

    def _of_optimizer(self, now: list[list[Any]]) -> Iterator[Change]:
        if now[9] != self._known[9]:
            yield Change("groups", "the optimizer has other parameters than when recorded")
        elif now[-1] != self._known[-1]:
            yield Change(STATE, "the optimizer's state is another one")


def _state(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for kind, named in (
        ("parameter", model.named_parameters()),
        ("buffer", model.named_buffers()),
    ):
        yield from ((f"{kind} {name!r}", tensor) for name, tensor in named)
