"""The study of published runs: its sums by hand, its readers on rows in their sources' words."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from benchmarks.studies.__main__ import run
from benchmarks.studies.published import foundry, internevo, vtrain, weak_scaling
from benchmarks.studies.published.outcomes import (
    Outcome,
    choices,
    coverage,
    fitting,
    mean,
    near_best,
)
from benchmarks.studies.published.pictures import write_pictures
from benchmarks.studies.published.study import study_published
from gnnplace.errors import FormatError, InputError
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import PlanAnswer

# mosaicml/llm-foundry (Apache-2.0, 8c8dd48), two rows of its table.
FOUNDRY = """\
section,gpu,gpus,model,hidden,layers,heads,vocab,ffn,seq,micro_batch,grad_accum,global_batch,\
precision,sharding,checkpointing,step_seconds
H100,h100_80gb,8,7b,4096,32,32,50368,16384,2048,6,1,48,amp_bf16,FULL_SHARD,False,1.154562
H100,h100_80gb,8,1b,2048,24,16,50368,8192,2048,14,1,112,amp_bf16,FULL_SHARD,False,0.630769
H100,h100_80gb,8,1b,2048,24,16,50368,8192,2048,14,1,112,amp_fp8,FULL_SHARD,False,0.5
"""


def outcome(predicted: float, published: float, **more: object) -> Outcome:
    """A row of one question."""
    answer = PlanAnswer(
        predicted, 0.9 * predicted, 1.1 * predicted, fits=0.9, peak=60 * 2.0**30
    )
    return Outcome("q", "m", None, PlanSpec(), answer, published, **more)  # type: ignore[arg-type]


def test_regret_is_what_the_pick_takes_over_the_best():
    rows = [
        outcome(p, t)
        for p, t in ((1.0, 2.0), (2.0, 1.0), (3.0, 3.0), (4.0, 4.0), (5.0, 5.0))
    ]
    _, pick, three, asked = choices(rows)
    assert (pick, three, asked) == (1.0, 0.0, 1)
    assert [o.seconds for o in near_best(rows)] == [1.0]
    assert coverage(rows) == 0.6
    assert mean([0.1, -0.3, float("nan")]) == pytest.approx(0.2)


def test_rank_correlation_is_of_questions_of_eight_rows():
    seconds = np.arange(1.0, 9.0)
    assert choices([outcome(9 - t, t) for t in seconds])[0] == pytest.approx(-1.0)
    assert np.isnan(choices([outcome(t, t) for t in seconds[:7]])[0])


def test_fits_is_counted_both_ways():
    rows = [
        outcome(1.0, 1.0, ran=True),
        outcome(1.0, 1.0, ran=False),
        outcome(1.0, 1.0),
    ]
    right, near, count, ran, refused = fitting(rows)
    assert (right, near, count, ran, refused) == (0.5, 0.5, 2, 1.0, 0.0)


def test_a_straggler_is_late_by_every_micro_batch():
    assert outcome(1.0, 9.0, microbatches=8).late
    assert not outcome(1.0, 5.0, microbatches=8).late


def test_published_fsdp_steps_are_within_a_tenth(tmp_path, capsys):
    (tmp_path / "llm-foundry").mkdir()
    (tmp_path / "llm-foundry" / "runs.csv.gz").write_bytes(
        gzip.compress(FOUNDRY.encode())
    )
    found = study_published(tmp_path, tmp_path)["llm-foundry"]
    assert len(found) == 2  # float8 is left out
    assert all(abs(o.error) < 0.1 and o.answer.feasible for o in found)
    assert "| llm-foundry | pytorch | 2 |" in (tmp_path / "published.md").read_text()
    assert run(["published", "--data", str(tmp_path)]) == 0
    assert "| 7b | pytorch | 1 |" in capsys.readouterr().out


def test_a_folder_without_sets_is_named(tmp_path):
    with pytest.raises(InputError, match="has none of the sets ultrascale-playbook"):
        study_published(tmp_path)


def test_files_of_one_server_and_of_several_are_read_by_their_columns(tmp_path):
    """VIA-Research/vTrain (MIT, f8dda847): a row of its single-node file, another made up."""
    head = "# " + ",".join(vtrain.COLUMNS)
    (tmp_path / "vtrain").mkdir()
    one, more = (
        "2,16,8,1024,16,24,1024,1,1,2,372.16",
        "64,512,8,4096,32,36,2048,4,16,1,9000",
    )
    for name, row in (("single", one), ("multi", more)):
        (tmp_path / "vtrain" / f"{name}.csv.gz").write_bytes(
            gzip.compress(f"{head}\n{row}\n".encode())
        )
    many, few = vtrain.outcomes(tmp_path)
    assert (few.seconds, many.seconds) == pytest.approx((0.37216, 9.0))
    assert few.setting.cluster.num_devices == 8
    assert many.setting.cluster.num_devices == 64
    # 7.5 billion parameters over 4 do not fit otherwise.
    assert many.plan.recompute == "full"
    (tmp_path / "vtrain" / "multi.csv.gz").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    with pytest.raises(FormatError, match=r"multi.*columns are not GPUs"):
        vtrain.outcomes(tmp_path)


def test_what_published_rows_recompute_is_refused_without(tmp_path):
    row = FOUNDRY.splitlines()[1].replace("7b,4096,32,32", "30b,7168,48,56")
    row = row.replace("16384", "28672").replace("FULL_SHARD,False", "FULL_SHARD,True")
    (tmp_path / "llm-foundry").mkdir()
    text = f"{FOUNDRY.splitlines()[0]}\n{row}\n"
    (tmp_path / "llm-foundry" / "runs.csv.gz").write_bytes(gzip.compress(text.encode()))
    ran, without = foundry.outcomes(tmp_path)
    assert (ran.ran, without.ran, without.seconds) == (True, False, None)
    assert not without.answer.feasible


def test_groups_of_zero_are_near_what_internevo_published(tmp_path):
    """Nothing is fitted to 46 rows of 8 to 1,024 A100: zero1 of a server, and of all replicas."""
    rows = [o for o in internevo.outcomes(tmp_path) if o.seconds]
    groups, whole = (
        [o.error for o in rows if bool(o.plan.zero_group) is g] for g in (True, False)
    )
    assert len(groups) + len(whole) == 46
    assert sum(map(abs, groups)) / len(groups) < 0.05
    assert sum(map(abs, whole)) / len(whole) < 0.08


def test_bytes_of_an_optimizer_s_step_are_counted(tmp_path):
    """Six of InternEvo's rows, 16 bytes a parameter and 10 while it steps: none a quarter off."""
    rows = [o for o in internevo.outcomes(tmp_path) if o.peak]
    assert [abs(o.answer.peak / o.peak - 1) < 0.25 for o in rows] == [True] * 6


def test_weak_scaling_of_megatron_is_near_what_was_published(tmp_path):
    """Table 1 of arXiv 2104.04473, nothing fitted: within a twentieth."""
    rows = weak_scaling.outcomes(tmp_path)
    assert [o.plan.num_devices for o in rows] == [32, 64, 128, 256, 512]
    assert max(abs(o.error) for o in rows) < 0.05


def test_pictures_are_one_of_each_framework_and_one_of_errors_by_gpus(tmp_path):
    found = {
        "a": [outcome(1.0, 1.1, gpus=8), outcome(2.0, 1.9, gpus=64)],
        "b": [outcome(3.0, 3.0)],  # of unknown GPUs
        "c": [outcome(1.0, 2.0, gpus=16)],
        "d": [],
    }
    frameworks = {"a": "nanotron", "b": "nanotron", "c": "megatron-lm", "d": "pytorch"}
    names = write_pictures(found, frameworks, tmp_path)
    assert names == [
        "published-nanotron.svg",
        "published-megatron-lm.svg",
        "published-errors.svg",
    ]
    nanotron = (tmp_path / names[0]).read_text()
    assert "a (2)" in nanotron
    assert "b (1)" in nanotron
    assert "3 rows: error 4.8%" in nanotron  # of 9.1, 5.3 and 0 %
    errors = (tmp_path / names[2]).read_text()
    assert "nanotron (2)" in errors
    assert "megatron-lm (1)" in errors
    assert errors.count("<use") >= 3
