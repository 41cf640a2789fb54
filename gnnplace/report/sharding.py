"""Splits of layers: a search's answer.

A picture of a frontier: every trade of time for memory, the knee marked.

The line is a staircase: between two strategies, the faster one is the best that fits. An axis is
logarithmic where its numbers span more than a factor of ten.

The cost model adds up the seconds of every layer and of every resharding between layers, and
nothing overlaps. So its step has one lane, in which a device does one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnplace.graph import ComputationGraph
from gnnplace.problem import Cluster, Device, Problem, SearchGoal, build_problem
from gnnplace.report import html
from gnnplace.report.answer import (
    PAGE,
    TERMINAL,
    Answer,
    Drawing,
    Lines,
    Section,
    TextTable,
    text_table,
)
from gnnplace.report.html import Html
from gnnplace.report.pictures import BLUE, Axis, Series, chart, mark, svg
from gnnplace.report.timeline import Naming, Timeline, from_simulation
from gnnplace.report.viewer import viewer
from gnnplace.sharding import (
    CostParts,
    Frontier,
    ShardingProblem,
    ShardingResult,
)
from gnnplace.simulation import Simulator
from gnnplace.units import bytes_text, page_seconds, seconds_text

if TYPE_CHECKING:
    from gnnplace.report.pictures import Figure
    from gnnplace.sharding import AnswerTables, GoalAnswer, LayerSplit, SplitGoal

WHOLE = "whole on every device"  # The text for a layer that is not split
DOES = {
    "compute": "compute, forward and backward",
    "gradient": "exchange of gradients",
    "resharding": "resharding of inputs",
    "reduction": "sums of partial results",
}
"""What the parts of a cost are, by their names."""
# The parts of a layer, one after the other.
TURN = ("resharding", "compute", "reduction", "gradient")
HOW = "how it is split"
KIND = "device"
WHY = "Every device does its share of it."


def describe_goal(
    answer: GoalAnswer, *, goal: SplitGoal, split: LayerSplit | None
) -> Answer:
    """Describe the split that is best for a goal.

    One of a file of tables has no parts, and so no timeline.

    Args:
        answer: The split, and the cost tables that it was searched in.
        goal: What it is best in.
        split: The split of a model's layers; None for that of a file.
    """
    problem = answer.tables.problem
    result = answer.result
    # A page is read without the question.
    sections: list[Section] = [Lines(goal_lines(answer, goal), only=TERMINAL)]
    head = f"{problem.name} on {problem.devices} devices: cost {result.cost:.10g}"
    if result.memory is not None:
        head += f", memory {result.memory:.6g} bytes"
    if split is None:
        sections += [Lines([head]), _choice_table(problem, result)]
    else:
        sections += _describe_layer_split(split)
    search = f"searched for {result.seconds:.3f} s, {proof(result, goal.name)}"
    sections += [Lines([search]), Drawing(_draw_footer)]
    title = f"{problem.name} on {problem.devices} devices"
    data = split_data(problem, result, split)
    if goal.name != SearchGoal.TIME:
        data["devices"] = problem.devices
    return Answer(title, sections, data)


def split_data(
    problem: ShardingProblem, result: ShardingResult, split: LayerSplit | None = None
) -> dict[str, Any]:
    """Return a split as plain data; a model's with its parts, what DDP costs, and its words."""
    data: dict[str, Any] = {
        "cost": result.cost,
        "memory": result.memory,
        "configuration": dict(zip(problem.names, result.configuration, strict=True)),
        "seconds": result.seconds,
        "exact": result.exact,
    }
    if not result.exact and result.bound is not None:
        data["bound"] = result.bound
    if split is not None:
        data["layers"] = {layer.name: layer.words for layer in split.words}
        data["without_rule"] = {x.name: x.reason for x in split.words if x.reason}
        costs = {"predicted": split.predicted, "data_parallel": split.data_parallel}
        for key, parts in costs.items():
            data[key] = vars(parts) | {"total": parts.total}
    return data


def _choice_table(problem: ShardingProblem, result: ShardingResult) -> TextTable:
    """Describe the configuration of each layer of a file of tables."""
    pairs = zip(problem.names, result.configuration, problem.cost, strict=True)
    lines = [
        [name, str(k), str(len(cost)), f"{cost[k]:.10g}"] for name, k, cost in pairs
    ]
    headings = ["layer", "configuration", "of", "its own cost"]
    return replace(text_table("", headings, lines), boxed=False)


def goal_lines(answer: GoalAnswer, goal: SplitGoal) -> list[str]:
    """Format what an answer is best in, if that is not the time of a step."""
    limits = []
    if goal.memory_limit is not None:
        limits.append(f"{bytes_text(goal.memory_limit)} a device")
    if goal.time_limit is not None:
        limits.append(f"{page_seconds(goal.time_limit)} a step")
    within = " and ".join(limits)
    if goal.name == SearchGoal.MEMORY:
        assert answer.result.memory is not None  # tables without memory are refused
        return [
            f"least memory within {within}: {bytes_text(answer.result.memory)} a device"
        ]
    if goal.name != SearchGoal.GPUS:
        return []
    devices = answer.tables.problem.devices
    if devices == 1:
        count = "1 device"
    else:
        count = f"{devices} devices"
    line = f"fewest devices within {within}: {count}"
    if answer.reasons:
        fewer = max(answer.reasons)
        line += f" (on {fewer}: {answer.reasons[fewer]})"
    return [line]


def _describe_layer_split(split: LayerSplit) -> list[Section]:
    """Describe the split of a model's layers, and data parallelism beside it."""
    mesh = " x ".join(str(n) for n in split.mesh)
    best, parallel = split.predicted, split.data_parallel
    name, devices = split.problem.name, split.problem.devices
    words = [layer.words for layer in split.words]
    sentence = f"{versus(best, parallel, words, devices)}, as predicted"
    lines = [
        f"{name} on a mesh of {mesh} devices: predicted {1e3 * best.total:.4g} ms a step",
        *(f"  {line}" for line in split.lines()),
        *_without_rule((layer.name, layer.reason) for layer in split.words),
    ]
    costs = {"this strategy": best, "data parallelism": parallel}
    splits = {
        layer.name: f"{layer.words} ({layer.reason})" if layer.reason else layer.words
        for layer in split.words
    }
    by_layer = dict(zip(splits, split.by_layer, strict=True))
    layers = _cost_table("layer", by_layer, HOW, splits.__getitem__)

    def draw() -> list[Html]:
        """Draw the figures that matter most, and the step."""
        speed_up = f"{parallel.total / best.total:.3g}x"
        cards = [
            (page_seconds(best.total), "predicted step time"),
            (speed_up, "predicted speed-up over data parallelism"),
            (bytes_text(best.memory), "memory of a device"),
        ]
        title = "What each layer takes, one after the other"
        return [html.cards(cards), viewer([split_timeline(split)], title=title)]

    return [
        # A page has the table of layers instead, where a terminal has equal layers in one line.
        Lines(lines, only=TERMINAL),
        _cost_table(
            "predicted", costs, "memory", lambda x: bytes_text(costs[x].memory)
        ),
        Lines([sentence]),
        Drawing(draw),
        replace(layers, title="Layers", only=PAGE),
    ]


def _cost_table(
    heading: str,
    costs: Mapping[str, CostParts],
    last_heading: str,
    last: Callable[[str], str],
) -> TextTable:
    """Describe costs in parts: a row for each name.

    Args:
        heading: The heading of the column of names.
        costs: By name.
        last_heading: The heading of the last column.
        last: Returns what the last column says of a name.
    """
    largest = max(parts.total for parts in costs.values()) or 1.0
    lines = []
    for name, parts in costs.items():
        seconds = [
            parts.compute,
            parts.reduction,
            parts.gradient,
            parts.resharding,
        ]
        cells = [seconds_text(value) if value else "" for value in seconds]
        lines.append([name, seconds_text(parts.total), *cells, last(name)])
    headings = ["step", "compute", "partial sums", "gradients", "resharding"]
    words = (last_heading,) if last_heading == HOW else ()
    return replace(
        text_table("", [heading, *headings, last_heading], lines, words=words),
        bar=lambda line: html.share(costs[line[0]].total / largest),
        note="A step is the sum of its parts: nothing overlaps.",
        boxed=False,
    )


def _without_rule(reasons: Iterable[tuple[str, str]]) -> list[str]:
    """Format a line that names every layer that no rule can split, and what becomes of it."""
    layers = [f"{name} ({reason})" for name, reason in reasons if reason]
    if len(layers) == 1:
        count = "1 layer"
    else:
        count = f"{len(layers)} layers"
    if layers:
        return [f"{count} cannot be split freely: {'; '.join(layers)}"]
    return []


def versus(
    best: CostParts, parallel: CostParts, words: Sequence[str], devices: int
) -> str:
    """Compare a strategy with data parallelism in a sentence that says which of them to take."""
    ratio = parallel.total / best.total
    if all(text == WHOLE for text in words):
        advice = f"no layer is split: use one device, {ratio:.3g} times as fast as data parallelism"
        return f"{advice} on {devices}"
    if ratio < 1:
        return f"data parallelism is {1 / ratio:.3g} times as fast: use that (DDP)"
    return f"{ratio:.3g} times as fast as data parallelism"


def proof(result: ShardingResult, goal: str = SearchGoal.TIME) -> str:
    """Say whether a split is proven best for a goal."""
    if goal == SearchGoal.MEMORY:
        if result.exact:
            return "proven least memory"
        return "not proven least memory"
    if result.exact:
        return "proven best of all splits of its layers"
    if result.gap is None:
        return "not proven best"
    return f"at most {100 * result.gap:.2g} % of it above the best; a proof would take more memory"


def describe_frontier(answer: Frontier, *, tables: AnswerTables) -> Answer:
    """Describe every trade of time for memory, for programs as a list.

    Args:
        answer: The frontier.
        tables: What was split. Costs are seconds if it is a model's layers.
    """
    problem = tables.problem
    network = tables.of_layers is not None
    cost_text = seconds_text if network else "{:.10g}".format
    lines = []
    for k, point in enumerate(answer.points):
        memory = "unknown" if point.memory is None else bytes_text(point.memory)
        knee = "knee" if k == answer.knee else ""
        lines.append([cost_text(point.cost), memory, knee])
    headings = ["step", "memory of a device", ""]
    trades = replace(text_table("", headings, lines, words=[""]), boxed=False)
    title = frontier_title(problem, answer)
    return Answer(
        title=title,
        sections=[
            Lines([title], only=TERMINAL),
            Drawing(lambda: [_draw_trades(problem, answer, network=network)]),
            trades,
            Lines([f"searched for {answer.seconds:.3f} s"]),
            Drawing(_draw_footer),
        ],
        data=lambda: [split_data(problem, point) for point in answer.points],
        picture=lambda: frontier_picture(problem, answer, network=network),
    )


def _draw_trades(problem: ShardingProblem, answer: Frontier, *, network: bool) -> Html:
    return html.figure(svg(frontier_picture(problem, answer, network=network)))


def _draw_footer() -> list[Html]:
    return [html.footer("All times on this page are predicted by the cost model.")]


def frontier_title(problem: ShardingProblem, answer: Frontier) -> str:
    """Return what was split, into how many strategies, and how exactly."""
    if answer.epsilon == 0:
        proof = "exact"
    else:
        proof = f"within {answer.epsilon:.3g} of the least cost"
    return f"{problem.name} on {problem.devices} devices: {len(answer.points)} strategies ({proof})"


def frontier_picture(
    problem: ShardingProblem, answer: Frontier, *, network: bool
) -> Figure:
    """Draw the picture; a network's in milliseconds and gigabytes, else as in the tables."""
    scale, units = (
        ((1e-9, 1e3), ("GB", "ms")) if network else ((1.0, 1.0), ("bytes", ""))
    )
    trades = []
    for point in answer.points:
        memory = scale[0] * (point.memory or 0.0)
        time = scale[1] * point.cost
        label = (
            f"{time:.4g} {units[1]}".rstrip() + f", {memory:.4g} {units[0]} a device"
        )
        trades.append(Trade(memory, time, label))
    title = frontier_title(problem, answer)
    axes = (
        f"memory of a device ({units[0]})",
        f"cost of a step ({units[1] or 'as in the file'})",
    )
    note = f"predicted by the cost model; searched for {answer.seconds:.3g} s"
    return frontier_plot(trades, answer.knee, title=title, note=note, axes=axes)


WIDE = 10.0  # Largest by smallest number from which an axis is logarithmic.


@dataclass(frozen=True)
class Trade:
    """One strategy.

    Attributes:
        memory: along the x axis.
        time: along the y axis.
        label: what is said where the pointer rests on it.
    """

    memory: float
    time: float
    label: str


def frontier_plot(
    trades: Sequence[Trade],
    knee: int | None,
    *,
    title: str,
    note: str,
    axes: tuple[str, str],
) -> Figure:
    """Draw the frontier of time and memory.

    Args:
        trades: strategies by time, ascending; memory falls.
        knee: index of the one to mark.
        title: first line.
        note: second line.
        axes: what memory and time are called, with their units.
    """
    x = _axis(axes[0], [trade.memory for trade in trades])
    y = _axis(axes[1], [trade.time for trade in trades])
    figure = chart(_series(trades, x), (x, y), title=title, note=note)
    if knee is not None:
        point = trades[knee]
        mark(figure, point.memory, point.time, f"knee: {point.label}", point.label)
    return figure


def _series(trades: Sequence[Trade], axis: Axis) -> list[Series]:
    """Return the staircase, carried on to the right by the fastest strategy, and a dot for each."""
    memory = [t.memory for t in reversed(trades)]
    time = [t.time for t in reversed(trades)]
    end = axis.limits[1] if axis.limits else memory[-1]
    stairs = Series(
        "", [*memory, end], [*time, time[-1]], joined="steps", dots=False, colour=BLUE
    )
    labels = [trade.label for trade in reversed(trades)]
    return [stairs, Series("", memory, time, told=labels, joined="none", colour=BLUE)]


def _axis(name: str, values: Sequence[float]) -> Axis:
    low = min(values)
    high = max(values)
    if low > 0 and high > WIDE * low:
        return Axis(name, logarithmic=True, limits=(low / 1.1, high * 1.1))
    margin = 0.04 * (high - low) or 0.5 * abs(high) or 1.0
    return Axis(name, limits=(low - margin, high + margin))


def split_timeline(split: LayerSplit) -> Timeline:
    """Return what a device does in a step, layer by layer, as the cost model adds it up."""
    names, modules, kinds, seconds = [], [], [], []
    for layer, parts in zip(split.words, split.by_layer, strict=True):
        for part in TURN:
            if getattr(parts, part) > 0:
                names.append(f"{layer.name}: {part}")
                modules.append(layer.name)
                kinds.append(list(DOES).index(part))
                seconds.append(getattr(parts, part))
    if not names:
        names, modules, kinds, seconds = ["nothing"], [""], [0], [0.0]
    problem = _chain(split.problem.name, names, seconds)
    simulator = Simulator(problem)
    order = np.arange(len(names), dtype=np.int32)
    simulation = simulator.run(np.zeros(len(names), dtype=np.int32), order)
    step = replace(from_simulation(problem, simulation, "this strategy"), memory=())
    does = tuple(DOES.values())
    named = Naming(does, np.array(kinds, dtype=np.int8), modules, sized=False, why=WHY)
    return step.rename_step(named)


def _chain(name: str, names: Sequence[str], seconds: Sequence[float]) -> Problem:
    """Return a problem of one device that does `names` one after the other."""
    pairs = [(k, 0.0, [k + 1]) for k in range(len(names) - 1)]
    graph = ComputationGraph.from_tensors(names, pairs)
    cluster = Cluster(
        (Device(name="every device", kind=KIND, memory=1e30),), (), "mesh"
    )
    return build_problem(name, graph, cluster, {KIND: np.array(seconds)})
