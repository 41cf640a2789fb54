"""Sailor's measured steps, mixed GPUs among them, from its profiles of single layers (SOSP 2025).

`validation/*/*/*/plan_config_*.json` are what ran (eth-easl/sailor, MIT): layers of every stage, of
each replica its server, GPUs and shards. A stage's layers take what `layer_profiles` has of the
kind, shards and micro-batch, in float32. Servers are joined by what `network` has of their kinds,
the slower one's, which a server's GPUs share; of a message all bytes go over one GPU's part, as the
rows on GH200 say (their four cards would take a quarter of it). The wait for the slowest replica,
gradients and 1F1B are the planner's, of a plan's file that is given; transfers block both ends.
Nothing is fitted to the steps. Left out is a row whose gradients take all of its step, or that has
not all layers. Replicas of one stage with different shards are pipelines of their own, whose
gradients meet at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain as joined
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.distill_sailor import KINDS, MODELS, cut_layers, optimizer, read
from benchmarks.studies.plans.sailor import NAMELESS, plan_of, seconds_of
from benchmarks.studies.published.outcomes import Outcome
from gnnplace.errors import FormatError
from gnnplace.plans.segments.chain import (
    FASTEST,
    Chain,
    Segment,
    SegmentCosts,
    SplitChoice,
)
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import PlanAnswer
from gnnplace.problem.cluster import Cluster, Device, Link
from gnnplace.problem.cluster.gpus import get_figures

FOLDER = "sailor"
FLOAT, LENGTH = 4, 2048
HIDDEN = {"OPT-350": 1024, "GPT-Neo-2.7": 2560}
LAYERS = {"OPT-350": 26, "GPT-Neo-2.7": 34}
NAMES = {kind: name for name, kind in KINDS.items()}
LATENCY = 2e-5  # seconds of a message between servers: assumed
INSIDE = 1e11  # bytes a second inside a server, whose exchanges are in the profiles
LOW, HIGH = 0.92, 1.073
"""Tenth and ninetieth percentile of published over predicted seconds of 26 rows on GH200."""


@dataclass(frozen=True)
class ProfiledLayers:
    """A `plans.segments.chain.CostSource`: the profiled seconds of a model's layers by kind.

    Attributes:
        folder: of the source's files.
        model: its name.
    """

    folder: Path
    model: str

    def costs(
        self,
        kind: str,
        axes: tuple[int, ...],
        examples: int,
        choice: SplitChoice = FASTEST,
    ) -> SegmentCosts | None:
        """Costs of every layer; None where there is no profile of that kind, shards and size."""
        content = profile(self.folder, self.model, NAMES[kind], str(axes[0]))
        seconds = content["seconds"].get(str(examples)) if content else None
        if seconds is None:
            return None
        forward, backward = np.array(seconds, dtype=np.float64).T
        parameters = np.array(content["parameters"], dtype=np.float64)
        kept = examples * np.array(content["activations"], dtype=np.float64)
        none, update = np.zeros(len(parameters)), updating(self.folder, NAMES[kind])
        step = update["parameter"] * parameters + update["layer"]
        return SegmentCosts(
            forward, backward, none, step, kept, kept, none, parameters, none + 0.05
        )


@cache
def profile(folder: Path, model: str, name: str, shards: str) -> dict[str, Any]:
    """Layers of a model on a kind of GPU; empty where there are none."""
    try:
        return cut_layers(folder, model, name, shards)
    except (FileNotFoundError, KeyError):
        return {}


@cache
def updating(folder: Path, name: str) -> dict[str, float]:
    """Seconds of the optimizer a parameter and a layer, by the profiled steps of OPT-350M."""
    return optimizer(folder, name)


@cache
def bandwidths(folder: Path) -> dict[str, dict[str, Any]]:
    """Fits and most bytes a second between servers of one kind, by how many of its GPUs send."""
    found: dict[str, dict[str, Any]] = read(
        folder / "network/network_coeffs_all_homo.json.gz"
    )
    return found["inter"]


def bandwidth(folder: Path, kinds: tuple[str, ...], count: int) -> float:
    """Bytes a second between servers, of which so many GPUs send: the slower kind's own."""
    return min(float(bandwidths(folder)[kind][str(count)][1]) for kind in kinds)


def outcomes(folder: Path) -> list[Outcome]:
    """Every step that can be relied on.

    Raises:
        FormatError: a file cannot be read.
    """
    own = folder / FOLDER
    return [
        o
        for path in sorted(own.glob("validation/*/*/*/plan_config_*"))
        for o in rows(path, own)
    ]


def rows(path: Path, folder: Path) -> Iterator[Outcome]:
    """The step of a file, if it can be relied on."""
    try:
        content, model = read(path), MODELS[path.parts[-3]]
        (pipeline,) = content["pipeline_list"]
        layers = [len(stage) for stage in pipeline["layers_per_stage"]]
        if sum(layers) != LAYERS[model] or content["red_grads"] >= content["real"]:
            return
        servers = [
            [(own[0][0], shards) for own, shards in s]
            for s in pipeline["tmp_per_stage"]
        ]
        size, batch = content["mbs"], content["gbs"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path}: cannot be read: {error}") from None
    batch = max(batch, size * max(map(len, servers)))
    kinds = sorted({kind for stage in servers for kind, _ in stage})
    question = (
        f"{model}, {' and '.join(kinds)}, {content['N']} servers, {size} of {batch}"
    )
    yield Outcome(
        question, model, None, PlanSpec(dp=len(servers[0]), microbatch_size=size, batch=batch),
        priced(folder, model, layers, servers, size, batch), content["real"], ran=True,
        microbatches=batch // (size * len(servers[0])),
    )  # fmt: skip


def priced(
    folder: Path,
    model: str,
    layers: list[int],
    servers: list[list[Any]],
    size: int,
    batch: int,
) -> PlanAnswer:
    """What a plan takes, each stage's replicas as kind and shards of their server."""
    shards = [sorted({replica[1] for replica in stage}) for stage in servers]
    if len({len(stage) for stage in servers}) > 1:
        return PlanAnswer(reason="stages have different replicas")
    if any(len(own) > 1 for own in shards):
        return apart(folder, model, layers, servers, size, batch)
    cluster = cluster_of(folder, tuple(joined(*servers)))
    names = [f"layer{k}" for k in range(sum(layers))]
    border = np.zeros(len(names) + 1)
    for last, before, after in zip(
        np.cumsum(layers), servers, servers[1:], strict=False
    ):
        together = min(before[0][1], after[0][1])
        kinds = tuple(kind for kind, _ in before + after)
        alone = bandwidth(folder, kinds, together) / bandwidth(folder, kinds, 1)
        border[last] = FLOAT * LENGTH * HIDDEN[model] * alone / together
    segments = tuple(Segment(name, (name,), (name,), k) for k, name in enumerate(names))
    chain = Chain(
        model,
        NAMELESS,
        segments,
        border,
        ProfiledLayers(folder, model),
        batch,
        optimizer="adam",
    )
    plan = plan_of(
        cluster, layers, [own[0] for own in shards], len(servers[0]), size, batch, model
    )
    seconds = seconds_of(chain, cluster, plan)
    if seconds is None:
        return PlanAnswer(reason="no profile of its shards and micro-batch")
    return PlanAnswer(seconds, seconds * LOW, seconds * HIGH, feasible=True)


def apart(
    folder: Path,
    model: str,
    layers: list[int],
    servers: list[list[Any]],
    size: int,
    batch: int,
) -> PlanAnswer:
    """What a plan takes whose replicas have different shards; arguments are those of `priced`.

    Each is a pipeline of its own. Then every stage's gradients, all shards of them, go around a
    ring of its replicas' servers.
    """
    count, last, ends = len(servers[0]), 0, []
    alone = [
        priced(
            folder,
            model,
            layers,
            [[stage[r]] for stage in servers],
            size,
            batch // count,
        )
        for r in range(count)
    ]
    for many, stage in zip(layers, servers, strict=True):
        kind, shards = stage[0]
        parameters = profile(folder, model, kind, str(shards)).get("parameters", [])
        moved = (
            2
            * (count - 1)
            / count
            * FLOAT
            * shards
            * sum(parameters[last : last + many])
        )
        kinds, together = tuple(name for name, _ in stage), min(own for _, own in stage)
        ends.append(moved / bandwidth(folder, kinds, together))
        last += many
    times = [own.step_time for own in alone if own.step_time is not None]
    if len(times) < count:
        return next(own for own in alone if own.step_time is None)
    seconds = max(times) + max(ends)
    return PlanAnswer(seconds, seconds * LOW, seconds * HIGH, feasible=True)


@cache
def cluster_of(folder: Path, servers: tuple[tuple[str, int], ...]) -> Cluster:
    """A plan's servers in its order, each with as many GPUs as it uses of it."""
    own = servers * 2 if len(servers) == 1 else servers  # a cluster has links
    places = [k for k, server in enumerate(own) for _ in range(server[1])]
    devices = [
        Device(
            name=f"gpu:{d}",
            kind=KINDS[own[k][0]],
            memory=get_figures(KINDS[own[k][0]]).memory,
        )
        for d, k in enumerate(places)
    ]
    links = [
        Link(source=f"gpu:{a}", target=f"gpu:{b}", latency=1e-6, bandwidth=INSIDE)
        if k == m
        else Link(
            source=f"gpu:{a}", target=f"gpu:{b}", latency=LATENCY,
            bandwidth=bandwidth(folder, (own[k][0], own[m][0]), min(own[k][1], own[m][1])),
            channel=(f"server {k} out", f"server {m} in"),
        )
        for a, k in enumerate(places) for b, m in enumerate(places) if a != b
    ]  # fmt: skip
    return Cluster(tuple(devices), tuple(links), "servers of a plan")
