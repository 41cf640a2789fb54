"""A joint plan as one page: stages, timeline, where the time goes, memory by device, frontier.

All of it is in the plan's file: its actions are run again with the seconds of its stages. Times are
predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from gnnplace.planning.orders import Action, Pipeline
from gnnplace.planning.plan import MemoryEntry, Plan
from gnnplace.planning.timing import Timing, timed
from gnnplace.report.html import Html, figure, footer, heading, page, paragraph, table
from gnnplace.report.plans import plan_lines

PASSES = "FIWB"
COLOURS = {"F": "#4477aa", "I": "#66a182", "B": "#66a182", "W": "#ccbb44", "end": "#aa7788"}
NAMES = {"F": "forward", "I": "gradients of activations", "B": "gradients",
         "W": "gradients of weights", "end": "exchange and update"}  # fmt: skip
KINDS = {"state": "#4477aa", "activations": "#66a182", "working": "#ccbb44", "slack": "#bbbbbb"}
MOST = 20_000  # passes that are drawn
WIDTH, LEFT, ROW, BAR = 1100.0, 70.0, 22.0, 18.0


def plan_page(plan: Plan) -> str:
    """The text of the page."""
    file = plan.file
    parts = [paragraph(line.strip()) for line in plan_lines(plan)[:1]]
    if plan.reason:
        parts.append(paragraph(plan.reason))
    parts += [heading("Stages"), _stages(plan), heading("Timeline"), *_timeline(plan)]
    parts += [heading("Busiest rank"), table(["part", "ms"], _parts(plan))]
    parts += [heading("Memory"), _memory(file.memory), heading("Time against memory")]
    parts += [paragraph("Plans that were timed, none worse than another in both."), _frontier(plan)]
    parts += [paragraph(notice) for notice in plan.notices]
    parts.append(footer("gnnplace; all times are predicted"))
    return page(f"{file.model} on {file.cluster}", parts)


def _stages(plan: Plan) -> Html:
    heads = ["stage", "rank", "from", "to", "replicas", "shards", "devices", "ZeRO",
             "recomputed", "forward ms", "gradients ms", "of weights ms"]  # fmt: skip
    lines = []
    ranks = plan.file.ranks or list(range(len(plan.file.stages)))
    for k, stage in enumerate(plan.file.stages):
        seconds = [f"{1e3 * s:.3g}" for s in stage.seconds] or ["", "", ""]
        lines.append(
            [str(k), str(ranks[k]), stage.members[0], stage.members[-1], str(len(stage.devices)),
             str(len(stage.devices[0])), f"{stage.devices[0][0]} to {stage.devices[-1][-1]}",
             str(stage.zero), str(len(stage.recompute)), *seconds]
        )  # fmt: skip
    return table(heads, lines)


def _parts(plan: Plan) -> list[list[str]]:
    return [[name, f"{1e3 * seconds:.2f}"] for name, seconds in plan.file.parts.items()]


def _timing(plan: Plan) -> Timing | None:
    """The step again; None where the file does not say what it takes."""
    file = plan.file
    if not file.actions or not all(stage.seconds for stage in file.stages):
        return None
    rows = [[found for word in row if (found := _pass(word))] for row in file.actions]
    if not file.ends or sum(map(len, rows)) > MOST:
        return None
    apart = any(action.kind == "W" for row in rows for action in row)
    ranks = tuple(file.ranks or range(len(file.stages)))
    seconds = tuple((s.seconds[0], s.seconds[1], s.seconds[2]) for s in file.stages)
    count = plan.microbatches
    line = Pipeline(ranks, seconds, tuple(file.sent), count, apart, (count,) * len(ranks))
    return timed(line, rows, file.ends)


def _pass(word: str) -> Action | None:
    """An action of the file; None for messages."""
    stage = word.rstrip("0123456789").rstrip("FIWBSENDRCV_")
    kind, number = word[len(stage) : len(stage) + 1], word[len(stage) + 1 :]
    if not stage.isdecimal() or kind not in PASSES or not number.isdecimal():
        return None
    return Action(int(stage), kind, int(number))


def _timeline(plan: Plan) -> list[Html]:
    timing = _timing(plan)
    if timing is None:
        return [paragraph("The plan has too many passes to draw, or its file has no times.")]
    scale = (WIDTH - LEFT) / max(timing.step_time, 1e-30)
    marks, ranks = [], len(timing.orders)
    for name, rank, start, end in timing.spans:
        kind = "end" if name.startswith("end") else next(k for k in name if k in PASSES)
        told = f"{name}: {NAMES[kind]}, {1e3 * start:.3f} to {1e3 * end:.3f} ms"
        place = (LEFT + scale * start, ROW * rank, scale * (end - start), BAR)
        marks.append(_bar(place, COLOURS[kind], told))
    marks += [_text(0, ROW * p + 13, f"rank {p}") for p in range(ranks)]
    caption = "; ".join(dict.fromkeys(f"{k}: {NAMES[k]}" for k in "FBIW"))
    return [figure(_svg(WIDTH, ROW * ranks, marks, "timeline"), caption)]


def _memory(memory: dict[str, MemoryEntry]) -> Html:
    most = max((sum(m.model_dump().values()) for m in memory.values()), default=1.0)
    marks = []
    for k, (name, entry) in enumerate(memory.items()):
        marks.append(_text(0, ROW * k + 13, name))
        left = LEFT
        for kind, size in entry.model_dump().items():
            width = (WIDTH - LEFT) * size / max(most, 1e-30)
            told = f"{name}: {kind} {size / 1e9:.2f} GB"
            marks.append(_bar((left, ROW * k, width, BAR), KINDS[kind], told))
            left += width
    caption = f"{', '.join(KINDS)}, from the left; the fullest has {most / 1e9:.2f} GB"
    return figure(_svg(WIDTH, ROW * len(memory), marks, "memory by device"), caption)


def _frontier(plan: Plan) -> Html:
    lines = [
        [f"{held / 1e9:.2f} GB", f"{1e3 * seconds:.2f} ms"] for held, seconds in plan.file.frontier
    ]
    return table(["fullest device", "step"], lines)


def _bar(place: tuple[float, float, float, float], colour: str, told: str) -> str:
    x, y, width, height = place
    return (
        f'<rect x="{x:.2f}" y="{y:g}" width="{max(width, 0.3):.2f}" height="{height:g}" '
        f'fill="{colour}" stroke="#fff" stroke-width=".3"><title>{escape(told)}</title></rect>'
    )


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="12" fill="currentColor">{escape(text)}</text>'


def _svg(width: float, height: float, marks: Sequence[str], name: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'role="img" aria-label="{escape(name)}">{"".join(marks)}</svg>'
    )
