"""Activation checkpointing: what the backward pass computes again stays in the captured step.

`torch.utils.checkpoint` drops a region's activations and runs the region again when the backward
pass asks for them (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016). Traced with
its hooks on, the second run becomes ops of the backward phase. Three things are added:

* A region with `use_reentrant=True` runs a backward pass of its own inside an autograd function,
  which cannot be traced. It is traced as `use_reentrant=False`, with the two differences in meaning
  kept: without an input that needs a gradient its output needs none, and its inputs are those of
  the call. Values and gradients are the same; what the second run computes and nobody reads is
  left out.
* A random op draws the same numbers in the second run: it gets the seed of the first one's.
* Nothing but the order keeps a second run from being placed right after the first, which would
  keep what it was to save. So its first ops come `after` the backward op that was traced before
  them, an edge of no bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch.fx.traceback import annotate, get_current_meta
from torch.utils import checkpoint

from gnnplace.tracing.program import BACKWARD, ProgramOp

KEY = "gnnplace_region"
"""What nodes of a region carry, see `Region`."""
Region = tuple[tuple[int, int, bool], ...]
"""Index among its siblings, run, whether that draws the same numbers again; outermost first."""


@contextmanager
def checkpoints() -> Iterator[None]:
    """Within it checkpointed regions are traced with what they compute again."""
    counts: dict[Region, int] = {}
    with (
        patch.object(
            torch._dynamo.utils, "_disable_saved_tensors_hooks_during_tracing", nullcontext
        ),
        patch.object(
            checkpoint,
            "_checkpoint_without_reentrant_generator",
            _marked(checkpoint._checkpoint_without_reentrant_generator, counts),
        ),
        patch.object(checkpoint, "CheckpointFunction", _Reentrant),
    ):
        yield


class _Reentrant:
    """Stands for `torch.utils.checkpoint.CheckpointFunction`."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        """Run the function as a region, or without gradients where no input needs one."""
        if not any(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
            with torch.no_grad():
                return function(*args)
        return checkpoint.checkpoint(
            function, *args, use_reentrant=False, preserve_rng_state=preserve
        )


def _marked(
    original: Callable[..., Iterator[None]], counts: dict[Region, int]
) -> Callable[..., Iterator[None]]:
    """The generator behind a region, so that each of its runs marks the nodes that it makes."""

    def generator(function: Callable[..., Any], preserve: bool, *rest: Any, **options: Any) -> Any:
        outer = region_of(get_current_meta())
        index, runs = counts.get(outer, 0), 0
        counts[outer] = index + 1

        def again(*args: Any, **keywords: Any) -> Any:
            nonlocal runs
            runs += 1
            with annotate({KEY: (*outer, (index, runs, preserve))}):
                return function(*args, **keywords)

        with annotate({KEY: (*outer, (index, 0, True))}):
            yield from original(again, preserve, *rest, **options)

    return generator


def region_of(meta: Mapping[str, Any]) -> Region:
    """The region of a node, or of what is traced now; empty outside."""
    found: Region = (meta.get("custom") or {}).get(KEY, ())
    return found


class Draws:
    """Names whose seeds random ops draw from: a second run draws what the first one drew."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, ...], list[str]] = {}
        self._position: dict[Region, int] = {}

    def name(self, node: fx.Node) -> str:
        """Name for the seed of a random node; called once for each, in the order of the graph."""
        region = region_of(node.meta)
        if not all(preserved for _, _, preserved in region) or not region:
            return node.name
        drawn = self._first.setdefault(tuple(index for index, _, _ in region), [])
        position = self._position.get(region, 0)
        self._position[region] = position + 1
        if position == len(drawn):
            drawn.append(node.name)
        return drawn[position]


def ordered(ops: Iterable[ProgramOp], regions: Mapping[str, Region]) -> list[ProgramOp]:
    """The ops, with those that begin a second run after the backward op before them.

    Args:
        ops: In the order in which they were traced.
        regions: Of ops by name, those outside left out.
    """
    result: list[ProgramOp] = []
    triggers: dict[Region, str | None] = {}
    made: dict[Region, set[str | None]] = {}
    previous: str | None = None
    for op in ops:
        run = second_run(regions.get(op.name, ())) if op.phase == BACKWARD else ()
        if run:
            trigger, own = triggers.setdefault(run, previous), made.setdefault(run, set())
            follows = not own.isdisjoint(op.reads)
            if follows or not op.view:
                own.update(op.results)
            if trigger is not None and not follows and not op.view:
                op = replace(op, after=(*op.after, trigger))
        if op.phase == BACKWARD and not op.view:
            previous = op.name
        result.append(op)
    return result


def second_run(region: Region) -> Region:
    """The innermost run of a region that computes something again; empty if there is none."""
    while region and region[-1][1] == 0:
        region = region[:-1]
    return region
