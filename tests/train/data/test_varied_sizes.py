from __future__ import annotations

import pytest

from gnnplace.train.data.varied_sizes import COUNTS, FAMILIES, varied_sizes
from gnnplace.zoo.registry import WORKLOADS


def test_every_family_has_sizes_and_a_model():
    assert COUNTS.keys() == FAMILIES.keys() <= WORKLOADS.keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_are_those_of_the_name(family):
    drawn = {varied_sizes(family, f"name {i}") for i in range(20)}
    assert varied_sizes(family, "name 3") in drawn
    assert len(drawn) > 4
    assert all(sizes.startswith("batch=") for sizes in drawn)
