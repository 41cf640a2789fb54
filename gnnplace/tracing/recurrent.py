"""Recurrent layers as torch 2.13 should decompose them.

Two faults of `torch._decomp.decompositions` would change what a captured LSTM, GRU or RNN
computes in training:

* `_rnn_helper` drops the dropout between layers: it keeps it only where `num_layers < i - 1`,
  which is never.
* An LSTM layer whose input needs no gradient is turned into oneDNN's inference layer, although
  its parameters do need one; that layer has no workspace for a backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._decomp import decompositions

LayerFunction = Callable[..., tuple[torch.Tensor, Any]]


@contextmanager
def recurrent_layers(*, training: bool) -> Iterator[None]:
    """Within it recurrent layers are decomposed faithfully.

    Args:
        training: There will be a backward pass.
    """
    enabled = torch.backends.mkldnn.enabled and not training
    with (
        patch.object(decompositions, "_rnn_helper", _layers),
        torch.backends.mkldnn.flags(enabled=enabled),
    ):
        yield


def _layers(
    input: torch.Tensor,
    hidden: Any,
    params: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    layer_fn: LayerFunction,
) -> tuple[torch.Tensor, list[Any]]:
    """Layers one after the other, with dropout between them; the signature is torch's."""
    x = input.transpose(0, 1) if batch_first else input
    finals: list[Any] = []
    for i in range(num_layers):
        own, state, other, other_state = decompositions.params_hiddens(
            params, hidden, i, bidirectional
        )
        outputs = [layer_fn(x, state, own, has_biases)]
        if bidirectional:
            outputs.append(layer_fn(x, other_state, other, has_biases, reverse=True))
        finals += [final for _, final in outputs]
        x = torch.cat([y for y, _ in outputs], -1) if bidirectional else outputs[0][0]
        if train and dropout and i < num_layers - 1:
            x = torch.dropout(x, dropout, train=True)
    return (x.transpose(0, 1) if batch_first else x), finals
