"""The page of a plan: all its parts, well-formed, with the passes of its actions."""

from xml.etree import ElementTree

import numpy as np
import pytest

from gnnplace.cli.main import run
from gnnplace.planning.answers import find_plans, given_plan
from gnnplace.planning.plan import plan_from_data
from gnnplace.report.plan_page import _pass, _timing, plan_page
from tests.planning.toys import chain, cluster


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble", "v", "interleaved:2"])
def test_a_page_has_every_pass_and_every_device(schedule):
    model = chain(np.random.default_rng(0), count=6, batch=8)
    plan = given_plan(model, cluster(2), f"pp=2,microbatch_size=1,schedule={schedule}")
    text = plan_page(plan_from_data(plan.to_data(), "plan"))
    root = ElementTree.fromstring(text.replace("<!DOCTYPE html>", ""))
    assert len(list(root.iter("{http://www.w3.org/2000/svg}svg"))) == 2
    passes = sum(_pass(word) is not None for row in plan.file.actions for word in row)
    assert text.count("<rect") == passes + 2 + 4 * len(plan.file.memory)
    assert _timing(plan).step_time == pytest.approx(plan.step_time)
    assert "gpu:1" in text


def test_a_frontier_falls():
    model = chain(np.random.default_rng(1), count=6, batch=8)
    points = find_plans(model, cluster(4, memory=150.0), budget=0.0)[0].file.frontier
    assert [b for b, _ in points] == sorted(b for b, _ in points)
    assert [s for _, s in points] == sorted((s for _, s in points), reverse=True)


def test_messages_are_no_passes():
    assert _pass("0SEND_F1") is None
    assert str(_pass("12W3")) == "12W3"


def test_the_command_line_writes_it(tmp_path, capsys):
    model = "gpt2?layers=2&width=64&heads=4&vocabulary=128&length=32&batch=8"
    plan, first, second = (str(tmp_path / n) for n in ("plan.json", "a.html", "b.html"))
    arguments = ["plan", model, "--cluster", "nvlink-a100-8", "--budget", "0", "--html", first]
    assert run([*arguments, "-o", plan]) == 0
    assert run(["report", plan, "-o", second]) == 0
    assert "Timeline" in (tmp_path / "a.html").read_text()
    assert "Timeline" in (tmp_path / "b.html").read_text()
