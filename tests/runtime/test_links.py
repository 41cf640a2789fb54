"""Links are fitted to what messages cost, and measured where there are two cores."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnplace.errors import InputError
from gnnplace.runtime.links import SIZES, MessageTimes, fit_line, fit_link, measure_links


def test_the_fit_finds_the_figures_it_was_made_from():
    send = tuple(2e-6 + s / 8e9 for s in SIZES)
    way = tuple(t + 5e-6 + 1e-6 for t in send)
    link = fit_link("a", "b", MessageTimes(SIZES, send, send, way, 1e-6), True)
    assert (link.source, link.target, link.sender_busy) == ("a", "b", True)
    found = (link.latency, link.bandwidth, link.send_overhead, link.receive_overhead)
    assert found == pytest.approx((5e-6, 8e9, 2e-6, 1e-6), rel=1e-6)


def test_where_a_helper_copies_the_way_has_the_bandwidth():
    send = tuple(3e-6 for _ in SIZES)
    way = tuple(20e-6 + s / 2e9 for s in SIZES)
    link = fit_link("a", "b", MessageTimes(SIZES, send, send, way, 0.0), False)
    assert not link.sender_busy
    assert link.bandwidth == pytest.approx(2e9, rel=1e-6)


def test_a_line_is_never_free_of_cost():
    intercept, slope = fit_line(np.array([1.0, 1e6]), np.array([1e-3, 1e-6]))
    assert intercept >= 0
    assert slope > 0


@pytest.mark.parametrize("transport", ["shm", "gloo"])
def test_measured_links_are_plausible(transport):
    links = measure_links(2, transport=transport, names=["x", "y"])
    assert [(link.source, link.target) for link in links] == [("x", "y"), ("y", "x")]
    for link in links:
        assert 0 < link.latency < 0.05
        assert 1e7 < link.bandwidth < 1e12
        assert link.channel is None


def test_pairs_beyond_the_cores_share_one_measurement(monkeypatch):
    asked = []
    same = (1e-6,) * len(SIZES)
    times = MessageTimes(SIZES, same, same, same, 0.0)
    monkeypatch.setattr("gnnplace.runtime.links.available_cores", lambda: [0])
    monkeypatch.setattr(
        "gnnplace.runtime.links.time_messages", lambda ends, *_: asked.append(ends) or times
    )
    assert len(measure_links(3)) == 6
    assert asked == [(0, 0)]


def test_names_and_transport_must_fit():
    with pytest.raises(InputError, match="one name a worker"):
        measure_links(2, names=["a"])
    with pytest.raises(InputError, match="transport 'pigeon'"):
        measure_links(2, transport="pigeon")


def test_ends_have_the_devices_that_they_were_given(monkeypatch):
    """Where tensors live is the ends' own affair: here they are told apart and not made."""
    asked = []
    times = MessageTimes(SIZES, *[(1e-6,) * len(SIZES)] * 3, 0.0)

    def fake(cores, transport, timeout, devices):
        asked.append(devices)
        return times

    monkeypatch.setattr("gnnplace.runtime.links.time_messages", fake)
    gpus = [torch.device("cuda", 0), torch.device("cuda", 1)]
    measure_links(2, devices=gpus)
    measure_links(2)
    assert asked == [tuple(gpus), (torch.device("cpu"),) * 2]
