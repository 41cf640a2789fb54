"""Lower bounds on the time and the memory of a stage in any plan, as sums over segments.

A stage of segments [i, j) on a mesh takes at least::

    seconds    F + I + W of its segments, ZeRO's exchanges of a micro-batch, recomputation
    end        gradients over replicas + the optimizer's step
    bytes      state + largest working memory + f saved activations, less what is recomputed

1. *Exchanges.* A collective of a part of the parameters takes at least its bytes times the least
   seconds a byte (`Fabric.rate`).
2. *In flight.* Each of M micro-batches stays on the stage from its forward pass until its gradients
   of weights are computed, while it passes through all later stages and back. All of this happens
   in a step of T seconds, after the first micro-batch has come through the stages before, and
   before the last one has gone back through them. In any order the most micro-batches in flight are
   at least their mean::

       f >= M (F + I + W of the stage + F + I of those after) / (T - F + I of those before)

3. *Recomputation.* Bytes above the memory must be freed by segments that run their forward pass
   again. The least seconds for this are a fractional knapsack; its dual only needs sums, for any
   l >= 0::

       again >= l lack / f - sum over segments of max(0, l freed - forward)

   where a segment, or its attention alone, is recomputed, whichever gives more. Neighbouring
   segments of one layer may save a single input. Recomputing groups of several layers is a word of
   `--given` only, and not part of the space.

Parameters that several segments read count only for the first. All bounds are functions of sums, so
that a stage that meets a step still does when a segment is removed at either end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np

from gnnplace.arrays import FloatArray
from gnnplace.plans.mesh import Mesh
from gnnplace.plans.search.space import MeshKind
from gnnplace.plans.search.stage import Pricer

BOTH, ALL, LEAD, KEPT, STATE, END, FREED, AGAIN, SCORES, ATTENTION = range(10)
PRICES = 6  # multipliers of bytes that lack


class Relaxed(NamedTuple):
    """Prefix sums of segments on kinds of meshes.

    Attributes:
        sums: F + I, F + I + W, F, bytes kept, bytes of state, seconds at the end, bytes that can be
            freed, F without exchanges, bytes that attention can free, its part of F. [tables, 10,
            segments + 1]
        working: Bytes at work. [tables, segments]
        prices: Seconds for each byte that lacks. [tables, PRICES]
        dual: Prefix sums of max(0, price freed - forward), of a segment or its attention. [tables,
            PRICES, segments + 1]
        memory: Bytes of a device. [tables]
    """

    sums: FloatArray
    working: FloatArray
    prices: FloatArray
    dual: FloatArray
    memory: FloatArray


def stack_tables(tables: Sequence[Relaxed]) -> Relaxed:
    """Return the sums of several kinds of meshes as one table, in their order."""
    return Relaxed(*(np.stack(field) for field in zip(*tables, strict=True)))


def relax_meshes(
    pricer: Pricer, meshes: Sequence[Mesh], shape: MeshKind
) -> Relaxed | None:
    """Return the least sums over meshes of one kind, without the first axis of `Relaxed`.

    Args:
        pricer: The pricer of the model and the cluster.
        meshes: Meshes of the kind, at different places.
        shape: Their kind.

    Returns:
        The sums; None if the model cannot be cut so.
    """
    tables = [
        rows
        for mesh in meshes
        if (rows := make_mesh_rows(pricer, mesh, shape)) is not None
    ]
    if not tables:
        return None
    rows = np.min([x for x, _ in tables], axis=0)
    working = np.min([x for _, x in tables], axis=0)
    forward = rows[[AGAIN, ATTENTION]]
    freed = rows[[FREED, SCORES]]
    rates_of_bytes = np.unique(forward[freed > 0] / freed[freed > 0])
    # Seconds a byte from which one more segment is worth recomputing.
    prices = np.zeros(PRICES)
    if len(rates_of_bytes):
        prices = np.quantile(
            rates_of_bytes, np.linspace(0.0, 1.0, PRICES), method="nearest"
        )
    gains = prices[:, None, None] * rows[[FREED, SCORES]] - rows[[AGAIN, ATTENTION]]
    dual = np.maximum(gains, 0.0).max(axis=1)
    memory = np.array(max(pricer.usable_memory(mesh) for mesh in meshes))
    return Relaxed(_sums(rows), working, prices, _sums(dual), memory)


def make_mesh_rows(
    pricer: Pricer, mesh: Mesh, shape: MeshKind
) -> tuple[FloatArray, FloatArray] | None:
    """Return every segment's numbers on one mesh, and its bytes at work.

    The rows are those of `Relaxed.sums`, not summed up: [10, segments], and [segments]. None if
    the model cannot be cut so.
    """
    sums = pricer.sums(mesh, choice=shape.choice)
    if sums is None:
        return None
    chain = pricer.chain
    costs = sums.costs
    parameters = costs.parameters.copy()
    for tied, elements in zip(chain.tied, chain.count_tied(costs), strict=True):
        repeated = list(tied.segments[1:])
        parameters[repeated] -= elements[repeated]
    parameters = np.maximum(parameters, 0.0)
    rates = pricer.share_by_segment(
        shape.zero, costs, parameters, mesh, shape.choice, least=True
    )
    both = costs.forward + costs.backward + rates.forward + rates.backward
    rows = [
        both,
        both + costs.weights + rates.weights,
        costs.forward + rates.forward,
        costs.saved,
        rates.state,
        rates.end,
        np.maximum(pricer.find_most_freed(costs), costs.scores),
        rates.recomputed,
        costs.scores,
        costs.attention,
    ]
    return np.array(rows), rates.working


def _sums(rows: FloatArray) -> FloatArray:
    zeros = np.zeros((len(rows), 1))
    sums = np.cumsum(rows, axis=1)
    return np.concatenate([zeros, sums], axis=1)


class StageSurroundings(NamedTuple):
    """The times around a stage, and its bytes at work.

    Attributes:
        working: Bytes of the largest values at work in the stage.
        before: Seconds of F + I of the stages before it.
        lead: Seconds of F of the stages before it.
        after: Seconds of F + I of the stages after it.
    """

    working: float
    before: float
    lead: float
    after: float


@numba.njit(cache=True)
def stage_holds(
    table: Relaxed,
    kind: int,
    first: int,
    last: int,
    surroundings: StageSurroundings,
    microbatches: int,
    step: float,
) -> bool:
    """Return whether a stage may be in a step of so many seconds.

    Args:
        table: Prefix sums of all kinds of meshes.
        kind: The kind of the stage's devices.
        first: The first segment of the stage.
        last: The one after its last.
        surroundings: Times of the stages around it, and its working memory.
        microbatches: M, the number of micro-batches of a step.
        step: T, seconds that a step may take.
    """
    working, seconds_before, lead, seconds_after = surroundings
    sums = table.sums[kind]
    seconds = sums[ALL, last] - sums[ALL, first]
    end = sums[END, last] - sums[END, first]
    window = step - seconds_before
    if seconds + seconds_after > window or microbatches * seconds > min(
        window, step - lead - end
    ):
        return False
    flying = max(np.ceil(microbatches * (seconds + seconds_after) / window - 1e-9), 1.0)
    kept_bytes = sums[KEPT, last] - sums[KEPT, first]
    state = sums[STATE, last] - sums[STATE, first]
    lack = (state + working + flying * kept_bytes - table.memory[kind]) / flying
    if lack <= 0.0:
        return True
    if lack > (sums[FREED, last] - sums[FREED, first]) * (1 + 1e-12):
        return False
    recomputed = 0.0
    for k in range(table.prices.shape[1]):
        saved = table.dual[kind, k, last] - table.dual[kind, k, first]
        recomputed = max(recomputed, table.prices[kind, k] * lack - saved)
    return microbatches * (seconds + recomputed) <= min(window, step - lead - end)
