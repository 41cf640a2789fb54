"""``gnnplace shard MODEL --executable``: strategies that DTensor can run, and running them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from gnnplace.cli.commands import check_output, say
from gnnplace.errors import ExecutionError, InputError
from gnnplace.sharding.files import write_sharding
from gnnplace.sharding.strategy import Parts
from gnnplace.splitting.tables.costs import MeshMachine
from gnnplace.splitting.tables.layout import default_mesh

if TYPE_CHECKING:
    from gnnplace.splitting.run.plan import Planned, ShardPlan
    from gnnplace.splitting.run.planning import LayerGraph
    from gnnplace.splitting.run.sharded import ShardRun
    from gnnplace.zoo import Workload

DEVICES = 2  # Where ``--devices`` does not say.
COLUMNS = ("total", "compute", "reduce", "gradients", "reshard")


def shard_run(args: Namespace) -> int:
    """Plans, saves, prints and, if asked to, runs an executable strategy."""
    if args.output is not None:
        check_output(args.output)
    devices = DEVICES if args.devices is None else args.devices
    if args.execute:
        return _execute(args, devices)
    if args.plan is not None:
        raise InputError("--plan: only --execute runs a plan")
    if args.rules:
        return _rules(args, devices)
    made = _planned(args, devices)
    if args.tables is not None:
        write_sharding(args.tables, made.problem)
    if args.output is not None:
        made.plan.save(args.output)
    _write(json.dumps(_data(made)) if args.json else "\n".join(_lines(made)))
    return 0


def _rules(args: Namespace, devices: int) -> int:
    """The best strategy of every traced operation over DTensor's own rules."""
    from gnnplace import tracing
    from gnnplace.sharding import best_strategy, warm
    from gnnplace.sharding.captured_placements import placement_problem
    from gnnplace.tracing.layer_placements import placed_step
    from gnnplace.tracing.step import StepModule

    workload = tracing.load(args.what)
    step = StepModule(workload.model, workload.loss, workload.inputs)
    mesh = default_mesh(devices)
    machine = MeshMachine(flops=args.flops, bandwidth=args.bandwidth)
    problem = placement_problem(placed_step(step, workload.name, mesh[0]), mesh, machine)
    if args.tables is not None:
        write_sharding(args.tables, problem)
    warm()
    found = best_strategy(problem)
    data = {"cost": found.cost, "memory": found.memory, "seconds": found.seconds}
    chosen = dict(zip(problem.names, found.configuration, strict=True))
    if args.json:
        _write(json.dumps({**data, "configuration": chosen, "exact": found.exact}))
        return 0
    one = problem.value((0,) * len(problem.names))
    split = sum(k > 0 for k in found.configuration)
    _write(
        f"{problem.name} on a mesh of {' x '.join(map(str, mesh))} devices, {len(problem.names)} "
        f"operations and parameters, {split} of them split: predicted {1e3 * found.cost:.4g} ms "
        f"a step, {1e3 * one:.4g} ms on one device; searched for {found.seconds:.3f} s"
    )
    return 0


def load_layers(spec: str) -> LayerGraph:
    """The layers of the model that a spec names; without its tensors where that can be.

    Raises:
        InputError, CaptureError: there is no such model, or it cannot be captured.
    """
    from gnnplace import tracing
    from gnnplace.errors import CaptureError

    try:
        return _layers(tracing.load(spec, fake=True))
    except (CaptureError, InputError):  # what it does may depend on its numbers
        return _layers(tracing.load(spec))


def _layers(workload: Workload) -> LayerGraph:
    from gnnplace.splitting.run.planning import layer_graph
    from gnnplace.tracing.step import default_loss

    loss = workload.loss or default_loss
    return layer_graph(workload.model, workload.inputs, loss, workload.name)


def _planned(args: Namespace, devices: int) -> Planned:
    from gnnplace.splitting.run.planning import plan_for

    machine = MeshMachine(flops=args.flops, bandwidth=args.bandwidth)
    mesh = default_mesh(devices)
    return plan_for(load_layers(args.what), mesh, machine, memory_limit=args.memory_limit)


def _lines(made: Planned) -> list[str]:
    seconds = made.result.seconds
    return [*plan_lines(made.plan), f"searched for {seconds:.3f} s, {_proof(made)}"]


def _proof(made: Planned) -> str:
    return "proven best" if made.result.exact else "not proven best"


def plan_lines(plan: ShardPlan) -> list[str]:
    """A plan for people: layers in words, predicted cost in parts beside data parallelism."""
    mesh = " x ".join(str(n) for n in plan.mesh)
    best, parallel = plan.predicted, plan.data_parallel
    return [
        f"{plan.model} on a mesh of {mesh} devices: predicted {1e3 * best.total:.4g} ms a step",
        *(f"  {line}" for line in plan.lines()),
        f"{'predicted':16}  " + " ".join(f"{column:>10}" for column in COLUMNS) + "  memory",
        _part_line("this strategy", best),
        _part_line("data parallelism", parallel),
        f"{parallel.total / best.total:.3g} times as fast as data parallelism, as predicted",
    ]


def _part_line(name: str, parts: Parts) -> str:
    seconds = (parts.total, parts.compute, parts.reduction, parts.gradient, parts.resharding)
    columns = " ".join(f"{1e3 * value:7.4g} ms" for value in seconds)
    return f"{name:16}  {columns}  {parts.memory / 1e9:.4g} GB a device"


def _data(made: Planned) -> dict[str, Any]:
    return {
        "cost": made.result.cost,
        "memory": made.result.memory,
        "configuration": dict(zip(made.problem.names, made.result.configuration, strict=True)),
        "seconds": made.result.seconds,
        "exact": made.result.exact,
        "layers": {layer.name: layer.words for layer in made.plan.layers},
        "predicted": vars(made.plan.predicted),
        "data_parallel": vars(made.plan.data_parallel),
    }


def _execute(args: Namespace, devices: int) -> int:
    from gnnplace.splitting.run.plan import read_shard_plan
    from gnnplace.splitting.run.sharded import run_sharded

    plan = None if args.plan is None else read_shard_plan(args.plan)
    if plan is not None:
        count = 1
        for size in plan.mesh:
            count *= size
        if args.devices not in (None, count):
            raise InputError(f"--devices: the plan {args.plan!r} is for {count} devices")
        devices = count
    say(f"running on {devices} process" + "es" * (devices != 1))
    done = run_sharded(
        _maker(args.what),
        devices,
        plan=plan,
        steps=args.steps,
        timeout=args.timeout,
        memory_limit=args.memory_limit,
    )
    if args.output is not None:
        done.plan.save(args.output)
    _write(json.dumps(_run_data(done)) if args.json else "\n".join(_run_lines(done, devices)))
    if not done.verification.passed:
        raise ExecutionError(f"{args.what}: {done.verification.summary()}")
    return 0


def _maker(spec: str) -> Callable[[], Workload]:
    def make() -> Workload:
        from gnnplace import tracing

        return tracing.load(spec)

    return make


def _run_lines(done: ShardRun, devices: int) -> list[str]:
    from gnnplace.runtime.workers import available_cores

    cores = len(available_cores())
    shared = f"; {devices} processes share {cores} cores" if devices > cores else ""
    return [
        *plan_lines(done.plan),
        f"checked against one device in double precision: {done.verification.summary()}; in the "
        f"model's own precision the worst is {done.single:.2g} relative",
        f"measured over {len(done.steps['sharded'])} steps, forward and backward{shared}; CPU: of "
        "the busiest process, without waiting:",
        f"  {'':24} {'median':>12} {'least':>12} {'CPU':>12}  {'predicted':>12}",
        *_measured(done, "this strategy", "sharded", done.plan.predicted.total),
        *_measured(done, "data parallelism (DDP)", "ddp", done.plan.data_parallel.total),
        *_measured(done, "one device", "one", None),
        _verdict(done),
    ]


def _verdict(done: ShardRun) -> str:
    """What to run, by the median of the measured steps."""
    names = {"sharded": "this strategy", "ddp": "data parallelism (DDP)", "one": "one device"}
    medians = {names[key]: median(times) for key, times in done.steps.items()}
    best = min(medians, key=lambda name: medians[name])
    others = [f"{medians[n] / medians[best]:.2f} x faster than {n}" for n in medians if n != best]
    return f"fastest here, measured (median): {best}, {', '.join(others)}"


def _measured(done: ShardRun, name: str, key: str, predicted: float | None) -> list[str]:
    if key not in done.steps:
        return [f"  {name:24} not run: the batch cannot be cut into equal parts"]
    times = done.steps[key]
    columns = [median(times), min(times), done.cpu[key], *([predicted] if predicted else [])]
    return [f"  {name:24}" + " ".join(f"{1e3 * seconds:9.4g} ms" for seconds in columns)]


def _run_data(done: ShardRun) -> dict[str, Any]:
    worst = done.verification.different[:1]
    return {
        "measured": {"sharded": done.sharded, "ddp": done.ddp, "one_device": done.one},
        "measured_cpu": done.cpu,
        "predicted": vars(done.plan.predicted) | {"total": done.plan.predicted.total},
        "data_parallel": vars(done.plan.data_parallel) | {"total": done.plan.data_parallel.total},
        "passed": done.verification.passed,
        "worst": worst[0].relative if worst else 0.0,
        "worst_single": done.single,
        "layers": {layer.name: layer.words for layer in done.plan.layers},
    }


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
