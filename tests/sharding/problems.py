"""Small random sharding problems, brute force, and files of them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from gnnplace.sharding import Edge, ShardingProblem

PUBLISHED = Path(__file__).parents[2].parent / "shared" / "data" / "pase"


def published(name: str) -> Path:
    path = PUBLISHED / f"{name}.json"
    if not path.exists():
        pytest.skip(f"the published cost tables are not here: {name}")
    return path


def random_problem(
    seed: int,
    *,
    nodes: int = 5,
    edges: int = 6,
    configurations: int = 4,
    memory: bool = False,
    whole: bool = False,
) -> ShardingProblem:
    """Parallel edges and disconnected nodes occur; ``whole`` numbers make many ties."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.integers(0, 6, shape).astype(float) if whole else rng.random(shape)

    sizes = rng.integers(1, configurations + 1, nodes)
    pairs = [
        rng.choice(nodes, 2, replace=False) for _ in range(edges if nodes > 1 else 0)
    ]
    return ShardingProblem(
        "random",
        4,
        tuple(f"n{i}" for i in range(nodes)),
        tuple(draw(k) for k in sizes),
        tuple(
            Edge(
                int(u),
                int(v),
                draw(sizes[u], sizes[v]),
                draw(sizes[u], sizes[v]) if memory and rng.random() < 0.5 else None,
            )
            for u, v in pairs
        ),
        tuple(draw(k) if memory and rng.random() < 0.8 else None for k in sizes),
    )


def random_problems(*, memory: bool = False) -> st.SearchStrategy[ShardingProblem]:
    return st.builds(
        random_problem,
        st.integers(0, 2**31),
        nodes=st.integers(1, 6),
        edges=st.integers(0, 10),
        configurations=st.integers(1, 4),
        memory=st.just(memory),
        whole=st.booleans(),
    )


def clique(size: int, configurations: int, seed: int = 0) -> ShardingProblem:
    rng = np.random.default_rng(seed)
    k = configurations
    return ShardingProblem(
        "clique",
        4,
        tuple(f"n{i}" for i in range(size)),
        tuple(rng.random(k) for _ in range(size)),
        tuple(
            Edge(u, v, rng.random((k, k)))
            for u, v in itertools.combinations(range(size), 2)
        ),
    )


def every_point(problem: ShardingProblem) -> list[tuple[float, float]]:
    """Cost and memory of every strategy, by enumeration."""
    choices = itertools.product(*(range(len(cost)) for cost in problem.cost))
    return [(problem.value(c), problem.bytes(c) or 0.0) for c in choices]


def write_files(folder: Path, problem: ShardingProblem) -> Path:
    """Writes ``NAME.json`` and ``NAME.npz``; tables that are one object share one array."""
    arrays: dict[str, np.ndarray] = {}
    seen: dict[int, str] = {}

    def key(table):
        name = seen.setdefault(id(table), f"a{len(seen)}")
        arrays[name] = table
        return name

    def entry(kind, cost, memory):
        return {
            **kind,
            "cost": key(cost),
            **({"memory": key(memory)} if memory is not None else {}),
        }

    memories = problem.memory or (None,) * len(problem.names)
    data = {
        "format": "gnnplace-sharding",
        "version": 1,
        "name": problem.name,
        "devices": problem.devices,
        "nodes": [
            entry({"name": n}, c, m)
            for n, c, m in zip(problem.names, problem.cost, memories, strict=True)
        ],
        "edges": [
            entry({"u": problem.names[e.u], "v": problem.names[e.v]}, e.cost, e.memory)
            for e in problem.edges
        ],
    }
    path = folder / f"{problem.name}.json"
    path.write_text(json.dumps(data))
    np.savez(folder / f"{problem.name}.npz", **arrays)
    return path


def expected_frontier(problem, slack=1e-9):
    """By enumeration; differences up to ``slack``, of memory relative, are rounding."""
    found: list[tuple[float, float]] = []
    for time, memory in sorted(every_point(problem)):
        if not found or memory < found[-1][1] - slack * max(1.0, memory):
            if found and time <= found[-1][0] + slack:
                found.pop()
            found.append((time, memory))
    return found


def points_of(answer):
    return [(point.cost, point.memory or 0.0) for point in answer.points]
