"""`Fingerprint`: the state of model and optimizer that a recorded step assumes, and changes of it.

A recording is of a model as it was: which tensors its modules hold, their types and flags, their
hooks, the plain attributes that its code read (`training`, a dropout's `p`, a configuration), and
the parameters and the state of the optimizer. `changes` compares all that before a step, by
comparisons of lists in C: O(modules + tensors), below 0.2 ms for GPT-2. (A tensor on another device
is seen by its memory.) Values that code reads outside of the modules, of the loss too, are compared
with it (`outside_reads`).

An attribute that the step writes itself (a counter) is no change: `proof` has said already that no
later step depends on it.
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

from gnnplace.tracing.guards.attributes import (
    OPAQUE,
    OWN,
    WRITES,
    content,
    owners,
    same,
)
from gnnplace.tracing.guards.outside_reads import (
    HELD,
    array_data,
    find_tensors,
    inside,
    outside,
    version,
)
from gnnplace.tracing.tensors import DATA

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
HIDDEN = (
    *OWN,
    *HOOKS,
    "_is_full_backward_hook",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
    "_non_persistent_buffers_set",
    "forward",
    "_flat_weights",
)
"""What torch itself reads of modules."""
LEARNS, DTYPE, DEVICE, *TENSOR_HOOKS = map(
    attrgetter,
    (
        "requires_grad",
        "dtype",
        "device",
        "_backward_hooks",
        "_post_accumulate_grad_hooks",
    ),
)
NAMES = ("requires_grad", "dtype", "device", "hooks", "post-accumulate hooks")
SAVED = ("architectures", "dtype", "_name_or_path")
"""Fields that transformers (5.23) writes into a configuration as it saves a model; nothing computes
by them."""
MEMORY, STATE = "memory", "state"
"""Kinds of changes that a step can follow: other memory of a tensor, other optimizer state."""


class Reads(dict[tuple[int, str], tuple[Any, Any]]):
    """Values of attributes that code read, with the plain data in each, by module's id and name.

    Attributes:
        writes: ids of objects and keys of them that the code changes itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writes: set[tuple[int, Any]] = set()


class Change(NamedTuple):
    """A difference from the model as it was recorded.

    Attributes:
        kind: `MEMORY`, `STATE`, or something that no step can follow.
        words: what changed; of `MEMORY` the tensor alone.
    """

    kind: str
    words: str


class _Reader:
    """Attributes that are read and written of the modules of a model."""

    def __init__(self, model: nn.Module) -> None:
        self.ids = {id(m) for _, m in owners(model)}
        self.reads = Reads()
        self.written: set[tuple[int, str]] = set()


_READERS: list[_Reader] = []
"""Readers of all threads."""
_LOCK = Lock()


@contextmanager
def reading(model: nn.Module) -> Iterator[Reads]:
    """Note plain attributes of modules that code reads within, but for those that it writes."""
    reader = _Reader(model)
    with _LOCK:
        _READERS.append(reader)
        WRITES.append(reader.reads.writes)
        if len(_READERS) == 1:
            nn.Module.__getattribute__ = _noting  # type: ignore[method-assign, assignment]
            nn.Module.__setattr__ = _writing  # type: ignore[method-assign, assignment]
    try:
        yield reader.reads
    finally:
        with _LOCK:
            _READERS.remove(reader)
            WRITES[:] = [
                writes for writes in WRITES if writes is not reader.reads.writes
            ]
            if not _READERS:
                del nn.Module.__getattribute__
                nn.Module.__setattr__ = _PUT  # type: ignore[method-assign]
        for key, (value, data) in [*reader.reads.items()]:
            if key in reader.written or find_plain_data(value) != data:
                del reader.reads[key]


_PUT = nn.Module.__setattr__


def _noting(self: nn.Module, name: str) -> Any:
    """Return an attribute of a module, as `__getattribute__` does, and note that it was read."""
    value = object.__getattribute__(self, name)
    if (
        name[:2] != "__"
        and name not in HIDDEN
        and name in object.__getattribute__(self, "__dict__")
    ):
        key = id(self), name
        for reader in _READERS[:]:
            if id(self) in reader.ids and key not in reader.reads:
                reader.reads[key] = value, find_plain_data(value)
    return value


def _writing(self: nn.Module, name: str, value: Any) -> None:
    """Set an attribute of a module, as `__setattr__` does, and note it."""
    for reader in _READERS[:]:
        reader.written.add((id(self), name))
    _PUT(self, name, value)


def find_plain_data(value: object) -> Any:
    """Return the plain data in an object, dict or list: of a configuration its entries."""
    if isinstance(value, (*OPAQUE, *DATA)):
        return None
    items = content(value)
    if items is None:
        return array_data(value)
    if isinstance(items, dict):
        return [(k, x) for k, x in items.items() if isinstance(x, DATA)]
    return [x for x in items if isinstance(x, DATA)]


def _entries(
    value: object, writes: Collection[tuple[int, Any]] = ()
) -> tuple[dict[Any, Any], list[Any]]:
    """Return the dict in which an object keeps its data, and the keys of plain data in it."""
    if isinstance(value, dict):
        table = value
    else:
        table = getattr(value, "__dict__", {})
    items = content(value)
    if not isinstance(items, dict) or items.keys() != table.keys():
        return {}, []  # such as a list, or a generator of random numbers
    ignored = {key for i, key in writes if i == id(value)}
    ignored.update(SAVED if hasattr(value, "save_pretrained") else ())
    return table, [
        key for key, x in table.items() if isinstance(x, DATA) and key not in ignored
    ]


class _Snapshot(NamedTuple):
    """The values that are compared, as lists, so that two snapshots are compared in C.

    Attributes:
        tables: whether an empty table of a module was filled, and objects in the others.
        hooks: hooks of modules, without modules that have none.
        learns: `requires_grad` of each tensor.
        dtypes: type of each tensor.
        tensor_hooks: hooks of each tensor; empty if there are none.
        accumulate_hooks: post-accumulate hooks of each tensor; empty if there are none.
        memory: address of each tensor.
        attributes: value of each attribute that code read.
        contents: plain data in each container among these.
        groups: parameters of the optimizer.
        constants: versions of tensors that are constants.
        forwards: forward functions that modules have as attributes.
        state: objects of the optimizer's state.
    """

    tables: list[Any]
    hooks: list[Any]
    learns: list[bool]
    dtypes: list[torch.dtype]
    tensor_hooks: list[Any]
    accumulate_hooks: list[Any]
    memory: list[int]
    attributes: list[Any]
    contents: list[Any]
    groups: list[int]
    constants: list[Any]
    forwards: list[Any]
    state: list[int]


class _Container(NamedTuple):
    """A container or object that an attribute holds, and that may change inside.

    Attributes:
        value: the container.
        name: name of the attribute.
        title: The object that has the attribute, in words.
        table: the dict that keeps its data; empty if it has none.
        keys: keys of plain data in the dict.
    """

    value: Any
    name: str
    title: str
    table: dict[Any, Any]
    keys: list[Any]

    def data(self) -> object:
        """Return the plain data in it."""
        if self.keys:
            return (len(self.table), *map(self.table.get, self.keys))
        return find_plain_data(self.value)


class Fingerprint:
    """Facts that held while a step was recorded.

    Args:
        model: The model that was recorded; it may change.
        optimizer: The optimizer of the loop, if it has one.
        read: Attributes that `reading` noted.
        loss: The loss of the step, if it is not the model's own.
        follows: Says of a tensor that is not the model's whether the step follows numbers that
            change in place; None: of every one.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        read: Reads,
        loss: object = None,
        *,
        follows: Callable[[torch.Tensor], bool] | None = None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        modules = dict(model.named_modules())
        paths = {id(module): name or "model" for name, module in owners(model)}
        self._paths = [paths[id(module)] for module in modules.values()]
        self._tables = [
            getattr(module, key) for module in modules.values() for key in OWN
        ]
        self._hooks = [
            getattr(module, key) for module in modules.values() for key in HOOKS
        ]
        self._titles = [title for title, _ in _state(model)]
        self._tensors = [tensor for _, tensor in _state(model)]

        # Attributes of modules that were read, and values outside of them that code reads.
        dicts = {id(module): module.__dict__ for _, module in owners(model)}
        self._forwards = [*dicts.values()]
        values = [value for value, _ in read.values()]
        roots = [*(module for _, module in owners(model)), loss, *values]
        self._attributes: list[tuple[Any, str, str]] = [
            (dicts[i], name, f"module {paths[i]!r}") for i, name in read
        ]
        self._attributes += outside(roots, {*paths})
        self._containers = self._find_containers(read)
        self._constants = self._find_constants(follows)
        self.take()

    def _find_containers(self, read: Reads) -> list[_Container]:
        """Return containers and objects that attributes hold and that may change inside."""
        containers: dict[int, _Container] = {}
        for table, name, title in self._attributes:
            value = table.get(name)
            for item in inside(value):
                if item is not value and not isinstance(item, HELD):
                    continue
                if (
                    find_plain_data(item)
                    and type(item) is not tuple
                    and id(item) not in containers
                ):
                    entries, keys = _entries(item, read.writes)
                    containers[id(item)] = _Container(item, name, title, entries, keys)
        return [*containers.values()]

    def _find_constants(
        self, follows: Callable[[torch.Tensor], bool] | None
    ) -> list[torch.Tensor]:
        """Return tensors of attributes that are not the model's and whose changes are not seen."""
        if follows is None:
            return []
        model_tensors = {*map(id, self._tensors)}
        values = (table.get(name) for table, name, _ in self._attributes)
        return [
            x
            for x in find_tensors(values)
            if id(x) not in model_tensors and not follows(x)
        ]

    def take(self) -> None:
        """Take the model and the optimizer as they are for right."""
        self._filled = [table for table in self._tables if table]
        self._empty = [table for table in self._tables if not table]
        self._devices = [*map(DEVICE, self._tensors)]
        self._recorded = self._now()
        self._recorded_hooks = [*map(tuple, self._hooks)]

    def take_state(self) -> None:
        """Take the optimizer's state as it is for right."""
        self._recorded = self._recorded._replace(state=self._state_now())

    def _now(self) -> _Snapshot:
        """Return the facts of this moment."""
        if self._optimizer:
            groups = self._optimizer.param_groups
        else:
            groups = []
        ids = map(id, chain.from_iterable(map(dict.values, self._filled)))
        return _Snapshot(
            tables=[any(self._empty), *map(len, self._filled), *ids],
            hooks=[*map(tuple, filter(None, self._hooks))],
            learns=[*map(LEARNS, self._tensors)],
            dtypes=[*map(DTYPE, self._tensors)],
            tensor_hooks=self._hooked(TENSOR_HOOKS[0]),
            accumulate_hooks=self._hooked(TENSOR_HOOKS[1]),
            memory=[*map(torch.Tensor.data_ptr, self._tensors)],
            attributes=[table.get(name) for table, name, _ in self._attributes],
            contents=[container.data() for container in self._containers],
            groups=[*map(id, chain.from_iterable(group["params"] for group in groups))],
            constants=[*map(version, self._constants)],
            forwards=[attributes.get("forward") for attributes in self._forwards],
            state=self._state_now(),
        )

    def _hooked(self, table: Callable[[torch.Tensor], Any]) -> list[Any]:
        """Return the hooks in a table of each tensor, which grows in place; empty if none."""
        tables = [*map(table, self._tensors)]
        if any(tables):
            return [tuple(x or ()) for x in tables]
        return []

    def _state_now(self) -> list[int]:
        """Return ids of the objects in the optimizer's state."""
        states = self._optimizer.state.values() if self._optimizer else ()
        return [*map(id, chain.from_iterable(map(dict.values, states)))]

    def changes(self) -> list[Change]:
        """Return what differs from the recording; empty in nearly every step."""
        snapshot = self._now()
        try:
            if snapshot == self._recorded:
                return []
        except (RuntimeError, ValueError):  # tensors or arrays among attributes
            pass
        return [
            *self._of_modules(snapshot),
            *self._list_tensor_changes(snapshot),
            *self._list_attribute_changes(snapshot),
            *self._list_optimizer_changes(snapshot),
        ]

    def _of_modules(self, snapshot: _Snapshot) -> Iterator[Change]:
        """Yield changes of modules, of what they hold and of their hooks."""
        if snapshot.tables != self._recorded.tables:
            tensors = dict(_state(self._model))
            pairs = zip(self._titles, self._tensors, strict=True)
            changed = (
                title for title, tensor in pairs if tensors.get(title) is not tensor
            )
            title = next(changed, "a module or parameter")
            yield Change(
                "identity", f"{title} is another object than when the step was recorded"
            )
        if snapshot.hooks != self._recorded.hooks:
            hooks = zip(map(tuple, self._hooks), self._recorded_hooks, strict=True)
            i = next(i for i, (a, b) in enumerate(hooks) if a != b) // len(HOOKS)
            yield Change(
                "hooks", f"module {self._paths[i]!r} has other hooks than when recorded"
            )

    def _list_tensor_changes(self, snapshot: _Snapshot) -> Iterator[Change]:
        """Yield changes of flags, types, devices, hooks and memory of tensors."""
        recorded = self._recorded
        columns = (
            (snapshot.learns, recorded.learns),
            (snapshot.dtypes, recorded.dtypes),
            ([tensor.device for tensor in self._tensors], self._devices),
            (snapshot.tensor_hooks, recorded.tensor_hooks),
            (snapshot.accumulate_hooks, recorded.accumulate_hooks),
        )
        for i, title in enumerate(self._titles):
            pairs = [(a[i] if a else (), b[i] if b else ()) for a, b in columns]
            for name, (value, value_before) in zip(NAMES, pairs, strict=True):
                if value != value_before and "hooks" in name:
                    yield Change(name, f"{title} has other {name} than when recorded")
                elif value != value_before:
                    yield Change(
                        name,
                        f"{title}: its {name} was {value_before}, now it is {value}",
                    )
            is_moved = snapshot.memory[i] != recorded.memory[i]
            if is_moved and all(a == b for a, b in pairs[:3]):
                yield Change(MEMORY, title)

    def _list_attribute_changes(self, snapshot: _Snapshot) -> Iterator[Change]:
        """Yield changes of attributes, of what they hold, and of values outside of modules."""
        recorded = self._recorded
        pairs = zip(
            self._attributes, snapshot.attributes, recorded.attributes, strict=True
        )
        for (_, name, title), value, value_before in pairs:
            if not same(value_before, value):
                are_plain = isinstance(value, DATA) and isinstance(value_before, DATA)
                if are_plain:
                    difference = f"was {value_before}, now it is {value}"
                else:
                    difference = "is another one"
                yield Change(name, f"{title}: its {name} {difference}")
        contents = zip(
            self._containers, snapshot.contents, recorded.contents, strict=True
        )
        for container, data, data_before in contents:
            if data != data_before:
                words = f"{container.title}: its {container.name} holds other values"
                yield Change(container.name, words)
        if snapshot.constants != recorded.constants:
            yield Change("constant", self._constant(snapshot.constants))
        if any(map(operator.is_not, snapshot.forwards, recorded.forwards)):
            yield Change("forward", "a module has another forward than when recorded")

    def _constant(self, versions: list[Any]) -> str:
        """Return which of the tensors that are constants has changed."""
        pairs = zip(self._constants, versions, self._recorded.constants, strict=True)
        tensor = next(tensor for tensor, a, b in pairs if a != b)
        for table, name, title in self._attributes:
            if any(item is tensor for item in inside(table.get(name))):
                return f"{title}: its tensor {name} has other numbers; register it as a buffer"
        return "a tensor that is no buffer has other numbers; register it as a buffer of the model"

    def _list_optimizer_changes(self, snapshot: _Snapshot) -> Iterator[Change]:
        """Yield a change of the optimizer's parameters or state."""
        if snapshot.groups != self._recorded.groups:
            yield Change(
                "groups", "the optimizer has other parameters than when recorded"
            )
        elif snapshot.state != self._recorded.state:
            yield Change(STATE, "the optimizer's state is another one")


def _state(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers with their titles."""
    for kind, named in (
        ("parameter", model.named_parameters()),
        ("buffer", model.named_buffers()),
    ):
        yield from ((f"{kind} {name!r}", tensor) for name, tensor in named)
