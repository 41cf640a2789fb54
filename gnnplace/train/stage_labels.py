"""Labels for ``StageNet``: what search makes of pipelines of captured models, kept in a folder.

A label is a problem drawn from a whole graph of a training family (``data.captured``): 2 to 12
devices of a random cluster, 4 or 8 micro-batches, a quarter to four times the captured batch. Its
narrow groups are searched from constructions, and from what a network proposes where there is one
already: then the labels are the network's own, improved (self-labelling, Corsini et al., 2024).
Kept are the line, the best devices of its segments, and those of the search's members.

Each label is a file, written at once: making labels may be stopped at any moment, and goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnplace.data.captured import CapturedStore, captured_problem, shipped_store
from gnnplace.data.captured_models import TRAIN
from gnnplace.data.datasets import find_dataset
from gnnplace.data.random_families import TRAIN_CLUSTERS
from gnnplace.placers import SearchSpace
from gnnplace.placers.narrow import as_they_are, ranked_starts
from gnnplace.policy.stages.line import Line, line_of
from gnnplace.policy.stages.proposer import load_proposer
from gnnplace.policy.stages.starts import LEAST_SEGMENTS, with_proposals
from gnnplace.search.chunk_search import ChunkSearch
from gnnplace.search.clock import now
from gnnplace.search.narrow_problem import narrow_groups

IntArray = NDArray[np.int32]
Say = Callable[[str], None]
DATASET = "pipelines"
LEAST_OPS, MOST_OPS = 100, 40_000  # of a graph, and of a problem
STARTS = 6
NEARLY = 1.02  # seconds of a member over the best that are worth learning


@dataclass(frozen=True, eq=False)
class Label:
    """What search found.

    Attributes:
        line: the line of the problem.
        devices: of the segments, the best first. Each [S]
    """

    line: Line
    devices: tuple[IntArray, ...]


def make_labels(
    folder: str | Path,
    count: int,
    *,
    seconds: float = 4.0,
    seed: int = 1000,
    teacher: str | None = None,
    say: Say = lambda line: None,
) -> None:
    """Makes the labels that a folder lacks.

    Args:
        folder: made if it is not there.
        count: how many there shall be, of seeds from ``seed`` on; short lines have none.
        seconds: of search for each.
        seed: the first.
        teacher: a network whose proposals the search starts from, a safetensors file.
        say: called with a line for each.
    """
    graphs = _graphs()
    os.makedirs(folder, exist_ok=True)
    for number in range(seed, seed + count):
        path = Path(folder) / f"{number}.npz"
        if not path.exists():
            made = _label(graphs, number, seconds, teacher)
            _write(path, made)
            say(f"label {number - seed + 1}/{count}: {len(made) and len(made['share'])} segments")


def _graphs() -> list[tuple[CapturedStore, str]]:
    """Graphs of training families, those of the dataset twice."""
    store, more = shipped_store(), find_dataset(DATASET)
    large = [name for name in store.part(TRAIN) if store.graph(name).num_ops >= LEAST_OPS]
    return [(store, name) for name in large] + [(more, name) for name in more.part(TRAIN)] * 2


def _label(
    graphs: list[tuple[CapturedStore, str]], seed: int, seconds: float, teacher: str | None
) -> dict[str, Any]:
    """The arrays of a label; none where the line is short."""
    store, name = graphs[np.random.default_rng(seed).integers(len(graphs))]
    problem = captured_problem(
        store,
        name,
        seed,
        groups=None,
        clusters=TRAIN_CLUSTERS,
        devices=(2, 12),
        microbatches=(4, 8),
        memory=("ample",),
        batch=(0.25, 4.0),
        most_ops=MOST_OPS,
    )
    narrow = narrow_groups(SearchSpace(problem))
    if len(narrow.line) < LEAST_SEGMENTS:
        return {}
    space = SearchSpace(narrow.problem)
    propose = partial(with_proposals, load_proposer(teacher), seed=seed) if teacher else as_they_are
    starts = propose(space, narrow, ranked_starts(space, narrow, ()))
    search = ChunkSearch(space, narrow, starts[:STARTS], seed)
    until = now() + seconds
    while now() < until:
        search.run_lap()
    best = search.best
    found = [(best.score, best.unit_device)]
    found += [(float(member.score[0]), member.unit_device) for member in search.members]
    kept = [device[narrow.line] for score, device in found if score <= NEARLY * best.score]
    return asdict(line_of(space, narrow)) | {"devices": np.unique(np.stack(kept), axis=0)}


def _write(path: Path, arrays: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    with open(part, "wb") as file:
        np.savez_compressed(file, **arrays)
    os.replace(part, path)


def read_labels(folder: str | Path) -> dict[int, Label]:
    """All labels of a folder by their seeds."""
    labels = {}
    for path in sorted(Path(folder).glob("*.npz")):
        with np.load(path) as arrays:
            kept = {name: arrays[name] for name in arrays.files}
        if kept:
            devices = tuple(kept.pop("devices").astype(np.int32))
            labels[int(path.stem)] = Label(Line(**kept), devices)
    return labels
