"""A mean over counted targets, written out, is what PyTorch computes."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from gnnplace.tracing.counted_losses import write_out_counts

OPTIONS = list(itertools.product([None, torch.tensor([1.0, 2.0, 0.5])], [-100, 1], [0.0, 0.2]))


@pytest.mark.parametrize(("weight", "ignored", "smoothing"), OPTIONS)
@pytest.mark.parametrize("shape", [(8,), (4, 5)])
def test_cross_entropy(
    weight: torch.Tensor | None, ignored: int, smoothing: float, shape: tuple[int, ...]
) -> None:
    loss = nn.CrossEntropyLoss(weight, ignore_index=ignored, label_smoothing=smoothing)
    scores, target = torch.randn(shape[0], 3, *shape[1:]), torch.randint(3, shape)
    target.view(-1)[::3] = ignored
    module = torch.export.export(loss, (scores, target), strict=False).module(check_guards=False)
    assert isinstance(module, torch.fx.GraphModule)
    assert write_out_counts(module) == 1
    torch.testing.assert_close(module(scores, target), loss(scores, target))


def test_other_reductions_stay() -> None:
    for loss in (nn.CrossEntropyLoss(reduction="sum"), nn.MSELoss()):
        given = (torch.randn(4, 3), torch.randn(4, 3).softmax(-1))
        module = torch.export.export(loss, given, strict=False).module(check_guards=False)
        assert isinstance(module, torch.fx.GraphModule)
        assert write_out_counts(module) == 0
