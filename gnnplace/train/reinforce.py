"""``Reinforce``: training of the GNN placer on step times of placements that it draws itself.

Formulation. The network draws K placements of a problem, decision by decision from the softmax of
its scores, and each is simulated. They are to use a random number of devices, and what a draw costs
is its seconds times its ``unevenness``: c(k). Three losses share the draws.

* **Self-labelling** (Corsini et al., 2024, arXiv 2401.11849). The placement of the problem of least
  cost that was ever drawn for that number of devices is the label of all its decisions: the mean
  over decisions of -log p(chosen). Nothing else is compared with it, so nothing can diverge.
* **Policy gradient** (Williams, 1992) as Wang et al. (2022, arXiv 2201.09676) train. The advantage
  of a draw is how far the log of its cost is below the mean of the other draws (leave-one-out:
  Kool et al., 2019), over the standard deviation of all of them, cut off at ``MOST``. The loss is
  the mean over draws of advantage times the mean over decisions of -log p(chosen). Only the
  ``kept`` draws of greatest and least advantage are learned from: the others say least.

Where the order is learned, the policy gradient also holds for the order of each draw: for the mean
over ops of its log-probability (``policy.gnn.learned_order``). Step times depend on devices alone,
so a label has no order: its decisions are learned in the order of the greedy decode.

* **The greedy decode** is what is wanted in the end, and it may be worse than most draws: where a
  branch may leave a device at any of ten ops, each time with a probability of a third, it leaves in
  every draw, and never in the greedy decode. So its decisions are learned from like a draw's, with
  its own advantage over the draws: they become more likely where it is the better one, less where
  not. (An unsure decision changes most.)

``label``, ``gradient`` and ``greedy`` weigh the three. A fourth loss is that of the number of
devices (``policy.gnn.decoder``): its cross-entropy with the softmax of the negative log
seconds of the greedy decodes under all numbers, over ``HEAT``.

Beside the K draws ``shared`` more are made with noise that clusters share, and ``moves``
moves are tried on the label: for labels alone.

Cost of a problem: K + ``shared`` decodes and one for each number of devices, and as many
simulations, in numba, ``moves`` simulations, ``kept`` + 2 decodes in torch, one encoding.

Labels: what a placement counts for, and moves that better it.

A label is the placement of least cost of a problem that is known for a number of devices. It costs
its seconds, and more where it uses another number: the number of devices that a placement really
uses is 1 / sum of squares of their shares of the work. Where that is below ``EVEN`` of the number
asked for, seconds are multiplied by one plus what is missing, and by one more for each device
beyond that number. Without it the best placement under a limit is often one device, which says
nothing of how work is divided: a network that learns from both learns neither. Whether dividing
pays is another decision (``policy.gnn.decoder``), which is judged by seconds alone.

The network's own draws find better labels more and more seldom, so a few moves are tried whenever
the problem is met (expert iteration: Anthony et al., 2017): a random level or none, a random
cluster of it, a random device; the units of the cluster that may be there go there. A move that
makes the cost less stays. Training alone has this; a decode has no search. Cost: a simulation a
move, ended early where it is worse.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.placers import repair
from gnnplace.policy import (
    GNN_CHECKPOINT,
    DecoderNetwork,
    Drawn,
    Encoder,
    Episodes,
    GnnPolicy,
    describe_class,
    list_device_limits,
    order_gradient,
    read_config,
    read_gnn,
    trust_classes,
)
from gnnplace.train.data_module import ProblemSample
from gnnplace.train.learner import SHIPPED, Learner, begin_with
from gnnplace.train.limits import check_least

MOST = 2.0  # greatest advantage, in standard deviations
MANY = 400  # units beyond which fewer placements are drawn, so that a problem takes as long
KEPT = 4_000  # problems that stay as the network walks them
LABELS = "labels"  # A key of a checkpoint
HEAT = 0.03  # difference of log seconds that makes a number of devices less wanted by a factor of e
COUNT = 0.3  # weight of the loss of the number of devices


@dataclass(frozen=True, eq=False)
class Lesson:
    """Placements of a problem to learn from.

    Attributes:
        drawn: The placements, and in which orders they are decided. B of them
        weight: How much more likely each is to become. [B]
        wanted: How likely each number of devices should be. [limits]
    """

    drawn: Drawn
    weight: FloatArray
    wanted: FloatArray


SIZES = (
    "model.hidden, model.layers, model.memory, model.decoder_hidden and model.encoder"
)


def begin_network(start: str | None, given: dict[str, Any]) -> GnnPolicy:
    """Return a network to train, with the sizes that are ``given`` and the rest as of ``start``.

    Raises:
        FormatError: ``start`` is missing or malformed.
        MismatchError: It has other sizes than those given.
    """
    config: dict[str, Any] = {}
    if start is not None:
        config = read_config(GNN_CHECKPOINT if start == SHIPPED else start).model_dump()
    network = GnnPolicy(
        **config | {key: one for key, one in given.items() if one is not None}
    )
    if start is not None:
        begin_with(network, read_gnn, start, GNN_CHECKPOINT, SIZES, added="priority")
    if isinstance(network.encoder, Encoder):
        from gnnplace.policy import convert_to_message_passing  # late: a second

        network.encoder = convert_to_message_passing(network.encoder)
    return network


class Reinforce(Learner):
    """The GNN placer in training.

    Args:
        hidden: Size of the encoder's states; None: as of ``start``, else 64.
        layers: Rounds of messages; 0 leaves the graph out; None: as of ``start``, else 3.
        decoder_hidden: Size of the decoder's layers; None: as of ``start``, else 48.
        memory: Entries of a device's memory; None: as of ``start``, else 16.
        order: The traversal order, ``module:function``, or ``learned-order+`` either; None: as of
            ``start``, else upward rank.
        encoder: Makes an encoder from the number of features, in place of the package's.
        samples: Placements drawn of each problem, K; at least 2.
        shared: Further draws with noise that clusters share, for labels alone.
        moves: Moves tried on the label of each problem, whenever it is met.
        kept: Draws of each problem that the policy gradient learns from.
        label: The weight of self-labelling.
        gradient: The weight of the policy gradient.
        greedy: Weight of the greedy decode's own advantage.
        temperature: What scores are divided by before the softmax of draws; above 0.
        start: Folder of a network to start from, or ``shipped``.
        learning_rate: The learning rate of Adam, at its highest.
        steps: Training steps over which the learning rate falls to a tenth.
        export: Folder that the network is saved to whenever the validation improves.

    Raises:
        InputError: A number is too small, an unknown order, an encoder that cannot be used.
        FormatError: ``start`` is missing or malformed.
        MismatchError: ``start`` has other features or sizes.
    """

    policy: GnnPolicy
    average: GnnPolicy
    shipped = GNN_CHECKPOINT

    def __init__(
        self,
        hidden: int | None = None,
        layers: int | None = None,
        decoder_hidden: int | None = None,
        memory: int | None = None,
        order: str | None = None,
        encoder: Callable[[int], nn.Module] | None = None,
        samples: int = 32,
        shared: int = 8,
        moves: int = 24,
        kept: int = 8,
        label: float = 1.0,
        gradient: float = 1.0,
        greedy: float = 0.5,
        temperature: float = 1.0,
        start: str | None = None,
        learning_rate: float = 1e-3,
        steps: int = 3000,
        export: str | None = None,
    ) -> None:
        sizes = {
            "hidden": hidden,
            "layers": layers,
            "memory": memory,
            "decoder_hidden": decoder_hidden,
        }
        for name, size in sizes.items():
            if size is not None:
                check_least(**{name: (size, 0 if name == "layers" else 1)})
        check_least(samples=(samples, 2), kept=(kept, 2))
        check_least(label=(label, 0.0), gradient=(gradient, 0.0))
        check_least(shared=(shared, 0), moves=(moves, 0), greedy=(greedy, 0.0))
        check_least(temperature=(temperature, 0.01))
        # An encoder or an order of one's own is code that the network's file names: whoever passes
        # it here trusts it.
        with trust_classes(encoder is not None or order is not None):
            if encoder is None:
                described_encoder = None
            else:
                described_encoder = describe_class(encoder)
            options = {"order": order, "encoder": described_encoder}
            network = begin_network(start, sizes | options)
        super().__init__(network, learning_rate, steps, export)
        self.start = start
        self.samples = samples
        self.kept = kept
        self.shared = shared
        self.moves = moves
        self.label = label
        self.gradient = gradient
        self.greedy = greedy
        self.temperature = temperature
        self.episodes: OrderedDict[int, Episodes] = OrderedDict()
        self.labels: dict[tuple[int, int], tuple[float, IntArray]] = {}

    def episode(self, sample: ProblemSample) -> Episodes:
        """Return a problem as the network walks it; the last ones are kept."""
        episodes = self.episodes.pop(sample.index, None)
        if episodes is None or episodes.space is not sample.space:
            episodes = Episodes(sample.space, self.policy.order)
        self.episodes[sample.index] = episodes
        if len(self.episodes) > KEPT:
            self.episodes.popitem(last=False)
        return episodes

    def batch_loss(self, batch: list[ProblemSample]) -> Tensor | None:
        """Return the mean loss of the problems with several devices; None without any."""
        batch = [s for s in batch if s.space.problem.num_devices > 1]
        if not batch:
            return None
        episodes = [self.episode(sample) for sample in batch]
        inputs = [one.inputs for one in episodes]
        parts = self.policy.states(inputs).split([len(one.x) for one in inputs])
        losses = [
            self.loss(one, states, self.lesson(sample, one, states.detach()))
            for sample, one, states in zip(batch, episodes, parts, strict=True)
        ]
        return torch.stack(losses).mean()

    def lesson(
        self, sample: ProblemSample, episodes: Episodes, states: Tensor
    ) -> Lesson:
        """Draw placements and weigh what to learn from them. ``states``: [m, hidden]"""
        network = self.policy.network(states, episodes.devices)
        rng = np.random.default_rng([17, sample.index, self.global_step])
        drawn, cost, likely = self._tried(sample, episodes, network, rng)
        best = self._best(sample, episodes, drawn, cost, rng)
        draws = slice(1, 1 + self._fewer(sample, self.samples, 2))
        gains = advantages(cost[draws])
        extreme = extremes(gains, self.kept)
        rows = np.concatenate([[0, 0], 1 + extreme])
        if len(drawn.order) > 1:
            order = drawn.order[rows]
        else:
            order = drawn.order
        unit_device = np.concatenate([best[None], drawn.unit_device[rows[1:]]])
        greedy = self.greedy * gain_over(float(cost[0]), cost[draws])
        label = self.label * regret(
            float(cost[0]), self.labels[sample.index, drawn.limit][0]
        )
        weight = np.r_[label, greedy, self.gradient * gains[extreme] / len(extreme)]
        return Lesson(Drawn(unit_device, order, drawn.limit), weight, likely)

    def _tried(
        self,
        sample: ProblemSample,
        episodes: Episodes,
        network: DecoderNetwork,
        rng: np.random.Generator,
    ) -> tuple[Drawn, FloatArray, FloatArray]:
        """Return placements for a random number of devices, their costs, and the wanted numbers.

        The placements are the greedy decode, draws, draws that clusters share, and the greedy
        decodes for each other number of devices.
        """
        limits = list_device_limits(sample.space.problem.num_devices)
        limit = limits[int(rng.integers(int(episodes.alike), len(limits)))]
        count = (
            self._fewer(sample, self.samples, 2),
            rng,
            self._fewer(sample, self.shared),
        )
        drawn = episodes.samples(network, *count, self.temperature, limit)
        greedy_decodes = [
            episodes.greedy(network, other_limit)
            for other_limit in limits
            if other_limit != limit
        ]
        drawn = drawn._replace(
            unit_device=np.concatenate([drawn.unit_device, np.stack(greedy_decodes)])
        )
        seconds = self.seconds(episodes, drawn.unit_device)
        self.log(
            "train/spread", float(np.log(seconds.mean() / seconds.min())), batch_size=1
        )
        cost = seconds * [
            unevenness(episodes, unit_device, limit)
            for unit_device in drawn.unit_device
        ]
        by_limit = np.insert(
            seconds[-len(greedy_decodes) :], limits.index(limit), seconds[0]
        )
        return drawn, cost, compute_device_targets(by_limit)

    def _fewer(self, sample: ProblemSample, count: int, minimum: int = 0) -> int:
        """Return ``count``, or less where the problem is large, but at least ``least``."""
        share = min(1.0, MANY / sample.space.problem.num_units)
        return max(minimum, round(share * count))

    def seconds(self, episodes: Episodes, drawn: IntArray) -> FloatArray:
        """Return the seconds of a step of each placement, by simulation. ``drawn``: [B, U]"""
        return np.array([episodes.seconds(one) for one in drawn])

    def _best(
        self,
        sample: ProblemSample,
        episodes: Episodes,
        drawn: Drawn,
        cost: FloatArray,
        rng: np.random.Generator,
    ) -> IntArray:
        """Return the best known placement for a number of devices, after some moves."""
        key = (sample.index, drawn.limit)
        cheapest = int(cost.argmin())
        best = self.labels.get(key)
        if best is None or cost[cheapest] < best[0]:
            best = float(cost[cheapest]), drawn.unit_device[cheapest]
        moves = self._fewer(sample, self.moves)
        best = search_briefly(episodes, best, drawn.limit, moves, rng)
        self.labels[key] = best[0], best[1].copy()
        return best[1]

    def loss(self, episodes: Episodes, states: Tensor, lesson: Lesson) -> Tensor:
        """Return the loss of a problem's placements.

        ``states`` are the encoder's, with gradients. [m, hidden]
        """
        network = self.policy.network(states.detach(), episodes.devices)
        decisions = episodes.seen(network, lesson.drawn)
        torch_device = states.device
        actions = torch.from_numpy(decisions.device).long().to(torch_device)
        scores = self.policy.decoder(
            states[torch.from_numpy(decisions.step).long().to(torch_device)],
            episodes.devices.to(torch_device),
            torch.from_numpy(decisions.features).to(torch_device),
            torch.from_numpy(decisions.allowed).to(torch_device),
            actions,
        )
        heat = torch.full((len(scores), 1, 1), self.temperature, device=torch_device)
        heat[0] = 1.0  # the label's
        log_softmax = torch.log_softmax(scores / heat, dim=-1)
        logs = log_softmax.gather(-1, actions[..., None])[..., 0]
        # A move may choose a device that the mask excludes.
        log_probability = logs.where(logs.isfinite(), 0.0).mean(dim=1)
        weight = torch.from_numpy(lesson.weight).float().to(torch_device)
        loss = -(weight * log_probability).sum()
        counts = torch.log_softmax(
            self.policy.count(states, len(episodes.devices)), dim=0
        )
        loss = (
            loss
            - COUNT
            * (torch.from_numpy(lesson.wanted).float().to(torch_device) * counts).sum()
        )
        if episodes.base is not None:
            gradient = self._order_gradient(episodes, network, lesson).to(torch_device)
            loss = loss - (gradient * self.policy.priorities(states)).sum()
        return loss

    def _order_gradient(
        self, episodes: Episodes, network: DecoderNetwork, lesson: Lesson
    ) -> Tensor:
        """Return the gradient by the priorities, per op. [m]

        It is that of all draws' log-probabilities times their weights.
        """
        graph = episodes.graph.graph
        priority = episodes.priority(network)
        rows = zip(lesson.weight[1:], lesson.drawn.order[1:], strict=True)
        total = sum(
            weight
            * order_gradient(graph.successor_offset, graph.successor, order, priority)
            for weight, order in rows
        )
        return torch.from_numpy(np.asarray(total / len(priority), np.float32))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the best placements, as numbers and tensors alone."""
        super().on_save_checkpoint(checkpoint)
        checkpoint[LABELS] = {
            index: (seconds, torch.from_numpy(devices.astype(np.int16)))
            for index, (seconds, devices) in self.labels.items()
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on with the best placements."""
        super().on_load_checkpoint(checkpoint)
        self.labels = {
            index: (seconds, devices.numpy().astype(np.int32))
            for index, (seconds, devices) in checkpoint.get(LABELS, {}).items()
        }

    def place(self, network: GnnPolicy, sample: ProblemSample) -> float:
        episodes = Episodes(sample.space, network.order)
        unit_device = episodes.greedy(episodes.network(network))
        device = sample.space.spread(unit_device)
        order = episodes.sequence(unit_device)[1]
        return sample.space.score(*repair(sample.space, device, order))


def finite_logs(seconds: FloatArray) -> FloatArray:
    """Return logarithms of seconds; zero and infinity have one too."""
    return np.asarray(np.log(np.clip(seconds, 1e-300, 1e300)))


def advantages(seconds: FloatArray) -> FloatArray:
    """Return how far the log of each is below the mean of the others'. [K]

    In standard deviations of the logs, cut off at ``MOST``.
    """
    logs = finite_logs(seconds)
    below = (logs.sum() - logs) / (len(logs) - 1) - logs
    return np.asarray(np.clip(below / max(float(logs.std()), 1e-6), -MOST, MOST))


def compute_device_targets(seconds: FloatArray) -> FloatArray:
    """Return how likely each number of devices should be, by the seconds with it. [limits]"""
    logs = finite_logs(seconds)
    likely = np.exp((logs.min() - logs) / HEAT)
    return np.asarray(likely / likely.sum(), np.float64)


def regret(greedy: float, label: float) -> float:
    """Return the weight of a label, from 0.5 to 3.

    A half where the greedy decode is as good, one where it is 5 % longer.
    """
    return float(
        np.clip(0.5 + 10.0 * np.log(max(greedy, 1e-300) / max(label, 1e-300)), 0.5, 3.0)
    )


def gain_over(one: float, seconds: FloatArray) -> float:
    """Return how far the log of one is below the mean of others'.

    In their standard deviations, cut off at ``MOST``.
    """
    logs = finite_logs(seconds)
    below = (float(logs.mean()) - np.log(max(one, 1e-300))) / max(
        float(logs.std()), 1e-6
    )
    return float(np.clip(below, -MOST, MOST))


def extremes(gains: FloatArray, count: int) -> NDArray[np.intp]:
    """Return the indices of the greatest and least gains, half of ``count`` each. [count]"""
    ranked = np.argsort(gains, kind="stable")
    if count >= len(gains):
        return ranked
    return np.r_[ranked[: count // 2], ranked[-(count // 2) :]]


EVEN = 0.75  # 3 : 1 on two devices is 0.8 of them
LEAST = 1e-6  # gain of a move that stays, of the step time


def unevenness(episodes: Episodes, unit_device: IntArray, limit: int) -> float:
    """Return the factor by which seconds grow where a placement uses devices unevenly.

    It grows too with every device beyond ``limit``. ``unit_device``: [U]
    """
    work = np.bincount(unit_device, episodes.walk.unit_work)
    used = float(work.sum() ** 2 / max(float((work**2).sum()), 1e-300))
    beyond = int(np.count_nonzero(np.bincount(unit_device))) - limit
    return 1.0 + max(0.0, EVEN - used / limit) + max(0, beyond)


def search_briefly(
    episodes: Episodes,
    label: tuple[float, IntArray],
    limit: int,
    count: int,
    rng: np.random.Generator,
) -> tuple[float, IntArray]:
    """Return cost and units' devices of the best placement after some moves; never a worse one.

    Args:
        episodes: The problem as the network walks it.
        label: Cost of a placement (seconds times ``unevenness``), and each unit's device. [U]
        limit: The number of devices to use.
        count: The number of moves to try.
        rng: What they are drawn with.
    """
    for _ in range(count):
        candidate = _move_cluster_or_unit(episodes, label[1], rng)
        if (candidate == label[1]).all():
            continue
        uneven = unevenness(episodes, candidate, limit)
        cost = uneven * episodes.seconds(candidate, label[0] / uneven)
        if cost < label[0] * (1.0 - LEAST):
            label = float(cost), candidate
    return label


def _move_cluster_or_unit(
    episodes: Episodes, unit_device: IntArray, rng: np.random.Generator
) -> IntArray:
    """Return a placement with a cluster or a unit on another device."""
    levels = episodes.clusters.of
    problem = episodes.space.problem
    level = int(rng.integers(len(levels) + 1))
    unit = int(rng.integers(problem.num_units))
    device = int(rng.integers(problem.num_devices))
    alone = level == len(levels)
    if alone:
        moved_units = np.array([unit])
    else:
        moved_units = np.flatnonzero(levels[level] == levels[level, unit])
    placement = unit_device.copy()
    placement[moved_units[problem.unit_allowed[moved_units, device]]] = device
    return placement
