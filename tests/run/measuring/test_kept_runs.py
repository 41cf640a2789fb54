"""What a user's step does is kept when it is placed: two workers beside eager PyTorch."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gnnplace
from gnnplace.costs.profiling.profiler import profile
from gnnplace.run.placed.plan import plan_execution
from gnnplace.tracing.models import capture
from gnnplace.tracing.program.optimizers import sgd
from tests.run.programs import cpu_cluster, random_placement
from tests.tracing.kept_models import CASES
from tests.tracing.truth import made, trained

SHOWN = (
    "checkpoint_reentrant",
    "checkpoint_with_dropout",
    "checkpoint_with_batch_norm",
    "checkpoint_of_hugging_face",
    "full_backward_hook",
    "hook_that_reads_a_parameter_and_writes_a_buffer",
    "buffers_bound_anew",
    "gradient_penalty",
    "spectral_norm",
)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("name", SHOWN)
def test_placed_on_two_workers_it_trains_as_eager_pytorch_bit_for_bit(name):
    case = made(CASES[name])
    inputs = case.inputs if isinstance(case.inputs, dict) else tuple(case.inputs)
    program = capture(case.model, inputs, loss=case.loss, optimizer=sgd(0.05))
    problem = profile(replace(program, initial={}), cpu_cluster(2), groups=1000)
    placement = random_placement(problem, 0)
    truth = trained(made(CASES[name]), program, 3, nullcontext)
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.05)
    options = {
        "problem": problem,
        "loss": case.loss,
        "mode": "emulated",
        "timeout": 30.0,
    }
    with gnnplace.compile(case.model, placement, optimizer, **options) as step:
        losses = [step(inputs) for _ in range(3)]
        state = step.state_dict()
    for ours, theirs in zip(losses, truth.losses, strict=True):
        assert float(ours) == float(theirs)
    for key, tensor in truth.step.model.state_dict().items():
        assert torch.equal(state[key], tensor), key


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(
                lambda y, layer=layer: torch.tanh(layer(y)).exp(),
                x,
                use_reentrant=False,
            )
        return x


def test_a_second_run_on_another_device_waits_for_a_signal():
    """Its gradient is elsewhere: nothing that it reads tells it that the gradient is there."""
    program = capture(Deep(), (torch.randn(4, 8),))
    problem = profile(replace(program, initial={}), cpu_cluster(3), groups=1000)
    found = 0
    for seed in range(5):
        plan = plan_execution(program, problem, random_placement(problem, seed))
        signals = {k: t for k, t in enumerate(plan.transfers) if t.signal}
        found += len(signals)
        for k, transfer in signals.items():
            (receiver,) = (s for s in plan.segments[transfer.target] if k in s.receives)
            (sender,) = (s for s in plan.segments[transfer.source] if k in s.sends)
            waiting = [program.ops[i] for i in receiver.ops]
            assert any(transfer.value in op.after for op in waiting)
            assert transfer.value in [program.ops[i].name for i in sender.ops]
    assert found
