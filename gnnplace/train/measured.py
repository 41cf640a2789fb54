"""``MeasuredTuning``: fine-tunes the policy for one model on step times that were measured.

A round of training has three steps.

1. **Propose.** The policy places the problem as it is believed to be and as it might be
   (``proposals``), the simulator being corrected by all measurements so far
   (``measurements.posterior``).
2. **Measure.** Of all proposals, old ones too, the one with the least mean - DARING * deviation of
   its log step time (a lower confidence bound: Srinivas et al., 2010, GP-UCB) is measured, or as
   many as can be at a time, apart from each other.
3. **Learn.** A few generations of ``Evolution`` on the weights of the policy's features. A member
   is worth the step time of what it places, as believed: the measurement where there is one, drawn
   towards the simulation as far as that is trusted, and the corrected simulation elsewhere. It
   places both the problem as believed and as profiled, which is what users of the policy have.

Measurements are tens, generations are cheap. A failure is a bad step time for what is like it.
Rounds are reproducible, and the objective finds known placements in its store: a run that was
killed measures nothing twice, whether it is begun anew or goes on from a checkpoint.

After each round ``export`` has the policy (of those before and after the round the one that places
better, as believed now), and beside it are ``placement.json`` (the measured placement that is
believed fastest) and ``measured.csv`` (every measurement). One process: the objective measures as
many placements at a time as it has cores for.


The proposals for a problem are the policy's first choices under all its aims, the best refined by
its passes, samples of its decisions, and a search from the best of these. A number of moves bounds
the search, not a time, so that the same policy and seed propose the same again: what a run that was
stopped had measured is found in the store.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from gnnplace.arrays import FloatArray, SingleArray
from gnnplace.files import csv_text, write_text
from gnnplace.measurements import NOISE, Measured, Posterior, StepObjective, distance
from gnnplace.placers import (
    Habit,
    SearchSpace,
    SearchState,
    anneal_moves,
    neighbourhood,
    seed_kernel,
)
from gnnplace.policy import (
    Decoded,
    Exposure,
    PlacementPolicy,
    RefiningPasses,
    Rollouts,
    search_from,
)
from gnnplace.problem import Placement, Problem, placement_from_data, placement_to_data
from gnnplace.simulation import Simulator, finish_placement
from gnnplace.train.data_module import ProblemSample, as_list
from gnnplace.train.evolution import Evolution
from gnnplace.train.export import save_whole
from gnnplace.train.exposure import describe_exposure
from gnnplace.train.limits import check_least

HABITS = (Habit(0.1, 0.1), Habit(0.2, 0.1), Habit(0.3, 0.0))
"""Those of `gnnplace.policy.search`: cold with new orders, warm, hot in a fixed order."""
HOTTEST, COLDEST = (0.003, 0.01, 0.03), 1e-4
"""Temperatures at a search's start, by habit, and at its end; of the step time."""
STAGES = 8  # Stages of cooling
TEMPERATURE = 1.0  # Temperature of the samples
KEPT = 3  # first choices that are proposed as they are, and refined
DARING = 1.0
APART = 0.01  # least distance of placements that are measured at a time
ALIKE = 0.002  # placements nearer than this are one, whatever their devices are called
POOL = 60  # proposals that are kept for later rounds
SEED = 23
HEAD = ("round", "predicted", "believed", "measured", "deviation", "stored", "error")


@dataclass(frozen=True)
class Effort:
    """The numbers of samples, moves and variants to try.

    Attributes:
        samples: The number of samples of the policy's decisions, for each problem.
        moves: The number of moves of each search.
        variants: Problems as they might be, beside the one that is believed.
    """

    samples: int = 8
    moves: int = 2000
    variants: int = 2


DEFAULT_EFFORT = Effort()


def proposals(
    policy: PlacementPolicy,
    orders: tuple[str, ...],
    problem: Problem,
    rng: np.random.Generator,
    effort: Effort,
) -> list[Placement]:
    """Return placements of one problem by a policy, all of which fit into memory.

    Args:
        policy: The policy whose choices they are.
        orders: Traversal orders to decode under.
        problem: The problem that is placed.
        rng: The source of samples and moves.
        effort: How much is tried.
    """
    rollouts = Rollouts(SearchSpace(problem), policy, orders)
    passes = RefiningPasses(rollouts)
    ranked = rollouts.greedy()
    decodes = ranked[:KEPT] + [
        passes.refine_rounds(decoded) for decoded in ranked[:KEPT]
    ]
    decodes += [_sample_decode(rollouts, ranked, rng) for _ in range(effort.samples)]
    best = min(decodes, key=lambda decoded: decoded.score)
    states = [
        _anneal_from(rollouts, best, k, rng, effort.moves) for k in range(len(HABITS))
    ]
    space = rollouts.space
    assignments = [
        (space.spread(decoded.unit_device), decoded.order) for decoded in decodes
    ]
    assignments += [(state.best_device, state.best_order) for state in states]
    placements = [
        finish_placement(problem, d, o, placer="learned") for d, o in assignments
    ]
    return distinct([p for p in placements if _runs(space.simulator, p)])


def _sample_decode(
    rollouts: Rollouts, ranked: list[Decoded], rng: np.random.Generator
) -> Decoded:
    """Return a draw from the policy's decisions under one of its best aims."""
    aim = ranked[int(rng.integers(min(2 * KEPT, len(ranked))))].aim
    return rollouts.finish(
        aim, rollouts.walk(aim, noise=rollouts.noise(rng, TEMPERATURE))
    )


def _anneal_from(
    rollouts: Rollouts, start: Decoded, kind: int, rng: np.random.Generator, moves: int
) -> SearchState:
    """Return the state after annealing from a placement, in stages that cool."""
    space = rollouts.space
    state = search_from(space, start)
    seed_kernel(int(rng.integers(2**31)))
    around = neighbourhood(space)
    for heat in np.geomspace(HOTTEST[kind], COLDEST, STAGES):
        temperature = float(heat * state.score[1])
        anneal_moves(
            space, around, HABITS[kind], state, temperature, max(1, moves // STAGES)
        )
    return state


def distinct(placements: Sequence[Placement]) -> list[Placement]:
    """Return the placements without repeats, in the order of their first."""
    return list(
        {placement.key: placement for placement in reversed(placements)}.values()
    )[::-1]


def _runs(simulator: Simulator, placement: Placement) -> bool:
    order = simulator.find_order(placement)
    return simulator.run(placement.device, order).feasible


class MeasuredTuning(Evolution):
    """The fine-tuning of a policy for one model by measurements.

    Args:
        objective: Measures placements, and has the problem.
        measurements: How many placements to measure in all.
        at_once: Placements of a round.
        seed: The seed of proposals and generations.
        effort: How much is tried between measurements.
        noise: Standard deviation of the log of a measured step time.
        shared: The arguments of ``Evolution``.

    Raises:
        InputError: A number is too small.
    """

    exported_name = "kept"

    def __init__(
        self,
        objective: StepObjective,
        measurements: int = 20,
        at_once: int = 1,
        seed: int = 0,
        effort: Effort = DEFAULT_EFFORT,
        noise: float = NOISE,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        check_least(
            measurements=(measurements, 1), at_once=(at_once, 1), noise=(noise, 1e-6)
        )
        check_least(
            samples=(effort.samples, 0),
            moves=(effort.moves, 1),
            variants=(effort.variants, 0),
        )
        self.objective = objective
        self.measurements = measurements
        self.at_once = at_once
        self.seed = seed
        self.noise = noise
        self.effort = effort
        # Round and log seconds of each measurement.
        self.rounds: list[tuple[int, float, float]] = []
        self.kept = copy.deepcopy(self.average)
        self._pool: list[Placement] = []
        self._posterior: Posterior | None = None

    @property
    def posterior(self) -> Posterior:
        """Return the posterior: what is believed of the problem. It is made when first needed."""
        if self._posterior is None:
            self._posterior = Posterior(self.objective.problem, self.noise)
        return self._posterior

    @property
    def done(self) -> bool:
        """Return whether all measurements were made."""
        return len(self.posterior.observed) >= self.measurements

    def batch_loss(self, batch: list[Any]) -> Tensor | None:
        """Return the loss of a generation, after new measurements if it is a round's first."""
        if batch == [0]:
            self.measure(self.propose_placements())
        self.trainer.should_stop = self.trainer.should_stop or self.done
        if not self.posterior.succeeded:
            return None  # nothing could run yet: nothing to learn from
        count = len(self.posterior.observed)
        return super().batch_loss(
            [ProblemSample(space, count) for space in self._spaces()]
        )

    def _spaces(self) -> list[SearchSpace]:
        """Return the problems that the policy is to place well: as believed, and as profiled.

        Users have the profile alone, and what is good on one of them only is luck.
        """
        return [
            SearchSpace(self.posterior.problem),
            SearchSpace(self.posterior.profiled),
        ]

    def propose_placements(self) -> list[Placement]:
        """Return the placements to measure next, of those that the policy proposes or proposed."""
        rng = np.random.default_rng([SEED, self.seed, len(self.posterior.observed)])
        policy = self.average
        orders = self.orders
        believed_problem = self.posterior.problem
        problems = [
            believed_problem,
            *(self.posterior.drawn(rng) for _ in range(self.effort.variants)),
        ]
        proposed = [
            p for q in problems for p in proposals(policy, orders, q, rng, self.effort)
        ]
        measured = [entry.placement for entry in self.posterior.observed]
        problem = self.posterior.profiled
        pool = [  # of what is far from all that was measured
            placement
            for placement in distinct([*self._pool, *proposed])
            if all(
                distance(problem, placement, observed) >= ALIKE for observed in measured
            )
        ]
        if not pool:
            return []
        mean, deviation = self.posterior.predict(pool)
        ranked = [pool[i] for i in np.argsort(mean - DARING * deviation, kind="stable")]
        self._pool = ranked[:POOL]
        num_remaining = self.measurements - len(self.posterior.observed)
        return self._select_distinct(ranked, min(self.at_once, num_remaining))

    def _select_distinct(
        self, ranked: Sequence[Placement], count: int
    ) -> list[Placement]:
        """Return the first few placements that are not too much alike.

        Others fill up the number where there are too few.
        """
        selected: list[Placement] = []
        problem = self.posterior.profiled
        for placement in ranked:
            if all(
                distance(problem, placement, earlier) >= APART for earlier in selected
            ):
                selected.append(placement)
            if len(selected) == count:
                return selected
        keys = {placement.key for placement in selected}
        return [*selected, *(p for p in ranked if p.key not in keys)][:count]

    def measure(self, placements: list[Placement]) -> None:
        """Measure placements, learn from them, and log the results."""
        if not placements:  # the policy has no other idea
            self.trainer.should_stop = True
            return
        mean, deviation = self.posterior.predict(placements)
        measurements = self.objective.measure(placements)
        self.posterior.add(placements, measurements)
        self.rounds += [
            (self.current_epoch, float(m), float(d))
            for m, d in zip(mean, deviation, strict=True)
        ]
        step_times = [entry.measured.seconds for entry in self.posterior.succeeded]
        if step_times:
            best = 1e3 * min(filter(None, step_times))
            self.log("measured/best_ms", best, prog_bar=True, batch_size=1)
        self.log(
            "measured/failed", float(len(self.rounds) - len(step_times)), batch_size=1
        )

    def _logs(self, sample: ProblemSample, candidates: FloatArray) -> FloatArray:
        """Return the log of the believed step time with each candidate, over the first's."""
        members = (candidates / self.spread.numpy()).astype(np.float32)
        rollouts = self.rollouts(sample)
        if self.part == "refiner":
            choose = self._refine
        else:
            choose = self._decode_candidates
        placements = [
            self._placement(rollouts, decoded) for decoded in choose(rollouts, members)
        ]
        mean, _ = self.posterior.predict(placements)
        return np.asarray(mean - mean[0])

    def _refine(self, rollouts: Rollouts, members: SingleArray) -> list[Decoded]:
        """Return the best decode after passes with each candidate."""
        ranked = rollouts.greedy()
        passes = RefiningPasses(rollouts)
        ground = passes.ground
        refined = []
        for weights in members:
            passes.ground = ground._replace(weights=weights)
            refined.append(passes.best(ranked))
        return refined

    def _decode_candidates(
        self, rollouts: Rollouts, members: SingleArray
    ) -> list[Decoded]:
        """Return the best decode of each candidate."""
        decodes = []
        for weights in members:
            rollouts.weights = weights
            decodes.append(rollouts.greedy()[0])
        return decodes

    def _placement(self, rollouts: Rollouts, decoded: Decoded) -> Placement:
        device = rollouts.space.spread(decoded.unit_device)
        return finish_placement(
            rollouts.space.problem, device, decoded.order, placer="learned"
        )

    def on_train_epoch_end(self) -> None:
        """Keep the better policy, the placement and the measurements; say how good they are."""
        if not self.posterior.succeeded:
            return
        current = self._believe(self.average)
        best = self._believe(self.kept)
        if current < best:
            self.kept.load_state_dict(self.average.state_dict())
        self.log("policy/believed_ms", 1e3 * min(current, best), prog_bar=True)
        if self.export is None or not self.trainer.is_global_zero:
            return
        folder = Path(self.export)
        save_whole(self.kept, folder, self.card())
        self.objective.keep(
            str(folder.parent / "placement.json"), self.posterior.best().placement
        )
        write_text(folder.parent / "measured.csv", self.table())

    @property
    def has_exported_best(self) -> bool:
        """Return whether a placement ran, after which each round exports the better policy."""
        return bool(self.posterior.succeeded)

    def _believe(self, policy: PlacementPolicy) -> float:
        """Return the believed seconds of what a policy places first.

        It is the geometric mean over the problems.
        """
        placements = []
        for space in self._spaces():
            rollouts = Rollouts(space, policy, self.orders)
            decoded = RefiningPasses(rollouts).best(rollouts.greedy())
            placements.append(self._placement(rollouts, decoded))
        mean, _ = self.posterior.predict(placements)
        return float(np.exp(mean.mean()))

    def table(self) -> str:
        """Return every measurement as CSV, in milliseconds."""
        rows: list[Sequence[Any]] = [HEAD]
        mean, _ = self.posterior.predict([e.placement for e in self.posterior.observed])
        for (number, predicted_then, deviation), predicted_now, entry in zip(
            self.rounds, mean, self.posterior.observed, strict=True
        ):
            m = entry.measured
            times = (np.exp(predicted_then), np.exp(predicted_now), m.seconds)
            cells = ["" if t is None else f"{1e3 * t:.3f}" for t in times]
            rows.append([number, *cells, f"{deviation:.4f}", int(m.stored), m.error])
        return csv_text(rows)

    def exposures(self) -> tuple[Exposure, Exposure]:
        """Return the problem whose placements are measured."""
        exposure = describe_exposure([self.objective.problem])
        return exposure, exposure

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what was measured."""
        super().on_save_checkpoint(checkpoint)
        problem = self.objective.problem
        checkpoint["measured"] = [
            (placement_to_data(entry.placement, problem), asdict(entry.measured))
            for entry in self.posterior.observed
        ]
        checkpoint["rounds"] = self.rounds
        checkpoint["pool"] = [
            placement_to_data(placement, problem) for placement in self._pool
        ]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take up what was measured."""
        super().on_load_checkpoint(checkpoint)
        problem = self.objective.problem
        self._posterior = Posterior(problem, self.noise)
        self._pool = [placement_from_data(data, problem) for data in checkpoint["pool"]]
        self.rounds = [tuple(row) for row in checkpoint["rounds"]]
        rows = checkpoint["measured"]
        placements = [placement_from_data(data, problem) for data, _ in rows]
        self._posterior.add(placements, [Measured(**measured) for _, measured in rows])


class Rounds(LightningDataModule):
    """One round an epoch: what ``MeasuredTuning`` learns from it measures itself.

    Args:
        generations: The number of generations of a round.

    Raises:
        InputError: There is less than one generation.
    """

    def __init__(self, generations: int = 3) -> None:
        super().__init__()
        check_least("data", generations=(generations, 1))
        self.generations = generations

    def train_dataloader(self) -> DataLoader[int]:
        """Return the numbers of the generations."""
        numbers: Any = list(range(self.generations))
        return DataLoader(numbers, batch_size=1, collate_fn=as_list)  # type: ignore[arg-type]
