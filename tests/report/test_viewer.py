"""What stands in a page is what was simulated, in few bytes, and cannot be taken for markup.

A drawn graph goes from left to right, inside its frame, each op at a place of its own.

Why ops are where they are and what they wait for, as explanations have it.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from importlib.resources import files

import numpy as np
import pytest

from gnnplace.explaining.placements.causes import Causes
from gnnplace.explaining.placements.critical_path import COMPUTING, find_critical_path
from gnnplace.placers import contract
from gnnplace.placing.roster import make_placer as placer
from gnnplace.report.timeline import from_simulation
from gnnplace.report.viewer import (
    ARRIVAL,
    DEVICE,
    MOST_NODES,
    NO_MODULE,
    NOTHING,
    SCRIPTS,
    UNKNOWN,
    layout,
    place_reasons,
    viewer,
    viewer_data,
    waits,
)
from gnnplace.simulation import Simulator
from tests.report.embedded import held, instants, scripts, unpacked
from tests.report.synthetic import layered

WILD = ["</script>", "<!--<script>", "</SCRIPT >", "]]>", "a\u2028b", '"\\', "ünï.✓"]


@pytest.fixture(scope="module")
def step():
    problem = contract.training_chain()
    return from_simulation(problem, placer("heft").place(problem).simulation, "heft")


def test_the_page_holds_the_step(step):
    """Times to a tick, devices, transfers, memory, and names once for all steps."""
    data = viewer_data([step, step], beside=True)
    [graph], (first, second) = data["graphs"], data["steps"]
    assert first == second
    assert data["beside"]
    assert graph["names"] == list(step.problem.graph.names)
    assert np.array_equal(unpacked(first["op"], "i4"), step.op)
    assert np.array_equal(unpacked(first["device"], "u2"), step.device)
    tick = first["tick"]
    assert tick <= 1e-9 * step.step_time
    for name in ("start", "finish"):
        assert instants(first, first[name]) == pytest.approx(
            getattr(step, name), abs=tick
        )
        moved = instants(first, first["transfers"][name])
        assert moved == pytest.approx(getattr(step.moves, name), abs=tick)
    for (times, sizes), (at, total) in zip(first["memory"], step.memory, strict=True):
        assert instants(first, times) == pytest.approx(at, abs=tick)
        assert unpacked(sizes, "f4") == pytest.approx(total, rel=1e-6)
    modules = [graph["modules"][k] for k in unpacked(graph["module"], "i4")]
    assert modules == [name or NO_MODULE for name in step.problem.module]


def test_equal_instants_stay_equal(step):
    """What begins when another op ends does so on the page, whatever is rounded."""
    [shown] = viewer_data([step])["steps"]
    start, finish = (instants(shown, shown[name]) for name in ("start", "finish"))
    same = step.start[:, None] == step.finish
    assert same.any()
    assert np.array_equal((start[:, None] == finish)[same], same[same])


def test_names_cannot_be_taken_for_markup():
    """Names of modules, ops, devices and steps come back as they were."""
    problem = contract.training_chain()
    names = tuple(f"{WILD[i % len(WILD)]} {i}" for i in range(problem.num_ops))
    wild = replace(problem, module=names, graph=replace(problem.graph, names=names))
    text = viewer(
        [from_simulation(wild, placer("heft").place(wild).simulation, WILD[0])]
    )
    assert [name for name, _ in scripts(text)] == ["data", None]
    data = held(text)
    assert data["graphs"][0]["names"] == list(names)
    assert data["graphs"][0]["modules"] == list(names)
    assert data["steps"][0]["name"] == WILD[0]


def test_a_step_that_cannot_run_says_why():
    """No ops, no time, and the fault."""
    problem = contract.training_chain()
    nowhere = replace(problem, time={"fast": np.full(problem.num_ops, np.inf)})
    first = np.zeros(problem.num_ops, dtype=np.int32)
    found = Simulator(nowhere).run(first, problem.graph.topological_order)
    [shown] = viewer_data([from_simulation(nowhere, found, "x")])["steps"]
    assert shown["step_time"] is None
    assert len(found.faults) == problem.num_ops
    assert shown["fault"].endswith(f"; and {problem.num_ops - 4} more")
    assert shown["op"] == ""


def test_ten_thousand_ops_are_a_small_file():
    """Less than 200 bytes an op, and no drawing of a graph that nobody could read."""
    problem = layered(10_000)
    order = problem.graph.topological_order
    device = (np.arange(problem.num_ops) // 200 % problem.num_devices).astype(np.int32)
    found = from_simulation(problem, Simulator(problem).run(device, order), "blocks")
    text = viewer([found])
    assert len(found.moves.op) > 1000
    assert len(text) < 200 * problem.num_ops
    assert "layout" not in held(text)["graphs"][0]


@pytest.mark.parametrize("name", [*SCRIPTS, "theme"])
def test_scripts_are_small_and_fetch_nothing(name):
    """No file is long, none asks the network, and node can read it where there is node."""
    path = files("gnnplace.report") / "assets" / f"{name}.js"
    text = path.read_text()
    assert text.startswith("//")
    assert len(text.splitlines()) < 400
    for word in (
        "fetch(",
        "XMLHttpRequest",
        "import(",
        "http",
        "innerHTML",
        "eval(",
        "</",
    ):
        assert word not in text
    node = shutil.which("node")
    assert node is None or subprocess.run([node, "--check", str(path)]).returncode == 0


def test_every_script_is_used():
    """There is no file beside those that the page has."""
    there = {path.name for path in (files("gnnplace.report") / "assets").iterdir()}
    used = {f"{name}.js" for name in (*SCRIPTS, "theme")}
    assert there == used | {"page.css", "viewer.html"}


def test_all_is_inside_and_levels_go_right():
    problem = contract.branches()
    drawn = layout(problem)
    assert min(drawn.x.min(), drawn.y.min()) >= 0
    assert max(drawn.x.max(), drawn.y.max()) <= 1
    assert (drawn.x[drawn.edges[:, 0]] < drawn.x[drawn.edges[:, 1]]).all()
    assert (
        len(set(zip(drawn.x.tolist(), drawn.y.tolist(), strict=True)))
        == problem.num_ops
    )


def test_what_nobody_could_read_is_not_drawn():
    assert layout(layered(MOST_NODES + 2)) is None


def test_waits_are_the_causes():
    """Every op's, with the critical path; unknown where nothing was simulated."""
    problem = contract.branches()
    step = from_simulation(problem, placer("heft").place(problem).simulation, "heft")
    found, causes = waits(step), Causes(problem, step.simulation)
    assert {NOTHING, DEVICE, ARRIVAL} == set(found.kind.tolist())
    for op in range(problem.num_ops):
        cause = causes.of(op)
        assert (found.kind[op] == NOTHING) == (cause is None)
        if cause is not None:
            assert (found.op[op], found.transfer[op]) == (cause.op, cause.transfer)
    path = {piece.op for piece in find_critical_path(causes) if piece.kind == COMPUTING}
    assert set(np.flatnonzero(found.critical)) == path
    unknown = waits(replace(step, simulation=None))
    assert (unknown.kind == UNKNOWN).all()


def test_reasons_name_pins_kinds_forbids_and_classes():
    """Each op has a sentence; sentences are there once."""
    problem = contract.build_barred_chain()
    texts, index = place_reasons(problem, "free")
    assert len(set(texts)) == len(texts)
    told = [texts[k] for k in index]
    for op, text in enumerate(told):
        assert ("It may be on" in text) == (not problem.allowed[op].all())
        shared = (
            problem.colocate[op] is not None
            and problem.colocate.count(problem.colocate[op]) > 1
        )
        assert ("It shares a device with" in text) == shared
    pin = np.where(np.arange(problem.num_ops) == 0, 1, -1).astype(np.int32)
    plain = replace(
        contract.training_chain(),
        pin=pin,
        forbid=None,
        colocate=(None,) * problem.num_ops,
    )
    texts, index = place_reasons(plain, "free")
    assert texts[index[0]] == f"It is pinned to {problem.cluster.devices[1].name}."
    assert texts[index[1]] == "free"
