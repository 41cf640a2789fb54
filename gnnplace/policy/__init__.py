"""The policy room: the learned placer, from features to decoded placements."""

from gnnplace.policy.learned import LearnedPlacer as LearnedPlacer
from gnnplace.policy.learned import load_policy as load_policy
from gnnplace.policy.model import PlacementPolicy as PlacementPolicy
from gnnplace.policy.rollouts import Rollouts as Rollouts
