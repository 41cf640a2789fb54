"""Traces as protobuf writes them, binary and JSON."""

from __future__ import annotations

import json
import re
import struct

import pytest
from google.protobuf import json_format

from gnnplace.errors import FormatError
from gnnplace.problem.cluster.gpus import GPUS
from gnnplace.problem.formats import convert
from gnnplace.problem.formats.chakra import _read_message_attribute
from gnnplace.problem.formats.protobuf import WireMessage
from tests.problem.formats.schemas import CHAKRA, classes

PROTO = classes("chakra_subset", CHAKRA)
NAMES = ("INVALID_NODE", "METADATA_NODE", "", "", "COMP_NODE", "COMM_SEND_NODE")


def size_of(size):
    return [{"name": "tensor_size", "int64_val": size}]


def nodes():
    """Two ops, what sends between them, and one more with flops in place of a time."""
    shapes = {
        "shapes": "[[8, 16], [[4], [2]]]",
        "types": '["Tensor(float)", "List[Tensor(int64), Tensor(bool)]"]',
    }
    return [
        {"id": 7, "name": "a", "type": 4, "duration_micros": 30, "outputs": shapes},
        {"id": 8, "name": "send", "type": 5, "data_deps": [7], "duration_micros": 5},
        {
            "id": 9,
            "name": "b",
            "type": 4,
            "data_deps": [8],
            "attr": [{"name": "seconds", "double_val": 2.5e-6}, *size_of(640)],
        },
        {
            "id": 10,
            "name": "c",
            "type": 4,
            "data_deps": [9, 7],
            "attr": [{"name": "num_ops", "int64_val": 10**12}, *size_of(64)],
        },
    ]


def binary(given):
    written = [
        PROTO["GlobalMetadata"](version="0.0.4"),
        *(PROTO["Node"](**one) for one in given),
    ]
    parts = [one.SerializeToString() for one in written]
    assert all(len(one) < 128 * 128 for one in parts)
    sizes = [
        bytes([len(p)] if len(p) < 128 else [len(p) & 127 | 128, len(p) >> 7])
        for p in parts
    ]
    return b"".join(size + part for size, part in zip(sizes, parts, strict=True))


def lines(given):
    out = ['{"version": "0.0.4"}']
    for one in given:
        text = json_format.MessageToJson(
            PROTO["Node"](**one), preserving_proto_field_name=True, indent=None
        )
        out.append(
            text.replace(f'"type": {one["type"]}', f'"type": "{NAMES[one["type"]]}"')
        )
    return "\n".join(out).encode()


def indented(given):
    """As Chakra's jsonizer writes traces: keys in camel case, messages behind each other."""
    messages = [
        PROTO["GlobalMetadata"](version="0.0.4"),
        *(PROTO["Node"](**one) for one in given),
    ]
    text = "".join(json_format.MessageToJson(message) for message in messages)
    return re.sub(
        r'"type": (\d)', lambda match: f'"type": "{NAMES[int(match[1])]}"', text
    ).encode()


def as_numbers(given):
    """With types as numbers, and the Python lists that Chakra's converter writes as text."""
    rows = [{"version": "0.0.4"}]
    for one in given:
        row = dict(one)
        if "outputs" in row:
            row["outputs"] = {
                key: str(json.loads(text)) for key, text in row["outputs"].items()
            }
        rows.append(row)
    return "\n".join(map(json.dumps, rows)).encode()


@pytest.mark.parametrize("write", [binary, lines, indented, as_numbers])
def test_compute_nodes_are_ops(tmp_path, write):
    path = tmp_path / "rank.0.et"
    path.write_bytes(write(nodes()))
    problem = convert(path, "chakra")
    assert problem.graph.names == ("a", "b", "c")
    expected = [30e-6, 2.5e-6, 1e12 / GPUS["v100"].rates["float32"]]
    assert problem.time["v100"].tolist() == pytest.approx(expected)
    assert problem.estimated.tolist() == [False, False, True]
    found = {
        (int(p), tuple(problem.graph.consumers(t).tolist())): problem.graph.size[t]
        for t, p in enumerate(problem.graph.producer)
    }
    assert found == {(0, (1, 2)): 8 * 16 * 4 + 4 * 8 + 2, (1, (2,)): 640.0}


def test_ranks_of_a_folder_are_one_graph(tmp_path):
    """A receive waits for its send; ops of one name are told apart, and so are ids of two ranks."""

    def message(number, kind, deps):
        told = [
            {"name": f"comm_{k}", "int64_val": v}
            for k, v in {"src": 0, "dst": 1, "tag": 4}.items()
        ]
        return {
            "id": number,
            "name": "p2p",
            "type": kind,
            "data_deps": deps,
            "attr": told,
        }

    def op(number, deps):
        mine = {
            "id": number,
            "name": "op",
            "type": 4,
            "data_deps": deps,
            "duration_micros": 3,
        }
        return mine | {"attr": size_of(number)}

    (tmp_path / "et").mkdir()
    ranks = [op(1, []), message(2, 5, [1])], [message(1, 6, []), op(2, [1]), op(3, [2])]
    for rank, given in enumerate(ranks):
        (tmp_path / "et" / f"rank.{rank}.et").write_bytes(binary(given))
    graph = convert(tmp_path / "et", "chakra").graph
    assert graph.names == ("op 1", "op 2 of rank 1", "op 3 of rank 1")
    found = [
        (p, graph.consumers(t).tolist()) for t, p in enumerate(graph.producer.tolist())
    ]
    assert found == [(0, [1]), (1, [2])]
    assert graph.size.tolist() == [1.0, 2.0]
    with pytest.raises(FormatError, match="holds no trace"):
        convert(tmp_path, "chakra")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"attr": [*size_of(3), {"name": "tensors", "string_val": "7"}]},
            "tensors: must be a list",
        ),
        (
            {"attr": [{"name": "tensors", "string_val": "[[-1, 2]]"}]},
            "tensors: -1: must be a whole",
        ),
        (
            {"attr": [{"name": "reads", "string_val": "{"}]},
            "reads: must be a list in JSON",
        ),
        ({"data_deps": [99]}, r"node\[id=9\].data_deps: there is no node 99"),
        (
            {"attr": size_of(3)},
            r"node\[id=9\].attr.time: missing; give time or time.v100",
        ),
        ({"attr": [], "duration_micros": 4}, r"node\[id=9\].attr.tensor_size: missing"),
    ],
)
def test_what_a_trace_lacks_is_named_by_its_key(tmp_path, change, said):
    given = nodes()
    given[2] |= change
    path = tmp_path / "rank.0.et"
    path.write_bytes(binary(given))
    with pytest.raises(FormatError, match=said):
        convert(path, "chakra")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"data_deps": ["x"]}, r"line 4: data_deps\[0\]"),
        ({"duration_micros": -1}, "line 4: duration_micros"),
        ({"attr": 3}, "line 4: attr"),
    ],
)
def test_a_malformed_message_is_named_by_its_key(tmp_path, change, said):
    path = tmp_path / "rank.0.json"
    rows = lines(nodes()).decode().splitlines()
    rows[3] = json.dumps(json.loads(rows[3]) | change)
    path.write_text("\n".join(rows))
    with pytest.raises(FormatError, match=said):
        convert(path, "chakra")


@pytest.mark.parametrize(
    "data", [b"\x05abc", b'{"version": "1"}\nnothing', b"", b'{"a": 1}']
)
def test_what_is_no_trace_is_one_line(tmp_path, data):
    path = tmp_path / "rank.0.et"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"cut off|no JSON message|nodes: none"):
        convert(path, "chakra")


@pytest.mark.parametrize("write", [binary, lines, indented, as_numbers])
def test_an_op_below_a_microsecond_takes_no_time(tmp_path, write):
    """Protobuf writes no zeros; in JSON they may stand there."""

    def op(number, micros, deps=()):
        return {
            "id": number,
            "name": f"op{number}",
            "type": 4,
            "duration_micros": micros,
            "data_deps": list(deps),
            "attr": size_of(100),
        }

    path = tmp_path / "rank.0.et"
    path.write_bytes(write([op(1, 0), op(2, 10, [1])]))
    problem = convert(path, "chakra")
    assert problem.time["v100"].tolist() == [0.0, 1e-5]
    assert problem.graph.size.tolist() == [100.0]
    assert not problem.estimated.any()


def test_a_binary_trace_may_begin_like_json(tmp_path):
    """The metadata's length is a brace where it has 123 bytes."""
    (metadata, *messages) = [PROTO["GlobalMetadata"](version="0" * 121)] + [
        PROTO["Node"](**one) for one in nodes()
    ]
    parts = [one.SerializeToString() for one in (metadata, *messages)]
    sizes = [
        bytes([len(p)] if len(p) < 128 else [len(p) & 127 | 128, len(p) >> 7])
        for p in parts
    ]
    path = tmp_path / "rank.0.et"
    path.write_bytes(
        b"".join(size + part for size, part in zip(sizes, parts, strict=True))
    )
    assert path.read_bytes()[:1] == b"{"
    assert convert(path, "chakra").num_ops == 3


def attribute(field, wire, data):
    """A binary `AttributeProto` of one value under the name `tensor_size`."""
    return b"\x0a\x0btensor_size" + bytes([field << 3 | wire]) + data


@pytest.mark.parametrize(
    ("field", "wire", "data"),
    [
        (5, 5, struct.pack("<f", 100.0)),
        (7, 0, b"\x64"),
        (9, 0, b"\x64"),
        (11, 0, b"\x64"),
        (13, 0, b"\x64"),
        (15, 0, b"\xc8\x01"),
    ],
)
def test_every_scalar_of_an_attribute_is_read(field, wire, data):
    message = WireMessage(attribute(field, wire, data))
    assert _read_message_attribute(message) == 100


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("long int", 8),
        ("c10::BFloat16", 2),
        ("unsigned char", 1),
        ("c10::complex<float>", 8),
        ("c10::Float8_e4m3fn", 1),
        ("short", 2),
        ("nullptr (uninitialized)", 0),
    ],
)
def test_elements_have_the_bytes_of_their_types(tmp_path, kind, size):
    first, second = nodes()[0], nodes()[2] | {"data_deps": [7]}
    first["outputs"] = {"shapes": "[[6]]", "types": f'["Tensor({kind})"]'}
    path = tmp_path / "rank.0.et"
    path.write_bytes(binary([first, second]))
    assert convert(path, "chakra").graph.size.tolist() == [6.0 * size]


def test_a_type_that_is_not_known_is_named(tmp_path):
    first, second = nodes()[0], nodes()[2] | {"data_deps": [7]}
    first["outputs"] = {"shapes": "[[6]]", "types": '["Tensor(posit16)"]'}
    path = tmp_path / "rank.0.et"
    path.write_bytes(binary([first, second]))
    with pytest.raises(FormatError, match="outputs: posit16 is no type of elements"):
        convert(path, "chakra")
