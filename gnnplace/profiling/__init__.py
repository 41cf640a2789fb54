"""Devices of this machine, measured and estimated times."""

from gnnplace.profiling.detection import detect, is_spec
from gnnplace.profiling.measurement import measure_ops
from gnnplace.profiling.profiler import any_local, group_ops, op_times, profile
from gnnplace.profiling.roofline import estimate_ops

__all__ = [
    "any_local",
    "detect",
    "estimate_ops",
    "group_ops",
    "is_spec",
    "measure_ops",
    "op_times",
    "profile",
]
