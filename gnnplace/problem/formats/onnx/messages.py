"""Messages of ``onnx/onnx.proto`` (IR 3 to 14) as dataclasses, read by the wire format alone.

Only what a problem needs is kept: names, types, sizes, attributes and the numbers of small
constants. Weights are never decoded, so external data is not opened: an initializer's sizes are in
the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, prod

from gnnplace.errors import InputError
from gnnplace.problem.formats.protobuf import WireMessage

# Bits of an element by `TensorProto.DataType`; 4-bit and 2-bit elements are packed.
BITS = {
    **dict.fromkeys((2, 3, 9, 17, 18, 19, 20, 24), 8),
    **dict.fromkeys((4, 5, 10, 16), 16),
    **dict.fromkeys((1, 6, 12), 32),
    **dict.fromkeys((7, 11, 13, 14), 64),
    15: 128,
    **dict.fromkeys((21, 22, 23), 4),
    **dict.fromkeys((25, 26), 2),
    **dict.fromkeys((27, 28), 6),
}
STRING = 8
INT64 = 7
INT32 = 6
# Bits of a string's pointer; its text lies elsewhere, and no type has its length.
POINTER_BITS = 64
MAX_NUMBERS = 4096  # elements of a constant whose values may decide shapes


@dataclass(frozen=True)
class Value:
    """A tensor's sizes.

    Attributes:
        shape: Its sizes.
        element_type: `TensorProto.DataType`.
        stored: Bytes where they do not follow from shape and type: of sparse tensors and strings.
    """

    shape: tuple[int, ...]
    element_type: int = 1
    stored: int | None = None

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Return the bytes of the whole tensor.

        Elements below a byte are packed, and the last byte is padded.

        Raises:
            InputError: The element type is none of `onnx.proto`'s.
        """
        if self.stored is not None:
            return self.stored
        bits = (
            POINTER_BITS if self.element_type == STRING else BITS.get(self.element_type)
        )
        if bits is None:
            raise InputError(f"elem_type: {self.element_type} is no type of onnx.proto")
        return ceil(self.elements * bits / 8)


@dataclass(frozen=True, eq=False)
class Weight:
    """A constant of the file: state of the ops that read it. Two of equal size are not the same.

    Attributes:
        value: Its sizes.
        numbers: Its elements, if they are few and whole; None otherwise.
    """

    value: Value
    numbers: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Attribute:
    """An attribute of a node.

    Attributes:
        ints: `i` or `ints`.
        text: `s`, empty where it is missing.
        tensor: `t` or `sparse_tensor`.
        graphs: `g` or `graphs`.
        reference: Name of the function's attribute that stands for it, else empty.
        num_floats: How many numbers `f` or `floats` holds.
        strings: `strings`.
    """

    ints: tuple[int, ...] = ()
    text: str = ""
    tensor: Weight | None = None
    graphs: tuple[Graph, ...] = ()
    reference: str = ""
    num_floats: int = 0
    strings: tuple[str, ...] = ()


@dataclass(frozen=True)
class OnnxNode:
    """A call of an operator or of a function.

    Attributes:
        kind: `op_type`.
        domain: Empty for ONNX's own.
        overload: The overload of a function that has several.
        label: Where it is in the file, as ops are called: "3", or "3.0" in function 3's body.
        name: The name in the file, which may be empty.
        inputs: Names of values; empty where an optional one is left out.
        outputs: Names of values; empty where an optional one is left out.
        attributes: By name.
    """

    kind: str
    domain: str
    overload: str
    label: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Attribute]

    def integer(self, key: str, default: int) -> int:
        """Return a whole attribute, or the default where it is missing."""
        attribute = self.attributes.get(key)
        if attribute and attribute.ints:
            return attribute.ints[0]
        return default

    def integers(self, key: str) -> tuple[int, ...] | None:
        """Return a list of whole numbers; None where it is missing."""
        attribute = self.attributes.get(key)
        if attribute:
            return attribute.ints
        return None

    def text(self, key: str, default: str = "") -> str:
        """Return an attribute of text, or the default where it is missing."""
        attribute = self.attributes.get(key)
        if attribute and attribute.text:
            return attribute.text
        return default

    def graphs(self) -> Iterator[Graph]:
        """Yield the graphs of all attributes, such as the branches of an `If`."""
        for attribute in self.attributes.values():
            yield from attribute.graphs


@dataclass(frozen=True)
class Graph:
    """A graph or the body of a function.

    Attributes:
        nodes: The nodes in order; producers come first.
        inputs: Names.
        outputs: Names.
        weights: Initializers, dense and sparse, by name.
        values: Sizes of values by name, where the file has all of them.
        unsized: Why the size of a value is not in the file, by name.
    """

    nodes: tuple[OnnxNode, ...]
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    weights: dict[str, Weight] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    unsized: dict[str, str] = field(default_factory=dict)

    @cached_property
    def captured(self) -> tuple[str, ...]:
        """Return the names that the nodes read of the graphs around this one."""
        defined = {*self.inputs, *self.weights}
        captured: dict[str, None] = {}
        for node in self.nodes:
            inner = [name for graph in node.graphs() for name in graph.captured]
            for name in (*node.inputs, *inner):
                if name and name not in defined:
                    captured[name] = None
            defined.update(node.outputs)
        captured |= {name: None for name in self.outputs if name not in defined}
        return tuple(captured)


@dataclass(frozen=True)
class Function:
    """A function of the file.

    Attributes:
        body: Its nodes between formal inputs and outputs.
        defaults: Attributes that a call may leave out.
    """

    body: Graph
    defaults: dict[str, Attribute]


FunctionKey = tuple[str, str, str]
"""Domain, name and overload."""


def read_functions(model: WireMessage) -> dict[FunctionKey, Function]:
    """Return the functions of a `ModelProto`."""
    functions = {}
    for message in model.messages(25):
        values, unsized = _value_infos(message, {12: "value_info"}, "functions")
        body = Graph(
            nodes=_nodes(message, 7),
            inputs=tuple(message.texts(4)),
            outputs=tuple(message.texts(5)),
            values=values,
            unsized=unsized,
        )
        defaults = dict(_attribute(one) for one in message.messages(11))
        key = (plain_domain(message.text(10)), message.text(1), message.text(13))
        functions[key] = Function(body, defaults)
    return functions


def read_graph(message: WireMessage, path: str = "graph") -> Graph:
    """Return a `GraphProto`, its subgraphs included.

    Raises:
        InputError: It is cut off, or a size is negative.
    """
    keys = {11: "input", 12: "output", 13: "value_info"}
    values, unsized = _value_infos(message, keys, path)
    weights = {one.text(8): _dense(one) for one in message.messages(5)}
    for one in message.messages(15):
        weights[one.messages(1)[0].text(8) if one.messages(1) else ""] = _sparse(one)
    values |= {name: weight.value for name, weight in weights.items()}
    return Graph(
        nodes=_nodes(message, 1),
        inputs=tuple(one.text(1) for one in message.messages(11)),
        outputs=tuple(one.text(1) for one in message.messages(12)),
        weights=weights,
        values=values,
        unsized=unsized,
    )


def plain_domain(domain: str) -> str:
    """Return a domain; ONNX's own has two spellings."""
    if domain == "ai.onnx":
        return ""
    return domain


def _nodes(message: WireMessage, key: int) -> tuple[OnnxNode, ...]:
    return tuple(
        _node(one, str(index)) for index, one in enumerate(message.messages(key))
    )


def _node(message: WireMessage, label: str) -> OnnxNode:
    return OnnxNode(
        kind=message.text(4),
        domain=plain_domain(message.text(7)),
        overload=message.text(8),
        label=label,
        name=message.text(3),
        inputs=tuple(message.texts(1)),
        outputs=tuple(message.texts(2)),
        attributes=dict(_attribute(one) for one in message.messages(5)),
    )


def _attribute(message: WireMessage) -> tuple[str, Attribute]:
    tensors = [_dense(one) for one in message.messages(5)]
    tensors += [_sparse(one) for one in message.messages(22)]
    graphs = [*message.messages(6), *message.messages(11)]
    attribute = Attribute(
        ints=tuple(
            decode_signed(number)
            for number in (*message.numbers(3), *message.numbers(8))
        ),
        text=message.text(4),
        tensor=tensors[0] if tensors else None,
        graphs=tuple(read_graph(one, "subgraph") for one in graphs),
        reference=message.text(21),
        num_floats=message.num_floats(7) + message.num_floats(2),
        strings=tuple(message.texts(9)),
    )
    return message.text(1), attribute


def _dense(message: WireMessage) -> Weight:
    """Return a `TensorProto` without its data, but for few whole numbers."""
    shape = tuple(message.numbers(1))
    element_type = message.number(2)
    stored = None
    if element_type == STRING:
        stored = sum(len(text.encode()) for text in message.texts(6))
    value = Value(shape=shape, element_type=element_type, stored=stored)
    return Weight(value=value, numbers=_read_whole_numbers(message, value))


def _read_whole_numbers(message: WireMessage, value: Value) -> tuple[int, ...] | None:
    if value.elements > MAX_NUMBERS or value.element_type not in (INT64, INT32, 9):
        return None
    raw = message.data(9)
    if raw:
        code = {INT64: "q", INT32: "i", 9: "b"}[value.element_type]
        if len(raw) != value.elements * struct.calcsize(code):
            return None
        return struct.unpack(f"<{value.elements}{code}", raw)
    numbers = message.numbers(7 if value.element_type == INT64 else 5)
    # Fewer numbers than elements: the data lies in another file.
    if len(numbers) == value.elements:
        return tuple(map(decode_signed, numbers))
    return None


def _sparse(message: WireMessage) -> Weight:
    """Return a `SparseTensorProto`: its dense shape, and the bytes of what is stored."""
    stored = [_dense(one).value for key in (1, 2) for one in message.messages(key)]
    if not stored:
        raise InputError("sparse_initializer.values: missing")
    value = Value(
        shape=tuple(message.numbers(3)),
        element_type=stored[0].element_type,
        stored=sum(one.bytes for one in stored),
    )
    return Weight(value=value)


def _value_infos(
    message: WireMessage, keys: dict[int, str], path: str
) -> tuple[dict[str, Value], dict[str, str]]:
    """Return sizes by name, and for values without sizes what the file says instead."""
    values: dict[str, Value] = {}
    unsized: dict[str, str] = {}
    for number, key in keys.items():
        for info in message.messages(number):
            name = info.text(1)
            types = info.messages(2)
            if types:
                size = _read_type_size(types[0], f"{path}.{key}[{name}].type")
            else:
                size = None
            if isinstance(size, Value):
                values[name] = size
                unsized.pop(name, None)
            elif size and name not in values:
                unsized.setdefault(name, size)
    return values, unsized


def _read_type_size(message: WireMessage, path: str) -> Value | str | None:
    """Return the size that a `TypeProto` says; why it says none; None if it says nothing."""
    for key, word in ((4, "sequence"), (5, "map"), (7, "opaque value")):
        if message.messages(key):
            return f"{path}: is a {word}; its bytes are in no type of the file"
    if message.messages(9):
        inner = message.messages(9)[0].messages(1)
        if inner:
            return _read_type_size(inner[0], path)
        return None
    if message.messages(8):
        return f"{path}: is a sparse tensor; how much of it is stored is in no type of the file"
    tensors = message.messages(1)
    if not tensors or not tensors[0].messages(2):
        return None
    shape: list[int] = []
    for index, dimension in enumerate(tensors[0].messages(2)[0].messages(1)):
        location = f"{path}.tensor_type.shape.dim[{index}]"
        if not dimension.numbers(1):
            name = dimension.text(2)
            if name:
                state = f"is {name!r}"
            else:
                state = "has no value"
            advice = "export the model with fixed sizes"
            if ".input[" in path:
                advice += (
                    "; or write them in: python -m onnxruntime.tools.make_dynamic_shape_fixed "
                    f"--dim_param {name or 'NAME'} --dim_value N FILE OUTPUT"
                )
            return f"{location}: {state}; {advice}"
        size = decode_signed(dimension.number(1))
        if size < 0:
            return f"{location}: is {size}; export the model with fixed sizes"
        shape.append(size)
    return Value(shape=tuple(shape), element_type=tensors[0].number(1))


def decode_signed(number: int) -> int:
    """Return a varint as protobuf's int64."""
    if number >= 1 << 63:
        return number - (1 << 64)
    return number


def rename_node(node: OnnxNode, names: dict[str, str]) -> OnnxNode:
    """Return a node with other names for what it reads and writes, its subgraphs included."""
    attributes = dict(node.attributes)
    for key, attribute in attributes.items():
        if attribute.graphs:
            graphs = tuple(_rename_captured(graph, names) for graph in attribute.graphs)
            attributes[key] = replace(attribute, graphs=graphs)
    return replace(
        node,
        inputs=tuple(names.get(name, name) for name in node.inputs),
        outputs=tuple(names.get(name, name) for name in node.outputs),
        attributes=attributes,
    )


def _rename_captured(graph: Graph, names: dict[str, str]) -> Graph:
    """Return a graph with other names for what it captures; what it defines itself stays."""
    defined = {*graph.inputs, *graph.weights}
    for node in graph.nodes:
        defined.update(node.outputs)
    outer = {old: new for old, new in names.items() if old not in defined}
    return replace(
        graph,
        nodes=tuple(rename_node(node, outer) for node in graph.nodes),
        outputs=tuple(outer.get(name, name) for name in graph.outputs),
    )
