"""Random simulated steps, some of which run."""

from __future__ import annotations

import numpy as np

from gnnplace.problem import Problem
from gnnplace.simulation import Simulation, Simulator
from tests.random_problems import random_order, random_problem


def random_step(
    seed: int, num_ops: int = 10, plain: bool = False
) -> tuple[Problem, Simulation]:
    """A random placement of a random problem, in a random order."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, num_ops, 3, plain=plain)
    device = rng.integers(0, 3, num_ops).astype(np.int32)
    return problem, Simulator(problem).run(device, random_order(problem, rng))
