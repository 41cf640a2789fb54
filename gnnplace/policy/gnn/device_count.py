"""How many devices the GNN uses: its first decision, made once for the whole graph.

Formulation. A score of each number of devices in ``device_limits``, from the mean and the greatest
of the encoder's states. The walk then uses no more devices than the number of the greatest score
(``Goal.limit``), which the decoder sees among its features. A branch gains as a whole by leaving a
device, its single ops do not: where each op decided that for itself, a network that would leave
with a probability of 40 % never left. Decided once, later decisions know that devices are to be
left.
Complexity: O(m hidden).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from gnnplace.policy.decode.aims import device_limits

LIMIT = ("one over the number", "the number, of all devices", "log of the number")


class DeviceCount(nn.Module):
    """Scores numbers of devices.

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
        """Score of each of ``device_limits(num_devices)`` for one problem. [limits]

        Args:
            states: the encoder's states of the problem. [m, state]
            num_devices: devices of the cluster, D.
        """
        whole = torch.cat([states.mean(dim=0), states.amax(dim=0)])
        first = torch.relu(self.graph(whole) + self.limit(limit_features(num_devices)))
        scores: Tensor = self.last(torch.relu(self.mixed(first)))[:, 0]
        return scores

    def choice(self, states: Tensor, num_devices: int) -> int:
        """The number of devices of the greatest score, the greater one of equals."""
        scores = self(states, num_devices).tolist()
        return max(zip(scores, device_limits(num_devices), strict=True))[1]


def limit_features(num_devices: int) -> Tensor:
    """What is known of each number of devices, named by ``LIMIT``. [limits, len(LIMIT)]"""
    limits = np.array(device_limits(num_devices), np.float32)
    return torch.from_numpy(np.stack([1 / limits, limits / num_devices, np.log(limits)], axis=1))
