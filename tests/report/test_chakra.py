"""Chakra's traces: read by protobuf with the schema's names, and the step that was simulated."""

from __future__ import annotations

import json

import numpy as np
import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message_factory,
)

import gnnplace
from gnnplace.errors import InputError
from gnnplace.placers import contract
from gnnplace.problem.placement import Placement
from gnnplace.report.chakra import write_chakra

KINDS = {"uint64": 4, "int32": 5, "int64": 3, "double": 1, "bool": 8, "string": 9}
SCHEMA = {  # the part of et_def.proto that is written: fields, and whether they are repeated
    "AttributeProto": {
        "name": "string",
        **{
            f"{kind}_val": kind
            for kind in ("double", "int32", "int64", "bool", "string")
        },
    },
    "GlobalMetadata": {"version": "string", "attr": "*AttributeProto"},
    "Node": {
        "id": "uint64",
        "name": "string",
        "type": "NodeType",
        "ctrl_deps": "*uint64",
        "data_deps": "*uint64",
        "start_time_micros": "uint64",
        "duration_micros": "uint64",
        "attr": "*AttributeProto",
    },
}
NODES = {"INVALID_NODE": 0, "COMP_NODE": 4, "COMM_SEND_NODE": 5, "COMM_RECV_NODE": 6}


@pytest.fixture(scope="module")
def messages():
    file = descriptor_pb2.FileDescriptorProto(
        name="et.proto", package="et", syntax="proto3"
    )
    kinds = file.enum_type.add(name="NodeType")
    for name, number in NODES.items():
        kinds.value.add(name=name, number=number)
    for name, fields in SCHEMA.items():
        made = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields.items(), 1):
            plain = kind.removeprefix("*")
            own = made.field.add(
                name=field, number=number, label=3 if kind != plain else 1
            )
            own.type = KINDS.get(plain, 14 if plain == "NodeType" else 11)
            if plain not in KINDS:
                own.type_name = f".et.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClassesForFiles(["et.proto"], pool)


def simulated():
    problem = contract.training_chain()
    placement = gnnplace.place(problem, placer="round-robin", budget=0).placement
    return problem, gnnplace.simulate(problem, placement)


def test_each_device_has_a_trace_that_protobuf_reads(messages, tmp_path):
    """Every op once; a receive for every send; what an op waits for is on its own device."""
    problem, simulation = simulated()
    nodes, tags = [], {"COMM_SEND_NODE": [], "COMM_RECV_NODE": []}
    for path in write_chakra(tmp_path / "traces", problem, simulation):
        head, *lines = path.read_text().splitlines()
        assert json_format.Parse(head, messages["et.GlobalMetadata"]()).version
        mine = [json_format.Parse(line, messages["et.Node"]()) for line in lines]
        known = {node.id for node in mine}
        assert all(
            known.issuperset((*node.data_deps, *node.ctrl_deps)) for node in mine
        )
        nodes += mine
        for line in map(json.loads, lines):
            values = {
                a["name"]: v for a in line["attr"] for k, v in a.items() if k != "name"
            }
            if line["type"] in tags:
                tags[line["type"]].append(
                    [values[f"comm_{n}"] for n in ("src", "dst", "tag")]
                )
    computed = [node for node in nodes if node.type == NODES["COMP_NODE"]]
    assert sorted(node.name for node in computed) == sorted(problem.graph.names)
    assert len({node.id for node in nodes}) == len(nodes)
    assert sorted(tags["COMM_SEND_NODE"]) == sorted(tags["COMM_RECV_NODE"])
    assert len(tags["COMM_SEND_NODE"]) == len(simulation.transfers.tensor) > 0
    spent = sum(node.attr[1].double_val for node in computed)
    assert spent == pytest.approx(float((simulation.finish - simulation.start).sum()))


def test_traces_read_back_are_the_graph_that_was_written(tmp_path):
    """Names, edges, bytes, state, what is together and times, so that the step is the same."""
    problem, simulation = simulated()
    write_chakra(tmp_path / "traces", problem, simulation)
    again = gnnplace.convert(tmp_path / "traces", "chakra", problem.cluster)
    assert again.graph.names == problem.graph.names
    for mine, theirs in zip(again.graph.edges, problem.graph.edges, strict=True):
        assert mine.tolist() == theirs.tolist()
    assert again.graph.size.tolist() == problem.graph.size.tolist()
    assert again.state.tolist() == problem.state.tolist()
    assert again.phase.tolist() == problem.phase.tolist()
    assert again.unit_of.tolist() == problem.unit_of.tolist()
    placed = np.arange(problem.num_ops), simulation.device
    kinds = [d.kind for d in problem.cluster.devices]
    where = [problem.time[kinds[d]][op] for op, d in zip(*placed, strict=True)]
    assert [again.time[kinds[d]][op] for op, d in zip(*placed, strict=True)] == where
    order = Placement(simulation.device)
    step = gnnplace.simulate(again, order).step_time
    assert step == gnnplace.simulate(problem, order).step_time


def test_what_cannot_run_has_no_trace(tmp_path):
    """One line, and no folder."""
    problem, simulation = simulated()
    few = contract.training_chain()
    device = simulation.device * 0
    device[0] = 1  # apart from the op that shares its parameter
    broken = gnnplace.simulate(few, Placement(device))
    with pytest.raises(InputError, match="chakra: the placement cannot run"):
        write_chakra(tmp_path / "traces", problem, broken)
    assert not (tmp_path / "traces").exists()
