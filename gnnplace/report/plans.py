"""A joint plan in words: its stages, where the time goes, memory by device.

A joint plan as one page: stages, timeline, where the time goes, memory by device, frontier.

All of it is in the plan's file: its actions are run again with the seconds of its stages. Times are
predicted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnplace.costs import describe_tests
from gnnplace.errors import InputError
from gnnplace.plans import (
    FORWARD_PASS,
    FULL_PASS,
    PASS_KINDS,
    WEIGHT_PASS,
    MemoryEntry,
    OpPlacement,
    Pipeline,
    Plan,
    PlanFile,
    StageEntry,
    Timing,
    find_layer,
    iterate_passes,
    parse_adapters,
    time_pipeline,
)
from gnnplace.report.answer import (
    Answer,
    Drawing,
    Lines,
    Section,
    TextTable,
    as_page,
    plain_lines,
    text_table,
)
from gnnplace.report.html import Html, figure, footer, heading, paragraph, share
from gnnplace.report.money import ClusterPrices, cost_lines
from gnnplace.report.pictures import heat, svg
from gnnplace.report.rates import rates_line, run_line
from gnnplace.report.side_by_side import (
    launcher_sections,
    next_line,
    short_words,
    side_by_side_lines,
    trade_table,
)
from gnnplace.report.tables import find_moved_modules, plan_table
from gnnplace.report.timeline import Curve, Naming, Timeline, from_simulation
from gnnplace.report.viewer import viewer
from gnnplace.units import milliseconds_text, step_text

if TYPE_CHECKING:
    from gnnplace.run.planned import PlanRun as Run


@dataclass(frozen=True)
class PlanDifference:
    """Two plans of one model.

    Attributes:
        first: The plan that is changed.
        second: The plan that comes of it.
    """

    first: Plan
    second: Plan


@dataclass(frozen=True)
class BaselinePlans:
    """The best plan beside baselines, by their names; None where one does not fit."""

    plans: Mapping[str, Plan | None]


def describe_plan(
    plan: Plan,
    *,
    tokens: float | None = None,
    prices: ClusterPrices | None = None,
    runners_up: Sequence[Plan] | None = None,
    output: str | None = None,
    has_next: bool = False,
) -> Answer:
    """Describe a plan: its stages, where the time goes, memory by device.

    Programs have the plan's file, a terminal has no room for a row a stage, and so the page has
    tables of its own.

    Args:
        plan: Searched, given or read.
        tokens: Tokens of a whole run, whose duration is printed.
        prices: What GPU-hours of the cluster cost; None where costs are not asked for.
        runners_up: Further plans, the fastest first; None where only one was asked for.
        output: The path of the file that was written, or None.
        has_next: Whether a launcher may be told to take the plan, which the last line says.
    """
    plans = [plan, *(runners_up or ())]

    def get_lines() -> list[str]:
        """Format launchers side by side, the plans, trades, and what to do next."""
        lines = side_by_side_lines(plan) if plan.file.alternatives else []
        for entry in plans:
            lines += plan_lines(entry, tokens)
            cost = None if prices is None else prices.compute(entry, tokens)
            if cost is not None:
                lines += cost_lines(cost, tokens)
        lines += plain_lines(trade_table(plan.file)) if plan.file.trades else []
        # A plan that its launcher can take, or one beside others, is told where to go.
        goes_on = plan.file.launcher is not None and output is not None
        if (plan.file.alternatives or goes_on) and has_next:
            lines.append(next_line(plan, output))
        return lines

    def get_data() -> dict[str, Any] | list[Any]:
        """Return the answer of the plan; a list of all where more were asked for."""
        answers = [entry.answer() for entry in plans]
        if prices is not None:
            for entry, answer in zip(plans, answers, strict=True):
                answer["cost"] = prices.compute(entry, tokens)
        return answers[0] if runners_up is None else answers

    return Answer(
        title=f"{plan.file.model} on {plan.file.cluster}",
        sections=[Lines(get_lines)],
        data=get_data,
        page=lambda: plan_page(plan),
        table=lambda: plan_table(plan),
        steps=lambda: plan_steps(plan),
    )


def describe_plan_run(run: Run) -> Answer:
    """Describe a run of a plan."""
    lines = run_lines(run)
    return Answer(
        title=f"{run.plan.file.model} on {run.plan.file.cluster}",
        sections=[Lines(lines)],
        data=run.answer,
        page=lambda: plan_page(run.plan, lines),
    )


def describe_baselines(baselines: BaselinePlans) -> Answer:
    """Describe the best plan beside baselines."""
    answers: dict[str, object] = {}
    for name, plan in baselines.plans.items():
        answers[name] = None if plan is None else plan.answer()
    return Answer("Plans", [Lines(baseline_lines(baselines.plans))], answers)


def describe_plan_difference(difference: PlanDifference) -> Answer:
    """Describe what two plans of one model do differently."""
    first = difference.first
    second = difference.second
    return Answer(
        title="What moved",
        sections=[Lines(difference_lines(first, second))],
        data={
            "step_times": [first.file.step_time, second.file.step_time],
            "moved": find_moved_modules(first, second),
        },
    )


def plan_lines(plan: Plan, tokens: float | None = None) -> list[str]:
    """Format what `gnnplace plan` prints of a plan.

    Args:
        plan: searched, given or read.
        tokens: Tokens of a whole run, whose duration is printed.
    """
    file = plan.file
    if not plan.feasible:
        head = f"{file.model} on {file.cluster}: not feasible"
        lines = [head, f"  {basis_line(plan)}", f"  {plan.reason}"]
        if plan.op_placement is None:
            return lines
        return [*lines, *_format_handover(plan.op_placement)]
    low, high = file.interval or [0.0, 0.0]
    lines = [
        f"{file.model} on {file.cluster}: {step_text(plan.step_time)} a step, predicted "
        f"({step_text(low)} to {step_text(high)} in {interval_share(file)}), {file.schedule}, "
        f"{plan.microbatches} micro-batches of {file.microbatch_size} a replica",
        f"  {basis_line(plan)}",
    ]
    lines.append(f"  {rates_line(file, plan.step_time)}")
    lines += [] if tokens is None else [f"  {run_line(file, plan.step_time, tokens)}"]
    lines += [f"  {short_words(file.words)}"] if file.words else []
    lines += stage_lines(file)
    parts = ", ".join(
        f"{name} {step_text(s)}" for name, s in file.parts.items() if s > 0
    )
    lines.append(f"  busiest rank: {parts}")
    fullest = max(file.memory, key=lambda name: file.memory[name].all)
    # A plan that was read and not priced has fewer parts of its bytes.
    if plan.fullest is not None:
        lines.append(
            f"  fullest device {plan.fullest.device}: {plan.fullest.text()}, of "
            f"{plan.fullest.usable / 1e9:.2f} GB"
        )
    else:
        memory = file.memory[fullest].model_dump()
        components = ", ".join(
            f"{name} {size / 1e9:.2f}" for name, size in memory.items()
        )
        lines.append(
            f"  fullest device {fullest}: {file.memory[fullest].all / 1e9:.2f} GB ({components})"
        )
    if (
        file.source != "captured"
        and file.fits is not None
        and 0.5 <= file.fits < LIKELY_ENOUGH
    ):
        lines.append(
            f"  {file.fits:.0%} likely to fit: --headroom 5% asks for a plan with more room"
        )
    if file.lower_bound:
        gap = plan.step_time / file.lower_bound - 1.0
        lines.append(
            f"  bound {step_text(file.lower_bound)}, gap {gap:.1%}: {file.claim}"
        )
    elif file.launcher and file.claim:
        lines.append(f"  {file.claim}")
    if plan.trials:
        lines += _make_trial_lines(plan)
    if plan.op_placement is not None:
        lines += _format_handover(plan.op_placement, plan.step_time)
    for notice in plan.notices:
        lines.append(f"  {notice}")
    return lines


def interval_share(file: PlanFile) -> str:
    """Return what part of steps a plan's interval holds, in words."""
    if file.source == "captured":
        return "nine of ten"
    return "four of five"


def basis_line(plan: Plan) -> str:
    """Format what was planned for, which of it was a default, and where the prices come from."""
    file = plan.file
    if file.tokens is None:
        length = None
    else:
        length = file.tokens // file.batch
    if file.lora is None:
        adapters = []
    else:
        adapters = [parse_adapters(file.lora).label]
    job = job_words(
        parameters=plan.parameters,
        batch=file.batch,
        length=length,
        options=(file.precision, file.optimizer, *adapters),
        defaults=plan.defaults,
    )
    if file.source == "captured":
        return f"{job}; priced by the kernels that were captured"
    tested = describe_tests(file.framework)
    basis = "the model's sizes"
    if file.source == "blocks":
        basis = "the blocks that were recognised,"
    return f"{job}; priced by {basis} as {file.framework} trains them ({tested})"


def job_words(
    *,
    parameters: int | None,
    batch: int,
    length: int | None,
    options: tuple[str, ...],
    defaults: tuple[str, ...],
) -> str:
    """Format what is trained, which of it was a default.

    Args:
        parameters: The number of parameters, or None if it is unknown.
        batch: Examples of a step.
        length: Tokens of an example; None where examples are no rows of tokens.
        options: Precision, optimizer and what else was chosen.
        defaults: Words of the options that nobody gave.
    """
    if parameters is None:
        words = []
    else:
        words = [f"{parameters:,} parameters"]
    words.append(f"batch {batch}" + ("" if length is None else f" x {length:,} tokens"))
    words += options
    text = ", ".join(words)
    if not defaults:
        return text
    return f"{text} ({', '.join(defaults)} by default)"


def _make_trial_lines(plan: Plan) -> list[str]:
    """Return a line for each plan that was run here before the fastest was chosen."""
    rows = []
    for trial in plan.trials:
        if trial.measured is None:
            measured = trial.fault
        else:
            measured = f"measured {step_text(trial.measured)}"
        rows.append(
            f"  tried {trial.shape}: predicted {step_text(trial.predicted)}, {measured}"
        )
    return rows


def _format_handover(faster: OpPlacement, step_time: float | None = None) -> list[str]:
    """Format where a placement of single ops is faster.

    Args:
        faster: The placement.
        step_time: Seconds of the plan's step; None where no plan fits.
    """
    if step_time is None:
        against = "where no plan fits"
    else:
        against = f"against {step_text(step_time)}"
    if faster.command:
        run = f"; run `{faster.command}`"
    else:
        run = ""
    return [f"  op placement is faster: {step_text(faster.step_time)} {against}{run}"]


def baseline_lines(found: Mapping[str, Plan | None]) -> list[str]:
    """Format what `gnnplace compare --plans` prints: the best plan, then baselines."""
    best = found["plan"]
    if best is None:
        return ["no plan fits"]
    lines = [f"{best.file.model} on {best.file.cluster}, predicted steps:"]
    for name, plan in found.items():
        if plan is None:
            lines.append(f"  {name:10} does not fit")
            continue
        excess = plan.step_time / best.step_time - 1.0
        lines.append(
            f"  {name:10} {step_text(plan.step_time):>12}  {excess:+7.1%}  {plan.shape}"
        )
    if best.file.lower_bound:
        lines.append(
            f"  {'bound':10} {step_text(best.file.lower_bound):>12}  {best.file.claim}"
        )
    return lines


def difference_lines(before: Plan, after: Plan) -> list[str]:
    """Format what `gnnplace diff` prints of two plans of one model."""
    lines = []
    for name, plan in (("before", before), ("after", after)):
        seconds = plan.file.step_time
        price = "not priced (plan --given prices it)"
        if seconds is not None:
            price = f"{step_text(seconds)} a step, predicted"
        lines.append(f"{name}: {price}, {plan.shape}")
    moves = find_moved_modules(before, after)
    lines.append(f"{len(moves)} modules moved")
    return [
        *lines,
        *(f"  {name}: {one} -> {two}" for name, (one, two) in moves.items()),
    ]


def stage_lines(file: PlanFile) -> list[str]:
    """Format a line a stage; more than `FOLDED` identical stages in a row are one line.

    Where that leaves more than `STAGE_LINES`, those of like meshes and splits are one.
    """
    lines = _fold_stage_lines(file, [_make_stage_key(stage) for stage in file.stages])
    if len(lines) > STAGE_LINES:
        lines = _fold_stage_lines(
            file, [_make_mesh_key(stage) for stage in file.stages]
        )
    return lines


def _fold_stage_lines(file: PlanFile, alike: Sequence[object]) -> list[str]:
    """Return lines of stages. Consecutive stages with equal keys share a line."""
    lines = []
    begin = 0
    for k in range(1, len(alike) + 1):
        if k < len(alike) and alike[k] == alike[begin]:
            continue
        if k - begin > FOLDED:
            counts = [
                len({layer for m in stage.modules if (layer := find_layer(m))})
                for stage in file.stages[begin:k]
            ]
            fewest = min(counts)
            largest = max(counts)
            if not largest:
                description = "alike"
            else:
                description = (
                    f"{largest if fewest == largest else f'{fewest} to {largest}'}"
                )
            description += " layers each" if largest else ""
            first = file.stages[begin]
            last = file.stages[k - 1]
            if first.rows != last.rows:
                until = f" to {last.rows[-1][-1]}"
            else:
                until = ""
            lines.append(
                f"  stages {begin} to {k - 1}: {description}, {_mesh(first, until)}"
            )
        else:
            for number, stage in enumerate(file.stages[begin:k], begin):
                ends = f"{stage.members[0]} to {stage.members[-1]}"
                lines.append(f"  stage {number}: {ends}, {_mesh(stage)}")
        begin = k
    return lines


def _make_stage_key(stage: StageEntry) -> object:
    """Return a key that is equal for stages that differ by numbers in names alone."""
    members = tuple(re.sub(r"[0-9]+", "", name) for name in stage.members)
    return members, _make_mesh_key(stage)


def _make_mesh_key(stage: StageEntry) -> object:
    """Return a key that is equal for stages of the same mesh, split and recomputation."""
    ends = [bool(find_layer(module)) for module in stage.modules]
    return (
        len(stage.rows),
        len(stage.rows[0]),
        stage.zero,
        stage.border,
        split_words(stage),
        len(stage.recompute.modules),
        stage.regather,
        all(ends),
    )


def _mesh(stage: StageEntry, until: str = "") -> str:
    if stage.zero:
        options = [f"ZeRO {stage.zero}"]
    else:
        options = []
    if stage.recompute.kind == "selective":
        part = "attention of "
    else:
        part = ""
    count = len(stage.recompute.modules)
    options += [f"{part}{count} segment{'s' * (count > 1)} recomputed"] if count else []
    options += ["gathered inputs kept as parts"] if stage.regather else []
    mesh = f"{len(stage.rows)} x {len(stage.rows[0])} devices from {stage.rows[0][0]}{until}"
    summary = ", ".join([mesh, *options])
    return f"{summary}; {cut}" if (cut := split_words(stage)) else summary


MEGATRON = "Megatron"
ULYSSES = "Ulysses"
TOKENS = "tokens, weights whole"
WHOLE = "whole"
GATHERED = "tokens, keys gathered"
ZIGZAG = "tokens in zig-zag, keys gathered"
PARTS = {
    "P:experts": "experts apart",
    "P:width": "Megatron inside each expert",
    "P:classes": "classes apart",
}
"""Calls whose split has words of its own, by their placement."""


ACTIVATIONS = {
    "act",
    "act_fn",
    "activation",
    "gelu",
    "silu",
    "relu",
    "intermediate_act_fn",
}


def split_words(stage: StageEntry) -> str:
    """Return how a stage's layers are split over its shards, or "" for one shard.

    "Megatron" cuts columns, then rows (Shoeybi et al., 2019), "Ulysses" tokens, and heads within
    attention (Jacobs et al., 2023), sequence parallelism the tokens between (Korthikanti et al.,
    2022), dispatch sends tokens to the shards of their experts (Lepikhin et al., 2020). What most
    layers have is told, of how many where they differ; of two axes of shards the outer one first.
    """
    axes = [_axis_words(stage, axis) for axis in range(len(stage.axes))]
    if len(stage.rows[0]) > 1:
        return "; ".join(words for words in axes if words)
    return ""


def _axis_words(stage: StageEntry, axis: int) -> str:
    """Return how layers are split along one axis of the shards."""
    place = axis - len(stage.axes)
    blocks: dict[str, dict[str, str]] = {}
    for name in (*stage.placements, *stage.members):
        path, _, call = name.removesuffix(".weight").partition("#")[0].rpartition(".")
        if name in stage.placements:
            word = stage.placements[name][place]
        else:
            word = WHOLE
        word = WHOLE if word == "R" else word
        blocks.setdefault(path, {}).setdefault(
            call + ".w" * name.endswith(".weight"), word
        )
    counters: dict[str, Counter[str]] = {}
    for block in blocks.values():
        for part, words in _format_block_words(block).items():
            counters.setdefault(part, Counter())[words] += 1
    if stage.borders[axis] == "tokens":
        between = " with sequence parallelism"
    else:
        between = ""
    examples = stage.borders[axis] == "examples"
    lines = ["examples"] if examples else []
    for part in sorted({"experts"} & counters.keys() if examples else counters):
        counter = counters[part]
        words, times = counter.most_common(1)[0]
        if len(counter) > 1:
            share = f" ({times} of {counter.total()})"
        else:
            share = ""
        lines.append(f"{part}: {words}{between if words == MEGATRON else ''}{share}")
    if lines:
        return f"over {stage.axes[axis]} shards {', '.join(lines)}"
    return ""


def _format_block_words(block: Mapping[str, str]) -> dict[str, str]:
    """Return the words for the parts of a block of calls and weights (`.w`)."""
    cut = [
        call for call, word in block.items() if call.endswith(".w") and word != WHOLE
    ]
    calls = (word for call, word in block.items() if not call.endswith(".w"))
    by_tokens = sum(word == "S1" or word.startswith("S0/") for word in calls)
    if "matmul" in block:
        written = block.get("softmax")
    else:
        written = None
    if (heads := block.get("scaled_dot_product_attention", written)) is not None:
        layouts = {
            "S1": MEGATRON if cut else ULYSSES,
            "S2": GATHERED,
            "S2:queries": GATHERED,
            "S2:zigzag": ZIGZAG,
        }
        words = layouts.get(heads, WHOLE)
        # Both products are in one module.
        feed_forward = len(cut) > 1 and ACTIVATIONS.intersection(block)
        return {"attention": words} | (
            {"feed-forward": MEGATRON} if feed_forward else {}
        )
    if "P:classes" in block.values():
        parts = {"loss": PARTS["P:classes"]}
    else:
        parts = {}
    if (word := block.get("experts")) is not None:
        if word.endswith((":dispatch", ":spread")):
            return parts | {"experts": "dispatch"}
        return parts | {"experts": PARTS.get(word, TOKENS if word != WHOLE else WHOLE)}
    if len(cut) > 1 and not any(call.startswith(("lm_head", "embed")) for call in cut):
        return parts | {"feed-forward": MEGATRON}
    if not cut and by_tokens and ACTIVATIONS.intersection(block):
        return parts | {"feed-forward": TOKENS}
    return parts


def run_lines(run: Run) -> list[str]:
    """Format what `gnnplace execute` prints of a plan's run."""
    file = run.plan.file
    low, high = file.interval or (0.0, 0.0)
    lines = [run.verification.summary()]
    if run.single and not run.verification.bitwise:
        lines[0] = f"{lines[0]} (in its own precision {run.single:.2g} relative)"
    if run.losses:
        lines.append(
            f"losses of {len(run.losses)} steps of AdamW: {run.losses[0]:.6g} to "
            f"{run.losses[-1]:.6g}, within {run.apart:.2g} of one device's"
            + (" (in double precision)" if run.doubled else "")
        )
        numbers = [step for step, loss in enumerate(run.losses) if not isfinite(loss)]
        if numbers:
            lines.append(
                f"the loss of step {numbers[0] + 1} is no finite number, nor one device's"
            )
    if run.measured is not None:
        line = (
            f"measured {step_text(run.measured)} a step (median of {len(run.seconds)})"
        )
        if file.step_time is not None:
            if run.covered:
                inside = "inside"
            else:
                inside = "outside"
            line += (
                f", predicted {step_text(file.step_time)} ({step_text(low)} to "
                f"{step_text(high)}: the measured time is {inside})"
            )
        lines += [line, rates_line(file, run.measured)]
    for name, times in run.beside.items():
        lines.append(
            f"measured beside it, by turns: {name} {step_text(median(times))} a step"
        )
    return [*lines, "passed" if run.passed else "NOT passed: see the first lines"]


STAGE_LINES = 8  # The most lines of stages if coarser ones serve
FOLDED = 2  # stages that are alike and told one by one
NAMES = {
    "F": "forward",
    "I": "gradients of activations",
    "W": "gradients of weights",
    "B": "gradients",
    "end": "exchange and update",
}
MOST = 50_000  # passes that are drawn
MOST_ROWS = 128  # The most devices that are drawn, and columns
WHY = "The plan has its stage on this rank."


def plan_page(plan: Plan, told: Sequence[str] = ()) -> str:
    """Make the text of the page.

    Its tables are apart from the lines of a terminal, which has no room for a row a stage, and
    programs have the plan's file.

    Args:
        plan: The plan with its predicted times.
        told: lines about a run of it.
    """
    file = plan.file
    sections: list[Section] = [Lines([plan.reason])] if plan.reason else []
    if told:
        sections.append(Lines(told, title="What a run of it gave"))
    if file.alternatives:
        sections += launcher_sections(plan)
    if file.trades:
        sections.append(trade_table(file))
    parts = [[name, milliseconds_text(s, ".2f")] for name, s in file.parts.items()]
    trades = [
        [f"{size / 1e9:.2f} GB", f"{milliseconds_text(s, '.2f')} ms"]
        for size, s in file.frontier
    ]
    frontier = text_table("Time against memory", ["fullest device", "step"], trades)
    sections += [
        _stage_table(plan),
        Drawing(lambda: _draw(plan)),
        text_table("Where the busiest rank's time goes", ["part", "ms"], parts),
        _memory_table(file.memory),
        replace(
            frontier, note="Plans that were timed, none worse than another in both."
        ),
        Lines(plan.notices),
    ]
    remark = f"All {'other ' if told else ''}times on this page are predicted."
    sections.append(Drawing(lambda: [footer(remark)]))
    facts = ", ".join(
        line.strip() for line in plan_lines(plan)[: 2 if plan.feasible else 1]
    )
    return as_page(Answer(f"{file.model} on {file.cluster}", sections, facts=facts))


def _draw(plan: Plan) -> list[Html]:
    """Draw the devices with their bytes, and the step."""
    step = plan_timeline(plan)
    undrawn = "too many passes to draw, or its file has no times"
    drawn = paragraph(f"The plan has {undrawn}.") if step is None else viewer([step])
    return [*_meshes(plan.file), drawn]


STAGE_HEADINGS = (
    "stage",
    "rank",
    "from",
    "to",
    "replicas",
    "shards",
    "devices",
    "ZeRO",
    "recomputed",
    "forward ms",
    "gradients ms",
    "of weights ms",
)


def _stage_table(plan: Plan) -> TextTable:
    """Describe every stage: where it is, and what its passes take."""
    lines = []
    for k, stage in enumerate(plan.file.stages):
        seconds = [milliseconds_text(s, ".3g") for s in stage.seconds] or ["", "", ""]
        lines.append(
            [
                str(k),
                str(plan.file.rank_of[k]),
                stage.members[0],
                stage.members[-1],
                str(len(stage.rows)),
                str(len(stage.rows[0])),
                f"{stage.rows[0][0]} to {stage.rows[-1][-1]}",
                str(stage.zero),
                str(len(stage.recompute.modules)),
                *seconds,
            ]
        )
    return text_table("Stages", STAGE_HEADINGS, lines)


LIKELY_ENOUGH = 0.8
"""A probability to fit from which on no more room is advised."""
MOST_NAMED = 4
"""Stages of a rank that a row of the picture names."""


def _meshes(file: PlanFile) -> list[Html]:
    """Draw the plan's devices with their bytes: a row a replica of a rank's stages."""
    width = max(len(row) for stage in file.stages for row in stage.rows)
    rows: dict[str, list[float]] = {}
    for rank in sorted(set(file.rank_of)):
        stages = [k for k, its in enumerate(file.rank_of) if its == rank]
        name = f"stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}"
        if len(stages) > MOST_NAMED:
            name = f"rank {rank}"
        for replica, row in enumerate(file.stages[stages[0]].rows):
            sizes = [
                file.memory[device].all / 1e9 if device in file.memory else nan
                for device in row
            ]
            rows[f"{name}, replica {replica}"] = [*sizes, *[nan] * (width - len(row))]
    if len(rows) > MOST_ROWS or width > MOST_ROWS:
        return []
    largest = max((entry.all / 1e9 for entry in file.memory.values()), default=1.0)
    columns = [f"shard {k}" for k in range(width)]
    drawn = heat(
        {"": rows}, columns, title="GB of each device", unit="GB", most=largest
    )
    return [heading("Mesh"), figure(svg(drawn))]


def _timing(plan: Plan) -> Timing | None:
    """Time the step again; None if the file does not say what its passes take."""
    file = plan.file
    if not file.actions or not all(stage.seconds for stage in file.stages):
        return None
    rows = [list(iterate_passes(row)) for row in file.actions]
    if not file.ends or sum(map(len, rows)) > MOST:
        return None
    apart = any(action.kind == "W" for row in rows for action in row)
    seconds = tuple((s.seconds[0], s.seconds[1], s.seconds[2]) for s in file.stages)
    count = plan.microbatches
    line = Pipeline(
        file.rank_of, seconds, tuple(file.sent), count, apart, (count,) * len(seconds)
    )
    return time_pipeline(line, rows, file.ends)


def plan_timeline(plan: Plan) -> Timeline | None:
    """Return the plan's step, a lane a pipeline rank; None without times or with too many passes.

    An op is a pass of a micro-batch through a stage, such as 2F0: stage 2, forward, the first.
    """
    timing = _timing(plan)
    if timing is None:
        return None
    step = from_simulation(timing.problem, timing.simulation, plan.shape)
    memory = tuple(_curve(plan.file, timing, rank) for rank in range(timing.line.ranks))
    return replace(step, memory=memory, named=_naming(timing, plan.file.stages))


def plan_steps(plan: Plan) -> list[Timeline]:
    """Return the plan's step for a trace.

    Raises:
        InputError: the plan has too many passes, or its file has no times.
    """
    step = plan_timeline(plan)
    if step is None:
        raise InputError(
            "--trace: the plan has too many passes to draw, or its file has no times"
        )
    return [step]


def _curve(file: PlanFile, timing: Timing, rank: int) -> Curve:
    """Return the bytes of each device of a rank over a step.

    What stays is constant; a micro-batch's activations stay from F to B or W.
    """
    first_stage = next(
        k for k, stage_rank in enumerate(timing.line.rank) if stage_rank == rank
    )
    memory = file.memory.get(file.stages[first_stage].rows[0][0])
    changes = [
        (
            0.0,
            memory.state + memory.working + memory.slack if memory is not None else 0.0,
        )
    ]
    spans = sorted(
        (span for span in timing.spans if span[1] == rank), key=lambda span: span[2:]
    )
    for action, (_, _, start, end) in zip(timing.orders[rank], spans, strict=False):
        size = file.stages[action.chunk].saved or 0.0
        if action.kind == FORWARD_PASS:
            changes.append((start, size))
        elif action.kind in (FULL_PASS, WEIGHT_PASS):
            changes.append((end, -size))
    times, sizes = zip(*sorted(changes, key=lambda change: change[0]), strict=True)
    return np.array(times), np.cumsum(sizes)


def _naming(timing: Timing, stages: Sequence[StageEntry]) -> Naming:
    names = timing.problem.graph.names
    shown = [word for word in NAMES if any(_kind(name) == word for name in names)]
    kind = np.array([shown.index(_kind(name)) for name in names], dtype=np.int8)
    covers = {
        f"stage {k}": [*stage.modules, *stage.members] for k, stage in enumerate(stages)
    }
    kinds = tuple(NAMES[word] for word in shown)
    modules = [_module(name) for name in names]
    return Naming(kinds, kind, modules, covers, sized=False, why=WHY)


def _kind(name: str) -> str:
    if name.startswith("end"):
        return "end"
    return next(k for k in name if k in PASS_KINDS)


def _module(name: str) -> str:
    """Return the stage of a pass, or the rank whose end it is."""
    if name.startswith("end"):
        return f"end of rank {name.split()[1]}"
    return f"stage {name[: name.index(_kind(name))]}"


def _memory_table(memory: Mapping[str, MemoryEntry]) -> TextTable:
    """Describe the bytes of each device by what they are of."""
    largest = max((entry.all for entry in memory.values()), default=1.0) or 1.0
    lines = []
    for name, entry in memory.items():
        sizes = [*entry.model_dump().values(), entry.all]
        lines.append([name, *(f"{size / 1e9:.2f}" for size in sizes)])
    headings = ["device", *(f"{kind}, GB" for kind in MemoryEntry.model_fields)]
    return replace(
        text_table("Memory of each device", [*headings, "in all, GB"], lines),
        bar=lambda line: share(memory[line[0]].all / largest),
        note="A full bar is the fullest device.",
    )
