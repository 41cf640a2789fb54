"""A real browser opens the page, searches, points, clicks, types, zooms and prints."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest

from gnnplace.report.placements import write_placements
from gnnplace.report.timeline import from_simulation
from gnnplace.simulation import Simulator
from tests.report.browser import Browser, find_browser
from tests.report.synthetic import layered

BROWSER = find_browser()
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(
        BROWSER is None, reason="no Chromium is installed (apt install chromium)"
    ),
]
# Milliseconds that the script takes to draw, and that pass between frames, medians.
FRAMES = """
(async act => {
  const next = () => new Promise(done => requestAnimationFrame(done)), costs = [], frames = [];
  const step = Math.max(...viewer.view.steps.map(one => one.step_time));
  let last = await next();
  for (let k = 0; k < 60; k++) {
    act(k, step);
    const begin = performance.now();
    viewer.drawFrame();
    costs.push(performance.now() - begin);
    const now = await next();
    frames.push(now - last);
    last = now;
  }
  return [costs, frames].map(list => list.sort((a, b) => a - b)[30]);
})
"""
ACTS = {
    "pan": "(k, step) => viewer.show(step * 0.004 * k, step * (0.4 + 0.004 * k))",
    "zoom": "(k, step) => viewer.show(step * 0.5 * (1 - 0.9 ** k), step * (0.5 + 0.5 * 0.9 ** k))",
    "search": "k => viewer.search(['encoder.layer.3', '*.mlp.up', ''][k % 3])",
}


def page(folder: Path, num_ops: int) -> Path:
    """A page with two steps of a made-up model."""
    problem = layered(num_ops)
    simulator, order = Simulator(problem), problem.graph.topological_order
    steps = []
    for name, length in (("long blocks", num_ops // 16), ("short blocks", 50)):
        device = (np.arange(problem.num_ops) // length % problem.num_devices).astype(
            np.int32
        )
        steps.append(from_simulation(problem, simulator.run(device, order), name))
    write_placements(folder / "page.html", problem, steps, beside=True)
    return folder / "page.html"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return page(tmp_path_factory.mktemp("page"), 800)


@pytest.fixture
def browser():
    assert BROWSER is not None
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        Browser(BROWSER, Path(profile)) as found,
    ):
        yield found
        assert not found.faults()
        assert not found.fetched()


def settled(browser: Browser) -> None:
    """Waits until what was asked for is drawn."""
    browser.run(
        "new Promise(done => setTimeout(() => requestAnimationFrame(done), 120))"
    )


def middle_of(browser: Browser, op: str) -> tuple[float, float]:
    """Where an op of the first step is on the screen."""
    return tuple(
        browser.run(
            f"""(() => {{
  const step = viewer.view.steps[0], op = step.graph.names.indexOf("{op}"), span = step.spanOf[op];
  const lane = lanes.find(one => one.step === step && one.device === step.device[span]);
  const box = byId("timeline").getBoundingClientRect();
  const at = (step.start[span] + step.finish[span]) / 2;
  const x = box.left + LEFT + (at - view.start) * scaleOf(box.width);
  return [x, box.top + lane.y + lane.height / 2];
}})()"""
        )
    )


def test_search_hover_click_and_keys(browser: Browser, small: Path) -> None:
    """What is asked for is told: by path and not by letters, with times, causes and modules."""
    browser.open(small)
    settled(browser)
    browser.run("byId('search').focus()")
    browser.call("Input.insertText", text="encoder.layer.2")
    settled(browser)
    assert "32 ops of 800 match" in browser.run("byId('count').textContent")
    listed = browser.run("byId('found').textContent")
    assert "encoder.layer.2.mlp.up" in listed
    assert "encoder.layer.20" not in listed
    assert "forward_40" in listed
    browser.run(
        "choose(view.steps[0], view.steps[0].graph.names.indexOf('forward_33'), true)"
    )
    settled(browser)
    x, y = middle_of(browser, "forward_33")
    browser.mouse("mouseMoved", x, y)
    assert "forward_33\nencoder.layer.2.attention.self, forward" in browser.run(
        "byId('tip').textContent"
    )
    browser.click(x, y)
    settled(browser)
    told = browser.run("byId('details').textContent")
    for part in (
        "forward_33",
        "short blocks: device",
        "why then",
        "why there",
        "It starts when",
    ):
        assert part in told
    browser.run("byId('timeline').focus()")
    browser.key("n")
    settled(browser)
    assert (
        browser.run("byId('details').querySelector('h3').textContent") == "forward_34"
    )
    browser.key("w")
    settled(browser)
    assert (
        browser.run("byId('details').querySelector('h3').textContent") == "forward_33"
    )
    browser.key("0")
    settled(browser)
    assert browser.run("view.start") == 0


def test_wheel_and_drag(browser: Browser, small: Path) -> None:
    """The wheel zooms about the pointer with Ctrl; dragging moves."""
    browser.open(small)
    settled(browser)
    box = browser.run(
        "(b => [b.left, b.top, b.width])(byId('timeline').getBoundingClientRect())"
    )
    x, y = box[0] + box[2] / 2, box[1] + 60
    size = browser.run("view.end - view.start")
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-50, modifiers=2)
    settled(browser)
    near = browser.run("view.end - view.start")
    assert near < size
    start = browser.run("view.start")
    browser.mouse("mousePressed", x, y, button="left", clickCount=1)
    browser.mouse("mouseMoved", x - 80, y, button="left")
    browser.mouse("mouseReleased", x - 80, y, button="left", clickCount=1)
    settled(browser)
    assert browser.run("view.start") > start
    assert browser.run("view.end - view.start") == pytest.approx(near)


def test_dark_light_and_paper(browser: Browser, small: Path, tmp_path: Path) -> None:
    """The page is as the system is; its switch turns it; paper is light; pixels follow."""
    place = "getImageData(LEFT + 2, lanes[2].y + 2, 1, 1)"
    pixel = f"Array.from(byId('timeline').getContext('2d').{place}.data)"
    browser.open(small, dark=True)
    settled(browser)
    assert browser.run("document.documentElement.dataset.theme") == "dark"
    before = browser.run(pixel)
    browser.run("byId('theme').click()")
    settled(browser)
    assert browser.run("document.documentElement.dataset.theme") == "light"
    assert browser.run(pixel) != before
    browser.run("byId('theme').click()")
    browser.printed(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").stat().st_size > 20_000
    assert browser.run("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("num_ops", [10_000, 50_000])
def test_large_steps_do_not_stutter(
    browser: Browser, num_ops: int, tmp_path: Path
) -> None:
    """The script draws two steps in less than three frames of 60 Hz, also on a busy machine."""
    browser.open(page(tmp_path, num_ops))
    settled(browser)
    [timing] = browser.run(
        "performance.getEntriesByType('navigation').map(one => one.toJSON())"
    )
    print(f"{num_ops} ops twice: loaded after {timing['loadEventEnd']:.0f} ms")
    for name, act in ACTS.items():
        cost, frame = browser.run(f"{FRAMES}({act})")
        print(
            f"{num_ops} ops twice, {name}: {cost:.1f} ms to draw, {frame:.1f} ms a frame, medians"
        )
        assert cost < 50.0, name
