"""What `torch.compile` makes of a decoder's layer: bytes, kernels and what is kept for backward.

    python -m benchmarks.compiled_layers

compiles a gated layer (Llama's: projections apart, RMSNorm, rotary positions, SwiGLU) and a plain
one (GPT-2's) of several widths for CPUs, asks Inductor's scheduler what the kernels beside products
and attention read and write, and solves for bytes a token and width. The constants of `compile=on`
(`gnnplace/costs/frameworks/constants.json`) are from here but for rotary positions, which a GPU
reads once: CPU kernels are counted to read halves twice, and to repeat keys and values over heads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch._inductor.graph import GraphLowering
from torch.nn.functional import gelu, scaled_dot_product_attention, silu

BATCH, LENGTH, HEAD = 2, 4096, 64
GATED = ((1024, 8, 4, 1536), (1024, 8, 4, 3072), (2048, 8, 4, 1536), (1024, 16, 4, 1536),
         (1024, 8, 8, 1536))  # fmt: skip
PLAIN = ((512, 8, 8, 2048), (1024, 16, 16, 2048), (512, 8, 8, 3072))
Kernels = list[tuple[bool, float]]
"""Of each kernel of a graph: whether it is a product or attention, and its bytes."""


class Gated(nn.Module):
    """A layer of Llama."""

    def __init__(self, hidden: int, heads: int, groups: int, inside: int) -> None:
        super().__init__()
        sizes = {"q": (hidden, heads * HEAD), "k": (hidden, groups * HEAD),
                 "v": (hidden, groups * HEAD), "out": (heads * HEAD, hidden),
                 "gate": (hidden, inside), "up": (hidden, inside),
                 "down": (inside, hidden)}  # fmt: skip
        self.of = nn.ModuleDict(
            {n: nn.Linear(*s, bias=False) for n, s in sizes.items()}
        )
        self.norms = nn.ModuleList([nn.RMSNorm(hidden), nn.RMSNorm(hidden)])
        self.same = heads == groups

    def forward(
        self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
    ) -> torch.Tensor:
        """Tokens of a batch. [batch, length, hidden]"""
        n = self.norms[0](x)
        q, k, v = (self.of[name](n).unflatten(-1, (-1, HEAD)) for name in "qkv")
        q, k = (turned(one, cosine, sine).transpose(1, 2) for one in (q, k))
        mixed = scaled_dot_product_attention(
            q, k, v.transpose(1, 2), is_causal=True, enable_gqa=not self.same
        )
        x = x + self.of["out"](mixed.transpose(1, 2).flatten(2))
        n = self.norms[1](x)
        made: torch.Tensor = x + self.of["down"](
            silu(self.of["gate"](n)) * self.of["up"](n)
        )
        return made


class Plain(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, hidden: int, heads: int, groups: int, inside: int) -> None:
        super().__init__()
        self.joined, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, inside), nn.Linear(inside, hidden)
        self.norms = nn.ModuleList([nn.LayerNorm(hidden), nn.LayerNorm(hidden)])

    def forward(
        self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor
    ) -> torch.Tensor:
        """Tokens of a batch. [batch, length, hidden]"""
        joined = self.joined(self.norms[0](x)).unflatten(-1, (3, -1, HEAD))
        q, k, v = joined.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        made: torch.Tensor = x + self.down(
            gelu(self.up(self.norms[1](x)), approximate="tanh")
        )
        return made


def turned(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary positions, in float32."""
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1).to(x.dtype)


def measured(layer: nn.Module, hidden: int) -> tuple[list[Kernels], float]:
    """Kernels of the forward and the backward graph, and bytes kept, a token."""
    graphs: list[Kernels] = []
    usual = GraphLowering.codegen

    def seen(self: Any) -> Any:
        made = usual(self)
        nodes = [n for n in self.scheduler.nodes if n.get_read_write_buffers_sizes()]
        graphs.append(
            [(n.is_extern(), n.get_read_write_buffers_sizes()) for n in nodes]
        )
        return made

    torch._dynamo.reset()
    layer = layer.bfloat16()
    own = {p.untyped_storage().data_ptr() for p in layer.parameters()}
    x = torch.randn(BATCH, LENGTH, hidden, dtype=torch.bfloat16, requires_grad=True)
    angle = torch.randn(LENGTH, 1, HEAD // 2)
    cosine, sine = angle.cos(), angle.sin()
    own |= {one.untyped_storage().data_ptr() for one in (cosine, sine)}
    kept: dict[int, int] = {}

    def keep(value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return value

    GraphLowering.codegen = seen  # type: ignore[method-assign]
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
            y = torch.compile(layer, fullgraph=True)(x, cosine, sine)
        y.backward(torch.ones_like(y))
    finally:
        GraphLowering.codegen = usual  # type: ignore[method-assign]
    return graphs, sum(kept.values()) / (BATCH * LENGTH)


def study() -> None:
    """Prints bytes a token and width, kernels a graph and bytes kept, of both kinds of layers."""
    inductor_config.fx_graph_cache = False
    functorch_config.enable_autograd_cache = False
    for kind, shapes in ((Gated, GATED), (Plain, PLAIN)):
        rows, found, counts = [], [], (0, 0)
        for hidden, heads, groups, inside in shapes:
            graphs, kept = measured(kind(hidden, heads, groups, inside), hidden)
            widths = (hidden, heads * HEAD, groups * HEAD, inside)
            rows.append(widths if kind is Gated else (hidden, inside))
            moved = [sum(size for apart, size in g if not apart) for g in graphs[:2]]
            found.append([*(size / (BATCH * LENGTH) for size in moved), kept])
            counts = len(graphs[0]), len(graphs[1])
        solved, *_ = np.linalg.lstsq(np.array(rows, float), np.array(found), rcond=None)
        names = (
            ("tokens", "queries", "keys", "inside")
            if kind is Gated
            else ("tokens", "inside")
        )
        print(
            f"{kind.__name__}: {counts[0]} kernels forward, {counts[1]} backward; bytes a width:"
        )
        for name, line in zip(names, solved, strict=True):
            told = ", ".join(f"{value:.1f}" for value in line)
            print(f"  {name}: forward, backward, kept: {told}")


if __name__ == "__main__":
    study()
