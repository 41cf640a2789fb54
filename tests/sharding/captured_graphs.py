"""Small captured models, by hand."""

from __future__ import annotations

from gnnplace.sharding.captured.layout import (
    CALL,
    PARAMETER,
    Mesh,
    Shape,
    SplitGraph,
    SplitOp,
    SplitValue,
    mesh_configurations,
)
from gnnplace.sharding.captured.problem import CapturedProblem


def perceptron(batch: int = 8, width: int = 4, hidden: int = 16) -> SplitGraph:
    """x -> up -> relu -> down, + x."""
    values = (
        SplitValue((batch, width), 4, False, "input"),
        SplitValue((hidden, width), 4, True, PARAMETER, "up"),
        SplitValue((batch, hidden), 4, True, CALL),
        SplitValue((batch, hidden), 4, True, CALL),
        SplitValue((width, hidden), 4, True, PARAMETER, "down"),
        SplitValue((batch, width), 4, True, CALL),
        SplitValue((batch, width), 4, True, CALL),
    )

    def product(n: int, m: int) -> Shape:
        return Shape(
            (("0", batch), ("in", n), ("out", m)),
            (("0", "in"), ("out", "in")),
            (("0", "out"),),
            2.0 * batch * n * m,
        )

    def each(n: int, inputs: int) -> Shape:
        return Shape(
            (("0", batch), ("1", n)), (("0", "1"),) * inputs, (("0", "1"),), 0.0
        )

    ops = (
        SplitOp("up", "linear", product(width, hidden), (0, 1), (2,), "0"),
        SplitOp("relu", "elementwise", each(hidden, 1), (2,), (3,), "0"),
        SplitOp("down", "linear", product(hidden, width), (3, 4), (5,), "0"),
        SplitOp("add", "elementwise", each(width, 2), (0, 5), (6,), "0"),
    )
    return SplitGraph("perceptron", ops, values)


def shared(batch: int = 8, width: int = 4) -> SplitGraph:
    """A table read twice, and a value with three readers."""
    values = (
        SplitValue((batch, width), 4, False, "input"),
        SplitValue((width, width), 4, True, PARAMETER, "table"),
        SplitValue((batch, width), 4, True, CALL),
        SplitValue((batch, width), 4, True, CALL),
        SplitValue((batch, width), 4, True, CALL),
    )
    product = Shape(
        (("0", batch), ("in", width), ("out", width)),
        (("0", "in"), ("out", "in")),
        (("0", "out"),),
        2.0 * batch * width**2,
    )
    add = Shape((("0", batch), ("1", width)), (("0", "1"),) * 3, (("0", "1"),), 0.0)
    ops = (
        SplitOp("first", "linear", product, (0, 1), (2,), "0"),
        SplitOp("second", "linear", product, (2, 1), (3,), "0"),
        SplitOp("sum", "elementwise", add, (2, 3, 2), (4,), "0"),
    )
    return SplitGraph("shared", ops, values)


def batch_configuration(op: SplitOp, mesh: Mesh) -> int:
    """Index of the configuration of data parallelism: the batch over all devices, else whole."""
    options = mesh_configurations(op.shape, mesh)
    wanted = (op.batch,) * len(mesh)
    return options.index(wanted) if wanted in options else 0


def captured_data_parallel(captured: CapturedProblem) -> tuple[int, ...]:
    """Data parallelism: the batch over all devices, parameters whole everywhere."""
    mesh = captured.mesh
    chosen = [batch_configuration(op, mesh) for op in captured.graph.ops]
    for value, states in captured.shared.items():
        if captured.graph.values[value].source == PARAMETER:
            whole = (-1,) * len(mesh)
            chosen.append(
                states.index((whole, whole)) if (whole, whole) in states else 0
            )
        else:
            op, slot = captured.readers[value][0]
            port = captured.ports(op, slot)[chosen[op]]
            chosen.append(states.index(port))
    return tuple(chosen)
