"""From `nn.Module` to a program and its graph."""

from gnnplace.tracing.capturing import capture
from gnnplace.tracing.loading import cut, load
from gnnplace.tracing.microbatching import microbatched
from gnnplace.tracing.program import Program, ProgramInput, ProgramOp, Ref, ValueInfo

__all__ = [
    "Program",
    "ProgramInput",
    "ProgramOp",
    "Ref",
    "ValueInfo",
    "capture",
    "cut",
    "load",
    "microbatched",
]
