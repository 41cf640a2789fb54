"""What ``place`` advises of a model is what the model can be captured with."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import gnnplace
from gnnplace.cli.options import CAPTURE
from gnnplace.cli.place import can_cut

MODELS = """
import torch
from torch import nn


def chain():
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), (torch.randn(6, 4),)


def pairs():
    def contrast(rows):
        return (rows @ rows.T).logsumexp(1).mean()

    return nn.Linear(4, 4), (torch.randn(6, 4),), contrast
"""


@pytest.mark.parametrize(
    ("model", "count", "can"),
    [("chain", 2, True), ("chain", 3, True), ("chain", 4, False), ("pairs", 2, False)],
)
def test_a_batch_is_cut_into_divisors_where_the_loss_allows(
    tmp_path, monkeypatch, model, count, can
):
    (tmp_path / "cut_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    options = gnnplace.CaptureOptions()
    args = SimpleNamespace(
        what=f"cut_models:{model}", **{k: getattr(options, k) for k in CAPTURE}
    )
    assert can_cut(args, gnnplace.Constraints(), count) is can
