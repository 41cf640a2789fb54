"""Decoding one problem with the GNN: the greedy decode, samples, and the inputs of each decision.

Only the network decides the devices of a decode. Sequences come from justification
(``policy.decode.ordering``), as for the learned placer.

With Gumbel noise on the scores the highest score is a draw from the softmax. If each decision has
independent noise, hundreds of decisions never agree by chance. Shared noise moves whole clusters to
a device: for a random level, the noise is ``SHARED`` times the cluster's plus ``OWN`` times the
unit's. Such draws are not samples of the network's distribution, but any placement can be a label.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from gnnplace.arrays import BoolArray, FloatArray, IntArray, SingleArray
from gnnplace.graph import get_base_order
from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.aims import list_device_limits
from gnnplace.policy.decode.decoder_state import DecisionRecord
from gnnplace.policy.decode.ordering import order_by_justification
from gnnplace.policy.decode.walk import Walk, WalkGraph
from gnnplace.policy.gnn import kernels
from gnnplace.policy.gnn.clusters import NUM_CANDIDATE, Clusters, build_clusters
from gnnplace.policy.gnn.encoder import EncoderInputs
from gnnplace.policy.gnn.features import device_features
from gnnplace.policy.gnn.kernels import DecoderNetwork
from gnnplace.policy.gnn.learned_order import (
    draw_order,
    first_priority,
    priority_order,
)
from gnnplace.policy.gnn.network import GnnPolicy, make_tensors
from gnnplace.processes import torch_threads
from gnnplace.simulation import ROUNDING

SHARED, OWN = (0.5, 4.0), 0.3  # temperatures; the first is drawn between its bounds
MARGIN = 1.1  # on the bytes at the peak, where memory matters


def gumbel_noise(
    rng: np.random.Generator, count: int, units: int, devices: int
) -> SingleArray:
    """Draw noise of each decision's own. [count, units, devices]"""
    return rng.gumbel(size=(count, units, devices)).astype(np.float32)


def draw_shared_noise(
    rng: np.random.Generator, count: int, clusters: IntArray, devices: int
) -> SingleArray:
    """Draw noise that is shared within clusters of a random level. [count, U, devices]

    Args:
        rng: The random numbers.
        count: the number of draws.
        clusters: cluster of each unit at each level. [levels, U]
        devices: the number of devices.
    """
    unit_noise = OWN * gumbel_noise(rng, count, clusters.shape[1], devices)
    for noise in unit_noise:
        of = clusters[int(rng.integers(len(clusters)))]
        of = of - of.min()
        temperature = np.exp(rng.uniform(*np.log(SHARED)))
        num_clusters = int(of.max()) + 1
        cluster_noise = temperature * rng.gumbel(size=(num_clusters, devices))
        noise += cluster_noise[of]
    return unit_noise


class Drawn(NamedTuple):
    """The results of decodes of one problem.

    Attributes:
        unit_device: device of each unit. [B, U]
        order: visited ops in the order of each walk, or one for all. [B, m] or [1, m]
        limit: number of devices that all of them may use.
    """

    unit_device: IntArray
    order: IntArray
    limit: int


@dataclass(frozen=True, eq=False)
class SeenDecodes:
    """The network's features in B decodes of one problem. S decisions each.

    Attributes:
        features: the features of each candidate. [B, S, D, F]
        allowed: the candidates. [B, S, D]
        step: visited op of each decision. [B, S]
        device: device of each decision. [B, S]
    """

    features: SingleArray
    allowed: BoolArray
    step: IntArray
    device: IntArray


class Episodes:
    """A problem as the GNN walks it; what does not depend on the network is made once.

    Args:
        space: the problem with its simulator and its units.
        order: the traversal order, or the network's own (`get_base_order`).
        graph: what is walked, where it has been made before.
    """

    def __init__(
        self, space: SearchSpace, order: str, graph: WalkGraph | None = None
    ) -> None:
        self.space = space
        self.name = order
        self.base = get_base_order(order)
        self.graph = graph or WalkGraph(space)
        if space.memory_matters:
            self.margin = MARGIN
        else:
            self.margin = 0.0

    @cached_property
    def walk(self) -> Walk:
        """Return the problem in the direction of the order. Learned orders list producers first."""
        if self.base is None:
            return self.graph.walk(self.name)
        return self.graph.forward

    @cached_property
    def order(self) -> IntArray:
        """Return the visited ops in the traversal order, or the base order of a learned one. [m]"""
        return self.graph.order(self.base or self.name)

    @cached_property
    def clusters(self) -> Clusters:
        """Return the clusters of the problem's units."""
        return build_clusters(self.graph)

    @cached_property
    def inputs(self) -> EncoderInputs:
        """Return the encoder's inputs."""
        return make_tensors(self.graph, self.clusters)

    @cached_property
    def devices(self) -> Tensor:
        """Return the features of each device before anything is placed. [D, len(DEVICE)]"""
        return torch.from_numpy(device_features(self.graph))

    @cached_property
    def alike(self) -> bool:
        """Return whether all devices are equally fast."""
        return bool(np.ptp(self.walk.device_time) == 0.0)

    @torch.no_grad()
    def network(self, policy: GnnPolicy) -> DecoderNetwork:
        """Return a policy's parameters and what its encoder says of the problem.

        On one thread: on small graphs several wait for each other longer than they work.
        """
        with torch_threads(1):
            return policy.network(policy.states([self.inputs]), self.devices)

    def orders(
        self, network: DecoderNetwork, count: int = 0, rng: Generator | None = None
    ) -> IntArray:
        """Return the visited ops in the order of the greedy walk, and of draws. [1 or 1 + count, m]

        Args:
            network: The network whose priorities order the ops, if the order is learned.
            count: draws of a learned order.
            rng: what they are drawn with.
        """
        if self.base is None:
            return self.order[None]
        priority = self.priority(network)
        graph = self.graph.graph
        if rng:
            drawn = [draw_order(graph, priority, rng) for _ in range(count)]
        else:
            drawn = []
        return np.stack([priority_order(graph, priority), *drawn])

    def priority(self, network: DecoderNetwork) -> FloatArray:
        """Return the priority of each visited op in a learned order. [m]"""
        first = first_priority(self.order)
        if len(network.priority):
            return first + network.priority
        return first

    def greedy(self, network: DecoderNetwork, limit: int | None = None) -> IntArray:
        """Return the device of each unit by the best score at every decision. [U]

        Args:
            network: the decoder's parameters, and what the encoder says of the problem.
            limit: number of devices to use, or None for the network's choice.
        """
        return self._decode(
            network, None, self.orders(network), limit or network.limit
        )[0]

    def samples(
        self,
        network: DecoderNetwork,
        count: int,
        rng: Generator,
        shared: int = 0,
        temperature: float = 1.0,
        limit: int | None = None,
    ) -> Drawn:
        """Return the greedy decode and ``draws``, whose arguments these are. [1 + count + shared,
        U]
        """
        drawn = self.draws(network, count, rng, shared, temperature, limit)
        greedy = self._decode(network, None, drawn.order[:1], drawn.limit)
        return drawn._replace(unit_device=np.concatenate([greedy, drawn.unit_device]))

    def draws(
        self,
        network: DecoderNetwork,
        count: int,
        rng: Generator,
        shared: int = 0,
        temperature: float = 1.0,
        limit: int | None = None,
    ) -> Drawn:
        """Return the draws, and draws by cluster, with the greedy walk's order before theirs.

        Their devices are [count + shared, U].

        Args:
            network: the decoder's parameters, and what the encoder says of the problem.
            count: draws from the softmax, and from the order if it is learned.
            rng: what they are drawn with.
            shared: further draws with noise that units of a cluster share.
            temperature: what scores are divided by before the softmax of draws.
            limit: number of devices to use, or None for the network's choice.
        """
        limit = limit or network.limit
        units = self.space.problem.num_units
        devices = self.space.problem.num_devices
        noise = temperature * gumbel_noise(rng, count, units, devices)
        noise = np.concatenate(
            [noise, draw_shared_noise(rng, shared, self.clusters.of, devices)]
        )
        order = self.orders(network, count + shared, rng)
        drawn = self._decode(
            network, noise, order[1:] if len(order) > 1 else order, limit
        )
        return Drawn(drawn, order, limit)

    def each(
        self,
        network: DecoderNetwork,
        count: int,
        rng: Generator,
        temperature: float = 1.0,
    ) -> Iterator[IntArray]:
        """Yield greedy decodes and draws, ``1 + count``, one after the other as they are asked for.

        First the greedy decode, then greedy decodes for other numbers of devices above one, then
        draws for each number in turn. Each [U]
        """
        limits = self.limits
        greedy = self.greedy_limits(network)[: 1 + count]
        for limit in greedy:
            yield self.greedy(network, limit)
        for limit in islice(cycle(limits), 1 + count - len(greedy)):
            drawn = self.draws(network, 1, rng, temperature=temperature, limit=limit)
            yield drawn.unit_device[0]

    @property
    def limits(self) -> list[int]:
        """Return the numbers of devices that decodes may use, all of them first."""
        limits = list_device_limits(self.space.problem.num_devices)
        above_one = [limit for limit in limits[::-1] if limit > 1]
        return above_one or [1]

    def greedy_limits(self, network: DecoderNetwork) -> list[int]:
        """Return the number of devices that the network chose, then the others above one."""
        remaining = [limit for limit in self.limits if limit != network.limit]
        return [network.limit, *remaining]

    def seen(self, network: DecoderNetwork, drawn: Drawn) -> SeenDecodes:
        """Return what the network sees when it decides as it is told."""
        unit_device = drawn.unit_device
        (count, num_units), num_devices = (
            unit_device.shape,
            self.space.problem.num_devices,
        )
        features = np.zeros((count, num_units, num_devices, NUM_CANDIDATE), np.float32)
        masks = np.zeros((count, num_units, num_devices), np.bool_)
        step = np.zeros((count, num_units), np.int32)
        record = DecisionRecord(features, masks, step)
        self._run(
            network=network,
            noise=None,
            forced=unit_device,
            record=record,
            order=drawn.order,
            limit=drawn.limit,
        )
        device = np.take_along_axis(unit_device, self.graph.unit[step], axis=1)
        return SeenDecodes(
            features=features,
            allowed=masks,
            step=step,
            device=device,
        )

    def _decode(
        self,
        network: DecoderNetwork,
        noise: SingleArray | None,
        order: IntArray,
        limit: int,
    ) -> IntArray:
        count = 1 if noise is None else len(noise)
        problem = self.space.problem
        forced = np.full((count, problem.num_units), -1, np.int32)
        empty = np.zeros((count, 0, problem.num_devices, NUM_CANDIDATE), np.float32)
        masks = np.zeros((count, 0, problem.num_devices), np.bool_)
        step = np.zeros((count, 0), np.int32)
        record = DecisionRecord(empty, masks, step)
        return self._run(
            network=network,
            noise=noise,
            forced=forced,
            record=record,
            order=order,
            limit=limit,
        )

    def _run(
        self,
        network: DecoderNetwork,
        noise: SingleArray | None,
        forced: IntArray,
        record: DecisionRecord,
        order: IntArray,
        limit: int,
    ) -> IntArray:
        num_devices = self.space.problem.num_devices
        device = np.empty_like(forced)
        if noise is None:
            noise = np.zeros((len(forced), 0, num_devices), np.float32)
        batch = kernels.DecodeBatch(order, noise, forced, *record, device)
        kernels.decode(self.walk, self.clusters, network, batch, limit, self.margin)
        return device

    def sequence(self, unit_device: IntArray) -> tuple[float, IntArray]:
        """Return the score of a decode, and its order of all ops, by justification. [n]"""
        device = self.space.spread(unit_device)
        by_rank = self.space.priorities[:1]
        return order_by_justification(self.space, device, priorities=by_rank)

    def seconds(self, unit_device: IntArray, cutoff: float = np.inf) -> float:
        """Return the score of a decode: predicted seconds, penalties included.

        Infinity where the work of one device takes longer than the cutoff.
        """
        times = self.space.work[np.arange(len(unit_device)), unit_device]
        if np.bincount(unit_device, times).max() > cutoff * (1.0 + ROUNDING):
            return np.inf
        return self.sequence(unit_device)[0]
