"""The other objective: seconds between two steps of a pipeline that never runs empty."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.placers.throughput.placer import (
        ContiguousThroughput as ContiguousThroughput,
    )
    from gnnplace.placers.throughput.placer import Throughput as Throughput
    from gnnplace.placers.throughput.placer import ThroughputResult as ThroughputResult
    from gnnplace.placers.throughput.placer import with_interval as with_interval

__getattr__, __dir__ = lazy_names(__name__)
