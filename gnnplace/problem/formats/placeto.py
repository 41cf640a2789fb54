"""Reader of the graphs of Placeto (Addanki et al., 2019) and Wang et al. (2022), as JSON.

Both publish a graph as ``input.pkl``, a pickle of TensorFlow's messages. Nothing here loads a
pickle. ``docs/howto/graphs.md`` has the script that writes its contents as JSON: ``optim_mg`` (the
meta graph), ``ungrouped_mapping`` (the group of each op), and what was measured: ``step_stats``
with ``op_perf``, or ``cost_d`` (microseconds) with ``out_d`` (bytes of each output). Messages have
the names of their fields in either of protobuf's spellings, 64-bit numbers as numbers or text.

As in their simulator (``sim/tf_placement_sim`` of bwhub/Graph_Traversal_Order_in_Device_Placement):

* An op takes what the devices named ``...all`` measured, summed: ``all_end_rel_micros`` less
  ``op_start_rel_micros``. Its device is busy 5.7 microseconds longer, unless it takes nothing.
* An output has the bytes of ``op_perf``; where ``step_stats`` knows the op's first output, the op
  has that one alone. An output that is not known has none. A control input carries the first
  output. Of several inputs from one op the last counts.
* All ops of a group are on one device.
* Three devices (``--n-devs`` of their configuration), 7.6 GB/s, one bus from each device to all
  others, 25 microseconds a transfer. Memory is without limit.

Three things differ: their bus reaches all devices with one transfer, here each device takes one;
their 25 microseconds keep the bus and here the receiver waiting; a consumer on another device waits
for the 5.7 microseconds too. All ops are forward ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import AliasChoices, AliasGenerator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from gnnplace.errors import InputError
from gnnplace.files import MOST, parse, read_json, within
from gnnplace.graph import ComputationGraph
from gnnplace.problem import Cluster, Device, Link, Problem, build_problem

MICROSECOND = 1e-6
LAUNCH = 5.7  # microseconds that a device is busy after an op
LATENCY = 25e-6  # seconds
BANDWIDTH = 7.6e9  # bytes a second
NUM_DEVICES = 3
ALL_STREAMS = "all"  # A part of the name of the device whose times count
NonNegative = Annotated[float, Field(ge=0, le=MOST)]


def _spellings(field: str) -> AliasChoices:
    """Return how a field is spelled in protobuf's JSON: as in its message, or in camel case."""
    return AliasChoices(field, to_camel(field))


class _ProtobufMessage(BaseModel):
    """A message of TensorFlow's, with other fields beside those that are read."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,
        alias_generator=AliasGenerator(validation_alias=_spellings),
    )


class GraphNode(_ProtobufMessage):
    """An op, with its inputs as ``OP``, ``OP:OUTPUT`` or ``^OP``."""

    name: Annotated[str, Field(min_length=1)]
    input: list[str] = []


class GraphDef(_ProtobufMessage):
    """The ops of a graph."""

    node: Annotated[list[GraphNode], Field(min_length=1)]


class MetaGraph(_ProtobufMessage):
    """The graph that was measured."""

    graph_def: GraphDef


class AllocationDescription(_ProtobufMessage):
    """The allocation for an output."""

    requested_bytes: NonNegative = 0.0


class TensorDescription(_ProtobufMessage):
    """An output."""

    allocation_description: AllocationDescription = AllocationDescription()


class NodeOutput(_ProtobufMessage):
    """An output that was measured."""

    tensor_description: TensorDescription = TensorDescription()


class NodeStats(_ProtobufMessage):
    """One run of an op, in microseconds from where it was scheduled."""

    node_name: str
    op_start_rel_micros: float = 0.0
    all_end_rel_micros: float = 0.0
    output: list[NodeOutput] = []


class DeviceStats(_ProtobufMessage):
    """The measurements of a device."""

    device: str
    node_stats: list[NodeStats] = []


class StepStats(_ProtobufMessage):
    """The measurements of a step."""

    dev_stats: list[DeviceStats] = []


class OpMemory(_ProtobufMessage):
    """Bytes of an op's outputs."""

    output_memory: list[NonNegative] = []


class OpPerformance(_ProtobufMessage):
    """An op's costs by TensorFlow's cost model."""

    node: str
    op_memory: OpMemory = OpMemory()


class InputFile(_ProtobufMessage):
    """The contents of an ``input.pkl``."""

    optim_mg: MetaGraph
    ungrouped_mapping: dict[str, str | int]
    step_stats: StepStats | None = None
    op_perf: list[OpPerformance] = []
    cost_d: dict[str, NonNegative] | None = None
    out_d: dict[str, list[NonNegative]] = {}


def read_placeto(path: str | Path, cluster: Cluster | None) -> Problem:
    """Read a graph as a problem on three devices, or on the cluster that is given.

    Raises:
        FormatError: Naming the file, the key path and the fault.
    """
    file = parse(InputFile, read_json(path), str(path))
    with within(path):
        return _problem(Path(path).stem, file, cluster)


def three_devices() -> Cluster:
    """Return the devices of their simulator, each with one bus to all others."""
    names = [f"gpu:{index}" for index in range(NUM_DEVICES)]
    links = []
    for source in names:
        for target in names:
            if source != target:
                links.append(
                    Link(
                        source=source,
                        target=target,
                        latency=LATENCY,
                        bandwidth=BANDWIDTH,
                        channel=f"bus of {source}",
                    )
                )
    devices = tuple(Device(name=name, kind="gpu", memory=MOST) for name in names)
    return Cluster(devices, tuple(links), "placeto")


def _problem(name: str, file: InputFile, cluster: Cluster | None) -> Problem:
    """Return the problem of a file's contents."""
    names = [node.name for node in file.optim_mg.graph_def.node]
    for k, op in enumerate(names):
        if op not in file.ungrouped_mapping:
            raise InputError(
                f"ungrouped_mapping: has no group of the op {op!r} (optim_mg.graph_def.node[{k}])"
            )
    micros = _costs(file)
    seconds = np.zeros(len(names))
    for k, op in enumerate(names):
        if micros.get(op, 0.0) > 0.0:
            seconds[k] = (micros[op] + LAUNCH) * MICROSECOND
    given_cluster = cluster is not None
    cluster = cluster or three_devices()
    return build_problem(
        name,
        _graph(file, names),
        cluster,
        {kind: seconds for kind in cluster.kinds},
        colocate=tuple(f"group:{file.ungrouped_mapping[op]}" for op in names),
        estimated=np.full(len(names), given_cluster),
    )


def _costs(file: InputFile) -> Mapping[str, float]:
    """Return the microseconds of each op that was measured.

    Raises:
        InputError: There are no measurements, or an op ends before it starts.
    """
    if file.step_stats is None:
        if file.cost_d is None:
            raise InputError(
                "step_stats: missing; give it with op_perf, or cost_d with out_d"
            )
        return file.cost_d
    micros: dict[str, float] = {}
    for k, device in enumerate(file.step_stats.dev_stats):
        if ALL_STREAMS not in device.device:
            continue
        for i, node in enumerate(device.node_stats):
            taken = node.all_end_rel_micros - node.op_start_rel_micros
            if taken < 0.0:
                raise InputError(
                    f"step_stats.dev_stats[{k}].node_stats[{i}]: ends {-taken:g} microseconds "
                    "before it starts"
                )
            op = node.node_name.split(":")[0]
            micros[op] = micros.get(op, 0.0) + taken
    if not micros:
        raise InputError(
            f"step_stats.dev_stats: none is of a device with {ALL_STREAMS!r} in its name, which "
            "times are read from"
        )
    return micros


def _output_sizes(file: InputFile) -> Mapping[str, list[float]]:
    """Return the bytes of each op's outputs, as far as they are known."""
    if file.step_stats is None:
        return file.out_d
    sizes = {op.node: op.op_memory.output_memory for op in file.op_perf}
    for device in file.step_stats.dev_stats:
        for node in device.node_stats:
            if node.output:
                described = node.output[0].tensor_description.allocation_description
                sizes[node.node_name] = [described.requested_bytes]
    return sizes


def _graph(file: InputFile, names: list[str]) -> ComputationGraph:
    """Return the graph of ops; an output is one tensor, whoever reads it."""
    sizes = _output_sizes(file)
    index = {op: k for k, op in enumerate(names)}
    readers: dict[tuple[int, int], list[int]] = {}
    for k, node in enumerate(file.optim_mg.graph_def.node):
        read: dict[str, int] = {}
        for producer, output in _inputs(node, k):
            if producer not in index:
                raise InputError(
                    f"optim_mg.graph_def.node[{k}].input: no op is called {producer!r}"
                )
            read[producer] = output  # the last input from an op counts
        for producer, output in read.items():
            readers.setdefault((index[producer], output), []).append(k)
    tensors = []
    for (producer_index, output), consumers in sorted(readers.items()):
        outputs = sizes.get(names[producer_index], [])
        if output < len(outputs):
            size = outputs[output]
        else:
            size = 0.0
        tensors.append((producer_index, size, consumers))
    return ComputationGraph.from_tensors(names, tensors)


def _inputs(node: GraphNode, k: int) -> Iterator[tuple[str, int]]:
    """Yield the producer of each input and the number of its output; 0 for a control input."""
    for text in node.input:
        producer, _, output = text.removeprefix("^").partition(":")
        if output and not output.isdecimal():
            raise InputError(
                f"optim_mg.graph_def.node[{k}].input: {text!r}: must be OP, OP:OUTPUT or ^OP"
            )
        yield producer, int(output or 0)
