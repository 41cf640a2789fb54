"""Sailor's measured training steps on GH200, predicted from its layer profiles.

Strati et al., SOSP 2025 (eth-easl/sailor, MIT licence): OPT-350M and GPT-Neo-2.7B in fp32 on 1 to
64 servers of four GH200 (Alps Clariden, Slingshot), four GPUs of tensor parallelism in a server,
pipelines and replicas over servers. ``sailor.json`` has the plans, what they took, and profiles of
single layers (``benchmarks/distill_sailor.py`` makes it).

A step is that of a plan that is given (``studies.plans.sailor``); nothing is fitted to the steps:

* a stage's forward and backward pass of a micro-batch: the sum of its layers' profiled seconds;
* a transfer between stages: a message of the activations on ``slingshot-gh200`` (each GPU has a
  network card of its own); it blocks both ends;
* reduction of gradients: an all-reduce of a GPU's parameters over the replicas, in fp32, after the
  backward pass, not overlapped;
* the optimizer: seconds a parameter and a layer, fitted to OPT-350M's profiled optimizer steps.

The row GPT-Neo-2.7B N4_D4 is unsound: its reduction of gradients takes the whole step, and it has
26 layers of a model of 34.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from benchmarks.studies.costs.sailor_data import UNSOUND, data
from benchmarks.studies.plans.sailor import predict


@dataclass(frozen=True)
class Row:
    """A published step and its prediction.

    Attributes:
        model: its name.
        plan: its name in the source: servers and replicas.
        nodes: servers.
        stages: of the pipeline.
        replicas: of every stage.
        microbatch: examples of a micro-batch.
        batch: examples of a step.
        predicted: seconds.
        published: seconds.
        error: predicted over published seconds, less one.
        fault: why the published row cannot be relied on; empty if it can.
    """

    model: str
    plan: str
    nodes: int
    stages: int
    replicas: int
    microbatch: int
    batch: int
    predicted: float
    published: float
    error: float = field(init=False)
    fault: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "error", self.predicted / self.published - 1.0)

    @property
    def name(self) -> str:
        """Model and plan."""
        return f"{self.model} {self.plan}"


def rows(*, sound: bool = True) -> list[Row]:
    """All published steps with their predictions.

    Args:
        sound: leave out those that cannot be relied on.
    """
    found = [_row(plan) for plan in data()["plans"]]
    return [row for row in found if not (sound and row.fault)]


def _row(plan: dict[str, Any]) -> Row:
    return Row(
        model=plan["model"],
        plan=plan["name"],
        nodes=plan["nodes"],
        stages=len(plan["layers"]),
        replicas=plan["replicas"],
        microbatch=plan["microbatch"],
        batch=plan["batch"],
        predicted=predict(plan),
        published=plan["seconds"],
        fault=UNSOUND.get((plan["model"], plan["name"]), ""),
    )


def mean_error(found: Sequence[Row]) -> float:
    """Mean of the relative errors' magnitudes."""
    return sum(abs(row.error) for row in found) / len(found)


def misordered(found: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Pairs of plans for the same question whose prediction has the slower one first.

    The same question is the same model, servers, micro-batch and batch.
    """

    def question(row: Row) -> tuple[str, int, int, int]:
        return row.model, row.nodes, row.microbatch, row.batch

    return [
        (a, b)
        for a, b in combinations(found, 2)
        if question(a) == question(b)
        and (a.predicted - b.predicted) * (a.published - b.published) < 0
    ]
