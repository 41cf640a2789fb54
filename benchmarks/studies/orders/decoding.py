"""One problem, decoded under one traversal order with given weights; the learned order.

What is scored is the policy's decode as ``LearnedPlacer`` makes it, without refinement and without
other orders: the walk decides devices, and the sequence is the best that is known for them
(``Rollouts.finish``). Aiming at all devices that is *one decode*; the *best size* is the best of
the decodes that aim at 1, 2, 4, ... and all devices.

**Orders that the decoder chooses itself.** ``in-time`` and ``earliest-start`` are rules on the
schedule so far (``policy/ready_queue.py``). ``learned`` is an order whose priorities are learned
along with the decoder: of the ready ops the one of the highest weighted sum of ``PRIORITIES`` comes
first, each standardised over the graph's ops. It begins as upward rank.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gnnplace.graph import kernels
from gnnplace.graph.orders import breadth_first, depth_first_post, depth_first_rank
from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.aims import Aim
from gnnplace.policy.decode.kernels import DYNAMIC
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.weights import PolicyWeights

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int32]
LEARNED = "learned"
STUDIED = (
    "topological",
    "reverse-topological",
    "breadth-first",
    "depth-first-pre",
    "depth-first-post",
    "depth-first-rank",
    "lexicographic",
    "upward-rank",
    "downward-rank",
    "reverse-upward-rank",
    "random",
    "coordinate",
    "in-time",
    "earliest-start",
    LEARNED,
)
PRIORITIES = (
    "upward rank",
    "downward rank",
    "earliness in topological order",
    "earliness breadth-first",
    "earliness depth-first, longest branch first",
    "earliness in reversed post-order",
    "log seconds",
    "consumers",
    "inputs",
    "bytes made less bytes taken",
)


class OneOrder:
    """A problem and a policy, to be decoded under one order after the other.

    Args:
        space: the problem.
        policy: its parameters are replaced by the weights that are given.
    """

    def __init__(self, space: SearchSpace, policy: PolicyWeights) -> None:
        self.space = space
        self.fixed = Rollouts(space, policy)
        self.following = Following(space, policy)

    def rollouts(self, order: str, weights: FloatArray) -> Rollouts:
        """The rollouts of an order, with the decoder's weights and, if it is learned, its own.

        Args:
            order: one of ``STUDIED``.
            weights: the weights of the decoder's features, then of ``PRIORITIES`` if the order is
                learned.
        """
        rollouts = self.following if order == LEARNED else self.fixed
        decoder, priority = np.split(weights.astype(np.float32), [len(DYNAMIC)])
        rollouts.weights = np.ascontiguousarray(decoder)
        if order == LEARNED:
            self.following.follow(priority)
        return rollouts

    def one(self, order: str, weights: FloatArray) -> float:
        """Seconds of one decode that aims at all devices."""
        return self._seconds(order, weights, [self.space.problem.num_devices])

    def best_size(self, order: str, weights: FloatArray) -> float:
        """Seconds of the best decode over all numbers of devices to aim at."""
        count = self.space.problem.num_devices
        powers = [2**e for e in range(count.bit_length()) if 2**e < count]
        return self._seconds(order, weights, [*powers, count])

    def _seconds(self, order: str, weights: FloatArray, limits: list[int]) -> float:
        rollouts = self.rollouts(order, weights)
        return min(rollouts.decode(aim_of(order, limit)).score for limit in limits)


def aim_of(order: str, limit: int) -> Aim:
    """What a decode under an order aims at; a learned order is walked as a topological one is."""
    return Aim("topological" if order == LEARNED else order, limit)


class Following(Rollouts):
    """Rollouts whose topological order is by learned priorities."""

    def follow(self, weights: NDArray[np.float32]) -> None:
        """Makes the order of these weights of ``PRIORITIES``."""
        graph = self.graph.graph
        first = np.argsort(
            -(self.priorities @ weights.astype(np.float64)), kind="stable"
        )
        self.orders_made["topological"] = np.asarray(
            kernels.order_producers_first(
                graph.successor_offset, graph.successor, first.astype(np.int32)
            )
        )

    @cached_property
    def priorities(self) -> FloatArray:
        """``PRIORITIES`` of each visited op, standardised. [m, P]"""
        w, g = self.graph, self.graph.graph
        taken = g.size[g.consumption_tensor]
        made = np.bincount(g.producer, g.size, g.num_ops)
        orders = (
            g.topological_order,
            breadth_first(g),
            depth_first_rank(g, w.cost, w.edge_cost),
            depth_first_post(g)[::-1],
        )
        columns: list[NDArray[Any]] = [
            w.up,
            w.down,
            *(-place_in(order) for order in orders),
        ]
        columns += [np.log(w.cost.clip(1e-9)), np.diff(g.successor_offset)]
        columns += [
            np.diff(g.predecessor_offset),
            made - np.bincount(g.consumer, taken, g.num_ops),
        ]
        table = np.stack(columns, axis=1).astype(np.float64)
        return np.asarray((table - table.mean(axis=0)) / table.std(axis=0).clip(1e-12))


def place_in(order: IntArray) -> FloatArray:
    """Place of each op in an order. [m]"""
    place = np.empty(len(order))
    place[order] = np.arange(len(order))
    return place


def start_weights(order: str, policy: PolicyWeights) -> FloatArray:
    """The policy's own weights, and upward rank for a learned order."""
    own = policy.decoder.astype(np.float64)
    return (
        np.concatenate([own, np.eye(1, len(PRIORITIES))[0]])
        if order == LEARNED
        else own
    )
