"""The forward pass of a stage on one process: its calls, one after the other.

Without shards a call runs as it was recorded. Over shards each process runs its shard of the call,
by the same rules that priced it (`tracing.rules`), and tensors are moved into the layouts in which
calls read them (`run.split`). Inputs and outputs of the stage are whole, or split along
tokens or examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from gnnplace.plans import border_layout
from gnnplace.run.planned.buffers import PassBuffers, list_observed_buffers
from gnnplace.run.planned.draws import ATTENTION, derive_seed
from gnnplace.run.planned.parameters import Parameters
from gnnplace.run.planned.stages import StageCalls
from gnnplace.run.planned.weights import QUEUED, Pack, Queue, product
from gnnplace.run.split import PlacedCall, Regathering, move_shard, run_part
from gnnplace.sharding import REPLICATED, Layout, is_gathered
from gnnplace.torch_names import get_current_function_mode_stack
from gnnplace.tracing import (
    BUFFER,
    CONSTANT,
    INPUT,
    PARAMETER,
    CallGraph,
    LayerCall,
    Seeded,
)

SHARD = 1 << 20  # more than there are calls that draw


@dataclass(frozen=True, eq=False)
class StageCode:
    """The code of one stage on a process.

    Attributes:
        graph: the model's calls on one micro-batch.
        piece: The calls of the stage.
        placed: every call of the graph with its layouts; empty without shards.
        model: the user's model, which has the buffers.
        parameters: the parameters that this process holds.
        autocast: makes the context of a forward pass.
        cut: how what enters, and what leaves, is cut over the shards, in the words of borders.
        examples: The examples of a micro-batch.
        regather: calls that keep parts of what shards gather for them.
    """

    graph: CallGraph
    piece: StageCalls
    placed: tuple[PlacedCall, ...]
    model: nn.Module
    parameters: Parameters
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    converted: frozenset[int] = frozenset()
    cut: tuple[str, str] = ("whole", "whole")
    examples: int = 1
    regather: frozenset[int] = frozenset()

    @cached_property
    def observed(self) -> frozenset[str]:
        """Return the changed buffers that a pass works on copies of."""
        return list_observed_buffers(self.graph)

    @cached_property
    def done(self) -> dict[int, tuple[int, ...]]:
        """Return the values that nothing reads after a call, by position of the call."""
        leaving = {*self.piece.leaving, *self.graph.outputs}
        last_reads: dict[int, int] = {}
        for position, index in enumerate(self.piece.calls):
            call = self.graph.calls[index]
            last_reads.update(dict.fromkeys((*call.reads, *call.results), position))
        # What is recomputed is dropped as a whole, at the end of its run.
        for first, end in self.piece.recomputed:
            last_reads.update(
                {v: end - 1 for v, at in last_reads.items() if first <= at < end}
            )
        dropped: dict[int, list[int]] = {}
        for value, position in last_reads.items():
            if value not in leaving:
                dropped.setdefault(position, []).append(value)
        return {position: tuple(values) for position, values in dropped.items()}

    @property
    def whole(self) -> Layout:
        """Return the layout of a value that every shard has in full."""
        return (REPLICATED,) * len(self.parameters.seat.axes)

    def border(self, value: int, *, leaves: bool) -> Layout:
        """Return the layout of a value that enters or leaves the stage."""
        shape = self.graph.values[value].shape
        axes = self.parameters.seat.axes
        return border_layout(self.cut[leaves], shape, axes, self.examples)

    def room(self, value: int, *, leaves: bool) -> tuple[int, ...]:
        """Shape of this process's part of a value that enters or leaves the stage."""
        shape = list(self.graph.values[value].shape)
        border = self.border(value, leaves=leaves)
        for place, count in zip(border, self.parameters.seat.axes, strict=True):
            if place.cuts:
                shape[place.axis] //= count
        return tuple(shape)

    @property
    def gradients(self) -> tuple[bool, ...]:
        """Return which of the values that enter the stage need a gradient."""
        return tuple(self.graph.values[v].gradient for v in self.piece.entering)

    def forward(
        self,
        entering: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        queue: Queue | None,
        causes: tuple[int, int, int],
        *,
        grad: bool = True,
    ) -> tuple[torch.Tensor, ...]:
        """Run the stage; return what leaves it, of the last stage what the graph returns.

        Args:
            entering: numbers of the values that enter the stage.
            inputs: tensors of the micro-batch.
            queue: gets weight gradients that wait; None: they do not.
            causes: What random numbers depend on: seed, step and number of the micro-batch.
            grad: whether a backward pass follows.
        """
        buffers = PassBuffers(self.model, self.observed)
        run = _Pass(self, inputs, queue, causes, buffers)
        run.values = {
            value: (x, self.border(value, leaves=False))
            for value, x in zip(self.piece.entering, entering, strict=True)
        }
        run.entering = frozenset(run.values)
        with self.autocast(), torch.set_grad_enabled(grad):
            position = 0
            for first, last in self.piece.recomputed:
                run.calls(position, first)
                run.again(first, last)
                position = last
            run.calls(position, len(self.piece.calls))
            buffers.write_back()
            if not self.piece.leaving:
                replicated = self.whole
                return tuple(
                    run.get(value, replicated, replicated)
                    for value in self.graph.outputs
                )
            places = [(v, self.border(v, leaves=True)) for v in self.piece.leaving]
            return tuple(run.get(value, place, place) for value, place in places)


@dataclass(eq=False)
class _Pass:
    """Values of one forward pass."""

    code: StageCode
    inputs: Sequence[torch.Tensor]
    queue: Queue | None
    causes: tuple[int, int, int]
    buffers: PassBuffers
    values: dict[int, tuple[torch.Tensor, Layout]] = field(default_factory=dict)
    entering: frozenset[int] = frozenset()
    read: dict[int, dict[tuple[Layout, Layout], torch.Tensor]] = field(
        default_factory=dict
    )
    fresh: bool = False
    parts: Regathering = field(default_factory=Regathering)

    def calls(self, first: int, last: int) -> None:
        """Run calls by position."""
        for position in range(first, last):
            self._call(self.code.piece.calls[position])
            for value in self.code.done.get(position, ()):
                self.values.pop(value, None)
                self.read.pop(value, None)

    def again(self, first: int, last: int) -> None:
        """Run calls of which results alone are saved; the backward pass recomputes the others."""
        code = self.code
        inside = code.piece.calls[first:last]
        results_inside = {v for i in inside for v in code.graph.calls[i].results}
        dropped = set(code.done.get(last - 1, ()))
        results = sorted(v for v in results_inside if v not in dropped)
        layouts: list[Layout] = []
        read = {v for i in inside for v in code.graph.calls[i].reads}
        read_values = {v: self.values[v] for v in read if v in self.values}
        names = {
            code.graph.values[v].name
            for v in read
            if code.graph.values[v].source == BUFFER
        }
        views = {v: x for v, (x, _) in read_values.items() if self.buffers.holds(x)}
        state = self.buffers.snapshot(
            names.intersection(code.graph.changed), views.values()
        )
        recomputation = {"runs": False}
        modes = get_current_function_mode_stack()

        def run() -> tuple[torch.Tensor, ...]:
            # What is computed again reads the buffers as the first time found them, and changes
            # copies of them.
            buffers = self.buffers
            values = dict(read_values)
            if recomputation["runs"]:
                buffers = state.snapshot(state.tensors, ())
                for value, view in views.items():
                    values[value] = (
                        buffers.get_copy(state.get_copy(view)),
                        read_values[value][1],
                    )
            inner = _Pass(
                code,
                self.inputs,
                self.queue,
                self.causes,
                buffers,
                values,
                self.entering,
            )
            inner.fresh = True
            for index in inside:
                inner._call(index)
            layouts[:] = [inner.values[v][1] for v in results]
            return tuple(inner.values[v][0] for v in results)

        outputs = checkpoint(
            run,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=lambda: (
                nullcontext(),
                _noting_recomputation(recomputation, modes),
            ),
        )
        self.values.update(
            zip(results, zip(outputs, layouts, strict=True), strict=True)
        )
        for value in dropped:
            self.values.pop(value, None)
            self.read.pop(value, None)

    def _call(self, index: int) -> None:
        code = self.code
        if index in code.piece.draws:
            with Seeded(
                partial(derive_seed, *self.causes),
                code.piece.draws[index] + self._draw_offset(index),
            ):
                self._compute(index)
        else:
            self._compute(index)

    def _compute(self, index: int) -> None:
        code = self.code
        call = code.graph.calls[index]
        if code.placed:
            self._placed(
                code.placed[index], regathers=index in code.regather and not self.fresh
            )
            return
        tensors = [self.get(value, code.whole, code.whole) for value in call.reads]
        if call.inplace and (self.fresh or call.reads[0] in self.entering):
            tensors[0] = tensors[0].clone()  # a leaf, or what is needed again
        remaining = iter(tensors)
        results = call.made(lambda value: next(remaining), self._run)
        for value, tensor in zip(call.results, results, strict=True):
            self.values[value] = (tensor, code.whole)

    def _draw_offset(self, index: int) -> int:
        """Return the offset of a call's draws: heads on different shards draw different numbers."""
        placed = self.code.placed
        seat = self.code.parameters.seat
        if not placed or placed[index].call.kind != ATTENTION:
            return 0
        number = 0
        labels = placed[index].share.configuration
        for label, place, count in zip(labels, seat.places, seat.axes, strict=True):
            if label is not None:
                number = number * count + place
        return number * SHARD

    def _run(
        self,
        call: LayerCall,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        pack: Pack | None = None,
    ) -> object:
        """Compute a call; weight gradients of products may wait."""
        if self.queue is not None and call.kind in QUEUED:
            result = product(call.kind, args, kwargs, self.queue, pack)
            if result is not None:
                return result
        return call.function(*args, **kwargs)

    def _placed(self, stage: PlacedCall, *, regathers: bool) -> None:
        """Compute a shard's part of a call; what is gathered for it is regathered or saved."""
        call = stage.call
        tensors = [self.get(*read) for read in stage.reads]
        if call.inplace:
            tensors[0] = tensors[0].clone()  # others may read what was moved
        if self.queue is not None and call.kind in QUEUED:
            if regathers:
                pack = self.parts.packed
            else:
                pack = None
            call = replace(
                call,
                function=lambda *args, **named: self._run(
                    stage.call, args, named, pack
                ),
            )
        with self.parts.of(tensors) if regathers else nullcontext():
            results = run_part(call, stage.rule, stage.share, tensors)
        for tensor, (value, layout) in zip(results, stage.results, strict=True):
            self.values[value] = (tensor, layout)

    def get(self, value: int, read: Layout, gradient: Layout) -> torch.Tensor:
        """Return a value in the layout that a reader wants; readers of one layout share it."""
        code = self.code
        info = code.graph.values[value]
        mesh = code.parameters.seat.mesh
        if mesh is None:
            return self._list_produced_layouts(value)[0]
        if info.source == PARAMETER and value not in code.converted:
            # A parameter is read where it lies; its gradients are summed up at the end.
            return self._list_produced_layouts(value)[0]
        by_layout = self.read.setdefault(value, {})
        if (read, gradient) not in by_layout:
            tensor, layout = self._list_produced_layouts(value)
            back = None
            if info.source == PARAMETER:
                back = code.parameters.held[info.name].pending
            converted = by_layout[read, gradient] = move_shard(
                tensor, mesh, layout, read, gradient, back
            )
            if code.regather and is_gathered(layout, read, code.parameters.seat.axes):
                self.parts.add(converted, tensor, mesh, layout, read)
        return by_layout[read, gradient]

    def _list_produced_layouts(self, value: int) -> tuple[torch.Tensor, Layout]:
        """Return a value and its layout, as it was produced."""
        code = self.code
        info = code.graph.values[value]
        if info.source == PARAMETER:
            local = code.parameters.held[info.name]
            return local.leaf, local.home
        if info.source == BUFFER:
            return self.buffers.get(info.name), code.whole
        if info.source == INPUT:
            return self.inputs[int(info.name)], code.whole
        if info.source == CONSTANT:
            return code.graph.constants[value], code.whole
        return self.values[value]


@contextmanager
def _noting_recomputation(
    state: dict[str, bool], modes: Sequence[TorchFunctionMode]
) -> Iterator[None]:
    """Note that what runs within the context is recomputed, under torch's modes of the first run.

    A call of backward under a mode runs without it.
    """
    state["runs"] = True
    try:
        with ExitStack() as stack:
            active = get_current_function_mode_stack()
            for mode in modes:
                if mode not in active:
                    stack.enter_context(mode)
            yield
    finally:
        state["runs"] = False
