"""The policy room: the learned placer, from features to decoded placements; all placers by name."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.policy.placing import PlaceOptions as PlaceOptions

__getattr__, __dir__ = lazy_names(__name__)
