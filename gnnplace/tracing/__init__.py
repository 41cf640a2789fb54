"""From an `nn.Module` to a program: capture of a training step.

A step goes through this room from the top: `load` finds the model that a command names, `capture`
and `capture_model` trace its step (`StepModule`) and return a `Program`. Packages, each of which
imports only from those below it:

* `aten`: from a step to an ATen graph, and from that to a program.
* `batch`: a step over a batch as steps over its shares.
* `guards`: what a captured step may not do, and the proof that it is the user's step.
* `rules`: how each kind of call is split.
* `calls`: the step as calls of torch, which layers are split by.
* `program`: the program as plain data, and what is computed from it alone.
* `fakes`: tensors without numbers.

All other rooms import from this file alone. Names are imported when they are first used, so that
`CaptureOptions` needs no torch. The room never prices, places or runs a program.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.tracing.aten import check_cut as check_cut
    from gnnplace.tracing.aten import check_layouts as check_layouts
    from gnnplace.tracing.aten import quiet as quiet
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
    from gnnplace.tracing.calls import as_one_call as as_one_call
    from gnnplace.tracing.calls import experts as experts
    from gnnplace.tracing.calls import function_name as function_name
    from gnnplace.tracing.calls import user_functions as user_functions
    from gnnplace.tracing.fakes import BareMode as BareMode
    from gnnplace.tracing.fakes import make_fake_mode as make_fake_mode
    from gnnplace.tracing.fakes import without_numbers as without_numbers
    from gnnplace.tracing.guards import CODE as CODE
    from gnnplace.tracing.guards import MEMORY as MEMORY
    from gnnplace.tracing.guards import SIZED as SIZED
    from gnnplace.tracing.guards import STATE as STATE
    from gnnplace.tracing.guards import UNKNOWN as UNKNOWN
    from gnnplace.tracing.guards import ArgumentLeaf as ArgumentLeaf
    from gnnplace.tracing.guards import Attributes as Attributes
    from gnnplace.tracing.guards import Claims as Claims
    from gnnplace.tracing.guards import Description as Description
    from gnnplace.tracing.guards import DeviceFault as DeviceFault
    from gnnplace.tracing.guards import DeviceWatch as DeviceWatch
    from gnnplace.tracing.guards import Fingerprint as Fingerprint
    from gnnplace.tracing.guards import Geometry as Geometry
    from gnnplace.tracing.guards import LayerResult as LayerResult
    from gnnplace.tracing.guards import Numbering as Numbering
    from gnnplace.tracing.guards import Proof as Proof
    from gnnplace.tracing.guards import Replay as Replay
    from gnnplace.tracing.guards import StandIn as StandIn
    from gnnplace.tracing.guards import as_eager as as_eager
    from gnnplace.tracing.guards import as_numbers as as_numbers
    from gnnplace.tracing.guards import blame as blame
    from gnnplace.tracing.guards import claimed as claimed
    from gnnplace.tracing.guards import count_storages as count_storages
    from gnnplace.tracing.guards import describe_module as describe_module
    from gnnplace.tracing.guards import describe_surroundings as describe_surroundings
    from gnnplace.tracing.guards import find_siblings as find_siblings
    from gnnplace.tracing.guards import other_generators as other_generators
    from gnnplace.tracing.guards import prove as prove
    from gnnplace.tracing.guards import prove_apart as prove_apart
    from gnnplace.tracing.guards import reading as reading
    from gnnplace.tracing.guards import unguarded as unguarded
    from gnnplace.tracing.inputs import NAMED as NAMED
    from gnnplace.tracing.inputs import BatchStructure as BatchStructure
    from gnnplace.tracing.inputs import as_inputs as as_inputs
    from gnnplace.tracing.inputs import leaves_by_path as leaves_by_path
    from gnnplace.tracing.inputs import refuse_input_gradients as refuse_input_gradients
    from gnnplace.tracing.inputs import register_types as register_types
    from gnnplace.tracing.loading import cut as cut
    from gnnplace.tracing.loading import doubled as doubled
    from gnnplace.tracing.loading import in_double as in_double
    from gnnplace.tracing.loading import load as load
    from gnnplace.tracing.loading import make_shares as make_shares
    from gnnplace.tracing.loading import parse_options as parse_options
    from gnnplace.tracing.models import capture as capture
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
    from gnnplace.tracing.program import buffer_turns as buffer_turns
    from gnnplace.tracing.program import clone_initial as clone_initial
    from gnnplace.tracing.program import map_refs as map_refs
    from gnnplace.tracing.program import mean_gradient as mean_gradient
    from gnnplace.tracing.program import microbatched as microbatched
    from gnnplace.tracing.program import on_cuda as on_cuda
    from gnnplace.tracing.program import on_device as on_device
    from gnnplace.tracing.program import operations as operations
    from gnnplace.tracing.program import optimizer as optimizer
    from gnnplace.tracing.program import optimizers as optimizers
    from gnnplace.tracing.program import program_graph as program_graph
    from gnnplace.tracing.program import seeded as seeded
    from gnnplace.tracing.program import set_step as set_step
    from gnnplace.tracing.program import value_info as value_info
    from gnnplace.tracing.rounding import NEGLIGIBLE as NEGLIGIBLE
    from gnnplace.tracing.rounding import TOLERANCE as TOLERANCE
    from gnnplace.tracing.rounding import VANISHED as VANISHED
    from gnnplace.tracing.rounding import coarsest as coarsest
    from gnnplace.tracing.rounding import find_largest as find_largest
    from gnnplace.tracing.rounding import relative_error as relative_error
    from gnnplace.tracing.rules import DISPATCH as DISPATCH
    from gnnplace.tracing.rules import EXPERTS as EXPERTS
    from gnnplace.tracing.rules import ROWS as ROWS
    from gnnplace.tracing.rules import SHAPE as SHAPE
    from gnnplace.tracing.rules import SPREAD as SPREAD
    from gnnplace.tracing.rules import Axes as Axes
    from gnnplace.tracing.rules import Exchanged as Exchanged
    from gnnplace.tracing.rules import Rule as Rule
    from gnnplace.tracing.rules import Share as Share
    from gnnplace.tracing.rules import base_label as base_label
    from gnnplace.tracing.rules import changes_in_place as changes_in_place
    from gnnplace.tracing.rules import first_label as first_label
    from gnnplace.tracing.rules import groups_of as groups_of
    from gnnplace.tracing.rules import labels_of as labels_of
    from gnnplace.tracing.rules import local_shape as local_shape
    from gnnplace.tracing.rules import rules_of as rules_of
    from gnnplace.tracing.signatures import is_view as is_view
    from gnnplace.tracing.signatures import may_draw as may_draw
    from gnnplace.tracing.step import Inputs as Inputs
    from gnnplace.tracing.step import StepModule as StepModule
    from gnnplace.tracing.step import arguments as arguments
    from gnnplace.tracing.step import check_loss as check_loss
    from gnnplace.tracing.step import check_scalar as check_scalar
    from gnnplace.tracing.step import default_loss as default_loss
    from gnnplace.tracing.step import initialise_lazy as initialise_lazy
    from gnnplace.tracing.step import is_uninitialised as is_uninitialised
    from gnnplace.tracing.tensors import DATA as DATA
    from gnnplace.tracing.tensors import find_tensors as find_tensors
    from gnnplace.tracing.tensors import get_storage_key as get_storage_key

__getattr__, __dir__ = lazy_names(__name__)
