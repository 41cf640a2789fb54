"""Converts a plan to a launch plan, with a line for everything that no launcher can express.

Stages become numbers of whole layers; a layer belongs to the stage where it begins. A plan whose
stages have different meshes is refused, because no launcher can express it. Cuts inside a layer,
splits other than Megatron's, recomputation of some layers, and searched orders are given up, each
with a line.

Complexity: linear in the file.
"""

from __future__ import annotations

from gnnplace.errors import InfeasibleError
from gnnplace.launch.launch_plan import FULL, NONE, SELECTIVE, LaunchPlan
from gnnplace.plans import SEARCHED, DecoderSizes, Plan, PlanFile, find_layer

LAUNCHED = (
    "gpt2",
    "llama",
    "mistral",
    "qwen3",
    "mixtral",
    "qwen3_moe",
    "deepseek_v2",
    "deepseek_v3",
)
"""Model types whose layers launchers have."""


def make_launch_plan(
    plan: Plan, sizes: DecoderSizes | None = None
) -> tuple[LaunchPlan, list[str]]:
    """Return the plan in launchers' terms, and a line for each thing that no launcher can express.

    Args:
        plan: The plan, which was searched, given or read.
        sizes: Sizes of its model, where they are known.

    Raises:
        InfeasibleError: If its stages have unlike meshes or ZeRO.
    """
    file = plan.file
    meshes = {
        (len(s.rows), s.axes, s.zero if len(s.rows) > 1 else 0) for s in file.stages
    }
    if len(meshes) > 1:
        raise InfeasibleError(
            f"{file.model}: its stages have unlike meshes ({plan.shape}), which no launcher can be "
            "told; search again with --runnable, or give pp, dp and tp with --given"
        )
    # Launchers have one mesh for all stages, so the first stage's degrees are those of the plan.
    dp, axes, zero = next(iter(meshes))
    replicas, tp, cp, ep = _degrees(file, axes)
    zero = max(zero, file.stages[0].zero if replicas > 1 else 0)
    ranks = max(file.rank_of) + 1
    chunks = len(file.stages) // ranks
    lines = list[str]()
    layers, inside = stage_layers(file)
    lines += inside
    recompute, recompute_lines = _recompute(file, layers)
    lines += recompute_lines
    name, _, searched = file.schedule.partition(":")
    if searched == SEARCHED:
        lines.append(f"order of actions: was searched; that of {name} is written")
    if not _is_in_order(file, ranks):
        lines.append("devices: not in their order; launchers number ranks by servers")
    launch_plan = LaunchPlan(
        dp=dp * replicas,
        tp=tp,
        cp=cp,
        ep=ep,
        pp=ranks,
        sp=tp == 1 or all(s.border.endswith("tokens") for s in file.stages),
        chunks=chunks,
        layers=layers if len(file.stages) > 1 else None,
        microbatch_size=file.microbatch_size // replicas,
        batch=file.batch,
        zero=zero,
        recompute=recompute,
        schedule=name,
        precision=file.precision,
        gradients=file.gradients,
        optimizer=file.optimizer,
        sizes=sizes,
    )
    return launch_plan, lines


def _is_in_order(file: PlanFile, ranks: int) -> bool:
    """Return whether the devices of all ranks, one rank after the other, are in their order."""
    numbers: list[int] = []
    for rank in range(ranks):
        stage = file.stages[file.rank_of.index(rank)]
        texts = [name.rpartition(":")[2] for name in stage.device_names]
        numbers += [int(text) for text in texts if text.isdecimal()]
    return numbers == sorted(numbers)


def _degrees(file: PlanFile, axes: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return the degrees that the shards of a plan stand for: replicas, tp, cp and ep.

    Along each axis those that cut examples are replicas, and cp where no weight is cut but of
    experts that rows are sent to, which are ep then.
    """
    replicas = 1
    tp = 1
    cp = 1
    ep = 1
    for axis, count in enumerate(axes):
        place = axis - len(axes)
        placed = [
            (name, words[place], name in stage.members)
            for stage in file.stages
            for name, words in stage.placements.items()
            if words[place] != "R"
        ]
        sent = any(
            word.endswith((":dispatch", ":spread")) for _, word, call in placed if call
        )
        weights = [name for name, _, call in placed if not call]
        if any(stage.borders[axis] == "examples" for stage in file.stages):
            replicas *= count
        elif placed and all(sent and "experts" in name for name in weights):
            cp *= count
        else:
            tp *= count
            continue
        ep *= count if sent else 1
    return replicas, tp, cp, ep


def stage_layers(file: PlanFile) -> tuple[tuple[int, ...] | None, list[str]]:
    """Return the number of layers that begin in every stage, or None if no module is numbered.

    A layer that two stages share counts for the first of them; a line says so for each such stage.
    """
    stage_of: dict[str, int] = {}
    lines = []
    for k, stage in enumerate(file.stages):
        layers_here = dict.fromkeys(
            layer for m in stage.modules if (layer := find_layer(m))
        )
        split = [layer for layer in layers_here if stage_of.setdefault(layer, k) != k]
        if split:
            lines.append(
                f"stage {k}: begins inside of {split[0]}, which is whole on stage {k - 1}"
            )
    counts = tuple(
        sum(at == k for at in stage_of.values()) for k in range(len(file.stages))
    )
    return (counts if stage_of else None), lines


def _recompute(file: PlanFile, layers: tuple[int, ...] | None) -> tuple[str, list[str]]:
    """Return the word for what is recomputed, and lines on what that word does not say."""
    stages = file.stages
    recomputed_layers = [
        len({find_layer(m) for m in s.recompute.modules} - {""}) for s in stages
    ]
    if not any(recomputed_layers):
        return NONE, []
    kinds = {s.recompute.kind for s in stages}
    groups = {s.recompute.layers for s in stages}
    if kinds - {NONE} == {SELECTIVE}:
        return SELECTIVE, []
    lacking = [
        k
        for k, s in enumerate(stages)
        if recomputed_layers[k] < (layers or recomputed_layers)[k]
    ]
    if not lacking and SELECTIVE not in kinds:
        together = max(groups)
        return (f"uniform:{together}" if together > 1 else FULL), []
    most_layers = max(recomputed_layers)
    every = all(
        count == min(most_layers, num_layers)
        for count, num_layers in zip(
            recomputed_layers, layers or recomputed_layers, strict=True
        )
    )
    word = f"block:{most_layers}"
    if every and _first(file, recomputed_layers):
        return word, []
    lacked = f"some layers of {len(lacking)} stages"
    return word, [
        f"recompute: {lacked}; {word} (the first {most_layers} of every stage) is written"
    ]


def _first(file: PlanFile, again: list[int]) -> bool:
    """Return whether the recomputed layers of every stage are its first ones."""
    for stage, count in zip(file.stages, again, strict=True):
        stage_modules = list(
            dict.fromkeys(layer for m in stage.modules if (layer := find_layer(m)))
        )
        if {find_layer(m) for m in stage.recompute.modules} - {""} != set(
            stage_modules[:count]
        ):
            return False
    return True
