"""``learned``: the policy as a placer.

With budget 0 the policy decodes once under each of a few aims (``rollouts.Aim``); the best few are
refined by passes (``passes``), and the best by simulation is the answer. Instead of decoding, the
policy can improve a given placement (``improving``). With a budget, local search continues from
there (``search``). Complexity: near-linear in the graph for each decode, pass and move.

The graph network decodes as well. Its encoder runs once a problem. Its decoder walks greedily, for
the number of devices that the network chose and for every other number above one; then it draws
from the softmax of its scores (by Gumbel noise), for each number in turn.

On a small problem three cuts of the placers room are starts too, and all starts go through
successive halving (``passes``); the answer is never worse than that of the decodes under aims
alone. With a budget the network is not used on small problems, because a search finds as much in
the same time, and the cuts are starts only if less than a quarter of the budget has passed. On a
large problem a search sees little of the graph, so that the network's starts pay with a budget too
(docs/learned.md has the figures).

A large problem with narrow groups is searched on those (``placers.narrow``). When that search no
longer improves, decodes and searches of the whole graph take turns with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gnnplace.errors import MissingExtraError
from gnnplace.foreign import naming_extras
from gnnplace.placers import (
    LARGE,
    NO_BUDGET,
    Contiguous,
    Found,
    Interleaved,
    MinCut,
    NarrowSearch,
    Placer,
    SearchSpace,
    choose_better,
    groups_take_all_time,
    is_expired,
    narrow_problem,
    read_clock,
)
from gnnplace.policy.decode.aims import Aim
from gnnplace.policy.decode.improving import (
    IMPROVED,
    Improvement,
    ImprovingRollouts,
    check_orders,
)
from gnnplace.policy.decode.rollouts import SCORE, Decoded, Rollouts
from gnnplace.policy.refine.passes import RefiningPasses
from gnnplace.policy.search import Anytime, Beside, NarrowBeside
from gnnplace.policy.weights import (
    POLICY_CHECKPOINT,
    PolicyWeights,
    prior_weights,
    read_weights,
)
from gnnplace.problem import Problem

# The graph network alone needs torch, and many problems do not need it.
if TYPE_CHECKING:
    from gnnplace.policy.gnn.decodes import NetworkDecodes
    from gnnplace.policy.gnn.network import GnnPolicy
    from gnnplace.policy.network import PlacementPolicy

DRAWS = 8
ENCODING = 1.5e-5  # seconds an op that one encoding takes
LEAST_OPS = 1_000  # The network is asked for problems of this size up to ``LARGE``
NAME = "graph network"
ON_GROUPS = 3  # search on groups over that of the whole graph, where they take turns
FEWER_AIMS = 6  # The number of aims if the network decodes as well
GROUPING = 2e-6  # seconds an op that narrow groups of a large graph take
# The share of the time after which a small problem gets no cuts as starts.
MORE_STARTS = 1 / 4
SEED = 0  # Drawn cuts are the same, whatever the seed of a search is
STARTING = 3e-6  # seconds an op that the search takes before its first move


def worth_asking(problem: Problem) -> bool:
    """Return whether a problem is large enough for the network, and not too large."""
    return problem.num_devices > 1 and LEAST_OPS <= problem.num_ops <= LARGE


def network_decodes(
    rollouts: Rollouts, policy: GnnPolicy, aim: Aim, deadline: float
) -> list[Decoded]:
    """Return the greedy decodes of the network and draws, simulated; none begins after the
    deadline.

    None at all where the encoding would end after it.

    Args:
        rollouts: the problem as the learned placer walks it.
        policy: the graph network that decodes.
        aim: The aim whose rounds the orders of micro-batches follow.
        deadline: when to be back.
    """
    if read_clock() + ENCODING * rollouts.space.problem.num_ops >= deadline:
        return []
    return _ask(rollouts, policy, aim).decode(1 + DRAWS, deadline)


def _ask(rollouts: Rollouts, policy: GnnPolicy, aim: Aim) -> NetworkDecodes:
    """Run the network's encoder over a problem."""
    from gnnplace.policy.gnn.decodes import NetworkDecodes
    from gnnplace.policy.gnn.rollouts import Episodes

    episodes = Episodes(rollouts.space, policy.order, rollouts.graph)
    return NetworkDecodes(
        rollouts=rollouts,
        episodes=episodes,
        network=episodes.network(policy),
        aim=replace(aim, order=NAME),
    )


@lru_cache(maxsize=2)
def load_policy(folder: str | Path = POLICY_CHECKPOINT) -> PolicyWeights:
    """Return the policy saved in ``folder``, by default the one that comes with the package.

    Raises:
        FormatError: a file is missing or malformed.
        MismatchError: it was trained on other features than this package computes.
    """
    return read_weights(folder)


def load_network() -> GnnPolicy:
    """Return the graph network that comes with the package.

    Raises:
        MissingExtraError: Torch is not installed.
    """
    with naming_extras():
        from gnnplace.policy.gnn.network import load_gnn

        return load_gnn()


class LearnedPlacer(Placer):
    """The trained policy.

    Args:
        policy: a policy, or None for the one that comes with the package.
        orders: traversal orders to decode under, or None for the policy's choice.
        on_groups: whether large problems with narrow groups are searched on these, and others of
            some size on groups beside their ops.
        network: what loads the graph network that decodes large problems as well; None: none does.
        improvement: improvement walks that take the place of decodes; None: decodes construct.

    Attributes:
        missing: What a missing library took away from the last answer; empty if nothing.

    Raises:
        InputError: an order that no placement can be improved in.
    """

    name = "learned"

    def __init__(
        self,
        policy: PlacementPolicy | PolicyWeights | None = None,
        orders: tuple[str, ...] | None = None,
        on_groups: bool = True,
        network: Callable[[], GnnPolicy] | None = load_network,
        improvement: Improvement | None = None,
    ) -> None:
        self.policy = policy
        self.orders = orders
        if improvement is not None:
            if orders is None:
                self.orders = IMPROVED
            else:
                self.orders = orders
            check_orders(self.orders)
        if self.orders is None:
            self.network = network
        else:
            self.network = None
        self.on_groups = on_groups
        self.improvement = improvement
        self.missing = ""

    def missing_part(self) -> str:
        return self.missing

    def search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Found:
        self.missing = ""
        # Grouping a large graph takes a while.
        ops = space.problem.num_ops
        late = (
            deadline > NO_BUDGET
            and ops > LARGE
            and read_clock() + GROUPING * ops > deadline
        )
        if self.on_groups and not late and groups_take_all_time(space):
            return self.search_groups(
                space, self.narrow_search(space, rng), rng, deadline
            )
        first = self.first_choice(space, deadline)
        if not first.search_has_time(deadline):
            return first.found
        local = first.search(rng)
        groups = self.beside(space, rng)
        while not is_expired(deadline):
            local.cycle(deadline)
            groups.turn(local, deadline)
        moves_note = f"{local.moves} moves, {local.cycles} cycles{groups.note}"
        return local.answer(f"{first.found.note}, then {moves_note}")

    def beside(
        self, space: SearchSpace, rng: np.random.Generator
    ) -> Beside | NarrowBeside:
        """Return a search on groups of ops, to take turns with that on ops."""
        group_rng = rng.spawn(1)[0]
        if self.on_groups and narrow_problem(space) is not None:
            return NarrowBeside(partial(self.narrow_search, space, group_rng))
        return Beside(space, self._local_search, group_rng, open=self.on_groups)

    def _local_search(
        self, space: SearchSpace, rng: np.random.Generator, deadline: float
    ) -> Anytime | None:
        """Return a search from the first choice; None where there is no time for it."""
        first = self.first_choice(space, deadline)
        if first.search_has_time(deadline):
            return first.search(rng)
        return None

    def narrow_search(
        self, space: SearchSpace, rng: np.random.Generator
    ) -> NarrowSearch:
        """Return a search on narrow groups, from constructions."""
        narrow = narrow_problem(space)
        assert narrow is not None
        return NarrowSearch(space, narrow, SearchSpace(narrow.problem), (), rng)

    def search_groups(
        self,
        space: SearchSpace,
        groups: NarrowSearch,
        rng: np.random.Generator,
        deadline: float,
    ) -> Found:
        """Search on groups; where that finds nothing more, of the whole graph by turns."""
        if deadline <= NO_BUDGET:
            groups.first_round()
        while groups.has_time(deadline) and not groups.stale:
            groups.lap()
        if not groups.has_time(deadline):
            return groups.found
        first = self.first_choice(space, deadline)
        if not first.search_has_time(deadline):
            return choose_better(space, groups.found, first.found)
        local = first.search(rng)
        ops_before = groups.chunks.ops
        while groups.has_time(deadline):
            local.offer(groups.found, groups.expansion.score)
            local.cycle(deadline)
            wanted = ops_before + ON_GROUPS * local.ops
            while groups.chunks.ops < wanted and groups.has_time(deadline):
                groups.lap()
        note = f"{groups.found.note}; {local.moves} moves of the whole graph"
        return choose_better(space, local.answer(note), groups.found)

    def rollouts(self, space: SearchSpace) -> Rollouts:
        """Return what decodes a problem."""
        policy = self.policy or load_policy()
        if self.improvement is not None:
            return ImprovingRollouts(
                space, policy, self.improvement, self.orders or IMPROVED
            )
        if self.orders is None:
            options = {}
        else:
            options = {"orders": self.orders}
        return Rollouts(space, policy, **options)

    def first_choice(
        self,
        space: SearchSpace,
        deadline: float,
        placements: Sequence[Found] | None = None,
    ) -> FirstChoice:
        """Return the best start, refined; after the deadline the first one as it is.

        Args:
            space: The problem's search space.
            deadline: The time to be back.
            placements: Placements to start from beside the decodes of a small problem; None: three
                cuts.
        """
        rollouts = self.rollouts(space)
        begun = read_clock()
        if deadline > NO_BUDGET:
            until = deadline
        else:
            until = np.inf
        passes = RefiningPasses(rollouts)
        ranked = self.decodes(rollouts, until)
        if space.starts:
            ranked = sorted(
                [*ranked, *map(rollouts.justify_placement, space.starts)], key=SCORE
            )
        best = passes.best(ranked, until)
        small = self.orders is None and space.problem.num_ops < LEAST_OPS
        early = until == np.inf or read_clock() < begun + MORE_STARTS * (until - begun)
        if small and (early or placements is not None):
            ranked += self.more_starts(rollouts, until, placements)
            ranked.sort(key=SCORE)
            halved = passes.best_by_halving(ranked, until)
            best = min(best, halved, key=SCORE)
        return FirstChoice(
            rollouts=rollouts,
            passes=passes,
            best=best,
            decodes=len(ranked),
        )

    def more_starts(
        self, rollouts: Rollouts, until: float, placements: Sequence[Found] | None
    ) -> Iterator[Decoded]:
        """Yield the starts of a small problem beside decodes of the policy.

        With a deadline the graph network is not asked: a search finds as much in its time.
        """
        space = rollouts.space
        for placement in _cuts(space, until) if placements is None else placements:
            if read_clock() < until:
                yield rollouts.justify_placement(placement)
        if until == np.inf and space.problem.num_devices > 1:
            network = self.find_network()
            if network is not None:
                aim = Aim(NAME, space.problem.num_devices)
                yield from _ask(rollouts, network, aim).first_answers(until)

    def decodes(self, rollouts: Rollouts, until: float) -> list[Decoded]:
        """Return decodes under some aims, and on large problems the network's; the best first."""
        if worth_asking(rollouts.space.problem):
            network = self.find_network()
        else:
            network = None
        if network is None:
            return rollouts.greedy(until)
        ranked = rollouts.greedy(until, FEWER_AIMS)
        ranked += network_decodes(rollouts, network, ranked[0].aim, until)
        return sorted(ranked, key=SCORE)

    def find_network(self) -> GnnPolicy | None:
        """Return the graph network; None if there is none, or its library is missing.

        The latter is noted in `missing`.
        """
        if self.network is None:
            return None
        try:
            return self.network()
        except MissingExtraError as error:
            self.missing = f"without the graph network's starts: {error}"
            return None


def _cuts(space: SearchSpace, until: float) -> Iterator[Found]:
    """Yield the three kinds of cuts of the placers room, none after the deadline."""
    cuts = (MinCut(), Contiguous(moves=False), Interleaved(moves=False))
    for placer in cuts:
        if read_clock() < until and placer.supports(space.problem) is None:
            cut = placer.search(space, np.random.default_rng(SEED), NO_BUDGET)
            yield replace(cut, note=placer.name)


@dataclass(frozen=True, eq=False)
class FirstChoice:
    """The policy's first choice, and the state that a search continues from.

    Attributes:
        rollouts: the problem and the policy.
        passes: the passes of refinement over the problem.
        best: the best decode, refined.
        decodes: how many starts there were.
    """

    rollouts: Rollouts
    passes: RefiningPasses
    best: Decoded
    decodes: int

    @property
    def found(self) -> Found:
        """Return the choice as a placement."""
        device = self.rollouts.space.spread(self.best.unit_device)
        improved = isinstance(self.rollouts, ImprovingRollouts)
        if improved:
            walked = f"{self.best.aim}, improvement walks"
        else:
            walked = f"{self.best.aim}"
        note = f"{walked}; best of {self.decodes} starts, refined"
        return Found(device, self.best.order, note)

    def search_has_time(self, deadline: float) -> bool:
        """Return whether a search can begin before the deadline; never without one."""
        return read_clock() + STARTING * self.rollouts.space.problem.num_ops < deadline

    def search(self, rng: np.random.Generator) -> Anytime:
        """Return a search that starts from the choice."""
        return Anytime(self.passes, self.best, rng)


def make_untrained(
    orders: tuple[str, ...] | None = None, improvement: Improvement | None = None
) -> LearnedPlacer:
    """Return ``learned`` with the parameters that training begins with: what it is measured by."""
    return Untrained(prior_weights(), orders, network=None, improvement=improvement)


class Untrained(LearnedPlacer):
    """The learned placer's control."""

    name = "learned-untrained"
