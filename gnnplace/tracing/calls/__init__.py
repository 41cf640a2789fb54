"""A step as a list of calls of torch functions, coarser than ATen ops, for splitting layers.

`CallGraph` has the calls (`LayerCall`) with the values that they read and return. Three kinds of
code become one call each, because a recording of their insides would not hold for the next batch:
experts of a mixture (`experts`), CTC (`ctc_loss`) and autograd functions of the user
(`user_functions`).

Sharding and plans record and split call graphs; rules (`gnnplace.tracing.rules`) say how a call is
split. Nothing here prices or places a call.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.tracing.calls.autograd_functions import UserCall as UserCall
    from gnnplace.tracing.calls.autograd_functions import UserFunction as UserFunction
    from gnnplace.tracing.calls.autograd_functions import (
        agrees_in_parts as agrees_in_parts,
    )
    from gnnplace.tracing.calls.autograd_functions import find_mixing as find_mixing
    from gnnplace.tracing.calls.autograd_functions import (
        user_functions as user_functions,
    )
    from gnnplace.tracing.calls.ctc import SelectedRow as SelectedRow
    from gnnplace.tracing.calls.ctc import ctc_loss as ctc_loss
    from gnnplace.tracing.calls.ctc import find_selection as find_selection
    from gnnplace.tracing.calls.graph import BUFFER as BUFFER
    from gnnplace.tracing.calls.graph import CALL as CALL
    from gnnplace.tracing.calls.graph import CONSTANT as CONSTANT
    from gnnplace.tracing.calls.graph import INPUT as INPUT
    from gnnplace.tracing.calls.graph import PARAMETER as PARAMETER
    from gnnplace.tracing.calls.graph import CallGraph as CallGraph
    from gnnplace.tracing.calls.graph import CallRef as CallRef
    from gnnplace.tracing.calls.graph import LayerCall as LayerCall
    from gnnplace.tracing.calls.graph import LayerValue as LayerValue
    from gnnplace.tracing.calls.graph import fill as fill
    from gnnplace.tracing.calls.graph import function_name as function_name
    from gnnplace.tracing.calls.mixture import GATES as GATES
    from gnnplace.tracing.calls.mixture import ExpertWeights as ExpertWeights
    from gnnplace.tracing.calls.mixture import as_one_call as as_one_call
    from gnnplace.tracing.calls.mixture import balance_experts as balance_experts
    from gnnplace.tracing.calls.mixture import experts as experts
    from gnnplace.tracing.calls.mixture import loop_over_experts as loop_over_experts

__getattr__, __dir__ = lazy_names(__name__)
