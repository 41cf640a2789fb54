"""The learned placers: policies that score devices, what decodes them, and the default placer.

* `best`, `learned`, `search`: the default placer, the learned one, and its local search.
* `decode`: from a policy's scores to a placement, unit by unit (`Rollouts`).
* `gnn`: the graph network (`GnnPolicy`), its encoder, decoder and decodes.
* `refine`: passes that decide each unit's device anew (`RefiningPasses`).
* `network`, `weights`, `card`: what is saved of a policy, and what it was trained on.

Callers are `placing`, which has the table of all placers, `train`, which learns the weights, and
`bench`; all import from this file alone. Names are imported when they are first used. The room
never measures a step: a placement is scored by `simulation`.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.policy.best import Best as Best
    from gnnplace.policy.card import CARD as CARD
    from gnnplace.policy.card import RANDOM as RANDOM
    from gnnplace.policy.card import Exhibit as Exhibit
    from gnnplace.policy.card import Exposure as Exposure
    from gnnplace.policy.card import TrainingCard as TrainingCard
    from gnnplace.policy.card import exposure_reason as exposure_reason
    from gnnplace.policy.card import write_card as write_card
    from gnnplace.policy.decode.aims import DECODED as DECODED
    from gnnplace.policy.decode.aims import list_device_limits as list_device_limits
    from gnnplace.policy.decode.decoder_state import DecisionRecord as DecisionRecord
    from gnnplace.policy.decode.improving import Improvement as Improvement
    from gnnplace.policy.decode.rollouts import Decoded as Decoded
    from gnnplace.policy.decode.rollouts import Rollouts as Rollouts
    from gnnplace.policy.decode.walk import WalkGraph as WalkGraph
    from gnnplace.policy.gnn.clusters import build_clusters as build_clusters
    from gnnplace.policy.gnn.custom import describe_class as describe_class
    from gnnplace.policy.gnn.custom import trust_classes as trust_classes
    from gnnplace.policy.gnn.encoder import Encoder as Encoder
    from gnnplace.policy.gnn.features import FEATURE_VERSION as FEATURE_VERSION
    from gnnplace.policy.gnn.kernels import DecoderNetwork as DecoderNetwork
    from gnnplace.policy.gnn.learned_order import order_gradient as order_gradient
    from gnnplace.policy.gnn.network import GNN_CHECKPOINT as GNN_CHECKPOINT
    from gnnplace.policy.gnn.network import GnnPolicy as GnnPolicy
    from gnnplace.policy.gnn.network import load_gnn as load_gnn
    from gnnplace.policy.gnn.network import make_tensors as make_tensors
    from gnnplace.policy.gnn.network import read_config as read_config
    from gnnplace.policy.gnn.network import read_gnn as read_gnn
    from gnnplace.policy.gnn.placer import GnnPlacer as GnnPlacer
    from gnnplace.policy.gnn.pyg import ProblemData as ProblemData
    from gnnplace.policy.gnn.pyg import (
        convert_to_message_passing as convert_to_message_passing,
    )
    from gnnplace.policy.gnn.rollouts import Drawn as Drawn
    from gnnplace.policy.gnn.rollouts import Episodes as Episodes
    from gnnplace.policy.learned import LearnedPlacer as LearnedPlacer
    from gnnplace.policy.learned import load_policy as load_policy
    from gnnplace.policy.learned import make_untrained as make_untrained
    from gnnplace.policy.learned import network_decodes as network_decodes
    from gnnplace.policy.network import PlacementPolicy as PlacementPolicy
    from gnnplace.policy.network import SavedNetwork as SavedNetwork
    from gnnplace.policy.network import read_policy as read_policy
    from gnnplace.policy.refine.passes import RefiningPasses as RefiningPasses
    from gnnplace.policy.refine.refining import NUM_REFINING as NUM_REFINING
    from gnnplace.policy.refine.refining import Refiner as Refiner
    from gnnplace.policy.refine.refining import walk_again as walk_again
    from gnnplace.policy.refine.refining_state import Placed as Placed
    from gnnplace.policy.refine.refining_state import read_previous as read_previous
    from gnnplace.policy.search import Anytime as Anytime
    from gnnplace.policy.search import search_from as search_from
    from gnnplace.policy.weights import NETWORK_KEY as NETWORK_KEY
    from gnnplace.policy.weights import PLACER_KEY as PLACER_KEY
    from gnnplace.policy.weights import POLICY_CHECKPOINT as POLICY_CHECKPOINT
    from gnnplace.policy.weights import read_card as read_card
    from gnnplace.policy.weights import (
        read_lightning_checkpoint as read_lightning_checkpoint,
    )

__getattr__, __dir__ = lazy_names(__name__)
