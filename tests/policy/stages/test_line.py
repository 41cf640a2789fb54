from __future__ import annotations

import numpy as np
import pytest

from gnnplace.policy.stages.line import SEGMENT_FEATURES, WHOLE_FEATURES, line_of
from tests.policy.stages.problems import chain, grouped


def test_shares_and_crossings_are_those_of_the_problem():
    space, narrow = grouped(chain())
    line, problem = line_of(space, narrow), space.problem
    assert line.segments.shape == (len(narrow.line), SEGMENT_FEATURES)
    assert line.whole.shape == (WHOLE_FEATURES,)
    assert line.share.sum() == pytest.approx(1.0)
    assert line.work[:, 0] * space.mean_work.sum() / 3 == pytest.approx(
        space.work[narrow.line][:, 0], rel=1e-5
    )
    place = np.full(problem.num_units, -1)
    place[narrow.line] = np.arange(len(narrow.line))
    source, target, size = problem.graph.edges
    first = (problem.microbatch[source] == 0) & (problem.microbatch[target] == 0)
    a, b = place[problem.unit_of[source]], place[problem.unit_of[target]]
    even = space.mean_work.sum() / 3
    for border in range(1, len(narrow.line)):
        over = first & (np.minimum(a, b) < border) & (np.maximum(a, b) >= border)
        assert line.crossing[border] == pytest.approx(size[over].sum() * 4 / even, rel=1e-5)


def test_features_do_not_change_with_the_units_of_time():
    one, other = (line_of(*grouped(chain(scale=scale))) for scale in (1.0, 1000.0))
    assert one.segments == pytest.approx(other.segments, rel=1e-4, abs=1e-5)
    assert one.whole == pytest.approx(other.whole, rel=1e-4, abs=1e-5)
    assert one.traffic == pytest.approx(other.traffic, rel=1e-4, abs=1e-5)
