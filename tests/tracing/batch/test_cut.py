"""Shares of a batch, what they are given of it, and means over counted targets written out."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from gnnplace.errors import InputError
from gnnplace.tracing.batch.cut import batch_axes, subgraph, write_out_counts
from gnnplace.tracing.program.cut_batch import CutBatch

OPTIONS = list(
    itertools.product([None, torch.tensor([1.0, 2.0, 0.5])], [-100, 1], [0.0, 0.2])
)


def test_shares_join_to_the_batch() -> None:
    batch = CutBatch(3, (0, 1, None))
    inputs = torch.arange(6.0), torch.arange(12).reshape(2, 6), torch.ones(2)
    shares = batch.cut(inputs)
    assert [share[1].tolist() for share in shares] == [
        [[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5], [10, 11]]
    ]  # fmt: skip
    assert all(
        torch.equal(a, b) for a, b in zip(batch.joined(shares), inputs, strict=True)
    )


def test_axes_are_where_the_batch_is_larger() -> None:
    share = torch.ones(2, 3), torch.ones(5, 2), torch.ones(4)
    whole = torch.ones(4, 3), torch.ones(5, 4), torch.ones(4)
    assert batch_axes(share, whole) == [0, 1, None]
    with pytest.raises(
        InputError, match=r"input 0: shape .* may have the batch on one axis"
    ):
        batch_axes([torch.ones(2, 2)], [torch.ones(4, 4)])


class Counting(nn.Module):
    """Changes a tensor in place before it counts."""

    def forward(
        self, x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        mask = (x > 0).float()
        mask[0] = 7
        return (mask * y).sum(), mask.sum()


def test_a_subgraph_keeps_what_changes_in_place() -> None:
    x, y = torch.randn(4), torch.randn(4)
    module = torch.export.export(Counting(), (x, y), strict=False).module(
        check_guards=False
    )
    assert isinstance(module, torch.fx.GraphModule)
    last = module.graph.output_node().all_input_nodes[-1]
    part = subgraph(module, [last])
    assert torch.equal(part(x, y)[0], Counting()(x, y)[1])
    assert not any("mul" in node.name for node in part.graph.nodes)


@pytest.mark.parametrize(("weight", "ignored", "smoothing"), OPTIONS)
@pytest.mark.parametrize("shape", [(8,), (4, 5)])
def test_cross_entropy(
    weight: torch.Tensor | None, ignored: int, smoothing: float, shape: tuple[int, ...]
) -> None:
    loss = nn.CrossEntropyLoss(weight, ignore_index=ignored, label_smoothing=smoothing)
    scores, target = torch.randn(shape[0], 3, *shape[1:]), torch.randint(3, shape)
    target.view(-1)[::3] = ignored
    module = torch.export.export(loss, (scores, target), strict=False).module(
        check_guards=False
    )
    assert isinstance(module, torch.fx.GraphModule)
    assert write_out_counts(module) == 1
    torch.testing.assert_close(module(scores, target), loss(scores, target))


def test_other_reductions_stay() -> None:
    for loss in (nn.CrossEntropyLoss(reduction="sum"), nn.MSELoss()):
        given = (torch.randn(4, 3), torch.randn(4, 3).softmax(-1))
        module = torch.export.export(loss, given, strict=False).module(
            check_guards=False
        )
        assert isinstance(module, torch.fx.GraphModule)
        assert write_out_counts(module) == 0
