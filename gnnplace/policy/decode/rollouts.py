"""Decoding a problem with a policy: one decode, its sequence, the first choice, samples.

One placement decodes under the most promising aims (``aims``) and keeps the best by
simulation. Samples, for learning, add Gumbel noise to the scores, which draws from the softmax.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from gnnplace.arrays import BoolArray, FloatArray, IntArray, SingleArray
from gnnplace.graph import COORDINATE, Direction
from gnnplace.placers import LARGE, Found, SearchSpace, read_clock, round_priority
from gnnplace.policy.decode import kernels, ready_queue
from gnnplace.policy.decode.aims import (
    ANY_LOAD,
    DECODED,
    RULES,
    Aim,
    chunk_plan,
    possible_aims,
)
from gnnplace.policy.decode.decoder_state import DecisionRecord, Goal, PartialSchedule
from gnnplace.policy.decode.kernels import DYNAMIC
from gnnplace.policy.decode.ordering import best_order, order_by_justification
from gnnplace.policy.decode.walk import WalkGraph
from gnnplace.policy.weights import PolicyWeights
from gnnplace.simulation import justify

if TYPE_CHECKING:  # who trains has parameters of torch, who places has arrays
    from torch import Tensor

    from gnnplace.policy.network import PlacementPolicy

MARGINS = (1.1, 1.6, 2.4)  # on the bytes at the peak, where memory matters
SHARE = 1 / 8  # The share of the time for aims beyond those
MOST_AIMS = 12  # The most aims of the first choice


@dataclass(frozen=True, eq=False)
class Walked:
    """The decisions of one decode.

    Attributes:
        unit_device: device of each unit. [U]
        order: all ops as the decoder booked them in time; None where it did not visit them all,
            or not along the edges. [n]
    """

    unit_device: IntArray
    order: IntArray | None = None


@dataclass(frozen=True, eq=False)
class Decoded:
    """A placement by the policy.

    Attributes:
        score: predicted seconds, plus the penalty for memory above the limits.
        unit_device: device of each unit. [U]
        order: order of all ops. [n]
        aim: what it was decoded under.
        fits: whether no device's memory is exceeded.
    """

    score: float
    unit_device: IntArray
    order: IntArray
    aim: Aim
    fits: bool


SCORE = attrgetter("score")  # Ranks decodes


@dataclass(frozen=True, eq=False)
class Decisions:
    """The decoder's features at each decision of one decode, for learning. S decisions.

    Attributes:
        features: the features of each candidate. [S, D, F]
        allowed: the candidates. [S, D]
        step: visited op of each decision. [S]
        unit: unit of each decision. [S]
        device: device of each decision. [S]
    """

    features: SingleArray
    allowed: BoolArray
    step: IntArray
    unit: IntArray
    device: IntArray


def weight_array(weights: Tensor | SingleArray) -> SingleArray:
    """Return the weights of features as kernels take them. [F]"""
    if isinstance(weights, np.ndarray):
        array = weights
    else:
        array = weights.detach().numpy()
    return np.ascontiguousarray(array, dtype=np.float32)


class Rollouts:
    """A decoder of one problem with one policy.

    Args:
        space: the problem with its simulator and its units.
        policy: The policy whose weights score candidates.
        orders: traversal orders to decode under.
    """

    def __init__(
        self,
        space: SearchSpace,
        policy: PlacementPolicy | PolicyWeights,
        orders: tuple[str, ...] = DECODED,
    ) -> None:
        self.space = space
        self.policy = policy
        self.orders = orders
        self.graph = WalkGraph(space)
        self.weights = weight_array(policy.decoder)
        self.orders_made: dict[str, IntArray] = {}
        self.plans: dict[tuple[int, int, float, bool], IntArray] = {}
        self.margins = MARGINS if space.memory_matters else (0.0,)

    @cached_property
    def aims(self) -> list[Aim]:
        """Return all aims, the most promising first."""
        return possible_aims(
            self.space.problem, self.orders, tight=self.space.memory_matters
        )

    def goal(self, aim: Aim, margin: float = 0.0) -> Goal:
        """Return an aim as the decoder takes it: micro-batches by coordinate go in chunks."""
        chunks = aim.order == COORDINATE and aim.limit > 1
        plan = self.plan(aim, margin, chunks=chunks)
        rule = RULES.get(aim.order, ready_queue.FIXED)
        return Goal(
            limit=aim.limit,
            rounds=aim.rounds,
            chunks=int(chunks),
            plan=plan,
            lean=aim.lean,
            rule=rule,
        )

    def plan(self, aim: Aim, margin: float, *, chunks: bool) -> IntArray:
        """Return the chunk plan of an aim, made once; -1 for every unit without chunks. [U]"""
        if chunks:
            key = (aim.limit, aim.rounds, margin, aim.lean == ANY_LOAD)
        else:
            key = (0, 0, 0.0, False)
        if key not in self.plans:
            nowhere = np.full(self.space.problem.num_units, -1, np.int32)
            self.plans[key] = chunk_plan(self.graph, *key) if chunks else nowhere
        return self.plans[key]

    def order(self, name: str) -> IntArray:
        """Return the visited ops in a traversal order, made once. [m]"""
        if name not in self.orders_made:
            self.orders_made[name] = self.graph.order(
                "upward-rank" if name in RULES else name
            )
        return self.orders_made[name]

    def walk(
        self, aim: Aim, *, noise: SingleArray | None = None, margin: float | None = None
    ) -> Walked:
        """Decode once.

        Args:
            aim: what to aim at.
            noise: added to the scores. [U, D]
            margin: on the bytes at the peak, for the memory mask; None for the first.
        """
        if margin is None:
            margin = self.margins[0]
        state = self._decode(
            aim=aim,
            noise=noise,
            forced=None,
            margin=margin,
            rows=0,
        )[0]
        return Walked(state.device, self._order_by_booking(aim, state.booked.finish))

    def _order_by_booking(self, aim: Aim, finish: FloatArray) -> IntArray | None:
        """Return the ops in the order of their booked times, if that is an order of the whole
        graph. [n]
        """
        if len(finish) < self.space.problem.num_ops:
            return None
        direction = self.graph.direction(aim.order)
        if direction == Direction.NEITHER:
            return None
        if direction == Direction.CONSUMERS:
            finish = -finish
        position = self.graph.graph.position
        return np.lexsort((position, finish)).astype(np.int32)

    def watch(self, aim: Aim, forced: IntArray) -> Decisions:
        """Return what the decoder sees while it follows (or, where -1, makes) the decisions
        ``forced``.
        """
        state, features, masks, step, count = self._decode(
            aim=aim,
            noise=None,
            forced=forced,
            margin=self.margins[0],
            rows=self.space.problem.num_units,
        )
        unit = self.graph.unit[step[:count]]
        return Decisions(
            features=features[:count],
            allowed=masks[:count],
            step=step[:count],
            unit=unit,
            device=state.device[unit],
        )

    def _decode(
        self,
        aim: Aim,
        noise: SingleArray | None,
        forced: IntArray | None,
        margin: float,
        rows: int,
    ) -> tuple[PartialSchedule, SingleArray, BoolArray, IntArray, int]:
        walk = self.graph.walk(aim.order)
        num_devices = walk.time.shape[1]
        num_units = len(walk.unit_work)
        features = np.zeros((rows, num_devices, len(DYNAMIC)), np.float32)
        masks = np.zeros((rows, num_devices), np.bool_)
        step = np.zeros(rows, np.int32)
        state, count = kernels.decode(
            walk,
            self.weights,
            kernels.Decoding(
                order=self.order(aim.order),
                goal=self.goal(aim, margin),
                margin=margin,
                noise=np.zeros((0, num_devices), np.float32)
                if noise is None
                else noise,
                forced=np.full(num_units, -1, np.int32) if forced is None else forced,
            ),
            DecisionRecord(features, masks, step),
        )
        return state, features, masks, step, count

    def finish(
        self,
        aim: Aim,
        walked: Walked,
        deadline: float = np.inf,
        priorities: Sequence[FloatArray] = (),
    ) -> Decoded:
        """Order the devices of a decode by justification and simulate them.

        Of a large problem, after the deadline, in the order of the decoder's own bookings.

        Args:
            aim: What was aimed at. With rounds, micro-batches are also ordered by them.
            walked: What the decode decided.
            deadline: The time to be back.
            priorities: More priorities of ops, where there are several micro-batches. Each [n].
        """
        device = self.space.spread(walked.unit_device)
        late = self.space.problem.num_ops > LARGE and read_clock() >= deadline
        if late and walked.order is not None:
            score = self.space.score(device, walked.order)
            return self.decode_once(score, walked.unit_device, walked.order, aim)
        if self.space.problem.microbatches > 1 and aim.rounds > 1:
            priorities = [self.round_priority(aim.rounds), *priorities]
        score, order = order_by_justification(
            self.space, device, booked=walked.order, priorities=priorities
        )
        return self.decode_once(score, walked.unit_device, order, aim)

    def justify_placement(self, placement: Found) -> Decoded:
        """Return a placement of another placer, justified; the aim has its note as its order."""
        compiled = self.space.compiled
        device = placement.device
        justified = justify(compiled, self.space.reversed, device, placement.order)
        score, order = best_order(self.space, device, [placement.order, justified])
        unit_device = self.space.find_unit_devices(device)
        aim = Aim(placement.note, len(np.unique(unit_device)))
        return self.decode_once(score, unit_device, order, aim)

    def decode_once(
        self, score: float, unit_device: IntArray, order: IntArray, aim: Aim
    ) -> Decoded:
        """Return a placement of that score, and whether it fits."""
        fits = self.space.fits(self.space.spread(unit_device), order)
        return Decoded(
            score=score,
            unit_device=unit_device,
            order=order,
            aim=aim,
            fits=fits,
        )

    def round_priority(self, rounds: int) -> FloatArray:
        """Return the priority of ops by the round that their place in the graph belongs to. [n]"""
        rounds_before = (self.graph.place * rounds).astype(np.int32)
        of_unit = np.minimum(rounds_before, rounds - 1)
        return round_priority(self.space, of_unit[self.space.problem.unit_of])

    def decode(
        self, aim: Aim, margin: float | None = None, deadline: float = np.inf
    ) -> Decoded:
        """Return the policy's first choice under one aim, simulated."""
        return self.finish(aim, self.walk(aim, margin=margin), deadline)

    def noise(self, rng: np.random.Generator, temperature: float) -> SingleArray:
        """Draw Gumbel noise that makes the best score a draw from the softmax. [U, D]"""
        shape = (self.space.problem.num_units, self.space.problem.num_devices)
        return (temperature * rng.gumbel(size=shape)).astype(np.float32)

    def greedy(self, deadline: float = np.inf, most: int = MOST_AIMS) -> list[Decoded]:
        """Return first choices under the first ``most`` aims, the best first.

        With a deadline more aims are tried while less than ``SHARE`` of the time is gone; after it
        none is.
        """
        choices: list[Decoded] = []
        begun = read_clock()
        if deadline < np.inf:
            until = begun + SHARE * (deadline - begun)
        else:
            until = begun
        for tried, aim in enumerate(self.aims):
            if not choices or read_clock() < (deadline if tried < most else until):
                choices += self.decode_widened(aim, deadline)
        return sorted(choices, key=SCORE)

    def decode_widened(self, aim: Aim, deadline: float = np.inf) -> list[Decoded]:
        """Decode under one aim with wider and wider margins, until one fits the memory."""
        decodes: list[Decoded] = []
        for margin in self.margins:
            decodes.append(self.decode(aim, margin, deadline))
            if decodes[-1].fits:
                break
        return decodes
