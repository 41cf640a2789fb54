"""``PolicyModule``: training of the learned placer's policy.

Validation places held-out problems as ``LearnedPlacer`` does with budget 0.
"""

from __future__ import annotations

from typing import Any

from gnnplace.policy.decode.aims import ORDERS
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.network.model import CHECKPOINT, PlacementPolicy, read_policy
from gnnplace.policy.refine.passes import Passes
from gnnplace.train.data import Sample
from gnnplace.train.learner import Learner, begin_with, check_least

SKIP = 10.0  # the weights of the prior are that much larger than those of the network
SIZES = "model.hidden, model.layers and model.decoder_hidden"


class PolicyModule(Learner):
    """A policy in training.

    Args:
        hidden: size of the encoder's states.
        layers: rounds of messages; 0 leaves the graph out.
        decoder_hidden: size of the decoder's layers.
        learning_rate: the learning rate of Adam, at its highest.
        steps: training steps over which the learning rate falls to a tenth.
        orders: traversal orders to decode under.
        start: folder of a policy to start from, or ``shipped`` for the one that comes with the
            package; its sizes must be those given here.
        export: folder that the policy is saved to whenever the validation improves.
        frozen: keeps the encoder as it is, and with it what other stages learned on top of it.

    Raises:
        InputError: a number is too small.
        FormatError: ``start`` is missing or malformed.
        MismatchError: ``start`` has other features or sizes.
    """

    policy: PlacementPolicy
    average: PlacementPolicy

    def __init__(
        self,
        hidden: int = 64,
        layers: int = 3,
        decoder_hidden: int = 32,
        learning_rate: float = 1e-3,
        steps: int = 3000,
        orders: tuple[str, ...] = ORDERS,
        start: str | None = None,
        export: str | None = None,
        frozen: bool = False,
    ) -> None:
        check_least(hidden=(hidden, 1), layers=(layers, 0), decoder_hidden=(decoder_hidden, 1))
        policy = PlacementPolicy(hidden, layers, decoder_hidden)
        if start is not None:
            begin_with(policy, read_policy, start, CHECKPOINT, SIZES)
        policy.encoder.requires_grad_(not frozen)
        super().__init__(policy, learning_rate, steps, export)
        self.orders = orders

    def parameter_groups(self) -> list[dict[str, Any]]:
        skip = self.policy.decoder.skip
        others = [p for p in self.policy.parameters() if p is not skip]
        return [
            {"params": others, "lr": self.learning_rate},
            {"params": [skip], "lr": SKIP * self.learning_rate},
        ]

    def rollouts(self, sample: Sample) -> Rollouts:
        """The current policy on a problem."""
        return Rollouts(sample.space, self.policy, self.orders)

    def place(self, network: PlacementPolicy, sample: Sample) -> float:
        rollouts = Rollouts(sample.space, network, self.orders)
        return Passes(rollouts).best(rollouts.greedy()).score
