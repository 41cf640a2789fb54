"""A model that every test of training trains, its batches, and a placement of it, found once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch import nn

import gnnplace
from gnnplace.costs.profiling.profiler import profile
from gnnplace.tracing.models import capture_workload
from gnnplace.zoo import Workload
from tests.run.programs import cpu_cluster, random_placement


class Net(nn.Module):
    """Embedding tied to the head, batch norm, a buffer that nobody reads."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("unread", torch.arange(3.0))

    def forward(self, words):
        h = self.embedding(words)
        h = torch.relu(self.left(h)) + torch.tanh(self.dropout(self.right(h)))
        return self.head(self.norm(h))


def net(dropout=0.0):
    torch.manual_seed(3)
    return Net(dropout)


def batches(count, seed=0, size=8):
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randint(11, (size,), generator=generator),
            torch.randint(11, (size,), generator=generator),
        )
        for _ in range(count)
    ]


LOSS = nn.functional.cross_entropy


@cache
def placed(dropout=0.0, devices=2, microbatches=1, seed=0, frozen=()):
    """A problem of the model and a random placement of its units."""
    model = net(dropout)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    workload = Workload("Net", model, batches(1)[0], LOSS)
    program = capture_workload(workload, microbatches)
    bare = replace(program, initial={})  # its ops need not be measured
    problem = profile(bare, cpu_cluster(devices), groups=30, microbatches=microbatches)
    return problem, random_placement(problem, seed, shuffle=False)


def compiled(model, optimizer, devices=2, microbatches=1, seed=0, **options):
    frozen = tuple(name for name, p in model.named_parameters() if not p.requires_grad)
    problem, placement = placed(model.dropout.p, devices, microbatches, seed, frozen)
    options = {"timeout": 30.0, "loss": LOSS} | options
    return gnnplace.compile(model, placement, optimizer, problem=problem, **options)
