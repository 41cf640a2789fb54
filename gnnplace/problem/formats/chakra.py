"""MLCommons Chakra execution traces as problems: what ranks computed, as it was measured.

``schema/protobuf/et_def.proto``, as ``.et`` (each message behind its length) or as JSON, message by
message: a line each, or indented as Chakra's jsonizer writes them; keys in either of protobuf's
spellings. First ``GlobalMetadata``, then ``Node`` by ``Node``. A compute node is an op. Its seconds
are its attribute ``seconds``, else ``duration_micros``; without either it has the attributes
``num_ops`` (flops) and ``tensor_size`` (bytes), as Chakra's own feeder reads them, for a kind's
roofline. Where a trace has durations alone, a node without one took 0 us. An op sends one tensor to
all ops whose ``data_deps`` name it, of ``tensor_size`` bytes, else
of the shapes and types of its ``outputs``; what has none of both is named. Times hold for
every kind of device. A node of another type is no op: who waits for it waits for what it waits for.

A folder is the traces of several ranks in one graph: a receive waits for the send with its
``comm_src``, ``comm_dst`` and ``comm_tag``. Collectives tie no ranks. Traces that this package
wrote (``report/chakra.py``) have every tensor apart, in the attributes ``tensors`` and ``reads``:
the graph, its bytes, state and colocation come back as they were, and the time of every op on the
device that it was placed on.
"""

from __future__ import annotations

import ast
import json
import re
import struct
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from gnnplace.errors import FormatError, InputError
from gnnplace.files import Schema, parse, within
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.formats.attributed import GivenOp, make_problem, number
from gnnplace.problem.formats.protobuf import WireMessage, varint
from gnnplace.problem.problem import Problem

COMPUTE = "COMP_NODE"
SEND = "COMM_SEND_NODE"
RECEIVE = "COMM_RECV_NODE"
TYPES = {4: COMPUTE, 5: SEND, 6: RECEIVE}
ITEMS = {
    **dict.fromkeys(
        ("char", "signed char", "unsigned char", "bool", "byte", "int8", "uint8"), 1
    ),
    **dict.fromkeys(("qint8", "quint8", "float8_e4m3fn", "float8_e4m3fnuz"), 1),
    **dict.fromkeys(("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("half", "bfloat16", "float16"), 2),
    **dict.fromkeys(("short", "short int", "int16", "uint16", "unsigned short"), 2),
    **dict.fromkeys(
        ("float", "float32", "int", "int32", "uint32", "unsigned int", "qint32"), 4
    ),
    "complex<half>": 4,
    **dict.fromkeys(("double", "float64", "long", "long int", "int64"), 8),
    **dict.fromkeys(("uint64", "unsigned long", "complex<float>", "complex64"), 8),
    **dict.fromkeys(("complex<double>", "complex128"), 16),
}
TIMES = frozenset(("seconds", "num_ops"))
MESSAGE = ("comm_src", "comm_dst", "comm_tag")
JSON_BEGINS = re.compile(rb'\s*\{\s*["}]')  # a length of 123 bytes is a brace too
SPACE = re.compile(r"\s*")
CAPITAL = re.compile(r"[A-Z]")
Node = dict[str, Any]
Number = tuple[int, int]
"""A node: its rank and its ``id``."""


def read_chakra(path: str | Path, cluster: Cluster | None = None) -> Problem:
    """Read the compute nodes of a rank's trace, or of a folder of them, one a rank.

    Raises:
        FormatError: naming the file, the key path and the fault.
    """
    source = Path(path)
    nodes = list[Node]()
    if not source.is_dir():
        traces = [source]
    else:
        traces = [*source.glob("*.json"), *source.glob("*.et")]
    files = sorted(traces, key=lambda file: (len(file.name), file.name))
    if not files:
        raise FormatError(f"{path}: holds no trace: neither *.json nor *.et")
    for rank, file in enumerate(files):
        try:
            data = file.read_bytes()
            if JSON_BEGINS.match(data):
                messages = _iterate_json_nodes(data)
            else:
                messages = _iterate_message_nodes(data)
            nodes += [{**node, "rank": rank} for node in messages]
        except OSError as error:
            raise FormatError(f"{file}: cannot be read: {error.strerror}") from None
        except InputError as error:
            raise FormatError(f"{file}: {error}") from None
    with within(path):
        return _problem(source.stem, nodes, cluster)


class _Outputs(Schema, extra="ignore"):
    """Shapes and types of what a node makes, as lists within text."""

    shapes: str = ""
    types: str = ""


class _Message(Schema, extra="ignore"):
    """A node in JSON; numbers of 64 bits are text."""

    id: Annotated[int, Field(strict=False)] = 0
    name: str = ""
    type: str | int = ""
    data_deps: list[Annotated[int, Field(strict=False)]] = Field(default_factory=list)
    duration_micros: (
        Annotated[float, Field(ge=0, allow_inf_nan=False, strict=False)] | None
    ) = None
    outputs: _Outputs | None = None
    attr: list[dict[str, Any]] = Field(default_factory=list)


def _iterate_json_nodes(data: bytes) -> Iterator[Node]:
    """Yield nodes of messages one after the other, a line each or indented.

    Keys are those of the schema or, as ``MessageToJson`` writes them, the same in camel case.
    """
    text = data.decode("utf-8", "replace").rstrip()
    decoder = json.JSONDecoder()
    position = 0
    line = 1
    is_metadata = True
    while position < len(text):
        begin = SPACE.match(text, position).end()  # type: ignore[union-attr]
        line += text.count("\n", position, begin)
        location = f"line {line}"
        try:
            message, position = decoder.raw_decode(text, begin)
        except (ValueError, RecursionError):
            raise InputError(f"{location}: no JSON message") from None
        line += text.count("\n", begin, position)
        if not is_metadata:
            yield _read_json_node(message, location)
        is_metadata = False


def _read_json_node(message: object, where: str) -> Node:
    if isinstance(message, dict):
        message = {_snake_case(key): value for key, value in message.items()}
    node = parse(_Message, message, where)
    return {
        "id": node.id,
        "name": node.name,
        "type": TYPES.get(node.type, "") if isinstance(node.type, int) else node.type,
        "deps": node.data_deps,
        "micros": node.duration_micros,
        "outputs": node.outputs.model_dump() if node.outputs else {},
        "keys": dict(_read_json_attribute(attribute, where) for attribute in node.attr),
    }


def _snake_case(key: str) -> str:
    return CAPITAL.sub(lambda match: "_" + match[0].lower(), key)


def _read_json_attribute(attribute: Mapping[str, Any], where: str) -> tuple[str, Any]:
    """Return name and value of an attribute; whole numbers of 64 bits are text in JSON."""
    name = str(attribute.get("name"))
    for key, value in attribute.items():
        kind = _snake_case(key).removesuffix("_val")
        if kind == _snake_case(key):
            continue
        try:
            if "int" in kind or "fixed" in kind:
                return name, int(value)
            return name, float(value) if kind in ("double", "float") else value
        except (TypeError, ValueError):
            raise InputError(
                f"{where}.attr.{name}: {value!r}: must be a number"
            ) from None
    return name, None


def _iterate_message_nodes(data: bytes) -> Iterator[Node]:
    at = 0
    parts = []
    # All lengths are checked first, so that a truncated file is refused at once.
    while at < len(data):
        size, at = varint(data, at)
        if at + size > len(data):
            raise InputError("no protobuf message, or cut off")
        parts.append(data[at : at + size])
        at += size
    for part in parts[1:]:  # the first one is the metadata
        yield _read_message_node(WireMessage(part))


def _read_message_node(message: WireMessage) -> Node:
    outputs = message.messages(9)
    durations = message.numbers(7)
    return {
        "id": message.number(1),
        "name": message.text(2),
        "type": TYPES.get(message.number(3), ""),
        "deps": message.numbers(5),
        "micros": float(durations[-1]) if durations else None,
        "outputs": {"shapes": outputs[0].text(2), "types": outputs[0].text(3)}
        if outputs
        else {},
        "keys": {
            one.text(1): _read_message_attribute(one) for one in message.messages(10)
        },
    }


def _read_message_attribute(message: WireMessage) -> float | int | str:
    """Return the value of an `AttributeProto`, whichever of its scalar fields has it."""
    double = message.double(3)
    single = message.data(5)
    if double is not None:
        return double
    if len(single) == 4:
        return float(struct.unpack("<f", single)[0])
    for field in (7, 9):  # int32, int64
        if message.numbers(field):
            number = message.number(field)
            if number >> 63:
                return number - (1 << 64)
            return number
    for field in (11, 13, 27):  # uint32, uint64, bool
        if message.numbers(field):
            return message.number(field)
    for field in (15, 17):  # sint32, sint64: the sign is the lowest bit
        if message.numbers(field):
            number = message.number(field)
            return (number >> 1) ^ -(number & 1)
    # Fields of fixed sizes.
    for field, code in ((19, "<I"), (21, "<Q"), (23, "<i"), (25, "<q")):
        data = message.data(field)
        if len(data) == struct.calcsize(code):
            return int(struct.unpack(code, data)[0])
    return message.text(29)


def _problem(name: str, nodes: list[Node], cluster: Cluster | None) -> Problem:
    by_id: dict[Number, Node] = {(node["rank"], node["id"]): node for node in nodes}
    computing = sorted(
        (n for n in nodes if n["type"] == COMPUTE), key=lambda n: n["id"]
    )
    index = {(node["rank"], node["id"]): k for k, node in enumerate(computing)}
    sent = _sends(nodes)
    sizes_by_tensor = [_tensors(node) for node in computing]
    consumers: dict[tuple[int, int], list[int]] = {
        (k, tensor): []
        for k, sizes in enumerate(sizes_by_tensor)
        for tensor in sizes
        if tensor >= 0
    }
    for k, node in enumerate(computing):
        reads = {
            _read_whole_number(readers, f"{_where(node)}.attr.reads")
            for readers in _list(node, "reads")
        }
        for producer in _producers(node, by_id, sent):
            for tensor in sizes_by_tensor[index[producer]]:
                if tensor < 0 or tensor in reads:
                    consumers.setdefault((index[producer], tensor), []).append(k)
    tensors = [
        (
            k,
            sizes_by_tensor[k][tensor] if tensor >= 0 else _output(computing[k]),
            readers,
        )
        for (k, tensor), readers in sorted(
            consumers.items(), key=lambda x: (x[0][1], x[0][0])
        )
    ]
    have_own_names = len({node["name"] for node in computing}) == len(computing)
    has_durations = any(node["micros"] is not None for node in computing)
    has_other_times = any(TIMES & node["keys"].keys() for node in computing)
    is_measured = has_durations and not has_other_times
    ops = [_op(node, have_own_names, is_measured) for node in computing]
    return make_problem(name, ops, tensors, cluster)


def _where(node: Node) -> str:
    return f"node[id={node['id']}]"


def _sends(nodes: list[Node]) -> dict[Number, Number]:
    """Match every receive with its send, in order among those of one message."""
    by_message: dict[str, dict[tuple[Any, ...], list[Number]]] = {SEND: {}, RECEIVE: {}}
    for node in nodes:
        if node["type"] in by_message:
            message = tuple(node["keys"].get(key) for key in MESSAGE)
            by_message[node["type"]].setdefault(message, []).append(
                (node["rank"], node["id"])
            )
    return {
        receive: send
        for message, receives in by_message[RECEIVE].items()
        for receive, send in zip(
            receives, by_message[SEND].get(message, []), strict=False
        )
    }


def _op(node: Node, has_own_name: bool, is_measured: bool) -> GivenOp:
    """Return a compute node as an op.

    Args:
        node: The node.
        has_own_name: No other node has its name.
        is_measured: Durations are all that the trace says of time. Protobuf writes no zeros, so
            that a node without a duration took less than a microsecond.
    """
    attributes = node["keys"]
    keys = dict[str, Any]()
    if "seconds" in attributes:
        keys["time"] = attributes["seconds"]
    elif node["micros"] is not None:
        keys["time"] = node["micros"] / 1e6
    elif "num_ops" in attributes and "tensor_size" in attributes:
        keys |= {"flops": attributes["num_ops"], "bytes": attributes["tensor_size"]}
    elif is_measured:
        keys["time"] = 0.0
    keys |= {
        key: attributes[key]
        for key in ("phase", "module", "colocate", "state")
        if attributes.get(key)
    }
    if has_own_name:
        name = node["name"]
    else:
        name = f"{node['name']} {node['id']}"
    if not has_own_name and node["rank"]:
        name = f"{name} of rank {node['rank']}"
    return GivenOp(name, f"{_where(node)}.attr", keys)


def _producers(
    node: Node, by_id: Mapping[Number, Node], sent: Mapping[Number, Number]
) -> list[Number]:
    """Compute nodes whose tensors a node waits for, through others and from rank to rank."""
    producers: dict[Number, None] = {}
    open_ids = [(node["rank"], one) for one in node["deps"]]
    visited = set[Number]()
    while open_ids:
        one = open_ids.pop()
        if one in visited:
            continue
        visited.add(one)
        if one not in by_id:
            raise InputError(f"{_where(node)}.data_deps: there is no node {one[1]}")
        predecessor = by_id[one]
        if predecessor["type"] == COMPUTE:
            producers[one] = None
            continue
        open_ids += [(one[0], dependency) for dependency in predecessor["deps"]]
        open_ids += [sent[one]] if one in sent else []
    return list(producers)


def _tensors(node: Node) -> dict[int, float]:
    """Return the bytes of every tensor that a node makes, by its number.

    The number -1 stands for a tensor with the bytes of the node's outputs.
    """
    if "tensors" not in node["keys"]:
        return {-1: 0.0}
    key_path = f"{_where(node)}.attr.tensors"
    pairs = _list(node, "tensors")
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise InputError(f"{key_path}: must be a list of [number, bytes]")
    return {
        _read_whole_number(n, key_path): number({"bytes": size}, "bytes", key_path)
        for n, size in pairs
    }


def _list(node: Node, key: str) -> list[Any]:
    """Return a list that an attribute has as JSON."""
    try:
        entries = json.loads(node["keys"].get(key, "[]"))
    except (TypeError, ValueError, RecursionError):
        entries = None
    if not isinstance(entries, list):
        raise InputError(f"{_where(node)}.attr.{key}: must be a list in JSON")
    return entries


def _read_whole_number(value: object, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError(f"{where}: {value!r}: must be a whole number, not negative")
    return value


def _output(node: Node) -> float:
    """Return the bytes of what a node makes."""
    key_path = _where(node)
    if "tensor_size" in node["keys"]:
        return number(node["keys"], "tensor_size", f"{key_path}.attr")
    outputs = node["outputs"]
    try:
        shapes, types = _literal(outputs["shapes"]), _literal(outputs["types"])
    except (KeyError, TypeError, ValueError, SyntaxError, RecursionError, MemoryError):
        raise InputError(
            f"{key_path}.attr.tensor_size: missing, and so are the shapes and types of its outputs"
        ) from None
    try:
        return float(sum(_bytes(s, str(t)) for s, t in zip(shapes, types, strict=True)))
    except (TypeError, ValueError, LookupError) as error:
        reason = (
            f"{error.args[0]} is no type of elements"
            if isinstance(error, KeyError)
            else error
        )
        raise InputError(f"{key_path}.outputs: {reason}") from None


def _literal(text: str) -> Any:
    """Return lists within text, as JSON or as Python writes them (Chakra's converter does)."""
    try:
        return json.loads(text)
    except ValueError:
        return ast.literal_eval(text)


def _bytes(shape: Any, kind: str) -> int:
    """Return bytes of one output, of a list of tensors too; none of what is no tensor.

    Raises:
        KeyError: The type of its elements is not known.
    """
    if shape and isinstance(shape[0], list):
        inner = re.findall(r"Tensor\(([^()]*)\)", kind)
        return sum(
            _bytes(s, f"Tensor({k})") for s, k in zip(shape, inner, strict=False)
        )
    match = re.fullmatch(r"Tensor\(([^()]*)\)", kind)
    if not match:
        return 0
    return prod(shape) * ITEMS[match[1].replace("c10::", "").lower()]
