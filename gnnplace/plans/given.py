"""A plan of one's own: in words, or from a file."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from gnnplace.errors import FormatError, InputError, MismatchError
from gnnplace.plans.layers import layer_bounds
from gnnplace.plans.mesh import Fabric, Mesh
from gnnplace.plans.order.orders import SEARCHED, Action, Orders, chunk_ranks
from gnnplace.plans.plan import Plan
from gnnplace.plans.search import partition
from gnnplace.plans.search.draft import Draft
from gnnplace.plans.search.stage import Pricer, Stage
from gnnplace.plans.segments.chain import Chain
from gnnplace.problem.cluster import Cluster

NUMBERS = {"dp": 1, "tp": 1, "pp": 1, "microbatch_size": 1, "zero": 0}
PASS = re.compile(r"(\d+)([FIW])(\d+)")
WORDS: dict[str, tuple[str, ...]] = {
    "recompute": ("none", "full"),
    "schedule": (),
    "layers": (),
}


def parsed(words: str) -> dict[str, str]:
    """`NAME=VALUE` pairs separated by commas.

    Raises:
        InputError: naming the pair that is none, or the name that is unknown.
    """
    found: dict[str, str] = {}
    known = (*NUMBERS, *WORDS)
    for pair in words.split(","):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or name not in known:
            raise InputError(
                f"--given: {pair.strip()!r}: must be NAME=VALUE, NAME one of {', '.join(known)}"
            )
        if name in found:
            raise InputError(f"--given: {name!r} is repeated")
        found[name] = value
    for name in NUMBERS:
        if name in found and not found[name].isdecimal():
            raise InputError(f"--given: {name}={found[name]}: must be a whole number")
    for name, values in WORDS.items():
        if values and found.get(name, values[0]) not in values:
            raise InputError(f"--given: {name}={found[name]}: must be one of {', '.join(values)}")
    return found


def draft_of_words(chain: Chain, cluster: Cluster, words: str) -> Draft:
    """Replicas (dp), shards (tp) and stages (pp): of layers that are named, else as even as can be.

    Raises:
        InputError: what does not fit the model or the cluster.
    """
    given = parsed(words)
    number = {name: int(given.get(name, least or 1)) for name, least in NUMBERS.items()}
    number["zero"] = int(given.get("zero", 0))
    replicas, shards, ranks = (number[name] for name in ("dp", "tp", "pp"))
    if min(replicas, shards, ranks, number["microbatch_size"]) < 1 or number["zero"] > 3:
        raise InputError("--given: dp, tp, pp and microbatch_size are at least 1, zero at most 3")
    if replicas * shards * ranks > cluster.num_devices:
        raise InputError(
            f"--given: dp x tp x pp is {replicas * shards * ranks}; {cluster.name!r} has "
            f"{cluster.num_devices} devices"
        )
    size = replicas * number["microbatch_size"]
    if chain.batch % size:
        raise InputError(
            f"--given: a batch of {chain.batch} is no multiple of {replicas} replicas x "
            f"{number['microbatch_size']} examples"
        )
    schedule = given.get("schedule", "1f1b")
    order = chunk_ranks(schedule, ranks)
    if len(order) > len(chain):
        raise InputError(f"--given: {len(order)} stages, but the model has {len(chain)} segments")
    meshes = [Mesh(p * replicas * shards, replicas, shards) for p in order]
    if "layers" in given:
        bounds = layer_bounds(chain, given["layers"], len(order))
    else:
        bounds = even_bounds(Pricer(chain, Fabric(cluster), size), meshes[0], len(order))
    full = given.get("recompute") == "full"
    stages = [
        Stage(a, b, mesh, number["zero"], frozenset(range(a, b)) if full else frozenset())
        for mesh, a, b in zip(meshes, bounds, bounds[1:], strict=False)
    ]
    return Draft(size, chain.batch // size, schedule, tuple(stages))


def even_bounds(pricer: Pricer, mesh: Mesh, stages: int) -> list[int]:
    """Cuts with the least largest stage, memory apart. [stages + 1]

    Raises:
        InputError: the model cannot be split so.
    """
    found = pricer.sums(mesh)
    if found is None:
        raise InputError(f"{pricer.chain.name}: cannot be split over {mesh.shards} shards")
    sums = np.zeros((partition.WIDTH, len(pricer.chain) + 1))
    sums[partition.SECONDS] = found.forward + found.backward + found.weights
    flying = np.ones(stages, dtype=np.int64)
    _, cuts = partition.even_cuts(sums, 0.0, 1e30, flying, 1e-4)
    return [*(int(cut) for cut in cuts), len(pricer.chain)]


def orders_in(plan: Plan) -> Orders | None:
    """The passes in a plan's file, where its order was searched; None where a schedule makes it.

    Raises:
        FormatError: naming the rank whose passes are not those of its stages.
    """
    file = plan.file
    if not file.schedule.endswith(SEARCHED):
        return None
    rows = tuple(tuple(_passes(row)) for row in file.actions)
    for rank, row in enumerate(rows):
        own = [c for c, r in enumerate(file.ranks) if r == rank]
        count = len(own) * plan.microbatches * 3
        if len(set(row)) != count or any(a.chunk not in own for a in row):
            raise FormatError(
                f"plan: actions[{rank}]: must have F, I and W of {plan.microbatches} micro-batches "
                f"for each of the stages {own}, once"
            )
    return rows


def _passes(row: list[str]) -> Iterator[Action]:
    """Messages are left out."""
    for word in row:
        found = PASS.fullmatch(word)
        if found is not None:
            yield Action(int(found[1]), found[2], int(found[3]))


def draft_of_plan(chain: Chain, cluster: Cluster, plan: Plan) -> Draft:
    """The stages of a plan's file.

    Raises:
        MismatchError: the plan is of another model, or its devices are not the cluster's.
    """
    file = plan.file
    index = cluster.device_index
    first_of = {name: k for k, s in enumerate(chain.segments) for name in s.members}
    by_name = {s.name: k for k, s in enumerate(chain.segments)}
    stages, begin = [], 0
    for k, entry in enumerate(file.stages):
        unknown = next((n for row in entry.devices for n in row if n not in index), None)
        if unknown is not None:
            raise MismatchError(f"plan: stages[{k}].devices: {cluster.name!r} has no {unknown!r}")
        places = [index[n] for row in entry.devices for n in row]
        if places != list(range(places[0], places[0] + len(places))):
            raise MismatchError(f"plan: stages[{k}].devices: must be neighbours, in cluster order")
        own = sorted({first_of.get(name, -1) for name in entry.members})
        if not own or own != list(range(begin, begin + len(own))):
            raise MismatchError(
                f"plan: stages[{k}].members: not the calls of {chain.name!r} from segment {begin} "
                "on; make a plan for this model"
            )
        again = frozenset(by_name[name] for name in entry.recompute if name in by_name)
        mesh = Mesh(places[0], len(entry.devices), len(entry.devices[0]))
        stages.append(Stage(begin, begin + len(own), mesh, entry.zero, again))
        begin += len(own)
    if begin != len(chain):
        raise MismatchError(f"plan: stages: {len(chain) - begin} segments of the model are missing")
    size = file.microbatch_size * stages[0].mesh.replicas
    if chain.batch % size:
        raise MismatchError(f"plan: a batch of {chain.batch} is no multiple of {size} examples")
    return Draft(size, chain.batch // size, file.schedule, tuple(stages))
