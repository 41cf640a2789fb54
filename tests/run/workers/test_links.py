"""Links are fitted to what messages cost, and measured where there are two cores."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gnnplace.run.workers import links
from gnnplace.run.workers.links import (
    SIZES,
    MessageTimes,
    fit_line,
    fit_link,
    measure_link,
)


def test_the_fit_finds_the_figures_it_was_made_from():
    send = tuple(2e-6 + s / 8e9 for s in SIZES)
    way = tuple(t + 5e-6 + 1e-6 for t in send)
    link = fit_link("a", "b", MessageTimes(SIZES, send, send, way, 1e-6))
    assert (link.source, link.target, link.sender_busy) == ("a", "b", True)
    found = (link.latency, link.bandwidth, link.send_overhead, link.receive_overhead)
    assert found == pytest.approx((5e-6, 8e9, 2e-6, 1e-6), rel=1e-6)


def test_a_line_is_never_free_of_cost():
    intercept, slope = fit_line(np.array([1.0, 1e6]), np.array([1e-3, 1e-6]))
    assert intercept >= 0
    assert slope > 0


def test_a_measured_link_is_plausible():
    link = measure_link()
    assert (link.source, link.target) == ("cpu:0", "cpu:1")
    assert 0 < link.latency < 0.05
    assert 1e7 < link.bandwidth < 1e12
    assert link.channel is None
    assert link.sender_busy


def test_ends_have_cores_of_their_own_and_the_devices_that_they_were_given(monkeypatch):
    """Where tensors live is the ends' own affair: here they are told apart and not made."""
    asked = []
    times = MessageTimes(SIZES, *[(1e-6,) * len(SIZES)] * 3, 0.0)

    def fake(cores, devices):
        asked.append((cores, devices))
        return times

    monkeypatch.setattr(links, "time_messages", fake)
    gpus, cpus = (
        [torch.device("cuda", 0), torch.device("cuda", 1)],
        (torch.device("cpu"),) * 2,
    )
    for cores in ([2, 5, 7], [3]):
        monkeypatch.setattr(links, "available_cores", lambda cores=cores: cores)
        measure_link(gpus)
    measure_link()
    assert asked == [((2, 5), tuple(gpus)), ((3, 3), tuple(gpus)), ((3, 3), cpus)]
