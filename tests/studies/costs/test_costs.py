"""The cost study: what is captured is what was published, figures hold, nothing is seen twice."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.studies.costs import steps
from benchmarks.studies.costs.cnns import NETWORKS, network
from benchmarks.studies.costs.left_out import (
    GPU,
    POINT,
    Trial,
    gpus_left_out,
    op_kind,
    points_left_out,
    summaries,
)
from benchmarks.studies.costs.models import captured, language_model
from benchmarks.studies.costs.provenance import source_row, table_rows
from benchmarks.studies.costs.report import (
    headline,
    network_picture,
    page,
    step_picture,
)
from benchmarks.studies.costs.steps import (
    NetworkRow,
    StepRow,
    agreements,
    published,
    without_shapes,
)
from benchmarks.studies.costs.study import CostStudy, write_study
from gnnplace.costs.calibration import NINETY
from gnnplace.costs.profiling.description import describe
from gnnplace.costs.tables import load_shipped_tables

# Millions of parameters, as torchvision documents them.
PARAMETERS = {
    "resnet18": 11.690, "resnet34": 21.798, "resnet50": 25.557, "resnet101": 44.549,
    "resnet152": 60.193, "resnext50_32x4d": 25.029, "resnext101_32x8d": 88.791,
    "wide_resnet50_2": 68.883, "wide_resnet101_2": 126.887, "densenet121": 7.979,
    "densenet169": 14.149, "densenet201": 20.014, "densenet161": 28.681, "squeezenet1_0": 1.248,
    "squeezenet1_1": 1.235, "vgg11": 132.863, "vgg13": 133.048, "vgg16": 138.358, "vgg19": 143.667,
    "vgg11_bn": 132.869, "vgg13_bn": 133.054, "vgg16_bn": 138.366, "vgg19_bn": 143.678,
    "mobilenet_v2": 3.505, "mnasnet0_5": 2.219, "mnasnet0_75": 3.170, "mnasnet1_0": 4.383,
    "mnasnet1_3": 6.282, "shufflenet_v2_x0_5": 1.367, "shufflenet_v2_x1_0": 2.279,
    "shufflenet_v2_x1_5": 3.504, "shufflenet_v2_x2_0": 7.394,
}  # fmt: skip


def test_the_networks_have_the_parameters_of_torchvisions() -> None:
    assert set(PARAMETERS) == set(NETWORKS)
    for name, make in NETWORKS.items():
        with torch.device("meta"):
            count = sum(p.numel() for p in make().parameters())
        assert count / 1e6 == pytest.approx(PARAMETERS[name], abs=1e-3), name


@pytest.mark.parametrize(
    "name", ["resnet18", "densenet121", "mnasnet0_5", "shufflenet_v2_x0_5"]
)
def test_the_networks_run(name: str) -> None:
    model, (images, classes), loss = network(name, 2)
    assert loss(model(images), classes).isfinite()


@pytest.mark.campaign
def test_a_published_model_is_captured_with_its_shapes() -> None:
    program = captured("bert_large", 2, 512)
    rows = describe(program).rows
    heads = rows.take((rows.op == "bmm") & (rows.sizes[:, 0] == 32))
    assert {tuple(sizes[1:4]) for sizes in heads.sizes.tolist()} == {
        (512, 512, 64),
        (512, 64, 512),
    }
    linear = rows.take(rows.op == "matmul")
    assert (linear.sizes[:, 2] == 30522).sum() == 1
    assert len(linear) == 24 * 6 + 2


def test_opt_takes_the_maximum_that_it_took_then() -> None:
    with torch.device("meta"):
        model, inputs = language_model("opt_13", 1, 8)
    names = {type(module).__name__ for module in model.modules()}
    assert "OPTForCausalLM" in names
    assert isinstance(model, nn.Module)
    assert inputs["input_ids"].shape == (1, 8)
    assert model.config._attn_implementation == "of_2022"


@pytest.mark.campaign
def test_backward_of_a_published_step_is_within_a_tenth() -> None:
    entry = next(e for e in published()["steps"]["rows"] if e["model"] == "bert_large")
    program = captured(entry["model"], entry["batch"], entry["length"])
    bare = without_shapes(load_shipped_tables(), describe(program).rows)
    for tables in (load_shipped_tables(), bare):
        times = steps.estimate_times(program, entry["gpu"], tables)
        backward = steps.phase_seconds(program, times, "backward")
        assert backward == pytest.approx(entry["backward"], rel=0.12)


def test_rows_of_the_shapes_of_a_step_are_taken_out() -> None:
    seen = describe(captured("bert_large", 2, 512)).rows
    bare = without_shapes(load_shipped_tables(), seen)
    for kind in ("a100-80", "v100"):
        assert len(bare.rows[kind]) < len(load_shipped_tables().rows[kind])
        left = {
            tuple(sorted(s[1:4]))
            for s in bare.rows[kind].sizes
            if s[3] > 1 and s[0] == 1
        }
        assert (1024.0, 1024.0, 4096.0) not in left


@pytest.fixture(scope="module")
def trials() -> dict[str, list[Trial]]:
    few = {
        kind: load_shipped_tables().rows[kind] for kind in ("a100", "v100", "t4", "l4")
    }
    return {
        POINT: list(points_left_out(load_shipped_tables())),
        GPU: list(gpus_left_out(few)),
    }


def test_nine_in_ten_points_are_within_what_their_table_promises(
    trials: dict[str, list[Trial]],
) -> None:
    assert np.mean([trial.covered for trial in trials[POINT]]) == pytest.approx(
        0.9, abs=0.03
    )
    for one in summaries(trials[POINT], op_kind):
        assert 0.85 <= one.covered <= 0.95, one


def test_a_gpu_left_out_is_answered_by_no_table_of_its_own(
    trials: dict[str, list[Trial]],
) -> None:
    assert {trial.kind for trial in trials[GPU]} == {"a100", "v100", "t4", "l4"}
    assert all(trial.provenance != "table" for trial in trials[GPU])
    assert np.mean([trial.covered for trial in trials[GPU]]) > 0.7


def made(trials: dict[str, list[Trial]]) -> CostStudy:
    step = StepRow(
        "v100", "bert_large", 2, 512, 0.08, 0.16, 0.083, 0.151, True, 0.1, False
    )
    networks = [
        NetworkRow("a100", name, seconds, seconds * 1.2, 0.2)
        for name, seconds in (
            ("vgg11", 0.02),
            ("vgg13", 0.03),
            ("vgg16", 0.04),
            ("vgg19", 0.05),
        )
    ]
    return CostStudy(
        [step], [step], networks, trials, [{"plan": "D1", "off": 0.123456}]
    )


def test_one_factor_mends_what_is_off_by_one_factor(
    trials: dict[str, list[Trial]],
) -> None:
    [one] = agreements(made(trials).networks)
    assert one.off == pytest.approx(1 - 1 / 1.2)
    assert one.fitted == pytest.approx(0)
    assert one.factor == pytest.approx(1.2)
    assert one.rank == 1


def test_the_report_has_every_part_and_two_pictures(
    tmp_path, trials: dict[str, list[Trial]]
) -> None:
    study = made(trials)
    text = page(study)
    assert "## Training steps of CNNs" in text
    assert "bert_large" in text
    assert "Sailor" in text
    assert "0.1235" in text
    assert len(headline(study)) == 2 + 1 + 2
    write_study(study, tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {
        "costs.md", "costs-steps.svg", "costs-networks.svg",
    }  # fmt: skip
    assert step_picture(study) is not None
    assert network_picture(study) is not None


def test_every_op_of_a_model_has_a_time_and_a_provenance() -> None:
    row = source_row("moe")
    assert row.without == 0
    assert sum(row.counts.values()) == row.ops - row.views
    assert sum(row.shares.values()) == pytest.approx(1)
    [cells] = table_rows([row])
    assert cells[:2] == ["moe", str(row.ops)]


def test_gradients_are_set_to_zero_one_by_one() -> None:
    program = steps._network("resnet18", 2)
    count = sum(op.phase == "update" for op in program.ops)
    assert count == 62
    found = steps.zeroing(program, "titan-v")
    assert found == pytest.approx(count * 32e-6, rel=0.01)  # each of them small


def test_an_interval_is_of_ninety_percent() -> None:
    trial = Trial(
        POINT,
        "a100",
        "relu",
        "float32",
        np.array([0.1, -0.3]),
        np.full(2, 0.1),
        "table",
    )
    assert trial.covered == 0.5
    assert pytest.approx(1.645) == NINETY
