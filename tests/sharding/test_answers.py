"""Constraints on splits: what they make of devices and memory, and what is refused."""

from __future__ import annotations

import pytest

from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.errors import InputError
from gnnplace.problem.constraints import Constraints, ConstraintWords
from gnnplace.sharding.answers import (
    SplitOptions,
    limit_split,
    shard_network,
    shard_tables,
)

SMALL = "mlp?depth=1&width=64&batch=8"


def test_devices_at_most():
    """The smaller of both numbers; the split is that on so many devices."""
    few = Constraints(max_devices=2)
    options, limit = limit_split(few)
    assert (options.devices, limit) == (2, None)
    assert limit_split(few, SplitOptions(devices=1))[0].devices == 1
    assert limit_split(few, SplitOptions(cluster="nvlink-a100-4"))[0].devices == 2
    asked = shard_network(shard_tables(SMALL, options))
    assert (
        asked.cost == shard_network(shard_tables(SMALL, SplitOptions(devices=2))).cost
    )


def test_headroom_is_taken_off_the_memory():
    """Of the limit, or of the cluster's smallest device."""
    assert limit_split({"headroom": "25%"}, memory_limit=4e9)[1] == 3e9
    assert limit_split({"headroom": "1GB"}, memory_limit=4e9)[1] == 3e9
    memory = resolve_cluster("nvlink-a100-4").memory.min()
    named = SplitOptions(cluster="nvlink-a100-4")
    assert limit_split({"headroom": "10%"}, named)[1] == pytest.approx(0.9 * memory)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            ConstraintWords(pin=["conv1=gpu:0"]).constraints(),
            "pin: a split layer is on all devices",
        ),
        (ConstraintWords(together=["a,b"]).constraints(), "together: "),
        (Constraints(headroom="10%"), "needs --memory-limit or --cluster"),
    ],
)
def test_what_says_nothing_about_splits_is_refused(asked, told):
    """One line that says which constraint and why."""
    with pytest.raises(InputError, match=told):
        limit_split(asked)
