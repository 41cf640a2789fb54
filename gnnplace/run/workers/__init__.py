"""Worker processes under supervision, on one machine or several, and how they exchange tensors.

Main types and verbs:

* `run_tasks`, `Task`: functions run in forked processes; one that dies, raises or hangs ends all of
  them with one `ExecutionError`. `Crew`: workers that stay and answer requests.
* `Board`: shared words of progress and a barrier. `Transport`: how tensors travel between workers
  (shared memory, gloo); `NetworkTransport` between `Hosts`, which torchrun starts.
* `measure_link`: what a message takes here. `run_group`: a process group of replicas on this
  machine. `side_by_side`: tasks on groups of cores at the same time.

The packages above it, the profiler (`costs/profiling`) and the runner of plans call it. It knows
no program and no placement, prices nothing and writes no file.
"""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.run.workers.board import ARRIVED as ARRIVED
    from gnnplace.run.workers.board import DONE as DONE
    from gnnplace.run.workers.board import OFFSET as OFFSET
    from gnnplace.run.workers.board import SEGMENT as SEGMENT
    from gnnplace.run.workers.board import STEP as STEP
    from gnnplace.run.workers.board import STRIDE as STRIDE
    from gnnplace.run.workers.board import WAITING as WAITING
    from gnnplace.run.workers.board import Board as Board
    from gnnplace.run.workers.crew import Crew as Crew
    from gnnplace.run.workers.hosts import Hosts as Hosts
    from gnnplace.run.workers.hosts import from_environment as from_environment
    from gnnplace.run.workers.links import measure_link as measure_link
    from gnnplace.run.workers.memory import WORD as WORD
    from gnnplace.run.workers.memory import Arena as Arena
    from gnnplace.run.workers.memory import PeakMemory as PeakMemory
    from gnnplace.run.workers.memory import StepPeak as StepPeak
    from gnnplace.run.workers.memory import copy_to_shared as copy_to_shared
    from gnnplace.run.workers.memory import make_shared_like as make_shared_like
    from gnnplace.run.workers.memory import make_shared_words as make_shared_words
    from gnnplace.run.workers.memory import storage_bytes as storage_bytes
    from gnnplace.run.workers.network import LOST as LOST
    from gnnplace.run.workers.network import NetworkTransport as NetworkTransport
    from gnnplace.run.workers.parallel import core_groups as core_groups
    from gnnplace.run.workers.parallel import side_by_side as side_by_side
    from gnnplace.run.workers.rig import Replica as Replica
    from gnnplace.run.workers.rig import Seconds as Seconds
    from gnnplace.run.workers.rig import meet as meet
    from gnnplace.run.workers.rig import run_group as run_group
    from gnnplace.run.workers.rig import time_steps as time_steps
    from gnnplace.run.workers.tasks import Task as Task
    from gnnplace.run.workers.tasks import WorkerFailure as WorkerFailure
    from gnnplace.run.workers.tasks import available_cores as available_cores
    from gnnplace.run.workers.tasks import describe as describe
    from gnnplace.run.workers.tasks import run_tasks as run_tasks
    from gnnplace.run.workers.transport import TRANSPORTS as TRANSPORTS
    from gnnplace.run.workers.transport import Message as Message
    from gnnplace.run.workers.transport import Receive as Receive
    from gnnplace.run.workers.transport import Send as Send
    from gnnplace.run.workers.transport import Transport as Transport
    from gnnplace.run.workers.transport import copying as copying
    from gnnplace.run.workers.transport import make_transport as make_transport

__getattr__, __dir__ = lazy_names(__name__)
