"""``Evolution``: a covariance matrix adaptation strategy on the weights from features to scores.

Formulation: x, the weights of the refiner or of the decoder, each in units of its
feature's spread among candidates, is the mean of a normal distribution. A generation draws a
population from it, places a batch of new problems with each member as ``LearnedPlacer`` would do,
and takes as fitness the mean log step time over that of the start (refiner) or of the mean itself
(decoder). Mean, covariance and step size follow the better members: CMA-ES (Hansen, 2016, arXiv
1604.00772) from the package ``cmaes``. Its state is kept in checkpoints, and each generation
reseeds it, so that a run resumes exactly and every process draws the same members.

Why evolution: the value of a single decision depends on all others, and learning from single
decisions changed the step time by little (docs/learned.md). Evolution minimises the step time
itself over few but important parameters; if it diverges, the next generation shows it.
Cost of a generation: (population + 1) * batch placements; every generation has new problems.


Spreads are those of what is seen at every decision of one pass: a problem is placed by the current
policy and improved by a random number of moves, and the refiner walks over that placement once,
forwards or backwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from gnnplace.arrays import BoolArray, FloatArray, SingleArray
from gnnplace.errors import InputError
from gnnplace.placers import (
    Habit,
    SearchState,
    anneal_moves,
    neighbourhood,
    seed_kernel,
)
from gnnplace.policy import (
    NUM_REFINING,
    DecisionRecord,
    Decoded,
    Placed,
    PlacementPolicy,
    Refiner,
    RefiningPasses,
    Rollouts,
    read_previous,
    search_from,
    walk_again,
)
from gnnplace.train.data_module import ProblemSample
from gnnplace.train.learner import PolicyModule
from gnnplace.train.limits import check_least

if TYPE_CHECKING:
    from cmaes import CMA

STARTS = 4  # best decodes that one is drawn from
HABIT = Habit(shifts=0.1, loose=0.05)
UNTOUCHED = 0.4  # share of placements that are refined as they were decoded
# The most moves of an improvement; the latter is divided by the number of ops.
MOST_MOVES, OP_MOVES = 1_000, 300_000
STAYS = (0.3, 5.0)  # percent, drawn evenly in the logarithm
NOISES = (0.0, 0.0, 1.0, 3.0)  # percent
MOST = 0.2  # greatest change that counts, in log step time
LEAST_SPREAD = 0.02  # The least spread of a feature
SPREAD_OF = 16  # problems that spreads are taken from
# A key of a checkpoint; a key of the search's state.
STATE, RANDOM = "evolution", "_rng"


def a_decode(rollouts: Rollouts, rng: np.random.Generator) -> Decoded:
    """Draw one of the best few decodes."""
    decoded = rollouts.greedy()[:STARTS]
    return decoded[int(rng.integers(len(decoded)))]


def a_placement(
    rollouts: Rollouts, rng: np.random.Generator, moves: int
) -> SearchState:
    """Draw one of the best few decodes and anneal it.

    It makes so many moves at a temperature drawn at random.
    """
    space = rollouts.space
    start = a_decode(rollouts, rng)
    state = search_from(space, start)
    if moves == 0:
        return state
    seed_kernel(int(rng.integers(2**31)))
    heat = state.score[0] * 10.0 ** rng.uniform(-4, -2)
    around = neighbourhood(space)
    anneal_moves(space, around, HABIT, state, heat, moves)
    return state


@dataclass(frozen=True, eq=False)
class SeenPass:
    """Decisions of one pass. S decisions

    Attributes:
        features: [S, D, F]
        allowed: The candidates. [S, D]
    """

    features: SingleArray
    allowed: BoolArray


def watch_pass(rollouts: Rollouts, rng: np.random.Generator) -> SeenPass | None:
    """Walk over a placement that is drawn at random; None where the refiner decides nothing.

    Args:
        rollouts: The problem and the policy.
        rng: The source of all randomness.
    """
    space = rollouts.space
    passes = RefiningPasses(rollouts)
    placed = _draw(rollouts, rng)
    if not np.isfinite(placed.score[0]):
        return None
    ground = passes.ground
    back = int(rng.integers(2))
    stay = float(np.exp(rng.uniform(*np.log(STAYS))))
    previous = read_previous(ground, placed, back)
    num_units = space.problem.num_units
    num_devices = space.problem.num_devices
    features = np.zeros((num_units, num_devices, NUM_REFINING), np.float32)
    allowed = np.zeros((num_units, num_devices), np.bool_)
    decided = np.zeros(num_units, np.int32)
    forced = np.full(num_units, -1, np.int32)
    graph = ground.r if back else ground.c
    refiner = Refiner(ground.weights, stay, float(rng.choice(NOISES)), forced)
    record = DecisionRecord(features, allowed, decided)
    count = walk_again(graph, ground.units, previous, refiner, record)[1]
    if count:
        return SeenPass(features[:count], allowed[:count])
    return None


def _draw(rollouts: Rollouts, rng: np.random.Generator) -> Placed:
    untouched = rng.random() < UNTOUCHED
    if untouched:
        moves = 0
    else:
        moves = int(min(MOST_MOVES, OP_MOVES / rollouts.space.problem.num_ops))
    state = a_placement(rollouts, rng, int(moves * rng.random() ** 2))
    return Placed(state.device, state.order, state.score[:1])


class Evolution(PolicyModule):
    """The training of the refiner or the decoder by evolution.

    Args:
        part: What evolves, ``refiner`` or ``decoder``.
        population: Members of a generation.
        step_size: Standard deviation of the first generation, in units of feature spreads.
        shared: Arguments of ``PolicyModule``; ``learning_rate`` and ``steps`` have no use here.

    Raises:
        InputError: A number is too small.
    """

    spread: Tensor

    def __init__(
        self,
        part: Literal["refiner", "decoder"] = "refiner",
        population: int = 16,
        step_size: float = 0.5,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        check_least(population=(population, 4), step_size=(step_size, 1e-6))
        self.part = part
        self.population = population
        self.policy.requires_grad_(False)
        self.evolve(self.policy).requires_grad_(True)
        size = len(self.evolve(self.policy))
        self.register_buffer("spread", torch.zeros(size, dtype=torch.float64))
        self.step_size = step_size
        self.search: CMA | None = None

    def evolve(self, policy: PlacementPolicy) -> Parameter:
        """Return the weights of a policy that evolve. [F]"""
        if self.part == "refiner":
            return policy.refiner
        return policy.decoder

    def configure_optimizers(self) -> object:
        """Return gradient descent that goes straight to the new mean."""
        return torch.optim.SGD([self.evolve(self.policy)], lr=1.0)

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: object,
        optimizer_closure: object = None,
    ) -> None:
        """Take a generation; what is validated is the mean, not an average of means."""
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        with torch.no_grad():
            self.evolve(self.average).copy_(self.evolve(self.policy))

    def batch_loss(self, batch: list[ProblemSample]) -> Tensor | None:
        """Return half the squared distance from the mean to the next generation's mean.

        Raises:
            InputError: Gradients are clipped, which would stop short of it.
        """
        if self.trainer.gradient_clip_val:
            raise InputError(
                "trainer.gradient_clip_val: Evolution needs none; leave it out"
            )
        samples = [sample for sample in batch if sample.space.problem.num_devices > 1]
        if not self.spread.any():
            features = [self._features(sample) for sample in samples[:SPREAD_OF]]
            # Standard deviation of each feature among the candidates of a decision.
            spread = np.concatenate(features).std(axis=0).clip(min=LEAST_SPREAD)
            mean = self.trainer.strategy.reduce(
                torch.from_numpy(spread), reduce_op="mean"
            )
            self.spread.copy_(mean)
        spread = self.spread.numpy()
        weights = self.evolve(self.policy)
        search = self._searching(weights.detach().double().numpy() * spread)
        search.reseed_rng(
            int(np.random.SeedSequence([29, self.global_step]).generate_state(1)[0])
        )
        members = [search.ask() for _ in range(self.population)]
        fitness = self._fitness(samples, np.stack([search.mean, *members]))
        self.log(
            "train/gain", -100.0 * fitness[0], prog_bar=True, batch_size=len(batch)
        )
        search.tell(list(zip(members, fitness[1:].tolist(), strict=True)))
        return (
            0.5
            * ((weights - torch.from_numpy(search.mean / spread).float()) ** 2).sum()
        )

    def _searching(self, mean: FloatArray) -> CMA:
        """Return the search, begun at ``mean``."""
        if self.search is None:
            self.search = self._new_search(mean)
        return self.search

    def _new_search(self, mean: FloatArray) -> CMA:
        from cmaes import CMA  # late: it imports scipy's distributions, a second

        return CMA(mean, self.step_size, population_size=self.population, seed=0)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the search, as numbers and tensors alone."""
        super().on_save_checkpoint(checkpoint)
        if self.search is not None:
            state = {key: _plain(value) for key, value in vars(self.search).items()}
            del state[RANDOM]  # each generation seeds it anew
            checkpoint[STATE] = state

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on where the search was."""
        super().on_load_checkpoint(checkpoint)
        if STATE in checkpoint:
            state = checkpoint[STATE]
            self.search = self._new_search(state["_mean"].numpy())
            for key, value in state.items():
                setattr(
                    self.search,
                    key,
                    value.numpy() if isinstance(value, Tensor) else value,
                )

    def _features(self, sample: ProblemSample) -> FloatArray:
        """Return the features of candidates less their decision's mean. [candidates, F]"""
        rollouts = self.rollouts(sample)
        rng = self.rng(sample)
        if self.part == "refiner":
            decisions: Any = watch_pass(rollouts, rng)
        else:
            decoded = a_decode(rollouts, rng)
            decisions = rollouts.watch(decoded.aim, decoded.unit_device)
        if decisions is None:
            return np.zeros((0, len(self.spread)))
        allowed = decisions.allowed[..., None]
        mean = (decisions.features * allowed).sum(axis=1, keepdims=True)
        mean = mean / allowed.sum(axis=1, keepdims=True).clip(min=1)
        return np.asarray(
            (decisions.features - mean)[decisions.allowed], dtype=np.float64
        )

    def _fitness(
        self, samples: list[ProblemSample], candidates: FloatArray
    ) -> FloatArray:
        """Return the mean log score of each candidate, over all processes; less is better."""
        logs = np.stack([self._logs(sample, candidates) for sample in samples])
        mean = torch.from_numpy(logs.clip(-MOST, MOST).mean(axis=0))
        return np.asarray(self.trainer.strategy.reduce(mean, reduce_op="mean").numpy())

    def _logs(self, sample: ProblemSample, candidates: FloatArray) -> FloatArray:
        """Return the log score of the placement with each candidate. [candidates]

        It is over the start's for the refiner, over the first candidate's for the decoder.
        """
        rollouts = self.rollouts(sample)
        scores = np.empty(len(candidates))
        members = (candidates / self.spread.numpy()).astype(np.float32)
        if self.part == "refiner":
            start = a_decode(rollouts, self.rng(sample))
            passes = RefiningPasses(rollouts)
            ground = passes.ground
            for k, weights in enumerate(members):
                passes.ground = ground._replace(weights=weights)
                scores[k] = passes.refine_rounds(start, rounds=1).score
            return np.log(scores / start.score)
        for k, weights in enumerate(members):
            rollouts.weights = weights
            scores[k] = rollouts.greedy()[0].score
        return np.log(scores / scores[0])


def _plain(value: object) -> object:
    """Return a value that loads without unpickling objects."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, np.generic):
        return value.item()
    return value
