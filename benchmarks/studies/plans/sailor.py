"""Sailor's measured steps on GH200, each as a plan's file that is given.

Strati et al., SOSP 2025 (eth-easl/sailor, MIT): 27 steps of OPT-350M and GPT-Neo-2.7B in float32 on
1 to 64 servers of four GH200; `studies/costs/sailor.json` has the plans (layers of every stage,
replicas; four shards, one server a replica), what they took, and profiles of single layers. The
layers are the segments of a chain whose times are the profiles'; links, the exchange of gradients
and the order of actions are the planner's. Nothing is fitted to the steps. Transfers block both
ends, as in the framework that ran them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from benchmarks.studies.costs.sailor_data import FLOAT, UNSOUND, data
from benchmarks.studies.plans.runs import Run
from gnnplace.errors import InputError
from gnnplace.plans.given import draft_plan
from gnnplace.plans.mesh import MeshFabric
from gnnplace.plans.order.orders import one_by_one
from gnnplace.plans.order.rows import with_messages, words
from gnnplace.plans.order.timing import time_pipeline
from gnnplace.plans.plan import MemoryEntry, Plan, PlanFile, StageEntry
from gnnplace.plans.search.draft import realize_draft
from gnnplace.plans.search.stage import Pricer
from gnnplace.plans.segments.chain import (
    FASTEST,
    Chain,
    Segment,
    SegmentCosts,
    SplitChoice,
)
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.cluster.presets import make_preset

SHARDS = 4
NAMELESS = "0" * 64  # the fingerprint of profiles, which have no calls


@dataclass(frozen=True)
class Profile:
    """A `plans.segments.chain.CostSource`: the profiled seconds of a model's layers.

    Attributes:
        model: its name.
        count: layers, of which a published plan may not have all.
    """

    model: str
    count: int

    def costs(
        self,
        kind: str,
        axes: tuple[int, ...],
        examples: int,
        choice: SplitChoice = FASTEST,
    ) -> SegmentCosts | None:
        """Costs of every layer; None where there is no profile of that micro-batch."""
        content = data()
        model, update = content["models"][self.model], content["update"]
        seconds = model["seconds"].get(str(examples))
        if seconds is None or axes != (SHARDS,):
            return None
        forward, backward = np.array(seconds[: self.count], dtype=np.float64).T
        parameters = np.array(model["parameters"][: self.count], dtype=np.float64)
        kept = examples * np.array(model["activations"][: self.count], dtype=np.float64)
        none = np.zeros(len(parameters))
        step = update["parameter"] * parameters + update["layer"]
        return SegmentCosts(
            forward, backward, none, step, kept, kept, none, parameters, none + 0.05
        )


def capture_chain(plan: dict[str, Any]) -> Chain:
    """The model of a published plan, at its batch."""
    content = data()
    count = sum(plan["layers"])
    names = [f"layer{k}" for k in range(count)]
    segments = tuple(Segment(name, (name,), (name,), k) for k, name in enumerate(names))
    size = FLOAT * content["sequence"] * content["hidden"][plan["model"]]
    border = np.array([0.0, *[float(size)] * (count - 1), 0.0])
    batch = max(plan["batch"], plan["microbatch"] * plan["replicas"])
    return Chain(
        plan["model"], NAMELESS, segments, border, Profile(plan["model"], count), batch,
        optimizer="adam",
    )  # fmt: skip


@cache
def cluster_of(servers: int) -> Cluster:
    """So many servers of four GH200."""
    return make_preset(f"slingshot-gh200-{max(servers, 2)}x4")


def given(plan: dict[str, Any]) -> Plan:
    """A published plan as a file has it."""
    batch = max(plan["batch"], plan["microbatch"] * plan["replicas"])
    cluster, layers = cluster_of(plan["nodes"]), plan["layers"]
    shards = [SHARDS] * len(layers)
    return plan_of(
        cluster,
        layers,
        shards,
        plan["replicas"],
        plan["microbatch"],
        batch,
        plan["model"],
    )


def plan_of(
    cluster: Cluster, layers: Sequence[int], shards: Sequence[int], replicas: int, size: int,
    batch: int, model: str,
) -> Plan:  # fmt: skip
    """A plan's file of stages one after the other, on a cluster's devices in their order.

    Args:
        cluster: the devices.
        layers: of every stage.
        shards: of every stage's layers.
        replicas: of all stages.
        size: examples of a replica and micro-batch.
        batch: examples of a step.
        model: its name.
    """
    stages, layer, device = [], 0, 0
    for count, own in zip(layers, shards, strict=True):
        rows = [
            [[f"gpu:{device + own * r + k}" for k in range(own)]]
            for r in range(replicas)
        ]
        names = [f"layer{k}" for k in range(layer, layer + count)]
        stages.append(StageEntry(modules=names, members=names, devices=rows))
        layer, device = layer + count, device + own * replicas
    ranks = range(len(stages))
    orders = one_by_one(len(stages), batch // (size * replicas))
    nothing = MemoryEntry(state=0.0, activations=0.0, working=0.0, slack=0.0)
    file = PlanFile(
        format="gnnplace-plan",
        version=2,
        model=model,
        fingerprint=NAMELESS,
        cluster=cluster.name,
        batch=batch,
        microbatch_size=size,
        precision="32-true",
        optimizer="adam",
        stages=stages,
        ranks=list(ranks),
        actions=words(with_messages(orders, ranks)),
        memory={
            name: nothing for stage in stages for row in stage.rows for name in row
        },
    )
    return Plan(file)


def seconds_of(chain: Chain, cluster: Cluster, plan: Plan) -> float | None:
    """Seconds of a step whose transfers block both ends; None where a layer has no costs."""
    draft = draft_plan(chain, cluster, plan)
    priced = realize_draft(Pricer(chain, MeshFabric(cluster), draft.size), draft)
    if priced is None:
        return None
    return time_pipeline(
        priced.line, priced.orders, priced.ends, blocking=True
    ).step_time


def predict(plan: dict[str, Any]) -> float:
    """Seconds of a step of a published plan, which has the keys of ``data()["plans"]``."""
    seconds = seconds_of(capture_chain(plan), cluster_of(plan["nodes"]), given(plan))
    if seconds is None:
        raise InputError(
            f"{plan['model']} {plan['name']}: no profile of its micro-batch"
        )
    return seconds


def runs() -> list[Run]:
    """All published steps that can be relied on; a question is model, servers and batch."""
    return [
        Run(
            f"{p['model']}, {p['nodes']} servers, {p['microbatch']} of {p['batch']} examples",
            p["name"],
            predict(p),
            p["seconds"],
        )
        for p in data()["plans"]
        if (p["model"], p["name"]) not in UNSOUND
    ]
