"""What a stage takes, where parameters are read by several segments."""

import pytest
import torch
from torch.nn import functional

from gnnplace.zoo import Workload
from tests.run.planned.toys import plan_for, toy


@pytest.mark.parametrize("words", ["pp=1,microbatch_size=4", "tp=2,microbatch_size=4"])
def test_a_loss_that_reads_all_parameters_counts_each_once(words):
    """As a penalty on weights does, which ties all. The first one to capture takes 4 s."""
    bytes_of = {}
    for penalised in (False, True):
        workload = toy()

        def loss(output, wanted, model=workload.model, penalised=penalised):
            sizes = torch.stack([p.square().sum() for p in model.parameters()]).sum()
            return functional.mse_loss(output, wanted) + (
                0.01 * sizes if penalised else 0.0
            )

        plan = plan_for(
            Workload("toy", workload.model, workload.inputs, loss), words, 2
        )
        bytes_of[penalised] = max(entry.state for entry in plan.file.memory.values())
        whole = 16 * sum(
            p.numel() for p in workload.model.parameters()
        )  # adamw in float32
        assert bytes_of[penalised] <= whole
        if words.startswith("pp"):
            assert bytes_of[penalised] == whole
