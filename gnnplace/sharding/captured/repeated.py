"""Layers of a recording that are alike, and the recording without those between first and last.

Route: of every call of a module that may be a repeated layer (`find_siblings`), the recorder notes
what it got, what it returned and which calls it made. Two are alike where their modules are, and
where these are equal one by one, with values named by where they come from. A layer may be left out
of the proof where it is called once; gets tensors and plain data; reads nothing but these and its
own parameters and buffers; changes none of them in place; returns all that others read; and does
nothing that is no recorded call. O(calls + modules).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from gnnplace.torch_names import pytree
from gnnplace.tracing import (
    BUFFER,
    DATA,
    PARAMETER,
    ArgumentLeaf,
    CallGraph,
    CallRef,
    Description,
    Geometry,
    LayerCall,
    LayerResult,
    StandIn,
    count_storages,
    describe_module,
    describe_surroundings,
    find_siblings,
    function_name,
    reading,
)

ASKED = ("size", "dim", "len", "stride", "numel", "is_contiguous", "is_floating_point")
KNOWN = ("shape", "dtype", "ndim", "device", "requires_grad", "is_cuda", "is_sparse", "layout")
"""Functions, and fields, that say something of a tensor and do nothing."""


class Handed(NamedTuple):
    """A tensor that a module gets or returns: its value in the recording, and its geometry."""

    value: int
    geometry: Geometry


@dataclass
class Visit:
    """A call of a module.

    Attributes:
        first, last: of the recorded calls that it makes; the last is excluded.
        given: leaves of its arguments: `Handed`, plain data by type and value, or nothing equal.
        taken: how these stand in its arguments.
        made: leaves of what it returns.
        output: how these stand in it.
    """

    first: int
    given: list[Any]
    taken: Any
    last: int = -1
    made: list[Any] = field(default_factory=list)
    output: Any = None


class Visits:
    """What is noted of calls of modules while a step is recorded.

    Args:
        step: the model and its loss.
    """

    def __init__(self, step: nn.Module) -> None:
        self.step, self.groups = step, find_siblings(step)
        self.of: dict[str, list[Visit]] = {path: [] for paths in self.groups for path in paths}
        self.odd: set[str] = set()
        self.read: set[tuple[int, str]] = set()
        self.alone = bool(self.groups)
        """That the step leaves no state behind outside of tensors."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Within it the step runs."""
        if not self.groups:
            yield
            return
        before = describe_surroundings(self.step)
        with reading(self.step) as found:
            yield
            self.read = {*found}
        try:
            self.alone = before == describe_surroundings(self.step)
        except Exception:  # of what cannot be compared
            self.alone = False

    def says(self, function: Callable[..., Any], running: Iterable[str]) -> None:
        """Notes a function that makes and changes no tensor, in modules that are running."""
        name = function_name(function)
        asks = getattr(function, "__name__", "") == "__get__"
        if name not in (KNOWN if asks else ASKED):
            self.odd.update(running)


def leaves_of(tree: Any, values: Mapping[int, int]) -> tuple[list[Any], Any]:
    """Leaves of arguments or results, and their structure.

    Args:
        tree: as a module gets or returns it.
        values: of tensors, by `id`.
    """

    def shown(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and id(leaf) in values:
            return Handed(values[id(leaf)], Geometry.of(leaf))
        return (type(leaf), leaf) if isinstance(leaf, DATA) else object()

    leaves, structure = pytree.tree_flatten(tree)
    return [shown(leaf) for leaf in leaves], structure


class LayerApart(NamedTuple):
    """A layer that is left out.

    Attributes:
        stand: what stands for it.
        first, last: its calls in the recording.
        like: the first and last call of the layer of its kind that is numbered.
        given: values that it reads.
        made: values that it makes.
    """

    stand: StandIn
    first: int
    last: int
    like: tuple[int, int]
    given: tuple[int, ...]
    made: tuple[int, ...]


def layers_apart(graph: CallGraph, visits: Visits, kept: list[int]) -> dict[str, LayerApart]:
    """Layers that need no numbers of their own, by their path in the step.

    Args:
        graph: what was recorded.
        visits: what was noted beside.
        kept: positions of the graph's calls among all that the step made.
    """
    if not visits.alone:
        return {}
    last_read = {v: i for i, call in enumerate(graph.calls) for v in call.reads}
    output = [x for x in pytree.tree_leaves(graph.output) if isinstance(x, CallRef)]
    last_read |= {x.value: len(graph.calls) for x in output}  # the output reads behind all
    held = count_storages(visits.step)
    found: dict[str, LayerApart] = {}
    for group in visits.groups:
        if any(group[0].startswith(f"{path}.") for path in found):
            continue  # inside of one that is left out
        kinds: list[tuple[Description, list[tuple[str, _Form]]]] = []
        for path in group:
            form = _Form.of(graph, visits, path, kept, last_read)
            if form is None:
                continue
            told = [
                *describe_module(visits.step.get_submodule(path), visits.read, held),
                *form.told,
            ]
            alike = next((members for known, members in kinds if known == told), None)
            if alike is None:
                kinds.append((told, alike := []))
            alike.append((path, form))
        for _, members in kinds:
            like = members[0][1].first, members[0][1].last
            found.update((path, form.layer(path, like)) for path, form in members[1:-1])
    return found


class _Form:
    """What a visit is, with values named by where they come from.

    Attributes:
        told: equal for visits that are alike.
    """

    def __init__(self, graph: CallGraph, path: str, visit: Visit, first: int, last: int) -> None:
        self.graph, self.visit, self.first, self.last = graph, visit, first, last
        self.prefix = f"{path.removeprefix('model.')}."
        self.names: dict[int, tuple[str, Any]] = {}
        for position, leaf in enumerate(visit.given):
            if isinstance(leaf, Handed):
                self.names.setdefault(leaf.value, ("given", position))
        self.told: list[Any] = [visit.taken, visit.output, self._shown(visit.given)]

    @classmethod
    def of(
        cls, graph: CallGraph, visits: Visits, path: str, kept: list[int], last_read: dict[int, int]
    ) -> _Form | None:
        """That of a module's one visit; None where it cannot be left out."""
        visited = visits.of[path]
        if len(visited) != 1 or path in visits.odd or visited[0].last < 0:
            return None
        visit = visited[0]
        first, last = bisect_left(kept, visit.first), bisect_left(kept, visit.last)
        self = cls(graph, path, visit, first, last)
        returned = {leaf.value for leaf in visit.made if isinstance(leaf, Handed)}
        made = [v for call in graph.calls[first:last] for v in call.results]
        apart = all(v in returned for v in made if last_read.get(v, -1) >= last)
        return self if first < last and apart and self._follows() else None

    def _follows(self) -> bool:
        """Whether all that it reads and returns is named."""
        for call in self.graph.calls[self.first : self.last]:
            if not all(v in self.names or self._is_state(v) for v in call.reads):
                return False
            self.told += self._call(call)
            for v in call.results:
                self.names[v] = ("made", len(self.names))
        self.told.append(self._shown(self.visit.made))
        return all(leaf.value in self.names for leaf in self.visit.made if isinstance(leaf, Handed))

    def _is_state(self, v: int) -> bool:
        value = self.graph.values[v]
        own = value.source in (PARAMETER, BUFFER) and value.name.startswith(self.prefix)
        if own:
            self.names[v] = (value.source, value.name.removeprefix(self.prefix))
        return own

    def _call(self, call: LayerCall) -> list[Any]:
        values = [self.graph.values[v] for v in call.results]
        made = [(v.shape, v.dtype, v.gradient) for v in values]
        how = call.gradient, call.changes, call.inplace
        return [call.function, how, made, self._shown(call.args), self._shown(call.kwargs)]

    def _shown(self, value: Any) -> Any:
        """An argument with names for values; what is neither these nor plain data is itself."""
        if isinstance(value, CallRef):
            return self.names[value.value]
        if isinstance(value, Handed):
            return self.names.get(value.value), value.geometry
        if isinstance(value, list | tuple):
            return type(value), [self._shown(x) for x in value]
        if isinstance(value, dict):
            return [(k, self._shown(x)) for k, x in value.items()]
        if isinstance(value, slice):
            return [self._shown(x) for x in (value.start, value.stop, value.step)]
        return (type(value), value) if isinstance(value, DATA) else (id(value), value)

    def layer(self, path: str, like: tuple[int, int]) -> LayerApart:
        """It, left out."""
        calls = self.graph.calls[self.first : self.last]
        named = {self.names[v] for call in calls for v in call.reads}
        order = tuple(sorted(position for source, position in named if source == "given"))
        made: dict[int, Geometry] = {}

        def stands(leaf: Any) -> Any:
            if not isinstance(leaf, Handed):
                return leaf[1]
            if self.names[leaf.value][0] == "given":
                return ArgumentLeaf(self.names[leaf.value][1])
            made.setdefault(leaf.value, leaf.geometry)
            return LayerResult([*made].index(leaf.value))

        output = pytree.tree_unflatten([stands(x) for x in self.visit.made], self.visit.output)
        stand = StandIn(path, order, tuple(made.values()), output)
        given = tuple(self.visit.given[i].value for i in order)
        return LayerApart(stand, self.first, self.last, like, given, tuple(made))


def random_calls(known: tuple[int, ...], layers: Iterable[LayerApart]) -> tuple[int, ...]:
    """Calls that draw, those of layers that were left out among them."""
    found = [*known]
    for layer in sorted(layers, key=lambda x: -x.stand.name.count(".")):  # inner ones first
        first, last = layer.like
        found += [layer.first + k - first for k in found if first <= k < last]
    return tuple(sorted(found))
