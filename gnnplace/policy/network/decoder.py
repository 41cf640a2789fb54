"""The decoder in torch: scores of candidate devices.

The score of a candidate is a small network on what the encoder says of the op and on the
candidate's features, with the mean over all candidates as context, plus a weighted sum of the
features. That sum begins as a prior (earliest finish, or the plan's device where chunks are wanted,
and no more load than the ideal share) and the network at zero, so an untrained policy already is a
list scheduler.

``decode.kernels`` walks with the same scores in numba, for inference.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gnnplace.policy.decode.decoder_state import Weights
from gnnplace.policy.network.features import DYNAMIC

SingleArray = NDArray[np.float32]

PRIOR = {
    "earliest finish above the best, out of chunks": -4.0,
    "load after, above the ideal share": -3.0,
    "the chunk plan's device": 8.0,
}


class Decoder(nn.Module):
    """Scores candidate devices; H hidden, F features of a candidate.

    Args:
        state: size of the encoder's states.
        hidden: H.
        names: the names of the features.
        prior: what scores begin as: weights of some features, by name.
        directions: contexts of an op, one for each direction of the walk.
    """

    def __init__(
        self,
        state: int,
        hidden: int,
        names: tuple[str, ...] = DYNAMIC,
        prior: Mapping[str, float] = PRIOR,
        directions: int = 2,
    ) -> None:
        super().__init__()
        features, self.directions = len(names), directions
        self.context = nn.Linear(state, directions * hidden)
        self.first = nn.Parameter(torch.randn(features, hidden) / features**0.5)
        self.second = nn.Parameter(torch.randn(hidden, hidden) / hidden**0.5)
        self.pooled = nn.Parameter(torch.randn(hidden, hidden) / hidden**0.5)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.last = nn.Parameter(torch.zeros(hidden))
        self.skip = nn.Parameter(torch.tensor([prior.get(name, 0.0) for name in names]))

    def contexts(self, state: Tensor) -> Tensor:
        """What the decoder takes from the encoder: of each op and direction. [m, directions, H]"""
        return self.context(state).view(len(state), self.directions, -1)

    def forward(self, context: Tensor, features: Tensor, allowed: Tensor) -> Tensor:
        """Scores, -inf where not allowed. [S, D]

        Args:
            context: the context of the op of each decision. [S, H]
            features: the features of each decision's devices. [S, D, F]
            allowed: the candidates of each decision. [S, D]
        """
        hidden = torch.relu(context[:, None] + features @ self.first)
        share = allowed / allowed.sum(dim=1, keepdim=True).clamp(min=1)
        mean = (hidden * share[..., None]).sum(dim=1, keepdim=True)
        second = torch.relu(hidden @ self.second + mean @ self.pooled + self.bias)
        score = second @ self.last + features @ self.skip
        return score.masked_fill(~allowed, -torch.inf)

    @property
    def linear(self) -> bool:
        """Whether the network adds nothing to the weighted sum of features."""
        return not bool(self.last.any())

    def weights(self) -> Weights:
        """The parameters as arrays for the numba decoder; no hidden layers where it is linear."""
        names = ("skip", "first", "second", "pooled", "bias", "last")
        weights = Weights(*(_array(getattr(self, name)) for name in names))
        if not self.linear:
            return weights
        rows = len(weights.skip)
        shapes = {"first": (rows, 0), "second": (0, 0), "pooled": (0, 0), "bias": 0, "last": 0}
        return weights._replace(**{k: np.zeros(s, np.float32) for k, s in shapes.items()})


def _array(parameter: Tensor) -> SingleArray:
    return np.ascontiguousarray(parameter.detach().cpu().numpy(), dtype=np.float32)
