"""Checks of what a run computes: a comparison with one process, or a dry run without numbers.

* `verify`, `reference_step`: a placed step against the same step in one process, tensor by tensor;
  `compare_with_whole_batch` compares it with eager PyTorch on the whole batch. `differences`,
  `Difference` and `Verification` are the comparison itself, which runs of plans use as well.
* `dry_run`, `DryRun`: every worker's source on tensors that claim to be on GPUs, so that a missing
  message or mixed devices are found without a GPU.

`measuring`, `plans` and `report` call it. It never times anything.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.run.checking.comparison import Difference as Difference
    from gnnplace.run.checking.comparison import Verification as Verification
    from gnnplace.run.checking.comparison import differences as differences
    from gnnplace.run.checking.dry_running import DryRun as DryRun
    from gnnplace.run.checking.dry_running import dry_run as dry_run
    from gnnplace.run.checking.dry_running import (
        parse_claimed_count as parse_claimed_count,
    )
    from gnnplace.run.checking.verification import WholeBatch as WholeBatch
    from gnnplace.run.checking.verification import (
        compare_with_whole_batch as compare_with_whole_batch,
    )
    from gnnplace.run.checking.verification import reference_step as reference_step
    from gnnplace.run.checking.verification import verify as verify

__getattr__, __dir__ = lazy_names(__name__)
