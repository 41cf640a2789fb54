"""From `nn.Module` to a program and its graph.

What is offered here is imported when first used: ``tracing.options`` needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnnplace.tracing.loading import cut as cut
    from gnnplace.tracing.loading import load as load
    from gnnplace.tracing.microbatching import microbatched as microbatched
    from gnnplace.tracing.models import capture as capture
    from gnnplace.tracing.program import Program as Program
    from gnnplace.tracing.program import ProgramInput as ProgramInput
    from gnnplace.tracing.program import ProgramOp as ProgramOp
    from gnnplace.tracing.program import Ref as Ref
    from gnnplace.tracing.program import ValueInfo as ValueInfo

HOMES = {
    "loading": ("cut", "load"),
    "microbatching": ("microbatched",),
    "models": ("capture",),
    "program": ("Program", "ProgramInput", "ProgramOp", "Ref", "ValueInfo"),
}
HOME = {name: f"{__name__}.{module}" for module, names in HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(HOME[name]), name)
