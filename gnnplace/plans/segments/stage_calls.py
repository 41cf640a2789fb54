"""Cuts a model's calls into the stages of a plan, at any call.

Between two stages, the values cross that earlier stages compute from parameters and later stages
read; a value that skips stages is passed through each of them. Values that come from inputs,
buffers and constants alone (masks, positions) are computed by every stage that reads them. A call
that only updates a buffer belongs to the stage of the call after it.

Random numbers do not depend on the device that draws them. Dropout draws from the process's
generator, so that stages, shards and recomputation would otherwise draw different numbers. Before
every op that torch marks as random, the generator is seeded by the step, the micro-batch and the
number of the draw. The same is done to the user's model when results are compared (`drawn_alike`),
so that both draw the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gnnplace.errors import InputError, MismatchError
from gnnplace.torch_names import pytree
from gnnplace.tracing import (
    CALL,
    PARAMETER,
    CallGraph,
    CallRef,
    SeededAgain,
    function_name,
)

ATTENTION = "scaled_dot_product_attention"
POSITION = 4
LARGE = 2**61 - 1  # a prime: seeds stay below 2^63


@dataclass(frozen=True)
class StageCalls:
    """The calls of one stage.

    Attributes:
        calls: Indices into the graph's calls, in order.
        entering: Values that the stage before hands over.
        leaving: Values that it hands over to the stage after.
        again: Runs of `calls` that are recomputed: first position, and the one after the last.
        parameters: Names of the parameters that it reads, in the order of reading.
    """

    calls: tuple[int, ...]
    entering: tuple[int, ...]
    leaving: tuple[int, ...]
    again: tuple[tuple[int, int], ...]
    parameters: tuple[str, ...]


def make_stage_calls(
    graph: CallGraph,
    members: Sequence[Sequence[str]],
    again: Sequence[Sequence[Sequence[str]]],
) -> tuple[StageCalls, ...]:
    """Return the calls of every stage of a plan.

    Args:
        graph: The calls of one micro-batch.
        members: Names of each stage's calls.
        again: Names of the calls of every run that is recomputed, for each stage.

    Raises:
        MismatchError: These are not the model's calls, or not in their order.
        InputError: Several stages use a buffer that the forward pass changes.
    """
    stage_of = _stages(graph, members)
    makers = {v: i for i, call in enumerate(graph.calls) for v in call.results}
    stage_calls = [
        _own(graph, stage_of, makers, stage) for stage in range(len(members))
    ]
    _check_state(graph, stage_calls)
    crossing = _crossing(graph, stage_of, makers, stage_calls)
    return tuple(
        StageCalls(
            calls,
            crossing[stage],
            crossing[stage + 1],
            _runs(graph, calls, again[stage]),
            _parameters(graph, calls),
        )
        for stage, calls in enumerate(stage_calls)
    )


def moved_to(graph: CallGraph, device: torch.device) -> CallGraph:
    """Return the same calls for a device; devices among their arguments are replaced by it.

    Args:
        graph: Calls that were recorded where the model was, on one device.
        device: The device that they run on.
    """

    def there(leaf: object) -> object:
        if isinstance(leaf, torch.device):
            return device
        return leaf

    calls = tuple(
        replace(
            c,
            args=pytree.tree_map(there, c.args),
            kwargs=pytree.tree_map(there, c.kwargs),
        )
        for c in graph.calls
    )
    constants = {value: tensor.to(device) for value, tensor in graph.constants.items()}
    return replace(graph, calls=calls, constants=constants)


def _stages(graph: CallGraph, members: Sequence[Sequence[str]]) -> dict[int, int]:
    """Return the stage of every call that is in one.

    A call that only keeps a buffer up to date is in the stage of the call after it.

    Raises:
        MismatchError: These are not the model's calls, or not in their order.
    """
    index = {call.name: i for i, call in enumerate(graph.calls)}
    stages: dict[int, int] = {}
    for stage, names in enumerate(members):
        for name in names:
            if name not in index:
                raise MismatchError(
                    f"plan: stages[{stage}].members: the model has no call {name!r}; make a plan "
                    "for this model"
                )
            stages[index[name]] = stage
    order = [stages[i] for i in sorted(stages)]
    if order != sorted(order):
        raise MismatchError(
            "plan: stages: their calls are not in the order of the model's"
        )
    for i, call in enumerate(graph.calls):
        if i not in stages and any(
            graph.values[v].source == PARAMETER for v in call.reads
        ):
            raise MismatchError(
                f"plan: stages: no stage has the model's call {call.name!r}"
            )
    changing = {i for indices in graph.changed.values() for i in indices}
    later = len(members) - 1
    for i in reversed(range(len(graph.calls))):
        later = stages.get(i, later)
        if i in changing:
            stages.setdefault(i, later)
    return stages


def _check_state(graph: CallGraph, own: Sequence[Sequence[int]]) -> None:
    """Check that no buffer that one stage changes is used by another, which would have its own.

    Raises:
        InputError: There is one; the message names the buffer and the stages.
    """
    for name, changing in graph.changed.items():
        users = {*graph.readers(name), *changing}
        stages = [stage for stage, calls in enumerate(own) if users.intersection(calls)]
        if len(stages) > 1:
            raise InputError(
                f"plan: buffer {name!r} is changed by the forward pass and used in stages "
                f"{stages[0]} and {stages[-1]}, which would each have their own; keep these layers "
                "in one stage, or give a plan without stages (pp=1)"
            )


def _own(
    graph: CallGraph, stage_of: dict[int, int], made: dict[int, int], stage: int
) -> tuple[int, ...]:
    """Return the calls of a stage, with those in no stage that make what it reads of inputs."""
    calls = {i for i, s in stage_of.items() if s == stage}
    todo = [v for i in calls for v in graph.calls[i].reads]
    if stage == max(stage_of.values()):
        todo += [
            x.value for x in pytree.tree_leaves(graph.output) if isinstance(x, CallRef)
        ]
    while todo:
        maker = made.get(todo.pop())
        if maker is not None and maker not in calls and maker not in stage_of:
            calls.add(maker)
            todo += graph.calls[maker].reads
    return tuple(sorted(calls))


def _crossing(
    graph: CallGraph,
    stage_of: dict[int, int],
    made: dict[int, int],
    own: Sequence[Sequence[int]],
) -> list[tuple[int, ...]]:
    """Return the values that cross the border before each stage and after the last. [stages + 1]"""
    last: dict[int, int] = {}
    stages = len(own)
    for stage, calls in enumerate(own):
        for i in calls:
            last.update(dict.fromkeys(graph.calls[i].reads, stage))
    for leaf in pytree.tree_leaves(graph.output):
        if isinstance(leaf, CallRef):
            last[leaf.value] = stages - 1
    crossing: list[list[int]] = [[] for _ in range(stages + 1)]
    for value in sorted(last):
        if graph.values[value].source != CALL or made.get(value) not in stage_of:
            continue
        for stage in range(stage_of[made[value]] + 1, last[value] + 1):
            crossing[stage].append(value)
    return [tuple(values) for values in crossing]


def _runs(
    graph: CallGraph, calls: Sequence[int], again: Sequence[Sequence[str]]
) -> tuple[tuple[int, int], ...]:
    """Return the runs of positions in `calls` that are recomputed.

    A run goes from the first to the last of its names; names that the stage does not have are left
    out.
    """
    place = {graph.calls[i].name: k for k, i in enumerate(calls)}
    runs = []
    for names in again:
        places = [place[name] for name in names if name in place]
        if places:
            runs.append((min(places), max(places) + 1))
    return tuple(sorted(runs))


def _parameters(graph: CallGraph, calls: Sequence[int]) -> tuple[str, ...]:
    reads = (graph.values[v] for i in calls for v in graph.calls[i].reads)
    return tuple(dict.fromkeys(v.name for v in reads if v.source == PARAMETER))


def number_draws(graph: CallGraph, some: Sequence[int]) -> dict[int, int]:
    """Return the number among all draws of the first draw of each of some calls, by index."""
    first: dict[int, int] = {}
    for number, index in enumerate(graph.random):
        first.setdefault(index, number)
    return {i: k for i, k in first.items() if i in set(some)}


def derive_seed(base: int, step: int, example: int, number: int) -> int:
    """Return a seed that differs with each of its four arguments.

    Args:
        base: Seed of the run.
        step: Number of the step.
        example: Number of the micro-batch.
        number: Number of the draw.
    """
    seed = base
    for part in (step, example, number):
        seed = (seed * 6364136223846793005 + 1442695040888963407 * (part + 1)) % LARGE
    return seed


class _SharesSeeded(SeededAgain):
    """A mode that seeds the draws of a step, micro-batch after micro-batch.

    Args:
        base: Seed of the run.
        step: Number of the step.
    """

    def __init__(self, base: int, step: int) -> None:
        super().__init__(partial(derive_seed, base, step, 0))
        self._causes = base, step

    def begin(self, example: int) -> None:
        """Begin with a micro-batch."""
        self.begin_with(partial(derive_seed, *self._causes, example))


class _Undropped(TorchFunctionMode):
    """A mode in which attention keeps all its weights."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function_name(func) == ATTENTION:
            args = (
                *args[:POSITION],
                *(0.0,) * (len(args) > POSITION),
                *args[POSITION + 1 :],
            )
            kwargs = {k: 0.0 if k == "dropout_p" else v for k, v in kwargs.items()}
        return func(*args, **kwargs)


@contextmanager
def drawn_alike(
    base: int, step: int, example: int, *, attention: bool = True
) -> Iterator[_SharesSeeded]:
    """Draw the random numbers of a plan's run in a model that runs as it is, and in its gradients.

    Args:
        base: Seed of the run.
        step: Number of the step.
        example: Number of the micro-batch.
        attention: Whether attention drops weights. A part of its heads draws other numbers than
            all.

    Yields:
        The mode that seeds the draws.
    """
    with (
        nullcontext() if attention else _Undropped(),
        _SharesSeeded(base, step) as draws,
    ):
        draws.begin(example)
        yield draws
