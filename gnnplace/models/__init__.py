"""The catalogue of models by name: sizes of published configurations, without torch."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.models.catalogue import MAX_LENGTH as MAX_LENGTH
    from gnnplace.models.catalogue import CatalogueModel as CatalogueModel
    from gnnplace.models.catalogue import default_batch as default_batch
    from gnnplace.models.catalogue import find_model as find_model
    from gnnplace.models.catalogue import model_names as model_names
    from gnnplace.models.catalogue import nearest_names as nearest_names
    from gnnplace.models.catalogue import require_planned as require_planned

__getattr__, __dir__ = lazy_names(__name__)
