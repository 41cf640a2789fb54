"""The GNN's decoder in numba: the score of each candidate device, and whole decodes.

The partial schedule, its features and the candidates are those of ``policy.decode``; ``held`` adds
the share of the unit's clusters that is on the device. All features are inputs of the network; none
is added to a score. ``decoder`` has the same scores in torch, for learning.

Complexity of a decode: O(D * (m + inputs + flows + decisions * H * (F + K + H))).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gnnplace.arrays import BoolArray, IntArray, SingleArray
from gnnplace.graph import (
    Index,
    copy_rows,
    copy_to,
    full_ints,
    inner,
    kernel,
    zero_flags,
    zero_single_table,
    zero_singles,
    zero_table,
)
from gnnplace.policy.decode.decoder_state import (
    DecisionRecord,
    DecisionRoom,
    Goal,
    PartialSchedule,
    book,
    decide,
    start_state,
)
from gnnplace.policy.decode.kernels import SCRATCH, Decoding, look, only
from gnnplace.policy.decode.ready_queue import FIXED
from gnnplace.policy.decode.walk import Walk
from gnnplace.policy.gnn.clusters import (
    NUM_CANDIDATE,
    Clusters,
    hold,
    make_empty_holdings,
    observe_held,
)

EQUAL = np.float32(1e-4)  # difference of scores of devices that are alike


class DecoderNetwork(NamedTuple):
    """The decoder's parameters and what the encoder says of one problem.

    m visited ops, D devices, F features of a candidate, H hidden, K entries of a device's memory.

    Attributes:
        limit: how many devices to use at most.
        context: what the encoder says of each visited op to its own decision. [m, H]
        value: what it says of each visited op to later decisions. [m, K]
        device: what is known of each device before anything is placed. [D, H]
        first: Weights from a candidate's features to its first hidden layer. [F, H]
        memory_weight: Weights from a device's memory to the first hidden layer. [K, H]
        second: Weights from a candidate's first hidden layer to its second. [H, H]
        pooled: Weights from the mean of the candidates' first hidden layers to the second. [H, H]
        bias: the bias of the second hidden layer. [H]
        last: Weights from the second hidden layer to the score. [H]
        priority: what a learned order adds to the first priorities, else nothing. [m] or [0]
    """

    limit: int
    context: SingleArray
    value: SingleArray
    device: SingleArray
    first: SingleArray
    memory_weight: SingleArray
    second: SingleArray
    pooled: SingleArray
    bias: SingleArray
    last: SingleArray
    priority: SingleArray


class Scratch(NamedTuple):
    """Room for one decision, used over and over.

    Attributes:
        features: the features of each device. [D, F]
        allowed: the candidates. [D]
        memory: mean of the values of the units on each device, over all units. [D, K]
        hidden: hidden layers, their mean, and what the mean adds. [2 D + 2, H]
        part: what memory adds to the first layer. [D, H]
        scores: the scores of the candidates. [D]
    """

    features: SingleArray
    allowed: BoolArray
    memory: SingleArray
    hidden: SingleArray
    part: SingleArray
    scores: SingleArray


@inner()
def make_scratch(network: DecoderNetwork) -> Scratch:
    """Return empty room for decisions."""
    num_devices, hidden = network.device.shape
    return Scratch(
        zero_single_table(num_devices, NUM_CANDIDATE),
        zero_flags(num_devices),
        zero_single_table(num_devices, network.value.shape[1]),
        zero_single_table(2 * num_devices + 2, hidden),
        zero_single_table(num_devices, hidden),
        zero_singles(num_devices),
    )


@inner(fastmath={"contract", "reassoc"})
def score(network: DecoderNetwork, i: int, room: Scratch) -> None:
    """Score of each candidate for visited op ``i``; of the others nothing. ``room``: changed."""
    num_devices, size = network.device.shape
    zero = np.float32(0.0)
    first = room.hidden[:num_devices]
    second = room.hidden[num_devices : 2 * num_devices]
    mean = room.hidden[2 * num_devices]
    common = room.hidden[2 * num_devices + 1]
    np.dot(room.features, network.first, first)
    np.dot(room.memory, network.memory_weight, room.part)
    count = 0
    for h in range(size):
        mean[h] = zero
    for d in range(num_devices):
        count += room.allowed[d]
        for h in range(size):
            value = (
                first[d, h]
                + room.part[d, h]
                + network.device[d, h]
                + network.context[i, h]
            )
            first[d, h] = max(value, zero)
            if room.allowed[d]:
                mean[h] += first[d, h]
    for h in range(size):
        mean[h] /= np.float32(count)
    np.dot(mean, network.pooled, common)
    np.dot(first, network.second, second)
    for d in range(num_devices):
        total = zero
        for h in range(size):
            total += (
                max(second[d, h] + common[h] + network.bias[h], zero) * network.last[h]
            )
        room.scores[d] = total


@inner()
def choose(network: DecoderNetwork, i: int, room: Scratch, noise: SingleArray) -> int:
    """Return the candidate with the highest score and noise, the first among equals.

    Without noise candidates of equal scores are one: such devices cannot be told apart, and draws
    go to either of them. What counts is the probability of all of them.
    """
    noisy = len(noise) > 0
    score(network, i, room)
    best = -np.inf
    choice = 0
    for d in range(len(room.allowed)):
        if not room.allowed[d]:
            continue
        if noisy:
            value = room.scores[d] + noise[d]
        else:
            value = room.scores[d] + log_alike(room, d)
        if value > best + EQUAL:
            best = value
            choice = d
    return choice


@inner()
def log_alike(room: Scratch, d: int) -> float:
    """Return the log of the number of candidates whose scores are those of candidate ``d``."""
    count = 0
    for e in range(len(room.allowed)):
        count += room.allowed[e] and abs(room.scores[e] - room.scores[d]) < EQUAL
    return np.log(np.float32(count))


@inner(_nrt=False)
def remember(
    network: DecoderNetwork, room: Scratch, i: int, d: int, share: float
) -> None:
    """Add what the encoder says of visited op ``i`` to the memory of device ``d``."""
    for k in range(network.value.shape[1]):
        room.memory[d, k] += np.float32(share) * network.value[i, k]


@inner()
def walk_through(
    walk: Walk,
    clusters: Clusters,
    network: DecoderNetwork,
    decoding: Decoding,
    record: DecisionRecord,
) -> tuple[PartialSchedule, int]:
    """Decode once; arguments as of ``decode``, of one sample."""
    order = decoding.order
    noise = decoding.noise
    num_devices = walk.time.shape[1]
    num_units = len(walk.unit_work)
    state = start_state(walk)
    room = make_scratch(network)
    clusters_held = make_empty_holdings(clusters, num_devices)
    share = num_devices / num_units
    count = 0
    scratch = zero_table(SCRATCH, num_devices)
    decision_room = DecisionRoom(room.allowed, scratch, room.features)
    recorded = len(record.features) > 0
    for k in range(len(order)):
        i = Index(order[k])
        u = Index(walk.unit[i])
        # The first op of a unit decides for all: a unit shares one device.
        if state.device[u] < 0:
            choice = decoding.forced[u]
            number = look(walk, state, i, decoding, decision_room, record, count)
            if number > 1 or recorded:
                observe_held(clusters, clusters_held, u, room.allowed, room.features)
            if recorded:
                copy_rows(record.features[count], room.features)
            if choice < 0:
                choice = only(room.allowed)
                # The network is asked only where there is something to decide.
                if number > 1:
                    choice = choose(
                        network, i, room, noise[u] if len(noise) else noise[0:0, 0]
                    )
            decide(walk, state, u, choice)
            hold(walk, clusters, clusters_held, u, choice)
            remember(network, room, i, choice, share)
            count += 1
        book(walk, state, i)
    return state, count


class DecodeBatch(NamedTuple):
    """B decodes: what is given and, where there is room for it, what they decided.

    Attributes:
        order: Visited ops in the order of each walk, or one for all. [B, m] or [1, m]
        noise: Added to the scores of each unit's candidates. [B, U, D], or [B, 0, D] for none
        forced: Device of each unit, -1 for the network's choice. [B, U]
        features: Out: features of each decision. [B, U, D, F], or [B, 0, D, F] if not wanted
        masks: Out: candidates of each decision. [B, U, D], as ``features``
        step: Out: visited op of each decision. [B, U], as ``features``
        device: Out: device of each unit. [B, U]
    """

    order: IntArray
    noise: SingleArray
    forced: IntArray
    features: SingleArray
    masks: BoolArray
    step: IntArray
    device: IntArray


@kernel
def decode(
    walk: Walk,
    clusters: Clusters,
    network: DecoderNetwork,
    batch: DecodeBatch,
    limit: int,
    margin: float,
) -> int:
    """Decide a device for every unit, B times.

    Args:
        walk: the problem, as flat arrays in the walk's direction.
        clusters: the clusters of its units at every level.
        network: the parameters, and the encoder's word on the problem.
        batch: orders, noise and forced devices of the decodes; out: what they decided.
        limit: number of devices that each walk may use.
        margin: on the bytes at the peak, for the memory mask.

    Returns:
        The number of decisions of a decode, the same for all.
    """
    order, noise, forced, features, masks, step, device = batch
    count = 0
    nowhere = full_ints(device.shape[1], -1)
    goal = Goal(limit, 1, 0, nowhere, 0, FIXED)
    for b in range(len(device)):
        path = order[b if len(order) > 1 else 0]
        decoding = Decoding(path, goal, margin, noise[b], forced[b])
        record = DecisionRecord(features[b], masks[b], step[b])
        state, count = walk_through(walk, clusters, network, decoding, record)
        copy_to(device[b], state.device)
    return count
