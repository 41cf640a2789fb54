"""``Evolution``: a covariance matrix adaptation strategy on the weights from features to scores.

Formulation: x, the weights ``skip`` of the refiner or of the decoder, each in units of its
feature's spread among candidates, is the mean of a normal distribution. A generation draws a
population from it, places a batch of new problems with each member as ``LearnedPlacer`` would do,
and takes as fitness the mean log step time over that of the start (refiner) or of the mean itself
(decoder). Mean, covariance and step size follow the better half (Hansen, 2016, arXiv 1604.00772:
weighted recombination, rank-one and rank-mu updates, cumulative step-size adaptation, with its
default constants).

Why: a decision by itself is worth next to nothing or very much, by what others make of it; learning
from single decisions was tried and moved the step time by little (docs/learned.md). Here what
is minimised is the step time itself, of few but telling parameters; nothing can diverge that
the next generation does not see. The network's hidden layers stay as they are.
Cost of a generation: (population + 1) * batch placements; every generation has new problems.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnnplace.errors import InputError
from gnnplace.policy.network.decoder import Decoder
from gnnplace.policy.network.model import PlacementPolicy
from gnnplace.policy.refine.passes import Passes
from gnnplace.train.data import Sample
from gnnplace.train.placements import a_decode
from gnnplace.train.policy_module import PolicyModule, check_least
from gnnplace.train.watching import watch_pass

FloatArray = NDArray[np.float64]
MOST = 0.2  # greatest change that counts, in log step time
LEAST_SPREAD = 0.02  # of a feature
SPREAD_OF = 16  # problems that spreads are taken from


class Evolution(PolicyModule):
    """Evolves the refiner or the decoder.

    Args:
        part: ``refiner`` or ``decoder``.
        population: members of a generation.
        step_size: standard deviation of the first generation, in units of feature spreads.
        shared: arguments of ``PolicyModule``; ``learning_rate`` and ``steps`` have no use here.

    Raises:
        InputError: a number is too small.
    """

    spread: Tensor
    covariance: Tensor
    paths: Tensor
    sigma: Tensor

    def __init__(
        self,
        part: Literal["refiner", "decoder"] = "refiner",
        population: int = 16,
        step_size: float = 0.5,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        check_least(population=(population, 4), step_size=(step_size, 1e-6))
        self.part, self.population = part, population
        self.policy.requires_grad_(False)
        self.evolved(self.policy).skip.requires_grad_(True)
        size = len(self.evolved(self.policy).skip)
        self.register_buffer("spread", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("covariance", torch.eye(size, dtype=torch.float64))
        self.register_buffer("paths", torch.zeros(2, size, dtype=torch.float64))
        self.register_buffer("sigma", torch.tensor(step_size, dtype=torch.float64))

    def evolved(self, policy: PlacementPolicy) -> Decoder:
        """The part of a policy that evolves."""
        return policy.refiner if self.part == "refiner" else policy.decoder

    def configure_optimizers(self) -> Any:
        """Gradient descent that goes straight to the new mean."""
        return torch.optim.SGD([self.evolved(self.policy).skip], lr=1.0)

    def optimizer_step(
        self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
    ) -> None:
        """A generation; what is validated is the mean, not an average of means."""
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        with torch.no_grad():
            self.evolved(self.average).skip.copy_(self.evolved(self.policy).skip)

    def batch_loss(self, batch: list[Sample]) -> Tensor | None:
        """Half the squared distance from the mean to the next generation's mean.

        Raises:
            InputError: gradients are clipped, which would stop short of it.
        """
        if self.trainer.gradient_clip_val:
            raise InputError("trainer.gradient_clip_val: Evolution needs none; leave it out")
        samples = [sample for sample in batch if sample.space.problem.num_devices > 1]
        if not self.spread.any():
            self._measure_spread(samples)
        spread, skip = self.spread.numpy(), self.evolved(self.policy).skip
        mean = skip.detach().double().numpy() * spread
        members = self._members(np.random.default_rng([29, self.global_step]), len(mean))
        fitness = self._fitness(samples, np.vstack([mean, mean + float(self.sigma) * members]))
        self.log("train/gain", -100.0 * fitness[0], prog_bar=True, batch_size=len(batch))
        goal = self._next_mean(mean, members[np.argsort(fitness[1:], kind="stable")])
        self.log("train/step_size", float(self.sigma), batch_size=len(batch))
        return 0.5 * ((skip - torch.from_numpy(goal / spread).float()) ** 2).sum()

    def _measure_spread(self, samples: list[Sample]) -> None:
        """Standard deviation of each feature among the candidates of a decision."""
        given = [self._features(sample) for sample in samples[:SPREAD_OF]]
        spread = np.concatenate(given).std(axis=0).clip(min=LEAST_SPREAD)
        self.spread.copy_(self.trainer.strategy.reduce(torch.from_numpy(spread), reduce_op="mean"))

    def _features(self, sample: Sample) -> NDArray[np.float64]:
        """Features of candidates less their decision's mean. [candidates, F]"""
        rollouts, rng = self.rollouts(sample), self.rng(sample)
        if self.part == "refiner":
            seen: Any = watch_pass(rollouts, rng)
        else:
            decoded = a_decode(rollouts, rng)
            seen = rollouts.watch(decoded.aim, decoded.unit_device)
        if seen is None:
            return np.zeros((0, len(self.spread)))
        allowed = seen.allowed[..., None]
        mean = (seen.features * allowed).sum(axis=1, keepdims=True)
        mean = mean / allowed.sum(axis=1, keepdims=True).clip(min=1)
        return np.asarray((seen.features - mean)[seen.allowed], dtype=np.float64)

    def _members(self, rng: np.random.Generator, size: int) -> FloatArray:
        """Draws of the covariance, in units of the step size. [population, F]"""
        values, vectors = np.linalg.eigh(self.covariance.numpy())
        scaled = vectors * np.sqrt(values.clip(1e-12))
        return np.asarray(rng.normal(size=(self.population, size)) @ scaled.T)

    def _fitness(self, samples: list[Sample], candidates: FloatArray) -> FloatArray:
        """Mean log score of each candidate, over the processes too: less is better."""
        logs = np.stack([self._logs(sample, candidates) for sample in samples])
        mean = torch.from_numpy(logs.clip(-MOST, MOST).mean(axis=0))
        return np.asarray(self.trainer.strategy.reduce(mean, reduce_op="mean").numpy())

    def _logs(self, sample: Sample, candidates: FloatArray) -> FloatArray:
        """Log score of the placement with each candidate, over the first's or the start's."""
        rollouts, scores = self.rollouts(sample), np.empty(len(candidates))
        weights = self.evolved(self.policy).weights()
        skips = (candidates / self.spread.numpy()).astype(np.float32)
        if self.part == "refiner":
            start, passes = a_decode(rollouts, self.rng(sample)), Passes(rollouts)
            ground = passes.ground
            for k, skip in enumerate(skips):
                passes.ground = ground._replace(weights=weights._replace(skip=skip))
                scores[k] = passes.refined(start, rounds=1).score
            return np.log(scores / start.score)
        for k, skip in enumerate(skips):
            rollouts.weights = weights._replace(skip=skip)
            scores[k] = rollouts.greedy()[0].score
        return np.log(scores / scores[0])

    def _next_mean(self, mean: FloatArray, ranked: FloatArray) -> FloatArray:
        """The new mean; covariance, paths and step size change with it (Hansen, 2016, eq. 24-47).

        Args:
            mean: of this generation. [F]
            ranked: its members' steps, the best first. [population, F]
        """
        n, parents = len(mean), self.population // 2
        weight = np.log(parents + 0.5) - np.log(np.arange(1, parents + 1))
        weight /= weight.sum()
        mass = 1.0 / (weight**2).sum()
        c_path, c_sigma = 4.0 / (n + 4.0), (mass + 2.0) / (n + mass + 5.0)
        c_one = 2.0 / ((n + 1.3) ** 2 + mass)
        c_many = min(1.0 - c_one, 2.0 * (mass - 2.0 + 1.0 / mass) / ((n + 2.0) ** 2 + mass))
        damping = 1.0 + 2.0 * max(0.0, np.sqrt((mass - 1.0) / (n + 1.0)) - 1.0) + c_sigma
        covariance, step = self.covariance.numpy(), weight @ ranked[:parents]
        values, vectors = np.linalg.eigh(covariance)
        whitened = vectors @ ((vectors.T @ step) / np.sqrt(values.clip(1e-12)))
        long, size = self.paths.numpy()
        size = (1.0 - c_sigma) * size + np.sqrt(c_sigma * (2.0 - c_sigma) * mass) * whitened
        long = (1.0 - c_path) * long + np.sqrt(c_path * (2.0 - c_path) * mass) * step
        spread_of_parents = (ranked[:parents].T * weight) @ ranked[:parents]
        covariance = (1.0 - c_one - c_many) * covariance
        covariance += c_one * np.outer(long, long) + c_many * spread_of_parents
        goal = mean + float(self.sigma) * step
        expected = np.sqrt(n) * (1.0 - 1.0 / (4.0 * n) + 1.0 / (21.0 * n**2))
        self.sigma *= float(np.exp(c_sigma / damping * (np.linalg.norm(size) / expected - 1.0)))
        self.covariance.copy_(torch.from_numpy(covariance))
        self.paths.copy_(torch.from_numpy(np.stack([long, size])))
        return np.asarray(goal)
