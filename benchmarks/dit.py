"""A diffusion transformer: latents with noise in, the noise out (DiT, Peebles and Xie, 2022).

arXiv 2212.09748, with adaLN-Zero: every block's norms are scaled, shifted and gated by what a
network makes of the time step and the class. Sizes by default are those of DiT-XL/2 on latents of
256 x 256 pixels; the fixed embedding of places is learned here, and the variance is not predicted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES, CHANNELS, WAVES = 1000, 4, 256


def _modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Block(nn.Module):
    """Attention and a feed-forward network, both conditioned."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """[B, N, width] of [B, N, width] and [B, width]."""
        made = self.modulation(functional.silu(condition)).chunk(6, dim=1)
        shift1, scale1, gate1, shift2, scale2, gate2 = made
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(_modulated(self.norm1(x), shift1, scale1)).chunk(
                3, dim=-1
            )
        )
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + gate1.unsqueeze(1) * self.proj(mixed.transpose(1, 2).flatten(2))
        inner = functional.gelu(self.fc1(_modulated(self.norm2(x), shift2, scale2)))
        return x + gate2.unsqueeze(1) * self.fc2(inner)


class Head(nn.Module):
    """The last norm and the pixels of every patch."""

    def __init__(self, width: int, pixels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulation, self.linear = (
            nn.Linear(width, 2 * width),
            nn.Linear(width, pixels),
        )

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """[B, N, pixels] of [B, N, width] and [B, width]."""
        shift, scale = self.modulation(functional.silu(condition)).chunk(2, dim=1)
        return self.linear(_modulated(self.norm(x), shift, scale))


class DiT(nn.Module):
    """Noise of latents, by time step and class."""

    def __init__(
        self, layers: int, width: int, heads: int, size: int, patch: int
    ) -> None:
        super().__init__()
        self.patch = patch
        self.embed = nn.Conv2d(CHANNELS, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2, width))
        self.time1, self.time2 = nn.Linear(WAVES, width), nn.Linear(width, width)
        self.classes = nn.Embedding(CLASSES + 1, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = Head(width, CHANNELS * patch**2)

    def forward(self, latents: Tensor, times: Tensor, labels: Tensor) -> Tensor:
        """[B, N, pixels of a patch] of [B, C, S, S], [B] and [B]."""
        half = WAVES // 2
        rates = torch.exp(
            -math.log(10_000) / half * torch.arange(half, device=times.device)
        )
        waves = times.unsqueeze(1) * rates
        waves = torch.cat([waves.cos(), waves.sin()], dim=1)
        condition = self.time2(functional.silu(self.time1(waves))) + self.classes(
            labels
        )
        x = self.embed(latents).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x, condition)
        out: Tensor = self.head(x, condition)
        return out


def dit(
    batch: int = 8, layers: int = 28, width: int = 1152, heads: int = 16, size: int = 32,
    patch: int = 2,
) -> tuple[nn.Module, tuple[Tensor, ...], Callable[..., Any]]:  # fmt: skip
    """The model, latents, time steps, classes and noise, and the mean squared error."""
    model = DiT(layers, width, heads, size, patch)
    inputs = (
        torch.randn(batch, CHANNELS, size, size),
        1000 * torch.rand(batch),
        torch.randint(0, CLASSES, (batch,)),
        torch.randn(batch, (size // patch) ** 2, CHANNELS * patch**2),
    )
    return model, inputs, functional.mse_loss
