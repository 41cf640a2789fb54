from __future__ import annotations

import csv
from pathlib import Path

TRAINERS = Path(__file__).parents[2] / "trainers"


def test_the_shipped_policy_came_from_a_validation_that_fell():
    with open(TRAINERS / "default.log.csv", newline="") as file:
        ratios = [float(row["val/ratio"]) for row in csv.DictReader(file)]
    assert len(ratios) > 5
    untrained, best = ratios[0], min(ratios)
    assert best < untrained - 0.005
    assert sorted(ratios)[len(ratios) // 2] < untrained
