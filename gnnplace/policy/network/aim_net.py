"""``AimNet``: which aims to decode a problem under, the most promising first.

A small network on what is known of the whole problem (``features.GLOBAL``) and of the aim. Its
values are log-odds of being the best aim of the problem (``train.aim_choice``). A problem has 11 to
40 aims; the best of the first eight is within half a percent of the best of all, in a quarter of
the time. Untrained it values all aims alike, and they are taken in the order they are listed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from gnnplace.arrays import SingleArray
from gnnplace.policy.decode.aims import LEANS, ORDERS, ROUNDS, Aim
from gnnplace.policy.network.features import GLOBAL

AIM_FEATURES = (
    *(f"order {order}" for order in ORDERS),
    *(f"{rounds} rounds" for rounds in ROUNDS),
    *(f"lean{lean or ' to nothing'}" for lean in LEANS),
    "devices aimed at, of all",
    "log devices aimed at",
    "one over the devices aimed at",
    "one device",
    "all devices",
)


def aim_features(aims: Sequence[Aim], num_devices: int) -> SingleArray:
    """What ``AimNet`` sees of each aim, named by ``AIM_FEATURES``. [aims, F]"""
    rows = [
        (
            *(aim.order == order for order in ORDERS),
            *(aim.rounds == rounds for rounds in ROUNDS),
            *(aim.lean == lean for lean in range(len(LEANS))),
            aim.limit / num_devices,
            np.log2(aim.limit) / 3.0,
            1.0 / aim.limit,
            aim.limit == 1,
            aim.limit == num_devices,
        )
        for aim in aims
    ]
    return np.array(rows, dtype=np.float32).reshape(-1, len(AIM_FEATURES))


class AimNet(nn.Module):
    """Values aims.

    Args:
        hidden: size of the two layers.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.problem = nn.Linear(len(GLOBAL), hidden)
        self.aim = nn.Linear(len(AIM_FEATURES), hidden, bias=False)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, 1)
        nn.init.zeros_(self.last.weight)
        self.register_buffer("mean", torch.zeros(len(GLOBAL)))
        self.register_buffer("spread", torch.ones(len(GLOBAL)))

    def forward(self, problem: Tensor, aims: Tensor) -> Tensor:
        """Log-odds of each aim, up to a constant a problem. [..., aims]

        Args:
            problem: what is known of the whole problem. [..., len(GLOBAL)]
            aims: [..., aims, len(AIM_FEATURES)]
        """
        whole = self.problem((problem - self.mean) / self.spread)
        hidden = torch.relu(whole[..., None, :] + self.aim(aims))
        return self.last(torch.relu(self.second(hidden)))[..., 0]

    @torch.no_grad()
    def ranked(self, problem: SingleArray, aims: Sequence[Aim], num_devices: int) -> list[Aim]:
        """Aims, the most promising first; of equals the first listed."""
        values = self(torch.from_numpy(problem), torch.from_numpy(aim_features(aims, num_devices)))
        order = np.argsort(-values.numpy(), kind="stable")
        return [aims[i] for i in order]
