"""Workloads to capture: models by name, with example inputs and a loss."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.zoo.hf import TRANSFORMERS_BATCH as TRANSFORMERS_BATCH
    from gnnplace.zoo.hf import TRANSFORMERS_LENGTH as TRANSFORMERS_LENGTH
    from gnnplace.zoo.hf import hugging_face as hugging_face
    from gnnplace.zoo.hf import transformers_config as transformers_config
    from gnnplace.zoo.inception import ConvUnit as ConvUnit
    from gnnplace.zoo.language_models import LanguageModel as LanguageModel
    from gnnplace.zoo.language_models import Unrolled as Unrolled
    from gnnplace.zoo.language_models import word_loss as word_loss
    from gnnplace.zoo.language_models import word_workload as word_workload
    from gnnplace.zoo.two_tower import tower as tower
    from gnnplace.zoo.workload import Loss as Loss
    from gnnplace.zoo.workload import Workload as Workload
    from gnnplace.zoo.workload import build as build
    from gnnplace.zoo.workload import default_batch as default_batch
    from gnnplace.zoo.workload import list_workload_names as list_workload_names
    from gnnplace.zoo.workload import make_generator as make_generator
    from gnnplace.zoo.workload import make_image_classifier as make_image_classifier

__all__ = [
    "TRANSFORMERS_BATCH",
    "TRANSFORMERS_LENGTH",
    "ConvUnit",
    "LanguageModel",
    "Loss",
    "Unrolled",
    "Workload",
    "build",
    "default_batch",
    "hugging_face",
    "list_workload_names",
    "make_generator",
    "make_image_classifier",
    "tower",
    "transformers_config",
    "word_loss",
    "word_workload",
]

__getattr__, __dir__ = lazy_names(__name__)
