"""Messages of public protobuf schemas, written by protobuf itself; subsets that keep numbers."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SCALARS = {"int64": 3, "uint64": 4, "int32": 5, "string": 9, "double": 1, "enum": 5}
ONNX = {
    "ModelProto": {"ir_version": (1, "int64"), "graph": (7, "GraphProto")},
    "GraphProto": {
        "node": (1, "*NodeProto"),
        "name": (2, "string"),
        "initializer": (5, "*TensorProto"),
        "input": (11, "*ValueInfoProto"),
        "output": (12, "*ValueInfoProto"),
        "value_info": (13, "*ValueInfoProto"),
    },
    "NodeProto": {
        "input": (1, "*string"),
        "output": (2, "*string"),
        "name": (3, "string"),
        "op_type": (4, "string"),
    },
    "TensorProto": {
        "dims": (1, "*int64"),
        "data_type": (2, "int32"),
        "name": (8, "string"),
    },
    "ValueInfoProto": {"name": (1, "string"), "type": (2, "TypeProto")},
    "TypeProto": {"tensor_type": (1, "TensorType")},
    "TensorType": {"elem_type": (1, "int32"), "shape": (2, "TensorShapeProto")},
    "TensorShapeProto": {"dim": (1, "*Dimension")},
    "Dimension": {"dim_value": (1, "int64"), "dim_param": (2, "string")},
}
CHAKRA = {
    "GlobalMetadata": {"version": (1, "string")},
    "AttributeProto": {
        "name": (1, "string"),
        "double_val": (3, "double"),
        "int64_val": (9, "int64"),
        "string_val": (29, "string"),
    },
    "IOInfo": {
        "values": (1, "string"),
        "shapes": (2, "string"),
        "types": (3, "string"),
    },
    "Node": {
        "id": (1, "uint64"),
        "name": (2, "string"),
        "type": (3, "enum"),
        "ctrl_deps": (4, "*uint64"),
        "data_deps": (5, "*uint64"),
        "duration_micros": (7, "uint64"),
        "outputs": (9, "IOInfo"),
        "attr": (10, "*AttributeProto"),
    },
}


def classes(
    package: str, schema: dict[str, dict[str, tuple[int, str]]]
) -> dict[str, Any]:
    """A class for each message of a schema."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    for name, keys in schema.items():
        message = file.message_type.add(name=name)
        for key, (number, kind) in keys.items():
            plain, label = kind.lstrip("*"), 3 if kind[0] == "*" else 1
            one = message.field.add(name=key, number=number, label=label)
            one.type = SCALARS.get(plain, 11)
            if plain not in SCALARS:
                one.type_name = f".{package}.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindFileByName(f"{package}.proto").message_types_by_name
    return {name: message_factory.GetMessageClass(one) for name, one in found.items()}
