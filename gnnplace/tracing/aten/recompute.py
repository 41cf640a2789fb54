"""Activation checkpointing: recomputation in the backward pass stays part of the captured step.

`torch.utils.checkpoint` drops a region's activations and runs the region again when the backward
pass asks for them (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016). Traced with
its hooks on, the second run becomes ops of the backward phase. Three things are added:

* A region with `use_reentrant=True` runs a backward pass of its own inside an autograd function,
  which cannot be traced. It is traced as `use_reentrant=False`, with what is different kept: a
  region without an input that needs a gradient gives none, and a second run always happens and
  goes to its end, which buffers can tell. Ops of it whose results nobody reads are left out.
* A random op draws the same numbers in the second run: it gets the seed of the first run's op.
* By its inputs alone, a second run could be scheduled right after the first, which would save no
  memory. So its first ops come `after` the backward op that computes the gradient for which they
  are needed, by an edge of zero bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.autograd.function import FunctionCtx
from torch.fx import traceback
from torch.utils import checkpoint

from gnnplace import torch_names
from gnnplace.foreign import patch_private, read_private
from gnnplace.torch_names import (
    REGION,
    FunctionContext,
    is_random_state_kept,
    tree_map_only,
)
from gnnplace.tracing.program import BACKWARD, ProgramOp

KEY = "ac_graph_id"
"""Where nodes of a region carry their `Region`: torch copies it to nodes that are traced within.

("custom", which is meant for it, is overwritten in the second run with that of the first.)
"""
Region = tuple[tuple[int, int, bool], ...]
"""Index among its siblings, run, whether that draws the same numbers again; outermost first."""


@contextmanager
def checkpoints() -> Iterator[list[Region]]:
    """Trace checkpointed regions within with what they compute again.

    Yields:
        The second runs, as they happen.
    """
    counts: dict[Region, int] = {}
    second_runs: list[Region] = []
    with (
        patch_private(
            torch_names.dynamo_utils,
            "_disable_saved_tensors_hooks_during_tracing",
            nullcontext,
            "torch",
        ),
        patch_private(
            checkpoint,
            REGION,
            _mark_region(
                read_private(checkpoint, REGION, "torch"), counts, second_runs
            ),
            "torch",
        ),
        patch_private(checkpoint, "CheckpointFunction", _Reentrant, "torch"),
        patch_private(checkpoint, "_is_compiling", lambda *_: False, "torch"),
    ):
        yield second_runs


class _Reentrant:
    """The stand-in for `torch.utils.checkpoint.CheckpointFunction`."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: object) -> object:
        """Run the function as a region, or without gradients where no input needs one."""
        if not any(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
            with torch.no_grad():
                return function(*args)
        return checkpoint.checkpoint(
            lambda *inputs: tree_map_only(
                torch.Tensor, _Always.apply, function(*inputs)
            ),
            *args,
            use_reentrant=False,
            preserve_rng_state=preserve,
            early_stop=False,
        )


class _Always(torch.autograd.Function):
    """The identity, which asks for its input again in the backward pass.

    A reentrant region runs again, to its end, also where nothing of it is needed: its buffers
    change twice.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, x: torch.Tensor) -> torch.Tensor:
        """Return the same tensor."""
        ctx.save_for_backward(x)
        return torch.ops.aten.alias.default(x)

    @staticmethod
    def backward(ctx: FunctionContext, grad: torch.Tensor) -> torch.Tensor:
        """Return the same gradient."""
        assert ctx.saved_tensors
        return grad


def _mark_region(
    original: Callable[..., Iterator[None]],
    counts: dict[Region, int],
    second_runs: list[Region],
) -> Callable[..., Iterator[None]]:
    """Return the generator behind a region; each of its runs marks the nodes that it makes."""

    def generator(
        function: Callable[..., Any], *arguments: object, **options: object
    ) -> Iterator[None]:
        preserve = is_random_state_kept((function, *arguments), options)
        outer = find_region(traceback.current_meta)
        index = counts.get(outer, 0)
        runs = 0
        counts[outer] = index + 1

        def run_again(*args: object, **keywords: object) -> object:
            nonlocal runs
            runs += 1
            second_runs.append((*outer, (index, runs, preserve)))
            with _within(second_runs[-1]):
                return function(*args, **keywords)

        with _within((*outer, (index, 0, True))):
            yield from original(run_again, *arguments, **options)

    return generator


def find_region(meta: Mapping[str, Any]) -> Region:
    """Return the region of a node, or of what is traced now; empty outside."""
    region: Region = meta.get(KEY, ())
    return region


@contextmanager
def _within(region: Region) -> Iterator[None]:
    """Mark nodes that are traced within as of a region."""
    outer = find_region(traceback.current_meta)
    traceback.current_meta[KEY] = region
    try:
        yield
    finally:
        traceback.current_meta[KEY] = outer


class Draws:
    """The names whose seeds random ops draw from: a second run draws what the first one drew."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, ...], list[str]] = {}
        self._position: dict[Region, int] = {}

    def name(self, node: fx.Node) -> str:
        """Return the name for the seed of a random node; called once for each, in graph order."""
        region = find_region(node.meta)
        if not all(preserved for _, _, preserved in region) or not region:
            return node.name
        names = self._first.setdefault(tuple(index for index, _, _ in region), [])
        position = self._position.get(region, 0)
        self._position[region] = position + 1
        if position == len(names):
            names.append(node.name)
        return names[position]


def order_recomputed(
    ops: Iterable[ProgramOp], regions: Mapping[str, Region]
) -> list[ProgramOp]:
    """Return the ops; those that begin a second run come after the gradient that asked for it.

    Args:
        ops: The ops in the order in which they were traced.
        regions: The regions of ops by name, those outside left out.
    """
    ops = list(ops)
    # The innermost run of each op's regions that computes again, or none.
    run_of: dict[str, Region] = {}
    for op in ops:
        if op.phase == BACKWARD:
            region = regions.get(op.name, ())
            while region and region[-1][1] == 0:
                region = region[:-1]
            run_of[op.name] = region
    if not any(run_of.values()):
        return ops
    maker = {result: op for op in ops for result in op.results}
    triggers = _triggers(ops, run_of, maker)

    def begins(op: ProgramOp) -> bool:
        run = run_of.get(op.name)
        if not run or run not in triggers or op.view:
            return False
        makers = (maker[read] for read in _sources(op, maker) if read in maker)
        return all(run_of.get(producer.name) != run for producer in makers)

    return [
        replace(op, after=(*op.after, triggers[run_of[op.name]])) if begins(op) else op
        for op in ops
    ]


def _sources(op: ProgramOp, maker: Mapping[str | None, ProgramOp]) -> Iterator[str]:
    """Yield what an op reads, views replaced by what they show."""
    for read in op.reads:
        producer = maker.get(read)
        if producer is not None and producer.view:
            yield from _sources(producer, maker)
        else:
            yield read


def _triggers(
    ops: list[ProgramOp],
    run_of: Mapping[str, Region],
    maker: Mapping[str | None, ProgramOp],
) -> dict[Region, str]:
    """Return, for each second run, the last op that its first reader outside of it waited for."""
    position = {op.name: i for i, op in enumerate(ops)}
    begin: dict[Region, int] = {}
    triggers: dict[Region, str] = {}
    for op in ops:
        if run := run_of.get(op.name):
            begin.setdefault(run, position[op.name])
            continue
        if op.name not in run_of:
            continue
        producers = [maker[read] for read in _sources(op, maker) if read in maker]
        for run in (
            {run_of.get(producer.name, ()) for producer in producers}
            - {()}
            - set(triggers)
        ):
            earlier = [
                producer.name
                for producer in producers
                if producer.phase == BACKWARD and position[producer.name] < begin[run]
            ]
            if earlier:
                triggers[run] = max(earlier, key=position.__getitem__)
    return triggers
