"""Training cards: files beside a network's weights that list what it was trained and validated on.

Training writes the card (``Learner``), ``gnnplace bench`` reads it: whether a problem was seen by a
placer follows from the card, the problem's digest, its graph and its family.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from gnnplace.files import Schema, write_json

CARD = "training.json"
RANDOM = "random:"  # before the name of a random family, which a real one may have too
Digests = dict[str, str]


class Exposure(Schema):
    """The graphs and clusters of one part of a network's training.

    Attributes:
        families: Families of graphs; random ones with ``RANDOM`` before their names.
        graphs: Names of captured graphs by ``compute_graph_digest``.
        problems: Names of problem files by `compute_digest`.
        clusters: Types of drawn clusters, and presets.
    """

    families: list[str] = []
    graphs: Digests = {}
    problems: Digests = {}
    clusters: list[str] = []

    def joined(self, other: Exposure) -> Exposure:
        """Return what either of two exposures has."""
        return Exposure(
            families=sorted({*self.families, *other.families}),
            graphs=dict(sorted((self.graphs | other.graphs).items())),
            problems=dict(sorted((self.problems | other.problems).items())),
            clusters=sorted({*self.clusters, *other.clusters}),
        )


class TrainingCard(Schema):
    """The keys of a card.

    Attributes:
        parameters: Number of trained parameters.
        hours: Wall-clock hours of training, those of the weights that it began with included.
        trained: What the weights were fitted to.
        validated: What the weights were chosen by.
        complete: False if it began with weights that have no card.
        note: Anything else that a reader should know.
    """

    format: Literal["gnnplace-training-card"] = "gnnplace-training-card"
    version: Literal[1] = 1
    parameters: Annotated[int, Field(ge=0)]
    hours: Annotated[float, Field(ge=0)]
    trained: Exposure
    validated: Exposure
    complete: bool = True
    note: str = ""

    def continue_card(self, later: TrainingCard) -> TrainingCard:
        """Return the card of weights that began with these and were trained as ``later`` says."""
        return TrainingCard(
            parameters=later.parameters,
            hours=self.hours + later.hours,
            trained=self.trained.joined(later.trained),
            validated=self.validated.joined(later.validated),
            complete=self.complete and later.complete,
            note=later.note or self.note,
        )


@dataclass(frozen=True)
class Exhibit:
    """The names by which a problem is recognised.

    Attributes:
        digest: The digest of the problem.
        graph: ``compute_graph_digest`` of the captured graph that it was made from; empty if there
        is none.
        family: The family of the graph, as cards name it.
    """

    digest: str
    graph: str = ""
    family: str = ""


def exposure_reason(card: TrainingCard, exhibit: Exhibit) -> str:
    """Return how a network met a problem, such as "trained on family unet"; empty if it did not."""
    for verb, part in (("trained", card.trained), ("validated", card.validated)):
        if exhibit.digest in part.problems:
            return f"{verb} on problem {part.problems[exhibit.digest]}"
        if exhibit.graph in part.graphs:
            return f"{verb} on graph {part.graphs[exhibit.graph]}"
        if exhibit.family in part.families:
            return f"{verb} on family {exhibit.family}"
    return ""


def write_card(folder: str | Path, card: TrainingCard) -> None:
    """Write the card of a checkpoint's folder atomically."""
    write_json(Path(folder) / CARD, card.model_dump(mode="json"))
