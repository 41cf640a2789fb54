"""The policy room: the learned placer, from features to decoded placements."""

from gnnplace.policy.decode.rollouts import Rollouts as Rollouts
from gnnplace.policy.learned import LearnedPlacer as LearnedPlacer
from gnnplace.policy.learned import load_policy as load_policy
from gnnplace.policy.network.model import PlacementPolicy as PlacementPolicy
