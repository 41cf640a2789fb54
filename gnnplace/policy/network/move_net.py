"""``MoveNet``: how much faster a move makes the step; a small network, in torch and in numba.

The input is ``moves.MOVE_FEATURES``, standardised, and what the encoder says of the units moved
(the mean over them). Two outputs: the log-odds of a gain (see ``train.move_values``), by which the
local search picks moves to try, and the expected change of the step time, which helps it learn.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gnnplace.graph.jit import inner
from gnnplace.policy.search.moves import NUM_MOVE_FEATURES
from gnnplace.simulation.arrays import copy_to

SingleArray = NDArray[np.float32]
IntArray = NDArray[np.int32]
FURTHEST = 5.0  # standardised features are cut off here
SAMPLED = 8  # the mean over units is of at most so many


class MoveWeights(NamedTuple):
    """The parameters as arrays; F features, H hidden; standardising is part of ``first``.

    Attributes:
        low: least value of each feature that is looked at. [F]
        high: most. [F]
        first: [F, H]
        bias: [H]
        second: [H, H]
        second_bias: [H]
        last: to the log-odds. [H]
    """

    low: SingleArray
    high: SingleArray
    first: SingleArray
    bias: SingleArray
    second: SingleArray
    second_bias: SingleArray
    last: SingleArray


class MoveNet(nn.Module):
    """Values moves.

    Args:
        state: size of the encoder's states.
        hidden: size of the two layers.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, state: int, hidden: int = 32) -> None:
        super().__init__()
        self.context = nn.Linear(state, hidden, bias=False)
        nn.init.zeros_(self.context.weight)
        self.first = nn.Linear(NUM_MOVE_FEATURES, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, 2)
        self.register_buffer("mean", torch.zeros(NUM_MOVE_FEATURES))
        self.register_buffer("spread", torch.ones(NUM_MOVE_FEATURES))

    def forward(self, features: Tensor, context: Tensor) -> Tensor:
        """Log-odds of a gain, and the expected relative change. [moves, 2]

        Args:
            features: [moves, F]
            context: mean over the units of ``self.context(states)``. [moves, H]
        """
        x = ((features - self.mean) / self.spread).clamp(-FURTHEST, FURTHEST)
        hidden = torch.relu(self.first(x) + context)
        return self.last(torch.relu(self.second(hidden)))

    def weights(self) -> MoveWeights:
        """The parameters as arrays for numba."""
        first = self.first.weight / self.spread
        bias = self.first.bias - first @ self.mean
        return MoveWeights(
            _array(self.mean - FURTHEST * self.spread),
            _array(self.mean + FURTHEST * self.spread),
            _array(first.T),
            _array(bias),
            _array(self.second.weight.T),
            _array(self.second.bias),
            _array(self.last.weight[0]),
        )


def _array(tensor: Tensor) -> SingleArray:
    return np.ascontiguousarray(tensor.detach().cpu().numpy(), dtype=np.float32)


@inner(fastmath={"contract", "reassoc"})
def value_of_move(
    weights: MoveWeights,
    context: SingleArray,
    units: IntArray,
    features: SingleArray,
    hidden: SingleArray,
) -> float:
    """Log-odds, but for a constant, of a gain.

    Args:
        weights: the parameters.
        context: the context of each unit. [U, H]
        units: the units that move.
        features: [F]
        hidden: scratch. [2, H]
    """
    size = len(weights.bias)
    x, y = hidden[0], hidden[1]
    x[:] = 0.0
    step = max(1, len(units) // SAMPLED)
    count = 0
    for i in range(0, len(units), step):
        count += 1
        for h in range(size):
            x[h] += context[units[i], h]
    for h in range(size):
        x[h] = x[h] / np.float32(count) + weights.bias[h]
    for f in range(len(features)):
        value = min(max(features[f], weights.low[f]), weights.high[f])
        for h in range(size):
            x[h] += value * weights.first[f, h]
    copy_to(y, weights.second_bias)
    for g in range(size):
        value = x[g]
        if value > 0.0:
            for h in range(size):
                y[h] += value * weights.second[g, h]
    total = np.float32(0.0)
    for h in range(size):
        total += max(y[h], np.float32(0.0)) * weights.last[h]
    return float(total)
