"""The values of a graph within the graphs around it: sizes, constants, and what nodes compute.

Constants are initializers and `Constant` nodes. A node of `PREPARING` that reads constants alone
belongs to its readers: they hold what it reads, in the bytes that the file has (an int8 weight
stays int8), and do its work. So no weight travels, whichever way an exporter has written it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from gnnplace.errors import InputError
from gnnplace.problem.formats.onnx.functions import expand_calls
from gnnplace.problem.formats.onnx.messages import (
    BITS,
    INT64,
    STRING,
    Function,
    FunctionKey,
    Graph,
    OnnxNode,
    Value,
    Weight,
)
from gnnplace.problem.formats.onnx.operators import (
    MICROSOFT,
    Call,
    count_bytes,
    count_flops,
    is_counted,
)
from gnnplace.problem.formats.onnx.shapes import (
    BOOL,
    DECIDED_BY_NUMBERS,
    OperatorInputs,
    compute_numbers,
    infer_outputs,
)
from gnnplace.problem.formats.onnx.work import Dearest, Kernel, Repetition, Work

VIEWS = frozenset(
    ("Identity", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten")
)
PREPARING = VIEWS | {
    "Cast",
    "CastLike",
    "Concat",
    "ConstantOfShape",
    "DequantizeLinear",
    "Expand",
    "QuantizeLinear",
    "Slice",
}
# A loop that ends by its condition is written with the largest integer.
MAX_TRIPS = 2**31
MISSING = (
    "graph.value_info[{}]: missing; write shapes into the file: "
    "onnx.shape_inference.infer_shapes_path(FILE)"
)


@dataclass
class Notes:
    """Lines on what the reader could not price as the file says it.

    Attributes:
        uncounted: Operators whose operations are not known, with how often they are called.
        loops: Number of loops whose trip count is not in the file.
        strings: Whether there are strings.
    """

    uncounted: Counter[str] = field(default_factory=Counter)
    loops: int = 0
    strings: bool = False

    def lines(self) -> Iterator[str]:
        """Yield a line for each kind of note."""
        if self.uncounted:
            calls = ", ".join(
                f"{count} {name}" for name, count in self.uncounted.most_common()
            )
            yield (
                f"operators that are not known, priced as one operation an element: {calls}; give "
                "their times in the problem file where they compute more"
            )
        if self.loops:
            yield f"loops that are priced as one pass, as the file has no trip count: {self.loops}"
        if self.strings:
            yield "a string counts as 8 bytes, the pointer to it"


@dataclass(frozen=True)
class _Constant:
    """A value that is made of constants alone.

    Attributes:
        weights: What it is made of.
        flops: What its readers compute to have it.
        is_prepared: Nodes stand between it and its weights.
    """

    weights: tuple[Weight, ...]
    flops: float = 0.0
    is_prepared: bool = False


class Scope:
    """A graph's nodes without calls of functions, and the sizes of its values.

    Args:
        graph: A graph of the file.
        functions: The functions of the file.
        notes: Filled where something is not priced as the file says.
        outer: The scope around it, for the graph of an attribute.
        bound: Sizes of its inputs as the node around it gives them, by name.

    Attributes:
        nodes: The nodes in order, without those that belong to their readers.
    """

    def __init__(
        self,
        graph: Graph,
        functions: Mapping[FunctionKey, Function],
        notes: Notes,
        outer: Scope | None = None,
        bound: Mapping[str, Value] | None = None,
    ) -> None:
        expansion = expand_calls(graph.nodes, functions)
        self.graph = graph
        self.nodes: list[OnnxNode] = []
        self._functions = functions
        self._notes = notes
        self._outer = outer
        self._values = {**(bound or {}), **expansion.values, **graph.values}
        self._defined = {*graph.inputs, *graph.weights}
        self._constants = {
            name: _Constant((weight,)) for name, weight in graph.weights.items()
        }
        self._numbers = {
            name: weight.numbers
            for name, weight in graph.weights.items()
            if weight.numbers is not None
        }
        self._children: dict[int, list[Scope]] = {}
        self._read = self._names_read(expansion.nodes)
        # `onnx.shape_inference` sizes the outermost graph: what it can add should be in the file.
        self._to_be_sized = set[str]()
        self._inferred = set[str]()
        if outer is None:
            computed = {name for node in graph.nodes for name in node.outputs}
            self._to_be_sized = computed - graph.unsized.keys()
        # Producers come first in a file, so one pass over the nodes decides all that is decided.
        for node in expansion.nodes:
            self._add(node)

    def value(self, name: str) -> Value:
        """Return a value's sizes.

        Raises:
            InputError: They are not in the file, and no operator decides them.
        """
        value = self.find(name)
        if value is None:
            raise InputError(self.reason(name))
        if value.element_type == STRING:
            self._notes.strings = True
        elif value.element_type not in BITS:
            kind = value.element_type
            raise InputError(
                f"graph.value_info[{name}]: element type {kind} is not in onnx.proto"
            )
        return value

    def is_read(self, name: str) -> bool:
        """Return whether a node reads a value, or it leaves the graph."""
        return name in self._read or name in self.graph.outputs

    def reads(self, node: OnnxNode) -> Iterator[str]:
        """Yield the names that a node and its subgraphs read of this scope or those around it."""
        yield from filter(None, node.inputs)
        for graph in node.graphs():
            yield from graph.captured

    def weights(self, node: OnnxNode) -> Iterator[Weight]:
        """Yield the constants that a node reads, in subgraphs too; they may repeat."""
        for name in filter(None, node.inputs):
            constant = self.constant(name)
            yield from constant.weights if constant else ()
        if node.kind == "Constant":
            yield _get_constant(node)
        for child in self._children.get(id(node), ()):
            for inner in child.nodes:
                yield from child.weights(inner)
            for name in child.graph.outputs:
                constant = child.constant(name)
                yield from constant.weights if constant else ()

    def work(self, node: OnnxNode) -> Work:
        """Return what a node computes, its subgraphs included."""
        children = self._children.get(id(node))
        if not children:
            return self._kernel(node)
        branches = [
            Repetition(child.count(node), [child.work(inner) for inner in child.nodes])
            for child in children
        ]
        if node.kind == "If":
            return Repetition(1, [Kernel(), Dearest(branches)])
        if node.domain == "" and node.kind in ("Loop", "Scan", "SequenceMap"):
            return Repetition(1, [Kernel(), *branches])
        return Repetition(1, [self._kernel(node), *branches])

    def count(self, node: OnnxNode) -> int:
        """Return how often this scope's graph runs for the node around it."""
        assert self._outer is not None
        if node.kind not in ("Loop", "Scan", "SequenceMap"):
            return 1
        trips = self._outer.trips(node)
        if trips is None:
            self._notes.loops += 1
        return 1 if trips is None else trips

    # --- the pass over the nodes --------------------------------------------------------------

    def _names_read(self, nodes: Iterable[OnnxNode]) -> set[str]:
        return {name for node in nodes for name in self.reads(node)}

    def _add(self, node: OnnxNode) -> None:
        """Note a node's constants, sizes and subgraphs."""
        self._defined.update(filter(None, node.outputs))
        if node.kind == "Constant" and node.domain == "":
            weight = _get_constant(node)
            name = node.outputs[0] if node.outputs else ""
            self._values.setdefault(name, weight.value)
            if weight.numbers is not None:
                self._numbers[name] = weight.numbers
            if self._belongs_to_readers(node):
                self._constants[name] = _Constant((weight,))
            else:
                self.nodes.append(node)
            return
        for graph, bound in self._subgraphs(node):
            child = Scope(graph, self._functions, self._notes, self, bound)
            self._children.setdefault(id(node), []).append(child)
        constants = self._prepared(node)
        if constants:
            self._to_be_sized.difference_update(node.outputs)
        self._infer(node)
        if constants:
            self._prepare(node, constants)
        else:
            self.nodes.append(node)

    def _belongs_to_readers(self, node: OnnxNode) -> bool:
        outputs = [name for name in node.outputs if name]
        return not any(name in self.graph.outputs for name in outputs) and any(
            name in self._read for name in outputs
        )

    def _prepared(self, node: OnnxNode) -> list[_Constant]:
        """Return the constants that a node reads, if it reads nothing else and prepares them."""
        constants = [self.constant(name) for name in node.inputs if name]
        is_preparing = node.kind in PREPARING and node.domain in ("", MICROSOFT)
        if not is_preparing or None in constants or not self._belongs_to_readers(node):
            return []
        return [constant for constant in constants if constant is not None]

    def _prepare(self, node: OnnxNode, constants: list[_Constant]) -> None:
        """Make the outputs of a node constants: what it reads, and its work, go to its readers."""
        flops = sum(constant.flops for constant in constants)
        if node.kind not in VIEWS:
            flops += count_flops(self._call(node))
        weights = {id(one): one for constant in constants for one in constant.weights}
        constant = _Constant(
            weights=tuple(weights.values()), flops=flops, is_prepared=True
        )
        for name in filter(None, node.outputs):
            self._constants[name] = constant

    def _infer(self, node: OnnxNode) -> None:
        """Add the sizes and numbers of outputs that the file does not have."""
        inputs = OperatorInputs(
            node=node,
            values=tuple(self.find(name) if name else None for name in node.inputs),
            numbers=tuple(self.find_numbers(name) for name in node.inputs),
        )
        if node.domain == "" and len(node.outputs) == 1:
            numbers = compute_numbers(inputs)
            if numbers is not None:
                self._numbers[node.outputs[0]] = numbers
        if all(name in self._values for name in node.outputs if name):
            return
        if any(
            name and value is None
            for name, value in zip(node.inputs, inputs.values, strict=True)
        ):
            return
        values = self._infer_from_subgraphs(node) or infer_outputs(inputs) or ()
        if node.kind in DECIDED_BY_NUMBERS or not self._inferred.isdisjoint(
            node.inputs
        ):
            self._to_be_sized.difference_update(node.outputs)
        for name, value in zip(node.outputs, values, strict=False):
            is_open = name not in self._to_be_sized and name not in self._values
            if name and value is not None and is_open:
                self._values[name] = value
                self._inferred.add(name)

    # --- subgraphs ----------------------------------------------------------------------------

    def _subgraphs(self, node: OnnxNode) -> Iterator[tuple[Graph, dict[str, Value]]]:
        """Yield the graphs of a node, with the sizes that it gives to their inputs."""
        for graph in node.graphs():
            sizes: list[Value | None] = []
            if node.kind == "Loop":
                carried = [self.find(name) for name in node.inputs[2:]]
                sizes = [Value((), INT64), Value((), BOOL), *carried]
            if node.kind == "Scan":
                sizes = self._scan_inputs(node, graph)
            if node.kind == "FlexAttention":
                sizes = [self._scores(node)]
            pairs = zip(graph.inputs, sizes, strict=False)
            yield graph, {name: value for name, value in pairs if value is not None}

    def _scores(self, node: OnnxNode) -> Value | None:
        """Return the scores that a `FlexAttention` gives to its graphs, in float32."""
        query = self.find(node.inputs[0])
        key = self.find(node.inputs[1])
        if query is None or key is None:
            return None
        if len(query.shape) != 4 or len(key.shape) != 4:
            return None
        return Value(
            shape=(*query.shape[:3], key.shape[2]),
            element_type=1,
        )

    def _scan_inputs(self, node: OnnxNode, graph: Graph) -> list[Value | None]:
        """Return the sizes of states, and of one step of what is scanned."""
        values = [self.find(name) if name else None for name in node.inputs]
        # Opset 8: lengths first, then [batch, ...].
        is_batched = len(values) == len(graph.inputs) + 1
        values = values[1:] if is_batched else values
        num_states = len(values) - node.integer("num_scan_inputs", 0)
        axes = node.integers("scan_input_axes") or (0,) * len(values)
        sizes: list[Value | None] = []
        for position, value in enumerate(values):
            if value is None:
                sizes.append(None)
                continue
            shape = list(value.shape[1:] if is_batched else value.shape)
            axis = 0 if is_batched else axes[max(position - num_states, 0)]
            if position >= num_states and -len(shape) <= axis < len(shape):
                del shape[axis]
            sizes.append(replace(value, shape=tuple(shape), stored=None))
        return sizes

    def trips(self, node: OnnxNode) -> int | None:
        """Return how often a loop runs; None where the file does not say it."""
        if node.kind == "Loop":
            numbers = (
                self.find_numbers(node.inputs[0])
                if node.inputs and node.inputs[0]
                else None
            )
            return numbers[0] if numbers and 0 <= numbers[0] < MAX_TRIPS else None
        if node.kind != "Scan":
            return None
        (graph,) = list(node.graphs())[:1]
        scanned = self.find(node.inputs[-1])
        if scanned is None or not scanned.shape:
            return None
        if len(node.inputs) == len(graph.inputs) + 1:
            return (
                scanned.shape[0] * scanned.shape[1] if len(scanned.shape) > 1 else None
            )
        axes = node.integers("scan_input_axes")
        axis = axes[-1] if axes else 0
        return (
            scanned.shape[axis]
            if -len(scanned.shape) <= axis < len(scanned.shape)
            else None
        )

    def _infer_from_subgraphs(self, node: OnnxNode) -> list[Value | None] | None:
        """Return the sizes of what an `If`, `Loop` or `Scan` gives: those that its graphs give."""
        children = self._children.get(id(node))
        if not children or node.kind not in ("If", "Loop", "Scan"):
            return None
        outputs = [
            [child.find(name) for name in child.graph.outputs] for child in children
        ]
        if node.kind == "If":
            return [_largest(branches) for branches in zip(*outputs, strict=False)]
        results = outputs[0][1:] if node.kind == "Loop" else outputs[0]
        carried = len(node.inputs) - (
            2 if node.kind == "Loop" else node.integer("num_scan_inputs", 0)
        )
        trips = self.trips(node)
        sizes: list[Value | None] = list(results[:carried])
        for value in results[carried:]:
            stacked = None
            if value is not None and trips is not None:
                stacked = Value((trips, *value.shape), value.element_type)
            sizes.append(stacked)
        return sizes

    # --- look-ups through the scopes ----------------------------------------------------------

    def find(self, name: str) -> Value | None:
        """Return a value's sizes, of this scope or those around it; None where they are missing."""
        if name in self._values:
            return self._values[name]
        if name not in self._defined and self._outer is not None:
            return self._outer.find(name)
        return None

    def constant(self, name: str) -> _Constant | None:
        """Return what a value is made of, if that is constants alone."""
        if name in self._constants:
            return self._constants[name]
        if name not in self._defined and self._outer is not None:
            return self._outer.constant(name)
        return None

    def find_numbers(self, name: str) -> tuple[int, ...] | None:
        """Return the elements of a small whole constant, or of sizes that the graph computes."""
        if name in self._numbers:
            return self._numbers[name]
        if name not in self._defined and self._outer is not None:
            return self._outer.find_numbers(name)
        return None

    def reason(self, name: str) -> str:
        """Return why a value has no sizes, and how to mend it."""
        if name in self.graph.unsized:
            return self.graph.unsized[name]
        if name not in self._defined and self._outer is not None:
            return self._outer.reason(name)
        return MISSING.format(name)

    # --- prices -------------------------------------------------------------------------------

    def _call(self, node: OnnxNode) -> Call:
        """Return a node with sizes. Constants count as the bytes that they are made of."""
        inputs: list[Value | None] = []
        for name in node.inputs:
            value = self.value(name) if name else None
            constant = self.constant(name) if name else None
            if value is not None and constant is not None and constant.is_prepared:
                value = replace(
                    value, stored=sum(one.value.bytes for one in constant.weights)
                )
            inputs.append(value)
        # A value that nobody reads, such as the mask of a Dropout, may have no size.
        outputs = [
            self.value(name)
            if name and (self.is_read(name) or self.find(name))
            else None
            for name in node.outputs
        ]
        if not any(outputs) and any(node.outputs):
            outputs = [self.value(next(filter(None, node.outputs)))]
        numbers = {
            k: self.find_numbers(name) for k, name in enumerate(node.inputs) if name
        }
        return Call(
            node=node,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            numbers={k: one for k, one in numbers.items() if one},
        )

    def _kernel(self, node: OnnxNode) -> Kernel:
        if not is_counted(node):
            domain = f" ({node.domain})" if node.domain else ""
            self._notes.uncounted[node.kind + domain] += 1
        call = self._call(node)
        constants = [self.constant(name) for name in node.inputs if name]
        prepared = sum(constant.flops for constant in constants if constant is not None)
        return Kernel(flops=count_flops(call) + prepared, bytes=count_bytes(call))


def _largest(values: Iterable[Value | None]) -> Value | None:
    return max(filter(None, values), key=lambda value: value.bytes, default=None)


def _get_constant(node: OnnxNode) -> Weight:
    """Return what a `Constant` node holds, whichever attribute has it.

    Raises:
        InputError: It has none.
    """
    for key in ("value", "sparse_value"):
        attribute = node.attributes.get(key)
        if attribute and attribute.tensor:
            return attribute.tensor
    for key in ("value_int", "value_ints"):
        attribute = node.attributes.get(key)
        if attribute:
            shape = (len(attribute.ints),) if key == "value_ints" else ()
            return Weight(value=Value(shape, INT64), numbers=attribute.ints)
    for key in ("value_float", "value_floats"):
        attribute = node.attributes.get(key)
        if attribute:
            return Weight(
                value=Value((attribute.num_floats,) if key == "value_floats" else (), 1)
            )
    for key in ("value_string", "value_strings"):
        attribute = node.attributes.get(key)
        if attribute:
            texts = attribute.strings or (attribute.text,)
            stored = sum(len(text.encode()) for text in texts)
            shape = (len(texts),) if key == "value_strings" else ()
            return Weight(value=Value(shape, STRING, stored))
    raise InputError(f"graph.node[{node.label}].value: missing of a Constant")
