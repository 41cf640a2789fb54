"""Answers about splitting: of the layers of a model, or of a file of cost tables.

A model's tables are those of splits that run: layouts are known, and so is what moves between them.

Torch is imported for models alone. Of constraints, those on the number of devices and on memory
that stays free hold for a split; a pin, a forbid or modules that share a device are refused, since
layers that are split have configurations, not devices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gnnplace.costs import Exchange, resolve_cluster, with_measurements
from gnnplace.errors import CaptureError, InfeasibleError, InputError
from gnnplace.problem import (
    AUTO,
    Given,
    SearchGoal,
    as_constraints,
    cluster_with_headroom,
    read_headroom,
)
from gnnplace.sharding import (
    Frontier,
    ShardingProblem,
    ShardingResult,
    best_strategy,
    cheapest_within,
    pareto_frontier,
    read_sharding,
    smallest_within,
    warm,
    warm_frontier,
)

if TYPE_CHECKING:
    from gnnplace.sharding.captured.costs import MeshMachine
    from gnnplace.sharding.captured.split import LayerGraph, LayerSplit, LayerTables
    from gnnplace.zoo import Workload

MOST_DEVICES = 1024
DEVICES = 8  # The default number of devices
FLOPS, BANDWIDTH = 10e12, 16e9  # Figures of the PaSE authors' cost model
GOALS = (SearchGoal.TIME, SearchGoal.MEMORY, SearchGoal.GPUS)


@dataclass(frozen=True)
class SplitOptions:
    """The settings of the search for a split.

    Attributes:
        devices: The number of devices to split over. None: 8, or that of a file of tables.
        flops: FLOP/s of a device.
        bandwidth: bytes a second of a link.
        cluster: The cluster whose fabric prices collectives, and how many devices there are; None:
            ``bandwidth`` does.
        links: a log of nccl-tests, whose figures replace those of the cluster's links.
    """

    devices: int | None = None
    flops: float = FLOPS
    bandwidth: float = BANDWIDTH
    cluster: str | None = None
    links: str | None = None

    def exchange(self) -> Exchange | None:
        """Return what collectives take on the cluster, or None without a cluster.

        Raises:
            FormatError: a line of the log that cannot be read.
            InputError: no such cluster, or its fabric is not known; or a speed beside it.
        """
        if self.cluster is None:
            if self.links is not None:
                raise InputError(
                    "--links: --cluster is needed to say what links they are of"
                )
            return None
        if self.bandwidth != BANDWIDTH:
            raise InputError("--bandwidth, --cluster: the cluster says what links take")
        cluster = resolve_cluster(self.cluster)
        if self.links is None:
            return Exchange(cluster)
        measured = with_measurements(cluster, self.links)
        return Exchange(measured.cluster, measured.table)

    def count(self, exchange: Exchange | None) -> int:
        """Return the number of devices: the options', else the cluster's, else 8.

        Raises:
            InputError: more than the cluster has, or not between 1 and 1024.
        """
        available = DEVICES if exchange is None else exchange.cluster.num_devices
        count = available if self.devices is None else self.devices
        if not 1 <= count <= MOST_DEVICES:
            raise InputError(f"--devices: {count} is not between 1 and {MOST_DEVICES}")
        if exchange is not None and count > available:
            raise InputError(
                f"--devices {count}: the cluster {self.cluster} has {available}"
            )
        return count


@dataclass(frozen=True)
class AnswerTables:
    """The cost tables of a question, and the layers that they are of; a file's have none."""

    problem: ShardingProblem
    of_layers: LayerTables | None = None

    def split(self, result: ShardingResult) -> LayerSplit | None:
        """Return a strategy of a model's layers that the tables were searched for."""
        return None if self.of_layers is None else self.of_layers.split(result)


def shard_tables(what: str, options: SplitOptions | None = None) -> AnswerTables:
    """Return the cost tables of a model's layers, or of a file.

    Args:
        what: a model, or ``NAME.json`` beside ``NAME.npz``.
        options: the number of devices and their speeds.

    Raises:
        InputError: a number of devices out of range, or options that a file has no use for.
        FormatError: a file that cannot be read; names the key.
        CaptureError: the model cannot be captured; names the module.
    """
    options = options or SplitOptions()
    if not is_file(what):
        options.count(options.exchange())  # bad options are refused before the capture
        return build_layer_tables(load_layers(what), options)
    if options.cluster is not None or options.links is not None:
        raise InputError("--cluster, --links: the sharding file has its own costs")
    if options.devices is not None:
        raise InputError("--devices: the sharding file has its own configurations")
    return AnswerTables(read_sharding(what))


def is_file(what: str) -> bool:
    """Return whether a question is about a file of tables, and not about a model."""
    return what.endswith(".json") or Path(what).is_file()


def build_layer_tables(layers: LayerGraph, options: SplitOptions) -> AnswerTables:
    """Return the cost tables of a captured model's layers.

    Raises:
        InputError: a number of devices out of range, or a cluster whose fabric is not known.
    """
    from gnnplace.sharding.captured.layout import default_mesh
    from gnnplace.sharding.captured.split import layer_tables

    mesh = default_mesh(options.count(options.exchange()))
    tables = layer_tables(layers, mesh, mesh_machine(options))
    return AnswerTables(tables.problem, tables)


def mesh_machine(options: SplitOptions) -> MeshMachine:
    """Return the speeds of the devices and links that a split is searched for.

    Raises:
        FormatError: a line of the log of links that cannot be read.
        InputError: no such cluster, or its fabric is not known; or a speed that is not positive.
    """
    from gnnplace.sharding.captured.costs import MeshMachine

    exchange = options.exchange()
    bandwidth = options.bandwidth if exchange is None else exchange.bandwidth
    return MeshMachine(flops=options.flops, bandwidth=bandwidth, exchange=exchange)


def shard_network(
    tables: AnswerTables, *, memory_limit: float | None = None
) -> ShardingResult:
    """Return the split of least time, proven best where its result says so.

    Args:
        tables: the cost tables that ``shard_tables`` returned.
        memory_limit: bytes that a device has.

    Raises:
        InfeasibleError: nothing fits the memory.
    """
    return find_fastest_split(tables.problem, memory_limit)


def find_fastest_split(
    problem: ShardingProblem, memory_limit: float | None = None
) -> ShardingResult:
    """Return the split of least time of cost tables, within the bytes that a device has.

    Raises:
        InfeasibleError: nothing fits the memory.
    """
    if memory_limit is None:
        warm()
        return best_strategy(problem, bounded=True)
    warm_frontier()
    return cheapest_within(problem, memory_limit)


@dataclass(frozen=True)
class SplitGoal:
    """The goal of a split: one of TensorOpt's three questions (arXiv 2004.10856).

    Attributes:
        name: ``time``: least seconds a step; ``memory``: least bytes a device; ``gpus``: fewest
            devices, and on these the least seconds.
        memory_limit: Bytes that a device has.
        time_limit: Seconds that a step may take.

    Raises:
        InputError: Another name, or a limit that is missing or has no use.
    """

    name: str = SearchGoal.TIME
    memory_limit: float | None = None
    time_limit: float | None = None

    def __post_init__(self) -> None:
        if self.name not in GOALS:
            raise InputError(f"--goal {self.name}: must be one of {', '.join(GOALS)}")
        if self.name == SearchGoal.TIME and self.time_limit is not None:
            raise InputError("--time-limit: is for --goal memory and --goal gpus")
        if self.name == SearchGoal.MEMORY and self.time_limit is None:
            raise InputError(
                "--goal memory: needs --time-limit, the seconds a step may take"
            )
        if self.name == SearchGoal.MEMORY and self.memory_limit is not None:
            raise InputError("--memory-limit: is for --goal time and --goal gpus")
        if self.name == SearchGoal.GPUS and (self.memory_limit, self.time_limit) == (
            None,
            None,
        ):
            raise InputError("--goal gpus: needs --memory-limit or --time-limit")


@dataclass(frozen=True)
class GoalAnswer:
    """The split that is best for a goal.

    Attributes:
        tables: The cost tables of its number of devices.
        result: The split.
        reasons: By number of devices, why fewer than those of the tables do not do.
    """

    tables: AnswerTables
    result: ShardingResult
    reasons: dict[int, str]


def shard_for(
    what: str, goal: SplitGoal, options: SplitOptions | None = None
) -> GoalAnswer:
    """Return the split that is best for a goal.

    For the fewest devices all numbers up to that of the options are tried, from one on; the first
    within the limits is the answer.

    Args:
        what: The what, as in ``shard_tables``; a file of tables has one number of devices.
        goal: What the split is to be best in, and within which limits.
        options: The options, as in ``shard_tables``.

    Raises:
        InputError: As of ``shard_tables``; or the fewest devices of a file.
        InfeasibleError: No split is within the limits.
    """
    options = options or SplitOptions()
    if goal.name == SearchGoal.GPUS:
        return _fewest(what, goal, options)
    tables = shard_tables(what, options)
    if goal.name == SearchGoal.TIME:
        result = shard_network(tables, memory_limit=goal.memory_limit)
        return GoalAnswer(tables, result, {})
    assert goal.time_limit is not None  # a goal without it cannot be made
    warm_frontier()
    return GoalAnswer(tables, smallest_within(tables.problem, goal.time_limit), {})


def _fewest(what: str, goal: SplitGoal, options: SplitOptions) -> GoalAnswer:
    """Return the fastest split on the fewest devices that keep the limits."""
    if is_file(what):
        raise InputError("--goal gpus: a sharding file has its own number of devices")
    max_devices = options.count(options.exchange())
    layers = load_layers(what)
    reasons: dict[int, str] = {}
    for devices in range(1, max_devices + 1):
        tables = build_layer_tables(layers, replace(options, devices=devices))
        try:
            result = shard_network(tables, memory_limit=goal.memory_limit)
        except InfeasibleError as error:
            reasons[devices] = str(error)
            continue
        if goal.time_limit is None or result.cost <= goal.time_limit:
            return GoalAnswer(tables, result, reasons)
        reasons[devices] = f"the fastest split takes {result.cost:.6g} s"
    raise InfeasibleError(
        f"--goal gpus: no split on up to {max_devices} devices is within the limits; on "
        f"{max_devices}: {reasons[max_devices]}"
    )


def shard_frontier(
    tables: AnswerTables, *, epsilon: float = 0.0, memory_limit: float | None = None
) -> Frontier:
    """Return every split that no other beats in both time and memory.

    Args:
        tables: the cost tables that ``shard_tables`` returned.
        epsilon: relative error in time that is allowed.
        memory_limit: bytes that a device has.
    """
    warm_frontier()
    return pareto_frontier(tables.problem, epsilon, memory_limit)


def load_layers(spec: str) -> LayerGraph:
    """Return the layers of the model that a spec names; without its tensors where that can be.

    Raises:
        InputError, CaptureError: there is no such model, or it cannot be captured.
    """
    from gnnplace import tracing

    try:
        return record_workload_layers(tracing.make_workload(spec, fake=True))
    except (CaptureError, InputError):  # what it does may depend on its numbers
        return record_workload_layers(tracing.make_workload(spec))


def record_workload_layers(workload: Workload) -> LayerGraph:
    """Return the layers of a workload, its loss among them.

    Raises:
        CaptureError: the model cannot be captured; names the module.
    """
    from gnnplace.sharding.captured.split import layer_graph
    from gnnplace.tracing import default_loss

    loss = workload.loss or default_loss
    return layer_graph(workload.model, workload.inputs, loss, workload.name)


def limit_split(
    constraints: Given | None,
    options: SplitOptions | None = None,
    *,
    memory_limit: float | None = None,
) -> tuple[SplitOptions, float | None]:
    """Return options of a split, and the bytes that a device has for it, under constraints.

    Args:
        constraints: ``max_devices`` and ``headroom``; ``Constraints``, a mapping or a YAML file.
        options: the number of devices, or the cluster that has them.
        memory_limit: bytes that a device has; that of the cluster's smallest device by default.

    Raises:
        InputError: pins, forbids or modules that stay together; or headroom of no known memory.
    """
    limits = as_constraints(constraints)
    options = options or SplitOptions()
    if limits.patterns:
        constraint = next(iter(limits.patterns.to_data()))
        raise InputError(
            f"{constraint}: a split layer is on all devices; pin, forbid and together are for "
            "place and plan"
        )
    if limits.max_memory:
        raise InputError(
            "max_memory: a split layer is on all devices; give --memory-limit"
        )
    if limits.max_devices is not None:
        count = options.devices
        if count is None:
            named = options.cluster is not None
            count = (
                resolve_cluster(str(options.cluster)).num_devices if named else DEVICES
            )
        options = replace(options, devices=min(count, limits.max_devices))
    if limits.headroom is None:
        return options, memory_limit
    return options, _limit(limits.headroom, options, memory_limit)


def _limit(headroom: str, options: SplitOptions, memory_limit: float | None) -> float:
    """Return the bytes of a device that the headroom leaves free for a split."""
    if memory_limit is not None and headroom != AUTO:
        share, size = read_headroom(headroom)
        available = memory_limit * (1.0 - share) - size
        if available < 0:
            raise InputError(
                f"headroom {headroom}: is more than --memory-limit {memory_limit:g}"
            )
        return available
    if options.cluster is None:
        raise InputError(
            f"headroom {headroom}: needs --memory-limit or --cluster, to know a device's memory"
        )
    cluster = cluster_with_headroom(resolve_cluster(options.cluster), headroom)
    available = float(cluster.memory.min())
    return available if memory_limit is None else min(available, memory_limit)
