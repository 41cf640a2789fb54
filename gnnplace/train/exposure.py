"""The problems that a data module shows to a network: the exposures of its training card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from gnnplace.policy import RANDOM, Exposure
from gnnplace.problem import Problem, compute_digest, compute_graph_digest
from gnnplace.train.data.captured import CapturedStore


@runtime_checkable
class Exposing(Protocol):
    """A data module that can say what it shows."""

    def exposures(self) -> tuple[Exposure, Exposure]:
        """Return the exposures of training and of validation."""


def describe_drawn_exposure(
    families: Sequence[str],
    graphs: Sequence[tuple[CapturedStore, str]],
    clusters: Sequence[str],
) -> Exposure:
    """Return the exposure of problems that are drawn from families and captured graphs.

    Args:
        families: Names of random families.
        graphs: Captured graphs, by store and name.
        clusters: Types of drawn clusters, and presets.
    """
    captured = [store.graph(name) for store, name in graphs]
    real_families = {str(graph.origin["family"]) for graph in captured}
    return Exposure(
        families=sorted({*(f"{RANDOM}{name}" for name in families), *real_families}),
        graphs=dict(
            sorted(
                (compute_graph_digest(graph.graph), graph.name) for graph in captured
            )
        ),
        clusters=sorted({*clusters}),
    )


def describe_exposure(problems: Sequence[Problem]) -> Exposure:
    """Return the exposure of problems of files."""
    return Exposure(
        problems=dict(
            sorted((compute_digest(problem), problem.name) for problem in problems)
        ),
        clusters=sorted(
            {problem.cluster.name for problem in problems if problem.cluster.name}
        ),
    )
