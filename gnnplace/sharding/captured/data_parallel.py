"""What data parallelism costs as PyTorch's DDP does it, beside which splits of layers are judged.

Every device runs the whole step on its share of the batch, the largest share deciding, and the
gradients of all parameters are added up by one ring all-reduce (Patarasuk and Yuan, 2009). Nothing
else is exchanged: batch norms see their own share, and a call that no rule knows how to split needs
none, since whole examples go through it. What does not depend on the inputs is done everywhere.
"""

from __future__ import annotations

import math

from gnnplace.sharding.captured.calls import INPUT
from gnnplace.sharding.captured.layout import PARAMETER, SplitGraph
from gnnplace.sharding.captured.problem import CapturedProblem
from gnnplace.sharding.strategy import Parts


def ddp_parts(captured: CapturedProblem) -> Parts:
    """Seconds of a step of DDP by what they go to, and bytes a device."""
    graph, machine = captured.graph, captured.machine
    examples = batch_size(graph)
    devices = min(math.prod(captured.mesh), examples)  # the others have no example
    share, mine = math.ceil(examples / devices) / examples, depends_on_inputs(graph)
    compute = memory = 0.0
    for i in range(len(graph.ops)):
        seconds = float(captured.compute(i)[0])  # the first configuration splits nothing
        fixed = min(seconds, machine.overhead)
        compute += fixed + (seconds - fixed) * (share if mine[i] else 1.0)
        made = sum(graph.values[v].bytes for v in graph.ops[i].results)
        memory += 0.0 if graph.ops[i].shape.moves else made * (share if mine[i] else 1.0)
    parameters = [v for v in graph.values if v.source == PARAMETER]
    learned = sum(v.bytes for v in parameters if v.gradient)
    reduced = 2.0 * (devices - 1) / devices * learned / machine.bandwidth
    if machine.exchange is not None:
        reduced = machine.exchange.in_buckets(devices, learned)
    memory += sum(v.bytes * (machine.state if v.gradient else 1) for v in parameters)
    return Parts(compute, 0.0, reduced, 0.0, memory)


def batch_size(graph: SplitGraph) -> int:
    """Examples: positions along the first axis of the first input; 1 without inputs."""
    sizes = [v.shape[0] for v in graph.values if v.source == INPUT and v.shape]
    return sizes[0] if sizes else 1


def depends_on_inputs(graph: SplitGraph) -> list[bool]:
    """Of each operation, whether examples go through it."""
    known = {i for i, v in enumerate(graph.values) if v.source == INPUT}
    found = []
    for op in graph.ops:
        found.append(any(value in known for value in op.reads))
        if found[-1]:
            known.update(op.results)
    return found
