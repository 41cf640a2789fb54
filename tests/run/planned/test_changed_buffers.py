"""Buffers that a forward pass changes and reads: every plan has eager PyTorch's numbers."""

import copy

import pytest
import torch
from torch import nn, optim
from torch.nn import functional

from gnnplace.errors import InputError
from gnnplace.planning.plans import JointPlan
from gnnplace.plans.segments.chains import capture_layers
from gnnplace.plans.segments.cuts import find_cuts
from gnnplace.run.planned.stages import make_stage_calls
from gnnplace.run.workers.rig import run_group
from gnnplace.zoo import Workload
from tests.run.planned.toys import plan_for

WIDTH, SHARES = 4, 4


class Block(nn.Module):
    """Two products with a norm, a queue and a counter between them."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("queue", torch.ones(3, WIDTH))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        y = functional.relu(self.up(x)) + self.norm.running_mean
        out = self.down(self.norm(y) / self.count + self.queue.clone().mean(0))
        with torch.no_grad():
            self.queue[1:] = self.queue[:-1].clone()
            self.queue[0] = y.mean(0)
        return x + torch.tanh(out)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Looped(nn.Module):
    """What the last layer leaves in a buffer the first one reads in the next step."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("memory", torch.ones(WIDTH, WIDTH))

    def forward(self, x):
        seen = self.memory.t()
        y = self.last(torch.tanh(self.first(x @ seen.clone())))
        self.memory.mul_(0.5)
        return y


def workload(kind=Network):
    torch.manual_seed(0)
    inputs = torch.randn(8, WIDTH), torch.randn(8, WIDTH)
    return Workload(kind.__name__, kind(), inputs, functional.mse_loss)


def eager(kind=Network):
    """Losses and state of three steps, each over the shares one after the other."""
    made = workload(kind)
    optimizer, losses = optim.SGD(made.model.parameters(), lr=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        total = torch.zeros(())
        for x, y in zip(*(t.chunk(SHARES) for t in made.inputs), strict=True):
            loss = functional.mse_loss(made.model(x), y) / SHARES
            loss.backward()
            total += loss.detach()
        losses.append(total)
        optimizer.step()
    return losses, {name: t.clone() for name, t in made.model.state_dict().items()}


def trained(plan, kind=Network):
    made = workload(kind)
    runner = JointPlan(plan.file).apply(made.model, made.inputs, loss=made.loss)
    optimizer, losses = optim.SGD(runner.parameters(), lr=0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        losses.append(runner.step(runner.share(made.inputs)).detach())
        optimizer.step()
    return losses, runner.state_dict()


def check(result, expected):
    torch.testing.assert_close(torch.stack(result[0]), torch.stack(expected[0]))
    for name, value in result[1].items():
        torch.testing.assert_close(value, expected[1][name], msg=name)


@pytest.mark.parametrize("recompute", ["full", "block:1", "uniform:2"])
def test_recomputed_layers_read_the_buffers_of_their_first_pass(recompute):
    words = f"pp=1,microbatch_size=2,recompute={recompute}"
    check(trained(plan_for(workload(), words, 1, accept_other_loss=True)), eager())


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_microbatches_in_flight_have_their_own_buffers(recompute):
    """Over two stages, each of which goes on before the first share comes back."""
    words = f"pp=2,microbatch_size=2,recompute={recompute}"
    plan = plan_for(workload(), words, 2, accept_other_loss=True)
    expected = eager()

    def work(number):
        losses, state = trained(plan)
        return [x.tolist() for x in losses], {
            name: x.tolist() for name, x in state.items()
        }

    for losses, state in run_group(work, ["cpu:0", "cpu:1"], timeout=60.0):
        tensors = (
            [torch.tensor(x) for x in losses],
            {n: torch.tensor(x) for n, x in state.items()},
        )
        check(tensors, expected)


def test_a_buffer_that_two_layers_share_keeps_them_in_one_stage():
    """Also where a view of it is read; stages that share it are refused by its name."""
    made = workload(Looped)
    check(
        trained(
            plan_for(made, "pp=1,microbatch_size=2", 1, accept_other_loss=True), Looped
        ),
        eager(Looped),
    )
    layers = capture_layers(copy.copy(made), "32-true")
    assert len(find_cuts(layers.calls, layers.rules).segments) == 1
    names = [call.name for call in layers.calls.calls if call.name in ("first", "last")]
    with pytest.raises(
        InputError, match="buffer 'memory' is changed by the forward pass"
    ):
        make_stage_calls(layers.calls, [names[:1], names[1:]], [[], []])
