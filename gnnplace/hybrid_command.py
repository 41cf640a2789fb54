"""``gnnplace hybrid``: how to use N devices, data-parallel groups of model-parallel devices."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from rich.table import Table

from gnnplace import api
from gnnplace.cluster import Cluster
from gnnplace.commands import check_output, console, say
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.hybrid import (
    Advice,
    Convergence,
    CriticalBatch,
    Fabric,
    PlacedStep,
    Row,
    Splitter,
    Training,
    advise,
    best_data_parallel,
    device_counts,
    gain_at_scale,
    group_sizes,
    hours,
    placed_step,
    preset_of,
    published_gain,
    read_epochs,
    sentence,
)
from gnnplace.hybrid.plot import check_drawable, hybrid_svg, write_hybrid
from gnnplace.hybrid.presets import Preset
from gnnplace.hybrid.published import SOURCE
from gnnplace.hybrid_execution import capture_options, execute_hybrid
from gnnplace.microbatching import with_microbatches
from gnnplace.problem import UPDATE, Problem, read_problem
from gnnplace.report import seconds_text

MICROBATCHES = "1,4"
PREDICTED, ESTIMATED = "predicted from measured op times", "predicted from estimated op times"


def hybrid(args: Namespace) -> int:
    """Prints every split of N devices, the cross-over and the recommendation."""
    if args.execute:
        return execute_hybrid(args)
    _check(args)
    fabric = _fabric(args)
    most = fabric.cluster.num_devices if args.devices is None else args.devices
    counts = device_counts(most)
    training, preset = training_of(args)
    place_on = Placing(args, fabric.cluster)
    splitter = Splitter(fabric, training, place_on, overlap=not args.no_overlap)
    rows = splitter.rows(counts, group_sizes(most, min(args.most, fabric.cluster.num_devices)))
    if not any(row.parts is not None for row in rows):
        raise InfeasibleError(f"hybrid: no split of {most} devices fits; {rows[0].note}")
    origin = _origins(args, most, place_on, training, preset)
    advice = advise(rows)
    if args.output is not None:
        title = f"{args.what} on up to {most} devices: time to converge"
        note = f"step {origin['step']}; epochs {origin['epochs']}"
        write_hybrid(args.output, hybrid_svg(rows, title=title, note=note), title)
    if args.json:
        answer = _data(args, rows, advice, origin, most)
        sys.stdout.write(json.dumps(answer, allow_nan=False) + "\n")
    else:
        _print(args, rows, advice, origin, most)
    return 0


def _check(args: Namespace) -> None:
    """Complains before the work.

    Raises:
        InputError: groups of no devices, inference, or a plot that cannot be written.
    """
    if args.most < 1:
        raise InputError(f"--most {args.most}: must be a positive number of devices")
    if args.forward_only:
        raise InputError("--forward-only: hybrid is about training")
    if args.output is not None:
        check_output(args.output)
        check_drawable(args.output)


def _fabric(args: Namespace) -> Fabric:
    cluster = _cluster(args.what, args.cluster)
    return Fabric(cluster, args.network_latency, args.network_bandwidth)


def _cluster(what: str, cluster: str | None) -> Cluster:
    if cluster is not None:
        return api.resolve_cluster(cluster)
    if is_file(what):
        return read_problem(what).cluster
    raise InputError("hybrid: a model needs --cluster")


def is_file(what: str) -> bool:
    """Whether it names a problem file and not a model."""
    return what.endswith(".json") or Path(what).is_file()


def training_of(args: Namespace) -> tuple[Training, Preset]:
    """What is trained, from the arguments and the family's preset."""
    preset = preset_of(model_name(args.what))
    convergence: Convergence = preset.convergence
    if args.epochs_table is not None:
        if args.least_epochs is not None or args.critical_batch is not None:
            raise InputError("--epochs-table: stands for --least-epochs and --critical-batch")
        convergence = read_epochs(args.epochs_table)
    elif args.least_epochs is not None or args.critical_batch is not None:
        convergence = CriticalBatch(
            _given(args.least_epochs, preset.convergence.least_epochs),
            _given(args.critical_batch, preset.convergence.critical_batch),
            "the command line's, the rest assumed",
        )
    examples = args.examples if args.examples is not None else preset.examples
    return Training(batch_of(args), examples, convergence), preset


def _given(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def model_name(what: str) -> str:
    """Name of a model, or of the problem in a file."""
    return read_problem(what).name if is_file(what) else what


def batch_of(args: Namespace) -> int:
    """Examples of a step of one group: as given, or the model's own batch.

    Raises:
        InputError: a problem file does not say, and neither does the command line.
    """
    if is_file(args.what):
        if args.batch is None:
            raise InputError("--batch: a problem file does not say how many examples a step has")
        return int(args.batch)
    if args.batch is not None:
        raise InputError("--batch: is for problem files; a model says it itself: MODEL?batch=B")
    import torch
    from torch.utils import _pytree as pytree

    from gnnplace.tracing import load

    leaves = pytree.tree_leaves(load(args.what, fake=True).inputs)
    sizes = [x.shape[0] for x in leaves if isinstance(x, torch.Tensor) and x.dim() > 0]
    if not sizes:
        raise InputError(f"{args.what}: no input says how large the batch is")
    return int(sizes[0])


class Placing:
    """Places the model on parts of the cluster, with every number of micro-batches asked for.

    Args:
        args: of the command.
        cluster: whose kinds op times are needed of.
    """

    def __init__(self, args: Namespace, cluster: Cluster) -> None:
        self.args, self.cluster = args, cluster
        self.problems: dict[int, Problem] = {}
        for count in microbatch_counts(args.microbatches or MICROBATCHES):
            try:
                self.problems[count] = self._problem(count)
            except InputError as error:
                if count == 1 or not self.problems:
                    raise
                say(f"not with {count} micro-batches: {error}")
        api.warm([args.placer], progress=say)

    @property
    def has_gradients(self) -> bool:
        """Whether the problems say how large gradients are: some op updates parameters."""
        return any(bool((problem.phase == UPDATE).any()) for problem in self.problems.values())

    @property
    def estimated(self) -> bool:
        """Whether op times were not all measured."""
        return any(bool(problem.estimated.any()) for problem in self.problems.values())

    def _problem(self, count: int) -> Problem:
        args = self.args
        if is_file(args.what):
            whole = read_problem(args.what)
            if args.cluster is not None:
                whole = api.on_cluster(whole, self.cluster)
            return with_microbatches(whole, count)
        options = capture_options(args, count)
        return api.profile(args.what, self.cluster, options=options, progress=say)

    def __call__(self, cluster: Cluster) -> Sequence[PlacedStep]:
        """Placed steps; those that fit.

        Raises:
            InfeasibleError: none does.
        """
        found, error = [], None
        for count, problem in self.problems.items():
            say(
                f"placing {count} micro-batch{'es' if count > 1 else ''} on "
                f"{cluster.num_devices} device{'s' if cluster.num_devices > 1 else ''}"
            )
            try:
                own = api.on_cluster(problem, cluster)
                args = self.args
                result = api.place(own, placer=args.placer, budget=args.budget, seed=args.seed)
                scale = count if is_file(args.what) else 1
                found.append(placed_step(own, result, scale=scale))
            except InfeasibleError as reason:
                error = reason
        if not found:
            raise error or InfeasibleError("nothing was placed")
        return found


def microbatch_counts(text: str) -> list[int]:
    """Numbers of micro-batches from a comma-separated list.

    Raises:
        InputError: not positive numbers.
    """
    parts = [part.strip() for part in str(text).split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"--microbatches {text!r}: must be positive numbers, comma-separated")
    return sorted({int(part) for part in parts})


def _origins(
    args: Namespace, most: int, place_on: Placing, training: Training, preset: Preset
) -> dict[str, str]:
    """Where each kind of figure comes from."""
    convergence = training.convergence
    given = args.examples is not None
    links = "predicted from the cluster's links"
    if most > place_on.cluster.num_devices:
        links += ", between copies of it from --network-* (assumed)"
    if not place_on.has_gradients:
        links = (
            "not counted: the problem has no update ops, so nothing says how large gradients are"
        )
    return {
        "step": ESTIMATED if place_on.estimated else PREDICTED,
        "all_reduce": links,
        "examples": "given" if given else f"preset {preset.name!r}: {preset.examples_source}",
        "epochs": f"{convergence.origin}: {convergence.source}",
    }


def _data(
    args: Namespace, rows: Sequence[Row], advice: Advice, origin: dict[str, str], most: int
) -> dict[str, Any]:
    published = published_gain(model_name(args.what))
    return {
        "model": args.what,
        "devices": most,
        "origin": origin,
        "rows": [row_data(row) for row in rows],
        "crossover": advice.crossover,
        "recommendation": sentence(advice, most),
        "best": None if advice.best is None else row_data(advice.best),
        "gain_over_data_parallel": advice.gain,
        "gain_at_scale": gain_at_scale(rows),
        "published_gain_at_least": None if published is None else published.gain,
    }


def row_data(row: Row) -> dict[str, Any]:
    """A row as plain data; seconds."""
    parts = row.parts
    return {
        "devices": row.total_devices,
        "groups": row.groups,
        "group_devices": row.devices,
        "microbatches": row.microbatches,
        "step_alone": None if parts is None else parts.alone,
        "all_reduce": None if parts is None else parts.all_reduce,
        "exposed": None if parts is None else parts.exposed,
        "step": None if parts is None else parts.total,
        "global_batch": row.global_batch,
        "steps_per_epoch": row.steps,
        "epochs": row.epochs,
        "seconds": row.seconds if math.isfinite(row.seconds) else None,
        "note": row.note,
    }


def _print(
    args: Namespace, rows: Sequence[Row], advice: Advice, origin: dict[str, str], most: int
) -> None:
    out = console()
    out.print(hybrid_table(rows, f"{args.what} on up to {most} devices", advice))
    for what, said in origin.items():
        out.print(f"{what.replace('_', '-')}: {said}", soft_wrap=True)
    if advice.crossover is None:
        out.print(f"cross-over: none up to {most} devices: data parallelism alone is fastest there")
    else:
        out.print(f"cross-over: from {advice.crossover} devices on a hybrid ends sooner than DP")
    _print_published(args, rows, out.print)
    out.print(sentence(advice, most), soft_wrap=True)


def _print_published(args: Namespace, rows: Sequence[Row], show: Callable[[str], None]) -> None:
    published, gain = published_gain(model_name(args.what)), gain_at_scale(rows)
    alone = best_data_parallel(rows)
    if gain is not None and alone is not None:
        show(
            f"best hybrid over the best data parallelism alone ({alone.total_devices} devices, "
            f"{hours(alone.seconds)}): {gain:+.1%} (predicted)"
        )
    if published is not None:
        show(f"published for {published.model}: at least {published.gain:+.1%} ({SOURCE})")


def hybrid_table(rows: Sequence[Row], title: str, advice: Advice) -> Table:
    """All splits; the recommended one is marked."""
    heads = (
        "devices", "groups x devices", "M", "step of a group", "all-reduce", "exposed", "step",
        "global batch", "steps an epoch", "epochs", "time to converge", "",
    )  # fmt: skip
    table = Table(*heads, title=title)
    for row in rows:
        parts = row.parts
        split = f"{row.groups} x {row.devices}"
        if parts is None:
            table.add_row(str(row.total_devices), split, *["-"] * 9, row.note)
            continue
        seconds = (parts.alone, parts.all_reduce, parts.exposed, parts.total)
        table.add_row(
            str(row.total_devices),
            split,
            str(row.microbatches),
            *(seconds_text(value) for value in seconds),
            str(row.global_batch),
            str(row.steps),
            "-" if row.epochs is None else f"{row.epochs:.4g}",
            hours(row.seconds),
            "best" if row is advice.best else row.note,
        )
    return table
