"""Times of ops on devices that are not here, and tables of one's own."""

from __future__ import annotations

import numpy as np
import pytest

import gnnplace
from benchmarks.gpu import measured_rows, merged_rows
from benchmarks.studies.costs.provenance import HUGGING_FACE
from gnnplace.costs.floors import NOTHING
from gnnplace.costs.prediction import PROVENANCES
from gnnplace.costs.profiling.estimation import estimated_times
from gnnplace.costs.profiling.profiler import op_times
from gnnplace.costs.rows import write_rows
from gnnplace.costs.tables import shipped
from gnnplace.errors import InputError
from gnnplace.problem import problem_from_data, problem_to_data, read_problem, write_problem
from gnnplace.tracing.options import CaptureOptions
from gnnplace.zoo.registry import names
from tests.costs.profiling.programs import faked, small

SIZES = {
    "t5": "num_layers=1&num_decoder_layers=1",
    "bart": "encoder_layers=1&decoder_layers=1",
    "gpt2": "n_layer=1",
}


def check(spec: str) -> None:
    program = faked(spec)
    times = estimated_times(program, "h100")
    assert np.isfinite(times.seconds).all()
    assert all(np.isfinite(times.error))
    assert all(times.source)
    assert set(times.shares) == set(PROVENANCES)
    for part in (0, 1):
        assert sum(share[part] for share in times.shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("name", ["mlp", "moe", "small_resnet"])
def test_every_op_of_the_zoo_gets_a_time_with_a_provenance(name: str) -> None:
    assert name in names()
    check(name)


@pytest.mark.campaign
@pytest.mark.parametrize("name", sorted(names()))
def test_every_op_of_the_whole_zoo(name: str) -> None:
    check(name)


@pytest.mark.parametrize("name", ["gpt2"])
def test_every_op_of_hugging_face_gets_a_time(name: str) -> None:
    check(f"hf:{name}?{SIZES[name]}&batch=1&length=16")


@pytest.mark.campaign
@pytest.mark.parametrize("name", HUGGING_FACE)
def test_every_op_of_ten_hugging_face_models(name: str) -> None:
    check(f"hf:{name}?{SIZES.get(name, 'num_hidden_layers=1')}&batch=1")


def test_the_host_is_a_term_that_can_be_replaced() -> None:
    program = faked("small_resnet")
    eager = estimated_times(program, "h100").seconds.sum()
    graphs = estimated_times(program, "h100", floor=NOTHING).seconds.sum()
    assert graphs < eager / 3  # a small model: the host decides


def test_a_problem_keeps_sources_and_errors_in_its_file(tmp_path) -> None:
    problem = gnnplace.profile(
        "mlp?depth=2", "nvlink-a100-2", options=CaptureOptions(groups=20, microbatches=2)
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
    gnnplace.profile("mlp?depth=1", "nvlink-h100-8", options=options, progress=said.append)
    [line] = [line for line in said if "eager" in line]
    assert all(name in line for name in PROVENANCES)


def test_the_same_path_predicts_this_cpu_from_a_table_measured_here(tmp_path, monkeypatch):
    monkeypatch.setenv("GNNPLACE_CACHE", str(tmp_path))
    program = small("mlp", width=64, depth=2)
    times = op_times(program, "cpu")
    assert times.measured
    path = tmp_path / "mine.csv"
    write_rows(path, {"cpu": merged_rows([measured_rows(program, times.seconds, "cpu")] * 2)})
    predicted = gnnplace.profile(program, "cpu:1", table=path)
    assert predicted.estimated.all()
    assert predicted.time["cpu"].sum() == pytest.approx(times.seconds.sum(), rel=0.5)
    assert all(name == "view" or "cpu" in name for name in predicted.source["cpu"])


def test_a_table_of_another_kind_than_the_clusters_is_refused(tmp_path) -> None:
    path = tmp_path / "mine.csv"
    write_rows(path, {"l4": shipped().rows["l4"]})
    with pytest.raises(InputError, match=r"has ops of l4.*of kind but of|cluster is of that kind"):
        gnnplace.profile("mlp?depth=1", "nvlink-a100-2", table=path)
