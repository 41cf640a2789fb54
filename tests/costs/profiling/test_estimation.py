"""Times of ops on devices that are not here, and tables of one's own.

Estimates: operations and bytes counted by hand, and the roofline itself.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import gnnplace
from benchmarks.gpu import measured_rows, merged_rows
from benchmarks.studies.costs.provenance import HUGGING_FACE
from gnnplace.costs.floors import NO_FLOOR
from gnnplace.costs.prediction import PROVENANCES
from gnnplace.costs.profiling.estimation import (
    estimate_ops,
    estimate_times,
    op_bytes,
    op_flops,
)
from gnnplace.costs.profiling.profiler import op_times
from gnnplace.costs.rows import write_rows
from gnnplace.costs.tables import load_shipped_tables
from gnnplace.errors import InputError
from gnnplace.problem import (
    problem_from_data,
    problem_to_data,
    read_problem,
    write_problem,
)
from gnnplace.problem.cluster.gpus import CPU, GPUS, get_figures
from gnnplace.tracing.loading import load
from gnnplace.tracing.models import capture
from gnnplace.tracing.options import CaptureOptions
from gnnplace.tracing.program.program import Program
from gnnplace.zoo.workload import list_workload_names
from tests.costs.profiling.programs import faked, small

SIZES = {
    "t5": "num_layers=1&num_decoder_layers=1",
    "bart": "encoder_layers=1&decoder_layers=1",
    "gpt2": "n_layer=1",
}


def check(spec: str) -> None:
    program = faked(spec)
    times = estimate_times(program, "h100")
    assert np.isfinite(times.seconds).all()
    assert all(np.isfinite(times.error))
    assert all(times.source)
    assert set(times.shares) == set(PROVENANCES)
    for part in (0, 1):
        assert sum(share[part] for share in times.shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", ["mlp", "moe", "small_resnet"])
def test_every_op_of_the_zoo_gets_a_time_with_a_provenance(name: str) -> None:
    assert name in list_workload_names()
    check(name)


@pytest.mark.campaign
@pytest.mark.parametrize("name", sorted(list_workload_names()))
def test_every_op_of_the_whole_zoo(name: str) -> None:
    check(name)


@pytest.mark.parametrize("name", ["gpt2"])
def test_every_op_of_hugging_face_gets_a_time(name: str) -> None:
    check(f"hf:{name}?{SIZES[name]}&batch=1&length=16")


@pytest.mark.campaign
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_every_op_of_ten_hugging_face_models(name: str) -> None:
    check(f"hf:{name}?{SIZES.get(name, 'num_hidden_layers=1')}&batch=1")


def test_the_host_is_a_term_of_its_own(monkeypatch) -> None:
    program = faked("small_resnet")
    eager = estimate_times(program, "h100").seconds.sum()
    monkeypatch.setattr("gnnplace.costs.profiling.estimation.EAGER", NO_FLOOR)
    graphs = estimate_times(program, "h100").seconds.sum()
    assert graphs < eager / 3  # a small model: the host decides


def test_a_problem_keeps_sources_and_errors_in_its_file(tmp_path) -> None:
    problem = gnnplace.profile(
        "mlp?depth=2",
        "nvlink-a100-2",
        options=CaptureOptions(groups=20, microbatches=2),
    )
    assert problem.estimated.all()
    write_problem(tmp_path / "p.json", problem)
    again = read_problem(tmp_path / "p.json")
    assert again.source == problem.source
    assert again.error["a100"] == pytest.approx(problem.error["a100"], abs=1e-4)
    assert len(again.source["a100"]) == again.num_ops
    data = problem_to_data(problem)
    for op in data["ops"]:
        del op["source"], op["error"]
    assert problem_from_data(data).source == {}


def test_where_times_are_from_is_said() -> None:
    said: list[str] = []
    options = CaptureOptions(dtype="bfloat16")
    gnnplace.profile(
        "mlp?depth=1", "nvlink-h100-8", options=options, progress=said.append
    )
    [line] = [line for line in said if "eager" in line]
    assert all(name in line for name in PROVENANCES)


def test_the_same_path_predicts_this_cpu_from_a_table_measured_here(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("GNNPLACE_CACHE", str(tmp_path))
    program = small("mlp", width=64, depth=2)
    times = op_times(program, "cpu")
    assert times.measured
    path = tmp_path / "mine.csv"
    write_rows(
        path, {"cpu": merged_rows([measured_rows(program, times.seconds, "cpu")] * 2)}
    )
    predicted = gnnplace.profile(program, "cpu:1", table=path)
    assert predicted.estimated.all()
    assert predicted.time["cpu"].sum() == pytest.approx(times.seconds.sum(), rel=0.5)
    assert all(name == "view" or "cpu" in name for name in predicted.source["cpu"])


def test_a_table_of_another_kind_than_the_clusters_is_refused(tmp_path) -> None:
    path = tmp_path / "mine.csv"
    write_rows(path, {"l4": load_shipped_tables().rows["l4"]})
    with pytest.raises(
        InputError, match=r"has ops of l4.*of kind but of|cluster is of that kind"
    ):
        gnnplace.profile("mlp?depth=1", "nvlink-a100-2", table=path)


def by_name(program: Program, name: str) -> int:
    return program.op_index[name]


def test_operations_of_a_linear_layer() -> None:
    program = capture(nn.Linear(16, 32), (torch.ones(8, 16),))
    flops = {op.name: op_flops(program, op) for op in program.ops}
    assert flops["addmm"] == 2 * 8 * 16 * 32
    assert flops["mm"] == 2 * 8 * 16 * 32  # the weight's gradient; the input needs none
    assert flops["update.weight"] == 0


def test_operations_of_a_convolution_backwards_are_twice_those_forwards() -> None:
    program = small()
    forward = op_flops(program, program.ops[by_name(program, "convolution_1")])
    gradient = program.producer[program.gradients["stages.0.0.reduce.0.weight"]]
    assert op_flops(program, program.ops[gradient]) == 2 * forward


def test_operations_of_attention() -> None:
    size = "n_layer=1&n_embd=32&n_head=2&vocab_size=50&batch=2&length=8"
    work = load(f"hf:gpt2?{size}&attn_pdrop=0.0")
    program = capture(work.model, work.inputs)
    flops = {
        op.name: op_flops(program, op) for op in program.ops if "attention" in op.name
    }
    one = 4 * 2 * 2 * 8 * 8 * 16
    assert sorted(flops.values()) == [one, one * 5 / 2]


def test_bytes_are_read_and_written_once() -> None:
    program = capture(nn.Linear(16, 32), (torch.ones(8, 16),))
    addmm = program.ops[by_name(program, "addmm")]
    assert op_bytes(program, addmm) == 4 * (32 + 8 * 16 + 16 * 32 + 8 * 32)


def test_an_estimate_is_no_less_than_either_bound() -> None:
    program = small()
    for kind, of_kind in {"cpu": CPU, **GPUS}.items():
        seconds = estimate_ops(program, kind)
        for i, op in enumerate(program.ops):
            if not op.view:
                assert seconds[i] >= op_flops(program, op) / of_kind.flops("float32")
                assert seconds[i] >= op_bytes(program, op) / of_kind.bandwidth
                assert seconds[i] >= of_kind.launch


def test_half_precision_is_faster_where_compute_bounds() -> None:
    model, inputs = nn.Linear(4096, 4096), (torch.ones(4096, 4096),)
    plain = estimate_ops(capture(model, inputs), "a100").sum()
    half = estimate_ops(capture(model, inputs, dtype="bfloat16"), "a100").sum()
    assert half < plain / 4


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match=r"kind 'abacus'.*no published peaks"):
        estimate_ops(small("mlp", width=8, depth=1), "abacus")


def test_every_kind_of_the_presets_is_known() -> None:
    from gnnplace.problem.cluster.presets import make_preset, preset_names

    kinds = {kind for name in preset_names() for kind in make_preset(name).kinds}
    assert all(get_figures(kind).source for kind in kinds)
    assert np.isfinite([get_figures(kind).bandwidth for kind in kinds]).all()
