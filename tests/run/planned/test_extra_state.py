"""What modules keep beside tensors is in a runner's state."""

import torch
from torch import nn
from torch.nn import functional

from gnnplace.zoo import Workload
from tests.run.planned.toys import plan_for


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.scale = nn.Linear(4, 4), 2.0

    def get_extra_state(self):
        return {"scale": self.scale}

    def set_extra_state(self, state):
        self.scale = state["scale"]

    def forward(self, x):
        return self.inner(x) * self.scale


def test_extra_state_is_saved_and_loaded():
    workload = Workload(
        "Scaled", Scaled(), (torch.randn(4, 4), torch.randn(4, 4)), functional.mse_loss
    )
    plan = plan_for(workload, "pp=1,microbatch_size=4", 1)
    runner = plan.apply(workload.model, workload.inputs, loss=workload.loss)
    state = runner.state_dict()
    assert state.keys() == Scaled().state_dict().keys()
    runner.load_state_dict({**state, "_extra_state": {"scale": 3.0}})
    assert workload.model.scale == 3.0
