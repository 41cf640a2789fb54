"""The headline kind: placements, recipes and plans of one step, in one table."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnnplace.bench.headline import headline_grids, headline_plot, list_machines
from gnnplace.bench.joint import Joint, time_hidden_by_backward
from gnnplace.bench.rows import STEPS
from gnnplace.bench.suite import Cell, read_suite
from gnnplace.cli.main import run
from gnnplace.errors import InfeasibleError, UnsupportedError
from gnnplace.plans.segments.chain import FASTEST
from gnnplace.problem.cluster.presets import make_preset
from gnnplace.report.pictures import svg
from tests.plans.toys import Given, chain, cluster

ONCE = (
    "single",
    "one-device",
    "ddp",
    "zero-0",
    "zero-3",
    "chain",
    "plan",
    "min-cut",
    "heft",
)
SUITE = """
name: tiny
kind: joint
problems:
  - {model: "mlp?batch=4096&width=512&depth=2", cluster: pcie-a100-2, microbatches: 2}
constructions: [single, one-device, ddp, zero-0, zero-3, chain, plan, min-cut, heft]
placers: [learned]
seeds: [0, 1]
budgets: [0.1]
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Rows of one model on two devices; capturing it three times takes two seconds."""
    folder = tmp_path_factory.mktemp("joint")
    (folder / "suite.yaml").write_text(SUITE)
    assert run(["bench", str(folder / "suite.yaml"), "-o", str(folder / "r")]) == 0
    lines = (folder / "r" / "tiny.jsonl").read_text().splitlines()
    return {(row["placer"], row["seed"]): row for row in map(json.loads, lines)}


def test_every_method_has_a_row_of_the_same_problem(rows):
    """Constructions and plans once, what is drawn for each seed, each with its own budget."""
    assert sorted(name for name, _ in rows) == sorted([*ONCE, "learned", "learned"])
    budgets = {(name, row["budget"]) for (name, _), row in rows.items()}
    assert budgets == {*((name, 0.0) for name in ONCE), ("learned", 0.1)}
    assert {row["error"] for row in rows.values()} == {""}
    assert len({row["digest"] for row in rows.values()}) == 1
    assert all(len(row["peak_memory"]) == 2 for row in rows.values())
    assert all(row["processor_seconds"] < 60 for row in rows.values())


def test_one_device_takes_as_long_by_both_clocks(rows):
    alone, single = (rows[name, 0]["step_time"] for name in ("one-device", "single"))
    assert alone == pytest.approx(single, rel=0.02)


@pytest.mark.parametrize(("power", "size"), [(1.0, 8), (3.0, 2)])
def test_one_device_takes_micro_batches_where_they_are_faster(power, size):
    """As placements do: kernels that grow with the cube of the examples are faster in shares."""

    class Grown(Given):
        def costs(self, kind, shards, examples, choice=FASTEST):
            made = super().costs(kind, shards, examples, choice)
            grown = {
                k: getattr(made, k) * examples ** (power - 1)
                for k in ("forward", "backward")
            }
            return replace(made, **grown)

    rng = np.random.default_rng(0)
    entry: Any = SimpleNamespace(microbatches=4)
    joint = Joint(entry)
    joint.__dict__ |= {"chain": replace(chain(rng, batch=8), source=Grown(rng, 5))}
    joint.__dict__ |= {"cluster": cluster(2)}
    assert joint._plan_one_device().file.microbatch_size == size


def test_searches_are_no_worse_than_what_they_search_among(rows):
    for name in ("one-device", "zero-0", "zero-3", "chain"):
        assert rows["plan", 0]["step_time"] <= rows[name, 0]["step_time"] * (1 + 1e-9)


def test_data_parallelism_sums_gradients(rows):
    """By hand: half the compute at least, and never below it; hiding them never costs here."""
    bare, hidden = (rows[name, 0]["step_time"] for name in ("zero-0", "ddp"))
    assert rows["one-device", 0]["step_time"] / 2 < hidden <= bare


def test_what_the_backward_pass_hides_of_an_all_reduce_by_hand():
    """Three layers, the last first: the two last fill a bucket; one device has nothing to hide."""
    mib = 2**20
    elements = np.array([10.0, 30.0, 5.0]) * mib / 4
    backward = np.array([3e-3, 2e-3, 1e-3])
    costs = SimpleNamespace(
        forward=np.ones(3), backward=backward, weights=np.zeros(3), parameters=elements
    )
    layers: Any = SimpleNamespace(
        costs=lambda kinds, shards, examples: costs,
        precision="32-true",
        tied=(),
        segments=[SimpleNamespace(name=str(k)) for k in range(3)],
    )
    stage = SimpleNamespace(
        rows=[["gpu:0"], ["gpu:1"]], recompute=SimpleNamespace(modules=[])
    )
    plan: Any = SimpleNamespace(file=SimpleNamespace(stages=[stage], microbatch_size=1))
    machine = make_preset("nvlink-a100-2")
    link = machine.links[0]

    def reduce(
        size: float,
    ) -> float:  # two devices: each sends half there and half back
        return size / link.bandwidth + 2 * link.latency

    first = 3e-3 + reduce(
        35 * mib
    )  # the last two layers are there after three milliseconds
    end = max(first, 6e-3) + reduce(10 * mib)
    expected = 6e-3 + reduce(45 * mib) - end
    assert time_hidden_by_backward(layers, machine, plan) == pytest.approx(expected)
    stage.rows = [["gpu:0"]]
    assert time_hidden_by_backward(layers, machine, plan) == 0.0


def test_the_table_has_a_line_a_method_and_a_ratio_over_data_parallelism(rows):
    short, grid = headline_grids(list(rows.values()))
    assert short.shown().headings[:3] == ["method", "pcie-a100-2", "all"]
    assert {line[0]: line[-1] for line in short.rows}["learned"] == "0 of 2"
    assert grid.title == "Step times on pcie-a100-2, ms, predicted"
    told = {line[0]: line for line in grid.rows}
    assert told["ddp"][-1] == "1.000"
    ratio = rows["single", 0]["step_time"] / rows["ddp", 0]["step_time"]
    assert told["single"][-1] == f"{ratio:.3f}"
    assert told["single"][1] == f"{1e3 * rows['single', 0]['step_time']:.4g}"


def test_a_picture_has_a_dot_for_every_method_that_is_drawn(rows):
    machines = list_machines(list(rows.values()))
    picture = svg(headline_plot(machines["pcie-a100-2"], "pcie-a100-2"))
    ratio = rows["plan", 0]["step_time"] / rows["ddp", 0]["step_time"]
    assert f"plan, mlp: {ratio:.3f} of data parallelism" in picture
    assert "min-cut, mlp" in picture
    assert "chain, mlp" not in picture


def test_every_method_of_the_headline_ends_with_a_row(tmp_path: Path) -> None:
    """The committed suite's methods on one small model; all search, ten seconds of a processor."""
    suite = read_suite("benchmarks/suites/headline.yaml")
    small = {
        "name": "headline-smoke",
        "kind": suite.kind,
        "problems": [
            {
                "model": "small_resnet?batch=8",
                "cluster": "pcie-a100-2",
                "microbatches": 2,
            }
        ],
        "constructions": suite.constructions,
        "placers": suite.placers,
        "budgets": [],
        "steps": [200],
    }
    (tmp_path / "suite.yaml").write_text(json.dumps(small))
    assert run(["bench", str(tmp_path / "suite.yaml"), "-o", str(tmp_path / "r")]) == 0
    lines = (tmp_path / "r" / "headline-smoke.jsonl").read_text().splitlines()
    found = {row["placer"]: row for row in map(json.loads, lines)}
    assert set(found) == {*suite.constructions, *suite.placers}
    assert {row["error"] for row in found.values()} == {""}
    assert all(row["step_time"] > 0 for row in found.values())


def test_the_planner_searches_to_its_end_and_counts_no_steps() -> None:
    entry = read_suite("benchmarks/suites/smoke.yaml").problems[0]
    joint = Joint(entry)
    plans: Any = {"plan": SimpleNamespace(feasible=False, reason="too large")}
    joint.plans[math.inf] = plans, {}
    with pytest.raises(InfeasibleError, match="too large"):
        joint.outcome(Cell(entry, "plan", 0, 0.0), "")
    with pytest.raises(UnsupportedError, match="by seconds, not by steps"):
        joint.outcome(Cell(entry, "plan", 0, 1000.0, STEPS), "")


def test_a_method_without_an_answer_is_a_row(tmp_path: Path) -> None:
    text = SUITE.replace("mlp?batch=4096&width=512&depth=2", "nothing:here").replace(
        "zero-3, ", ""
    )
    (tmp_path / "suite.yaml").write_text(text)
    assert run(["bench", str(tmp_path / "suite.yaml"), "-o", str(tmp_path / "r")]) == 0
    rows = map(json.loads, (tmp_path / "r" / "tiny.jsonl").read_text().splitlines())
    assert all("cannot import 'nothing'" in row["error"] for row in rows)
