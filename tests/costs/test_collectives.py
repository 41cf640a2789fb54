"""Collectives: answers where they were measured, order, formulas by hand, errors as stated."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from gnnplace.costs.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    COLLECTIVES,
    REDUCE_SCATTER,
    Group,
    _level,
    _ring,
    bus_bandwidth,
    collective_seconds,
    estimate_collective,
    make_group,
)
from gnnplace.costs.links import (
    ERRORS,
    FORMULA,
    MEASURED,
    NEIGHBOUR,
    LinkTable,
    SizeSeries,
    load_shipped_links,
    price_message,
)
from gnnplace.errors import InputError
from gnnplace.problem.cluster import Cluster, Device, Link, make_preset

SWITCHES = ("nvswitch-a100", "nvswitch-h100", "nvswitch-h200", "nvswitch-b200")
SIZES = np.unique(np.round(np.logspace(0, 11, 221)))


@pytest.mark.parametrize(
    ("fabric", "count", "gigabytes"),
    [("nvswitch-a100", 2, 193), ("nvswitch-a100", 4, 144), ("nvswitch-a100", 8, 127),
     ("nvswitch-h100", 2, 320), ("nvswitch-h100", 4, 233), ("nvswitch-h100", 8, 254),
     ("nvswitch-b200", 2, 534), ("nvswitch-b200", 4, 422), ("nvswitch-b200", 8, 402),
     ("pcie-rtx-pro-6000", 2, 39), ("pcie-rtx-pro-6000", 4, 18), ("pcie-rtx-pro-6000", 8, 14),
     ("pcie-l40s", 2, 20)],
)  # fmt: skip
def test_published_all_reduces(fabric, count, gigabytes):
    """512 MiB in half precision: algorithm bandwidths as NVIDIA's collector has them."""
    size = 512 * 2.0**20
    found = estimate_collective(ALL_REDUCE, size, Group(fabric, None, 1, count))
    assert found.provenance == MEASURED
    assert size / found.seconds / 1e9 == pytest.approx(gigabytes, rel=0.03)


def test_elements_are_not_bytes():
    """134,217,728 elements of two bytes took 1.09 ms on eight H100."""
    found = estimate_collective(
        ALL_REDUCE, 2 * 134_217_728, Group("nvswitch-h100", None, 1, 8)
    )
    assert found.seconds == pytest.approx(1.09e-3, rel=0.01)


def test_another_project_measured_the_same():
    """vTrain's all-reduces of 64 MB on 2, 4 and 8 A100, with another version of NCCL."""
    for count, seconds in ((2, 404.0e-6), (4, 540.6e-6), (8, 579.6e-6)):
        found = estimate_collective(
            ALL_REDUCE, 64 * 2**20, Group("nvswitch-a100", None, 1, count)
        )
        assert found.seconds == pytest.approx(seconds, rel=0.12)


def groups():
    for fabric, series in load_shipped_links().series.items():
        between = fabric.startswith(("network", "infiniband", "slingshot", "ethernet"))
        for n in (2, 3, 4, 6, 8):
            yield Group(None, fabric, n, 1) if between else Group(fabric, None, 1, n)
            if between:
                yield Group("nvswitch-a100", fabric, 2, n)
        assert series


@pytest.mark.parametrize("op", COLLECTIVES)
def test_more_bytes_never_take_less(op):
    for group in groups():
        seconds = collective_seconds(op, SIZES, group)
        assert (seconds > 0).all()
        assert np.isfinite(seconds).all()
        assert (np.diff(seconds) >= -1e-15 - 1e-12 * seconds[1:]).all(), group


@pytest.mark.parametrize("op", COLLECTIVES)
@pytest.mark.parametrize(
    "fabric", [*SWITCHES, "ethernet-a100", "slingshot-gh200", "pcie-l40s"]
)
def test_more_devices_never_take_less_unless_measured_so(op, fabric):
    """Eight H100 reduce large tensors faster than four (NVLS): that was measured."""
    between = fabric not in (*SWITCHES, "pcie-l40s")
    for size in (1e3, 1e6, 64e6, 512e6):
        found = [
            estimate_collective(op, size, Group(None, fabric, n, 1) if between else
                       Group(fabric, None, 1, n))
            for n in (2, 4, 8, 16, 32)
        ]  # fmt: skip
        for one, more in pairwise(found):
            measured = one.provenance == more.provenance == MEASURED
            assert more.seconds > one.seconds or measured


def test_the_formula_by_hand(monkeypatch):
    table = LinkTable({}, {"wire": 1e-5}, {"wire": 1e9}, {"wire": "made up"})
    four = Group("wire", None, 1, 4)
    reduce = estimate_collective(ALL_REDUCE, 8e6, four, table)
    assert reduce.provenance == FORMULA
    assert reduce.seconds == pytest.approx(2e-5 + 1.5 * 8e-3)
    for op in (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL):
        assert estimate_collective(op, 8e6, four, table).seconds == pytest.approx(
            1.5e-5 + 0.75 * 8e-3
        )
    monkeypatch.setattr("gnnplace.costs.links.load_shipped_links", lambda: table)
    assert price_message("wire", 8e6).seconds == pytest.approx(1e-5 + 8e-3)


def test_servers_go_in_stages():
    """Scatter inside, reduce between servers a quarter of the bytes a card, gather inside."""
    table = LinkTable(
        {}, {"in": 0.0, "out": 0.0}, {"in": 1e9, "out": 1e8}, {"in": "a", "out": "b"}
    )
    found = estimate_collective(ALL_REDUCE, 4e6, Group("in", "out", 2, 4), table)
    assert found.seconds == pytest.approx(2 * 0.75 * 4e-3 + 1e-2)
    gather = estimate_collective(ALL_GATHER, 4e6, Group("in", "out", 2, 4), table)
    assert gather.seconds == pytest.approx(0.75 * 4e-3 + 0.5e-2)
    exchange = estimate_collective(ALL_TO_ALL, 4e6, Group("in", "out", 2, 4), table)
    assert exchange.seconds == pytest.approx(0.75 * 2e-3 + 0.5 * 4e-2)


def test_measured_between_servers_goes_before_stages():
    whole = estimate_collective(
        ALL_REDUCE, 64e6, Group("nvswitch-a100", "network-dgx-a100", 2, 8)
    )
    assert whole.provenance == MEASURED
    # The source: 64.5 MB in 7.07 ms.
    assert whole.seconds == pytest.approx(7.0e-3, rel=0.1)
    gather = estimate_collective(
        ALL_GATHER, 64e6, Group("nvswitch-a100", "network-dgx-a100", 2, 8)
    )
    assert gather.provenance == NEIGHBOUR
    assert gather.seconds == pytest.approx(whole.seconds / 2)


def test_other_numbers_of_devices_lie_between():
    low, mid, high = (
        estimate_collective(
            ALL_GATHER, 64e6, Group("nvswitch-h100", None, 1, n)
        ).seconds
        for n in (4, 6, 8)
    )
    assert low < mid < high
    assert (
        estimate_collective(
            ALL_GATHER, 64e6, Group("nvswitch-h100", None, 1, 6)
        ).provenance
        == NEIGHBOUR
    )


def leave_out(table: LinkTable) -> dict[str, list[float]]:
    """Relative errors of the three ways to answer, each with what it predicts left out.

    ``measured``: every inner size of a series from the sizes beside it. ``neighbour``: a whole
    series from other groups of its fabric. ``formula``: a whole series from all else that is known
    of its fabric.
    """
    errors: dict[str, list[float]] = {MEASURED: [], NEIGHBOUR: [], FORMULA: []}
    for fabric, own in table.series.items():
        for key, series in own.items():
            errors[MEASURED] += _inner(series)
            if key.op not in COLLECTIVES:
                continue
            left = {k: v for k, v in own.items() if k != key}
            rest = replace(table, series={**table.series, fabric: left})
            seconds, provenance = _level(key, series.bytes, fabric, rest)
            if provenance == NEIGHBOUR:
                errors[NEIGHBOUR] += list(np.abs(seconds / series.seconds - 1.0))
            seconds = _ring(key, series.bytes, fabric, rest)
            errors[FORMULA] += list(np.abs(seconds / series.seconds - 1.0))
    return errors


def _inner(series: SizeSeries) -> list[float]:
    """Errors of each inner size from the others."""
    found = []
    for i in range(1, len(series.bytes) - 1):
        rest = SizeSeries(np.delete(series.bytes, i), np.delete(series.seconds, i))
        found.append(abs(float(rest.at(series.bytes[i])) / series.seconds[i] - 1.0))
    return found


def test_expected_errors_are_those_of_leaving_out():
    found = leave_out(load_shipped_links())
    for provenance, errors in found.items():
        assert len(errors) > 1000
        assert np.mean(errors) == pytest.approx(ERRORS[provenance], abs=0.02)
    assert np.median(found[NEIGHBOUR]) < 0.16
    assert np.median(found[FORMULA]) < 0.25


def test_bus_bandwidth_of_a_fabric():
    assert bus_bandwidth("nvswitch-a100", load_shipped_links()) == pytest.approx(
        210e9, rel=0.1
    )
    assert bus_bandwidth("ethernet-a100", load_shipped_links()) == 2.288e9


def test_groups_of_clusters():
    cluster = make_preset("dgx-h100-2x8")
    assert make_group(cluster, range(16)) == Group(
        "nvswitch-h100", "infiniband-dgx-h100", 2, 8
    )
    assert make_group(cluster, [0, 3, 5]) == Group("nvswitch-h100", None, 1, 3)
    assert make_group(cluster, [0, 8]) == Group(None, "infiniband-dgx-h100", 2, 1)
    # Servers with different numbers of devices.
    assert make_group(cluster, [0, 1, 8]) is None
    assert make_group(make_preset("nvlink-h100-8"), range(8)) is None
    assert make_group(cluster, [4]) == Group(None)


def test_links_that_are_not_there_make_no_group():
    devices = tuple(Device(name=n, kind="h100", memory=1.0) for n in "ab")
    link = Link(source="a", target="b", latency=0.0, bandwidth=1.0, fabric="pcie-l40s")
    assert make_group(Cluster(devices, (link,)), [0, 1]) is None


def test_one_device_exchanges_nothing():
    assert estimate_collective(ALL_REDUCE, 1e9, Group(None)).seconds == 0.0
    assert (collective_seconds(ALL_REDUCE, SIZES, Group("nvswitch-a100")) == 0).all()


def test_faults():
    two = Group("nvswitch-a100", None, 1, 2)
    with pytest.raises(
        InputError, match="collective 'broadcast': unknown; use one of all_reduce"
    ):
        estimate_collective("broadcast", 1.0, two)
    with pytest.raises(InputError, match="must be a number from 0 on"):
        estimate_collective(ALL_REDUCE, -1.0, two)
    with pytest.raises(
        InputError, match="fabric 'rope': unknown; known: nvswitch-a100"
    ):
        estimate_collective(ALL_REDUCE, 1.0, Group("rope", None, 1, 2))
    with pytest.raises(InputError, match="fabric 'rope': unknown"):
        price_message("rope", 1.0)
    with pytest.raises(InputError, match="must be a number from 0 on"):
        price_message("nvswitch-a100", float("nan"))


def test_messages():
    assert price_message("nvswitch-h100", 2**26).seconds == pytest.approx(
        193e-6, rel=0.03
    )
    assert price_message("nvswitch-h100", 2**26).provenance == MEASURED
    assert price_message("nvswitch-b200", 2**26).provenance == FORMULA
    for fabric in load_shipped_links().series:
        seconds = [price_message(fabric, float(size)).seconds for size in SIZES]
        assert (np.diff(seconds) >= 0).all()
        assert seconds[0] > 0
