from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.simulation.bounds.paths import path_through
from gnnplace.simulation.bounds.relaxation import Relaxation
from gnnplace.simulation.bounds.runs import critical
from tests.random_problems import seeds
from tests.simulation.bounds.test_serial import woven


@settings(max_examples=40, deadline=None)
@given(seed=seeds, microbatches=st.integers(1, 4))
def test_it_goes_along_edges_that_are_allowed_as_far_as_they_lead(seed, microbatches):
    rng = np.random.default_rng(seed)
    here = Relaxation.of(woven(rng, 9, 2, microbatches))
    copies = here.copies
    allowed = copies.full & (rng.random(len(copies.full)) < 0.8)
    source, target = copies.source[allowed].tolist(), copies.target[allowed].tolist()
    middle = int(rng.integers(len(copies.first)))
    path = path_through(here, middle, allowed).tolist()
    assert middle in path
    assert set(pairwise(path)) <= set(zip(source, target, strict=True))
    assert path[0] not in target
    assert path[-1] not in source


@settings(max_examples=40, deadline=None)
@given(seed=seeds, microbatches=st.integers(2, 4))
def test_the_path_of_runs_has_groups_with_all_copies(seed, microbatches):
    here = Relaxation.of(woven(np.random.default_rng(seed), 9, 2, microbatches))
    assert (here.copies.count[critical(here, microbatches)] == microbatches).all()


def test_without_ties_it_is_as_long_as_any_path():
    here = Relaxation.of(woven(np.random.default_rng(5), 12, 2, 1))
    length = here.head + here.work + here.tail
    path = path_through(here, int(length.argmax()), here.copies.full)
    assert here.work[path].sum() <= length.max() + 1e-9
