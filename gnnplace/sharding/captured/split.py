"""The best split of a captured model's layers over a mesh, by its cost tables: to be run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import nn

from gnnplace.sharding.captured.costs import (
    CostParts,
    MeshMachine,
    compute_result_bytes,
)
from gnnplace.sharding.captured.graph import split_graph
from gnnplace.sharding.captured.layout import (
    PARAMETER,
    Configuration,
    Layout,
    Mesh,
    SplitGraph,
)
from gnnplace.sharding.captured.problem import (
    CapturedProblem,
    build_captured_tables,
    ddp_parts,
    parts_by_op,
    total_parts,
)
from gnnplace.sharding.problem import ShardingProblem
from gnnplace.sharding.solver.search import ShardingResult
from gnnplace.tracing import (
    CallGraph,
    OutputModule,
    Rule,
    StepModule,
    find_rules,
    record_calls,
)


@dataclass(frozen=True, eq=False)
class LayerGraph:
    """A model's layers.

    Attributes:
        step: model, loss and inputs.
        calls: the calls of the model and of its loss.
        rules: how each call can be split.
        operations: the same for the search.
    """

    step: StepModule
    calls: CallGraph
    rules: tuple[Rule, ...]
    operations: SplitGraph


def layer_graph(
    model: nn.Module,
    inputs: object,
    loss: Callable[..., torch.Tensor] | None,
    name: str,
    *,
    zeros: bool = False,
    proven: bool = True,
) -> LayerGraph:
    """Capture a model's layers.

    Args:
        model: the model that is split.
        inputs: example inputs (with the loss's targets): positional, or a mapping.
        loss: one of the layers; None: the model's output is what it returns.
        name: the name of the model.
        zeros: where the model must run on real tensors, stand zeros in for its parameters.
        proven: refuse a step that is more than its calls.

    Raises:
        CaptureError: the model cannot be captured; names the module.
    """
    step = (
        StepModule(model, loss, inputs) if loss else OutputModule(model, None, inputs)
    )
    calls = record_calls(step, name, zeros=zeros, proven=proven)
    calls.give_notices()
    rules = find_rules(calls)
    return LayerGraph(
        step=step, calls=calls, rules=rules, operations=split_graph(calls, rules)
    )


class LayerWords(NamedTuple):
    """A layer's split for people.

    Attributes:
        name: its module and, where that is not enough, its function.
        kind: "linear", "attention", …
        words: such as "heads over 4, batch over 2".
        reason: why it cannot be split, if so.
    """

    name: str
    kind: str
    words: str
    reason: str


@dataclass(frozen=True, eq=False)
class LayerTables:
    """The cost tables of a captured model on a mesh.

    Attributes:
        layers: the model's calls and their rules.
        captured: what every configuration of a call costs.
        problem: the same as tables.
    """

    layers: LayerGraph
    captured: CapturedProblem
    problem: ShardingProblem

    def split(self, result: ShardingResult) -> LayerSplit:
        """Return the strategy that a search of the tables found."""
        return LayerSplit(self.layers, self.captured, self.problem, result)


@dataclass(frozen=True, eq=False)
class LayerSplit:
    """A strategy, and the tables that it is the best of.

    Attributes:
        layers: the model's calls and their rules.
        captured: what every configuration of a call costs.
        problem: the same as tables.
        result: what the search found.
    """

    layers: LayerGraph
    captured: CapturedProblem
    problem: ShardingProblem
    result: ShardingResult

    @property
    def mesh(self) -> Mesh:
        """Return the sizes of the mesh's dimensions."""
        return self.captured.mesh

    @cached_property
    def configurations(self) -> tuple[Configuration, ...]:
        """Return the label that each dimension of the mesh splits, of every call."""
        pairs = zip(self.captured.options, self.result.configuration, strict=False)
        return tuple(configurations[index] for configurations, index in pairs)

    @cached_property
    def homes(self) -> dict[str, Layout]:
        """Return the layouts of the parameters that several calls read, by name."""
        captured = self.captured
        strategy = self.result.configuration
        return {
            captured.graph.values[value].name: states[
                strategy[captured.position[value]]
            ][0]
            for value, states in captured.shared.items()
            if captured.graph.values[value].source == PARAMETER
        }

    @cached_property
    def predicted(self) -> CostParts:
        """Return the predicted seconds and bytes of a training step."""
        return total_parts(self.by_layer)

    @cached_property
    def by_layer(self) -> tuple[CostParts, ...]:
        """Return the predicted seconds and bytes of each call, in the order in which they run."""
        return parts_by_op(self.captured, self.result.configuration)

    @cached_property
    def data_parallel(self) -> CostParts:
        """Return the predicted cost of data parallelism."""
        return ddp_parts(self.captured)

    @property
    def activations(self) -> float:
        """Return the bytes of all results on a device."""
        graph = self.captured.graph
        pairs = zip(graph.ops, self.configurations, strict=True)
        return sum(
            compute_result_bytes(graph, op, configuration, self.mesh)
            for op, configuration in pairs
        )

    @cached_property
    def words(self) -> tuple[LayerWords, ...]:
        """Return every call's split in words, in the order in which calls run."""
        devices = math.prod(self.mesh)
        layers = []
        for op, configuration in zip(
            self.layers.operations.ops, self.configurations, strict=True
        ):
            examples = dict(op.shape.extents).get(op.batch or "", 0)
            reason = op.reason
            if not reason and op.batch is not None and examples % devices:
                reason = f"a batch of {examples} has no {devices} equal parts"
            words = op.words(configuration, self.mesh)
            layers.append(
                LayerWords(name=op.name, kind=op.kind, words=words, reason=reason)
            )
        return tuple(layers)

    def lines(self) -> list[str]:
        """Return the same in lines; calls that move axes or have no gradient are left out."""
        shown = [x for x in self.words if x.kind not in ("shape", "data")]
        width = max((len(layer.name) for layer in shown), default=0)
        return [
            f"{x.name:{width}}  {x.words}" + (f" ({x.reason})" if x.reason else "")
            for x in shown
        ]


def layer_tables(
    layers: LayerGraph, mesh: Mesh, machine: MeshMachine, seconds: Sequence[float] = ()
) -> LayerTables:
    """Return what every split of a captured model's layers costs.

    Args:
        layers: the model's calls and their rules.
        mesh: sizes of the mesh's dimensions.
        machine: speeds of a device and of its link.
        seconds: measured seconds of each whole call, forward and backward.
    """
    captured = CapturedProblem(
        graph=layers.operations, mesh=mesh, machine=machine, seconds=tuple(seconds)
    )
    return LayerTables(layers, captured, build_captured_tables(captured))
