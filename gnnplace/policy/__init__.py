"""The policy room: the learned placer, from features to decoded placements; all placers by name."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.policy.card import CARD as CARD
    from gnnplace.policy.card import RANDOM as RANDOM
    from gnnplace.policy.card import Exhibit as Exhibit
    from gnnplace.policy.card import Exposure as Exposure
    from gnnplace.policy.card import TrainingCard as TrainingCard
    from gnnplace.policy.card import exposure_reason as exposure_reason
    from gnnplace.policy.card import read_card as read_card
    from gnnplace.policy.card import write_card as write_card
    from gnnplace.policy.decode.rollouts import Decoded as Decoded
    from gnnplace.policy.decode.rollouts import Rollouts as Rollouts
    from gnnplace.policy.gnn.custom import trusting as trusting
    from gnnplace.policy.gnn.network import GnnPolicy as GnnPolicy
    from gnnplace.policy.gnn.network import read_gnn as read_gnn
    from gnnplace.policy.network import PlacementPolicy as PlacementPolicy
    from gnnplace.policy.network import SavedNetwork as SavedNetwork
    from gnnplace.policy.network import read_policy as read_policy
    from gnnplace.policy.placing import ROSTER as ROSTER
    from gnnplace.policy.placing import PlaceOptions as PlaceOptions
    from gnnplace.policy.placing import find_placer as find_placer
    from gnnplace.policy.refine.passes import RefiningPasses as RefiningPasses
    from gnnplace.policy.weights import NETWORK_KEY as NETWORK_KEY
    from gnnplace.policy.weights import PLACER_KEY as PLACER_KEY
    from gnnplace.policy.weights import read_lightning_checkpoint as read_lightning_checkpoint

__getattr__, __dir__ = lazy_names(__name__)
