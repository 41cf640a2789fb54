"""``build_data``: captures the models of a recipe into a folder of graphs.

Every model of a recipe (``gnnplace.train.data.recipes``) is captured as a training step, without
memory where that is possible, and written as one file; a data card and checksums stand beside. A
graph whose file is there and says the same model is kept, so that a run which was stopped goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.costs import estimate_ops, group_graph, group_ops
from gnnplace.errors import FormatError, InputError
from gnnplace.files import write_text
from gnnplace.graph import ComputationGraph, levels, upward_rank
from gnnplace.problem import get_figures
from gnnplace.tracing import CaptureOptions, Program, capture_model, program_graph
from gnnplace.train.data.captured import PARTS, CapturedModel
from gnnplace.train.data.captured_graph import (
    CapturedGraph,
    op_names,
    read_captured,
    write_captured,
)
from gnnplace.train.data.croissant import DataSetCard, write_croissant
from gnnplace.train.data.datasets import write_sums
from gnnplace.train.data.measured_pairs import PROFILES, ROWS, measure_pairs
from gnnplace.train.data.recipes import MEASURED, STORE, Recipe, recipe
from gnnplace.train.data.release import RELEASE, build_release

Say = Callable[[str], None]
KINDS = ("cpu", "t4", "v100", "a100", "h100")
PACKAGES = ("gnnplace", "torch", "transformers")
CARD = "README.md"
HEADINGS = (
    "| graph | family | ops | tensors | depth | parallel | state, MB | captured from |"
)
MEASURED_LINES = [
    "* **Measured pairs**: `pairs.jsonl` has eight placements a graph with predicted and measured",
    "  seconds of a step on two CPU workers, `profiles.jsonl` the op times and links that the",
    "  predictions are by; `gnnplace/train/data/measured_pairs.py` names the keys. The command",
    "  goes on where it was stopped; remove both files to measure on another machine.",
]
# The kind for which parallelism is reported: the CPU, where launches cost least.
REFERENCE = 0


def build_data(
    folder: str | Path,
    *,
    recipe_name: str = STORE.name,
    models: Sequence[str] = (),
    progress: Say = lambda line: None,
) -> None:
    """Capture a recipe's models into a folder; graphs that are there already are kept.

    Args:
        folder: Made if it is not there.
        recipe_name: The name of the recipe that says what is captured.
        models: Names of models or families; all by default.
        progress: Called with a line for each model.

    Raises:
        InputError: A recipe, model or family is unknown, or the folder cannot be made.
        CaptureError: A model cannot be captured.
    """
    if recipe_name == RELEASE:
        pairs = build_release(folder, progress=progress)
        progress(f"{folder}: {pairs} placements")
        return
    data_recipe = recipe(recipe_name)
    build_store(folder, select(models, data_recipe.models), progress, data_recipe)


def select(
    names: Sequence[str], models: Sequence[CapturedModel] = STORE.models
) -> tuple[CapturedModel, ...]:
    """Return models by their names or those of their families; all if none are given.

    Raises:
        InputError: There is no such model or family.
    """
    families = list(dict.fromkeys(model.family for model in models))
    valid_names = {model.name for model in models} | set(families)
    unknown = [name for name in names if name not in valid_names]
    if unknown:
        raise InputError(
            f"data: model {unknown[0]!r} is unknown; families: {', '.join(families)}"
        )
    return tuple(m for m in models if not names or m.name in names or m.family in names)


def build_store(
    folder: str | Path, models: Sequence[CapturedModel], say: Say, of: Recipe = STORE
) -> None:
    """Capture what is missing in ``folder`` and write its card and checksums.

    Args:
        folder: Made if it is not there.
        models: The models to capture.
        say: Called with a line of progress.
        of: The recipe, for the card.

    Raises:
        InputError: The folder cannot be made.
        CaptureError: A model cannot be captured.
    """
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"folder {str(folder)!r}: {error.strerror}") from None
    for number, model in enumerate(models, 1):
        path = target / f"{model.name}.npz"
        is_current = _is_same_model(path, model)
        if not is_current:
            say(f"{number}/{len(models)} {model.name}: capturing {model.spec}")
            write_captured(path, capture_graph(model))
        ops = read_captured(path).num_ops
        say(
            f"{number}/{len(models)} {model.name}: {ops} ops{', kept' if is_current else ''}"
        )
    if of.name == MEASURED:
        measure_pairs(target, models, say)
    paths = sorted(target.glob("*.npz"))
    rows = [target / name for name in (PROFILES, ROWS) if (target / name).is_file()]
    write_text(target / CARD, card([read_captured(path) for path in paths], of))
    write_sums(target, [path.name for path in rows])
    write_croissant(target, [*paths, *rows], describe_recipe(of))


def _is_same_model(path: Path, model: CapturedModel) -> bool:
    """Return whether the file is a graph of the same model."""
    if not path.is_file():
        return False
    try:
        origin = read_captured(path).origin
    except FormatError:
        return False
    return (origin["spec"], origin["optimizer"]) == (model.spec, model.optimizer)


def capture_graph(model: CapturedModel) -> CapturedGraph:
    """Capture one model's training step.

    Raises:
        CaptureError: A module cannot be captured; the message names it.
    """
    options = CaptureOptions(optimizer=model.optimizer)
    program = capture_model(model.spec, options=options, fake=model.fake)
    origin: dict[str, Any] = {
        "name": model.name,
        "family": model.family,
        "part": model.part,
        "spec": model.spec,
        "optimizer": model.optimizer,
        "versions": {package: version(package) for package in PACKAGES},
    }
    return _make_graph(program, origin)


def _make_graph(program: Program, origin: dict[str, Any]) -> CapturedGraph:
    fine = program_graph(program)
    group = group_ops(program, len(program.ops))  # only what must not be parted
    grouped = group_graph(
        program, fine, group, estimate_ops(program, KINDS[0]), apart=True
    )
    graph = grouped.graph
    count = graph.num_ops
    launch = np.stack([_launches(program, kind) for kind in KINDS])
    work = np.stack([estimate_ops(program, kind) for kind in KINDS]) - launch
    classes = {
        name: i for i, name in enumerate(dict.fromkeys(filter(None, grouped.colocate)))
    }
    return CapturedGraph(
        origin=origin,
        graph=ComputationGraph(
            names=tuple(op_names(count)),
            producer=graph.producer,
            size=graph.size,
            consumer_offset=graph.consumer_offset,
            consumer=graph.consumer,
        ),
        kinds=KINDS,
        work=np.stack([np.bincount(group, row, count) for row in work]).clip(0.0),
        launch=np.stack([np.bincount(group, row, count) for row in launch]),
        state=grouped.state,
        phase=grouped.phase,
        unit=np.array(
            [classes.get(name or "", -1) for name in grouped.colocate], dtype=np.int32
        ),
    )


def _launches(program: Program, kind: str) -> FloatArray:
    """Return the seconds that launching each op takes, as the roofline counts them. [num_ops]"""
    costs = [kind == "cpu" or not op.view for op in program.ops]
    return get_figures(kind).launch * np.array(costs, dtype=np.float64)


def describe_recipe(recipe_of_set: Recipe) -> DataSetCard:
    """Return the contents of the machine-readable description of a recipe's graphs."""
    measured = recipe_of_set.name == MEASURED
    return DataSetCard(
        name=f"gnnplace-{recipe_of_set.name}",
        description=f"Captured training steps as graphs of ops. {recipe_of_set.about}",
        collection=(
            "Training steps (forward, backward, update) of public model architectures with random "
            "weights and inputs were captured by gnnplace on a CPU."
            + (
                " Eight placements of each were run on two CPU workers of one machine, checked "
                "against one process; the shortest of ten steps counts."
                if measured
                else ""
            )
        ),
        limitations=f"Costs are roofline estimates and not measured. {recipe_of_set.gaps}",
        use_cases="Learning and testing of device placement and cost models.",
    )


def card(graphs: Sequence[CapturedGraph], of: Recipe = STORE) -> str:
    """Return the text of a card: content, costs, tools, licence, figures by split part, gaps."""
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
        *(MEASURED_LINES if of.name == MEASURED else []),
        f"* **Made by** `gnnplace data build FOLDER --recipe {of.name}`; read by",
        "  `gnnplace.train.data.captured.CapturedStore(FOLDER)` and "
        "`gnnplace.train.data.graph_dataset`;",
        "  checked against `SHA256SUMS` by `gnnplace data verify FOLDER`.",
        "* **Licence**: CC-BY-4.0 (the package Apache-2.0). Random weights and inputs; no data of",
        "  others is in them.",
        f"* **Known gaps**: {of.gaps} Costs of no real machine.",
        "",
        "Split **by model family**: a policy trained on the training part has seen no graph of the",
        "families held out. *depth* is ops on the longest chain, *parallel* all work over the work",
        f"on the longest path ({kinds[REFERENCE] if kinds else 'cpu'}, without transfers).",
    ]
    for part in PARTS:
        part_graphs = [graph for graph in graphs if graph.origin["part"] == part]
        if part_graphs or of is STORE:
            total = sum(graph.num_ops for graph in part_graphs)
            lines += [
                "",
                f"## {part}: {len(part_graphs)} graphs, {total:,} ops",
                "",
                HEADINGS,
            ]
            lines += ["|---|---|---:|---:|---:|---:|---:|---|", *map(_row, part_graphs)]
    versions = {
        ", ".join(map(" ".join, graph.origin["versions"].items())) for graph in graphs
    }
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
