"""What the paper says: Pal et al. (2019, arXiv 1907.13257), to stand beside our own figures.

Their abstract: for Inception-V3, GNMT and BigLSTM "the hybrid strategy provides an end-to-end
training speedup of at least 26.5%, 8%, and 22% respectively compared to what DP alone can achieve
at scale". Their model-parallel workers are pairs of V100 GPUs, placed by DLPlacer or
pipelined; their epochs by batch were measured. Nothing else of theirs is used here.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "Pal et al. 2019, arXiv 1907.13257, abstract"


@dataclass(frozen=True)
class PublishedGain:
    """Speed-up of hybrid training over data parallelism alone at scale, minus one.

    Attributes:
        model: as they call it.
        gain: at least so much.
        ours: workloads and profiles of ours that stand for it.
    """

    model: str
    gain: float
    ours: tuple[str, ...]


PUBLISHED = (
    PublishedGain("Inception-V3", 0.265, ("inception", "inception_v3")),
    PublishedGain("GNMT", 0.08, ("gnmt",)),
    PublishedGain("BigLSTM", 0.22, ("rnn_lm",)),
)


def published_gain(model: str) -> PublishedGain | None:
    """The published gain of a model by the name of ours; None if there is none."""
    name = model.partition("?")[0].removeprefix("zoo:")
    return next((row for row in PUBLISHED if name in row.ours), None)
