"""Small models that each have one difficulty of capturing."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Tied(nn.Module):
    """Two layers hold one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x)))


class Frozen(nn.Module):
    """A weight without gradient, a module without use, a buffer that stays."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.unused = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(3, 3)
        self.a.weight.requires_grad_(False)
        self.register_buffer("scale", torch.full((8,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x)) * self.scale


class InPlace(nn.Module):
    """Activations and buffers that are changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x)
        y += 1
        y[0] = 0
        self.count += 1
        self.mean.mul_(0.9).add_(y.detach().mean(0) * 0.1)
        return functional.relu_(y) + self.mean


class Pieces(nn.Module):
    """Ops that return several tensors, and lists of one."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.a(x).chunk(3, -1)
        return (q * k + v) * x.split(8, -1)[0] + x.unbind(0)[1]


class Constants(nn.Module):
    """A plain tensor as an attribute, and one made in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.steps = torch.arange(8.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) * self.steps + torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8])


class SharedNorm(nn.Module):
    """One batch norm is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(self.norm(self.linear(x))))


class Dropping(nn.Module):
    """Several random ops."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.dropout(self.a(x), 0.5)
        return functional.dropout(self.b(x + torch.rand_like(x)), 0.3)


class Keywords(nn.Module):
    """Keyword inputs, some of them no tensors; a mapping as output."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(
        self, x: torch.Tensor, *, mask: torch.Tensor | None = None, scale: float = 2.0
    ) -> dict[str, torch.Tensor]:
        y = self.a(x) * scale
        return {
            "out": y if mask is None else y * mask,
            "count": torch.ones(3, dtype=torch.long),
        }


class Greedy(nn.Module):
    """Control flow that depends on data, inside a submodule."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:
                return self.a(x)
            return self.a(-x)

    def __init__(self) -> None:
        super().__init__()
        self.inner = Greedy.Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def batch(rows: int = 4, columns: int = 8, seed: int = 0) -> torch.Tensor:
    """Random rows."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
