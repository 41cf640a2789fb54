"""ONNX models (``onnx/onnx.proto``, IR 3 to 14, opsets 1 to 28) as problems: the forward pass.

A node is an op; a value that a node makes is a tensor. Times are a kind's roofline
(``attributed``), marked ``estimated``, of the operations that `operators` counts and the bytes
that a node reads and writes. Calls of functions of the file are replaced by their bodies (ops
"3.0", "3.1" of node 3). `If`, `Loop` and `Scan` are one op each, which reads what its subgraphs
read and takes what they take: a loop as often as it runs, an `If` its dearest branch.

Initializers and `Constant` nodes are state of the op that reads them, in the bytes that the file
has (`scope`). Ops that share one of more than 1 KiB share a device; smaller ones, such as shapes
and scalars, are copied. Sizes of a graph's values must be in the file: PyTorch's exporter writes
them, and ``onnx.shape_inference`` adds them. In subgraphs and functions, where files often have
none, they are what the operators decide (`shapes`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from gnnplace.errors import ChangedWarning, FormatError, InputError
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.formats.attributed import GivenOp, make_problem
from gnnplace.problem.formats.onnx.messages import (
    Graph,
    Weight,
    read_functions,
    read_graph,
)
from gnnplace.problem.formats.onnx.scope import Notes, Scope
from gnnplace.problem.formats.onnx.work import Work
from gnnplace.problem.formats.protobuf import WireMessage
from gnnplace.problem.problem import Problem

GRAPH, TRAINING_INFO = 7, 20  # Field numbers of a model
MAX_COPIED = 1024  # bytes of a constant that every reader has a copy of


@dataclass(frozen=True)
class OnnxOp(GivenOp):
    """An op that takes what its node and its subgraphs compute.

    Attributes:
        work: What it computes.
    """

    work: Work

    def seconds(self, kind: str) -> tuple[float, bool]:
        """Return the roofline's seconds on a kind of device; they are estimated."""
        return self.work.seconds(kind), True


def read_onnx(path: str | Path, cluster: Cluster | None = None) -> Problem:
    """Read a model's forward pass.

    Operators and loops that are not priced as the file says are named by a `ChangedWarning`.

    Raises:
        FormatError: The file is malformed or lacks sizes; names the key path and how to mend it.
    """
    notes = Notes()
    try:
        model = WireMessage(Path(path).read_bytes())
        graphs = model.messages(GRAPH)
        if graphs:
            graph = read_graph(graphs[0])
        else:
            graph = Graph(())
        if not graph.nodes:
            raise InputError("graph.node: missing; is it an ONNX model?")
        scope = Scope(graph, read_functions(model), notes)
        problem = _build_problem(Path(path).stem, scope, cluster)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None
    except InputError as error:
        raise FormatError(f"{path}: {_one_line(str(error))}") from None
    except RecursionError:
        raise FormatError(
            f"{path}: graphs within graphs, more than Python can follow"
        ) from None
    lines = [*notes.lines()]
    if model.messages(TRAINING_INFO):
        lines.append("training_info: not read; the problem is the forward pass")
    for line in lines:
        warnings.warn(f"{path}: {_one_line(line)}", ChangedWarning, stacklevel=3)
    return problem


def _one_line(text: str) -> str:
    """Return text without line breaks: names of values and operators may have some."""
    return "\\n".join(text.splitlines())


def _build_problem(name: str, scope: Scope, cluster: Cluster | None) -> Problem:
    from networkx.utils import UnionFind  # late: of this format alone

    nodes = scope.nodes
    producers = {
        value: k for k, node in enumerate(nodes) for value in node.outputs if value
    }
    consumers: dict[str, list[int]] = {}
    readers: dict[Weight, list[int]] = {}
    for k, node in enumerate(nodes):
        for value in dict.fromkeys(scope.reads(node)):
            if value in producers:
                consumers.setdefault(value, []).append(k)
        for weight in dict.fromkeys(scope.weights(node)):
            readers.setdefault(weight, []).append(k)

    classes = UnionFind(range(len(nodes)))
    for weight, sharing in readers.items():
        if weight.value.bytes > MAX_COPIED:
            classes.union(*sharing)
    sizes = {}
    for members in classes.to_sets():
        for root in (classes[min(members)],):
            sizes[root] = len(members)

    state = [0] * len(nodes)
    for weight, sharing in readers.items():
        state[sharing[0]] += weight.value.bytes
    ops: list[GivenOp] = []
    for k, node in enumerate(nodes):
        keys = {"state": float(state[k]), "module": node.kind}
        if sizes[classes[k]] > 1:
            keys["colocate"] = f"weights {classes[k]}"
        ops.append(
            OnnxOp(
                name=f"{node.label} {node.name or node.kind}",
                where=f"graph.node[{node.label}]",
                keys=keys,
                work=scope.work(node),
            )
        )
    tensors = [
        (producers[value], float(scope.value(value).bytes), sharing)
        for value, sharing in consumers.items()
    ]
    return make_problem(name, ops, tensors, cluster)
