"""The forward pass of a stage on one process: its calls, one after the other.

Without shards a call runs as it was recorded. Over shards each runs its part of it, by the same
rules that priced it (`tracing.rules`), and tensors are brought into the layouts in which calls
read them (`sharding.run.move`); what enters and leaves the stage is whole, or cut along its tokens
or examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from gnnplace.plans.segments.placements import border_layout
from gnnplace.plans.segments.stage_calls import ATTENTION, StageCalls, seed_of
from gnnplace.run.planned.buffers import PassBuffers, observed_buffers
from gnnplace.run.planned.parameters import Parameters
from gnnplace.run.planned.weights import QUEUED, Pack, Queue, product
from gnnplace.sharding.captured.layout import REPLICATED, Layout, is_gathered
from gnnplace.sharding.run.move import Regathering, moved
from gnnplace.sharding.run.runner import PlacedCall, run_part
from gnnplace.torch_names import get_current_function_mode_stack, pytree
from gnnplace.tracing import (
    BUFFER,
    CONSTANT,
    INPUT,
    PARAMETER,
    CallGraph,
    CallRef,
    LayerCall,
    Seeded,
)

SHARD = 1 << 20  # more than there are calls that draw


@dataclass(frozen=True, eq=False)
class StageCode:
    """What a process knows of one of its stages.

    Attributes:
        graph: the model's calls on one micro-batch.
        piece: those of the stage.
        placed: every call of the graph with its layouts; empty without shards.
        model: the user's model, which has the buffers.
        parameters: the parameters that this process holds.
        draws: number among the calls that draw, by index of the call.
        autocast: makes the context of a forward pass.
        cut: how what enters, and what leaves, is cut over the shards, in the words of borders.
        examples: of a micro-batch.
        regather: calls that keep parts of what shards gather for them.
        observed: changed buffers that a pass works on copies of.
    """

    graph: CallGraph
    piece: StageCalls
    placed: tuple[PlacedCall, ...]
    model: nn.Module
    parameters: Parameters
    draws: dict[int, int]
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    done: dict[int, tuple[int, ...]] = field(default_factory=dict)
    several: frozenset[int] = frozenset()
    cut: tuple[str, str] = ("whole", "whole")
    examples: int = 1
    regather: frozenset[int] = frozenset()
    observed: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "observed", observed_buffers(self.graph))

    @property
    def whole(self) -> Layout:
        """Layout of what every shard has."""
        return (REPLICATED,) * len(self.parameters.seat.axes)

    def border(self, value: int, *, leaves: bool) -> Layout:
        """Layout of a value that enters or leaves the stage."""
        shape, axes = self.graph.values[value].shape, self.parameters.seat.axes
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
        """Which of the values that enter need a gradient."""
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
        """What leaves the stage; of the last one what the graph returns.

        Args:
            entering: numbers of the values that enter the stage.
            inputs: tensors of the micro-batch.
            queue: gets weight gradients that wait; None: they do not.
            causes: of random numbers: seed, step and number of the micro-batch.
            grad: whether a backward pass follows.
        """
        buffers = PassBuffers(self.model, self.observed)
        run = _Pass(self, inputs, queue, causes, buffers)
        run.values = {
            value: (x, self.border(value, leaves=False))
            for value, x in zip(self.piece.entering, entering, strict=True)
        }
        run.given = frozenset(run.values)
        with self.autocast(), torch.set_grad_enabled(grad):
            position = 0
            for first, last in self.piece.again:
                run.calls(position, first)
                run.again(first, last)
                position = last
            run.calls(position, len(self.piece.calls))
            buffers.write_back()
            if not self.piece.leaving:
                whole = self.whole
                return tuple(run.get(value, whole, whole) for value in output_of(self.graph))
            places = [(v, self.border(v, leaves=True)) for v in self.piece.leaving]
            return tuple(run.get(value, place, place) for value, place in places)


def output_of(graph: CallGraph) -> tuple[int, ...]:
    """The value that a graph returns."""
    return tuple(x.value for x in pytree.tree_leaves(graph.output) if isinstance(x, CallRef))


def last_readers(graph: CallGraph, piece: StageCalls) -> dict[int, tuple[int, ...]]:
    """Values that nothing later reads, by position of the call after which that is so."""
    kept = {*piece.leaving, *output_of(graph)}
    last: dict[int, int] = {}
    for position, index in enumerate(piece.calls):
        call = graph.calls[index]
        last.update(dict.fromkeys((*call.reads, *call.results), position))
    for first, end in piece.again:  # what is recomputed is dropped as a whole
        last.update({v: end - 1 for v, at in last.items() if first <= at < end})
    found: dict[int, list[int]] = {}
    for value, position in last.items():
        if value not in kept:
            found.setdefault(position, []).append(value)
    return {position: tuple(values) for position, values in found.items()}


@dataclass(eq=False)
class _Pass:
    """Values of one forward pass."""

    code: StageCode
    inputs: Sequence[torch.Tensor]
    queue: Queue | None
    causes: tuple[int, int, int]
    buffers: PassBuffers
    values: dict[int, tuple[torch.Tensor, Layout]] = field(default_factory=dict)
    given: frozenset[int] = frozenset()
    read: dict[int, dict[tuple[Layout, Layout], torch.Tensor]] = field(default_factory=dict)
    fresh: bool = False
    parts: Regathering = field(default_factory=Regathering)

    def calls(self, first: int, last: int) -> None:
        """Runs calls by position."""
        for position in range(first, last):
            self._call(self.code.piece.calls[position])
            for value in self.code.done.get(position, ()):
                self.values.pop(value, None)
                self.read.pop(value, None)

    def again(self, first: int, last: int) -> None:
        """Runs calls of which only what comes out is kept; the rest is computed again."""
        code = self.code
        inside = code.piece.calls[first:last]
        made = {v for i in inside for v in code.graph.calls[i].results}
        dropped = set(code.done.get(last - 1, ()))
        results = sorted(v for v in made if v not in dropped)
        layouts: list[Layout] = []
        read = {v for i in inside for v in code.graph.calls[i].reads}
        before = {v: self.values[v] for v in read if v in self.values}
        names = {code.graph.values[v].name for v in read if code.graph.values[v].source == BUFFER}
        views = {v: x for v, (x, _) in before.items() if self.buffers.holds(x)}
        state = self.buffers.snapshot(names.intersection(code.graph.changed), views.values())
        second, modes = {"now": False}, get_current_function_mode_stack()

        def run() -> tuple[torch.Tensor, ...]:
            # What is computed again reads the buffers as the first time found them, and changes
            # copies of them.
            buffers, values = self.buffers, dict(before)
            if second["now"]:
                buffers = state.snapshot(state.tensors, ())
                for value, view in views.items():
                    values[value] = buffers.copy_of(state.copy_of(view)), before[value][1]
            own = _Pass(code, self.inputs, self.queue, self.causes, buffers, values, self.given)
            own.fresh = True
            for index in inside:
                own._call(index)
            layouts[:] = [own.values[v][1] for v in results]
            return tuple(own.values[v][0] for v in results)

        found = checkpoint(
            run,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=lambda: (nullcontext(), _noted(second, modes)),
        )
        self.values.update(zip(results, zip(found, layouts, strict=True), strict=True))
        for value in dropped:
            self.values.pop(value, None)
            self.read.pop(value, None)

    def _call(self, index: int) -> None:
        code = self.code
        if index in code.draws:
            with Seeded(partial(seed_of, *self.causes), code.draws[index] + self._apart(index)):
                self._ran(index)
        else:
            self._ran(index)

    def _ran(self, index: int) -> None:
        code = self.code
        call = code.graph.calls[index]
        if code.placed:
            self._placed(code.placed[index], again=index in code.regather and not self.fresh)
            return
        tensors = [self.get(value, code.whole, code.whole) for value in call.reads]
        if call.inplace and (self.fresh or call.reads[0] in self.given):
            tensors[0] = tensors[0].clone()  # a leaf, or what is needed again
        rest = iter(tensors)
        made = call.made(lambda value: next(rest), self._run)
        for value, tensor in zip(call.results, made, strict=True):
            self.values[value] = (tensor, code.whole)

    def _apart(self, index: int) -> int:
        """Heads on other shards draw other numbers; other calls draw for the whole."""
        placed, seat = self.code.placed, self.code.parameters.seat
        if not placed or placed[index].call.kind != ATTENTION:
            return 0
        number, labels = 0, placed[index].share.configuration
        for label, place, count in zip(labels, seat.places, seat.axes, strict=True):
            number = number if label is None else number * count + place
        return number * SHARD

    def _run(self, call: LayerCall, args: Any, kwargs: Any, pack: Pack | None = None) -> Any:
        """Computes a call; weight gradients of products may wait."""
        if self.queue is not None and call.kind in QUEUED:
            found = product(call.kind, args, kwargs, self.queue, pack)
            if found is not None:
                return found
        return call.function(*args, **kwargs)

    def _placed(self, stage: PlacedCall, *, again: bool) -> None:
        """A call's part over the shards; what was gathered for it is gathered `again`, or kept."""
        call = stage.call
        tensors = [self.get(*read) for read in stage.reads]
        if call.inplace:
            tensors[0] = tensors[0].clone()  # others may read what was moved
        if self.queue is not None and call.kind in QUEUED:
            pack = self.parts.packed if again else None
            call = replace(
                call, function=lambda *args, **named: self._run(stage.call, args, named, pack)
            )
        with self.parts.of(tensors) if again else nullcontext():
            made = run_part(call, stage.rule, stage.share, tensors)
        for tensor, (value, layout) in zip(made, stage.results, strict=True):
            self.values[value] = (tensor, layout)

    def get(self, value: int, read: Layout, gradient: Layout) -> torch.Tensor:
        """A value as a reader wants it; readers that want the same share it."""
        code = self.code
        info = code.graph.values[value]
        mesh = code.parameters.seat.mesh
        if mesh is None:
            return self._found(value)[0]
        if info.source == PARAMETER and value not in code.several:
            return self._found(value)[0]  # at home where it is read; summed up at the end
        known = self.read.setdefault(value, {})
        if (read, gradient) not in known:
            tensor, layout = self._found(value)
            made = known[read, gradient] = moved(tensor, mesh, layout, read, gradient)
            if code.regather and is_gathered(layout, read, code.parameters.seat.axes):
                self.parts.add(made, tensor, mesh, layout, read)
        return known[read, gradient]

    def _found(self, value: int) -> tuple[torch.Tensor, Layout]:
        """A value as it is, and its layout."""
        code = self.code
        info = code.graph.values[value]
        if info.source == PARAMETER:
            held = code.parameters.held[info.name]
            return held.leaf, held.home
        if info.source == BUFFER:
            return self.buffers.get(info.name), code.whole
        if info.source == INPUT:
            return self.inputs[int(info.name)], code.whole
        if info.source == CONSTANT:
            return code.graph.constants[value], code.whole
        return self.values[value]


@contextmanager
def _noted(state: dict[str, bool], modes: Sequence[TorchFunctionMode]) -> Iterator[None]:
    """Says that what runs within is run again, under the modes of torch of the first time.

    A call of backward under a mode runs without it.
    """
    state["now"] = True
    try:
        with ExitStack() as stack:
            active = get_current_function_mode_stack()
            for mode in modes:
                if mode not in active:
                    stack.enter_context(mode)
            yield
    finally:
        state["now"] = False
