"""``PolicyModule``: training of the learned placer's policy.

Validation places held-out problems as ``LearnedPlacer`` does with budget 0.
"""

from __future__ import annotations

from gnnplace.policy.decode.aims import ORDERS
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.network.model import CHECKPOINT, PlacementPolicy, read_policy
from gnnplace.policy.refine.passes import Passes
from gnnplace.train.data_module import Sample
from gnnplace.train.learner import Learner, begin_with


class PolicyModule(Learner):
    """A policy in training.

    Args:
        learning_rate: the learning rate of Adam, at its highest.
        steps: training steps over which the learning rate falls to a tenth.
        orders: traversal orders to decode under.
        start: folder of a policy to start from, or ``shipped`` for the one that comes with the
            package.
        export: folder that the policy is saved to whenever the validation improves.

    Raises:
        InputError: a number is too small.
        FormatError: ``start`` is missing or malformed.
        MismatchError: ``start`` has other features.
    """

    policy: PlacementPolicy
    average: PlacementPolicy

    def __init__(
        self,
        learning_rate: float = 1e-3,
        steps: int = 3000,
        orders: tuple[str, ...] = ORDERS,
        start: str | None = None,
        export: str | None = None,
    ) -> None:
        policy = PlacementPolicy()
        if start is not None:
            begin_with(policy, read_policy, start, CHECKPOINT, "this package's")
        super().__init__(policy, learning_rate, steps, export)
        self.orders = orders

    def rollouts(self, sample: Sample) -> Rollouts:
        """The current policy on a problem."""
        return Rollouts(sample.space, self.policy, self.orders)

    def place(self, network: PlacementPolicy, sample: Sample) -> float:
        rollouts = Rollouts(sample.space, network, self.orders)
        return Passes(rollouts).best(rollouts.greedy()).score
