"""A table that embedding and head share: its gradient is summed once, as priced and as run."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from gnnplace.planning.sharded import make_split_plan
from gnnplace.run.planned import split_model
from gnnplace.run.split import move
from gnnplace.sharding import ShardingResult
from gnnplace.sharding.answers import SplitOptions
from gnnplace.sharding.captured.costs import MeshMachine
from gnnplace.sharding.captured.layout import PARTIAL, REPLICATED
from gnnplace.sharding.captured.problem import complete_strategy
from gnnplace.sharding.captured.split import layer_graph, layer_tables
from tests.sharding.mesh_processes import on_processes

WORDS, WIDTH, BATCH, LENGTH = 16, 8, 4, 4
TABLE = 4.0 * WORDS * WIDTH  # bytes
UNIT = MeshMachine(flops=1e9, bandwidth=1.0)  # seconds of a collective: bytes on a link


class Model(nn.Module):
    """Words, one layer, and a head, which may have the table of the words."""

    def __init__(self, tied: bool):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(torch.tanh(self.inner(self.words(x))))


def loss_of(scores, target):
    return functional.cross_entropy(scores.flatten(0, 1), target.flatten())


def inputs():
    x = torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) % WORDS
    return x, x.roll(1, 1)


def split_of(mesh, labels, *, tied=True):
    """The split in which calls have these labels, by the end of their names; others are whole."""
    layers = layer_graph(Model(tied), inputs(), loss_of, "tied")
    tables = layer_tables(layers, mesh, UNIT)
    problem = tables.problem
    operations = []
    for op in tables.captured.graph.ops:
        wanted = labels.get(op.name, (None,) * len(mesh))
        names = {name: label for label, name in op.names}
        operations.append(tuple(names.get(x, x) for x in wanted))
    strategy = complete_strategy(tables.captured, operations)
    cost, memory = problem.value(strategy), problem.bytes(strategy)
    return tables.split(ShardingResult(cost, memory, tuple(strategy), 0.0, True))


@pytest.mark.parametrize("mesh", [(2,), (4,), (2, 2)])
def test_along_the_batch_the_table_is_summed_once(mesh):
    """By hand: one all-reduce of the table and of the inner layer for each mesh dimension."""
    labels = dict.fromkeys(("words", "inner", "head"), ("batch",) * len(mesh))
    split = split_of(mesh, labels)
    assert split.homes == {"words.weight": (REPLICATED,) * len(mesh)}
    size = TABLE + 4.0 * (WIDTH * WIDTH + WIDTH)
    expected = sum(2 * (n - 1) / n * size for n in mesh)
    assert split.predicted.gradient == pytest.approx(expected)


def test_every_state_that_the_search_may_take_is_no_cheaper_than_the_run():
    """All states of the table's node: the least is what `completed` chose and what runs."""
    split = split_of((2, 2), {"words": ("batch", None), "head": ("batch", "batch")})
    captured, problem = split.captured, split.problem
    (value,) = [v for v in captured.shared if captured.graph.values[v].name]
    node = captured.position[value]
    chosen = split.result.configuration
    costs = [
        problem.value((*chosen[:node], k, *chosen[node + 1 :]))
        for k in range(len(captured.shared[value]))
    ]
    assert min(costs) == pytest.approx(split.result.cost)
    assert captured.shared[value][chosen[node]][1] == (PARTIAL, PARTIAL)


EMBEDDINGS = (None, "batch", "vocabulary", "features")
HEADS = (None, "batch", "out", "in")
EXCHANGED = {("vocabulary", "in"), ("features", "out")}  # DTensor's own all-to-all
PAIRS = [
    ((a,), (b,))
    for a, b in itertools.product(EMBEDDINGS, HEADS)
    if (a, b) not in EXCHANGED
]
PAIRS_OF_TWO = [
    (("batch", None), ("batch", "out")),
    (("batch", "batch"), ("batch", "batch")),
    (("batch", None), ("batch", "batch")),
    (("vocabulary", "batch"), ("out", "batch")),
    ((None, "vocabulary"), ("batch", "out")),
    (("batch", "features"), (None, None)),
]


@pytest.mark.parametrize(("mesh", "pairs"), [((2,), PAIRS), ((2, 2), PAIRS_OF_TWO)])
def test_processes_exchange_what_is_predicted(mesh, pairs):
    """Real processes: gradients are one device's, and bytes of links those that are predicted.

    Beside it the same split of a model with two tables: what else is exchanged is the same.
    """
    answers = on_processes(math.prod(mesh), lambda rank: _runs(mesh, pairs))
    for measured, (embedding, head) in zip(answers[0], pairs, strict=True):
        labels = {"words": embedding, "head": head}
        tied, apart = (split_of(mesh, labels, tied=x) for x in (True, False))
        predicted = [x.predicted.total - x.predicted.compute for x in (tied, apart)]
        assert measured[0] - measured[1] == pytest.approx(
            predicted[0] - predicted[1], abs=1e-6
        ), labels


def _runs(mesh, pairs):
    """Bytes on a link of a step with one table, and with two, of every pair of splits."""
    rows = []
    for embedding, head in pairs:
        labels = {"words": embedding, "head": head}
        rows.append([_run(split_of(mesh, labels, tied=x), x) for x in (True, False)])
    return rows


def _run(split, tied):
    model, alone = Model(tied), Model(tied)
    plan = make_split_plan(split, "tied", SplitOptions(math.prod(split.mesh)))
    split_model(plan.file, model, None, loss_of)
    x, target = inputs()
    loss_of(alone(x), target).backward()
    with pytest.MonkeyPatch.context() as patch:
        link = _Link(patch)
        model(x, target).backward()
    for split_parameter, parameter in zip(
        model.parameters(), alone.parameters(), strict=True
    ):
        gradient = split_parameter.grad.full_tensor()
        np.testing.assert_allclose(gradient, parameter.grad, rtol=1e-4, atol=1e-6)
    return link.bytes


class _Link:
    """Counts the bytes that rings of collectives send over a device's link."""

    def __init__(self, patch):
        self.bytes = 0.0
        all_reduce = dist.all_reduce
        scatter, gather = move.scatter_flat, move.gather_flat

        def counted_all_reduce(tensor, *args, group=None, **options):
            self._count(2, tensor, dist.get_world_size(group))
            return all_reduce(tensor, *args, group=group, **options)

        def counted_scatter(part, whole, group):
            self._count(1, whole, group.size())
            return scatter(part, whole, group)

        def counted_gather(whole, part, group):
            self._count(1, whole, group.size())
            return gather(whole, part, group)

        patch.setattr(dist, "all_reduce", counted_all_reduce)
        patch.setattr(move, "scatter_flat", counted_scatter)
        patch.setattr(move, "gather_flat", counted_gather)

    def _count(self, rounds, tensor, devices):
        size = tensor.numel() * tensor.element_size()
        self.bytes += rounds * (devices - 1) / devices * size
