"""What a walk over a large graph will read soon, asked of memory before (``graph.ahead``).

The op after the visited one is known: the next of a fixed order, or the first in the queue of ops
that are due, where one of the two behind it mostly follows. Of those two the places of what they
need are asked for, of the next one what stands there: its inputs, neighbours and consumers, all
over memory. No decision depends on it. Complexity: O(inputs + flows) an op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnplace.arrays import IntArray
from gnnplace.graph.ahead import ahead
from gnnplace.graph.jit import inner
from gnnplace.policy.decode.ready_queue import Queue
from gnnplace.policy.decode.walk import Walk
from gnnplace.simulation.indices import ONE, Index

if TYPE_CHECKING:
    from gnnplace.policy.decode.decoder_state import State

FAR = 50_000  # ops whose arrays are more than the processor keeps at hand


@inner(_nrt=False)
def approach(
    walk: Walk, state: State, queue: Queue, order: IntArray, k: int, by_time: bool
) -> None:
    """Asks for what the ops after the ``k``-th visited will need; arguments as of ``decode``."""
    if by_time:
        if queue.spare[1] > 2:
            for place in range(1, 3):
                approach_places(walk, queue, order[queue.due[place]], by_time)
            approach_values(walk, state, queue, order[queue.due[0]], by_time)
    elif k + 3 < len(order):
        approach_places(walk, queue, order[k + 3], by_time)
        approach_values(walk, state, queue, order[k + 1], by_time)


@inner(_nrt=False)
def approach_places(walk: Walk, queue: Queue, i: int, by_time: bool) -> None:
    """Asks for an op's own rows, and for where those of its neighbours are."""
    i = Index(i)
    u = Index(walk.unit[i])
    ahead(walk.before_offset, i)
    ahead(walk.time, i)
    ahead(walk.unit_time, u)
    ahead(walk.flow_offset, u)
    ahead(walk.after, i)
    ahead(walk.unit_work, u)
    ahead(walk.unit_state, u)
    ahead(walk.unit_peak, u)
    if by_time:
        ahead(queue.offset, i)


@inner(_nrt=False)
def approach_values(walk: Walk, state: State, queue: Queue, i: int, by_time: bool) -> None:
    """Asks for what is known of an op's inputs, neighbours and consumers."""
    i = Index(i)
    u = Index(walk.unit[i])
    ahead(state.finish, i)
    ahead(state.device, u)
    for k in range(Index(walk.before_offset[i]), Index(walk.before_offset[i + ONE])):
        ahead(state.finish, walk.before[k])
        ahead(state.arrival, walk.before_tensor[k])
        ahead(state.device, walk.unit[Index(walk.before[k])])
        ahead(walk.before_size, k)
    for k in range(Index(walk.flow_offset[u]), Index(walk.flow_offset[u + ONE])):
        ahead(state.device, walk.flow_unit[k])
        ahead(walk.flow_in, k)
        ahead(walk.flow_out, k)
    if by_time:
        for k in range(Index(queue.offset[i]), Index(queue.offset[i + ONE])):
            ahead(queue.ready, queue.after[k])
            ahead(queue.missing, queue.after[k])
            ahead(queue.rank, queue.after[k])
