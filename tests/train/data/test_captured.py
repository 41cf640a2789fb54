from __future__ import annotations

import numpy as np
import pytest

from gnnplace.errors import InputError
from gnnplace.placers import SearchSpace
from gnnplace.problem import UPDATE, problem_to_data
from gnnplace.train.data.captured import (
    PARTS,
    SPLIT,
    CapturedDraws,
    CapturedStore,
    draw_captured_problem,
    open_shipped_store,
    tight_memory,
)
from gnnplace.train.data.recipes import RECIPES

STORE, MODELS = open_shipped_store(), RECIPES["store"].models


def test_the_shipped_store_has_every_model_and_splits_by_family():
    assert sorted(STORE.names) == sorted(model.name for model in MODELS)
    parts = {part: STORE.part(part) for part in PARTS}
    assert sorted(sum(parts.values(), ())) == sorted(STORE.names)
    families = {
        p: {STORE.graph(name).origin["family"] for name in parts[p]} for p in PARTS
    }
    assert {family: part for part in PARTS for family in families[part]} == dict(SPLIT)
    for model in MODELS:
        assert STORE.graph(model.name).origin["spec"] == model.spec


@pytest.mark.parametrize("name", STORE.names)
def test_graphs_are_training_steps_with_costs_on_every_kind(name):
    graph = STORE.graph(name)
    assert 100 <= graph.num_ops <= 5000
    assert set(graph.phase.tolist()) == {0, 1, 2}
    assert ((graph.work + graph.launch) > 0).any(axis=0).all()
    total = dict(zip(graph.kinds, (graph.work + graph.launch).sum(axis=1), strict=True))
    assert total["cpu"] > total["t4"] > total["v100"] > total["a100"] > total["h100"]
    assert (graph.unit[graph.phase == UPDATE] >= 0).all()


def test_the_same_seed_gives_the_same_problem():
    def data(seed, **more):
        return problem_to_data(
            draw_captured_problem(STORE, "bert-mini", seed, CapturedDraws(**more))
        )

    assert data(7) == data(7)
    assert data(7) != data(8)
    one, four = (data(7, microbatches=(m,), memory=("ample",)) for m in (1, 4))
    assert one["links"] == four["links"]  # what else is drawn does not depend on it


@pytest.mark.parametrize("seed", range(6))
def test_draws_keep_what_was_asked_for(seed):
    problem = draw_captured_problem(
        STORE,
        "inception-small",
        seed,
        CapturedDraws(
            groups=(60, 100), devices=(3, 5), clusters=("own",), microbatches=(4,)
        ),
    )
    assert problem.microbatches == 4
    assert problem.num_ops <= 4 * 101
    assert 3 <= problem.num_devices <= 5
    assert problem.cluster.num_channels == problem.num_devices * (
        problem.num_devices - 1
    )
    assert problem.estimated.all()


def test_shares_of_the_batch_cost_launches_and_their_part_of_the_work():
    whole, cut = (
        draw_captured_problem(
            STORE,
            "mlp-small",
            3,
            CapturedDraws(groups=None, microbatches=(m,), memory=("ample",)),
        )
        for m in (1, 4)
    )
    graph = STORE.graph("mlp-small")
    assert whole.num_ops == graph.num_ops
    batch = graph.phase != UPDATE
    copies = np.where(batch, 4, 1).sum()
    assert cut.num_ops == copies
    kind = next(iter(whole.time))
    saved = cut.time[kind].sum() - whole.time[kind].sum()
    launches = {k: 3 * graph.launch[i, batch].sum() for i, k in enumerate(graph.kinds)}
    assert any(saved == pytest.approx(value, rel=1e-3) for value in launches.values())
    assert gradient_bytes(cut) == pytest.approx(4 * gradient_bytes(whole))
    assert cut.graph.size.sum() - gradient_bytes(cut) == pytest.approx(
        whole.graph.size.sum() - gradient_bytes(whole)
    )


def gradient_bytes(problem):
    """Bytes of the tensors that updates alone take."""
    graph = problem.graph
    return sum(
        graph.size[k]
        for k in range(graph.num_tensors)
        if (problem.phase[graph.consumers(k)] == UPDATE).all()
    )


@pytest.mark.parametrize(
    "name", ["bert-mini", "inception-small", "seq2seq-short", "gpt2-tiny"]
)
@pytest.mark.parametrize("microbatches", [1, 4])
def test_tight_memory_holds_chunks_and_not_all_at_once(name, microbatches):
    problem = draw_captured_problem(
        STORE,
        name,
        1,
        CapturedDraws(microbatches=(microbatches,), memory=("tight",), devices=(4, 4)),
    )
    ample = draw_captured_problem(
        STORE,
        name,
        1,
        CapturedDraws(microbatches=(microbatches,), memory=("ample",), devices=(4, 4)),
    )
    memory = float(problem.cluster.memory[0])
    assert memory == tight_memory(ample)
    space = SearchSpace(ample)
    one = space.simulator.run(np.zeros(ample.num_ops, np.int32), space.turn_order)
    assert memory < one.peak_memory.max()
    assert one.peak_memory.max() < ample.cluster.memory.min()
    assert (
        not SearchSpace(problem)
        .simulator.run(np.zeros(ample.num_ops, np.int32), space.turn_order)
        .feasible
    )


def test_unknown_names_are_refused(tmp_path):
    with pytest.raises(InputError, match="'moon': unknown; graphs: bert-base"):
        STORE.graph("moon")
    with pytest.raises(InputError, match="'ring': unknown; clusters: shared"):
        draw_captured_problem(STORE, "mlp-small", 0, CapturedDraws(clusters=("ring",)))
    with pytest.raises(InputError, match="memory 'small': unknown; ample or tight"):
        draw_captured_problem(STORE, "mlp-small", 0, CapturedDraws(memory=("small",)))
    with pytest.raises(InputError, match="gnnplace data build"):
        CapturedStore(tmp_path)
