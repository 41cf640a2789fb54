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
    from gnnplace.policy.placing import ROSTER as ROSTER
    from gnnplace.policy.placing import PlaceOptions as PlaceOptions
    from gnnplace.policy.placing import find_placer as find_placer

__getattr__, __dir__ = lazy_names(__name__)
