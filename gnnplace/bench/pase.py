"""Splits of a captured step's calls over all devices of one kind, by the planner's kernels.

``pase`` is the exact elimination of ``gnnplace.sharding`` (Elango, 2021, arXiv 2407.04001): every
call has one label that all devices divide, its examples or any other, and the sum of kernels, of
exchanges between calls and of gradients' all-reduces is least. ``weird-trick`` is a choice in the
same tables (Krizhevsky, 2014, arXiv 1404.5997): fully connected layers divide their outputs,
everything else the examples. Of kernels K, exchanges E, launches H and the optimizer's U::

    step = max(K, H) + E + U

Nothing overlaps, and there are no micro-batches: the paper has neither. Complexity: that of the
elimination, tables once for each kind of call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.costs import PARAMETER as STATE
from gnnplace.costs import state_terms
from gnnplace.errors import InfeasibleError
from gnnplace.plans import CallPart, Chain, Mesh, MeshFabric, ModelCosts, ShardMachine
from gnnplace.problem import Cluster
from gnnplace.sharding import (
    CapturedProblem,
    Configuration,
    best_strategy,
    build_captured_tables,
    complete_strategy,
    count_layout_parts,
    price_captured_parts,
    read_layout,
)
from gnnplace.tracing import PARAMETER

PASE = "pase"
TRICK = "weird-trick"
CONNECTED = ("linear", "addmm")


@dataclass(eq=False)
class WholeStep(CapturedProblem):
    """The calls of a step, over all devices.

    Attributes:
        source: What prices its calls.
        kind: The kind of all devices.
    """

    source: ModelCosts | None = None
    kind: str = ""

    def part(self, call: int, split: Configuration) -> CallPart:
        """Return the part of a call that one device computes."""
        assert self.source is not None
        return self.source.part(call, split, self.kind, (self.mesh, 1))

    def compute(self, op: int) -> FloatArray:
        """Return the seconds of a call's kernels, by what is divided. [K]"""
        parts = [self.part(op, c) for c in self.options[op]]
        return np.array([p.forward.kernels + p.whole.kernels for p in parts])

    def trick(self) -> tuple[int, ...]:
        """Return the split of one weird trick: outputs of fully connected layers, else examples.

        A call that can be cut in neither way stays whole.

        Raises:
            InfeasibleError: The network has no convolutions.
        """
        assert self.source is not None
        choices = []
        calls = self.source.layers.calls.calls
        if not any("conv" in call.kind for call in calls):
            raise InfeasibleError(
                "one weird trick is a recipe for networks with convolutions"
            )
        for call, op, options in zip(calls, self.graph.ops, self.options, strict=True):
            if call.kind in CONNECTED:
                outputs = op.shape.results[0][-1:]
            else:
                outputs = (op.batch,)
            wanted = tuple(outputs)
            choices.append(wanted if wanted in options else (None,))
        return complete_strategy(self, choices)


def split_step(chain: Chain, cluster: Cluster, method: str) -> tuple[float, float]:
    """Return the predicted seconds of a step and the bytes of a device.

    The bytes are those of its state and of what calls make.

    Args:
        chain: The step's calls.
        cluster: All of whose devices share every call.
        method: ``PASE`` or ``TRICK``.

    Raises:
        InfeasibleError: There is no such split, or it does not fit.
    """
    source = chain.source
    count = cluster.num_devices
    assert isinstance(source, ModelCosts)
    kinds = {device.kind for device in cluster.devices}
    if len(kinds) > 1:
        raise InfeasibleError("equal parts of every call want devices of one kind")
    if chain.mixes or chain.batch % count:
        reason = chain.mixes
        if not reason:
            reason = f"{chain.batch} examples are no equal parts for {count} devices"
        raise InfeasibleError(f"the batch stays whole: {reason}")
    machine = ShardMachine(fabric=MeshFabric(cluster), place=Mesh(0, 1, count))
    (kind,) = kinds
    step = WholeStep(
        source.layers.operations, (count,), machine, source=source, kind=kind
    )
    if method == TRICK:
        choices = step.trick()
    else:
        choices = best_strategy(build_captured_tables(step)).configuration
    # Kernels hide the host's work or the other way round; messages come on top.
    parts_of_step = price_captured_parts(step, choices)
    calls = range(len(step.graph.ops))
    split = [o[k] for o, k in zip(step.options, choices, strict=False)]
    parts = [step.part(i, c) for i, c in zip(calls, split, strict=True)]
    stored = source.parts.beside(source.stored(calls), kind)
    summed, updates = source.beside(calls, split, kind, ((count,), 1))
    kernels = parts_of_step.compute + stored.kernels + summed.kernels
    host = (
        stored.early + summed.late + sum(p.forward.early + p.whole.late for p in parts)
    )
    seconds = max(kernels, host) + parts_of_step.total - parts_of_step.compute
    # The state is counted by the optimizer, in place of the sharding model's own estimate.
    elements = _elements(step, split)
    state = state_terms(
        elements,
        optimizer=chain.optimizer,
        precision=chain.precision,
        zero=0,
        replicas=1,
    ).total
    estimated_state = STATE[chain.precision][0] * elements * machine.state
    memory = state + parts_of_step.memory - estimated_state
    available = min(device.memory - device.reserve for device in cluster.devices)
    if memory > available:
        excess = (memory - available) / 1e9
        raise InfeasibleError(f"a device lacks {excess:.3g} GB")
    return seconds + max(updates.kernels, updates.late), memory


def _elements(step: WholeStep, split: Sequence[Configuration]) -> float:
    """Return the trained elements of a device.

    Of a parameter that several calls read, the largest part counts.
    """
    elements: dict[int, float] = {}
    for op, configuration in zip(step.graph.ops, split, strict=True):
        for value, axes in zip(op.reads, op.shape.reads, strict=True):
            info = step.graph.values[value]
            if info.source == PARAMETER and info.gradient:
                size = prod(info.shape) / count_layout_parts(
                    read_layout(axes, configuration), step.mesh
                )
                elements[value] = max(elements.get(value, 0.0), size)
    return sum(elements.values())
