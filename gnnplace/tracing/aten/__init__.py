"""From a step to its joint forward and backward ATen graph, and from that graph to a `Program`.

`trace` runs the model's code once on tensors without numbers and returns a `Traced` graph, whose
inputs and outputs are described by `Slot`. `Builder` makes a program from it: ops, gradients,
copies of buffers and updates of the optimizer. Activation checkpoints stay in the program
(`recompute`).

A model that cannot be captured is refused (`check_model`, `check_memory`). Deviations of the step
from the model are reported in lines (`notices`).

`gnnplace.tracing.models` calls it. It does not watch what the user's code does while it runs; that
is the task of `gnnplace.tracing.guards`.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.tracing.aten.builder import Builder as Builder
    from gnnplace.tracing.aten.deviations import check_layouts as check_layouts
    from gnnplace.tracing.aten.deviations import give as give
    from gnnplace.tracing.aten.deviations import notices as notices
    from gnnplace.tracing.aten.export import check_cut as check_cut
    from gnnplace.tracing.aten.export import silence_warnings as silence_warnings
    from gnnplace.tracing.aten.export import trace as trace

__getattr__, __dir__ = lazy_names(__name__)
