"""The meshes that the search tries, and the costs of segments on each.

The number of shards is a power of two within a server. Each has a menu of splits, over one axis or
over two: Megatron's split inside a split of tokens, or inside a split of examples for experts.
Splits that send tokens to experts on other servers may span up to `SERVERS` servers.

On up to `MIXED` devices any number of replicas is tried; on more devices, powers of two and
divisors of the cluster's size. ZeRO 1, 2 and 3 are tried where gradients are sums over devices.
ZeRO 0 is not, since it is never faster than 1 and needs more memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gnnplace.arrays import FloatArray, LongArray
from gnnplace.costs import state_terms
from gnnplace.plans.mesh import Mesh, MeshFabric
from gnnplace.plans.search import partition
from gnnplace.plans.search.stage import Pricer, SegmentSums
from gnnplace.plans.segments.chain import (
    CONTEXT,
    EXAMPLES,
    EXPERTS,
    FASTEST,
    FREE,
    MICROBATCHES,
    WEIGHTS,
    SplitChoice,
    is_captured,
    list_divisors,
)

MIXED = 16  # devices up to which stages may have unlike meshes
SIZES = 12  # sizes of micro-batches that are tried
ZEROS = (1, 2, 3)
SERVERS = 8  # that experts may lie on
PRICES = (0.0, 2.0**-3, 2.0**3)  # of a byte, beside all seconds over all bytes
FLYING, MANY = 4, 16  # micro-batches in flight, and in a step, that prices are for
MEGATRON = SplitChoice(WEIGHTS, border="tokens", step_share=1.0 / MANY)
# Seconds of a segment on a device that is excluded; keeps the digits of the others.
BARRED = 2.0**20


class MeshKind(NamedTuple):
    """A kind of mesh.

    Attributes:
        replicas: The number of replicas.
        shards: The number of shards of each replica.
        zero: ZeRO stage.
        choice: How the split over the shards is chosen.
        outer: Shards along the outer of two axes; 1 if there is one axis.
    """

    replicas: int
    shards: int
    zero: int
    choice: SplitChoice = FASTEST
    outer: int = 1

    @property
    def devices(self) -> int:
        """Return the number of devices."""
        return self.replicas * self.shards

    def mesh(self, first: int) -> Mesh:
        """Return the mesh of this kind that begins at device `first`."""
        return Mesh(first, self.replicas, self.shards, self.outer)


@dataclass(frozen=True, eq=False)
class Space:
    """The meshes for micro-batches of one size, and their tables.

    Attributes:
        pricer: The pricer of the model and the cluster.
        microbatches: M, the number of micro-batches of a step.
        shapes: Kinds of meshes. [meshes]
        tables: Prices of segments by kind of mesh and kinds of its devices.
        barred: The same with `BARRED` seconds for segments that may not be on a mesh.
    """

    pricer: Pricer
    microbatches: int
    shapes: tuple[MeshKind, ...]
    tables: dict[tuple[MeshKind, tuple[str, ...]], partition.Tables] = field(
        default_factory=dict
    )
    barred: dict[tuple[int, bytes], partition.Tables] = field(default_factory=dict)

    @cached_property
    def devices_of_shapes(self) -> LongArray:
        """Return the devices of every kind of mesh. [shapes]"""
        return np.array([shape.devices for shape in self.shapes], dtype=np.int64)

    def table(self, shape: MeshKind, first: int = 0) -> partition.Tables | None:
        """Return the prices of segments on the mesh that begins at a device; None if there is none.

        Segments that may not be there take `BARRED` seconds each.
        """
        table = self.plain_table(shape, first)
        allowed = self.pricer.chain.allowed
        if table is None or allowed is None:
            return table
        mesh = shape.mesh(first)
        barred = ~allowed[:, mesh.devices.start : mesh.devices.stop].all(axis=1)
        key = id(table), barred.tobytes()  # `tables` keeps them
        if key not in self.barred:
            sums = table.sums.copy()
            sums[partition.SECONDS, 1:] += BARRED * np.cumsum(barred)
            self.barred[key] = table._replace(sums=sums)
        return self.barred[key]

    def plain_table(self, shape: MeshKind, first: int = 0) -> partition.Tables | None:
        """Return the prices of segments on a mesh, even of those that may not be there.

        None if there is no such mesh: it ends beyond the last device, it has replicas of a batch
        that stays whole, or the model cannot be cut so.
        """
        mesh = shape.mesh(first)
        fabric = self.pricer.fabric
        # A replica must not have a share of the batch.
        whole_model = shape.replicas > 1 and self.pricer.chain.mixes
        if whole_model or mesh.devices.stop > fabric.cluster.num_devices:
            return None
        key = (shape, fabric.kinds(mesh))
        if key not in self.tables:
            table = _table(self.pricer, mesh, shape)
            if table is None:
                return None
            self.tables[key] = table
        return self.tables[key]


def _table(pricer: Pricer, mesh: Mesh, shape: MeshKind) -> partition.Tables | None:
    mesh_sums = pricer.sums(mesh, choice=shape.choice)
    if mesh_sums is None:
        return None
    costs = mesh_sums.costs
    freed = pricer.find_most_freed(costs)
    sums = np.zeros((partition.WIDTH, len(pricer.chain) + 1))
    sums[partition.SECONDS] = mesh_sums.forward + mesh_sums.backward + mesh_sums.weights
    sums[partition.FREED, 1:] = np.cumsum(freed)
    sums[partition.KEPT] = mesh_sums.saved
    rates = pricer.share_by_segment(
        shape.zero, costs, costs.parameters, mesh, shape.choice
    )
    recomputed = np.where(freed > 0, rates.recomputed, 0.0)
    sums[partition.AGAIN, 1:] = np.cumsum(recomputed)
    sums[partition.SECONDS, 1:] += np.cumsum(
        rates.forward + rates.backward + rates.weights
    )
    sums[partition.STATE, 1:] = np.cumsum(rates.state)
    end = np.concatenate([[0.0], np.cumsum(rates.end)])
    sums = np.concatenate([sums, partition.largest_at_work(rates.working)])
    return partition.Tables(sums, np.array(pricer.usable_memory(mesh)), end)


def price_space(pricer: Pricer, microbatches: int, *, has_shards: bool = True) -> Space:
    """Return all meshes for micro-batches of one size, priced.

    Args:
        pricer: The pricer of the model and the cluster, for micro-batches of the size.
        microbatches: M, the number of micro-batches of a step.
        has_shards: Whether layers may be split over shards, which takes most of the time.
    """
    count, size = pricer.fabric.cluster.num_devices, pricer.size
    most_shards, source = count_server_devices(pricer.fabric), pricer.chain.source
    experts = source.experts if is_captured(source) else 0
    most_shards *= SERVERS if experts > 1 else 1
    if not has_shards:
        most_shards = 1
    shapes: list[MeshKind] = []
    for shards in (2**k for k in range(count.bit_length()) if 2**k <= most_shards):
        for replicas in range(1, count // shards + 1):
            if size % replicas or (pricer.chain.mixes and replicas > 1):
                continue
            if (
                count > MIXED
                and replicas & (replicas - 1)
                and count % (replicas * shards)
            ):
                continue
            for outer, choice, summed in find_split_menu(
                pricer, replicas, shards, experts
            ):
                zeros = ZEROS if replicas > 1 or "examples" in choice.border else (1,)
                zeros = zeros if summed or replicas > 1 else (0,)
                shapes += [
                    MeshKind(replicas, shards, zero, choice, outer) for zero in zeros
                ]
    space = Space(pricer, microbatches, tuple(shapes))
    for shape in shapes:
        space.plain_table(shape)  # priced now: every search begins with equal meshes
    return space


def find_split_menu(
    pricer: Pricer, replicas: int, shards: int, experts: int
) -> list[tuple[int, SplitChoice, bool]]:
    """Return the splits over shards of which none is better than another in everything.

    Within a server these are the splits for `PRICES` of a byte, and the one that cuts all weights,
    with tokens cut at borders and not. Beside them are splits over two axes, and those with
    experts. Prices are for some micro-batches in flight (`FLYING`) and in a step (`MANY`), so that
    micro-batches of every size share them.

    Args:
        pricer: The pricer of the model and the cluster.
        replicas: Replicas of the mesh.
        shards: Shards of each replica.
        experts: Parts that the model's experts can be cut into; 0 if it has none.

    Returns:
        Shards along the outer of two axes, the choice, and whether any gradient is a sum over
        shards.
    """
    mesh, entries = (
        Mesh(0, replicas, shards),
        list[tuple[int, SplitChoice, bool, FloatArray]](),
    )
    if shards == 1:
        return [(1, FASTEST, False)]
    plain: SegmentSums | None = None
    if shards <= count_server_devices(pricer.fabric) and pricer.chain.framework is None:
        plain = pricer.sums(mesh)
    for outer, choice in _choices(pricer, mesh, plain, experts):
        sums = pricer.sums(replace(mesh, outer=outer), choice=choice)
        if sums is None:
            continue
        costs = sums.costs
        took = costs.forward + costs.backward + costs.weights
        apart = costs.parameters - costs.summed.sum(axis=0)
        half = costs.summed[:-1] if outer > 1 else np.zeros((2, 1))
        rows = np.array(
            [
                took,
                costs.parameters,
                apart,
                costs.saved,
                costs.entering,
                *(apart + half),
            ]
        )
        cut = choice.border != "whole"
        if not any(bool((entry_rows <= rows).all()) for _, _, _, entry_rows in entries):
            entries = [
                x
                for x in entries
                if (x[1].border != "whole") > cut or not (rows <= x[3]).all()
            ]
            entries.append((outer, choice, bool(costs.summed.any()), rows))
    return [(outer, choice, summed) for outer, choice, summed, _ in entries]


def _choices(
    pricer: Pricer, mesh: Mesh, plain: SegmentSums | None, experts: int
) -> Iterator[tuple[int, SplitChoice]]:
    """Yield the splits that a menu chooses from, with shards along the outer of two axes.

    Args:
        pricer: The pricer of the model and the cluster.
        mesh: Devices, as replicas times shards.
        plain: Prefix sums of a captured model on the mesh; None if free splits are not wanted.
        experts: Parts that the model's experts can be cut into; 0 if it has none.
    """
    server, shards, imbalance = (
        count_server_devices(pricer.fabric),
        mesh.shards,
        1.0 / MANY,
    )
    examples = pricer.size // mesh.replicas
    candidates: Iterable[SplitChoice] = ()
    if pricer.chain.framework is not None:
        candidates = _list_priced_choices(shards, server, experts)
    elif plain is not None:
        candidates = _free_choices(pricer, plain)
    for choice in candidates:
        yield 1, choice
    if experts and experts % shards == examples % shards == 0:
        yield 1, SplitChoice(EXAMPLES, "", "examples", step_share=imbalance)
    for outer in (2**k for k in range(1, shards.bit_length() - 1)):
        if shards // outer > server:
            continue
        if shards <= server:
            yield outer, SplitChoice(WEIGHTS, CONTEXT, "tokens", step_share=imbalance)
        if experts and experts % outer == examples % outer == 0:
            yield (
                outer,
                SplitChoice(WEIGHTS, EXAMPLES, "examples,tokens", step_share=imbalance),
            )


def _list_priced_choices(
    shards: int, server: int, experts: int
) -> Iterator[SplitChoice]:
    """Yield splits over one axis that a framework has prices of.

    Args:
        shards: Shards of the mesh.
        server: Devices of a server.
        experts: Parts that the model's experts can be cut into, 0 without any.
    """
    imbalance = 1.0 / MANY
    if shards <= server:
        yield replace(MEGATRON, border="tokens")
        yield replace(MEGATRON, border="whole")
        yield SplitChoice(CONTEXT, "", "tokens", step_share=imbalance)
    if experts and experts % shards == 0:
        yield SplitChoice(EXPERTS, "", "tokens", step_share=imbalance)


def _free_choices(pricer: Pricer, plain: SegmentSums) -> Iterator[SplitChoice]:
    """Yield Megatron's split over one axis and free ones, at several prices of a byte.

    Args:
        pricer: The pricer of a captured model.
        plain: Prefix sums of its segments on the mesh.
    """
    imbalance, chain = 1.0 / MANY, pricer.chain
    seconds = float(plain.forward[-1] + plain.backward[-1] + plain.weights[-1])
    parameters = float(plain.parameters[-1])
    terms = state_terms(
        parameters, optimizer=chain.optimizer, precision=chain.precision
    )
    unit = seconds / max(terms.total + float(plain.saved[-1]), 1.0)
    for border in ("tokens", "whole"):
        yield replace(MEGATRON, border=border)
        for price in PRICES:
            state, saved = price * unit, price * unit * FLYING
            yield SplitChoice(FREE, "", border, state, saved, imbalance)
            if price and border == "tokens":
                yield SplitChoice(
                    FREE, "", border, state, saved, imbalance, regather=True
                )


def count_server_devices(fabric: MeshFabric) -> int:
    """Return the devices of the smallest server, within which shards stay."""
    counts = np.bincount(np.array(fabric.server, dtype=np.int64))
    return (
        int(counts[counts > 0].min())
        if counts.max() > 1
        else fabric.cluster.num_devices
    )


def micro_batch_sizes(batch: int) -> list[int]:
    """Return at most `SIZES` divisors of a batch, spread evenly by logarithm, the largest first."""
    divisors = [d for d in list_divisors(batch) if batch // d <= MICROBATCHES]
    if len(divisors) <= SIZES:
        return divisors[::-1]
    wanted = np.geomspace(divisors[0], batch, SIZES)
    near = {min(divisors, key=lambda d: abs(np.log(d / w))) for w in wanted}
    return sorted(near, reverse=True)
