"""ONNX models (``onnx/onnx.proto``, IR 3 to 12) as problems: the forward pass, by a roofline.

A node is an op; a value that a node makes is a tensor. Bytes read and written are those of a node's
inputs and outputs; flops are two a multiply-add for ``Conv``, ``MatMul`` and ``Gemm``, and one an
element of the outputs for all others. An initializer is state of the node that reads it; nodes that
share one share a device. Shapes must be in the file: PyTorch's exporter writes them, and
``onnx.shape_inference`` adds them. Times are a kind's roofline (``attributed``), marked
``estimated``. Deviations: subgraphs of ``If`` and ``Loop`` are one op, functions are not expanded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from gnnplace.errors import FormatError, InputError
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.formats.attributed import GivenOp, problem_of
from gnnplace.problem.formats.protobuf import WireMessage
from gnnplace.problem.problem import Problem

GRAPH = 7  # of a model
NODE, INITIALIZER, INPUT, OUTPUT, VALUE = 1, 5, 11, 12, 13  # of a graph
SIZES = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}
MULTIPLY = ("Conv", "ConvTranspose", "MatMul", "Gemm")


@dataclass(frozen=True)
class Value:
    """A value's shape and the bytes of an element."""

    shape: tuple[int, ...]
    item: int

    @property
    def bytes(self) -> int:
        """Of the whole."""
        return prod(self.shape) * self.item


def read_onnx(path: str | Path, cluster: Cluster | None = None) -> Problem:
    """Read a model's forward pass.

    Raises:
        FormatError: naming the file, the key path and the fault.
    """
    try:
        graphs = WireMessage(Path(path).read_bytes()).messages(GRAPH)
        if not graphs or not graphs[0].messages(NODE):
            raise InputError("graph.node: missing; is it an ONNX model?")
        return _problem(Path(path).stem, graphs[0], cluster)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    except InputError as error:
        raise FormatError(f"{path}: {error}") from None


def _problem(name: str, graph: WireMessage, cluster: Cluster | None) -> Problem:
    values, weights = _values(graph), {one.text(8) for one in graph.messages(INITIALIZER)}
    nodes = graph.messages(NODE)
    producer_of = {value: k for k, node in enumerate(nodes) for value in node.texts(2) if value}
    readers: dict[str, list[int]] = {}
    consumers: dict[str, list[int]] = {value: [] for value in producer_of}
    for k, node in enumerate(nodes):
        for value in filter(None, node.texts(1)):
            if value in weights:
                readers.setdefault(value, []).append(k)
            if value in producer_of and k not in consumers[value]:
                consumers[value].append(k)
    from networkx.utils import UnionFind  # late: of this format alone

    together = UnionFind(range(len(nodes)))
    for sharing in readers.values():
        together.union(*sharing)
    for value, readers_of_value in consumers.items():
        if (
            not readers_of_value
        ):  # nobody reads it, such as the mask of a Dropout: it may have no shape
            values.setdefault(value, Value((0,), 0))
    ops = [_op(k, node, values, readers, f"weights {together[k]}") for k, node in enumerate(nodes)]
    tensors = [
        (producer, float(_of(value, values).bytes), consumers[value])
        for value, producer in producer_of.items()
        if consumers[value]
    ]
    return problem_of(name, ops, tensors, cluster)


def _op(
    k: int,
    node: WireMessage,
    values: Mapping[str, Value],
    readers: Mapping[str, list[int]],
    together: str,
) -> GivenOp:
    kind, inputs = node.text(4), [name for name in node.texts(1) if name]
    outputs = [name for name in node.texts(2) if name]
    read, written = ([_of(name, values) for name in names] for names in (inputs, outputs))
    elements = sum(prod(one.shape) for one in written)
    weights = [name for name in inputs if name in readers]
    keys = {
        "flops": 2.0 * elements * _depth(kind, read) if kind in MULTIPLY else float(elements),
        "bytes": float(sum(one.bytes for one in (*read, *written))),
        "state": float(sum(_of(name, values).bytes for name in weights if readers[name][0] == k)),
        "module": kind,
    }
    if weights:
        keys["colocate"] = together
    return GivenOp(f"{k} {node.text(3) or kind}", f"graph.node[{k}]", keys)


def _depth(kind: str, read: list[Value]) -> int:
    """Multiply-adds an element of the output."""
    shapes = [one.shape for one in read]
    if kind in ("Conv", "ConvTranspose") and len(shapes) > 1:
        return prod(shapes[1][1:])
    return shapes[0][-1] if shapes and shapes[0] else 1


def _of(name: str, values: Mapping[str, Value]) -> Value:
    if name not in values:
        raise InputError(
            f"graph.value_info[{name}]: missing; write shapes into the file: "
            "onnx.shape_inference.infer_shapes_path(FILE)"
        )
    return values[name]


def _values(graph: WireMessage) -> dict[str, Value]:
    """Shapes of initializers, inputs, outputs and values between, by name."""
    shapes_by_name = dict[str, Value]()
    for one in graph.messages(INITIALIZER):
        shape, kind = tuple(one.numbers(1)), one.number(2)
        shapes_by_name[one.text(8)] = Value(shape, SIZES.get(kind, 4))
    keys = {INPUT: "input", OUTPUT: "output", VALUE: "value_info"}
    for number, key in keys.items():
        for one in graph.messages(number):
            name = one.text(1)
            tensors = [t for kind in one.messages(2) for t in kind.messages(1)]
            shapes = tensors[0].messages(2) if tensors else []
            if shapes:
                key_path = f"graph.{key}[{name}].type.tensor_type.shape"
                dims = enumerate(shapes[0].messages(1))
                shape = tuple(_size(dim, f"{key_path}.dim[{i}]") for i, dim in dims)
                shapes_by_name[name] = Value(shape, SIZES.get(tensors[0].number(1), 4))
    return shapes_by_name


def _size(dim: WireMessage, where: str) -> int:
    if not dim.numbers(1):
        state = f"is {dim.text(2)!r}" if dim.text(2) else "has no value"
        raise InputError(f"{where}: {state}; export the model with fixed sizes")
    return dim.number(1)
