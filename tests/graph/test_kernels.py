from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnplace.graph.kernels import grouped


@settings(max_examples=50, deadline=None)
@given(key=st.lists(st.integers(0, 9), max_size=60))
def test_entries_are_grouped_as_they_are_listed(key):
    array = np.array(key, np.int32)
    offset, entry = grouped(array, 11)
    assert entry.tolist() == np.argsort(array, kind="stable").tolist()
    assert np.diff(offset).tolist() == np.bincount(array, minlength=11).tolist()
