"""The study of slow runs: its threads are whole, and causes are counted."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.studies.published.weak_scaling import TABLE, outcome
from benchmarks.studies.slow.study import (
    THREADS,
    NamedCause,
    SlowStudy,
    find_run_sizes,
    headline,
    name_situation,
    name_thread,
    read_threads,
)
from gnnplace.errors import FormatError
from gnnplace.explaining.causes import KINDS


def test_every_thread_has_a_cause_and_its_proof():
    rows = read_threads(THREADS)
    assert len(rows) >= 5
    assert {row["cause"] for row in rows} <= {kind.name for kind in KINDS}
    assert all(float(row["times"]) > 0 for row in rows)


def test_a_thread_without_a_cause_is_one_line(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("thread,cause,confirmed_by,times\na/b#1,,nobody,2\n")
    with pytest.raises(
        FormatError, match="a/b#1: must have a step, a cause and its proof"
    ):
        read_threads(path)


def test_sizes_are_those_of_the_words():
    sizes = find_run_sizes("layers=2 hidden=64 heads=4 kv_heads=2 feed_forward=128 length=32 "
                     "vocabulary=100 tied=1 experts=8/2/32")  # fmt: skip
    assert (sizes.layers, sizes.tied, sizes.gated) == (2, True, True)
    assert sizes.experts is not None
    assert (sizes.experts.count, sizes.experts.active) == (8, 2)


def test_no_infiniband_is_named_first():
    named = name_thread(read_threads(THREADS)[0])
    assert named.is_first
    assert named.place == 1
    assert "sockets instead of InfiniBand" in named.causes[0].text


def test_a_made_situation_is_slower_by_the_part():
    named = name_situation(outcome(TABLE[0]), "clock", 1.5, np.random.default_rng(0))
    assert 1.2 < named.slowdown < 1.6
    assert named.place is not None


def test_headlines_count_what_is_named_first():
    entry = NamedCause("a run", "clock", (), 1.0)
    lines = headline(SlowStudy(threads=(entry,), situations=()))
    assert lines[0] == "public threads: 0 of 1 causes are named first"
    assert "place none; first: nothing" in lines[1]
