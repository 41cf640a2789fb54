"""Records a forward pass as a list of calls of torch functions (`CallGraph`): the model's layers.

`record_calls` runs the pass once and proves that the recorded calls compute what the user's step
does. Identical layers are found while it runs, so that the proof can leave most of them out.
`OutputModule` is the step of a model without a loss.

Splits of layers and joint plans call it through the face of the room. It never cuts a batch and
never prices a call.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.tracing.recording.recorder import PREFIX as PREFIX
    from gnnplace.tracing.recording.recorder import OutputModule as OutputModule
    from gnnplace.tracing.recording.recorder import record_calls as record_calls

__getattr__, __dir__ = lazy_names(__name__)
