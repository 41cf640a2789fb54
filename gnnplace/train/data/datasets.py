"""Datasets: folders of captured graphs with checksums; where they are; their graphs on a cluster.

A dataset is found by its name: ``store`` comes with the package, any other is a folder or
``data_sets/NAME`` in the folder asked from or in one above it, else in the checkout or the wheel
that the package is from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from gnnplace.errors import FormatError, InputError
from gnnplace.files import read_text, write_text
from gnnplace.problem import Cluster, Problem, with_microbatches
from gnnplace.train.data.captured import (
    AMPLE,
    MEMORY,
    CapturedStore,
    ample_memory,
    make_share_problem,
    open_shipped_store,
    tight_memory,
    with_memory,
)
from gnnplace.train.data.captured_graph import CapturedGraph
from gnnplace.train.data.recipes import STORE

SUMS = "SHA256SUMS"
# In a checkout they stand beside the package, in a wheel inside of it.
SHIPPED_FOLDERS = (
    Path(__file__).parents[3] / "data_sets",
    Path(__file__).parent / "sets",
)


def checksums(folder: str | Path, names: Iterable[str] = ()) -> dict[str, str]:
    """Return the SHA-256 of every graph's file by its name, sorted.

    Args:
        folder: The folder of the graphs, which are files ``.npz``.
        names: Names of further files, which count if they are there.
    """
    further = [
        path for path in (Path(folder) / name for name in names) if path.is_file()
    ]
    files = sorted({*Path(folder).glob("*.npz"), *further})
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def write_sums(folder: str | Path, names: Iterable[str] = ()) -> None:
    """Write the checksums of a folder's graphs and further files, as ``sha256sum`` would."""
    lines = [f"{digest}  {name}" for name, digest in checksums(folder, names).items()]
    write_text(Path(folder) / SUMS, "\n".join(lines) + "\n")


def verify(folder: str | Path) -> int:
    """Check that a folder's graphs are those of its checksums.

    Returns:
        How many there are.

    Raises:
        FormatError: A file is missing, changed or not listed; the message names the first.
    """
    listed = _read_sums(Path(folder) / SUMS)
    present = checksums(folder, listed)
    for name in sorted(listed.keys() | present.keys()):
        if name not in present:
            raise FormatError(
                f"{folder}: {name}: missing; gnnplace data build FOLDER makes graphs of ours, "
                "gnnplace data collect FOLDER --from CLONE copies those of others"
            )
        if name not in listed:
            raise FormatError(
                f"{folder}: {name}: not in {SUMS}; remove it or build the folder anew"
            )
        if listed[name] != present[name]:
            raise FormatError(
                f"{folder}: {name}: changed, its SHA-256 is not that of {SUMS}"
            )
    return len(present)


def _read_sums(path: Path) -> dict[str, str]:
    result = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        digest, _, name = line.partition("  ")
        if len(digest) != 64 or not name:
            raise FormatError(
                f"{path}: line {number}: not a SHA-256, two spaces and a file name"
            )
        result[name] = digest
    return result


def find_dataset(name: str, start: str | Path = ".") -> CapturedStore:
    """Return the dataset of that name, asked for from the folder ``start``.

    Raises:
        InputError: There is none.
    """
    if name == STORE.name:
        return open_shipped_store()
    root = Path(start).resolve()
    above = [folder / "data_sets" for folder in (root, *root.parents)]
    for folder in (
        root / name,
        *(parent / name for parent in (*above, *SHIPPED_FOLDERS)),
    ):
        if folder.is_dir():
            return CapturedStore(folder)
    raise InputError(
        f"dataset {name!r}: no such folder and no data_sets/{name} in {str(start)!r} or above; "
        f"make it: gnnplace data build data_sets/{name} --recipe {name}"
    )


def dataset_problem(
    graph: CapturedGraph,
    cluster: Cluster,
    *,
    microbatches: int = 1,
    groups: int | None = 200,
    memory: str = AMPLE,
) -> Problem:
    """Return a captured graph on a cluster of kinds that it has costs for.

    Args:
        graph: The graph of a dataset.
        cluster: A preset or any other.
        microbatches: Shares of the batch; costs as in ``captured``.
        groups: Ops to aim at before micro-batches; None: as captured.
        memory: ``ample``: what the cluster's devices have; ``tight``: 1.3 fair shares, as in
            ``captured``, whatever they have.

    Raises:
        InputError: A kind that the graph has no costs for, another memory, no micro-batch.
    """
    missing = [kind for kind in cluster.kinds if kind not in graph.kinds]
    if missing:
        raise InputError(
            f"graph {graph.name!r}: no costs for device kind {missing[0]!r}; "
            f"kinds: {', '.join(graph.kinds)}"
        )
    if memory not in MEMORY or microbatches < 1:
        rule = f"memory is {' or '.join(MEMORY)}, micro-batches >= 1"
        raise InputError(f"graph {graph.name!r}: {rule}")
    if groups is not None:
        graph = graph.coarsened(groups)
    name = f"{graph.name} on {cluster.name}"
    costs = {kind: (kind, 1.0) for kind in cluster.kinds}
    share = make_share_problem(graph, name, cluster, 1.0 / microbatches, costs)
    problem = with_microbatches(share, microbatches, profiled=True)
    if memory == AMPLE:
        return problem
    return with_memory(
        problem, tight_memory(with_memory(problem, ample_memory(problem)))
    )
