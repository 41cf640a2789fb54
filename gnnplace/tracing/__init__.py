"""From `nn.Module` to a program and its graph.

What is offered here is imported when first used: ``tracing.options`` needs no torch.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.tracing.batch_objects import NAMED as NAMED
    from gnnplace.tracing.batch_objects import BatchStructure as BatchStructure
    from gnnplace.tracing.batch_objects import as_inputs as as_inputs
    from gnnplace.tracing.batch_objects import leaves_by_path as leaves_by_path
    from gnnplace.tracing.batch_objects import refuse_input_gradients as refuse_input_gradients
    from gnnplace.tracing.batch_objects import register_types as register_types
    from gnnplace.tracing.draws import ProgramDraws as ProgramDraws
    from gnnplace.tracing.draws import Seeded as Seeded
    from gnnplace.tracing.draws import SeededAgain as SeededAgain
    from gnnplace.tracing.fake_mode import make_fake_mode as make_fake_mode
    from gnnplace.tracing.loading import cut as cut
    from gnnplace.tracing.loading import load as load
    from gnnplace.tracing.microbatching import microbatched as microbatched
    from gnnplace.tracing.models import capture as capture
    from gnnplace.tracing.program import Program as Program
    from gnnplace.tracing.program import ProgramInput as ProgramInput
    from gnnplace.tracing.program import ProgramOp as ProgramOp
    from gnnplace.tracing.program import Ref as Ref
    from gnnplace.tracing.program import ValueInfo as ValueInfo
    from gnnplace.tracing.structure import ProgramGraph as ProgramGraph
    from gnnplace.tracing.structure import program_graph as program_graph

__getattr__, __dir__ = lazy_names(__name__)
