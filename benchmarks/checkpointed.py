"""Models of the zoo whose layers are recomputed in the backward pass, as MODEL: module:callable."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from gnnplace.zoo import Workload, build


class Recomputed(torch.nn.Module):
    """A layer that keeps its inputs alone and runs again in the backward pass."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *args: Any, **options: Any) -> Any:
        """What the layer returns."""
        return checkpoint(self.layer, *args, use_reentrant=False, **options)


def _recomputed(name: str, layers: str) -> Workload:
    workload = build(name)
    found = workload.model.get_submodule(layers)
    assert isinstance(found, torch.nn.ModuleList)
    for i, layer in enumerate(found):
        found[i] = Recomputed(layer)
    return workload


def bert() -> Workload:
    """BERT with every layer recomputed."""
    return _recomputed("bert", "bert.encoder.layer")


def gpt2() -> Workload:
    """GPT-2 with every block recomputed."""
    return _recomputed("gpt2", "transformer.h")


def vit() -> Workload:
    """ViT with every layer recomputed."""
    return _recomputed("vit", "vit.layers")
