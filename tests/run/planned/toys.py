"""Small models and plans for them; a plan for one device runs in the test's own process."""

import copy
from functools import cache

import torch
from torch import nn
from torch.nn import functional

from gnnplace.planning.plans import plan_model
from gnnplace.plans.segments.chains import count_examples
from gnnplace.problem.cluster import Cluster, Device, Link
from gnnplace.run.planned.trial import alone_step
from gnnplace.zoo import Workload


class Block(nn.Module):
    """Norm, two products with a skip around them, dropout, and a counted batch norm."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.statistics = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        y = functional.relu(self.up(self.norm(x)), inplace=True)
        return x + self.statistics(self.dropout(self.down(y)))


class Toy(nn.Module):
    """Blocks with a skip over all of them, and a head tied to the first product."""

    def __init__(self, width=8, depth=2):
        super().__init__()
        self.first = nn.Linear(width, width, bias=False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, width)
        self.head.weight = self.first.weight

    def forward(self, x):
        skip = y = self.first(x)
        for block in self.blocks:
            y = block(y)
        return self.head(y + skip)


def toy(batch=16, width=8, depth=2):
    """Model, inputs and loss; the same whenever it is called."""
    torch.manual_seed(0)
    model = Toy(width, depth)
    inputs = (torch.randn(batch, width), torch.randn(batch, width))
    return Workload("Toy", model, inputs, functional.mse_loss)


def cpus(count):
    """A cluster of CPU workers whose links nobody has to measure."""
    devices = tuple(
        Device(name=f"cpu:{i}", kind="cpu", memory=1e10) for i in range(count)
    )
    links = tuple(
        Link(source=a.name, target=b.name, latency=1e-5, bandwidth=1e9)
        for a in devices
        for b in devices
        if a is not b
    )
    return Cluster(devices, links, f"cpu:{count}")


def plan_for(workload, words, count=4, **options):
    """A plan in words."""
    return plan_model(
        workload.model,
        cpus(count),
        workload.inputs,
        loss=workload.loss,
        batch=count_examples(workload),
        given=words,
        **options,
    )[0]


@cache
def toy_plan(words, count=4, **options):
    """A plan in words of the toy, made once; tests only look at it."""
    return plan_for(toy(), words, count, **options)


def eager(plan, workload):
    """Loss and gradients of the model as it is, and the model with its running statistics."""
    model = copy.deepcopy(workload.model)
    count = plan.file.batch // plan.file.microbatch_size
    loss = alone_step(plan, Workload("", model, workload.inputs, workload.loss), count)
    return loss, {n: p.grad for n, p in model.named_parameters()}, model


class Attending(nn.Module):
    """A layer of attention, written out, and a product behind it, each with a skip around it."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.25)

    def forward(self, x):
        parts = (
            self.qkv(self.norm(x))
            .unflatten(-1, (3, self.heads, -1))
            .permute(2, 0, 3, 1, 4)
        )
        query, key, value = parts.unbind()
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        mixed = self.dropout(torch.softmax(scores, -1)) @ value
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(x)))


def attending(batch=8, length=6, width=8, heads=2, depth=4):
    """A model of such layers; the same whenever it is called."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(Attending(width, heads) for _ in range(depth)), nn.Linear(width, 3)
    )
    inputs = torch.randn(batch, length, width), torch.randn(batch, length, 3)
    return Workload("Attending", model, inputs, functional.mse_loss)
