"""Identical layers of a recording, and the recording without those between the first and the last.

For every call of a module that may be a repeated layer (`find_siblings`), the recorder notes its
arguments, its results and the calls it made. Two layers are identical if their modules are, and if
their calls are equal one by one, with values named by their origin. A layer may be left out of the
proof if it is called once; takes only tensors and plain data; reads nothing but these and its own
parameters and buffers; changes none of them in place; returns every value that others read; and
does nothing except recorded calls. O(calls + modules).
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
from gnnplace.tracing.calls import (
    BUFFER,
    PARAMETER,
    CallGraph,
    CallRef,
    LayerCall,
    function_name,
)
from gnnplace.tracing.guards import (
    ArgumentLeaf,
    Description,
    Geometry,
    LayerResult,
    StandIn,
    count_storages,
    describe_module,
    describe_surroundings,
    find_siblings,
    note_attribute_reads,
)
from gnnplace.tracing.tensors import DATA

ASKED = ("size", "dim", "len", "stride", "numel", "is_contiguous", "is_floating_point")
KNOWN = (
    "shape",
    "dtype",
    "ndim",
    "device",
    "requires_grad",
    "is_cuda",
    "is_sparse",
    "layout",
)
"""Functions, and fields, that say something of a tensor and do nothing."""


class Handed(NamedTuple):
    """A tensor that a module gets or returns: its value in the recording, and its geometry."""

    value: int
    geometry: Geometry


@dataclass
class Visit:
    """A call of a module.

    Attributes:
        first: position of its first recorded call.
        arguments: leaves of its arguments: `Handed`, plain data by type and value, or an object
            that equals nothing.
        arguments_structure: how these stand in its arguments.
        last: position after its last recorded call; -1 while it runs.
        results: leaves of what it returns.
        results_structure: how these stand in it.
    """

    first: int
    arguments: list[Any]
    arguments_structure: Any
    last: int = -1
    results: list[Any] = field(default_factory=list)
    results_structure: Any = None


class ModuleVisits:
    """Calls of modules that may be repeated layers, while a step is recorded.

    Args:
        step: the model and its loss.

    Attributes:
        groups: paths of modules that may be repeated layers, by kind.
        of: calls of each of these modules, by its path.
        irregular: paths of modules that do what no recorded call says.
        read: attributes that the step reads, by the `id` of the module and name.
        stateless: whether the step leaves no state behind outside of tensors.
    """

    def __init__(self, step: nn.Module) -> None:
        self.step = step
        self.groups = find_siblings(step)
        self.of: dict[str, list[Visit]] = {
            path: [] for paths in self.groups for path in paths
        }
        self.irregular: set[str] = set()
        self.read: set[tuple[int, str]] = set()
        self.stateless = bool(self.groups)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Watch what the step reads and leaves behind, which runs within it."""
        if not self.groups:
            yield
            return
        surroundings = describe_surroundings(self.step)
        with note_attribute_reads(self.step) as attributes:
            yield
            self.read = {*attributes}
        try:
            self.stateless = surroundings == describe_surroundings(self.step)
        except Exception:  # of what cannot be compared
            self.stateless = False

    def note_query(self, function: Callable[..., Any], running: Iterable[str]) -> None:
        """Note a function that makes and changes no tensor, in modules that are running."""
        name = function_name(function)
        asks = getattr(function, "__name__", "") == "__get__"
        if name not in (KNOWN if asks else ASKED):
            self.irregular.update(running)


def flatten_leaves(tree: object, values: Mapping[int, int]) -> tuple[list[Any], Any]:
    """Return the leaves of arguments or results, and their structure.

    Args:
        tree: A tree of tensors, as a module takes or returns it.
        values: Numbers of tensors, by their `id`.
    """

    def normalized(leaf: object) -> object:
        if (
            isinstance(leaf, torch.Tensor)
            and leaf.layout == torch.strided
            and id(leaf) in values
        ):
            return Handed(values[id(leaf)], Geometry.of(leaf))
        if isinstance(leaf, DATA):
            return (type(leaf), leaf)
        return object()

    leaves, structure = pytree.tree_flatten(tree)
    return [normalized(leaf) for leaf in leaves], structure


class OmittedLayer(NamedTuple):
    """A layer that the proof leaves out.

    Attributes:
        stand: what stands for it.
        first: position of its first call in the recording.
        last: position after its last call.
        like: the first and last call of the layer of its kind that is proven.
        reads: values that it reads.
        results: values that it makes.
    """

    stand: StandIn
    first: int
    last: int
    like: tuple[int, int]
    reads: tuple[int, ...]
    results: tuple[int, ...]


def find_omitted_layers(
    graph: CallGraph, visits: ModuleVisits, positions: list[int]
) -> dict[str, OmittedLayer]:
    """Return the layers that need no proof of their own, by their path in the step.

    Args:
        graph: The calls that were recorded.
        visits: The calls of modules beside them.
        positions: Positions of the graph's calls among all that the step made.
    """
    if not visits.stateless:
        return {}
    last_read = {v: i for i, call in enumerate(graph.calls) for v in call.reads}
    output = [x for x in pytree.tree_leaves(graph.output) if isinstance(x, CallRef)]
    # The output reads its values after all calls.
    last_read |= {x.value: len(graph.calls) for x in output}
    storages = count_storages(visits.step)
    omitted: dict[str, OmittedLayer] = {}
    for group in visits.groups:
        if any(group[0].startswith(f"{path}.") for path in omitted):
            continue  # inside of one that is left out
        kinds: list[tuple[Description, list[tuple[str, _VisitForm]]]] = []
        for path in group:
            form = _VisitForm.of(graph, visits, path, positions, last_read)
            if form is None:
                continue
            description = [
                *describe_module(
                    visits.step.get_submodule(path), visits.read, storages
                ),
                *form.description,
            ]
            alike = next(
                (members for kind, members in kinds if kind == description), None
            )
            if alike is None:
                kinds.append((description, alike := []))
            alike.append((path, form))
        # The first and last layer of a kind are proven; those between are like the first.
        for _, members in kinds:
            like = members[0][1].first, members[0][1].last
            omitted.update(
                (path, form.layer(path, like)) for path, form in members[1:-1]
            )
    return omitted


class _VisitForm:
    """A call of a module, with values named by where they come from.

    Attributes:
        description: equal for visits that do the same.
    """

    def __init__(
        self, graph: CallGraph, path: str, visit: Visit, first: int, last: int
    ) -> None:
        self.graph = graph
        self.visit = visit
        self.first = first
        self.last = last
        self.prefix = f"{path.removeprefix('model.')}."
        self.names: dict[int, tuple[str, Any]] = {}
        for position, leaf in enumerate(visit.arguments):
            if isinstance(leaf, Handed):
                self.names.setdefault(leaf.value, ("given", position))
        self.description: list[Any] = [
            visit.arguments_structure,
            visit.results_structure,
            self._normalize(visit.arguments),
        ]

    @classmethod
    def of(
        cls,
        graph: CallGraph,
        visits: ModuleVisits,
        path: str,
        positions: list[int],
        last_read: dict[int, int],
    ) -> _VisitForm | None:
        """Return the form of a module's one visit; None where it cannot be left out."""
        visited = visits.of[path]
        if len(visited) != 1 or path in visits.irregular or visited[0].last < 0:
            return None
        visit = visited[0]
        first = bisect_left(positions, visit.first)
        last = bisect_left(positions, visit.last)
        self = cls(graph, path, visit, first, last)
        returned = {leaf.value for leaf in visit.results if isinstance(leaf, Handed)}
        results = [v for call in graph.calls[first:last] for v in call.results]
        closed = all(v in returned for v in results if last_read.get(v, -1) >= last)
        if first < last and closed and self._follows():
            return self
        return None

    def _follows(self) -> bool:
        """Describe the visit's calls; return whether all that they read and return is named."""
        for call in self.graph.calls[self.first : self.last]:
            if not all(v in self.names or self._is_state(v) for v in call.reads):
                return False
            self.description += self._call(call)
            for v in call.results:
                self.names[v] = ("made", len(self.names))
        self.description.append(self._normalize(self.visit.results))
        return all(
            leaf.value in self.names
            for leaf in self.visit.results
            if isinstance(leaf, Handed)
        )

    def _is_state(self, v: int) -> bool:
        """Return whether a value is the module's own parameter or buffer; if so, name it."""
        value = self.graph.values[v]
        is_state = value.source in (PARAMETER, BUFFER) and value.name.startswith(
            self.prefix
        )
        if is_state:
            self.names[v] = (value.source, value.name.removeprefix(self.prefix))
        return is_state

    def _call(self, call: LayerCall) -> list[Any]:
        """Return a description of a call, equal for calls that do the same."""
        values = [self.graph.values[v] for v in call.results]
        results = [(v.shape, v.dtype, v.gradient) for v in values]
        flags = call.gradient, call.changes, call.inplace
        return [
            call.function,
            flags,
            results,
            self._normalize(call.args),
            self._normalize(call.kwargs),
        ]

    def _normalize(self, value: object) -> object:
        """Return an argument with names for values; what is neither these nor plain data is
        itself.
        """
        if isinstance(value, CallRef):
            return self.names[value.value]
        if isinstance(value, Handed):
            return self.names.get(value.value), value.geometry
        if isinstance(value, list | tuple):
            return type(value), [self._normalize(x) for x in value]
        if isinstance(value, dict):
            return [(k, self._normalize(x)) for k, x in value.items()]
        if isinstance(value, slice):
            return [self._normalize(x) for x in (value.start, value.stop, value.step)]
        if isinstance(value, DATA):
            return (type(value), value)
        return (id(value), value)

    def layer(self, path: str, like: tuple[int, int]) -> OmittedLayer:
        """Return the layer as one that is left out."""
        calls = self.graph.calls[self.first : self.last]
        named = {self.names[v] for call in calls for v in call.reads}
        order = tuple(
            sorted(position for source, position in named if source == "given")
        )
        geometries: dict[int, Geometry] = {}

        def stands(leaf: Any) -> object:
            if not isinstance(leaf, Handed):
                return leaf[1]
            if self.names[leaf.value][0] == "given":
                return ArgumentLeaf(self.names[leaf.value][1])
            geometries.setdefault(leaf.value, leaf.geometry)
            return LayerResult([*geometries].index(leaf.value))

        output = pytree.tree_unflatten(
            [stands(x) for x in self.visit.results], self.visit.results_structure
        )
        stand = StandIn(
            name=path,
            reads=order,
            results=tuple(geometries.values()),
            output=output,
        )
        reads = tuple(self.visit.arguments[i].value for i in order)
        return OmittedLayer(
            stand=stand,
            first=self.first,
            last=self.last,
            like=like,
            reads=reads,
            results=tuple(geometries),
        )


def find_random_calls(
    random: tuple[int, ...], layers: Iterable[OmittedLayer]
) -> tuple[int, ...]:
    """Return the calls that draw, those of layers that were left out among them."""
    calls = [*random]
    # Inner modules come first.
    for layer in sorted(layers, key=lambda x: -x.stand.name.count(".")):
        first, last = layer.like
        calls += [layer.first + k - first for k in calls if first <= k < last]
    return tuple(sorted(calls))
