"""The decoder's walk in torch, one decision at a time: what its kernel is compared with."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnnplace.policy.decode import decoder_state, kernels
from gnnplace.policy.decode.decoder_state import Goal
from gnnplace.policy.decode.kernels import DYNAMIC
from gnnplace.policy.decode.ready_queue import FIXED, next_op, release, start_queue
from gnnplace.policy.decode.walk import Walk

IntArray = NDArray[np.int32]


def _first_best(scores: Tensor) -> int:
    """The first candidate of the best score; equal candidates may differ by rounding in torch."""
    best = float(scores.max())
    return int((scores >= best - 1e-5 * (1.0 + abs(best))).int().argmax())


def scored(weights: Tensor, features: Tensor, allowed: Tensor) -> Tensor:
    """Scores of candidates, -inf of others. [..., D]"""
    return (features @ weights).masked_fill(~allowed, -torch.inf)


def decode(
    weights: Tensor,
    walk: Walk,
    order: IntArray,
    goal: Goal,
    margin: float = 0.0,
) -> IntArray:
    """Device of each unit, the best-scored candidate each time. [U]

    Args:
        weights: the weight of each feature. [F]
        walk: the problem.
        order: visited ops. [m]
        goal: what to aim at.
        margin: on the bytes at the peak, for the memory mask.
    """
    num_devices = walk.time.shape[1]
    state = decoder_state.start_state(walk)
    features = np.zeros((num_devices, len(DYNAMIC)), dtype=np.float32)
    scratch = np.zeros((kernels.SCRATCH, num_devices))
    allowed = np.zeros(num_devices, dtype=np.bool_)
    by_time = goal.rule != FIXED
    queue = start_queue(walk, order, by_time)  # a list that numba would copy
    for k in range(len(walk.unit)):
        i = next_op(walk, state, queue, order, goal.rule) if by_time else order[k]
        unit = walk.unit[i]
        if state.device[unit] < 0:
            decoder_state.candidates(walk, state, unit, goal.limit, margin, allowed)
            kernels.observe(walk, state, i, goal, allowed, scratch, features)
            scores = scored(
                weights, torch.from_numpy(features), torch.from_numpy(allowed)
            )
            decoder_state.decide(walk, state, unit, _first_best(scores))
        decoder_state.book(walk, state, i)
        if by_time:
            release(queue, i, state.booked.finish[i])
    return state.device
