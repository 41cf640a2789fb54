"""Batches that are cut: how a step over a batch becomes steps over its shares.

`Cutter` follows the batch from the inputs to the loss (`follow`), op by op, by the rules that
layers are split by. It shows that the mean of the shares' losses is the loss of the batch, repairs
the share's graph where it is not, or refuses it. The numbers of the batch and of its shares are
compared as well. `CutBatch` (in `gnnplace.tracing.program`) then cuts later batches likewise.

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
    from gnnplace.tracing.batch.cutter import finished as finished
    from gnnplace.tracing.batch.state import UNRULED as UNRULED

__getattr__, __dir__ = lazy_names(__name__)
