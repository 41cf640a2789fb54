"""From a step to its joint forward and backward ATen graph, and from that graph to a `Program`.

`trace` runs the model's code once on tensors without numbers and returns `Traced`, a graph whose
ends are described by `Slot`. `Builder` makes the program of it: ops, gradients, copies of buffers
and updates of the optimizer. Activation checkpoints stay in the program (`recompute`).

`gnnplace.tracing.models` calls it. All imports of torch's private export modules are here. It never
decides what a step may do; `gnnplace.tracing.guards` does.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.tracing.aten.builder import Builder as Builder
    from gnnplace.tracing.aten.export import check_cut as check_cut
    from gnnplace.tracing.aten.export import quiet as quiet
    from gnnplace.tracing.aten.export import trace as trace
    from gnnplace.tracing.aten.traced import Traced as Traced
    from gnnplace.tracing.aten.translate import is_random as is_random
    from gnnplace.tracing.aten.translate import is_view as is_view

__getattr__, __dir__ = lazy_names(__name__)
