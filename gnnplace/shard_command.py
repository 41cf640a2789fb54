"""``gnnplace shard``: the best way to split every layer over the devices."""

from __future__ import annotations

import json
import sys
from typing import Any

from jsonargparse import Namespace

from gnnplace.sharding import ShardingProblem, ShardingResult, best_strategy, read_sharding, warm


def shard(args: Namespace) -> int:
    """Prints the best strategy of a sharding problem."""
    problem = read_sharding(args.what)
    warm()
    result = best_strategy(problem)
    if args.json:
        _write(json.dumps(_data(problem, result), allow_nan=False))
    else:
        _write("\n".join(_lines(problem, result)))
    return 0


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
