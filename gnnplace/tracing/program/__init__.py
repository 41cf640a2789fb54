"""The captured program: one training step as a list of ATen operations on named values.

`Program` is plain data: inputs, operations (`ProgramOp`) that name what they read (`Ref`), and a
shape and type for every value (`ValueInfo`). `CutBatch` says which share of a batch it is of. This
package also has what is computed from a program alone: its graph (`program_graph`), the same step
over micro-batches (`with_program_microbatches`), the functions that stand in it beside ATen's
(`operations`, `optimizers`, fused attention off the CPU), and the random numbers that its ops draw
(`Seeded`, `ProgramDraws`).

`gnnplace.tracing.aten` builds programs. Costs, execution and reports read them. Nothing here runs
the user's code.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.tracing.program.cuda import has_cuda_kernel as has_cuda_kernel
    from gnnplace.tracing.program.cuda import move_to_cuda as move_to_cuda
    from gnnplace.tracing.program.cut_batch import GIVEN as GIVEN
    from gnnplace.tracing.program.cut_batch import CutBatch as CutBatch
    from gnnplace.tracing.program.draws import ProgramDraws as ProgramDraws
    from gnnplace.tracing.program.draws import Seeded as Seeded
    from gnnplace.tracing.program.draws import SeededAgain as SeededAgain
    from gnnplace.tracing.program.microbatching import (
        list_buffer_turns as list_buffer_turns,
    )
    from gnnplace.tracing.program.microbatching import (
        with_program_microbatches as with_program_microbatches,
    )
    from gnnplace.tracing.program.operations import mean_gradient as mean_gradient
    from gnnplace.tracing.program.operations import seeded as seeded
    from gnnplace.tracing.program.operations import set_step as set_step
    from gnnplace.tracing.program.optimizers import Optimizer as Optimizer
    from gnnplace.tracing.program.optimizers import make_optimizer as make_optimizer
    from gnnplace.tracing.program.portable_attention import PORTABLE as PORTABLE
    from gnnplace.tracing.program.portable_attention import attention as attention
    from gnnplace.tracing.program.portable_attention import (
        attention_backward as attention_backward,
    )
    from gnnplace.tracing.program.program import BACKWARD as BACKWARD
    from gnnplace.tracing.program.program import FORWARD as FORWARD
    from gnnplace.tracing.program.program import UPDATE as UPDATE
    from gnnplace.tracing.program.program import CallWriter as CallWriter
    from gnnplace.tracing.program.program import Program as Program
    from gnnplace.tracing.program.program import ProgramInput as ProgramInput
    from gnnplace.tracing.program.program import ProgramOp as ProgramOp
    from gnnplace.tracing.program.program import Ref as Ref
    from gnnplace.tracing.program.program import ValueInfo as ValueInfo
    from gnnplace.tracing.program.program import alias_roots as alias_roots
    from gnnplace.tracing.program.program import base_name as base_name
    from gnnplace.tracing.program.program import clone_initial as clone_initial
    from gnnplace.tracing.program.program import map_refs as map_refs
    from gnnplace.tracing.program.program import on_device as on_device
    from gnnplace.tracing.program.program import value_info as value_info
    from gnnplace.tracing.program.structure import ProgramGraph as ProgramGraph
    from gnnplace.tracing.program.structure import program_graph as program_graph

__getattr__, __dir__ = lazy_names(__name__)
