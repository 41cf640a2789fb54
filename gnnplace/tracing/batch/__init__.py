"""Converts a step over a batch into steps over shares of the batch, such as micro-batches.

`Cutter` follows the batch from the inputs to the loss (`follow`), op by op, by the rules with which
layers are split. It proves that the mean of the shares' losses is the loss of the batch, or repairs
the share's graph so that it is, or refuses it. The numbers of the batch and of its shares are also
compared. `CutBatch` (in `gnnplace.tracing.program`) then splits later batches in the same way.

Capture and plans call it. It never chooses the number of shares.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.tracing.batch.cut import batch_axes as batch_axes
    from gnnplace.tracing.batch.cutter import ADDED as ADDED
    from gnnplace.tracing.batch.cutter import EVEN as EVEN
    from gnnplace.tracing.batch.cutter import MEND as MEND
    from gnnplace.tracing.batch.cutter import SUMMED as SUMMED
    from gnnplace.tracing.batch.cutter import UNSAID as UNSAID
    from gnnplace.tracing.batch.cutter import Cutter as Cutter
    from gnnplace.tracing.batch.cutter import UncutBatch as UncutBatch
    from gnnplace.tracing.batch.cutter import finish_share as finish_share
    from gnnplace.tracing.batch.state import UNRULED as UNRULED

__getattr__, __dir__ = lazy_names(__name__)
