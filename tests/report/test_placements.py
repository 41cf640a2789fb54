"""The page about placements has every figure, and says what two of them do differently."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from gnnplace.cli.main import run
from gnnplace.errors import InfeasibleError
from gnnplace.placers import contract
from gnnplace.placing.roster import make_placer as placer
from gnnplace.problem import write_problem
from gnnplace.problem.placement import placement_to_data
from gnnplace.report.placements import placements_page, write_placements
from gnnplace.report.rows import make_row
from gnnplace.report.timeline import from_simulation
from tests.report.embedded import held


@pytest.fixture(scope="module")
def placed():
    problem = contract.branches()
    return problem, placer("heft").place(problem), placer("single").place(problem)


def words(text):
    """What a reader sees, without scripts."""
    plain = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", plain))


def test_the_page_has_placers_steps_and_devices(placed, tmp_path):
    """Rows, errors escaped, busy shares, one graph for all steps."""
    problem, result, single = placed
    rows = [
        make_row(result),
        make_row(single),
        make_row(("exact", InfeasibleError("</script>"))),
    ]
    steps = [from_simulation(problem, r.simulation, r.placer) for r in (result, single)]
    write_placements(tmp_path / "r.html", problem, steps, rows)
    text = (tmp_path / "r.html").read_text()
    data, seen = held(text), words(text)
    assert [step["label"] for step in data["steps"]] == [
        "predicted, heft",
        "predicted, single",
    ]
    assert len(data["graphs"]) == 1
    assert "&lt;/script&gt;" in seen
    assert f"{single.step_time / result.step_time:.2f}x" in seen
    assert f"{result.simulation.busy_share(problem.num_devices)[0]:.1%}" in seen
    assert "What moved" not in seen


def test_two_placements_are_compared(placed):
    """How many ops moved, by module, and both steps are shown at first."""
    problem, result, single = placed
    steps = [from_simulation(problem, r.simulation, r.placer) for r in (single, result)]
    text = placements_page(problem, steps, beside=True)
    moved = int(np.sum(single.placement.device != result.placement.device))
    stayed = problem.num_ops - moved
    said = (
        f"Between single and heft, {moved} ops change their device and {stayed} do not."
    )
    assert said in words(text)
    assert held(text)["beside"]


def test_the_command_compares_two_files(placed, tmp_path, capsys):
    """``report PROBLEM A B``; a file of another problem is one line and nothing is written."""
    problem, result, single = placed
    write_problem(tmp_path / "p.json", problem)
    for name, found in (("a", single), ("b", result)):
        data = placement_to_data(found.placement, problem)
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    paths = [str(tmp_path / name) for name in ("p.json", "a.json", "b.json")]
    assert run(["report", *paths, "-o", str(tmp_path / "o.html")]) == 0
    text = (tmp_path / "o.html").read_text()
    assert "What moved" in text
    assert held(text)["beside"]
    write_problem(tmp_path / "q.json", contract.training_chain())
    assert (
        run(
            [
                "report",
                str(tmp_path / "q.json"),
                *paths[1:],
                "-o",
                str(tmp_path / "x.html"),
            ]
        )
        == 2
    )
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "x.html").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["place", "p.json", "--placer", "heft", "-o", "out.json"],
        ["compare", "p.json", "--placers", "heft,single", "--budget", "0"],
        ["simulate", "p.json", "a.json"],
        ["diff", "p.json", "a.json", "b.json"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_every_command_writes_it(placed, tmp_path, monkeypatch, arguments):
    """``--html page.html``, ``--trace``; a folder that is not there is said before the work."""
    problem, result, single = placed
    monkeypatch.chdir(tmp_path)
    write_problem("p.json", problem)
    for name, found in (("a", single), ("b", result)):
        (tmp_path / f"{name}.json").write_text(
            json.dumps(placement_to_data(found.placement, problem))
        )
    assert run([*arguments, "--html", "page.html", "--trace", "t.json"]) == 0
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    data = held((tmp_path / "page.html").read_text())
    assert len(data["graphs"]) == 1
    assert len(data["steps"]) == (2 if arguments[0] in ("compare", "diff") else 1)
    assert {event["pid"] for event in events} == set(range(1, len(data["steps"]) + 1))
    assert data["beside"] == (arguments[0] == "diff")
    assert run([*arguments, "--html", "nowhere/page.html"]) == 2
