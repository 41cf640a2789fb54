"""The formats room: readers of public formats, a file or a folder each.

A reader of your own: a function from a path and an optional cluster to a ``Problem`` in a file of
its own, imported here and added to ``READERS``.
"""

from collections.abc import Callable
from pathlib import Path

from gnnplace.errors import InputError
from gnnplace.problem import Problem
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.formats.attributed import from_networkx as from_networkx
from gnnplace.problem.formats.attributed import read_graphml, read_node_link
from gnnplace.problem.formats.chakra import read_chakra
from gnnplace.problem.formats.dnn_partitioning import (
    read_dnn_partitioning as read_dnn_partitioning,
)
from gnnplace.problem.formats.doppler import read_doppler
from gnnplace.problem.formats.onnx import read_onnx
from gnnplace.problem.formats.pipedream import read_pipedream as read_pipedream
from gnnplace.problem.formats.placeto import read_placeto
from gnnplace.problem.formats.pyg import from_pyg as from_pyg
from gnnplace.problem.formats.pyg import read_pyg
from gnnplace.problem.formats.pyg import to_pyg as to_pyg

Reader = Callable[[str | Path, Cluster | None], Problem]
READERS: dict[str, Reader] = {
    "pipedream": read_pipedream,
    "dnn-partitioning": read_dnn_partitioning,
    "doppler": read_doppler,
    "placeto": read_placeto,
    "networkx": read_node_link,
    "graphml": read_graphml,
    "onnx": read_onnx,
    "chakra": read_chakra,
    "pyg": read_pyg,
}


def convert(
    path: str | Path, format_name: str, cluster: Cluster | None = None
) -> Problem:
    """Read ``path`` by the reader of ``format_name``.

    Raises:
        InputError: unknown format; the names are listed.
        FormatError: the file is malformed; names the place and the fault.
    """
    if format_name not in READERS:
        raise InputError(
            f"format {format_name!r}: unknown; formats: {', '.join(READERS)}"
        )
    return READERS[format_name](path, cluster)
