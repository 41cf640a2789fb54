"""Cuts of a decoder into pipeline stages: schedules, layers of every stage, identical stages.

They depend only on the sizes, the framework and the number of ranks, and are computed once for all
plans that share these.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray
from gnnplace.errors import InputError
from gnnplace.plans.decoders.setting import LARGE, PricingSetting
from gnnplace.plans.decoders.stages import cut_layers, head_layers
from gnnplace.plans.order.names import SHAPED_AS_V, ZBV
from gnnplace.plans.order.orders import chunk_ranks, is_apart, limits
from gnnplace.plans.spec import Layers, PlanSpec
from gnnplace.plans.spec_answers import find_stage_segments

CUTS = ("ends", "least", "even")
"""Cuts of the layers that are tried beside the framework's own."""
SPEED_SHARES = (1.0, 0.75, 0.5, 0.25)
"""Exponents of the ranks' speeds in cuts over devices of several kinds; with 1 all take as long."""
RATIOS, RATIOS_OF_LOOPS = 33, 9
"""Ratios of the layers of two kinds of devices that are tried."""
RATIOS_OF_THREE = 13
"""Ratios of the layers of the second and the third of three kinds of devices to the first's."""
MOST_RATIO = 16.0
MOST_RATIO_OF_THREE = 8.0
MOST_CHUNKS = 32
"""Chunks of a rank at most."""


def list_schedules(
    setting: PricingSetting, pp: int, microbatches: int
) -> Iterator[str]:
    """Yield the schedules that a framework has for a number of ranks and micro-batches."""
    yield "1f1b"
    if pp == 1:
        return
    for name in ("gpipe", "zero-bubble", *SHAPED_AS_V):
        if name in setting.framework.traits.schedules:
            yield name
    if microbatches % pp == 0:
        yield from list_interleaved_schedules(setting, pp)


def list_interleaved_schedules(setting: PricingSetting, pp: int) -> Iterator[str]:
    """Yield the interleaved schedules that the framework and the layers allow."""
    if pp > 1 and "interleaved" in setting.framework.traits.schedules:
        for chunks in range(2, min(MOST_CHUNKS, setting.decoder.layers // pp) + 1):
            yield f"interleaved:{chunks}"


@lru_cache(maxsize=4096)
def list_cuts(
    setting: PricingSetting, pp: int, schedule: str
) -> tuple[tuple[int, ...] | None, ...]:
    """Return the layers of every stage for each distinct cut, or None for the framework's own."""
    if pp == 1:
        return (None,)
    decoder, usual = setting.decoder, setting.framework.traits.cut
    cuts: dict[tuple[int, ...], tuple[int, ...] | None] = {}
    for rule in (usual, *CUTS):
        try:
            layers = cut_layers(decoder, len(chunk_ranks(schedule, pp)), rule)
        except InputError:
            continue
        if sum(layers) == decoder.layers:
            cuts.setdefault(layers, None if rule == usual else layers)
    if len(set(find_rank_kinds(setting, pp))) > 1:
        for layers in _cuts_by_kind(setting, pp, schedule):
            cuts.setdefault(layers, layers)
    return tuple(cuts.values())


@lru_cache(maxsize=1024)
def find_rank_kinds(setting: PricingSetting, pp: int) -> tuple[tuple[str, ...], ...]:
    """Return the kinds of the devices of every pipeline rank, each once. [ranks]

    Every device of the cluster is of a rank, in the cluster's order.
    """
    cluster = setting.cluster
    if len(cluster.kinds) == 1:
        return (cluster.kinds,) * pp
    count = cluster.num_devices // pp
    kinds = [device.kind for device in cluster.devices]
    return tuple(
        tuple(dict.fromkeys(kinds[rank * count : (rank + 1) * count]))
        for rank in range(pp)
    )


def _cuts_by_kind(
    setting: PricingSetting, pp: int, schedule: str
) -> Iterator[tuple[int, ...]]:
    """Yield cuts that give ranks of some kinds of devices more layers than others.

    A layer goes to the rank that is the least busy with it, one after another (Graham, 1966: least
    loaded first), whose chunks share its layers evenly. Every stage has one at least.
    """
    decoder, ranks = setting.decoder, chunk_ranks(schedule, pp)
    if decoder.layers < len(ranks):
        return
    chunks = len(ranks) // pp
    for of_layer in _iterate_layer_weights(setting, pp, is_looped=chunks > 1):
        layers = np.full(pp, chunks)
        busy = of_layer * chunks
        busy[ranks[-1]] += of_layer[ranks[-1]] * head_layers(decoder)
        for _ in range(decoder.layers - len(ranks)):
            rank = int(np.argmin(busy + of_layer))
            busy[rank] += of_layer[rank]
            layers[rank] += 1
        # The first chunks of a rank have one layer more where they do not divide its layers.
        placed = [0] * pp
        counts: list[int] = []
        for rank in ranks:
            each_chunk, remainder = divmod(int(layers[rank]), chunks)
            counts.append(each_chunk + (placed[rank] < remainder))
            placed[rank] += 1
        yield tuple(counts)


def _iterate_layer_weights(
    setting: PricingSetting, pp: int, *, is_looped: bool
) -> Iterator[FloatArray]:
    """Yield how much a layer weighs on every rank. [ranks] each

    First by seconds, then, of two or three kinds, in every ratio between them: the faster kind may
    have less memory. Pipelines of several chunks a rank try fewer ratios.
    """
    kinds = find_rank_kinds(setting, pp)
    seconds: dict[tuple[str, ...], float] = {}
    for names in dict.fromkeys(kinds):
        frameworks = [setting.framework.select_kind(name) for name in names]
        seconds[names] = max(one.kernels.products([LARGE]) for one in frameworks)
    least = min(seconds.values())
    for share in SPEED_SHARES:
        yield np.array([(seconds[names] / least) ** share for names in kinds])
    if len(seconds) == 2:
        is_first = np.array([names == kinds[0] for names in kinds])
        count = RATIOS_OF_LOOPS if is_looped else RATIOS
        for ratio in np.geomspace(1 / MOST_RATIO, MOST_RATIO, count):
            yield np.where(is_first, ratio, 1.0)
    elif len(seconds) == 3:
        numbers = {names: number for number, names in enumerate(seconds)}
        of_ranks = np.array([numbers[names] for names in kinds])
        count = 3 if is_looped else RATIOS_OF_THREE
        ratios = np.geomspace(1 / MOST_RATIO_OF_THREE, MOST_RATIO_OF_THREE, count)
        for second, third in itertools.product(ratios, repeat=2):
            yield np.array([1.0, second, third])[of_ranks]


@lru_cache(maxsize=1024)
def count_fewest_first_rank_layers(setting: PricingSetting, pp: int) -> int:
    """Return the fewest layers that a cut of `list_cuts` gives rank 0 under any schedule."""
    fewest = setting.decoder.layers // pp
    traits = setting.framework.traits
    for schedule in list_schedules(setting, pp, pp):
        ranks = np.array(chunk_ranks(schedule, pp))
        for cut in list_cuts(setting, pp, schedule):
            layers = cut or cut_layers(setting.decoder, len(ranks), traits.cut)
            fewest = min(fewest, int(np.array(layers)[ranks == 0].sum()))
    return fewest


class AlikeStages(NamedTuple):
    """The stages of a plan by kind. Stages of one kind cost the same.

    Attributes:
        ends: First segment, the one after the last, and rank, of one stage of each kind. [kinds].
        kinds: The kind of every stage. [chunks of a rank, ranks].
        columns: Kinds of the chunks of a rank, of ranks that are unlike.
        columns_of_ranks: Which of `columns` each rank has. [ranks].
    """

    ends: tuple[tuple[int, int, int], ...]
    kinds: IntArray
    columns: tuple[tuple[int, ...], ...]
    columns_of_ranks: IntArray


@lru_cache(maxsize=8192)
def group_alike_stages(
    setting: PricingSetting,
    pp: int,
    schedule: str,
    layers: Layers | None,
    classes: tuple[int, ...] = (),
) -> AlikeStages:
    """Return the stages of plans with a number of ranks, a schedule and a cut, by their kinds.

    Args:
        setting: The sizes and the framework.
        pp: Ranks.
        schedule: Its name and number of chunks.
        layers: Layers of every stage; None: as the framework cuts.
        classes: A number for each rank. Stages of ranks with unlike numbers are of other kinds.
            Empty: the ranks do not matter.
    """
    spec = PlanSpec(pp=pp, schedule=schedule, layers=layers)
    numbers: dict[tuple[object, ...], int] = {}
    ends: list[tuple[int, int, int]] = []
    kinds: list[int] = []
    ranks, devices = chunk_ranks(schedule, pp), find_rank_kinds(setting, pp)
    stages = find_stage_segments(setting, spec)
    for rank, (first, last) in zip(ranks, stages, strict=True):
        key = (
            *find_stage_kind(setting, first, last),
            devices[rank],
            classes[rank] if classes else 0,
        )
        if key not in numbers:
            numbers[key] = len(ends)
            ends.append((first, last, rank))
        kinds.append(numbers[key])
    by_rank = np.argsort(ranks, kind="stable")
    of_chunks = np.array(kinds)[by_rank].reshape(pp, -1).T
    of_ranks = [tuple(column) for column in of_chunks.T.tolist()]
    columns = {column: number for number, column in enumerate(dict.fromkeys(of_ranks))}
    return AlikeStages(
        ends=tuple(ends),
        kinds=of_chunks,
        columns=tuple(columns),
        columns_of_ranks=np.array([columns[column] for column in of_ranks]),
    )


def find_stage_kind(
    setting: PricingSetting, first: int, last: int
) -> tuple[object, ...]:
    """Return the key that tells stages apart: layers of each kind, and the ends of the model."""
    sizes = setting.decoder
    dense = sizes.experts.dense if sizes.experts else 0
    num_dense = max(0, min(last, 1 + dense) - max(first, 1))
    return last - first, num_dense, first == 0, last == sizes.layers + 2


@lru_cache(maxsize=16384)
def first_rank_stages(
    setting: PricingSetting,
    pp: int,
    schedule: str,
    layers: Layers | None,
    flying: tuple[int, ...],
) -> tuple[tuple[tuple[int, int, int], int, int], ...]:
    """Return the stages of rank 0 by their kinds.

    Args:
        setting: The setting. This argument and the next ones, but for the last, are those of
            `group_alike_stages`.
        pp: Ranks.
        schedule: Its name and number of chunks.
        layers: Layers of every stage; None: as the framework cuts.
        flying: Micro-batches that each chunk of rank 0 has in flight.

    Returns:
        Of each kind the first segment, the one after the last and the rank, the number of stages,
        and the micro-batches that all of these have in flight.
    """
    stages = group_alike_stages(setting, pp, schedule, layers)
    numbers: dict[int, int] = {}
    in_flight: dict[int, int] = {}
    for kind, count in zip(stages.kinds[:, 0].tolist(), flying, strict=True):
        numbers[kind] = numbers.get(kind, 0) + 1
        in_flight[kind] = in_flight.get(kind, 0) + count
    return tuple(
        (stages.ends[kind], numbers[kind], in_flight[kind]) for kind in numbers
    )


@lru_cache(maxsize=4096)
def count_in_flight(schedule: str, pp: int, microbatches: int) -> tuple[int, ...]:
    """Return the micro-batches that each chunk of rank 0 has in flight before its first backward.

    1F1B has as many as there are ranks (Narayanan et al., 2019); ZB-V has 2 P - 1. Interleaved
    orders have 2 (P - 1) + (v - 1) P passes and one more, P micro-batches of a chunk by turns
    (Narayanan et al., 2021, section 2.2). List schedules have the most that their limits allow,
    unless the first chunk takes much longer than the others (`spec_bounds.passes_ahead`).
    """
    chunks = len(chunk_ranks(schedule, pp)) // pp
    if schedule == "gpipe":
        return (microbatches,)
    if chunks == 1:
        return (min(pp, microbatches),)
    if schedule == ZBV:
        return min(2 * pp - 1, microbatches), 1
    if schedule in SHAPED_AS_V:
        return limits(schedule, pp, microbatches)[0], 1
    passes = min(2 * (pp - 1) + (chunks - 1) * pp + 1, microbatches * chunks)
    counts = [0] * chunks
    for number in range(passes):
        counts[number // pp % chunks] += 1
    return tuple(counts)


def has_chain(schedule: str) -> bool:
    """Return whether the last rank begins its backward passes once and then alternates passes.

    Such are 1F1B and interleaved orders, whose first and last micro-batches bound a step.
    """
    return schedule.partition(":")[0] in ("1f1b", "interleaved")


@lru_cache(maxsize=4096)
def passes_between(chunks: int, pp: int, microbatches: int) -> IntArray:
    """Return the passes of the last rank between two forward passes through its last chunk.

    The first of the two is the first micro-batch's; it does not count, and a backward pass
    follows it. The second is the last micro-batch's and counts. The order is that of
    `order.orders`: (v - 1) P forward passes, then a forward and a backward pass by turns, P
    micro-batches through a chunk before the next chunk.

    Args:
        chunks: The number of stages of a rank, v.
        pp: P, the ranks.
        microbatches: M, a multiple of P where v > 1.

    Returns:
        Forward and backward passes through each chunk. [2, chunks].
    """
    ahead = (chunks - 1) * pp
    total = chunks * microbatches
    forward = np.arange(ahead + 1, total) // pp % chunks
    backward = chunks - 1 - np.arange(total - ahead - 1) // pp % chunks
    counts = [
        np.bincount(forward, minlength=chunks),
        np.bincount(backward, minlength=chunks),
    ]
    return np.array(counts)


class PipelineCuts(NamedTuple):
    """All schedules and cuts of the layers over a number of ranks, with their stages as arrays.

    Attributes:
        schedules: The schedule of every cut. [cuts].
        layers: Layers of every cut's stages; None: as the framework cuts. [cuts].
        chunks: Stages of a rank. [cuts].
        is_interleaved: Whether the schedule asks for micro-batches that the ranks divide. [cuts].
        is_apart: Whether it computes gradients of weights apart from others, and later. [cuts].
        has_chain: Whether its order is of `has_chain`. [cuts].
        firsts: The first segment of every stage of all cuts, one cut after another. [stages].
        lasts: The segment after the last of every stage. [stages].
        ranks: Cut x ranks + rank of every stage. [stages].
        cuts_of_stages: The cut that every stage is of. [stages].
        begins: The stage that is the first of each rank. [cuts, ranks].
    """

    schedules: tuple[str, ...]
    layers: tuple[Layers | None, ...]
    chunks: FloatArray
    is_interleaved: BoolArray
    is_apart: BoolArray
    has_chain: BoolArray
    firsts: IntArray
    lasts: IntArray
    ranks: IntArray
    cuts_of_stages: IntArray
    begins: IntArray

    def sum_by_cut(self, seconds: FloatArray) -> FloatArray:
        """Return the sums of `seconds` of stages over all stages of each cut. [cuts]"""
        sums = np.bincount(self.cuts_of_stages, seconds)
        return np.asarray(sums, dtype=np.float64)

    def sum_by_rank(self, seconds: FloatArray) -> FloatArray:
        """Return the sums of `seconds` of stages over the stages of each rank. [cuts, ranks]"""
        sums = np.bincount(self.ranks, seconds, minlength=self.begins.size)
        return np.asarray(sums.reshape(self.begins.shape), dtype=np.float64)


@lru_cache(maxsize=1024)
def pipeline_cuts(setting: PricingSetting, pp: int) -> PipelineCuts:
    """Return all schedules and cuts of the layers over `pp` ranks."""
    schedules: list[str] = []
    cuts: list[Layers | None] = []
    bounds: list[tuple[int, int]] = []
    ranks: list[int] = []
    begins: list[range] = []
    for schedule in list_schedules(setting, pp, pp):
        for layers in list_cuts(setting, pp, schedule):
            spec = PlanSpec(pp=pp, schedule=schedule, layers=layers)
            begins.append(range(len(bounds), len(bounds) + pp))
            stages = find_stage_segments(setting, spec)
            ranks += [len(cuts) * pp + rank for rank in chunk_ranks(schedule, pp)]
            bounds += stages
            schedules.append(schedule)
            cuts.append(layers)
    firsts, lasts = np.array(bounds, dtype=np.int64).T
    counts = np.bincount(np.array(ranks) // pp)
    return PipelineCuts(
        schedules=tuple(schedules),
        layers=tuple(cuts),
        chunks=counts / pp,
        is_interleaved=counts > pp,
        is_apart=np.array([is_apart(schedule) for schedule in schedules]),
        has_chain=np.array([has_chain(schedule) for schedule in schedules]),
        firsts=firsts,
        lasts=lasts,
        ranks=np.array(ranks, dtype=np.int64),
        cuts_of_stages=np.array([rank // pp for rank in ranks], dtype=np.int64),
        begins=np.array(begins, dtype=np.int64),
    )


@lru_cache(maxsize=64)
def count_chain_passes(
    setting: PricingSetting, pp: int, microbatches: int
) -> FloatArray:
    """Return how often a step's critical chain runs the passes of each stage. [2, stages]

    It runs both passes of every stage once, and those of the last rank's stages as often as
    `passes_between` says besides.

    Args:
        setting: The setting. This argument and the next one are those of `pipeline_cuts`.
        pp: Ranks.
        microbatches: Micro-batches of a step.
    """
    cuts = pipeline_cuts(setting, pp)
    counts = np.ones((2, len(cuts.ranks)))
    for cut in np.flatnonzero(cuts.has_chain).tolist():
        first, chunks = int(cuts.begins[cut, 0]), int(cuts.chunks[cut])
        of_last_rank = slice(first + pp - 1, first + pp * chunks, pp)
        counts[:, of_last_rank] += passes_between(chunks, pp, microbatches)
    return counts
