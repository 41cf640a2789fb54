"""Memory by formulas, against public profiles' figures."""

import pytest

import gnnplace
from benchmarks.studies.costs.galvatron import transformer_activations
from benchmarks.studies.costs.sailor_memory import held_bytes
from gnnplace.costs.memory import state_terms
from gnnplace.errors import InputError
from gnnplace.graph import ComputationGraph
from gnnplace.problem import build_problem
from gnnplace.problem.cluster import make_preset
from gnnplace.problem.cluster.headroom import PROCESS, SLACK, with_slack

MEBI = 2**20
LLAMA = ((1, 1, 301.28), (2, 2, 364.31), (4, 4, 492.38), (8, 8, 748.50))


@pytest.mark.parametrize(
    ("hidden", "batch", "tensor_parallel", "mebibytes"),
    [(2560, 1, 1, 170.3), (2560, 2, 2, 220.4), (2560, 4, 4, 321.1), (2560, 8, 8, 520.5),
     (4096, 1, 1, 272.3), (4096, 2, 2, 352.3), (4096, 4, 4, 512.4), (4096, 8, 8, 833.1)],
)  # fmt: skip
def test_activations_of_galvatron(hidden, batch, tensor_parallel, mebibytes):
    """gpt, memory_profiling_bf16_hidden{2560,4096}_head32_seqlen2048.json: a layer more."""
    found = transformer_activations(
        hidden, 2048, batch, heads=32, tensor_parallel=tensor_parallel
    )
    assert found / MEBI == pytest.approx(mebibytes, rel=0.006)


@pytest.mark.parametrize(("batch", "tensor_parallel", "mebibytes"), LLAMA)
def test_activations_of_llama(batch, tensor_parallel, mebibytes):
    """llama, memory_profiling_bf16_hidden4096_head32_seqlen2048.json: a layer more."""
    found = transformer_activations(
        4096, 2048, batch, heads=32, tensor_parallel=tensor_parallel, feed_forward=11008,
        gated=True, dropout=False,
    )  # fmt: skip
    assert found / MEBI == pytest.approx(mebibytes, rel=0.006)


@pytest.mark.parametrize(("tensor_parallel", "replicas", "bytes_each"), [
    (1, 8, 2.0), (2, 4, 4.0), (4, 2, 8.01), (8, 1, 16.02)])  # fmt: skip
def test_state_of_galvatron(tensor_parallel, replicas, bytes_each):
    """The same profiles' model states: all is shared out over the replicas."""
    parameters = 12 * 4096**2
    found = state_terms(
        parameters, precision="bf16-mixed", zero=3, replicas=replicas
    ).total
    assert found / parameters == pytest.approx(bytes_each, rel=0.01)
    assert tensor_parallel * replicas == 8


def test_state():
    assert state_terms(10).total == 160
    assert state_terms(10, optimizer="sgd").total == 80
    assert state_terms(10, precision="bf16-true").total == 80
    assert state_terms(10, precision="bf16-master").total == 160
    assert state_terms(10, zero=1, replicas=4).total == 80 + 20
    assert state_terms(10, zero=2, replicas=4).total == 40 + 30
    assert state_terms(10, zero=3, replicas=4).total == 40
    for given in (
        {"optimizer": "lamb"},
        {"precision": "8"},
        {"zero": 4},
        {"replicas": 0},
    ):
        with pytest.raises(InputError):
            state_terms(10, **given)


def test_scores_and_float32():
    """Korthikanti et al., table 2: sbh (34 + 5 a s / h) in half precision."""
    plain = transformer_activations(1024, 512, 2, heads=16, keeps_scores=True)
    assert plain == 512 * 2 * 1024 * (34 + 5 * 16 * 512 / 1024)
    wide = transformer_activations(
        1024, 512, 2, heads=16, keeps_scores=True, float32=True
    )
    assert plain < wide < 2 * plain
    with pytest.raises(InputError):
        transformer_activations(0, 1, 1, heads=1)


def test_held():
    assert held_bytes(1e9, 1e8) == PROCESS + (1 + SLACK) * 1.4e9


def test_headroom_auto():
    cluster = with_slack(make_preset("nvswitch-h100-8"))
    usable = cluster.memory[0]
    assert usable * (1 + SLACK) + PROCESS - 1e9 == pytest.approx(79e9)
    alone = make_preset("pcie-t4-2")
    graph = ComputationGraph.from_tensors(["a"], [])
    problem = build_problem("p", graph, alone, {"t4": [1.0]})
    gnnplace.check_headroom("auto")
    assert gnnplace.with_headroom(problem, "auto").cluster.memory[0] < 11e9
    assert gnnplace.with_headroom(problem, None) is problem
    with pytest.raises(InputError, match="or auto"):
        gnnplace.check_headroom("some")
