"""Programs written by hand: two towers of linear layers, forward, backward and update."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gnnplace.problem import Problem, build_problem
from gnnplace.problem.cluster import Cluster, Device, Link
from gnnplace.problem.placement import Placement, sequence_from_order
from gnnplace.tracing.program.operations import sgd_update
from gnnplace.tracing.program.program import (
    Program,
    ProgramInput,
    ProgramOp,
    Ref,
    value_info,
)
from gnnplace.tracing.program.structure import program_graph

aten = torch.ops.aten


class ProgramBuilder:
    """Runs each op on example tensors while it notes it down."""

    def __init__(self, name: str = "hand-made", seed: int = 0) -> None:
        self.name = name
        self.generator = torch.Generator().manual_seed(seed)
        self.ops: list[ProgramOp] = []
        self.inputs: dict[str, ProgramInput] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        self.initial: dict[str, torch.Tensor] = {}
        self.phase = "forward"
        self.readers: dict[str, list[str]] = {}
        self.gradients: dict[str, str] = {}
        self.loss: str | None = None

    def input(self, source: str, kind: str, *shape: int) -> str:
        """Its value name is its kind and source, as in captured programs."""
        name = f"{kind}.{source}"
        tensor = (
            torch.randn(*shape, generator=self.generator) / max(shape[-1], 1) ** 0.5
        )
        self.inputs[name] = ProgramInput(kind, source, value_info(tensor))
        self.tensors[name] = self.initial[name] = tensor
        return name

    def op(self, name: str, target: Any, *args: Any, **kwargs: Any) -> str:
        """Args that are names of values become references; the result is named like the op."""

        def look(a: Any, deref: bool) -> Any:
            if isinstance(a, list):
                return [look(x, deref) for x in a]
            if isinstance(a, str) and a in self.tensors:
                return self.tensors[a] if deref else Ref(a)
            return a

        if self.phase != "update":
            self.tensors[name] = target(*look(list(args), True), **kwargs)
        result = () if self.phase == "update" else (name,)
        after = tuple(self.readers.get(args[0], ())) if self.phase == "update" else ()
        op = ProgramOp(
            name,
            target,
            tuple(look(list(args), False)),
            kwargs,
            result,
            self.phase,
            None,
            after=after,
            view=target in (aten.t.default, aten.transpose.int, aten.expand.default),
        )
        self.ops.append(op)
        for read in op.reads:
            self.readers.setdefault(read, []).append(name)
        return name

    def program(self) -> Program:
        values = {name: value_info(tensor) for name, tensor in self.tensors.items()}
        return Program(
            name=self.name,
            ops=tuple(self.ops),
            inputs=self.inputs,
            values=values,
            loss=self.loss,
            gradients=self.gradients,
            initial=self.initial,
        )


def two_towers(
    width: int = 8, batch: int = 4, layers: int = 2, towers: int = 2
) -> Program:
    """Towers of linear layers with relu; the loss is the mean of the sum of their outputs."""
    b = ProgramBuilder()
    tops, names = [], {}
    for t in range(towers):
        h = b.input(f"x{t}", "input", batch, width)
        for k in range(layers):
            w = b.input(f"w{t}.{k}", "parameter", width, width)
            wt = b.op(f"t{t}.{k}", aten.t.default, w)
            z = b.op(f"mm{t}.{k}", aten.mm.default, h, wt)
            names[t, k] = (h, w, z)
            h = b.op(f"relu{t}.{k}", aten.relu.default, z)
        tops.append(h)
    total = tops[0]
    for t, top in enumerate(tops[1:]):
        total = b.op(f"add{t}", aten.add.Tensor, total, top)
    b.loss = b.op("loss", aten.mean.default, total)
    _backward(b, names, total, towers, layers)
    b.phase = "update"
    for t in range(towers):
        for k in range(layers):
            b.op(
                f"update{t}.{k}",
                sgd_update,
                f"parameter.w{t}.{k}",
                [f"gw{t}.{k}"],
                0.1,
                0.0,
            )
    return b.program()


def _backward(
    b: ProgramBuilder, names: dict, total: str, towers: int, layers: int
) -> None:
    b.phase = "backward"
    ones = b.op("ones", aten.full_like.default, total, 1.0 / b.tensors[total].numel())
    for t in range(towers):
        g = ones
        for k in reversed(range(layers)):
            h, w, z = names[t, k]
            g = b.op(f"grelu{t}.{k}", aten.threshold_backward.default, g, z, 0)
            gt = b.op(f"gt{t}.{k}", aten.t.default, g)
            b.gradients[f"w{t}.{k}"] = b.op(f"gw{t}.{k}", aten.mm.default, gt, h)
            if k:
                g = b.op(f"gh{t}.{k}", aten.mm.default, g, w)


def cpu_cluster(
    num_devices: int, latency: float = 5e-6, bandwidth: float = 5e9
) -> Cluster:
    devices = tuple(
        Device(name=f"cpu:{d}", kind="cpu", memory=1e12) for d in range(num_devices)
    )
    links = tuple(
        Link(
            source=a.name,
            target=b.name,
            latency=latency,
            bandwidth=bandwidth,
            sender_busy=True,
        )
        for a in devices
        for b in devices
        if a is not b
    )
    return Cluster(devices, links)


def problem_of(program: Program, num_devices: int) -> Problem:
    """Every program op an op of the problem, of 10 microseconds."""
    about = program_graph(program)
    return build_problem(
        program.name,
        about.graph,
        cpu_cluster(num_devices),
        {"cpu": np.full(len(program.ops), 1e-5)},
        phase=about.phase,
        colocate=about.colocate,
        state=about.state,
        microbatches=program.microbatches,
    )


def random_placement(problem: Problem, seed: int, shuffle: bool = True) -> Placement:
    """Random devices for the units, and a random topological order."""
    rng = np.random.default_rng(seed)
    device = rng.integers(problem.num_devices, size=problem.num_units)[problem.unit_of]
    graph, n = problem.graph, problem.num_ops
    waiting = np.bincount(graph.successor, minlength=n)
    ready, order = [i for i in range(n) if waiting[i] == 0], []
    while ready:
        i = ready.pop(int(rng.integers(len(ready))) if shuffle else 0)
        order.append(i)
        for j in graph.successor[
            graph.successor_offset[i] : graph.successor_offset[i + 1]
        ]:
            waiting[j] -= 1
            if waiting[j] == 0:
                ready.append(int(j))
    device = device.astype(np.int32)
    return Placement(
        device,
        sequence_from_order(device, np.array(order, np.int32), problem.num_devices),
    )


def random_program(seed: int, num_ops: int = 25) -> Program:
    """A random DAG of ops on square matrices, some transposed, with parameters that change."""
    rng = np.random.default_rng(seed)
    b = ProgramBuilder(f"random {seed}", seed)
    values = [b.input(f"x{i}", "input", 6, 6) for i in range(2)]
    parameters = [b.input(f"p{i}", "parameter", 6, 6) for i in range(3)]
    for i in range(num_ops):
        a, c = (values[int(rng.integers(len(values)))] for _ in range(2))
        p = parameters[int(rng.integers(3))]
        kind = int(rng.integers(6))
        made = [
            (aten.mm.default, a, c),
            (aten.add.Tensor, a, c),
            (aten.t.default, a),
            (aten.tanh.default, a),
            (aten.mm.default, a, p),
            (aten.cat.default, [a, c]),
        ][kind]
        name = b.op(f"op{i}", *made)
        if kind == 5:
            name = b.op(f"half{i}", aten.slice.Tensor, name, 0, 3, 9)
        values.append(name)
    b.loss = b.op("loss", aten.mean.default, values[-1])
    b.phase = "backward"
    for i in range(3):
        b.gradients[f"p{i}"] = b.op(f"g{i}", aten.mul.Tensor, values[-1 - i], 0.5)
    b.phase = "update"
    for i in range(3):
        b.op(f"update{i}", sgd_update, f"parameter.p{i}", [f"g{i}"], 0.1, 0.0)
    return b.program()
