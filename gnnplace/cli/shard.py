"""``gnnplace shard``: the best way to split every layer over the devices."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from gnnplace.errors import InputError
from gnnplace.report.frontier import Trade, check_drawable, frontier_svg, write_frontier
from gnnplace.sharding import (
    Frontier,
    ShardingProblem,
    ShardingResult,
    best_strategy,
    cheapest_within,
    pareto_frontier,
    read_sharding,
    warm,
    warm_frontier,
)
from gnnplace.sharding.configurations import Space
from gnnplace.sharding.costs import Machine, sharding_problem
from gnnplace.sharding.device_counts import device_profile, fewest_devices, powers_of_two
from gnnplace.sharding.files import write_sharding
from gnnplace.sharding.layers import Network
from gnnplace.sharding.markov_chain import random_search
from gnnplace.sharding.networks.registry import NETWORKS, build_network
from gnnplace.sharding.rivals import expert, greedy
from gnnplace.sharding.strategy import Parts, Setting
from gnnplace.splitting.tables.network import captured_network

MOST_DEVICES = 1024
INFEASIBLE = 3  # Exit status: on no number of devices does anything fit.
PROPOSALS = 1_000_000  # Of the random search: less than a second.
COLUMNS = ("total", "compute", "reduce", "gradients", "reshard")


def shard(args: Namespace) -> int:
    """Prints the best strategy of a sharding problem, or all that no other beats."""
    if args.executable or args.execute or args.rules:
        from gnnplace.cli.shard_run import shard_run

        return shard_run(args)
    if args.plan is not None:
        raise InputError("--plan: only --execute runs a plan")
    _check(args)
    problem, setting = _read(args)
    if args.tables is not None:
        write_sharding(args.tables, problem)
    if args.profile:
        return _profile(setting, args)
    if args.pareto:
        return _frontier(problem, args, network=setting is not None)
    result = _best(problem, args.memory_limit)
    if args.json:
        _write_json(_data(problem, result))
    else:
        _write("\n".join(_text(problem, setting, result)))
    return 0


def _check(args: Namespace) -> None:
    """Refuses options that would have no effect."""
    if args.epsilon and not args.pareto:
        raise InputError("--epsilon: only --pareto has an error to allow")
    if args.output is not None and not args.pareto:
        raise InputError("--output: only the frontier of --pareto is drawn")
    if args.pareto and args.profile:
        raise InputError("--pareto, --profile: one of them at a time")


def _text(problem: ShardingProblem, setting: Setting | None, result: ShardingResult) -> list[str]:
    return _network_lines(setting, problem, result) if setting else _lines(problem, result)


def _read(args: Namespace) -> tuple[ShardingProblem, Setting | None]:
    """The problem of a file, or of a network by name on ``--devices``."""
    if args.what.endswith(".json") or Path(args.what).is_file():
        if args.devices is not None or args.exactly or args.powers_of_two:
            told = "--devices, --exactly, --powers-of-two"
            raise InputError(f"{told}: the sharding file has its own configurations")
        return read_sharding(args.what), None
    devices = 8 if args.devices is None else args.devices
    if not 1 <= devices <= MOST_DEVICES:
        raise InputError(f"--devices: {devices} is not between 1 and {MOST_DEVICES}")
    machine = Machine(flops=args.flops, bandwidth=args.bandwidth)
    space = Space(args.exactly, args.powers_of_two)
    setting = Setting(_network(args.what), devices, machine, space)
    return sharding_problem(setting.network, devices, machine, space=space), setting


def _network(what: str) -> Network:
    """A built-in network, or the layers of a captured model."""
    if what in NETWORKS or not is_model(what):
        return build_network(what)
    from gnnplace.cli.shard_run import load_layers

    return captured_network(load_layers(what).operations)


def is_model(what: str) -> bool:
    """Whether it is a model's name: ``module:callable``, ``hf:CONFIG`` or a zoo name."""
    if ":" in what:
        return True
    from gnnplace import zoo

    return what.partition("?")[0] in zoo.names()


def _network_lines(setting: Setting, problem: ShardingProblem, result: ShardingResult) -> list[str]:
    """The strategy in words, the cost in parts, and what others would have cost."""
    width = max(len(layer.name) for layer in setting.network.layers)
    words = zip(setting.network.layers, setting.words(result.configuration), strict=True)
    best = setting.parts(result.configuration)
    rows = {name: setting.parts(rival) for name, rival in _rivals(setting, problem).items()}
    head = f"{setting.network.name} on {setting.devices} devices: {best.total * 1e3:.4g} ms a step"
    proof = _proof(result)
    return [
        f"{head} in the cost model ({proof})",
        *(f"  {layer.name:{width}}  {text}" for layer, text in words),
        f"{'':16}  " + " ".join(f"{column:>10}" for column in COLUMNS) + "  memory",
        _part_line("this strategy", best),
        *(_part_line(name, parts) for name, parts in rows.items()),
        f"{rows['data parallelism'].total / best.total:.3g} times as fast as data parallelism; "
        f"searched for {result.seconds:.3f} s",
    ]


def _proof(result: ShardingResult) -> str:
    if result.exact:
        return "proven best"
    if result.gap is None:
        return "not proven best"
    return f"at most {100 * result.gap:.2g} % of it above the best; a proof would take more memory"


def _rivals(setting: Setting, problem: ShardingProblem) -> dict[str, tuple[int, ...]]:
    start = setting.data_parallel()
    return {
        "data parallelism": start,
        "expert": expert(setting, problem),
        "greedy": greedy(problem),
        "random search": random_search(problem, start, seed=0, proposals=PROPOSALS),
    }


def _part_line(name: str, parts: Parts) -> str:
    seconds = (parts.total, parts.compute, parts.reduction, parts.gradient, parts.resharding)
    columns = " ".join(f"{1e3 * value:7.4g} ms" for value in seconds)
    return f"{name:16}  {columns}  {parts.memory / 1e9:.4g} GB a device"


def _best(problem: ShardingProblem, memory_limit: float | None) -> ShardingResult:
    if memory_limit is None:
        warm()
        return best_strategy(problem, bounded=True)
    warm_frontier()
    return cheapest_within(problem, memory_limit)


def _frontier(problem: ShardingProblem, args: Namespace, *, network: bool) -> int:
    if args.output is not None:
        check_drawable(args.output)
        if not problem.has_memory:
            raise InputError("--output: a problem without memory tables has no frontier to draw")
    warm_frontier()
    answer = pareto_frontier(problem, args.epsilon, args.memory_limit)
    if args.output is not None:
        _draw(problem, answer, drawn=args.output, network=network)
    if args.json:
        _write_json([_data(problem, point) for point in answer.points])
        return 0
    _write(_headline(problem, answer))
    _write(f"{'cost':>16}  {'memory (bytes)':>16}")
    for k, point in enumerate(answer.points):
        memory = "unknown" if point.memory is None else f"{point.memory:.10g}"
        knee = "  <- knee" if k == answer.knee else ""
        _write(f"{point.cost:16.10g}  {memory:>16}{knee}")
    _write(f"searched for {answer.seconds:.3f} s")
    return 0


def _headline(problem: ShardingProblem, answer: Frontier) -> str:
    proof = "exact" if answer.epsilon == 0 else f"within {answer.epsilon:.3g} of the least cost"
    return f"{problem.name} on {problem.devices} devices: {len(answer.points)} strategies ({proof})"


def _draw(problem: ShardingProblem, answer: Frontier, *, drawn: str, network: bool) -> None:
    """Writes the picture; a network's in milliseconds and gigabytes, else as in the tables."""
    scale, units = ((1e-9, 1e3), ("GB", "ms")) if network else ((1.0, 1.0), ("bytes", ""))
    trades = []
    for point in answer.points:
        memory, time = scale[0] * (point.memory or 0.0), scale[1] * point.cost
        told = f"{time:.4g} {units[1]}".rstrip() + f", {memory:.4g} {units[0]} a device"
        trades.append(Trade(memory, time, told))
    title = _headline(problem, answer)
    axes = (f"memory of a device ({units[0]})", f"cost of a step ({units[1] or 'as in the file'})")
    note = f"predicted by the cost model; searched for {answer.seconds:.3g} s"
    svg = frontier_svg(trades, answer.knee, title=title, note=note, axes=axes)
    write_frontier(drawn, svg, title)


def _profile(setting: Setting | None, args: Namespace) -> int:
    """The best strategy's time and memory for 1, 2, 4 … devices."""
    if setting is None:
        raise InputError("--profile: a sharding file is for one number of devices; name a network")
    warm_frontier()
    found = device_profile(
        setting.network,
        powers_of_two(setting.devices),
        setting.machine,
        memory_limit=args.memory_limit,
        space=setting.space,
    )
    if args.json:
        rows = [(n, (r.cost, r.memory) if r else (None, None)) for n, r in found.items()]
        _write_json([{"devices": n, "cost": t, "memory": m} for n, (t, m) in rows])
    else:
        _write("\n".join(_profile_lines(found, args.memory_limit is not None)))
    return 0 if fewest_devices(found) is not None else INFEASIBLE


def _profile_lines(found: dict[int, ShardingResult | None], limited: bool) -> list[str]:
    lines = []
    for count, result in found.items():
        text = "nothing fits"
        if result is not None:
            text = f"{1e3 * result.cost:10.4g} ms  {(result.memory or 0) / 1e9:.4g} GB a device"
        lines.append(f"{count:6} devices  {text}")
    fewest = fewest_devices(found)
    if fewest is not None and limited:
        lines.append(f"fewest devices that fit: {fewest}")
    return lines


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
        **({} if result.exact or result.bound is None else {"bound": result.bound}),
    }


def _lines(problem: ShardingProblem, result: ShardingResult) -> list[str]:
    width = max(len(name) for name in problem.names)
    pairs = zip(problem.names, result.configuration, problem.cost, strict=True)
    lines = [f"  {name:{width}}  configuration {k} of {len(cost)}" for name, k, cost in pairs]
    memory = "" if result.memory is None else f", memory {result.memory:.6g} bytes"
    proof = _proof(result)
    head = f"{problem.name} on {problem.devices} devices: cost {result.cost:.10g}{memory} ({proof})"
    return [head, *lines, f"searched for {result.seconds:.3f} s"]
