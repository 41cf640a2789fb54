"""From an `nn.Module` to a program: capture of a training step.

A step goes through this room from the top: `load` finds the model that a command names, `capture`
and `capture_model` trace its step (`StepModule`) and return a `Program`. Packages, each of which
imports only from those below it:

* `recording`: from a step to a list of calls of torch (`CallGraph`), which layers are split by.
* `aten`: from a step to an ATen graph, and from that to a program.
* `batch`: a step over a batch as steps over its shares.
* `guards`: what a captured step may not do, and the proof that it is the user's step.
* `rules`: how each kind of call is split.
* `calls`: calls of torch as data.
* `program`: the program as plain data, and what is computed from it alone.
* `fakes`: tensors without numbers.

All other rooms import from this file alone. Names are imported when they are first used, so that
`CaptureOptions` needs no torch. The room never prices, places or runs a program.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.tracing.aten import check_cut as check_cut
    from gnnplace.tracing.batch import ADDED as ADDED
    from gnnplace.tracing.batch import EVEN as EVEN
    from gnnplace.tracing.batch import SUMMED as SUMMED
    from gnnplace.tracing.batch import UNRULED as UNRULED
    from gnnplace.tracing.batch import UNSAID as UNSAID
    from gnnplace.tracing.batch import Cutter as Cutter
    from gnnplace.tracing.calls import BUFFER as BUFFER
    from gnnplace.tracing.calls import CALL as CALL
    from gnnplace.tracing.calls import CONSTANT as CONSTANT
    from gnnplace.tracing.calls import INPUT as INPUT
    from gnnplace.tracing.calls import PARAMETER as PARAMETER
    from gnnplace.tracing.calls import CallGraph as CallGraph
    from gnnplace.tracing.calls import CallRef as CallRef
    from gnnplace.tracing.calls import LayerCall as LayerCall
    from gnnplace.tracing.calls import LayerValue as LayerValue
    from gnnplace.tracing.calls import experts as experts
    from gnnplace.tracing.calls import function_name as function_name
    from gnnplace.tracing.fakes import BareMode as BareMode
    from gnnplace.tracing.fakes import make_fake_mode as make_fake_mode
    from gnnplace.tracing.fakes import without_numbers as without_numbers
    from gnnplace.tracing.guards import CODE as CODE
    from gnnplace.tracing.guards import MEMORY as MEMORY
    from gnnplace.tracing.guards import STATE as STATE
    from gnnplace.tracing.guards import Attributes as Attributes
    from gnnplace.tracing.guards import Claims as Claims
    from gnnplace.tracing.guards import DeviceFault as DeviceFault
    from gnnplace.tracing.guards import DeviceWatch as DeviceWatch
    from gnnplace.tracing.guards import Fingerprint as Fingerprint
    from gnnplace.tracing.guards import make_claimed_tensor as make_claimed_tensor
    from gnnplace.tracing.guards import note_attribute_reads as note_attribute_reads
    from gnnplace.tracing.guards import remove_device_guards as remove_device_guards
    from gnnplace.tracing.inputs import NAMED as NAMED
    from gnnplace.tracing.inputs import BatchStructure as BatchStructure
    from gnnplace.tracing.inputs import as_inputs as as_inputs
    from gnnplace.tracing.inputs import leaves_by_path as leaves_by_path
    from gnnplace.tracing.inputs import refuse_input_gradients as refuse_input_gradients
    from gnnplace.tracing.inputs import register_types as register_types
    from gnnplace.tracing.loading import convert_to_double as convert_to_double
    from gnnplace.tracing.loading import cut_workload as cut_workload
    from gnnplace.tracing.loading import load as load
    from gnnplace.tracing.loading import make_shares as make_shares
    from gnnplace.tracing.loading import parse_options as parse_options
    from gnnplace.tracing.loading import with_double_precision as with_double_precision
    from gnnplace.tracing.models import capture_model as capture_model
    from gnnplace.tracing.models import capture_workload as capture_workload
    from gnnplace.tracing.models import make_workload as make_workload
    from gnnplace.tracing.models import refuse_meta as refuse_meta
    from gnnplace.tracing.models import say_batch as say_batch
    from gnnplace.tracing.options import CaptureOptions as CaptureOptions
    from gnnplace.tracing.program import BACKWARD as BACKWARD
    from gnnplace.tracing.program import FORWARD as FORWARD
    from gnnplace.tracing.program import GIVEN as GIVEN
    from gnnplace.tracing.program import UPDATE as UPDATE
    from gnnplace.tracing.program import CallWriter as CallWriter
    from gnnplace.tracing.program import Optimizer as Optimizer
    from gnnplace.tracing.program import Program as Program
    from gnnplace.tracing.program import ProgramDraws as ProgramDraws
    from gnnplace.tracing.program import ProgramGraph as ProgramGraph
    from gnnplace.tracing.program import ProgramInput as ProgramInput
    from gnnplace.tracing.program import ProgramOp as ProgramOp
    from gnnplace.tracing.program import Ref as Ref
    from gnnplace.tracing.program import Seeded as Seeded
    from gnnplace.tracing.program import SeededAgain as SeededAgain
    from gnnplace.tracing.program import ValueInfo as ValueInfo
    from gnnplace.tracing.program import attention as attention
    from gnnplace.tracing.program import attention_backward as attention_backward
    from gnnplace.tracing.program import base_name as base_name
    from gnnplace.tracing.program import clone_initial as clone_initial
    from gnnplace.tracing.program import list_buffer_turns as list_buffer_turns
    from gnnplace.tracing.program import make_optimizer as make_optimizer
    from gnnplace.tracing.program import map_refs as map_refs
    from gnnplace.tracing.program import mean_gradient as mean_gradient
    from gnnplace.tracing.program import move_to_cuda as move_to_cuda
    from gnnplace.tracing.program import on_device as on_device
    from gnnplace.tracing.program import operations as operations
    from gnnplace.tracing.program import optimizers as optimizers
    from gnnplace.tracing.program import program_graph as program_graph
    from gnnplace.tracing.program import seeded as seeded
    from gnnplace.tracing.program import set_step as set_step
    from gnnplace.tracing.program import value_info as value_info
    from gnnplace.tracing.program import (
        with_program_microbatches as with_program_microbatches,
    )
    from gnnplace.tracing.recording import PREFIX as PREFIX
    from gnnplace.tracing.recording import OutputModule as OutputModule
    from gnnplace.tracing.recording import record_calls as record_calls
    from gnnplace.tracing.rounding import NEGLIGIBLE as NEGLIGIBLE
    from gnnplace.tracing.rounding import TOLERANCE as TOLERANCE
    from gnnplace.tracing.rounding import VANISHED as VANISHED
    from gnnplace.tracing.rounding import (
        find_coarsest_tolerance as find_coarsest_tolerance,
    )
    from gnnplace.tracing.rounding import find_largest as find_largest
    from gnnplace.tracing.rounding import relative_error as relative_error
    from gnnplace.tracing.rules import DISPATCH as DISPATCH
    from gnnplace.tracing.rules import EXPERTS as EXPERTS
    from gnnplace.tracing.rules import SHAPE as SHAPE
    from gnnplace.tracing.rules import SPREAD as SPREAD
    from gnnplace.tracing.rules import Axes as Axes
    from gnnplace.tracing.rules import Exchanged as Exchanged
    from gnnplace.tracing.rules import Rule as Rule
    from gnnplace.tracing.rules import Share as Share
    from gnnplace.tracing.rules import base_label as base_label
    from gnnplace.tracing.rules import changes_in_place as changes_in_place
    from gnnplace.tracing.rules import count_groups as count_groups
    from gnnplace.tracing.rules import find_rules as find_rules
    from gnnplace.tracing.rules import first_label as first_label
    from gnnplace.tracing.rules import list_labels as list_labels
    from gnnplace.tracing.rules import local_shape as local_shape
    from gnnplace.tracing.signatures import is_view as is_view
    from gnnplace.tracing.signatures import may_draw as may_draw
    from gnnplace.tracing.step import Inputs as Inputs
    from gnnplace.tracing.step import StepModule as StepModule
    from gnnplace.tracing.step import check_loss as check_loss
    from gnnplace.tracing.step import default_loss as default_loss
    from gnnplace.tracing.step import describe_arguments as describe_arguments
    from gnnplace.tracing.step import initialise_lazy as initialise_lazy
    from gnnplace.tracing.step import is_uninitialised as is_uninitialised
    from gnnplace.tracing.tensors import get_storage_key as get_storage_key

__getattr__, __dir__ = lazy_names(__name__)
