"""Workloads to capture."""

from gnnplace.zoo.hugging_face import hugging_face
from gnnplace.zoo.workload import (
    Loss,
    Workload,
    build,
    classified_images,
    default_batch,
    generator,
    names,
)

__all__ = [
    "Loss",
    "Workload",
    "build",
    "classified_images",
    "default_batch",
    "generator",
    "hugging_face",
    "names",
]
