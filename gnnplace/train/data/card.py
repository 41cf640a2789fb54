"""Data cards of folders of captured graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnnplace.graph.ranks import levels, upward_rank
from gnnplace.train.data.captured_graph import CapturedGraph
from gnnplace.train.data.captured_models import PARTS
from gnnplace.train.data.recipes import STORE, Recipe

HEADINGS = "| graph | family | ops | tensors | depth | parallel | state, MB | captured from |"
REFERENCE = 0  # kind that parallelism is told for: the CPU, which launches cost least on


def card(graphs: Sequence[CapturedGraph], of: Recipe = STORE) -> str:
    """The text of a card: what, how, with what, licence, figures by part of the split, gaps."""
    kinds = list(dict.fromkeys(kind for graph in graphs for kind in graph.kinds))
    lines = [
        f"# Captured training graphs: {of.name}",
        of.about,
        "",
        "* **What**: training steps (forward, backward, update), captured by gnnplace: one `.npz`",
        "  a graph (no pickled objects, no names, no weights). Views and buffer copies are part",
        "  of their ops.",
        f"* **Costs**: roofline estimates from published peaks of {', '.join(kinds)},",
        "  split into launches and work of the whole batch; nothing is measured, so any machine",
        "  builds the same graphs.",
        f"* **Made by** `gnnplace data build FOLDER --recipe {of.name}`; read by",
        "  `gnnplace.train.data.captured.CapturedStore(FOLDER)` and "
        "`gnnplace.train.data.graph_dataset`;",
        "  checked against `SHA256SUMS` by `gnnplace data verify FOLDER`.",
        "* **Licence**: Apache-2.0, as the package. Random weights and random inputs; no data of",
        "  others is in them.",
        f"* **Known gaps**: {of.gaps} Costs of no real machine.",
        "",
        "Split **by model family**: a policy trained on the training part has seen no graph of the",
        "families held out. *depth* is ops on the longest chain, *parallel* all work over the work",
        f"on the longest path ({kinds[REFERENCE] if kinds else 'cpu'}, without transfers).",
    ]
    for part in PARTS:
        mine = [graph for graph in graphs if graph.origin["part"] == part]
        if mine or of is STORE:
            total = sum(graph.num_ops for graph in mine)
            lines += ["", f"## {part}: {len(mine)} graphs, {total:,} ops", "", HEADINGS]
            lines += ["|---|---|---:|---:|---:|---:|---:|---|", *map(_row, mine)]
    versions = {_versions(graph.origin["versions"]) for graph in graphs}
    return "\n".join([*lines, "", f"Versions: {'; '.join(sorted(versions))}."]) + "\n"


def _row(graph: CapturedGraph) -> str:
    origin, megabytes = graph.origin, graph.state.sum() / 1e6
    cost = graph.work[REFERENCE] + graph.launch[REFERENCE]
    longest = upward_rank(graph.graph, cost, np.zeros(len(graph.graph.successor))).max()
    return (
        f"| {graph.name} | {origin['family']} | {graph.num_ops} | {graph.graph.num_tensors} | "
        f"{levels(graph.graph).max() + 1} | {cost.sum() / longest:.2f} | {megabytes:.1f} | "
        f"`{origin['spec']}`, {origin['optimizer']} |"
    )


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{package} {number}" for package, number in versions.items())
