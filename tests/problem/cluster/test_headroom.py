"""Headroom: shares and bytes, what is left, and what cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from gnnplace.errors import InputError
from gnnplace.problem.cluster import Cluster, Device
from gnnplace.problem.cluster.headroom import read_headroom, with_headroom


def pair(**about: float) -> Cluster:
    return Cluster(
        (
            Device(name="a", kind="x", memory=100.0, **about),
            Device(name="b", kind="x", memory=50.0),
        )
    )


@pytest.mark.parametrize(
    ("given", "share", "size"),
    [
        ("10%", 0.1, 0.0),
        ("0%", 0.0, 0.0),
        (" 2.5 % ", 0.025, 0.0),
        ("2GB", 0.0, 2e9),
        ("2gb", 0.0, 2e9),
        ("512MiB", 0.0, 2.0**29),
        ("1.5e3", 0.0, 1500.0),
        ("7", 0.0, 7.0),
        (2e9, 0.0, 2e9),
    ],
)
def test_shares_and_bytes_are_read(given, share, size):
    if share is None:
        with pytest.raises(InputError, match="give a share below 100%"):
            read_headroom(given)
    else:
        assert read_headroom(given) == (pytest.approx(share), size)


@pytest.mark.parametrize("given", ["", "a lot", "100%", "-5%", "-1", "5 XB", "10%%"])
def test_what_is_neither_is_refused(given):
    with pytest.raises(InputError, match="give a share below 100%, as '10%', or bytes"):
        read_headroom(given)


def test_what_is_left_is_what_placers_may_use():
    assert with_headroom(pair(), "10%").memory.tolist() == [90.0, 45.0]
    assert with_headroom(pair(), 20).memory.tolist() == [80.0, 30.0]
    assert pair(reserve=30.0).memory.tolist() == [70.0, 50.0]
    np.testing.assert_array_equal(
        with_headroom(pair(reserve=30.0), "0%").memory, [100.0, 50.0]
    )


def test_more_than_a_device_has_is_refused():
    with pytest.raises(InputError, match="device 'b' has 50 bytes"):
        with_headroom(pair(), 60)
