"""Workloads to capture."""

from gnnplace.zoo.hugging_face import hugging_face
from gnnplace.zoo.registry import build, default_batch, names
from gnnplace.zoo.workload import Workload

__all__ = ["Workload", "build", "default_batch", "hugging_face", "names"]
