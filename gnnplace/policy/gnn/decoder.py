"""The GNN's decoder in torch: a sequence model over the walk that scores candidate devices.

At each decision the score of a device is a small network on four inputs: the encoder's state of the
op, features of the device that do not depend on the placement, features of the device in the
partial schedule, and the device's *memory*, the sum of the encoder's states of the ops placed there
(a recurrent state that only adds). The mean over all candidates is a context for each. There is no
prior: parameters begin at random, and no feature is added to a score.

``kernels`` walks with the same scores in numba, for inference and for drawing samples.

The first decision, made once for the whole graph, is the number of devices (``DeviceCount``): each
number in ``list_device_limits`` gets a score from the mean and the maximum of the encoder's states.
The walk then uses at most the number with the highest score (``Goal.limit``), which the decoder
sees among its features. This matters because a branch gains by moving to another device only as a
whole. When every op decided for itself, a network that would move with a probability of 40 % never
moved. With the number decided first, later decisions know that other devices are to be used.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from gnnplace.policy.decode.aims import list_device_limits
from gnnplace.policy.gnn.clusters import NUM_CANDIDATE

GAIN = 0.1  # spread of the last layer's weights: first scores are close to even
LIMIT = ("one over the number", "the number, of all devices", "log of the number")


class Decoder(nn.Module):
    """A network that scores candidate devices. H hidden, K entries of a device's memory.

    Args:
        state: size of the encoder's states.
        hidden: entries of a hidden layer, H.
        memory: entries of a device's memory, K.
        device_features: features of a device before anything is placed.
    """

    def __init__(
        self, state: int, hidden: int, memory: int, device_features: int
    ) -> None:
        super().__init__()
        self.context = nn.Linear(state, hidden)
        self.value = nn.Linear(state, memory)
        self.device = nn.Linear(device_features, hidden)
        self.first = nn.Parameter(
            torch.randn(NUM_CANDIDATE, hidden) / NUM_CANDIDATE**0.5
        )
        self.held = nn.Parameter(torch.randn(memory, hidden) / memory**0.5)
        self.second = nn.Parameter(torch.randn(hidden, hidden) / hidden**0.5)
        self.pooled = nn.Parameter(torch.randn(hidden, hidden) / hidden**0.5)
        self.bias = nn.Parameter(torch.zeros(hidden))
        self.last = nn.Parameter(GAIN * torch.randn(hidden) / hidden**0.5)

    def forward(
        self,
        states: Tensor,
        devices: Tensor,
        features: Tensor,
        allowed: Tensor,
        chosen: Tensor,
    ) -> Tensor:
        """Return the scores of all decisions of some decodes of one problem, -inf where not
        allowed. [B, S, D]

        Args:
            states: the encoder's states of the op of each decision. [B, S, state]
            devices: the features of each device before anything is placed. [D, device_features]
            features: the features of each decision's devices. [B, S, D, F]
            allowed: the candidates of each decision. [B, S, D]
            chosen: the device of each decision. [B, S]
        """
        memory = self.memory(self.value(states), chosen, allowed.shape[-1])
        first = features @ self.first + memory @ self.held + self.device(devices)
        first = torch.relu(first + self.context(states)[..., None, :])
        num_allowed = allowed.sum(dim=-1, keepdim=True)
        share = allowed / num_allowed.clamp(min=1)
        weighted = first * share[..., None]
        mean = weighted.sum(dim=-2, keepdim=True)
        second = torch.relu(first @ self.second + mean @ self.pooled + self.bias)
        return (second @ self.last).masked_fill(~allowed, -torch.inf)

    def memory(self, values: Tensor, chosen: Tensor, num_devices: int) -> Tensor:
        """Return the memory of each device at each decision: of the decisions before. [B, S, D, K]

        Args:
            values: what the encoder says of the op of each decision. [B, S, K]
            chosen: the device of each decision. [B, S]
            num_devices: the number of devices, D.
        """
        on_device = torch.nn.functional.one_hot(chosen, num_devices).to(values.dtype)
        added = (
            on_device[..., None]
            * values[..., None, :]
            * (num_devices / chosen.shape[-1])
        )
        return added.cumsum(dim=-3) - added


class DeviceCount(nn.Module):
    """A network that scores numbers of devices.

    Args:
        state: size of the encoder's states.
        hidden: size of the hidden layer.
    """

    def __init__(self, state: int, hidden: int) -> None:
        super().__init__()
        self.graph = nn.Linear(2 * state, hidden)
        self.limit = nn.Linear(len(LIMIT), hidden, bias=False)
        self.mixed = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, 1, bias=False)

    def forward(self, states: Tensor, num_devices: int) -> Tensor:
        """Return the score of each of ``device_limits(num_devices)`` for one problem. [limits]

        Args:
            states: the encoder's states of the problem. [m, state]
            num_devices: devices of the cluster, D.
        """
        limits = limit_features(num_devices).to(states.device)
        mean = states.mean(dim=0)
        largest = states.amax(dim=0)
        pooled = torch.cat([mean, largest])
        first = torch.relu(self.graph(pooled) + self.limit(limits))
        second = torch.relu(self.mixed(first))
        scores: Tensor = self.last(second)[:, 0]
        return scores

    def choice(self, states: Tensor, num_devices: int) -> int:
        """Return the number of devices of the greatest score, the greater one of equals."""
        scores = self(states, num_devices).tolist()
        return max(zip(scores, list_device_limits(num_devices), strict=True))[1]


def limit_features(num_devices: int) -> Tensor:
    """Return what is known of each number of devices, named by ``LIMIT``. [limits, len(LIMIT)]"""
    limits = np.array(list_device_limits(num_devices), np.float32)
    return torch.from_numpy(
        np.stack([1 / limits, limits / num_devices, np.log(limits)], axis=1)
    )
