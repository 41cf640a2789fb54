"""``gnnplace shard``: the best way to split every layer over the devices."""

from __future__ import annotations

import json
import sys
from typing import Any

from jsonargparse import Namespace

from gnnplace.errors import InputError
from gnnplace.sharding import (
    ShardingProblem,
    ShardingResult,
    best_strategy,
    cheapest_within,
    pareto_frontier,
    read_sharding,
    warm,
    warm_frontier,
)


def shard(args: Namespace) -> int:
    """Prints the best strategy of a sharding problem, or all that no other beats."""
    if args.epsilon and not args.pareto:
        raise InputError("--epsilon: only --pareto has an error to allow")
    problem = read_sharding(args.what)
    if args.pareto:
        return _frontier(problem, args)
    result = _best(problem, args.memory_limit)
    if args.json:
        _write_json(_data(problem, result))
    else:
        _write("\n".join(_lines(problem, result)))
    return 0


def _best(problem: ShardingProblem, memory_limit: float | None) -> ShardingResult:
    if memory_limit is None:
        warm()
        return best_strategy(problem)
    warm_frontier()
    return cheapest_within(problem, memory_limit)


def _frontier(problem: ShardingProblem, args: Namespace) -> int:
    warm_frontier()
    answer = pareto_frontier(problem, args.epsilon, args.memory_limit)
    if args.json:
        _write_json([_data(problem, point) for point in answer.points])
        return 0
    proof = "exact" if answer.epsilon == 0 else f"within {answer.epsilon:.3g} of the least cost"
    _write(
        f"{problem.name} on {problem.devices} devices: {len(answer.points)} strategies ({proof})"
    )
    _write(f"{'cost':>16}  {'memory (bytes)':>16}")
    for point in answer.points:
        memory = "unknown" if point.memory is None else f"{point.memory:.10g}"
        _write(f"{point.cost:16.10g}  {memory:>16}")
    _write(f"searched for {answer.seconds:.3f} s")
    return 0


def _write_json(data: Any) -> None:
    _write(json.dumps(data, allow_nan=False))


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")


def _data(problem: ShardingProblem, result: ShardingResult) -> dict[str, Any]:
    return {
        "cost": result.cost,
        "memory": result.memory,
        "configuration": dict(zip(problem.names, result.configuration, strict=True)),
        "seconds": result.seconds,
        "exact": result.exact,
    }


def _lines(problem: ShardingProblem, result: ShardingResult) -> list[str]:
    width = max(len(name) for name in problem.names)
    pairs = zip(problem.names, result.configuration, problem.cost, strict=True)
    lines = [f"  {name:{width}}  configuration {k} of {len(cost)}" for name, k, cost in pairs]
    memory = "" if result.memory is None else f", memory {result.memory:.6g} bytes"
    proof = "proven best" if result.exact else "not proven best"
    head = f"{problem.name} on {problem.devices} devices: cost {result.cost:.10g}{memory} ({proof})"
    return [head, *lines, f"searched for {result.seconds:.3f} s"]
