"""A plan of one's own: in words, or from a file.

Stages of whole layers are named as launch scripts do: `layers=12+12+12+12` or `layers=equal`. A
layer is an outermost numbered module, such as `transformer.h.3` or `encoder.block.0`; it begins at
the first segment that computes in it. What comes before the first layer is of the first stage, what
comes after the last is of the last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from gnnplace.errors import FormatError, InputError, MismatchError
from gnnplace.plans.decoders.words import pairs_in
from gnnplace.plans.mesh import Mesh, MeshFabric
from gnnplace.plans.order.orders import FULL, SEARCHED, Orders, chunk_ranks
from gnnplace.plans.order.rows import passes_in
from gnnplace.plans.plan import RECOMPUTE, Plan, PlanFile, layer_of
from gnnplace.plans.search import partition
from gnnplace.plans.search.draft import Draft, lack_of
from gnnplace.plans.search.splits import with_splits
from gnnplace.plans.search.stage import Pricer, Stage
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
from gnnplace.plans.segments.chains import chain_of, check_inputs
from gnnplace.plans.segments.placements import check_placements, check_stages
from gnnplace.plans.segments.pricing import ModelCosts
from gnnplace.problem.cluster import Cluster

NUMBERS = {
    "dp": 1,
    "tp": 1,
    "cp": 1,
    "ep": 1,
    "shards": 1,
    "pp": 1,
    "microbatch_size": 1,
    "zero": 0,
}
WORDS: dict[str, tuple[str, ...]] = {
    "recompute": (),
    "sp": ("on", "off"),
    "compile": (),
    "cuda_graphs": (),
    "regather": ("on", "off"),
    "schedule": (),
    "layers": (),
}
EQUAL = "equal"
LAYERS = re.compile(r"equal|[0-9]+(\s*\+\s*[0-9]+)*")


def parsed(words: str) -> dict[str, str]:
    """`NAME=VALUE` pairs separated by commas.

    Raises:
        InputError: naming the pair that is none, or the name that is unknown.
    """
    found = pairs_in(words, (*NUMBERS, *WORDS))
    for name in NUMBERS:
        if name in found and not found[name].isdecimal():
            raise InputError(f"--given: {name}={found[name]}: must be a whole number")
    for name in ("compile", "cuda_graphs"):
        if found.get(name, "off") != "off":
            raise InputError(
                f"--given: {name}={found[name]}: a captured model is priced and run as eager "
                "PyTorch; leave it out, or price a decoder in half precision with --framework"
            )
    for name, values in WORDS.items():
        if values and found.get(name, values[0]) not in values:
            raise InputError(f"--given: {name}={found[name]}: must be one of {', '.join(values)}")
    if RECOMPUTE.fullmatch(found.get("recompute", "none")) is None:
        raise InputError(
            f"--given: recompute={found['recompute']}: must be none, full, "
            "selective (attention alone), block:K (a stage's first K layers) or uniform:K (all, "
            "in groups of K)"
        )
    if LAYERS.fullmatch(found.get("layers", EQUAL)) is None:
        raise InputError(
            f"--given: layers={found['layers']}: must be 'equal', or numbers such as 6+6+4"
        )
    return found


def numbers_in(given: dict[str, str], cluster: Cluster, batch: int | None) -> dict[str, int]:
    """The numbers of words that `parsed` has read, 1 or 0 where there is none.

    Args:
        given: the words.
        cluster: that they are for.
        batch: examples of a step; None: not known yet.

    Raises:
        InputError: what no model could be planned by.
    """
    number = {name: int(given.get(name, least)) for name, least in NUMBERS.items()}
    if min(number[n] for n, least in NUMBERS.items() if least) < 1 or number["zero"] > 3:
        raise InputError(
            "--given: dp, tp, cp, ep, shards, pp and microbatch_size are at least 1, zero at most 3"
        )
    replicas = number["dp"]
    count = {"dp": replicas, **shards_of(given).degrees, "pp": number["pp"]}
    if (devices := prod(count.values())) > cluster.num_devices:
        raise InputError(
            f"--given: {' x '.join(count)} is {devices}; "
            f"{cluster.name!r} has {cluster.num_devices} devices"
        )
    chunk_ranks(given.get("schedule", "1f1b"), number["pp"])
    size = replicas * number["microbatch_size"]
    if batch is not None and batch % size:
        raise InputError(
            f"--given: a batch of {batch} is no multiple of {replicas} replicas x "
            f"{number['microbatch_size']} examples"
        )
    if batch is not None and batch // size > MICROBATCHES:
        raise InputError(
            f"--given: a batch of {batch} in shares of {size} examples makes {batch // size} "
            f"micro-batches; a step has at most {MICROBATCHES}"
        )
    return number


@dataclass(frozen=True)
class Shards:
    """What words say of the shards of a replica.

    Attributes:
        degrees: `tp`, `cp` or `shards`, by name; `tp` is 1 where none is given.
        experts: parts of the experts, of replicas that are one mesh with them; 1 if there are none.
        choices: of splits and borders, each of them tried.
        told: what the split is called.
    """

    degrees: dict[str, int]
    experts: int
    choices: tuple[SplitChoice, ...]
    told: str = "Megatron's"

    @property
    def axes(self) -> tuple[int, ...]:
        """Shards along each of their axes, the outer one first."""
        sizes = (self.experts, self.degrees.get("cp", 1), *self._inner)
        return tuple(n for n in sizes if n > 1) or (1,)

    @property
    def _inner(self) -> list[int]:
        return [n for name, n in self.degrees.items() if name != "cp"]

    @property
    def count(self) -> int:
        """Shards of a mesh."""
        return prod(self.axes)


FREELY = tuple(SplitChoice(FREE, border=border) for border in ("tokens", "whole"))


def shards_of(given: dict[str, str]) -> Shards:
    """What words say of shards.

    Raises:
        InputError: they contradict each other.
    """
    number = {name: int(given.get(name, 1)) for name in ("dp", "tp", "cp", "ep", "shards")}
    dp, tp, cp, ep, free = number.values()
    others = [
        name for name in ("tp", "cp", "ep") if number[name] > 1 or (name == "tp" and name in given)
    ]
    if others and (free > 1 or "shards" in given):
        raise InputError(
            f"--given: shards and {' and '.join(others)}: give one of them: tp is Megatron's "
            "split, cp cuts tokens, shards anything that is fastest"
        )
    if free > 1 or "shards" in given:
        words = {"on": ("tokens",), "off": ("whole",)}.get(given.get("sp", ""), ("tokens", "whole"))
        choices = tuple(choice for choice in FREELY if choice.border in words)
        return Shards({"shards": free}, 1, choices, "the fastest")
    if ep > 1 and (ep != cp if cp > 1 else dp % ep):
        raise InputError(
            f"--given: dp={dp}, cp={cp}, ep={ep}: experts lie on the shards that cut tokens, "
            "ep=cp, or without these on replicas: ep divides dp"
        )
    between = "tokens" if given.get("sp", "on") == "on" else "whole"
    over = [(WEIGHTS, between)] if tp > 1 else []
    if cp > 1:
        over.insert(0, (EXPERTS if ep > 1 else CONTEXT, "tokens" if tp > 1 else between))
    elif ep > 1:
        over.insert(0, (EXAMPLES, "examples"))
    styles, borders = zip(*over, strict=True) if over else ((WEIGHTS,), ("whole",))
    outer = styles[0] if len(styles) > 1 else ""
    border = ",".join(borders) if len(set(borders)) > 1 else borders[0]
    names = {"tp": "Megatron's", "cp": "that of tokens", "ep": "that of experts"}
    told = [names[name] for name in ("ep", "cp", "tp") if number[name] > 1]
    return Shards(({"tp": tp} if tp > 1 or cp == 1 else {}) | ({"cp": cp} if cp > 1 else {}),
                  ep if cp == 1 else 1, (SplitChoice(styles[-1], outer, border),),
                  " with ".join(told))  # fmt: skip


def draft_of_words(chain: Chain, cluster: Cluster, words: str) -> Draft:
    """Replicas (dp), shards and stages (pp): of layers that are named, else as even as fits.

    `tp` shards cut every matrix of weights, with tokens cut between segments unless `sp=off`, as
    Megatron does (Narayanan et al., 2021, arXiv 2104.04473; Korthikanti et al., 2022, arXiv
    2205.05198); `cp` shards cut tokens and have whole weights; with `ep` they have experts of their
    own, to which tokens are sent, or replicas do where no tokens are cut; `shards` may cut
    anything. Of two of these `tp` is the inner axis.

    Raises:
        InputError: what does not fit the model or the cluster.
    """
    given = parsed(words)
    number, shards = numbers_in(given, cluster, chain.batch), shards_of(given)
    _check_experts(chain, number["ep"])
    replicas, ranks = number["dp"] // shards.experts, number["pp"]
    size = number["dp"] * number["microbatch_size"]
    schedule = given.get("schedule", "1f1b")
    order = chunk_ranks(schedule, ranks)
    if len(order) > len(chain):
        raise InputError(f"--given: {len(order)} stages, but the model has {len(chain)} segments")
    each = replicas * shards.count
    meshes = [Mesh.over(p * each, replicas, shards.axes) for p in order]
    pricer = Pricer(chain, MeshFabric(cluster), size)
    microbatches = chain.batch // size
    word = given.get("regather")
    if shards.count == 1 and word == "on":
        raise InputError("--given: regather=on: one shard gathers nothing; give tp, cp or shards")
    choices = [replace(choice, regather=word == "on") for choice in shards.choices]

    def drafted(bounds: list[int]) -> Draft:
        stages = [
            recomputing(chain, Stage(a, b, mesh, number["zero"]), given.get("recompute", "none"))
            for mesh, a, b in zip(meshes, bounds, bounds[1:], strict=False)
        ]
        draft = Draft(size, microbatches, schedule, tuple(stages))
        if shards.count == 1:
            return draft
        return with_splits(pricer, draft, choices, regather=word is None)

    if "layers" in given:
        return drafted(layer_bounds(chain, given["layers"], len(order)))
    choice = replace(choices[-1], once=1 / microbatches)
    draft = drafted(even_bounds(pricer, meshes[0], len(order), choice))
    lack = lack_of(pricer, draft)
    if len(order) == 1 or not 0 < lack < np.inf:
        return draft
    within = bounds_within(pricer, draft)
    other = draft if within is None else drafted(within)
    return other if lack_of(pricer, other) < lack else draft


def _check_experts(chain: Chain, parts: int) -> None:
    """Whether a model's experts have so many parts.

    Raises:
        InputError: it has none, or theirs are not equal.
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
        raise InputError(f"--given: ep={parts}: {count} experts have no {parts} equal parts")


def recomputing(chain: Chain, stage: Stage, word: str) -> Stage:
    """A stage that recomputes what a word says; every layer, or group of them, keeps one input."""
    kind, _, count = word.partition(":")
    run = range(stage.first, stage.last)
    if kind == "block":
        starts = sorted(k for k in layer_starts(chain.segments).values() if k in run)
        most = [*starts, stage.last][min(int(count), len(starts))]
        run = range(starts[0], most) if starts else range(0)
    again = frozenset(run if kind != "none" else ())
    if kind == "selective" and isinstance(chain.source, ModelCosts):
        again = frozenset(k for k in run if chain.source.attention[k])
    together = {"none": 0, "selective": 0, "uniform": int(count or 1)}.get(kind, 1)
    return replace(stage, recompute=again, together=together, attention=kind == "selective")


def even_bounds(pricer: Pricer, mesh: Mesh, stages: int, choice: SplitChoice) -> list[int]:
    """Cuts with the least largest stage, memory apart. [stages + 1]

    Raises:
        InputError: the model cannot be split so.
    """
    found = pricer.sums(mesh, choice=choice)
    if found is None:
        raise InputError(f"{pricer.chain.name}: cannot be split over {mesh.shards} shards")
    count = len(pricer.chain)
    free = partition.largest_at_work(np.zeros(count))
    sums = np.concatenate([np.zeros((partition.WIDTH, count + 1)), free])
    sums[partition.SECONDS] = found.forward + found.backward + found.weights
    flying = np.ones(stages, dtype=np.int64)
    _, cuts = partition.even_cuts(sums, 1e30, flying, 1e-4)
    return [*(int(cut) for cut in cuts), len(pricer.chain)]


def bounds_within(pricer: Pricer, draft: Draft) -> list[int] | None:
    """Cuts with the least largest stage of those whose devices hold what the draft's words keep.

    Chunks of one rank have equal parts of its memory. [stages + 1]

    Args:
        pricer: of the model and the cluster, at the draft's micro-batch.
        draft: on equal meshes, with splits and recomputation.

    Returns:
        The cuts; None where nothing fits.
    """
    stages, mesh, count = draft.stages, draft.stages[0].mesh, len(pricer.chain)
    tables = np.zeros((partition.WIDTH + 1, count))
    for stage in stages:  # every segment as its stage has it now
        run = slice(stage.first, stage.last)
        own, cost = pricer.sums(stage.mesh, choice=stage.choice), pricer.cost(stage)
        assert own is not None
        assert cost is not None
        costs, again = own.costs, sorted(stage.recompute)
        tables[partition.SECONDS, run] = (costs.forward + costs.backward + costs.weights)[run]
        tables[partition.KEPT, run] = costs.saved[run]
        freed = costs.scores if stage.attention else pricer.most_freed(costs)
        tables[partition.KEPT, again] -= freed[again]
        rates = pricer.of_segments(stage.zero, costs, costs.parameters, stage.mesh)
        tables[partition.STATE, run] = rates[3, run]
        tables[-1, run] = cost.working
    sums = np.concatenate([[[0.0]] * partition.WIDTH, np.cumsum(tables[:-1], axis=1)], axis=1)
    sums = np.concatenate([sums, partition.largest_at_work(tables[-1])])
    memory = pricer.fabric.memory(mesh) * (max(draft.ranks) + 1) / len(stages)
    largest, cuts = partition.even_cuts(sums, memory, np.array(draft.limit), 1e-4)
    return [*(int(cut) for cut in cuts), count] if np.isfinite(largest) else None


def orders_in(plan: Plan) -> Orders | None:
    """The passes in a plan's file, where its order was searched; None where a schedule makes it.

    Raises:
        FormatError: naming the rank whose passes are not those of its stages.
    """
    file = plan.file
    if not file.schedule.endswith(SEARCHED):
        return None
    rows = tuple(tuple(a for a in passes_in(row) if a.kind != FULL) for row in file.actions)
    for rank, row in enumerate(rows):
        own = [c for c, r in enumerate(file.ranks) if r == rank]
        count = len(own) * plan.microbatches * 3
        if len(set(row)) != count or any(a.chunk not in own for a in row):
            raise FormatError(
                f"plan: actions[{rank}]: must have F, I and W of {plan.microbatches} micro-batches "
                f"for each of the stages {own}, once"
            )
    return rows


def draft_of_plan(chain: Chain, cluster: Cluster, plan: Plan) -> Draft:
    """The stages of a plan's file.

    Raises:
        MismatchError: the plan is of another model, or its devices are not the cluster's.
    """
    file = plan.file
    _check_basis(chain, cluster, file)
    index = cluster.device_index
    first_of = {name: k for k, s in enumerate(chain.segments) for name in s.members}
    by_name = {s.name: k for k, s in enumerate(chain.segments)}
    stages, begin = [], 0
    labels = (
        chain.source.labels_of(file.stages, file.microbatch_size)
        if isinstance(chain.source, ModelCosts)
        else None
    )
    for k, entry in enumerate(file.stages):
        unknown = next((n for row in entry.rows for n in row if n not in index), None)
        if unknown is not None:
            raise MismatchError(f"plan: stages[{k}].devices: {cluster.name!r} has no {unknown!r}")
        places = [index[n] for row in entry.rows for n in row]
        if places != list(range(places[0], places[0] + len(places))):
            raise MismatchError(f"plan: stages[{k}].devices: must be neighbours, in cluster order")
        own = sorted({first_of.get(name, -1) for name in entry.members})
        if not own or own != list(range(begin, begin + len(own))):
            raise MismatchError(
                f"plan: stages[{k}].members: not the calls of {chain.name!r} from segment {begin} "
                "on; make a plan for this model"
            )
        again = frozenset(by_name[name] for name in entry.recompute.modules)
        kind, together = entry.recompute.kind, entry.recompute.layers
        mesh = Mesh.over(places[0], len(entry.rows), entry.axes)
        choice = FASTEST
        if mesh.shards > 1 and labels is not None:
            choice = SplitChoice(border=entry.border, regather=entry.regather, labels=labels)
        stages.append(Stage(begin, begin + len(own), mesh, entry.zero, again, together,
                            kind == "selective", choice))  # fmt: skip
        begin += len(own)
    if begin != len(chain):
        raise MismatchError(f"plan: stages: {len(chain) - begin} segments of the model are missing")
    size = file.microbatch_size * stages[0].mesh.replicas
    return Draft(size, chain.batch // size, file.schedule, tuple(stages))


def chain_of_file(file: PlanFile, model: str, cluster: Cluster, precision: str) -> Chain:
    """The model of a plan's file, captured as it was for the plan."""
    return chain_of(
        model, cluster, batch=file.batch, precision=precision, optimizer=file.optimizer,
        accept_other_loss=True,
    )  # fmt: skip


def check_words(file: PlanFile, **asked: str | int | None) -> None:
    """Whether a plan says what is asked of it; None asks nothing.

    Raises:
        MismatchError: naming the key path and what differs.
    """
    for key, value in asked.items():
        told = getattr(file, key)
        if value not in (None, told):
            raise MismatchError(
                f"plan: {key}: it is for {told!r}, not {value!r}; give --{key} {told}, or make a "
                "plan for the other"
            )


def _check_basis(chain: Chain, cluster: Cluster, file: PlanFile) -> None:
    """Whether a plan is of this model and cluster, in its words.

    Raises:
        MismatchError: naming the key path and what differs.
    """
    if file.fingerprint != chain.fingerprint:
        raise MismatchError("plan: fingerprint: it is of another model; make a plan for this one")
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
        rules = chain.source.rules_of(file.microbatch_size)
        check_placements(chain.source.layers.calls, rules, file.stages)


def layer_bounds(chain: Chain, words: str, stages: int) -> list[int]:
    """Cuts after so many layers each. [stages + 1]

    Args:
        chain: the model as a chain of segments, with their prices.
        words: the layers of every stage, such as "6+6+4", or "equal".
        stages: how many there are.

    Raises:
        InputError: the numbers are not those of the model's layers and stages, or two layers that
            are to be cut apart are of one segment.
    """
    starts = layer_starts(chain.segments)
    counts = _counts(words, len(starts), stages)
    names, position, bounds = list(starts), 0, [0]
    for count in counts[:-1]:
        position += count
        after = position == len(names)  # a stage of the head alone
        if after:  # the first segment after all that compute in the last layer
            inside = ({layer_of(m) for m in s.modules} for s in chain.segments)
            bounds.append(1 + max(k for k, own in enumerate(inside) if names[-1] in own))
        else:
            bounds.append(starts[names[position]])
        if bounds[-1] <= bounds[-2] or bounds[-1] >= len(chain):
            told = "what comes after the layers" if after else names[position]
            raise InputError(
                f"--given: layers={words}: {told} cannot be cut from what is before it"
            )
    return [*bounds, len(chain)]


def _counts(words: str, layers: int, stages: int) -> list[int]:
    """The layers of every stage."""
    if words == EQUAL:
        if layers == 0 or layers % stages:
            raise InputError(
                f"--given: layers=equal: the model's {layers} layers are no multiple of {stages} "
                "stages; say how many each has, such as layers=6+6+4"
            )
        return [layers // stages] * stages
    counts = [int(part) for part in words.split("+")]
    if len(counts) != stages or sum(counts) != layers:
        raise InputError(
            f"--given: layers={words}: must be {stages} numbers, one a stage, whose sum is the "
            f"model's {layers} layers"
        )
    return counts
