"""A small model with what device maps stumble over, and placements of it by module."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

import gnnplace
from gnnplace.problem.cluster import load_cluster
from gnnplace.problem.placement import Placement
from gnnplace.tracing.models import capture


class Block(nn.Module):
    """A residual block: its own code adds its argument to what its children make."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Small(nn.Module):
    """Two embeddings that are added, residual blocks, a head; it may be tied to an embedding."""

    def __init__(self, blocks=3, width=8, tied=False):
        super().__init__()
        self.words, self.places = nn.Embedding(16, width), nn.Embedding(4, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 16, bias=False)
        self.unread = nn.Linear(2, 2)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build(**options):
    torch.manual_seed(0)
    return Small(**options).eval(), torch.arange(8).reshape(2, 4)


def captured(
    forward_only=True, by_module=True, groups=None, cluster="nvlink-a100-4", **options
):
    """Program and problem of the small model; nothing is measured."""
    model, ids = build(**options)
    program = replace(capture(model, ids, forward_only=forward_only), initial={})
    asked = {"by_module": by_module}
    given = gnnplace.CaptureOptions(
        forward_only=forward_only, constraints=asked, groups=groups
    )
    return program, gnnplace.profile(program, load_cluster(cluster), options=given)


def placed(problem, where):
    """Every op where its module's first name in ``where`` is, with what shares its device."""
    unit = {}
    for op, module in enumerate(problem.module):
        for name, device in where.items():
            if module is not None and (module == name or module.startswith(f"{name}.")):
                unit.setdefault(problem.unit_of[op], device)
    return Placement(
        np.array([unit.get(u, 0) for u in problem.unit_of], dtype=np.int32)
    )
