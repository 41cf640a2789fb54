"""Learning stages: labels, and a network that learns them."""

from __future__ import annotations

import numpy as np
import torch

from gnnplace.policy.stages.line import line_of
from gnnplace.train import stage_labels
from gnnplace.train.stage_labels import _write, make_labels, read_labels
from gnnplace.train.stages import StageImitation, collated, walked
from tests.policy.stages.problems import chain, grouped


def test_a_network_learns_a_label():
    line = line_of(*grouped(chain()))
    device = np.repeat([2, 0, 1, 0], 3).astype(np.int32)[: len(line.share)]
    batch = collated([walked(line, device), walked(line, device[::-1].copy())])
    torch.manual_seed(0)
    module = StageImitation(hidden=16, rounds=2)
    optimizer = torch.optim.Adam(module.policy.parameters(), 1e-2)
    before = float(module.loss(batch).mean())
    for _ in range(60):
        optimizer.zero_grad()
        module.loss(batch).mean().backward()
        optimizer.step()
    assert float(module.loss(batch).mean()) < 0.3 * before
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in module.policy.parameters())


def test_devices_alike_are_equally_right():
    """Any of the fast devices may have the first segment; only one goes on with it."""
    line = line_of(*grouped(chain()))
    row = walked(line, np.zeros(len(line.share), np.int32))
    assert row.right[0].tolist() == [True, True, False]
    assert row.right[1].tolist() == [True, False, False]


def test_labels_are_kept_and_what_is_missing_is_made(tmp_path, monkeypatch):
    made = []

    def label(graphs, number, seconds, teacher):
        made.append(number)
        line = line_of(*grouped(chain()))
        found = np.zeros((2, len(line.share)), np.int32)
        return {} if number == 7 else vars(line) | {"devices": found}

    monkeypatch.setattr(stage_labels, "_label", label)
    monkeypatch.setattr(stage_labels, "_graphs", list)
    make_labels(tmp_path, 2, seed=6)
    make_labels(tmp_path, 3, seed=6)
    assert made == [6, 7, 8]
    labels = read_labels(tmp_path)
    assert sorted(labels) == [6, 8]
    assert len(labels[6].devices) == 2
    assert not list(tmp_path.glob("*.part"))
    _write(tmp_path / "9.npz", {})
    assert 9 not in read_labels(tmp_path)
