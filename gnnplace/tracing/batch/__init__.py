"""Batches: which objects one may be, and how a step over a batch becomes steps over its shares.

`as_inputs` takes whatever a data loader yields and registers its types. `Cutter` shows that the
mean of the shares' losses is the loss of the batch, repairs the share's graph where it is not, or
refuses it. `CutBatch` travels with the program and cuts later batches likewise.

Capture, sharding and the training step call it. It never chooses the number of shares.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.tracing.batch.cut import GIVEN as GIVEN
    from gnnplace.tracing.batch.cut import CutBatch as CutBatch
    from gnnplace.tracing.batch.cut import batch_axes as batch_axes
    from gnnplace.tracing.batch.cutter import ADDED as ADDED
    from gnnplace.tracing.batch.cutter import EVEN as EVEN
    from gnnplace.tracing.batch.cutter import MEND as MEND
    from gnnplace.tracing.batch.cutter import SUMMED as SUMMED
    from gnnplace.tracing.batch.cutter import UNSAID as UNSAID
    from gnnplace.tracing.batch.cutter import Cutter as Cutter
    from gnnplace.tracing.batch.cutter import UncutBatch as UncutBatch
    from gnnplace.tracing.batch.cutter import finished as finished
    from gnnplace.tracing.batch.numbers import NEGLIGIBLE as NEGLIGIBLE
    from gnnplace.tracing.batch.numbers import SCALES as SCALES
    from gnnplace.tracing.batch.numbers import TOLERANCE as TOLERANCE
    from gnnplace.tracing.batch.numbers import VANISHED as VANISHED
    from gnnplace.tracing.batch.numbers import coarsest as coarsest
    from gnnplace.tracing.batch.numbers import largest_of as largest_of
    from gnnplace.tracing.batch.numbers import relative_error as relative_error
    from gnnplace.tracing.batch.objects import NAMED as NAMED
    from gnnplace.tracing.batch.objects import BatchStructure as BatchStructure
    from gnnplace.tracing.batch.objects import as_inputs as as_inputs
    from gnnplace.tracing.batch.objects import leaves_by_path as leaves_by_path
    from gnnplace.tracing.batch.objects import refuse_input_gradients as refuse_input_gradients
    from gnnplace.tracing.batch.objects import register_types as register_types
    from gnnplace.tracing.batch.state import UNRULED as UNRULED

__getattr__, __dir__ = lazy_names(__name__)
