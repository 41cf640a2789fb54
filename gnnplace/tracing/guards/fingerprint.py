"""`Fingerprint`: the state of model and optimizer that a recorded step assumes, and changes of it.

A recorded step is valid only for the model as it was: the tensors of its modules, their types,
flags and hooks, the plain attributes that code read (`training`, a dropout's `p`, a configuration),
and the parameters and the state of the optimizer. Values that the code of the model or the loss
reads outside of modules belong to it, too (`outside_reads`).

`changes` compares all this before a step. It compares lists in C, which takes O(modules + tensors):
less than 0.2 ms for GPT-2. Devices of tensors are not in these lists. A tensor that moves to
another device gets another address, which is.

An attribute that the step itself writes (a counter) is no change: `proof` has shown that no later
step depends on it.
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
"""Attributes of modules that torch itself reads, which `note_attribute_reads` does not note."""
# Getters of a tensor's attributes.
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
"""Names of these attributes for messages."""
SAVED = ("architectures", "dtype", "_name_or_path")
"""Fields that transformers (5.23) writes into a configuration when it saves a model. No computation
depends on them."""
MEMORY = "memory"
"""The kind of change that a tensor has other memory. A step can follow it."""
STATE = "state"
"""The kind of change that the optimizer has other state. A step can follow it."""


class Reads(dict[tuple[int, str], tuple[Any, Any]]):
    """The attributes that code read: value and plain data, by the module's id and the name.

    Attributes:
        writes: The entries that the code itself changes: id of an object, and key in it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writes: set[tuple[int, Any]] = set()


class Change(NamedTuple):
    """A difference from the model as it was recorded.

    Attributes:
        kind: `MEMORY`, `STATE`, or a word for a change that no step can follow.
        words: The change as a message; for `MEMORY` only the tensor's title.
    """

    kind: str
    words: str


class _Reader:
    """A record of the attributes of a model's modules that code reads and writes.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self.ids = {id(module) for _, module in owners(model)}
        self.reads = Reads()
        self.written: set[tuple[int, str]] = set()


_READERS: list[_Reader] = []
"""Readers of all threads that are recording now."""
_LOCK = Lock()
"""Held while the list of readers changes, and torch's methods with it."""


@contextmanager
def note_attribute_reads(model: nn.Module) -> Iterator[Reads]:
    """Note the attributes of modules that code reads within, except those that it writes.

    Torch's `__getattribute__` and `__setattr__` of modules are replaced while any thread is within.

    Yields:
        The attributes, complete at the end.
    """
    reader = _Reader(model)
    with _LOCK:
        _READERS.append(reader)
        WRITES.append(reader.reads.writes)
        if len(_READERS) == 1:
            nn.Module.__getattribute__ = _note_read  # type: ignore[method-assign, assignment]
            nn.Module.__setattr__ = _note_write  # type: ignore[method-assign, assignment]
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
                nn.Module.__setattr__ = _SET_ATTRIBUTE  # type: ignore[method-assign]
        # An attribute also counts as written if its value changed inside.
        for key, (value, data) in [*reader.reads.items()]:
            if key in reader.written or find_plain_data(value) != data:
                del reader.reads[key]


_SET_ATTRIBUTE = nn.Module.__setattr__
"""Torch's own method."""


def _note_read(self: nn.Module, name: str) -> Any:
    """Return an attribute of a module, as `__getattribute__` does, and note that it was read."""
    value = object.__getattribute__(self, name)
    is_hidden = name[:2] == "__" or name in HIDDEN
    if not is_hidden and name in object.__getattribute__(self, "__dict__"):
        key = id(self), name
        for reader in _READERS[:]:
            if id(self) in reader.ids and key not in reader.reads:
                reader.reads[key] = value, find_plain_data(value)
    return value


def _note_write(self: nn.Module, name: str, value: Any) -> None:
    """Set an attribute of a module, as `__setattr__` does, and note that it was written."""
    for reader in _READERS[:]:
        reader.written.add((id(self), name))
    _SET_ATTRIBUTE(self, name, value)


def find_plain_data(value: object) -> Any:
    """Return the plain data (numbers, text) in an object, or None if it holds none.

    It is the entries of a dict or of an object such as a configuration, the items of a list, or the
    data of an array.
    """
    if isinstance(value, (*OPAQUE, *DATA)):
        return None
    items = content(value)
    if items is None:
        return array_data(value)
    if isinstance(items, dict):
        return [(key, item) for key, item in items.items() if isinstance(item, DATA)]
    return [item for item in items if isinstance(item, DATA)]


def _find_entries(
    value: object, writes: Collection[tuple[int, Any]] = ()
) -> tuple[dict[Any, Any], list[Any]]:
    """Return the dict in which an object keeps its data, and the keys of plain data in it.

    Args:
        value: The object.
        writes: Entries that code writes itself, as `Reads.writes`. Their keys are left out.

    Returns:
        Both empty if the object keeps its data elsewhere, as a list or a random generator does.
    """
    if isinstance(value, dict):
        table = value
    else:
        table = getattr(value, "__dict__", {})
    items = content(value)
    if not isinstance(items, dict) or items.keys() != table.keys():
        return {}, []
    ignored = {key for owner, key in writes if owner == id(value)}
    if hasattr(value, "save_pretrained"):  # a configuration of transformers
        ignored.update(SAVED)
    keys = []
    for key, item in table.items():
        if isinstance(item, DATA) and key not in ignored:
            keys.append(key)
    return table, keys


class _Snapshot(NamedTuple):
    """The values to compare, as lists, so that two snapshots are compared in C.

    Attributes:
        tables: Whether a table of a module that was empty has entries now; the sizes of the other
            tables; the ids of the objects in them. Tables are a module's parameters, buffers and
            submodules.
        hooks: Hooks of the modules that have some.
        learns: `requires_grad` of each tensor.
        dtypes: Type of each tensor.
        tensor_hooks: Hooks of each tensor; empty if no tensor has any.
        accumulate_hooks: Post-accumulate hooks of each tensor; empty if no tensor has any.
        memory: Address of each tensor.
        attributes: Value of each attribute that code read.
        contents: Plain data in each container among these values.
        groups: Ids of the optimizer's parameters.
        constants: Versions of tensors that are taken to be constant.
        forwards: Forward functions that modules have as attributes of their own.
        state: Ids of the objects in the optimizer's state.
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
    """A container or object that is the value of an attribute and may change inside.

    Attributes:
        value: The container.
        name: Name of the attribute.
        title: The object that has the attribute, in words.
        table: The dict that keeps the container's data; empty if there is none.
        keys: Keys of plain data in the dict.
    """

    value: Any
    name: str
    title: str
    table: dict[Any, Any]
    keys: list[Any]

    def data(self) -> object:
        """Return the plain data in the container, in a form that can be compared."""
        if self.keys:
            return (len(self.table), *map(self.table.get, self.keys))
        return find_plain_data(self.value)


class Fingerprint:
    """The state of a model and an optimizer in which a step was recorded.

    Args:
        model: The model that was recorded. It may change later.
        optimizer: The optimizer of the training loop, if there is one.
        read: Attributes that `note_attribute_reads` noted.
        loss: The loss of the step, if it is not the model's own.
        follows: Returns whether the step reads a tensor outside of the model anew each time, so
            that its numbers may change in place; None: it reads all of them anew.
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
        self._titles = [title for title, _ in _list_tensors(model)]
        self._tensors = [tensor for _, tensor in _list_tensors(model)]

        # Attributes of modules that code read, and values outside of modules that it reads.
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
        """Return the containers and objects in attributes that may change inside, each once."""
        containers: dict[int, _Container] = {}
        for table, name, title in self._attributes:
            value = table.get(name)
            for item in inside(value):
                if item is not value and not isinstance(item, HELD):
                    continue
                # A tuple cannot change, and what holds no plain data cannot be compared.
                if not find_plain_data(item) or type(item) is tuple:
                    continue
                if id(item) in containers:
                    continue
                entries, keys = _find_entries(item, read.writes)
                containers[id(item)] = _Container(
                    value=item, name=name, title=title, table=entries, keys=keys
                )
        return [*containers.values()]

    def _find_constants(
        self, follows: Callable[[torch.Tensor], bool] | None
    ) -> list[torch.Tensor]:
        """Return the tensors in attributes, outside of the model, that the step has as constants.

        The step would not see a change of their numbers, so their versions are compared.
        """
        if follows is None:
            return []
        model_tensors = {*map(id, self._tensors)}
        values = (table.get(name) for table, name, _ in self._attributes)
        constants = []
        for tensor in find_tensors(values):
            if id(tensor) not in model_tensors and not follows(tensor):
                constants.append(tensor)
        return constants

    def take(self) -> None:
        """Accept the model and the optimizer as they are now: later changes are from this state."""
        self._filled = [table for table in self._tables if table]
        self._empty = [table for table in self._tables if not table]
        self._devices = [*map(DEVICE, self._tensors)]
        self._recorded = self._take_snapshot()
        self._recorded_hooks = [*map(tuple, self._hooks)]

    def take_state(self) -> None:
        """Accept the optimizer's state as it is now."""
        self._recorded = self._recorded._replace(state=self._get_state_ids())

    def _take_snapshot(self) -> _Snapshot:
        """Return the values to compare as they are now."""
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
            tensor_hooks=self._get_hooks(TENSOR_HOOKS[0]),
            accumulate_hooks=self._get_hooks(TENSOR_HOOKS[1]),
            memory=[*map(torch.Tensor.data_ptr, self._tensors)],
            attributes=[table.get(name) for table, name, _ in self._attributes],
            contents=[container.data() for container in self._containers],
            groups=[*map(id, chain.from_iterable(group["params"] for group in groups))],
            constants=[*map(version, self._constants)],
            forwards=[attributes.get("forward") for attributes in self._forwards],
            state=self._get_state_ids(),
        )

    def _get_hooks(self, table: Callable[[torch.Tensor], Any]) -> list[Any]:
        """Return the hooks of each tensor; empty if no tensor has any.

        They are copied, as torch adds hooks to a tensor's table in place.

        Args:
            table: Returns the table of a tensor.
        """
        tables = [*map(table, self._tensors)]
        if any(tables):
            return [tuple(hooks or ()) for hooks in tables]
        return []

    def _get_state_ids(self) -> list[int]:
        """Return the ids of the objects in the optimizer's state."""
        states = self._optimizer.state.values() if self._optimizer else ()
        return [*map(id, chain.from_iterable(map(dict.values, states)))]

    def changes(self) -> list[Change]:
        """Return what differs from the recording; empty in nearly every step."""
        snapshot = self._take_snapshot()
        # Tensors and arrays among attributes have no truth value: they are compared one by one.
        try:
            if snapshot == self._recorded:
                return []
        except (RuntimeError, ValueError):
            pass
        return [
            *self._list_module_changes(snapshot),
            *self._list_tensor_changes(snapshot),
            *self._list_attribute_changes(snapshot),
            *self._list_optimizer_changes(snapshot),
        ]

    def _list_module_changes(self, snapshot: _Snapshot) -> Iterator[Change]:
        """Yield changes of modules, of their tensors and submodules, and of their hooks."""
        if snapshot.tables != self._recorded.tables:
            tensors = dict(_list_tensors(self._model))
            title = "a module or parameter"
            for recorded_title, tensor in zip(self._titles, self._tensors, strict=True):
                if tensors.get(recorded_title) is not tensor:
                    title = recorded_title
                    break
            yield Change(
                "identity", f"{title} is another object than when the step was recorded"
            )
        if snapshot.hooks != self._recorded.hooks:
            # Every module has as many tables of hooks as there are `HOOKS`.
            hooks = zip(map(tuple, self._hooks), self._recorded_hooks, strict=True)
            table_index = next(
                i for i, (now, recorded) in enumerate(hooks) if now != recorded
            )
            path = self._paths[table_index // len(HOOKS)]
            yield Change("hooks", f"module {path!r} has other hooks than when recorded")

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
            # A column of hooks is empty if no tensor has any.
            pairs = [(a[i] if a else (), b[i] if b else ()) for a, b in columns]
            for name, (value, value_before) in zip(NAMES, pairs, strict=True):
                if value != value_before and "hooks" in name:
                    yield Change(name, f"{title} has other {name} than when recorded")
                elif value != value_before:
                    yield Change(
                        name,
                        f"{title}: its {name} was {value_before}, now it is {value}",
                    )
            # Other memory alone, with the same flag, type and device, can be followed.
            has_moved = snapshot.memory[i] != recorded.memory[i]
            if has_moved and all(a == b for a, b in pairs[:3]):
                yield Change(MEMORY, title)

    def _list_attribute_changes(self, snapshot: _Snapshot) -> Iterator[Change]:
        """Yield changes of attributes, of data inside of them, and of values outside of modules."""
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
            yield Change("constant", self._describe_constant(snapshot.constants))
        if any(map(operator.is_not, snapshot.forwards, recorded.forwards)):
            yield Change("forward", "a module has another forward than when recorded")

    def _describe_constant(self, versions: list[Any]) -> str:
        """Return the message that names the constant tensor which has changed.

        Args:
            versions: Versions of the constants now.
        """
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


def _list_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the title and the tensor of every parameter and buffer."""
    for name, parameter in model.named_parameters():
        yield f"parameter {name!r}", parameter
    for name, buffer in model.named_buffers():
        yield f"buffer {name!r}", buffer
