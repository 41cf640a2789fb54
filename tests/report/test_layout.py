"""A drawn graph goes from left to right, inside its frame, each op at a place of its own."""

from __future__ import annotations

from gnnplace.placers import contract
from gnnplace.report.layout import MOST_NODES, layout
from tests.report.synthetic import layered


def test_all_is_inside_and_levels_go_right():
    problem = contract.branches()
    drawn = layout(problem)
    assert min(drawn.x.min(), drawn.y.min()) >= 0
    assert max(drawn.x.max(), drawn.y.max()) <= 1
    assert (drawn.x[drawn.edges[:, 0]] < drawn.x[drawn.edges[:, 1]]).all()
    assert len(set(zip(drawn.x.tolist(), drawn.y.tolist(), strict=True))) == problem.num_ops


def test_what_nobody_could_read_is_not_drawn():
    assert layout(layered(MOST_NODES + 2)) is None
