"""The runtime room: worker processes under supervision, shared memory, transports, links."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.runtime.board import Board as Board
    from gnnplace.runtime.crew import Crew as Crew
    from gnnplace.runtime.hosts import Hosts as Hosts
    from gnnplace.runtime.links import measure_link as measure_link
    from gnnplace.runtime.transport import Message as Message
    from gnnplace.runtime.transport import Transport as Transport
    from gnnplace.runtime.workers import Task as Task
    from gnnplace.runtime.workers import available_cores as available_cores
    from gnnplace.runtime.workers import run_tasks as run_tasks

__getattr__, __dir__ = lazy_names(__name__)
