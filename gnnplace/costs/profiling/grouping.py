"""A program's graph with groups of ops as its ops.

Units: the parts of a model that can be on devices of their own when modules are dispatched.

Hugging Face accelerate places modules by hooks: the hook of a module in the device map moves its
arguments to its device, and its results stay there. Code of a module around it has no such hook: an
op there runs where its inputs are, and fails if they are on several devices. (A hook runs when its
module is called. Code that uses a child's parameters without calling the child counts as the
parent's.)

The units are found by walking the captured forward pass under these rules. At first the units are
the smallest modules: those without submodules, those with parameters of their own, and those that
the user names as a whole. When an op of a module around several units reads results of several
units,

* the whole module becomes a unit if one of the operands is an argument of the module (a residual
  block, ``x + self.attention(x)``; cut inside, it would tie the whole chain of blocks to one
  device);
* otherwise these units are tied to one device (the sum of two embeddings).

All other ops between units run where their first operand is. Floating-point inputs of the model
count as arguments too. Integer inputs (indices, masks) and new tensors are assumed to be wherever
they are needed, and are counted where the first unit is. ``walking`` runs the model's own code to
check the answer.

Complexity: O(ops x depth of the modules).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.costs.profiling.workspace import compute_group_workspace
from gnnplace.errors import InputError, suggestion
from gnnplace.graph import ComputationGraph, quotient, unite_groups
from gnnplace.tracing import FORWARD, Program, ProgramGraph, ProgramOp


@dataclass(frozen=True)
class GroupedGraph:
    """Groups as arrays; see `gnnplace.problem.Problem` for what they mean.

    Attributes:
        graph: A tensor for each value that leaves its group, one for all of a group's values in
            the same memory (a tensor and its views), as large as the largest; an order (a tensor
            of no bytes) where nothing else links two groups; and a tensor that nothing reads where
            a group needs memory beside these while it runs.
        phase: The phase of each group. [num_groups]
        colocate: Classes that share a group are one. [num_groups]
        module: The module of each group's costliest op. [num_groups]
        state: Bytes of parameters, optimizer state and buffers. [num_groups]
        inputs: Bytes of the user's inputs. [num_groups]
        members: Ops of the program, in its order. [num_groups]
    """

    graph: ComputationGraph
    phase: NDArray[np.int8]
    colocate: tuple[str | None, ...]
    module: tuple[str | None, ...]
    state: FloatArray
    inputs: FloatArray
    members: tuple[tuple[str, ...], ...]


def group_graph(
    program: Program,
    fine: ProgramGraph,
    group: IntArray,
    cost: FloatArray,
    apart: bool = False,
    op_workspace: FloatArray | None = None,
) -> GroupedGraph:
    """Group a program's graph.

    Args:
        program: The program, for the names of its ops.
        fine: The graph of the program's ops.
        group: Group of each op, as `gnnplace.graph.coarsening.coarsen` makes them. [num_ops]
        cost: Estimated seconds; the costliest op names its group. [num_ops]
        apart: Keep a tensor of its own for each view, with its bytes, as the shipped data sets do.
        op_workspace: Bytes that each op needs beside what it reads and returns, as
            ``workspace.op_workspace`` gives them. None: no memory inside of groups counts.
            [num_ops]
    """
    count = int(group.max()) + 1
    heads = [-1] * count
    for i, g in enumerate(group.tolist()):
        if heads[g] < 0 or cost[i] > cost[heads[g]]:
            heads[g] = i
    order_only = np.array([not name for name in fine.values], dtype=np.bool_)
    fine_graph = fine.graph
    if not apart:
        fine_graph, order_only = _merge_shared_memory(fine, group)
    members: list[list[str]] = [[] for _ in range(count)]
    for i, op in enumerate(program.ops):
        members[group[i]].append(op.name)
    graph = quotient(
        fine_graph, group, [program.ops[i].name for i in heads], order_only
    )
    if op_workspace is not None:
        needed = compute_group_workspace(program, fine, group, op_workspace)
        groups = np.flatnonzero(needed).astype(np.int32)
        # A tensor that nothing reads lives as long as the op that makes it.
        graph = replace(
            graph,
            producer=np.append(graph.producer, groups),
            size=np.append(graph.size, needed[groups]),
            consumer_offset=np.append(
                graph.consumer_offset,
                np.full(len(groups), len(graph.consumer), np.int32),
            ),
        )
    return GroupedGraph(
        graph=graph,
        phase=fine.phase[heads],
        colocate=_classes(fine.colocate, group, count),
        module=tuple(fine.module[i] for i in heads),
        state=np.bincount(group, fine.state, count).astype(np.float64),
        inputs=np.bincount(group, fine.inputs, count).astype(np.float64),
        members=tuple(tuple(names) for names in members),
    )


def _merge_shared_memory(
    fine: ProgramGraph, group: IntArray
) -> tuple[ComputationGraph, BoolArray]:
    """Return the graph with one tensor for those of a group that share memory, and the orders.

    The second result says which tensors are orders alone. [num_tensors]
    """
    graph = fine.graph
    memory = np.where(
        fine.root >= 0, fine.root, graph.num_tensors + np.arange(graph.num_tensors)
    )
    key = memory * (int(group.max()) + 1) + group[graph.producer]
    _, first, label = np.unique(key, return_index=True, return_inverse=True)
    place = np.argsort(np.argsort(first))[label]  # in the order of the first of each
    first = np.sort(first)
    size = np.zeros(len(first))
    np.maximum.at(size, place, np.where(fine.root >= 0, fine.occupied, 0.0))
    tensor = place[
        np.repeat(np.arange(graph.num_tensors), np.diff(graph.consumer_offset))
    ]
    pairs = np.unique(np.stack([tensor, graph.consumer]), axis=1)
    merged = ComputationGraph(
        names=graph.names,
        producer=graph.producer[first],
        size=size,
        consumer_offset=np.searchsorted(pairs[0], np.arange(len(first) + 1)).astype(
            np.int32
        ),
        consumer=pairs[1].astype(np.int32),
    )
    return merged, np.array([not fine.values[k] for k in first], dtype=np.bool_)


def _classes(
    colocate: tuple[str | None, ...], group: IntArray, count: int
) -> tuple[str | None, ...]:
    """Return the class of each group; classes that meet in a group unite under the first name."""
    names = list(dict.fromkeys(name for name in colocate if name is not None))
    index = {name: i for i, name in enumerate(names)}
    label = np.array(
        [-1 if name is None else index[name] for name in colocate], dtype=np.int32
    )
    return tuple(
        None if k < 0 else names[k] for k in unite_groups(label, group, count).tolist()
    )


HELD = ("parameter", "buffer")
INPUTS = "(inputs)"  # home of the model's inputs


@dataclass(frozen=True)
class Units:
    """The ops that may be on devices of their own.

    Attributes:
        names: Qualified names of the units, in the order of capture; "" is the whole model.
        of_op: Unit on whose device each op of the program runs; None where that is any. [num_ops]
        inside: Whether the op is the unit's own code, not that of a module around. [num_ops]
        free: Whether the op is the model's own and may be anywhere. [num_ops]
        ties: Pairs of units that must share a device, and why.
    """

    names: tuple[str, ...]
    of_op: tuple[str | None, ...]
    inside: tuple[bool, ...]
    free: tuple[bool, ...]
    ties: tuple[tuple[str, str, str], ...]

    @cached_property
    def classes(self) -> dict[str, str]:
        """Return, for each unit, the first of those that share its device."""
        from scipy.cluster.hierarchy import DisjointSet  # late: a tenth of a second

        same = DisjointSet(self.names)
        for first, second, _ in self.ties:
            same.merge(first, second)
        heads: dict[str, str] = {}
        for name in self.names:
            heads.setdefault(same[name], name)
        return {name: heads[same[name]] for name in self.names}

    @cached_property
    def labels(self) -> tuple[str | None, ...]:
        """Return the class of each op, None for the loss. [num_ops]

        An op that is free has the class of the first unit.
        """
        first = next((unit for unit in self.of_op if unit is not None), None)
        units = (
            first if free else unit
            for unit, free in zip(self.of_op, self.free, strict=True)
        )
        return tuple(None if unit is None else self.classes[unit] for unit in units)


def find_units(program: Program, no_split: Iterable[str] = ()) -> Units:
    """Return the units of a captured model.

    Args:
        program: A training step or inference, as captured (not cut into micro-batches).
        no_split: Names of classes whose modules are never split.

    Raises:
        InputError: No module is of such a class; the message shows similar ones.
    """
    unsplit = _leaves(program) | _holders(program) | _of_classes(program, no_split)
    while True:
        walk = _Walk(program, unsplit).walk()
        if not walk.closed:
            return walk.units()
        unsplit = unsplit | walk.closed


def find_outermost_modules(
    program: Program, no_split: Iterable[str]
) -> tuple[str | None, ...]:
    """Return the outermost module of some classes that each op is in, or None. [num_ops]

    Raises:
        InputError: No module is of such a class; the message shows similar ones.
    """
    walk = _Walk(program, _of_classes(program, no_split))
    return tuple(walk.unit_of(op.module or "") for op in program.ops)


def _modules(program: Program) -> list[str]:
    names = program.modules or {op.module or "": "" for op in program.ops}
    return list({"": None, **dict.fromkeys(names)})


def _leaves(program: Program) -> set[str]:
    modules = _modules(program)
    around = {name.rpartition(".")[0] for name in modules if name}
    return {name for name in modules if name not in around}


def _holders(program: Program) -> set[str]:
    """Return the modules that have parameters or buffers of their own."""
    read = (entry.source for entry in program.inputs.values() if entry.kind in HELD)
    return {name.rpartition(".")[0] for name in (*program.state, *read)}


def _of_classes(program: Program, classes: Iterable[str]) -> set[str]:
    paths: set[str] = set()
    for name in classes:
        of_class = {path for path, kind in program.modules.items() if kind == name}
        if not of_class:
            class_names = set(program.modules.values())
            raise InputError(
                f"no-split {name!r}: no module is of that class{_like(name, class_names)}"
            )
        paths |= of_class
    return paths


def _like(name: str, class_names: set[str]) -> str:
    return (
        suggestion(name, sorted(class_names))
        or f"; classes are {', '.join(sorted(class_names)[:8])}"
    )


class _Walk:
    """One walk over the forward pass with some modules as units.

    Args:
        program: The captured model.
        unsplit: Modules that are not split; the outermost are the units.

    Attributes:
        closed: Modules whose own code mixes its arguments with what their units make.
    """

    def __init__(self, program: Program, unsplit: set[str]) -> None:
        self.program = program
        self._unsplit = unsplit
        self._unit: dict[str, str | None] = {}
        self._home: dict[str, str | None] = {}  # of each value
        self.closed: set[str] = set()
        self._ties: dict[tuple[str, str, str], None] = {}
        for name, entry in program.inputs.items():
            if entry.kind in HELD:
                self._home[name] = self.unit_of(entry.source.rpartition(".")[0])
            elif entry.kind == "input" and entry.info.dtype.is_floating_point:
                self._home[name] = INPUTS
        self._of_op: list[str | None] = []

    def walk(self) -> _Walk:
        """Walk through the program once, and find the unit of each op."""
        self._tie_shared()
        self._of_op = [self._place(op) for op in self.program.ops]
        return self

    def _tie_shared(self) -> None:
        """Tie units that hold one tensor under several names to one device."""
        for name, first in self.program.state.items():
            first_unit = self.unit_of(first.rpartition(".")[0])
            unit = self.unit_of(name.rpartition(".")[0])
            if first_unit != unit and first_unit is not None and unit is not None:
                self._ties[first_unit, unit, f"both hold {first!r}"] = None

    def unit_of(self, module: str) -> str | None:
        """Return the outermost unit that a module is in, or None."""
        if module not in self._unit:
            if module:
                parts = module.split(".")
            else:
                parts = []
            around = [".".join(parts[:k]) for k in range(len(parts) + 1)]
            self._unit[module] = next(
                (name for name in around if name in self._unsplit), None
            )
        return self._unit[module]

    def _place(self, op: ProgramOp) -> str | None:
        in_model = self._is_model_code(op)
        if in_model:
            unit = self.unit_of(op.module or "")
        else:
            unit = None
        if unit is None:
            read_homes = [self._home.get(value) for value in op.reads]
            homes = list(dict.fromkeys(home for home in read_homes if home is not None))
            unit = homes[0] if homes else None
            if in_model and op.phase == FORWARD and len(homes) > 1:
                unit = self._close_or_tie(op.module or "", homes)
            elif not in_model and op.phase == FORWARD:
                unit = None  # of the loss
        self._home.update(dict.fromkeys(filter(None, op.results), unit))
        return unit

    def _is_model_code(self, op: ProgramOp) -> bool:
        """Return whether an op is the model's code, not that of its loss."""
        in_module = (
            not self.program.modules or (op.module or "") in self.program.modules
        )
        return in_module and not op.is_outside_modules

    def _close_or_tie(self, module: str, homes: Sequence[str]) -> str:
        if module and any(not home.startswith(f"{module}.") for home in homes):
            self.closed.add(module)
            return module
        first, *later_homes = [home for home in homes if home != INPUTS]
        if module:
            around = f"module {module!r}"
        else:
            around = "the model"
        reason = f"{around} itself brings together what both make"
        for later_home in later_homes:
            self._ties[first, later_home, reason] = None
        return first

    def units(self) -> Units:
        """Return the units, once no module is left to be closed."""
        units = [self.unit_of(module) for module in _modules(self.program)]
        inside = [
            self._is_model_code(op) and self.unit_of(op.module or "") is not None
            for op in self.program.ops
        ]
        names = tuple(dict.fromkeys(unit for unit in units if unit is not None))
        of_op = [None if home == INPUTS else home for home in self._of_op]
        free = [
            unit is None and op.phase == FORWARD and self._is_model_code(op)
            for unit, op in zip(of_op, self.program.ops, strict=True)
        ]
        return Units(
            names=names,
            of_op=tuple(of_op),
            inside=tuple(inside),
            free=tuple(free),
            ties=tuple(self._ties),
        )
