"""The improvement walk: decides the device of every unit of a given placement again, in some order.

Formulation: every unit has a device from the start. A walk visits ops in a traversal order. At the
first op of a unit, the unit is removed from its device, and the decoder chooses among all candidate
devices, given the present devices of all other units. It sees the features of ``kernels.observe``:
loads, memory, transfers and neighbours count all other units, and times are those of the present
placement, booked up to the unit's first op. The unit moves only if another device's score is more
than ``stay`` better. The walks of Placeto (Addanki et al., NeurIPS 2019) and of Wang et al. (2022,
arXiv 2201.09676) are of this kind; their policy is a network that sees the start times of all ops.
As in theirs, the next walk begins from the best placement by simulation; but here a placement is
simulated once a walk, not after every visit.

Ops are booked by upward rank, whatever the order of visits, so that a producer's time is always
known. Orders that are found during construction (``in-time``, ``earliest-start``) need a partial
placement and are refused. Complexity: O(visits * (m + inputs)) a walk in the worst order; a walk by
upward rank is as quick as a decode, because each visit continues the bookings of the one before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gnnplace.arrays import IntArray, SingleArray
from gnnplace.errors import InputError
from gnnplace.graph import (
    Index,
    full_ints,
    inner,
    kernel,
    zero_flags,
    zero_ints,
    zero_single_table,
    zero_table,
)
from gnnplace.placers import SearchSpace, device_ranking, read_clock
from gnnplace.policy.decode import ready_queue
from gnnplace.policy.decode.aims import DECODED, RULES, Aim
from gnnplace.policy.decode.decoder_state import (
    DecisionRecord,
    DecisionRoom,
    PartialSchedule,
    book,
    decide,
    start_state,
)
from gnnplace.policy.decode.kernels import (
    NUM_DYNAMIC,
    SCRATCH,
    Decoding,
    look,
    only,
    score,
)
from gnnplace.policy.decode.rollouts import Decoded, Rollouts, Walked
from gnnplace.policy.decode.walk import Walk
from gnnplace.policy.weights import PolicyWeights

if TYPE_CHECKING:
    from gnnplace.policy.network import PlacementPolicy

BOOKED = "upward-rank"  # the order of bookings, which lists producers first
IMPROVED = tuple(order for order in DECODED if order not in RULES)


@inner(_nrt=False)
def take_off(walk: Walk, state: PartialSchedule, unit: int, units_on: IntArray) -> int:
    """Undo the decision for a unit and return the device that it leaves.

    Args:
        walk: The problem.
        state: A state in which every unit has a device; changed.
        unit: The unit.
        units_on: Number of units on each device; changed. [D]
    """
    old = int(state.device[unit])
    device = Index(old)
    seconds = walk.unit_time[unit, device]
    state.load[device] -= seconds if np.isfinite(seconds) else walk.unit_work[unit]
    state.state[device] -= walk.unit_state[unit]
    state.peak[device] -= walk.unit_peak[unit]
    state.sums[0] -= walk.unit_work[unit]
    state.device[unit] = -1
    units_on[device] -= 1
    if units_on[device] == 0:
        state.used[device] = False
        state.usage[0] -= 1
    return old


@inner(_nrt=False)
def forget_bookings(state: PartialSchedule) -> None:
    """Empty the schedule; units keep their devices."""
    booked = state.booked
    booked.finish[:] = -1.0
    booked.arrival[:, :] = -1.0
    booked.free[:] = 0.0
    booked.channel_free[:] = 0.0
    booked.sent[:] = 0.0


@inner(_nrt=False)
def best_move(
    weights: SingleArray,
    room: DecisionRoom,
    noise: SingleArray,
    unit: int,
    old: int,
    stay: float,
) -> int:
    """Return the candidate of the greatest score, or ``old`` unless another is ``stay`` better.

    Args:
        weights: The weight of each feature. [F]
        room: The candidates and their features.
        noise: Added to the scores of each unit's candidates. [U, D], or no rows
        unit: The unit.
        old: The device that the unit left.
        stay: Score that another device must be better by.
    """
    best = -np.inf
    choice = old
    noisy = len(noise) > 0
    if room.allowed[old]:
        best = score(weights, room.features, old) + stay
        if noisy:
            best += noise[unit, old]
    for d in range(len(room.allowed)):
        if not room.allowed[d] or d == old:
            continue
        value = score(weights, room.features, d)
        if noisy:
            value += noise[unit, d]
        if value > best:
            best = value
            choice = d
    return choice


@kernel
def improve(
    walk: Walk,
    weights: SingleArray,
    decoding: Decoding,
    booking: IntArray,
    present: IntArray,
    stay: float,
    record: DecisionRecord,
) -> tuple[IntArray, int]:
    """Visit every unit once and decide its device anew.

    Args:
        walk: The problem, from producers to consumers.
        weights: The weight of each feature. [F]
        decoding: Order, aims and noise. No device is forced.
        booking: Visited ops in the order of bookings, producers first. [m]
        present: Device of each unit before the walk. [U]
        stay: Score that another device must be better by.
        record: Out: every decision, or no rows if not wanted.

    Returns:
        Device of each unit after the walk, and the number of decisions. [U]
    """
    num_units, num_devices = walk.unit_time.shape
    state = start_state(walk)
    units_on = zero_ints(num_devices)
    for unit in range(num_units):
        decide(walk, state, unit, present[unit])
        units_on[present[unit]] += 1
    state.usage[1] = -1  # the walk has not decided anything yet
    state.sums[1] = 0.0
    # A unit is looked at where it is booked first: nothing of it stands in the schedule yet.
    first = full_ints(num_units, -1)
    for place in range(len(booking)):
        if first[walk.unit[booking[place]]] < 0:
            first[walk.unit[booking[place]]] = place
    visited = zero_flags(num_units)
    room = DecisionRoom(
        zero_flags(num_devices),
        zero_table(SCRATCH, num_devices),
        zero_single_table(num_devices, NUM_DYNAMIC),
    )
    num_booked = 0
    count = 0
    for op in decoding.order:
        unit = walk.unit[op]
        if visited[unit]:
            continue
        visited[unit] = True
        old = take_off(walk, state, unit, units_on)
        # Bookings before the unit's first op hold whatever the last decision was: that unit's own
        # first op is booked later.
        if first[unit] < num_booked:
            forget_bookings(state)
            num_booked = 0
        while num_booked < first[unit]:
            book(walk, state, booking[num_booked])
            num_booked += 1
        choice = old
        number = look(walk, state, booking[first[unit]], decoding, room, record, count)
        if number > 1:
            choice = best_move(weights, room, decoding.noise, unit, old, stay)
        elif number == 1:
            choice = only(room.allowed)
        decide(walk, state, unit, choice)
        units_on[choice] += 1
        count += 1
    return state.device, count


@dataclass(frozen=True)
class Improvement:
    """Settings of the improvement of placements.

    Attributes:
        walks: Improvement walks at most; they end with the first that is no better.
        stay: Score that another device must be better by, for a unit to move.
    """

    walks: int
    stay: float = 0.0


def check_orders(orders: Iterable[str]) -> None:
    """Refuse orders that no placement can be improved in.

    Raises:
        InputError: An order that the decoder finds while it constructs a placement.
    """
    for order in orders:
        if order in RULES:
            raise InputError(
                f"order {order!r}: is found while a placement is constructed; improve in another "
                "one, such as upward-rank, or leave improve out"
            )


class ImprovingRollouts(Rollouts):
    """Rollouts that improve a placement instead of constructing one.

    Walks begin from the placement that the search is given to start from, else with every unit on
    the fastest device that it may be on.

    Args:
        space: The problem with its simulator and its units.
        policy: The policy whose weights score candidates.
        improvement: How many walks there are.
        orders: Traversal orders to visit in.

    Raises:
        InputError: An order that the decoder finds while it constructs a placement.
    """

    def __init__(
        self,
        space: SearchSpace,
        policy: PlacementPolicy | PolicyWeights,
        improvement: Improvement,
        orders: tuple[str, ...] = IMPROVED,
    ) -> None:
        check_orders(orders)
        super().__init__(space, policy, orders)
        self.improvement = improvement

    def get_start(self) -> IntArray:
        """Return the device of each unit before the first walk. [U]"""
        if self.space.starts:
            return self.space.find_unit_devices(self.space.starts[0].device)
        allowed = np.isfinite(self.space.work)[:, device_ranking(self.space)]
        ranking = device_ranking(self.space)
        return ranking[allowed.argmax(axis=1)].astype(np.int32)

    def improve_once(
        self,
        aim: Aim,
        unit_device: IntArray,
        *,
        noise: SingleArray | None = None,
        margin: float | None = None,
    ) -> IntArray:
        """Return the device of each unit after one walk over a placement. [U]

        Args:
            aim: Order of the visits, and what the decoder aims at.
            unit_device: Device of each unit before the walk. [U]
            noise: Added to the scores. [U, D]
            margin: On the bytes at the peak, for the memory mask; None for the first.
        """
        num_units = self.space.problem.num_units
        num_devices = self.space.problem.num_devices
        if margin is None:
            margin = self.margins[0]
        decoding = Decoding(
            order=self.order(aim.order),
            goal=self.goal(aim, margin)._replace(rule=ready_queue.FIXED),
            margin=margin,
            noise=np.zeros((0, num_devices), np.float32) if noise is None else noise,
            forced=np.full(num_units, -1, np.int32),
        )
        unrecorded = DecisionRecord(
            np.zeros((0, num_devices, NUM_DYNAMIC), np.float32),
            np.zeros((0, num_devices), np.bool_),
            np.zeros(0, np.int32),
        )
        device, _ = improve(
            self.graph.forward,
            self.weights,
            decoding,
            self.order(BOOKED),
            unit_device.astype(np.int32),
            self.improvement.stay,
            unrecorded,
        )
        return device

    def decode(
        self, aim: Aim, margin: float | None = None, deadline: float = np.inf
    ) -> Decoded:
        """Return the best placement of improvement walks under one aim, simulated.

        A walk begins from the best placement so far; there is always one, and none begins after
        the deadline.

        Args:
            aim: Order of the visits, and what the decoder aims at.
            margin: On the bytes at the peak, for the memory mask; None for the first.
            deadline: The time to be back.
        """
        best = self.finish(aim, Walked(self.get_start()), deadline)
        for walk_index in range(self.improvement.walks):
            if walk_index > 0 and read_clock() >= deadline:
                break
            device = self.improve_once(aim, best.unit_device, margin=margin)
            placement = self.finish(aim, Walked(device), deadline)
            if placement.score >= best.score:
                break
            best = placement
        return best
