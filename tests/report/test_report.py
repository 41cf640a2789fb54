from __future__ import annotations

import io
import json
from itertools import pairwise

import pytest
from rich.console import Console

from gnnplace.errors import InfeasibleError
from gnnplace.placers import contract
from gnnplace.placing.roster import make_placer as placer
from gnnplace.report import as_terminal, boxed, describe
from gnnplace.report.rows import Row, make_row, with_best_bound
from gnnplace.report.tables import comparison
from gnnplace.report.timeline import from_simulation
from gnnplace.report.trace import chrome_trace
from gnnplace.units import bytes_text, seconds_text


@pytest.fixture(scope="module")
def placed():
    problem = contract.branches()
    return problem, placer("heft").place(problem), placer("single").place(problem)


def test_the_timeline_has_every_op_and_transfer(placed):
    problem, result, _ = placed
    timeline = from_simulation(problem, result.simulation, "heft")
    assert {op.name for op in timeline.ops} == set(problem.graph.names)
    assert max(op.finish for op in timeline.ops) == result.step_time
    assert len(timeline.transfers) == len(result.simulation.transfers.tensor)
    assert all(t.source != t.target and t.finish >= t.start for t in timeline.transfers)
    assert timeline.label.startswith("predicted")


def test_the_trace_is_what_perfetto_reads(placed):
    problem, result, _ = placed
    timeline = from_simulation(problem, result.simulation, "heft")
    events = json.loads(json.dumps(chrome_trace([timeline])))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == problem.num_ops
    assert max(e["ts"] + e["dur"] for e in spans) == pytest.approx(
        result.step_time * 1e6
    )
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == len(timeline.transfers)
    assert all(ends[k]["ts"] >= starts[k]["ts"] for k in starts)
    threads = {
        e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"
    }
    assert threads == dict(enumerate(timeline.devices))
    for lane in threads:
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in spans if e["tid"] == lane)
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(mine))


def test_tables_name_speed_ups_and_failures(placed):
    problem, result, single = placed
    rows = [
        make_row(result),
        make_row(single),
        make_row(("exact", InfeasibleError("no room"))),
    ]
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(*boxed(comparison(rows, "title")))
    console.print(*as_terminal(describe(result.simulation, problem=problem)))
    text = console.export_text()
    assert f"{single.step_time / result.step_time:.2f}x p" in text
    assert "no room" in text
    assert "d3" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123, "12.3 ms"), (1.5, "1.5 s"), (2e-6, "2 us"), (0.0, "0 s"), (None, "-")],
)
def test_seconds(value, text):
    assert seconds_text(value) == text


def test_what_one_placer_proves_holds_for_all():
    rows = [
        Row("exact", predicted=2.0, lower_bound=1.9, gap=0.05),
        Row("heft", predicted=3.0, lower_bound=1.0, gap=2.0),
        Row("etf", error="none"),
    ]
    shared = with_best_bound(rows)
    assert [row.lower_bound for row in shared] == [1.9, 1.9, None]
    assert shared[1].gap == pytest.approx(3 / 1.9 - 1)
    assert with_best_bound([rows[2]]) == [rows[2]]


def test_bytes():
    assert bytes_text(1.5e9) == "1.5 GB"
    assert bytes_text(0) == "0 B"
