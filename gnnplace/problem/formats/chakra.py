"""MLCommons Chakra execution traces as problems: what ranks computed, as it was measured.

``schema/protobuf/et_def.proto``, as ``.et`` (each message behind its length) or as JSON, a message
a line: first ``GlobalMetadata``, then ``Node`` by ``Node``. A compute node is an op. Its seconds
are its attribute ``seconds``, else ``duration_micros``; without either it has the attributes
``num_ops`` (flops) and ``tensor_size`` (bytes), as Chakra's own feeder reads them, for a kind's
roofline. An op sends one tensor to all ops whose ``data_deps`` name it, of ``tensor_size`` bytes,
else of the shapes and types of its ``outputs``; what has none of both is named. Times hold for
every kind of device. A node of another type is no op: who waits for it waits for what it waits for.

A folder is the traces of several ranks in one graph: a receive waits for the send with its
``comm_src``, ``comm_dst`` and ``comm_tag``. Collectives tie no ranks. Traces that this package
wrote (``report/chakra.py``) have every tensor apart, in the attributes ``tensors`` and ``reads``:
the graph, its bytes, state and colocation come back as they were, and the time of every op on the
device that it was placed on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from gnnplace.errors import FormatError, InputError
from gnnplace.files import Schema, parse, within
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.formats.attributed import GivenOp, number, problem_of
from gnnplace.problem.formats.protobuf import WireMessage, varint
from gnnplace.problem.problem import Problem

COMPUTE, SEND, RECEIVE = "COMP_NODE", "COMM_SEND_NODE", "COMM_RECV_NODE"
TYPES = {4: COMPUTE, 5: SEND, 6: RECEIVE}
ITEMS = {"double": 8, "long": 8, "float64": 8, "int64": 8, "half": 2, "bfloat16": 2, "float16": 2}
BYTE = ("char", "bool", "int8", "uint8")
MESSAGE = ("comm_src", "comm_dst", "comm_tag")
Node = dict[str, Any]
Number = tuple[int, int]
"""A node: its rank and its ``id``."""


def read_chakra(path: str | Path, cluster: Cluster | None = None) -> Problem:
    """Read the compute nodes of a rank's trace, or of a folder of them, one a rank.

    Raises:
        FormatError: naming the file, the key path and the fault.
    """
    source, nodes = Path(path), list[Node]()
    traces = [source] if not source.is_dir() else [*source.glob("*.json"), *source.glob("*.et")]
    files = sorted(traces, key=lambda file: (len(file.name), file.name))
    if not files:
        raise FormatError(f"{path}: holds no trace: neither *.json nor *.et")
    for rank, file in enumerate(files):
        try:
            data = file.read_bytes()
            messages = _of_lines(data) if data[:1] == b"{" else _of_messages(data)
            nodes += [{**node, "rank": rank} for node in messages]
        except OSError as error:
            raise FormatError(f"{file}: cannot be read: {error.strerror}") from None
        except InputError as error:
            raise FormatError(f"{file}: {error}") from None
    with within(path):
        return _problem(source.stem, nodes, cluster)


class _Outputs(Schema, extra="ignore"):
    """Shapes and types of what a node makes, as JSON within text."""

    shapes: str = ""
    types: str = ""


class _Line(Schema, extra="ignore"):
    """A node in JSON; numbers of 64 bits are text."""

    id: Annotated[int, Field(strict=False)] = 0
    name: str = ""
    type: str = ""
    data_deps: list[Annotated[int, Field(strict=False)]] = Field(default_factory=list)
    duration_micros: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=False)] = 0.0
    outputs: _Outputs | None = None
    attr: list[dict[str, Any]] = Field(default_factory=list)


def _of_lines(data: bytes) -> Iterator[Node]:
    for k, line in enumerate(data.splitlines()):
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            raise InputError(f"line {k + 1}: no JSON message") from None
        if k == 0 or not line.strip():
            continue  # the metadata
        node = parse(_Line, message, f"line {k + 1}")
        yield {
            "id": node.id,
            "name": node.name,
            "type": node.type,
            "deps": node.data_deps,
            "micros": node.duration_micros,
            "outputs": node.outputs.model_dump() if node.outputs else {},
            "keys": {str(a.get("name")): v for a in node.attr for n, v in a.items() if n != "name"},
        }


def _of_messages(data: bytes) -> Iterator[Node]:
    at, parts = 0, []
    while at < len(data):  # all lengths first: a file that is cut off is refused at once
        size, at = varint(data, at)
        if at + size > len(data):
            raise InputError("no protobuf message, or cut off")
        parts.append(data[at : at + size])
        at += size
    for part in parts[1:]:  # the first one is the metadata
        yield _node(WireMessage(part))


def _node(message: WireMessage) -> Node:
    keys: dict[str, Any] = {}
    for one in message.messages(10):
        integers = [n for field in (7, 9, 11, 13, 27) for n in one.numbers(field)[:1]]
        double = one.double(3)
        keys[one.text(1)] = double if double is not None else next(iter(integers), one.text(29))
    outputs = message.messages(9)
    described = {"shapes": outputs[0].text(2), "types": outputs[0].text(3)} if outputs else {}
    return {
        "id": message.number(1),
        "name": message.text(2),
        "type": TYPES.get(message.number(3), ""),
        "deps": message.numbers(5),
        "micros": float(message.number(7)),
        "outputs": described,
        "keys": keys,
    }


def _problem(name: str, nodes: list[Node], cluster: Cluster | None) -> Problem:
    by_id: dict[Number, Node] = {(node["rank"], node["id"]): node for node in nodes}
    computing = sorted((n for n in nodes if n["type"] == COMPUTE), key=lambda n: n["id"])
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
        reads = {_whole(readers, f"{_where(node)}.attr.reads") for readers in _list(node, "reads")}
        for producer in _producers(node, by_id, sent):
            for tensor in sizes_by_tensor[index[producer]]:
                if tensor < 0 or tensor in reads:
                    consumers.setdefault((index[producer], tensor), []).append(k)
    tensors = [
        (k, sizes_by_tensor[k][tensor] if tensor >= 0 else _output(computing[k]), readers)
        for (k, tensor), readers in sorted(consumers.items(), key=lambda x: (x[0][1], x[0][0]))
    ]
    alone = len({node["name"] for node in computing}) == len(computing)
    return problem_of(name, [_op(node, alone) for node in computing], tensors, cluster)


def _where(node: Node) -> str:
    return f"node[id={node['id']}]"


def _sends(nodes: list[Node]) -> dict[Number, Number]:
    """Match every receive with its send, in order among those of one message."""
    by_message: dict[str, dict[tuple[Any, ...], list[Number]]] = {SEND: {}, RECEIVE: {}}
    for node in nodes:
        if node["type"] in by_message:
            message = tuple(node["keys"].get(key) for key in MESSAGE)
            by_message[node["type"]].setdefault(message, []).append((node["rank"], node["id"]))
    return {
        receive: send
        for message, receives in by_message[RECEIVE].items()
        for receive, send in zip(receives, by_message[SEND].get(message, []), strict=False)
    }


def _op(node: Node, alone: bool) -> GivenOp:
    """By its name, where all have names of their own."""
    given_keys, keys = node["keys"], dict[str, Any]()
    if "seconds" in given_keys or node["micros"]:
        keys["time"] = given_keys.get("seconds", node["micros"] / 1e6)
    elif "num_ops" in given_keys and "tensor_size" in given_keys:
        keys |= {"flops": given_keys["num_ops"], "bytes": given_keys["tensor_size"]}
    keys |= {
        key: given_keys[key]
        for key in ("phase", "module", "colocate", "state")
        if given_keys.get(key)
    }
    name = node["name"] if alone else f"{node['name']} {node['id']}"
    if not alone and node["rank"]:
        name = f"{name} of rank {node['rank']}"
    return GivenOp(name, f"{_where(node)}.attr", keys)


def _producers(
    node: Node, by_id: Mapping[Number, Node], sent: Mapping[Number, Number]
) -> list[Number]:
    """Compute nodes whose tensors a node waits for, through others and from rank to rank."""
    producers: dict[Number, None] = {}
    open_ids, visited = [(node["rank"], one) for one in node["deps"]], set[Number]()
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
    """Bytes of every tensor that a node makes, by its number; -1: one, of what its outputs are."""
    if "tensors" not in node["keys"]:
        return {-1: 0.0}
    key_path = f"{_where(node)}.attr.tensors"
    pairs = _list(node, "tensors")
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        raise InputError(f"{key_path}: must be a list of [number, bytes]")
    return {_whole(n, key_path): number({"bytes": size}, "bytes", key_path) for n, size in pairs}


def _list(node: Node, key: str) -> list[Any]:
    """Return a list that an attribute has as JSON."""
    try:
        entries = json.loads(node["keys"].get(key, "[]"))
    except (TypeError, ValueError, RecursionError):
        entries = None
    if not isinstance(entries, list):
        raise InputError(f"{_where(node)}.attr.{key}: must be a list in JSON")
    return entries


def _whole(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError(f"{where}: {value!r}: must be a whole number, not negative")
    return value


def _output(node: Node) -> float:
    """Bytes of what a node makes."""
    key_path = _where(node)
    if "tensor_size" in node["keys"]:
        return number(node["keys"], "tensor_size", f"{key_path}.attr")
    outputs = node["outputs"]
    try:
        shapes, types = json.loads(outputs["shapes"]), json.loads(outputs["types"])
    except (KeyError, TypeError, ValueError, RecursionError):
        raise InputError(
            f"{key_path}.attr.tensor_size: missing, and so are the shapes and types of its outputs"
        ) from None
    return float(sum(_bytes(s, str(t)) for s, t in zip(shapes, types, strict=False)))


def _bytes(shape: Any, kind: str) -> int:
    """Bytes of one output, of a list of tensors too; none of what is no tensor."""
    if shape and isinstance(shape[0], list):
        inner = re.findall(r"Tensor\(([^()]*)\)", kind)
        return sum(_bytes(s, f"Tensor({k})") for s, k in zip(shape, inner, strict=False))
    match = re.fullmatch(r"Tensor\(([^()]*)\)", kind)
    if not match:
        return 0
    plain = match[1].replace("c10::", "").lower()
    return prod(shape) * (1 if plain in BYTE else ITEMS.get(plain, 4))
