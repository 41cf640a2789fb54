"""What DDP is said to cost: the whole step on a share of the batch, and one all-reduce."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gnnplace.sharding.answers import SplitOptions, shard_network, shard_tables
from gnnplace.sharding.captured.costs import MeshMachine
from gnnplace.sharding.captured.data_parallel import ddp_parts
from gnnplace.sharding.captured.problem import CapturedProblem
from gnnplace.sharding.run.planning import layer_graph

FLOPS, BANDWIDTH = 1e9, 1e6


class Mixed(nn.Module):
    """A product, a call that no rule knows and that mixes examples, and another product."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        return self.after(torch.roll(self.before(x), 1, 0))


def captured(devices, batch=8):
    def loss(made):
        return made.square().mean()

    layers = layer_graph(Mixed(), (torch.randn(batch, 16),), loss, "mixed")
    return CapturedProblem(layers.operations, (devices,), MeshMachine(FLOPS, BANDWIDTH))


@pytest.mark.parametrize(
    ("devices", "share", "used"), [(1, 8, 1), (2, 4, 2), (3, 3, 3), (16, 1, 8)]
)
def test_a_share_of_the_step_and_the_gradients(devices, share, used):
    parts = ddp_parts(captured(devices))
    products = 3 * 2 * (2 * 16 * 16) * share / FLOPS
    gradients = 2 * (used - 1) / used * 4 * 2 * (16 * 16 + 16) / BANDWIDTH
    assert parts.compute == pytest.approx(products)
    assert parts.gradient == pytest.approx(gradients)
    assert parts.resharding == parts.reduction == 0


def test_no_split_of_layers_with_rules_is_slower_than_ddp():
    """The U-Net's transposed convolutions had no rule, and its `data parallelism` was not DDP."""
    for devices in (2, 4):
        tables = shard_tables("unet", SplitOptions(devices))
        assert tables.setting is not None
        best = shard_network(tables)
        assert best.cost <= tables.setting.ddp().total * (1 + 1e-9) + 1e-6
