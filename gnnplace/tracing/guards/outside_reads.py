"""Values that the code of a step reads outside its modules: globals, closures, objects and classes.

A recording contains their numbers as constants, and the next step may have others, for example if a
script anneals `beta` between steps. Python cannot report who reads a global or an attribute of an
object, so the code is searched: bytecode names the globals, closures and attributes it loads. The
search begins with `forward`, `training_step`, hooks and the loss, and goes on with every function,
method, class and object that these name. An attribute counts as read if some code there loads its
name; an attribute that such code sets itself (a counter) is left to `proof`. Code of libraries is
not looked through. O(instructions of that code), once.

Code may keep something there for its next step, such as a table in a dict of the file, in a class
or behind `functools.lru_cache`. It is found in the same way (`find_keeper`), so that a traced run
leaves none of its tensors without numbers in it. Functions of libraries may have such caches where
their modules have them.
"""

from __future__ import annotations

import dis
import os
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import _lru_cache_wrapper, cached_property, partial
from pathlib import Path
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from gnnplace.tracing.guards.attributes import OWN, SetNames
from gnnplace.tracing.tensors import DATA

ENTRIES = ("forward", "__call__", "training_step")
LIBRARIES = (
    "torch",
    "numpy",
    "transformers",
    "lightning",
    "pytorch_lightning",
    "torchmetrics",
    "lightning_fabric",
    "torch_geometric",
    "gnnplace",
)
STANDARD = sys.stdlib_module_names - {"__main__"}
"""Packages whose code reads nothing that a script changes."""
HELD = (dict, list, tuple, set, frozenset, deque)
MOST = 1000
"""Number of items of one container that are looked into."""


class Reading(NamedTuple):
    """A place that code reads.

    Attributes:
        held: has the value by `get(name)`.
        name: name of the value.
        title: The object that holds it, in words.
    """

    held: Any
    name: str
    title: str

    @property
    def value(self) -> Any:
        """Return what stands there now."""
        return self.held.get(self.name)


class _Cell:
    """A variable of a closure, which has it by name."""

    def __init__(self, cell: CellType) -> None:
        self._cell = cell

    def get(self, name: str) -> Any:
        """Return what it is bound to; None if it is not bound."""
        try:
            return self._cell.cell_contents
        except ValueError:
            return None


def inside(value: object) -> Iterator[Any]:
    """Yield a value, and all that is in it if it is a container of Python's."""
    pending, visited = [value], set[int]()
    while pending and len(visited) < MOST:
        thing = pending.pop()
        if id(thing) in visited:
            continue
        visited.add(id(thing))
        yield thing
        if isinstance(thing, HELD):
            pending += [*(thing.values() if isinstance(thing, dict) else thing)][:MOST]


def _is_library(thing: object) -> bool:
    """Return whether a function, class or module is a library's; of an object, torch's alone."""
    named = isinstance(thing, type | FunctionType | ModuleType)
    owner = thing if named else type(thing)
    name = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    package = str(name).partition(".")[0]
    return package in LIBRARIES or (named and package in STANDARD)


def _find_shadowed(thing: object) -> list[str]:
    """Return data of an object's class, whose place an attribute of the object may take later."""
    kinds = () if isinstance(thing, type | ModuleType) else type(thing).__mro__
    return [
        key
        for kind in kinds
        if not _is_library(kind)
        for key, value in vars(kind).items()
        if isinstance(value, DATA)
    ]


class _Code:
    """Code that is looked through.

    Args:
        own: modules of the model, whose attributes are noted as they are read.

    Attributes:
        caches: functions with `functools.lru_cache` that the code calls.
    """

    def __init__(self, own: Collection[int]) -> None:
        self._own = own
        self._seen: dict[int, Any] = {}
        # Names of attributes that the code loads, and names that it sets.
        self._names = {*ENTRIES}
        self._set: set[str] = set()
        # Dicts of functions, classes and objects; a title and shadowed data of each.
        self._holders: list[tuple[Mapping[str, Any], str, Collection[str]]] = []
        self._slots: dict[tuple[int, str], Reading] = {}
        self._later: list[tuple[nn.Module, str]] = []
        # Globals of files, their titles and the names in them that the code sets.
        self._files: dict[int, tuple[dict[str, Any], str, set[str]]] = {}
        self._settable: list[tuple[Any, str]] = []
        self.caches: list[Any] = []

    def add(self, value: object) -> None:
        """Look at a value and at what is in it."""
        for thing in inside(value):
            if id(thing) not in self._seen and not isinstance(
                thing, (*DATA, torch.Tensor)
            ):
                self._seen[id(thing)] = thing
                self._look(thing)

    def _look(self, thing: object) -> None:
        """Look at one object, and note where it holds what code may read."""
        if isinstance(thing, MethodType):
            self.add((thing.__func__, thing.__self__))
        elif isinstance(thing, partial):
            self.add((thing.func, thing.args, thing.keywords))
        elif isinstance(thing, property | classmethod | staticmethod | cached_property):
            self.add(
                [getattr(thing, key, None) for key in ("fget", "__func__", "func")]
            )
            self._set.add(getattr(thing, "attrname", None) or "")
        elif isinstance(thing, _lru_cache_wrapper):
            self.caches.append(thing)
            self.add(thing.__wrapped__)
        elif isinstance(thing, FunctionType):
            if not _is_library(thing):
                self._function(thing)
                self._hold(thing, vars(thing), f"function {thing.__name__}")
        elif isinstance(thing, nn.Module):
            if not isinstance(thing, torch.jit.ScriptModule):  # has no code of Python's
                self._module(thing)
        elif isinstance(thing, type | ModuleType):
            kind = "class" if isinstance(thing, type) else "module"
            self._hold(thing, vars(thing), f"{kind} {thing.__name__}")
        elif not isinstance(thing, HELD) and hasattr(thing, "__dict__"):
            self.add(type(thing).__mro__)
            self._hold(thing, vars(thing), f"an object of {type(thing).__name__}")

    def _module(self, module: nn.Module) -> None:
        """Look at a module; all that a module outside of the model has may be read."""
        self.add(type(module).__mro__)
        self.add([*module._forward_hooks.values(), *module._forward_pre_hooks.values()])
        title = f"module {type(module).__name__}"
        if id(module) in self._own:
            self._later.append((module, title))
        else:
            for table in (vars(module), module._parameters, module._buffers):
                keys = {key for key in table if key[:1] != "_"}
                self._slots.update(
                    {(id(table), key): Reading(table, key, title) for key in keys}
                )
            self.add([x for key, x in vars(module).items() if key not in OWN])
            self.add([*module._modules.values()])

    def _hold(self, thing: object, table: Mapping[str, Any], title: str) -> None:
        """Note the dict of an object, class or function that is no library's."""
        if not _is_library(thing):
            self._holders.append((table, title, _find_shadowed(thing)))
            self._settable.append((thing, title))

    def _function(self, function: FunctionType) -> None:
        """Note the names that the code of a function loads and sets, functions inside it too."""
        file = Path(function.__code__.co_filename).name
        codes = [function.__code__]
        for code in codes:
            codes += [x for x in code.co_consts if isinstance(x, CodeType)]
            for step in dis.get_instructions(code):
                if step.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
                    self._names.add(step.argval)
                    if step.argval in ("environ", "getenv"):
                        environment = {"environ": vars(os.environ)["_data"]}
                        self._slots[0, "environ"] = Reading(
                            environment, "environ", "module os"
                        )
                elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                    self._slot(function.__globals__, step.argval, file)
                elif step.opname in ("STORE_ATTR", "STORE_GLOBAL", "STORE_DEREF"):
                    self._set.add(step.argval)
                    if step.opname == "STORE_GLOBAL":
                        self._set_global(function.__globals__, file, step.argval)
        title = f"function {function.__name__}"
        pairs = zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        )
        for name, cell in pairs:
            self._slot(_Cell(cell), name, title, id(cell))

    def _set_global(self, variables: dict[str, Any], file: str, name: str) -> None:
        """Note a global of a file that code sets."""
        entry = self._files.setdefault(
            id(variables), (variables, f"file {file}", set())
        )
        entry[2].add(name)

    def _slot(self, table: object, name: str, title: str, key: int = 0) -> None:
        """Note a place that code reads, and look at what is there."""
        slot = Reading(table, name, title)
        self._slots[key or id(table), name] = slot
        self.add(slot.value)

    def slots(self) -> list[Reading]:
        """Return the places that the code reads, without those that it sets."""
        # A place that is read may hold code that reads others: until nothing is new.
        progress = None
        while progress != (len(self._names), len(self._seen), len(self._holders)):
            progress = len(self._names), len(self._seen), len(self._holders)
            for table, title, shadowed in self._holders[:]:
                for name in self._names.intersection((*table, *shadowed)):
                    self._slot(table, name, title)
        for module, title in self._later:
            for name in self._names.intersection(_find_shadowed(module)).difference(
                vars(module)
            ):
                self._slot(vars(module), name, title)
        return [slot for slot in self._slots.values() if slot.name not in self._set]

    def may_keep(self) -> Iterator[tuple[str, Any]]:
        """Yield what the code sets, or may write into: titles, and `SetNames` or containers."""
        read = [
            *self.slots(),
            *(s for s in self._slots.values() if s.name in self._set),
        ]
        for variables, title, names in self._files.values():
            yield title, SetNames(variables, names)
        for holder, title in self._settable:
            yield title, SetNames(holder, self._set)
        for slot in read:
            for thing in inside(slot.value):
                if isinstance(thing, dict | list | set | deque) and len(thing) <= MOST:
                    yield f"{slot.title}'s {slot.name!r}", thing


def outside(roots: Iterable[Any], own: Collection[int]) -> list[Reading]:
    """Return what code reads that is no attribute of the model's modules.

    Args:
        roots: modules, the loss, and what the modules' attributes hold.
        own: ids of the model's modules.
    """
    code = _Code(own)
    for root in roots:
        code.add(root)
    return [slot for slot in code.slots() if _may_change(slot.value)]


def find_keeper(root: nn.Module) -> tuple[list[tuple[str, Any]], list[Any]]:
    """Return where code of a step may keep something that is no attribute of its modules.

    Args:
        root: model and loss as one module.

    Returns:
        Titles with `SetNames` or containers; and functions with `functools.lru_cache`.
    """
    modules = [*root.modules()]
    code = _Code({id(m) for m in modules})
    code.add([*modules, *(vars(m) for m in modules)])
    places = [*code.may_keep()]
    # Classes that are neither torch's nor Python's own, and the files that they are in.
    kinds = {
        kind
        for module in modules
        for kind in type(module).__mro__
        if kind.__module__.partition(".")[0] not in ("torch", "builtins")
    }
    owners = {sys.modules.get(kind.__module__) for kind in kinds} - {None} | kinds
    # Their caches of results, wrapped once or not.
    caches = [*code.caches]
    for owner in owners:
        for value in vars(owner).values():
            cells = value.__closure__ or () if isinstance(value, FunctionType) else ()
            for thing in (value, *(_Cell(cell).get("") for cell in cells)):
                if isinstance(thing, _lru_cache_wrapper):
                    caches.append(thing)
    return places, caches


def _may_change(value: object) -> bool:
    """Return whether a value is data, or code would have to be called for it."""
    return not isinstance(value, type | ModuleType | nn.Module)


def version(tensor: torch.Tensor) -> tuple[int, int]:
    """Return what tells that numbers of a tensor changed in place."""
    return tensor.data_ptr(), tensor._version


def find_tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """Return tensors among values and in the containers among them."""
    return [x for value in values for x in inside(value) if isinstance(x, torch.Tensor)]


def array_data(value: object) -> object:
    """Return the numbers of an array of numpy that is small; None of any other value."""
    if isinstance(value, np.ndarray) and value.size <= MOST:
        return value.tolist()
    return None
