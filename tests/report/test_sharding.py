"""The page of a split adds up to what the split costs, with a timeline by layer."""

from __future__ import annotations

import numpy as np
import pytest

from gnnplace.cli.main import run
from gnnplace.report import as_page, describe
from gnnplace.report.pictures import svg
from gnnplace.report.sharding import (
    DOES,
    Trade,
    frontier_plot,
    split_timeline,
)
from gnnplace.sharding.answers import (
    GoalAnswer,
    SplitGoal,
    SplitOptions,
    shard_frontier,
    shard_network,
    shard_tables,
)
from tests.report.drawn import texts, tooltips
from tests.report.embedded import held, instants, unpacked
from tests.sharding.problems import random_problem, write_files

AXES = ("memory (GB)", "time (ms)")


def drawn(trades, knee=None):
    return frontier_plot(trades, knee, title="t <1>", note="n", axes=AXES)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_more_memory_is_to_the_right_and_more_time_above(scale):
    trades = [
        Trade(9.0 * scale, 1.0, "a <&>"),
        Trade(4.0, 2.0, "b"),
        Trade(1.0, 50.0, "c"),
    ]
    figure = drawn(trades, 1)
    [plot] = figure.axes
    stairs, dots, knee = plot.lines
    assert dots.get_xydata().tolist() == [[1.0, 50.0], [4.0, 2.0], [9.0 * scale, 1.0]]
    assert knee.get_xydata().tolist() == [[4.0, 2.0]]
    assert plot.get_yscale() == "log"
    assert plot.get_xscale() == ("linear" if scale == 1 else "log")
    assert not plot.xaxis_inverted()
    assert not plot.yaxis_inverted()
    # Up to the next memory, the same time.
    assert stairs.get_drawstyle() == "steps-post"
    assert stairs.get_xydata().tolist()[:3] == dots.get_xydata().tolist()
    assert stairs.get_xydata().tolist()[3] == [plot.get_xlim()[1], 1.0]
    assert tooltips(svg(figure)) == ["c", "b", "a <&>", "b"]
    assert {"knee: b", "t <1>", "n", *AXES} <= set(texts(svg(figure)))


def test_one_strategy_is_a_picture_too():
    for memory in (3.0, 0.0):
        assert tooltips(svg(drawn([Trade(memory, 0.0, "only")]))) == ["only"]


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (3.2, 3.3), (1e-5, 2e3), (5e9, 9e9)]
)
def test_all_is_inside_and_some_ticks_are(low, high):
    [plot] = drawn([Trade(high, low, "a"), Trade(low, high, "b")]).axes
    for (left, right), ticks in ((plot.get_xlim(), plot.get_xticks()),):
        assert left <= low < high <= right
        assert 3 <= np.sum((left <= ticks) & (ticks <= right)) <= 40


@pytest.fixture(scope="module")
def split():
    tables = shard_tables("mlp?depth=1&width=64&batch=8", SplitOptions(4, flops=1e7))
    return tables, shard_network(tables)


def test_the_lane_is_as_long_as_the_split_costs(split):
    """Every part of every call is a span, one after the other."""
    tables, result = split
    layers = tables.split(result)
    step = split_timeline(layers)
    assert step.step_time == pytest.approx(result.cost)
    assert np.array_equal(step.start[1:], step.finish[:-1])
    spent = np.bincount(step.named.kind, step.finish - step.start, len(DOES))
    assert spent == pytest.approx([getattr(layers.predicted, name) for name in DOES])
    assert set(step.named.module) <= {layer.name for layer in layers.words}


def test_the_page_has_data_parallelism_and_layers(split):
    """Every call and its split, and data parallelism beside this strategy."""
    tables, result = split
    layers = tables.split(result)
    text = as_page(
        describe(GoalAnswer(tables, result, {}), goal=SplitGoal(), split=layers)
    )
    [shown] = held(text)["steps"]
    assert instants(shown, shown["finish"])[-1] == pytest.approx(result.cost)
    spans = [getattr(part, name) > 0 for part in layers.by_layer for name in DOES]
    assert len(unpacked(shown["op"], "i4")) == sum(spans)
    names = [layer.name for layer in layers.words]
    for name in ("this strategy", "data parallelism", *names):
        assert f"<td>{name}</td>" in text
    assert all(layer.words in text for layer in layers.words)


def test_a_frontier_has_a_picture_and_a_row_a_trade(split):
    """As many rows as strategies, the knee marked."""
    answer = shard_frontier(split[0], epsilon=0.2)
    text = as_page(describe(answer, tables=split[0]))
    assert text.count("<tr><td>") == len(answer.points)
    assert '<td class="words">knee</td>' in text
    assert "<svg" in text


def test_the_command_writes_it_or_says_why_not(tmp_path, capsys):
    """A file of tables has no timeline; --executable is refused before the work."""
    path = str(write_files(tmp_path, random_problem(5, nodes=4, edges=6, memory=True)))
    assert run(["shard", path, "--html", str(tmp_path / "a.html")]) == 0
    assert "its own cost" in (tmp_path / "a.html").read_text()
    assert run(["shard", path, "--executable", "--html", str(tmp_path / "b.html")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "b.html").exists()
