"""`Attributes`: a snapshot of the attributes of modules that are no parameters or submodules.

A forward pass may set plain attributes: `self.calls += 1`, `self.cache = y`, `self.losses.append`.
Tracing runs it several times, on tensors without numbers, so all attributes are restored
afterwards. The names of changed attributes are kept, for checks whether the next step depends on
them.

A snapshot keeps a shallow copy of every list, dict, set, deque and attribute dictionary that is
reachable from a module. O(number of such objects); tensors are compared by identity.
"""

from __future__ import annotations

import random
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnplace.torch_names import BackwardHookFunction, pytree
from gnnplace.tracing.tensors import DATA
from gnnplace.tracing.user_code import OUR_MODULES

OWN = ("_parameters", "_buffers", "_modules")
"""Tables of a module that are not plain attributes."""
DERIVED = ("_flat_weights", "_flat_weight_refs")
"""Of a recurrent layer: lists of its parameters, made anew whenever one of them is set."""
MODULE_HOOK = "hook of a module"
OPAQUE = (
    nn.Module,
    torch.Tensor,
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
)

WRITES: list[set[tuple[int, Any]]] = []
"""Sets that get what code changes within `restored`: ids of objects, and keys."""
CODE = "_code_of"
"""Attribute of a module that calls the code of another one, on tables that both have: this one."""


class SetNames:
    """Names of a class, an object, a function or a file that code sets.

    Args:
        holder: the object that has them, or its dict.
        names: names that code sets somewhere.
    """

    def __init__(self, holder: object, names: Collection[str]) -> None:
        self._holder = holder
        self._names = names

    def now(self) -> dict[str, Any]:
        """Return what they are bound to; nothing of those that are not."""
        table = self._table()
        return {name: table[name] for name in self._names if name in table}

    def _table(self) -> dict[str, Any]:
        """Return the dict that has the names."""
        if isinstance(self._holder, dict):
            return self._holder
        return vars(self._holder)

    def write(self, values_before: Mapping[str, Any]) -> None:
        """Bind them to what they were bound to."""
        holder = self._holder
        values_now = self.now()
        for name in [name for name in values_now if name not in values_before]:
            if isinstance(holder, type):
                delattr(holder, name)
            else:
                del self._table()[name]
        for name in [
            name
            for name in values_before
            if values_now.get(name) is not values_before[name]
        ]:
            if isinstance(holder, type):
                setattr(holder, name, values_before[name])
            else:  # whatever an object does where it is set
                self._table()[name] = values_before[name]


class Attributes:
    """The plain attributes of a module and its submodules, and of objects that their code keeps.

    Args:
        root: The module whose attributes are kept.
        elsewhere: Look also for what is kept in files, classes, functions and caches of results.

    Attributes:
        changed: Names of the attributes that the last `restored()` found changed, as
            "layer.cache"; what they were changed to is kept for `advance`.
    """

    def __init__(self, root: nn.Module, elsewhere: bool = True) -> None:
        from gnnplace.tracing.guards.outside_reads import find_keeper

        self._root = root
        self._elsewhere, self._caches = find_keeper(root) if elsewhere else ([], [])
        self._left: list[tuple[Any, Any]] = []
        self.changed: tuple[str, ...] = ()

    @contextmanager
    def restored(self, back: bool = True) -> Iterator[None]:
        """Note what is changed within, and put everything back unless told not to.

        Args:
            back: Whether to put it back.
        """
        saved = list(_snapshot(self._root, self._elsewhere))
        computed = [cached.cache_info().misses for cached in self._caches]
        try:
            yield
        finally:
            for cached, misses in zip(self._caches, computed, strict=True):
                if back and cached.cache_info().misses > misses:
                    cached.cache_clear()
            changed: dict[str, None] = {}
            self._left = []
            for name, item, content_before in saved:
                content_now = _now(item)
                keys = _differences(content_before, content_now)
                changed.update((_join_name(name, key, item), None) for key in keys)
                for written in WRITES:
                    written.update((id(item), key) for key in keys)
                if keys and back:
                    self._left.append((item, content_now))
                    _write(item, content_before)
            self.changed = tuple(
                n for n in changed if n.rpartition(".")[2] not in DERIVED
            )

    def advance(self, renew: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Put the modules into the state that the last `restored()` took back.

        Args:
            renew: Called on every tensor that is put there; returns what stands for it.
        """
        for item, content_left in self._left:
            _write(item, _renew(content_left, renew))


def owners(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules whose attributes code reads and sets, with their paths."""
    for path, module in root.named_modules():
        yield path, module
        if CODE in module.__dict__:
            yield path, module.__dict__[CODE]


def _snapshot(
    root: nn.Module, elsewhere: Iterable[tuple[str, Any]]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, object and content of every module and container that one can reach."""
    visited: set[int] = set()
    for path, module in owners(root):
        attributes = _now(module)
        yield path, module, attributes
        for key, value in attributes.items():
            yield from _containers(f"{path}.{key}" if path else key, value, visited)
    for title, item in elsewhere:
        if id(item) not in visited:
            visited.add(id(item))
            yield title, item, _now(item)


def _containers(
    name: str, value: object, visited: set[int]
) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, object and content of a container and of all within it."""
    pending = [value]
    while pending:
        item = pending.pop()
        if id(item) in visited or isinstance(item, (*OPAQUE, *DATA)):
            continue
        visited.add(id(item))
        items = content(item)
        if items is None:
            continue
        if not isinstance(item, tuple | frozenset):
            yield name, item, items
        pending += items.values() if isinstance(items, dict) else items


def content(item: object) -> Any:
    """Return a shallow copy of what an object holds; None if it cannot be looked into."""
    if isinstance(item, dict):
        # A class may make new values of it.
        return {key: dict.__getitem__(item, key) for key in item}
    if isinstance(item, list | tuple | deque):
        return list(item)
    if isinstance(item, set | frozenset):
        return set(item)
    if isinstance(item, random.Random):
        return {"state": repr(item.getstate())}
    if isinstance(item, np.random.Generator):
        return {"state": repr(item.bit_generator.state)}
    attributes = getattr(item, "__dict__", None)
    if isinstance(attributes, dict):
        return dict(attributes)
    return None


def _now(item: object) -> Any:
    """Return what an object of a snapshot holds at this moment."""
    if isinstance(item, nn.Module):
        return {k: v for k, v in item.__dict__.items() if k not in OWN}
    if isinstance(item, SetNames):
        return item.now()
    return content(item)


def _write(item: Any, content: Any) -> None:
    """Give an object of a snapshot another content, in place."""
    if isinstance(item, list | deque):
        if not _same_items(item, content):
            item.clear()
            item.extend(content)
    elif isinstance(item, dict):
        if _differences(content, _now(item)):
            item.clear()
            item.update(content)
    elif isinstance(item, set):
        item.clear()
        item.update(content)
    elif isinstance(item, random.Random | np.random.Generator):
        pass  # enough to know that it was drawn from
    elif isinstance(item, SetNames):
        item.write(content)
    else:
        table = item.__dict__
        for key in [k for k in table if k not in content and k not in OWN]:
            del table[key]
        table.update(content)


def _differences(content_before: Any, content_now: Any) -> list[Any]:
    """Return keys of a dict whose values differ; of another container `[None]` if it differs."""
    if isinstance(content_before, Mapping):
        keys = {**content_before, **content_now}
        return [
            k
            for k in keys
            if k not in content_before
            or k not in content_now
            or not same(content_before[k], content_now[k])
        ]
    if isinstance(content_before, set):
        if content_before == content_now:
            return []
        return [None]
    if _same_items(content_before, content_now):
        return []
    return [None]


def _same_items(content_before: Collection[Any], content_now: Collection[Any]) -> bool:
    """Return whether two containers have the same items in order."""
    return len(content_before) == len(content_now) and all(
        map(same, content_before, content_now)
    )


def same(value_before: object, value_now: object) -> bool:
    """Return whether an attribute is the object that it was, or equal data of the same type."""
    if value_before is value_now:
        return True
    is_data = isinstance(value_before, DATA) and type(value_before) is type(value_now)
    return is_data and bool(value_before == value_now)


def _join_name(name: str, key: object, item: object) -> str:
    """Return the attribute's name: a key of a module is one, a key within its content is not."""
    if isinstance(item, SetNames):
        return f"{name}'s {key!r}"
    if not isinstance(item, nn.Module):
        return name
    if name:
        return f"{name}.{key}"
    return str(key)


def _renew(content: Any, renew: Callable[[torch.Tensor], torch.Tensor]) -> object:
    """Return a content with other tensors."""
    if isinstance(content, torch.Tensor):
        return renew(content)
    if isinstance(content, dict):
        return {key: _renew(value, renew) for key, value in content.items()}
    if type(content) in (list, tuple):
        return type(content)(_renew(value, renew) for value in content)
    return content


@contextmanager
def restore_attributes(module: nn.Module) -> Iterator[None]:
    """Restore the plain attributes that a forward pass sets on modules.

    A model that keeps an activation in `self.cache` would otherwise keep a fake tensor.
    """
    with Attributes(module).restored():
        yield


def custom_gradients(tensors: object) -> list[str]:
    """Return hooks and autograd functions that made gradients on the way to some tensors.

    `torch.export` traces the forward pass of a `torch.autograd.Function` and would differentiate
    that, in place of its own backward, and drops hooks of modules' backward passes.

    Args:
        tensors: Tensors, in any containers.
    """
    leaves = pytree.tree_leaves(tensors)
    pending = [leaf.grad_fn for leaf in leaves if isinstance(leaf, torch.Tensor)]
    visited = set()
    names: dict[str, None] = {}
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        pending += [next_node for next_node, _ in node.next_functions]
        kind = getattr(type(node), "_forward_cls", None)
        if kind is not None and not kind.__module__.startswith(OUR_MODULES):
            names[f"autograd function {kind.__name__}"] = None
        elif kind is BackwardHookFunction:
            names[MODULE_HOOK] = None
    return list(names)
