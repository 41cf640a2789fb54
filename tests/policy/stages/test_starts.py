from __future__ import annotations

import numpy as np

from gnnplace.placers.narrow import ranked_starts
from gnnplace.policy.stages.proposer import load_proposer
from gnnplace.policy.stages.starts import styles_of, with_proposals, woven
from gnnplace.search.chunk_search import Start
from tests.policy.stages.problems import chain, grouped


def start(score: float) -> Start:
    return Start(score, np.zeros(1, np.int32), np.zeros(1), np.zeros(1, np.int32))


def test_lists_are_woven_from_the_best():
    made, constructed = [start(2.0), start(3.0), start(9.0)], [start(1.0), start(5.0)]
    assert [one.score for one in woven(made, constructed)] == [1.0, 2.0, 5.0, 3.0, 9.0]
    assert [one.score for one in woven([], constructed)] == [1.0, 5.0]


def test_proposals_are_placements_with_their_seconds_and_none_is_lost():
    space, narrow = grouped(chain())
    starts = ranked_starts(space, narrow, ())
    found = with_proposals(load_proposer(), space, narrow, starts, seed=0)
    assert len(found) > len(starts)
    assert {id(one) for one in starts} <= {id(one) for one in found}
    assert found[0].score == min(one.score for one in found)
    for one in found[:6]:
        device = space.spread(one.unit_device)
        assert np.isclose(space.score(device, one.order), one.score)
    assert 1 <= len(styles_of(narrow, starts)) <= 6


def test_a_short_line_is_left_alone():
    space, narrow = grouped(chain(num_layers=4), 4)
    starts = ranked_starts(space, narrow, ())
    assert with_proposals(load_proposer(), space, narrow, starts, seed=0) == starts
