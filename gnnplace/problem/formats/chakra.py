"""MLCommons Chakra execution traces as problems: what one rank computed, as it was measured.

``schema/protobuf/et_def.proto``, as ``.et`` (each message behind its length) or as JSON, a message
a line: first ``GlobalMetadata``, then ``Node`` by ``Node``. A compute node is an op. Its seconds
are its attribute ``seconds``, else ``duration_micros``; without either it has the attributes
``num_ops`` (flops) and ``tensor_size`` (bytes), as Chakra's own feeder reads them, for a kind's
roofline. An op sends one tensor to all ops whose ``data_deps`` name it, of ``tensor_size`` bytes,
else of the shapes and types of its ``outputs``; what has none of both is named. Times hold for
every kind of device. A node of another type is no op: who waits for it waits for what it waits for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from gnnplace.errors import FormatError, InputError
from gnnplace.files import Schema, parse
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.formats.attributed import GivenOp, number, problem_of
from gnnplace.problem.formats.protobuf import WireMessage, varint
from gnnplace.problem.problem import Problem

COMPUTE, TYPES = "COMP_NODE", {4: "COMP_NODE"}
ITEMS = {"double": 8, "long": 8, "float64": 8, "int64": 8, "half": 2, "bfloat16": 2, "float16": 2}
BYTE = ("char", "bool", "int8", "uint8")
Node = dict[str, Any]


def read_chakra(path: str | Path, cluster: Cluster | None = None) -> Problem:
    """Reads the compute nodes of a rank's trace.

    Raises:
        FormatError: naming the file, the key path and the fault.
    """
    try:
        data = Path(path).read_bytes()
        nodes = list(_of_lines(data) if data[:1] == b"{" else _of_messages(data))
        return _problem(Path(path).stem, nodes, cluster)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    except InputError as error:
        raise FormatError(f"{path}: {error}") from None


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
            "compute": node.type == COMPUTE,
            "deps": node.data_deps,
            "micros": node.duration_micros,
            "outputs": node.outputs.model_dump() if node.outputs else {},
            "keys": {str(a.get("name")): v for a in node.attr for n, v in a.items() if n != "name"},
        }


def _of_messages(data: bytes) -> Iterator[Node]:
    at, first = 0, True
    while at < len(data):
        size, at = varint(data, at)
        if at + size > len(data):
            raise InputError("no protobuf message, or cut off")
        message, at = WireMessage(data[at : at + size]), at + size
        if not first:
            yield _node(message)
        first = False


def _node(message: WireMessage) -> Node:
    keys: dict[str, Any] = {}
    for one in message.messages(10):
        whole = [n for field in (7, 9, 11, 13, 27) for n in one.numbers(field)[:1]]
        double = one.double(3)
        keys[one.text(1)] = double if double is not None else next(iter(whole), one.text(29))
    outputs = message.messages(9)
    told = {"shapes": outputs[0].text(2), "types": outputs[0].text(3)} if outputs else {}
    return {
        "id": message.number(1),
        "name": message.text(2),
        "compute": TYPES.get(message.number(3)) == COMPUTE,
        "deps": message.numbers(5),
        "micros": float(message.number(7)),
        "outputs": told,
        "keys": keys,
    }


def _problem(name: str, nodes: list[Node], cluster: Cluster | None) -> Problem:
    by_id = {node["id"]: node for node in nodes}
    computing = [node for node in nodes if node["compute"]]
    index = {node["id"]: k for k, node in enumerate(computing)}
    consumers: dict[int, list[int]] = {}
    for node in computing:
        for producer in _producers(node, by_id):
            consumers.setdefault(producer, []).append(index[node["id"]])
    ops = [_op(node) for node in computing]
    tensors = [
        (index[one], _output(by_id[one], f"node[id={one}]"), each)
        for one, each in consumers.items()
    ]
    return problem_of(name, ops, tensors, cluster)


def _op(node: Node) -> GivenOp:
    known, keys = node["keys"], dict[str, Any]()
    if "seconds" in known or node["micros"]:
        keys["time"] = known.get("seconds", node["micros"] / 1e6)
    elif "num_ops" in known and "tensor_size" in known:
        keys |= {"flops": known["num_ops"], "bytes": known["tensor_size"]}
    keys |= {key: known[key] for key in ("phase", "module") if known.get(key)}
    return GivenOp(f"{node['name']} {node['id']}", f"node[id={node['id']}].attr", keys)


def _producers(node: Node, by_id: dict[int, Node]) -> list[int]:
    """Compute nodes whose tensors a node waits for, through others."""
    found: dict[int, None] = {}
    open_ids, seen = list(node["deps"]), set()
    while open_ids:
        one = open_ids.pop()
        if one in seen:
            continue
        seen.add(one)
        if one not in by_id:
            raise InputError(f"node[id={node['id']}].data_deps: there is no node {one}")
        if by_id[one]["compute"]:
            found[one] = None
        else:
            open_ids += by_id[one]["deps"]
    return list(found)


def _output(node: Node, where: str) -> float:
    """Bytes of what a node makes."""
    if "tensor_size" in node["keys"]:
        return number(node["keys"], "tensor_size", f"{where}.attr")
    told = node["outputs"]
    try:
        shapes, types = json.loads(told["shapes"]), json.loads(told["types"])
    except (KeyError, TypeError, ValueError, RecursionError):
        raise InputError(
            f"{where}.attr.tensor_size: missing, and so are the shapes and types of its outputs"
        ) from None
    return float(sum(_bytes(s, str(t)) for s, t in zip(shapes, types, strict=False)))


def _bytes(shape: Any, kind: str) -> int:
    """Bytes of one output, of a list of tensors too; none of what is no tensor."""
    if shape and isinstance(shape[0], list):
        inner = re.findall(r"Tensor\(([^()]*)\)", kind)
        return sum(_bytes(s, f"Tensor({k})") for s, k in zip(shape, inner, strict=False))
    found = re.fullmatch(r"Tensor\(([^()]*)\)", kind)
    if not found:
        return 0
    plain = found[1].replace("c10::", "").lower()
    return prod(shape) * (1 if plain in BYTE else ITEMS.get(plain, 4))
