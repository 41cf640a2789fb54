"""A plan that the user gives, in words or as a file.

Stages of whole layers are written as in launch scripts: `layers=12+12+12+12` or `layers=equal`. A
layer is an outermost numbered module, such as `transformer.h.3` or `encoder.block.0`; it begins at
the first segment that computes in it. Segments before the first layer belong to the first stage,
segments after the last layer to the last stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from gnnplace.errors import FormatError, InputError, MismatchError
from gnnplace.plans.mesh import Mesh, MeshFabric
from gnnplace.plans.order.orders import FULL, SEARCHED, Orders, chunk_ranks
from gnnplace.plans.order.rows import iterate_passes
from gnnplace.plans.plan import Plan, PlanFile, StageEntry, find_layer
from gnnplace.plans.reading import check_words
from gnnplace.plans.search import partition
from gnnplace.plans.search.draft import Draft, compute_lack
from gnnplace.plans.search.framework_pricing import make_pricer
from gnnplace.plans.search.splits import with_splits
from gnnplace.plans.search.stage import Pricer, Stage
from gnnplace.plans.segments.block_costs import BlockCosts
from gnnplace.plans.segments.chain import (
    CONTEXT,
    EXAMPLES,
    EXPERTS,
    FASTEST,
    FREE,
    MICROBATCHES,
    WEIGHTS,
    Chain,
    SplitChoice,
    layer_starts,
)
from gnnplace.plans.segments.chains import check_inputs
from gnnplace.plans.segments.placements import check_placements, check_stages
from gnnplace.plans.segments.pricing import ModelCosts
from gnnplace.plans.segments.sized import SizedModelCosts
from gnnplace.plans.spec import (
    COST,
    WORDS,
    Layers,
    PlanSpec,
    check_recomputed_ranks,
    count_layers,
    format_layers,
)
from gnnplace.problem import Cluster

SIZES_ONLY = (
    "overlap",
    "tp_overlap",
    "zero_group",
    "etp",
    "offload",
    "sample_length",
    "compile",
    "cuda_graphs",
)
"""Words of frameworks whose steps are priced from sizes; a captured model has none of them."""


def check_spec(spec: PlanSpec, cluster: Cluster, batch: int | None) -> None:
    """Refuse a plan that no captured model could follow.

    Args:
        spec: The plan in words.
        cluster: The devices that it is for.
        batch: Examples of a step; None: not known yet.

    Raises:
        InputError: The message names the word that is at fault.
    """
    _check_captured_words(spec)
    degrees = {"dp": spec.dp, **split_by_spec(spec).degrees, "pp": spec.pp}
    num_devices = prod(degrees.values())
    if num_devices > cluster.num_devices:
        raise InputError(
            f"--given: {' x '.join(degrees)} is {num_devices}; "
            f"{cluster.name!r} has {cluster.num_devices} devices"
        )
    chunk_ranks(spec.schedule, spec.pp)
    check_recomputed_ranks(spec)
    size = spec.dp * spec.microbatch_size
    if batch is not None and batch % size:
        raise InputError(
            f"--given: a batch of {batch} is no multiple of {spec.dp} replicas x "
            f"{spec.microbatch_size} examples"
        )
    if batch is not None and batch // size > MICROBATCHES:
        raise InputError(
            f"--given: a batch of {batch} in shares of {size} examples makes {batch // size} "
            f"micro-batches; a step has at most {MICROBATCHES}"
        )


def _check_captured_words(spec: PlanSpec) -> None:
    """Refuse words that only prices from sizes know."""
    mend = "leave it out, or price a decoder in half precision with --framework"
    for name in SIZES_ONLY:
        value = getattr(spec, name)
        if value not in (None, False, "off", "none"):
            raise InputError(
                f"--given: {name}={WORDS[name].write(value)}: a captured model is priced and run "
                f"as eager PyTorch; {mend}"
            )
    if spec.gradients == "fp32":
        raise InputError(
            "--given: gradients=fp32: a captured model sums gradients in the type of its "
            f"parameters; {mend}"
        )
    if spec.schedule == "gpipe":
        raise InputError(
            "--given: schedule=gpipe: a captured model runs 1f1b, zero-bubble, interleaved:N or v; "
            "1f1b takes as long and holds less"
        )
    if spec.layers == COST:
        raise InputError(
            "--given: layers=cost: is nanotron's cut; say numbers, such as 6+6+4"
        )


@dataclass(frozen=True)
class ModelSplit:
    """How the words of a plan split a model inside of each replica.

    Attributes:
        degrees: Shards by the word that gives them: `tp`, `cp` or `shards`. `tp` is 1 where none
            is given.
        expert_replicas: Replicas over which experts are spread, as the outer axis of one mesh; 1
            where experts are whole, or lie on the shards of `cp`.
        choices: Splits and borders, each of which is tried.
        description: What the split is called in messages.
    """

    degrees: dict[str, int]
    expert_replicas: int
    choices: tuple[SplitChoice, ...]
    description: str = "Megatron's"

    @property
    def axes(self) -> tuple[int, ...]:
        """Return the shards along each axis of the mesh, the outer one first."""
        inner = [count for name, count in self.degrees.items() if name != "cp"]
        sizes = (self.expert_replicas, self.degrees.get("cp", 1), *inner)
        return tuple(size for size in sizes if size > 1) or (1,)

    @property
    def num_shards(self) -> int:
        """Return the number of shards of a mesh."""
        return prod(self.axes)


ANY_SPLIT = tuple(SplitChoice(FREE, border=border) for border in ("tokens", "whole"))


def split_by_spec(spec: PlanSpec) -> ModelSplit:
    """Return how a plan's words split the model.

    Raises:
        InputError: If the words contradict each other.
    """
    degrees = {"ep": spec.ep, "cp": spec.cp, "tp": spec.tp}
    if spec.shards is not None:
        conflicts = [name for name in ("tp", "cp", "ep") if degrees[name] > 1]
        if conflicts:
            raise InputError(
                f"--given: shards and {' and '.join(conflicts)}: give one of them: tp is "
                "Megatron's split, cp cuts tokens, shards anything that is fastest"
            )
        choices = ANY_SPLIT
        if spec.sp is not None:
            border = "tokens" if spec.sp else "whole"
            choices = tuple(choice for choice in ANY_SPLIT if choice.border == border)
        return ModelSplit({"shards": spec.shards}, 1, choices, "the fastest")

    if spec.ep > 1 and (spec.ep != spec.cp if spec.cp > 1 else spec.dp % spec.ep):
        raise InputError(
            f"--given: dp={spec.dp}, cp={spec.cp}, ep={spec.ep}: experts lie on the shards that "
            "cut tokens, ep=cp, or without these on replicas: ep divides dp"
        )
    # One (style, border) for each axis that is split, the outer axis first.
    if spec.splits_tokens:
        between_layers = "tokens"
    else:
        between_layers = "whole"
    axes: list[tuple[str, str]] = []
    if spec.cp > 1:
        style = EXPERTS if spec.ep > 1 else CONTEXT
        axes.append((style, "tokens" if spec.tp > 1 else between_layers))
    elif spec.ep > 1:
        axes.append((EXAMPLES, "examples"))
    if spec.tp > 1:
        axes.append((WEIGHTS, between_layers))
    styles = [style for style, _ in axes] or [WEIGHTS]
    borders = [border for _, border in axes] or ["whole"]
    choice = SplitChoice(
        styles[-1],
        styles[0] if len(styles) > 1 else "",
        ",".join(borders) if len(set(borders)) > 1 else borders[0],
    )
    names = {"ep": "that of experts", "cp": "that of tokens", "tp": "Megatron's"}
    counted = {}
    if spec.tp > 1 or spec.cp == 1:
        counted["tp"] = spec.tp
    if spec.cp > 1:
        counted["cp"] = spec.cp
    return ModelSplit(
        degrees=counted,
        expert_replicas=spec.ep if spec.cp == 1 else 1,
        choices=(choice,),
        description=" with ".join(names[name] for name in names if degrees[name] > 1),
    )


def draft_spec(chain: Chain, cluster: Cluster, spec: PlanSpec) -> Draft:
    """Make the draft of a plan in words.

    Stages have the layers that `layers` names, else they are as even as fits. `tp` shards cut
    every matrix of weights. Tokens are cut between segments unless `sp=off`, as Megatron does
    (Narayanan et al., 2021, arXiv 2104.04473; Korthikanti et al., 2022, arXiv 2205.05198). `cp`
    shards cut tokens and have whole weights. With `ep` they have experts of their own, to which
    tokens are sent; without `cp` replicas do. `shards` may cut anything. With two of these `tp` is
    the inner axis.

    Args:
        chain: The model.
        cluster: The devices.
        spec: The plan in words.

    Raises:
        InputError: If the plan does not fit the model or the cluster.
    """
    check_spec(spec, cluster, chain.batch)
    split = split_by_spec(spec)
    _check_experts(chain, spec.ep)
    replicas = spec.dp // split.expert_replicas
    size = spec.dp * spec.microbatch_size
    ranks = chunk_ranks(spec.schedule, spec.pp)
    _check_stages(chain, len(ranks))
    if split.num_shards == 1 and spec.regather:
        raise InputError(
            "--given: regather=on: one shard gathers nothing; give tp, cp or shards"
        )
    mesh_size = replicas * split.num_shards
    meshes = [Mesh.over(rank * mesh_size, replicas, split.axes) for rank in ranks]
    pricer = make_pricer(chain, MeshFabric(cluster), size)
    microbatches = chain.batch // size
    regather = spec.regather
    if regather is None and isinstance(chain.source, BlockCosts):
        # Megatron's split keeps parts (Korthikanti et al., 2022, arXiv 2205.05198, section 4.2.2).
        regather = spec.tp > 1 and spec.splits_tokens
    choices = [replace(choice, regather=bool(regather)) for choice in split.choices]

    def draft_with(bounds: list[int]) -> Draft:
        stages = [
            with_recomputation(
                chain,
                Stage(first, last, mesh, spec.zero, zero_group=spec.zero_group),
                spec.find_rank_recompute(rank),
            )
            for rank, mesh, first, last in zip(
                ranks, meshes, bounds, bounds[1:], strict=False
            )
        ]
        draft = Draft(size, microbatches, spec.schedule, tuple(stages))
        if split.num_shards == 1:
            return draft
        return with_splits(pricer, draft, choices, regather=spec.regather is None)

    layers = spec.layers
    if layers is None and isinstance(chain.source, SizedModelCosts):
        layers = chain.source.cut(len(ranks))
    if layers is not None:
        return draft_with(find_layer_bounds(chain, layers, len(ranks)))
    # Even stages first; where they do not fit, those that even out bytes too.
    choice = replace(choices[-1], step_share=1 / microbatches)
    draft = draft_with(cut_evenly(pricer, meshes[0], len(ranks), choice))
    lack = compute_lack(pricer, draft)
    if len(ranks) == 1 or not 0 < lack < np.inf:
        return draft
    fitting_bounds = bounds_within(pricer, draft)
    if fitting_bounds is None:
        fitting = draft
    else:
        fitting = draft_with(fitting_bounds)
    if compute_lack(pricer, fitting) < lack:
        return fitting
    return draft


def _check_stages(chain: Chain, count: int) -> None:
    """Check that a model can be cut into so many stages.

    Raises:
        InputError: If it has too few segments, with what joins them.
    """
    if count <= len(chain):
        return
    reason = ""
    if chain.joined:
        reason = f" ({chain.joined}; give each layer a buffer of its own)"
    raise InputError(
        f"--given: {count} stages, but the model can be cut into {len(chain)} at most{reason}"
    )


def _check_experts(chain: Chain, parts: int) -> None:
    """Check that a model's experts can be divided into a number of equal parts.

    Raises:
        InputError: If it has none, or theirs are not equal.
    """
    if parts == 1 or not isinstance(chain.source, ModelCosts):
        return
    count = chain.source.experts
    if not count:
        raise InputError(
            f"--given: ep={parts}: {chain.name} has no experts that are known as such; call one's "
            "own by gnnplace.experts(x, index, weights, up, down, act)"
        )
    if count % parts:
        raise InputError(
            f"--given: ep={parts}: {count} experts have no {parts} equal parts"
        )


def with_recomputation(chain: Chain, stage: Stage, word: str) -> Stage:
    """Return a stage that recomputes what a word such as "full" or "block:4" says.

    With "uniform:N" every group of N layers keeps one input; otherwise every recomputed layer does.

    Args:
        chain: The model.
        stage: The stage.
        word: Value of the word `recompute` of a plan, for this stage's rank.

    Raises:
        InputError: If single modules are to be recomputed.
    """
    kind, _, count = word.partition(":")
    if kind == "modules":
        raise InputError(
            f"recompute={word}: a captured model is recomputed by layers, or its attention alone"
        )
    run: Sequence[int] = range(stage.first, stage.last)
    if kind == "block":
        starts = sorted(k for k in layer_starts(chain.segments).values() if k in run)
        end = [*starts, stage.last][min(int(count), len(starts))]
        if starts:
            run = range(starts[0], end)
        else:
            run = range(0)
    # Frameworks recompute layers, but neither embedding nor head.
    if chain.framework is not None:
        run = [k for k in run if chain.layers[k] >= 0]
    recomputed = frozenset(run if kind != "none" else ())
    if kind == "selective" and isinstance(chain.source, ModelCosts):
        recomputed = frozenset(k for k in run if chain.source.attention[k])
    together = {"none": 0, "selective": 0, "uniform": int(count or 1)}.get(kind, 1)
    return replace(
        stage, recompute=recomputed, together=together, attention=kind == "selective"
    )


def cut_evenly(
    pricer: Pricer, mesh: Mesh, stages: int, choice: SplitChoice
) -> list[int]:
    """Return the cuts whose largest stage takes the least time, whatever the memory. [stages + 1]

    Args:
        pricer: The pricer of the model and the cluster.
        mesh: The mesh of every stage.
        stages: The number of stages.
        choice: How layers are split over the mesh's shards.

    Raises:
        InputError: If the model cannot be split so.
    """
    split_sums = pricer.sums(mesh, choice=choice)
    if split_sums is None:
        raise InputError(
            f"{pricer.chain.name}: cannot be split over {mesh.shards} shards"
        )
    count = len(pricer.chain)
    free = partition.largest_at_work(np.zeros(count))
    sums = np.concatenate([np.zeros((partition.WIDTH, count + 1)), free])
    sums[partition.SECONDS] = (
        split_sums.forward + split_sums.backward + split_sums.weights
    )
    flying = np.ones(stages, dtype=np.int64)
    _, cuts = partition.cut_even_stages(sums, 1e30, flying, 1e-4)
    return [*(int(cut) for cut in cuts), len(pricer.chain)]


def bounds_within(pricer: Pricer, draft: Draft) -> list[int] | None:
    """Return the cuts with the least largest stage among those that fit the devices. [stages + 1]

    Segments keep what the draft's words (ZeRO, recomputation, splits) make them keep. Chunks of one
    rank have equal parts of its memory.

    Args:
        pricer: The pricer of the model and the cluster, at the draft's micro-batch.
        draft: The draft, on equal meshes, with splits and recomputation.

    Returns:
        The cuts, or None if nothing fits.
    """
    stages = draft.stages
    mesh = draft.stages[0].mesh
    count = len(pricer.chain)
    tables = np.zeros((partition.WIDTH + 1, count))
    for stage in stages:  # every segment as its stage has it now
        run = slice(stage.first, stage.last)
        split_sums = pricer.sums(stage.mesh, choice=stage.choice)
        cost = pricer.cost(stage)
        assert split_sums is not None
        assert cost is not None
        costs = split_sums.costs
        recomputed = sorted(stage.recompute)
        tables[partition.SECONDS, run] = (
            costs.forward + costs.backward + costs.weights
        )[run]
        tables[partition.KEPT, run] = costs.saved[run]
        if stage.attention:
            freed = costs.scores
        else:
            freed = pricer.find_most_freed(costs)
        tables[partition.KEPT, recomputed] -= freed[recomputed]
        rates = pricer.share_by_segment(
            stage.zero, costs, costs.parameters, stage.mesh, stage.choice
        )
        tables[partition.STATE, run] = rates.state[run]
        tables[-1, run] = cost.working
    zeros = [[0.0]] * partition.WIDTH
    sums = np.concatenate([zeros, np.cumsum(tables[:-1], axis=1)], axis=1)
    sums = np.concatenate([sums, partition.largest_at_work(tables[-1])])
    memory = pricer.usable_memory(mesh) * (max(draft.ranks) + 1) / len(stages)
    largest, cuts = partition.cut_even_stages(sums, memory, np.array(draft.limit), 1e-4)
    if np.isfinite(largest):
        return [*(int(cut) for cut in cuts), count]
    return None


def read_orders(plan: Plan) -> Orders | None:
    """Return the passes of every rank in a plan's file, or None if its schedule makes them.

    Only files whose order of passes was searched have passes of their own.

    Raises:
        FormatError: The message names the rank whose passes are not those of its stages.
    """
    file = plan.file
    if not file.schedule.endswith(SEARCHED):
        return None
    rows = tuple(
        tuple(a for a in iterate_passes(row) if a.kind != FULL) for row in file.actions
    )
    for rank, row in enumerate(rows):
        chunks = [c for c, r in enumerate(file.ranks) if r == rank]
        count = len(chunks) * plan.microbatches * 3
        if len(set(row)) != count or any(a.chunk not in chunks for a in row):
            raise FormatError(
                f"plan: actions[{rank}]: must have F, I and W of {plan.microbatches} micro-batches "
                f"for each of the stages {chunks}, once"
            )
    return rows


def _read_mesh(cluster: Cluster, entry: StageEntry, place: str) -> Mesh:
    """Return the mesh of a stage of a plan's file.

    Args:
        cluster: The devices.
        entry: The stage.
        place: What messages name it by.

    Raises:
        MismatchError: If a device is unknown, or they are no neighbours.
    """
    index = cluster.device_index
    names = [name for row in entry.rows for name in row]
    unknown = next((name for name in names if name not in index), None)
    if unknown is not None:
        raise MismatchError(f"{place}.devices: {cluster.name!r} has no {unknown!r}")
    devices = [index[name] for name in names]
    if devices != list(range(devices[0], devices[0] + len(devices))):
        raise MismatchError(f"{place}.devices: must be neighbours, in cluster order")
    return Mesh.over(devices[0], len(entry.rows), entry.axes)


def _read_stage(
    entry: StageEntry,
    mesh: Mesh,
    segments: range,
    by_name: Mapping[str, int],
    labels: tuple[tuple[str, tuple[str | None, ...]], ...] | None,
) -> Stage:
    """Return a stage of a plan's file.

    Args:
        entry: The stage as the file has it.
        mesh: Its devices.
        segments: Its segments.
        by_name: The index of every segment of the model.
        labels: How the file's calls are split; None: the chain has no calls.
    """
    choice = FASTEST
    if mesh.shards > 1 and labels is not None:
        choice = SplitChoice(
            border=entry.border, regather=entry.regather, labels=labels
        )
    return Stage(
        first=segments.start,
        last=segments.stop,
        mesh=mesh,
        zero=entry.zero,
        recompute=frozenset(by_name[name] for name in entry.recompute.modules),
        together=entry.recompute.layers,
        attention=entry.recompute.kind == "selective",
        choice=choice,
    )


def draft_plan(chain: Chain, cluster: Cluster, plan: Plan) -> Draft:
    """Return the draft that a plan's file describes.

    Raises:
        MismatchError: If the plan is of another model, or its devices are not the cluster's.
    """
    file = plan.file
    _check_basis(chain, cluster, file)
    first_of = {name: k for k, s in enumerate(chain.segments) for name in s.members}
    by_name = {segment.name: k for k, segment in enumerate(chain.segments)}
    if isinstance(chain.source, ModelCosts):
        labels = chain.source.list_stage_labels(file.stages, file.microbatch_size)
    else:
        labels = None
    stages: list[Stage] = []
    begin = 0
    for number, entry in enumerate(file.stages):
        place = f"plan: stages[{number}]"
        mesh = _read_mesh(cluster, entry, place)
        # The stage's calls are those of the segments that follow the stage before.
        segments = sorted({first_of.get(name, -1) for name in entry.members})
        if not segments or segments != list(range(begin, begin + len(segments))):
            raise MismatchError(
                f"{place}.members: not the calls of {chain.name!r} from segment {begin} on; make "
                "a plan for this model"
            )
        last = begin + len(segments)
        stages.append(_read_stage(entry, mesh, range(begin, last), by_name, labels))
        begin = last
    if begin != len(chain):
        raise MismatchError(
            f"plan: stages: {len(chain) - begin} segments of the model are missing"
        )
    size = file.microbatch_size * stages[0].mesh.replicas
    return Draft(size, chain.batch // size, file.schedule, tuple(stages))


def _check_basis(chain: Chain, cluster: Cluster, file: PlanFile) -> None:
    """Check that a plan was made for this model and cluster.

    Raises:
        MismatchError: The message names the key path and what differs.
    """
    if file.fingerprint != chain.fingerprint:
        raise MismatchError(
            "plan: fingerprint: it is of another model; make a plan for this one"
        )
    check_words(
        file,
        batch=chain.batch,
        precision=chain.precision,
        optimizer=chain.optimizer,
        cluster=cluster.name,
    )
    check_inputs(file, chain.inputs)
    check_stages(chain.segments, file.stages)
    if isinstance(chain.source, ModelCosts):
        rules = chain.source.find_part_rules(file.microbatch_size)
        check_placements(chain.source.layers.calls, rules, file.stages)


def find_layer_bounds(chain: Chain, layers: Layers, stages: int) -> list[int]:
    """Return the first segment of every stage, given its number of layers. [stages + 1]

    Args:
        chain: The model as a chain of segments, with their prices.
        layers: Layers of every stage, or "equal".
        stages: Number of stages.

    Raises:
        InputError: If the numbers are not those of the model's layers and stages, or two layers
            that are to be cut apart are of one segment.
    """
    starts = layer_starts(chain.segments)
    try:
        counts = count_layers(layers, len(starts), stages)
    except InputError as error:
        raise InputError(f"--given: {error}") from None
    names = list(starts)
    position = 0
    bounds = [0]
    for count in counts[:-1]:
        position += count
        is_head_alone = position == len(names)  # a stage of the head without layers
        if is_head_alone:  # the first segment after all that compute in the last layer
            inside = ({find_layer(m) for m in s.modules} for s in chain.segments)
            bounds.append(
                1 + max(k for k, layer in enumerate(inside) if names[-1] in layer)
            )
        else:
            bounds.append(starts[names[position]])
        if bounds[-1] <= bounds[-2] or bounds[-1] >= len(chain):
            if is_head_alone:
                place = "what comes after the layers"
            else:
                place = names[position]
            raise InputError(
                f"--given: layers={format_layers(layers)}: {place} cannot be cut from what is "
                "before it"
            )
    return [*bounds, len(chain)]
