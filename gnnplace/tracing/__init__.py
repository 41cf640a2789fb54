"""From `nn.Module` to a program and its graph.

What is offered here is imported when first used: ``tracing.options`` needs no torch.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.tracing.loading import cut as cut
    from gnnplace.tracing.loading import load as load
    from gnnplace.tracing.microbatching import microbatched as microbatched
    from gnnplace.tracing.models import capture as capture
    from gnnplace.tracing.program import Program as Program
    from gnnplace.tracing.program import ProgramInput as ProgramInput
    from gnnplace.tracing.program import ProgramOp as ProgramOp
    from gnnplace.tracing.program import Ref as Ref
    from gnnplace.tracing.program import ValueInfo as ValueInfo

__getattr__, __dir__ = lazy_names(__name__)
