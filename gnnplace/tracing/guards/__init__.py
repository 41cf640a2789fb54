"""Guards: a captured step is what the user's step does, or capture is refused in one line.

While a step is traced, `watch_step` refuses code that would do something else at the next step, and
`blame` finds the module and the line of a failure. `prove` compares the recording with the user's
own step by value numbers (`Numbering`). Later a `Fingerprint` finds changes of the model, the
optimizer or the globals that the code reads.

`Claims` and `DeviceWatch` run a worker's ops on tensors that claim to be on a GPU, and refuse ops
that would fail there.

Capture, sharding, dry runs and compiled training steps call it. A guard never changes the numbers
that a step computes.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.tracing.guards.alike import ArgumentLeaf as ArgumentLeaf
    from gnnplace.tracing.guards.alike import Description as Description
    from gnnplace.tracing.guards.alike import Geometry as Geometry
    from gnnplace.tracing.guards.alike import LayerResult as LayerResult
    from gnnplace.tracing.guards.alike import StandIn as StandIn
    from gnnplace.tracing.guards.alike import count_storages as count_storages
    from gnnplace.tracing.guards.alike import describe_module as describe_module
    from gnnplace.tracing.guards.alike import (
        describe_surroundings as describe_surroundings,
    )
    from gnnplace.tracing.guards.alike import find_siblings as find_siblings
    from gnnplace.tracing.guards.attributes import CODE as CODE
    from gnnplace.tracing.guards.attributes import OWN as OWN
    from gnnplace.tracing.guards.attributes import Attributes as Attributes
    from gnnplace.tracing.guards.attributes import custom_gradients as custom_gradients
    from gnnplace.tracing.guards.attributes import (
        restore_attributes as restore_attributes,
    )
    from gnnplace.tracing.guards.claims import Claims as Claims
    from gnnplace.tracing.guards.claims import DeviceFault as DeviceFault
    from gnnplace.tracing.guards.claims import DeviceWatch as DeviceWatch
    from gnnplace.tracing.guards.claims import (
        make_claimed_tensor as make_claimed_tensor,
    )
    from gnnplace.tracing.guards.claims import (
        remove_device_guards as remove_device_guards,
    )
    from gnnplace.tracing.guards.eager import SIZED as SIZED
    from gnnplace.tracing.guards.eager import as_eager as as_eager
    from gnnplace.tracing.guards.eager import as_numbers as as_numbers
    from gnnplace.tracing.guards.failures import OWN_GENERATOR as OWN_GENERATOR
    from gnnplace.tracing.guards.failures import UNKNOWN as UNKNOWN
    from gnnplace.tracing.guards.failures import blame as blame
    from gnnplace.tracing.guards.failures import (
        describe_number_dependence as describe_number_dependence,
    )
    from gnnplace.tracing.guards.failures import is_static as is_static
    from gnnplace.tracing.guards.failures import loss_lines as loss_lines
    from gnnplace.tracing.guards.failures import node_place as node_place
    from gnnplace.tracing.guards.fingerprint import MEMORY as MEMORY
    from gnnplace.tracing.guards.fingerprint import STATE as STATE
    from gnnplace.tracing.guards.fingerprint import Fingerprint as Fingerprint
    from gnnplace.tracing.guards.fingerprint import (
        note_attribute_reads as note_attribute_reads,
    )
    from gnnplace.tracing.guards.numbering import Numbering as Numbering
    from gnnplace.tracing.guards.proof import Proof as Proof
    from gnnplace.tracing.guards.proof import Replay as Replay
    from gnnplace.tracing.guards.proof import batch_statistics as batch_statistics
    from gnnplace.tracing.guards.proof import differs_later as differs_later
    from gnnplace.tracing.guards.proof import lasting as lasting
    from gnnplace.tracing.guards.proof import prove as prove
    from gnnplace.tracing.guards.proof import prove_apart as prove_apart
    from gnnplace.tracing.guards.watch import other_autocasts as other_autocasts
    from gnnplace.tracing.guards.watch import other_generators as other_generators
    from gnnplace.tracing.guards.watch import watch_step as watch_step

__getattr__, __dir__ = lazy_names(__name__)
