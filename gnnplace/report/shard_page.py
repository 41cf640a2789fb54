"""A split of layers as one page: what it costs beside others, where the time goes by layer, trades.

The cost model adds up the seconds of every layer and of every resharding between layers, and
nothing overlaps. So its step has one lane, in which a device does one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gnnplace.graph import ComputationGraph
from gnnplace.problem import Problem, build_problem
from gnnplace.problem.cluster import Cluster, Device
from gnnplace.report import html
from gnnplace.report.html import Html
from gnnplace.report.pictures import svg
from gnnplace.report.sharding import frontier_picture, frontier_title, proof, strategies, versus
from gnnplace.report.timeline import Naming, Timeline, from_simulation
from gnnplace.report.units import bytes_text, page_seconds
from gnnplace.report.viewer import viewer
from gnnplace.sharding import Frontier, ShardingProblem, ShardingResult
from gnnplace.sharding.strategy import Parts, Setting
from gnnplace.simulation import Simulator

DOES = {
    "compute": "compute, forward and backward",
    "gradient": "exchange of gradients",
    "resharding": "resharding of inputs",
    "reduction": "sums of partial results",
}
TURN = ("resharding", "compute", "reduction", "gradient")  # of a layer, one after the other
HEADS = ("strategy", "step", *DOES.values(), "memory of a device")
LAYERS = ("layer", "step", *DOES.values(), "how it is split")
KIND = "device"
WHY = "Every device does its share of it."


def split_page(problem: ShardingProblem, setting: Setting | None, result: ShardingResult) -> str:
    """The page of one split; of a file of tables it has no parts, and so no timeline."""
    title = f"{problem.name} on {problem.devices} devices"
    facts = f"The split is {proof(result)}; it was searched for {result.seconds:.3f} s."
    parts = [_tables(problem, result)] if setting is None else _network(problem, setting, result)
    return html.page(title, [*parts, _told()], facts=facts)


def frontier_page(problem: ShardingProblem, answer: Frontier, *, network: bool) -> str:
    """The page of every trade of time for memory.

    Args:
        problem: what was split.
        answer: its frontier.
        network: whether costs are seconds.
    """
    lines = [
        [
            page_seconds(point.cost) if network else f"{point.cost:.10g}",
            "unknown" if point.memory is None else bytes_text(point.memory),
            "the knee" if k == answer.knee else "",
        ]
        for k, point in enumerate(answer.points)
    ]
    picture = svg(frontier_picture(problem, answer, network=network))
    parts = [html.figure(picture), html.table(("step", "memory of a device", ""), lines), _told()]
    facts = f"The search took {answer.seconds:.3f} s."
    return html.page(frontier_title(problem, answer), parts, facts=facts)


def _told() -> Html:
    return html.footer("All times on this page are predicted by the cost model.")


def _network(problem: ShardingProblem, setting: Setting, result: ShardingResult) -> list[Html]:
    found = strategies(setting, problem, result)
    names = list(found)
    best, parallel = found[names[0]], found[names[1]]
    words = setting.words(result.configuration)
    step = split_timeline(setting, result.configuration)
    cards = [
        (page_seconds(best.total), "predicted step time"),
        (f"{parallel.total / best.total:.3g}x", "predicted speed-up over data parallelism"),
        (bytes_text(best.memory), "memory of a device"),
    ]
    return [
        html.cards(cards),
        html.paragraph(f"In a sentence: {versus(best, parallel, words, setting.devices)}."),
        html.heading("Strategies side by side"),
        _side_by_side(found),
        viewer([step], title="What each layer takes, one after the other"),
        html.heading("Layers"),
        _layers(setting, result.configuration, words),
    ]


def _side_by_side(found: dict[str, Parts]) -> Html:
    most = max(parts.total for parts in found.values()) or 1.0
    bars = [html.share(parts.total / most) for parts in found.values()]
    lines = [[name, *_seconds(parts), bytes_text(parts.memory)] for name, parts in found.items()]
    return html.table(HEADS, lines, bars=bars)


def _seconds(parts: Parts) -> list[str]:
    own = [getattr(parts, name) for name in DOES]
    return [page_seconds(parts.total), *(page_seconds(value) if value else "" for value in own)]


def _layers(setting: Setting, configuration: Sequence[int], words: Sequence[str]) -> Html:
    costs, layers = setting.by_layer(configuration), setting.network.layers
    most = max(parts.total for parts in costs) or 1.0
    lines = [
        [layer.name, *_seconds(parts), f"{text} ({layer.reason})" if layer.reason else text]
        for layer, parts, text in zip(layers, costs, words, strict=True)
    ]
    bars = [html.share(parts.total / most) for parts in costs]
    return html.table(LAYERS, lines, bars=bars, words=True)


def _tables(problem: ShardingProblem, result: ShardingResult) -> Html:
    pairs = zip(problem.names, result.configuration, problem.cost, strict=True)
    lines = [[name, str(k), str(len(cost)), f"{cost[k]:.10g}"] for name, k, cost in pairs]
    return html.table(("layer", "configuration", "of", "its own cost"), lines)


def split_timeline(setting: Setting, configuration: Sequence[int]) -> Timeline:
    """What a device does in a step, layer by layer, as the cost model adds it up."""
    names, modules, kinds, seconds = [], [], [], []
    costs = setting.by_layer(configuration)
    for layer, parts in zip(setting.network.layers, costs, strict=True):
        for part in TURN:
            if getattr(parts, part) > 0:
                names.append(f"{layer.name}: {part}")
                modules.append(layer.name)
                kinds.append(list(DOES).index(part))
                seconds.append(getattr(parts, part))
    if not names:
        names, modules, kinds, seconds = ["nothing"], [""], [0], [0.0]
    problem = _chain(setting, names, seconds)
    simulator = Simulator(problem)
    order = np.arange(len(names), dtype=np.int32)
    found = simulator.run(np.zeros(len(names), dtype=np.int32), order)
    step = replace(from_simulation(problem, found, "this strategy"), memory=())
    does = tuple(DOES.values())
    named = Naming(does, np.array(kinds, dtype=np.int8), modules, sized=False, why=WHY)
    return step.called(named)


def _chain(setting: Setting, names: Sequence[str], seconds: Sequence[float]) -> Problem:
    """All that a device does, one after the other, on that device."""
    pairs = [(k, 0.0, [k + 1]) for k in range(len(names) - 1)]
    graph = ComputationGraph.from_tensors(names, pairs)
    cluster = Cluster((Device(name="every device", kind=KIND, memory=1e30),), (), "mesh")
    return build_problem(setting.network.name, graph, cluster, {KIND: np.array(seconds)})
