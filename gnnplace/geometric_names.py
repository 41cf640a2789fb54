"""Private names of PyTorch Geometric: how its stores keep their entries."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, cast

from gnnplace.foreign import read_private

NUM_GRAPHS = "_num_graphs"
"""Attribute of a batch's store: how many graphs it has."""
BATCH_TABLES = ("_slice_dict", "_inc_dict")
"""Attributes of a batch's store by which it is taken apart again."""


def read_entries(store: object) -> MutableMapping[str, Any]:
    """Return the entries of a store by name; a change of them changes the store.

    Raises:
        VersionError: The store has none.
    """
    entries = read_private(store, "_mapping", "torch_geometric")
    return cast("MutableMapping[str, Any]", entries)


def get_store_kind(store: object) -> object:
    """Return the kind of nodes, or the triple of an edge's, that a store is of; None: the graph."""
    return getattr(store, "_key", None)
