"""Starts of the search on narrow groups that a network proposes, beside constructed ones.

The styles of the best constructions are walked in by turns, every walk is list-scheduled and
justified as a construction is, and both are woven: the best of all first, then the best of the
others, by turns. So a search whose members begin at the first few has both among them, and a
network that has nothing to say costs its time alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnnplace.placers.narrow import best_first
from gnnplace.policy.stages.line import line_of
from gnnplace.policy.stages.proposer import Proposer
from gnnplace.policy.stages.walk import Style, style_of
from gnnplace.search.chunk_search import Start
from gnnplace.search.narrow_problem import NarrowProblem
from gnnplace.search.space import SearchSpace

WALKS = 48
STYLES = 6
LEAST_SEGMENTS = 8  # of a line that is worth walking


def with_proposals(
    proposer: Proposer,
    space: SearchSpace,
    narrow: NarrowProblem,
    starts: Sequence[Start],
    *,
    seed: int,
) -> list[Start]:
    """Starts with proposals among them; those given where the line is short.

    Args:
        proposer: the network.
        space: the coarse problem.
        narrow: the coarse problem.
        starts: constructions, the best first; at least one.
        seed: of what is drawn.
    """
    if len(narrow.line) < LEAST_SEGMENTS or space.problem.num_devices == 1:
        return list(starts)
    styles = styles_of(narrow, starts)
    wanted = [styles[k % len(styles)] for k in range(WALKS)]
    chosen = proposer.propose(line_of(space, narrow), wanted, np.random.default_rng(seed))
    devices = np.tile(starts[0].unit_device, (WALKS, 1))
    devices[:, narrow.line] = chosen
    made = best_first(space, map(space.allow, devices), starts[0].score)
    return woven(made, starts)


def styles_of(narrow: NarrowProblem, starts: Sequence[Start]) -> list[Style]:
    """The styles of the best constructions, each once."""
    found = dict.fromkeys(style_of(start.unit_device[narrow.line]) for start in starts)
    return list(found)[:STYLES]


def woven(one: Sequence[Start], other: Sequence[Start]) -> list[Start]:
    """Two lists of starts, each the best first, as one: by turns, from the list with the best."""
    lists = sorted((list(one), list(other)), key=lambda each: each[0].score if each else np.inf)
    result = []
    for k in range(max(map(len, lists))):
        result += [each[k] for each in lists if k < len(each)]
    return result
