"""Accelerate's own device maps as a baseline: what ``device_map="balanced"`` gives, in our step.

What accelerate balances is memory for inference: bytes of parameters, in the order of the modules.
It knows neither times nor activations, and every module of a class in ``_no_split_modules`` of the
model (as Hugging Face's models name theirs) stays whole. Its map is scored as any placement is; it
is not repaired where it does not fit.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gnnplace.errors import GnnplaceError, InfeasibleError
from gnnplace.placers.base import Placer, Result
from gnnplace.placers.search.found import Found
from gnnplace.placers.search.space import SearchSpace
from gnnplace.problem import Problem
from gnnplace.tracing.loading import load

NAME = "accelerate"
NOTE = "device_map='balanced': accelerate balances the memory of inference; the step is ours"
Device = int | str


class Accelerate(Placer):
    """Hugging Face accelerate's placement of a model by its modules.

    Args:
        module: the model; its parameters may be without memory.
    """

    name = NAME

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def supports(self, problem: Problem) -> str | None:
        """Why it cannot place the problem: accelerate is not installed."""
        try:
            import accelerate  # noqa: F401
        except ImportError:
            return "is not installed; pip install 'gnnplace[peers]'"
        return None

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        """The ops where their modules are, in the best order that list scheduling finds."""
        cluster = space.problem.cluster
        room = {i: device.memory - device.reserve for i, device in enumerate(cluster.devices)}
        device = on_devices(space.problem, balanced_map(self._module, room))
        return Found(device, space.sequence(device)[1], NOTE)

    def _repaired(self, space: SearchSpace, found: Found) -> Found:
        """As it was found: the map is accelerate's."""
        return found


def accelerate_result(model: str, problem: Problem) -> Result | tuple[str, GnnplaceError]:
    """Accelerate's placement of a named model, or its name and why there is none.

    Args:
        model: as ``capture`` takes it.
        problem: the model on a cluster.
    """
    try:
        return Accelerate(load(model, fake=True).model).place(problem)
    except GnnplaceError as error:
        return NAME, error


def balanced_map(module: nn.Module, room: Mapping[int, float]) -> dict[str, int]:
    """Accelerate's device of each module, by name.

    Args:
        module: the model.
        room: bytes of each device; all devices count as GPUs.

    Raises:
        InfeasibleError: accelerate would keep modules on disk; names one.
    """
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    whole: Any = list(getattr(module, "_no_split_modules", None) or [])
    most: Any = {index: int(size) for index, size in room.items()}
    with _quiet():
        most = get_balanced_memory(module, max_memory=most, no_split_module_classes=whole)
        found: dict[str, Device] = dict(
            infer_auto_device_map(module, max_memory=most, no_split_module_classes=whole)
        )
    kept = next((name for name, device in found.items() if not isinstance(device, int)), None)
    if kept is not None:
        raise InfeasibleError(f"{NAME}: would keep module {kept!r} on {found[kept]}")
    return {name: int(device) for name, device in found.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Within it accelerate does not say that the GPUs of the cluster are not here."""
    logger = logging.getLogger("accelerate.utils.modeling")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def on_devices(problem: Problem, by_module: Mapping[str, int]) -> NDArray[np.int32]:
    """Device of each op: that of the longest module name its own begins with, by units. [n]

    An op of no such module runs where its first input is made, as under accelerate's hooks. A unit
    goes where most of its ops go.
    """
    graph = problem.graph
    chosen = [_device_of(module or "", by_module) for module in problem.module]
    votes: list[Counter[int]] = [Counter() for _ in range(problem.num_units)]
    for op in graph.topological_order.tolist():
        if chosen[op] is None:
            before = (chosen[p] for p in graph.predecessors(op).tolist())
            chosen[op] = next((device for device in before if device is not None), None)
        if (device := chosen[op]) is not None:
            votes[problem.unit_of[op]][device] += 1
    most = [vote.most_common(1)[0][0] if vote else 0 for vote in votes]
    return np.array(most, dtype=np.int32)[problem.unit_of]


def _device_of(module: str, by_module: Mapping[str, int]) -> int | None:
    parts = module.split(".")
    around = (".".join(parts[:length]) for length in range(len(parts), -1, -1))
    return next((by_module[name] for name in around if name in by_module), None)
