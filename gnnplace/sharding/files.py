"""Writing cost tables: ``NAME.json`` beside ``NAME.npz``, for ``problem.read_sharding``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gnnplace.arrays import FloatArray
from gnnplace.files import write_arrays, write_json
from gnnplace.sharding.problem import ShardingProblem


def write_sharding(path: str | Path, problem: ShardingProblem) -> None:
    """Writes a problem's two files, each at once or not at all; tables that are one stay one.

    Args:
        path: the path of the JSON file; the arrays go beside it.
        problem: the tables.

    Raises:
        InputError: the folder does not exist or cannot be written to.
    """
    store = _Store()
    memory = problem.memory or (None,) * len(problem.names)
    nodes = [
        {"name": name, **store.keys(cost, bytes_)}
        for name, cost, bytes_ in zip(problem.names, problem.cost, memory, strict=True)
    ]
    edges = [
        {"u": problem.names[e.u], "v": problem.names[e.v], **store.keys(e.cost, e.memory)}
        for e in problem.edges
    ]
    write_arrays(Path(path).with_suffix(".npz"), store.arrays)
    write_json(
        path,
        {
            "format": "gnnplace-sharding",
            "version": 1,
            "name": problem.name,
            "devices": problem.devices,
            "nodes": nodes,
            "edges": edges,
        },
    )


class _Store:
    """Arrays under names; the same array has one name."""

    def __init__(self) -> None:
        self.arrays: dict[str, FloatArray] = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def keys(self, cost: FloatArray, memory: FloatArray | None) -> dict[str, str]:
        found = {"cost": self._name(cost)}
        if memory is not None:
            found["memory"] = self._name(memory)
        return found

    def _name(self, array: FloatArray) -> str:
        key = (array.shape, array.tobytes())
        if key not in self._names:
            self._names[key] = f"a{len(self.arrays)}"
            self.arrays[self._names[key]] = array
        return self._names[key]
