"""Workloads to capture."""

from gnnplace.zoo.hugging_face import hugging_face
from gnnplace.zoo.workload import Workload, build, default_batch, names

__all__ = ["Workload", "build", "default_batch", "hugging_face", "names"]
