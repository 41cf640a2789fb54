"""The other objective: seconds between two steps of a pipeline that never runs empty."""

from gnnplace.throughput.placer import ContiguousThroughput as ContiguousThroughput
from gnnplace.throughput.placer import Throughput as Throughput
from gnnplace.throughput.placer import ThroughputResult as ThroughputResult
from gnnplace.throughput.placer import with_interval as with_interval
