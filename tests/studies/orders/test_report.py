from __future__ import annotations

import numpy as np
import pytest

from benchmarks.studies.orders.report import count_parts, picture, report
from gnnplace.errors import InputError
from gnnplace.report.pictures import svg
from tests.report.drawn import texts, tooltips

ORDERS = ("topological", "upward-rank", "random", "learned")


def rows_of(part="seen", seeds=(0, 1, 2), count=40, orders=ORDERS, budget=5):
    """Topological is 10 % better on f, upward rank on g; random is always best, untrained."""
    rng = np.random.default_rng(0)
    families = ["f"] * count + ["g"] * count
    problems = [
        {
            "name": str(i),
            "family": family,
            "cluster": "own",
            "auto": 0.5,
            "features": {
                "x": float(family == "g") + 0.1 * rng.random(),
                "microbatches": 1.0,
            },
        }
        for i, family in enumerate(families)
    ]
    base = {"upward-rank": (1.1, 1.0), "topological": (1.0, 1.1), "random": (1.2, 1.2)}
    rows = [
        {"problem": part, "placer": "", "seed": 0, "budget": 0, "problems": problems}
    ]
    for order in orders:
        for seed in (-1, *seeds):
            means = np.repeat(base.get(order, (1.3, 1.3)), count)
            times = means * rng.lognormal(0.0, 0.01, 2 * count)
            if order == "random" and seed == -1:
                times = times / 2
            cell = {"problem": part, "placer": order, "seed": seed}
            cell["budget"] = 0 if seed == -1 else budget
            rows.append(
                {**cell, "one": times.tolist(), "best_size": (0.9 * times).tolist()}
            )
    return rows


def test_tables_say_which_order_is_best_where():
    parts = count_parts(rows_of(), 5)
    text = report(parts)
    assert "| f | 40 | topological | 100% |" in text
    assert "| g | 40 | upward-rank | 100% |" in text
    assert "package's weights: 0.5" in text
    [worth] = [
        line
        for line in text.splitlines()
        if line.startswith("| seen |") and "%" in line
    ]
    gain = float(worth.split("|")[6].split("[")[0])
    assert gain == pytest.approx(-4.77, abs=0.5)  # log 1.1 on every other problem


def test_only_complete_seeds_count():
    rows = rows_of()
    short = [r for r in rows if (r["placer"], r["seed"]) != ("random", 2)]
    [part] = count_parts(short, 5)
    assert part.seeds == (0, 1)
    assert part.trained["one"].shape == (4, 2, 80)
    with pytest.raises(InputError, match="nothing to report"):
        count_parts(rows, 6)
    with pytest.raises(InputError, match="nothing to report"):
        count_parts([], 5)


def test_the_picture_has_a_square_for_every_family_and_order():
    figure = picture(count_parts(rows_of(), 5))
    [plot] = figure.axes
    shown = plot.collections[0].get_array()
    assert shown.shape == (2, len(ORDERS))
    # Topological is best on f, upward rank on g.
    assert shown[0, 0] == shown[1, 1] == 0.0
    assert shown[0, 1] == pytest.approx(10.0, abs=0.5)
    text = svg(figure)
    assert len(tooltips(text)) == 2 * len(ORDERS)
    assert "f, topological: 0.0 %" in tooltips(text)
    assert {"seen", "f", "g", *ORDERS} <= set(texts(text))


def test_a_part_may_have_fewer_orders():
    rows = [*rows_of(), *rows_of("own", orders=ORDERS[:2], budget=2)]
    parts = count_parts(rows, 5)
    assert [part.orders for part in parts] == [ORDERS, ORDERS[:2]]
    text = report(parts)
    assert "## Families: own" in text
    assert len(tooltips(svg(picture(parts)))) == 2 * len(ORDERS) + 2 * 2
