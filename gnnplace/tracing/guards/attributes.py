"""`Attributes`: what modules hold beside parameters, buffers and submodules.

A forward pass may set plain attributes: `self.calls += 1`, `self.cache = y`, `self.losses.append`.
Tracing runs it several times, on tensors without numbers, so all of that is put back; and what the
next step would find changed is known by name, so that somebody can ask whether it matters.

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

OWN = ("_parameters", "_buffers", "_modules")
"""Tables of a module that are not plain attributes."""
DERIVED = ("_flat_weights", "_flat_weight_refs")
"""Of a recurrent layer: lists of its parameters, made anew whenever one of them is set."""
MODULE_HOOK = "hook of a module"
OURS = ("torch.", "gnnplace.")
OPAQUE = (nn.Module, torch.Tensor, type, types.ModuleType, types.FunctionType, types.MethodType)
DATA = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)

WRITES: list[set[tuple[int, Any]]] = []
"""Sets that get what code changes within `restored`: ids of objects, and keys."""
CODE = "_code_of"
"""Attribute of a module that calls the code of another one, on tables that both have: this one."""


class SetNames:
    """Names of a class, an object, a function or a file that code sets.

    Args:
        holder: what has them, or its dict.
        names: those that code sets somewhere.
    """

    def __init__(self, holder: object, names: Collection[str]) -> None:
        self._holder, self._names = holder, names

    def now(self) -> dict[str, Any]:
        """What they are bound to; nothing of those that are not."""
        held = self._table()
        return {name: held[name] for name in self._names if name in held}

    def _table(self) -> Any:
        return self._holder if isinstance(self._holder, dict) else vars(self._holder)

    def write(self, before: Mapping[str, Any]) -> None:
        """Binds them to what they were bound to."""
        holder, now = self._holder, self.now()
        for name in [name for name in now if name not in before]:
            if isinstance(holder, type):
                delattr(holder, name)
            else:
                del self._table()[name]
        for name in [name for name in before if now.get(name) is not before[name]]:
            if isinstance(holder, type):
                setattr(holder, name, before[name])
            else:  # whatever an object does where it is set
                self._table()[name] = before[name]


class Attributes:
    """All plain attributes of a module and its submodules, and what their code keeps elsewhere.

    Args:
        root: The module whose attributes are kept.
        elsewhere: Look also for what is kept in files, classes, functions and caches of results.

    Attributes:
        changed: Names of the attributes that the last `restored()` found changed, as
            "layer.cache"; what they were changed to is kept for `advance`.
    """

    def __init__(self, root: nn.Module, elsewhere: bool = True) -> None:
        from gnnplace.tracing.guards.outside_reads import kept_by

        self._root = root
        self._elsewhere, self._caches = kept_by(root) if elsewhere else ([], [])
        self._left: list[tuple[Any, Any]] = []
        self.changed: tuple[str, ...] = ()

    @contextmanager
    def restored(self, back: bool = True) -> Iterator[None]:
        """Notes what was changed in the block, and puts everything back unless told not to."""
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
            for name, item, before in saved:
                now = _now(item)
                keys = _differences(before, now)
                changed.update((_joined(name, key, item), None) for key in keys)
                for noted in WRITES:
                    noted.update((id(item), key) for key in keys)
                if keys and back:
                    self._left.append((item, now))
                    _write(item, before)
            self.changed = tuple(n for n in changed if n.rpartition(".")[2] not in DERIVED)

    def advance(self, renew: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Puts the modules into the state that the last `restored()` took back.

        Args:
            renew: Called on every tensor that is put there; returns what stands for it.
        """
        for item, now in self._left:
            _write(item, _renewed(now, renew))


def owners(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules whose attributes code reads and sets, with their paths."""
    for path, module in root.named_modules():
        yield path, module
        if CODE in module.__dict__:
            yield path, module.__dict__[CODE]


def _snapshot(
    root: nn.Module, elsewhere: Iterable[tuple[str, Any]]
) -> Iterator[tuple[str, Any, Any]]:
    """Name, object and content of every module and of every container that one can reach."""
    seen: set[int] = set()
    for path, module in owners(root):
        own = _now(module)
        yield path, module, own
        for key, value in own.items():
            yield from _containers(f"{path}.{key}" if path else key, value, seen)
    for title, item in elsewhere:
        if id(item) not in seen:
            seen.add(id(item))
            yield title, item, _now(item)


def _containers(name: str, value: object, seen: set[int]) -> Iterator[tuple[str, Any, Any]]:
    pending = [value]
    while pending:
        item = pending.pop()
        if id(item) in seen or isinstance(item, (*OPAQUE, *DATA)):
            continue
        seen.add(id(item))
        held = content(item)
        if held is None:
            continue
        if not isinstance(item, tuple | frozenset):
            yield name, item, held
        pending += held.values() if isinstance(held, dict) else held


def content(item: object) -> Any:
    """A shallow copy of what an object holds; `None` of one that cannot be looked into."""
    if isinstance(item, dict):
        return {key: dict.__getitem__(item, key) for key in item}  # what classes make of it is new
    if isinstance(item, list | tuple | deque):
        return list(item)
    if isinstance(item, set | frozenset):
        return set(item)
    if isinstance(item, random.Random):
        return {"state": repr(item.getstate())}
    if isinstance(item, np.random.Generator):
        return {"state": repr(item.bit_generator.state)}
    inside = getattr(item, "__dict__", None)
    return dict(inside) if isinstance(inside, dict) else None


def _now(item: object) -> Any:
    if isinstance(item, nn.Module):
        return {k: v for k, v in item.__dict__.items() if k not in OWN}
    return item.now() if isinstance(item, SetNames) else content(item)


def _write(item: Any, content: Any) -> None:
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


def _differences(before: Any, now: Any) -> list[Any]:
    """Keys of a dict whose values differ; of another container `[None]` if it differs."""
    if isinstance(before, Mapping):
        keys = {**before, **now}
        return [k for k in keys if k not in before or k not in now or not same(before[k], now[k])]
    if isinstance(before, set):
        return [] if before == now else [None]
    return [] if _same_items(before, now) else [None]


def _same_items(before: Any, now: Any) -> bool:
    return len(before) == len(now) and all(map(same, before, now))


def same(before: object, now: object) -> bool:
    """Whether an attribute is the object that it was, or equal data of the same type."""
    return before is now or (
        isinstance(before, DATA) and type(before) is type(now) and bool(before == now)
    )


def _joined(name: str, key: object, item: object) -> str:
    """The attribute's name: a key of a module is one, a key of what it holds is not."""
    if isinstance(item, SetNames):
        return f"{name}'s {key!r}"
    if not isinstance(item, nn.Module):
        return name
    return f"{name}.{key}" if name else str(key)


def _renewed(content: Any, renew: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(content, torch.Tensor):
        return renew(content)
    if isinstance(content, dict):
        return {key: _renewed(value, renew) for key, value in content.items()}
    if type(content) in (list, tuple):
        return type(content)(_renewed(value, renew) for value in content)
    return content


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Restore the plain attributes that a forward pass sets on modules.

    A model that keeps an activation in `self.cache` would otherwise keep a fake tensor.
    """
    with Attributes(module).restored():
        yield


def own_gradients(made: object) -> list[str]:
    """What makes gradients in ways of its own on the way to some tensors.

    `torch.export` traces the forward pass of a `torch.autograd.Function` and would differentiate
    that, in place of its own backward, and drops hooks of modules' backward passes.

    Args:
        made: Tensors, in any containers.
    """
    todo = [x.grad_fn for x in pytree.tree_leaves(made) if isinstance(x, torch.Tensor)]
    seen, found = set(), dict[str, None]()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo += [other for other, _ in node.next_functions]
        kind = getattr(type(node), "_forward_cls", None)
        if kind is not None and not kind.__module__.startswith(OURS):
            found[f"autograd function {kind.__name__}"] = None
        elif kind is BackwardHookFunction:
            found[MODULE_HOOK] = None
    return list(found)
