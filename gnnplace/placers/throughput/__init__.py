"""The other objective: seconds between two steps of a pipeline that never runs empty."""

from gnnplace.placers.throughput.placer import ContiguousThroughput as ContiguousThroughput
from gnnplace.placers.throughput.placer import Throughput as Throughput
from gnnplace.placers.throughput.placer import ThroughputResult as ThroughputResult
from gnnplace.placers.throughput.placer import with_interval as with_interval
