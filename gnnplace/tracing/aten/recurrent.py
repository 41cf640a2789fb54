"""Recurrent layers, decomposed as torch computes them in training.

`recurrent_layers` mends faults of `torch._decomp.decompositions`, which would change what a
captured LSTM, GRU or RNN computes in training:

* `_rnn_helper` drops the dropout between layers: it keeps it only where `num_layers < i - 1`,
  which is never.
* An LSTM layer whose input needs no gradient is turned into oneDNN's inference layer, although
  its parameters do need one; that layer has no workspace for a backward pass.
* In torch 2.12 the final states of an LSTM keep an axis of length one for the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from gnnplace.torch_names import decompositions

State = torch.Tensor | tuple[torch.Tensor, ...]
LayerFunction = Callable[..., tuple[torch.Tensor, Any]]


@contextmanager
def recurrent_layers(*, training: bool) -> Iterator[None]:
    """Decompose recurrent layers faithfully within.

    Args:
        training: There will be a backward pass.
    """
    enabled = torch.backends.mkldnn.enabled and not training
    with (
        patch.object(decompositions, "_rnn_helper", _run_layers),
        torch.backends.mkldnn.flags(enabled=enabled),
    ):
        yield


def _run_layers(
    input: torch.Tensor,
    hidden: object,
    params: object,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    layer_fn: LayerFunction,
) -> tuple[torch.Tensor, list[Any]]:
    """Run layers one after the other, with dropout between them; the signature is torch's.

    Returns:
        The output of the last layer, and the final states of all layers.
    """
    x = input.transpose(0, 1) if batch_first else input
    final_states: list[Any] = []
    for i in range(num_layers):
        weights, state, backward_weights, backward_state = (
            decompositions.params_hiddens(params, hidden, i, bidirectional)
        )
        if bidirectional:
            initial_states = [state, backward_state]
        else:
            initial_states = [state]
        outputs = [layer_fn(x, state, weights, has_biases)]
        if bidirectional:
            outputs.append(
                layer_fn(x, backward_state, backward_weights, has_biases, reverse=True)
            )
        for (_, final_state), initial in zip(outputs, initial_states, strict=True):
            final_states.append(_shape_like(final_state, initial))
        if bidirectional:
            x = torch.cat([y for y, _ in outputs], -1)
        else:
            x = outputs[0][0]
        if train and dropout and i < num_layers - 1:
            x = torch.dropout(x, dropout, train=True)
    return (x.transpose(0, 1) if batch_first else x), final_states


def _shape_like(final_state: State, initial_state: State) -> State:
    """Return a layer's final state, a tensor or two, in the shape of its initial one."""
    if isinstance(final_state, torch.Tensor):
        assert isinstance(initial_state, torch.Tensor)
        if final_state.shape == initial_state.shape:
            return final_state
        return final_state.reshape(initial_state.shape)
    pairs = zip(final_state, initial_state, strict=True)
    return tuple(final.reshape(initial.shape) for final, initial in pairs)
