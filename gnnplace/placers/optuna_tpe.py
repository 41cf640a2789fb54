"""``optuna``: the tree-structured Parzen estimator on devices of groups of units.

What somebody with a general-purpose optimizer at hand would do: a categorical variable a group
(``group_search``), the simulated step time as the value, Optuna's ``TPESampler`` (Bergstra et al.,
"Algorithms for hyper-parameter optimization", NeurIPS 2011) asked and told. The first choices are
random ones of the sampler's own. Its own work is several milliseconds a choice and grows with the
choices made; in a given time it makes far fewer than ``random-search``, its control.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.placers.base import Found, Placer
from gnnplace.placers.group_search import GroupSearch
from gnnplace.placers.search.space import SearchSpace

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGEST_SEED = 2**31


class Optuna(Placer):
    """TPE on groups."""

    name = "optuna"

    def search(self, space: SearchSpace, rng: np.random.Generator, deadline: float) -> Found:
        with _silent():
            asking = _Asking(space, int(rng.integers(LARGEST_SEED)))
            return asking.run(asking.propose, deadline)


class _Asking(GroupSearch):
    """Groups with a study: proposals are trials, evaluations are told."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        import optuna  # late: a second, of use to nobody else in this room

        super().__init__(space)
        categorical = optuna.distributions.CategoricalDistribution
        self.variables = {
            f"g{i}": categorical(np.flatnonzero(row).tolist()) for i, row in enumerate(self.allowed)
        }
        self.study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        self.trial: Any = None

    def propose(self) -> IntArray:
        """The sampler's next choice. [G]"""
        self.trial = self.study.ask(self.variables)
        return np.array([self.trial.params[name] for name in self.variables], dtype=np.int32)

    def evaluate(self, choice: IntArray) -> float:
        """As ``GroupSearch``; the study is told."""
        value = super().evaluate(choice)
        if self.trial is None:
            self._tell_first(choice, value)
        else:
            self.study.tell(self.trial, value)
        return value

    def _tell_first(self, choice: IntArray, value: float) -> None:
        import optuna

        params = dict(zip(self.variables, choice.tolist(), strict=True))
        first = optuna.trial.create_trial(params=params, distributions=self.variables, value=value)
        self.study.add_trial(first)


@contextmanager
def _silent() -> Iterator[None]:
    """Optuna says nothing but warnings, and afterwards what it said before."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
