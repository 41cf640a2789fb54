"""Published steps at scale, in one CSV format."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.studies.published import scale
from benchmarks.studies.published.intervals import framework_intervals
from benchmarks.studies.published.outcomes import timed
from gnnplace.errors import FormatError

SIZES = {
    "layers": 4,
    "hidden": 4096,
    "feed_forward": 14336,
    "heads": 32,
    "kv_heads": 8,
    "vocabulary": 32000,
    "gated": True,
    "tied": False,
}
HEAD = (
    "id,source,set,model,framework,cluster,gpus,length,batch,precision,dp,tp,microbatch_size,"
    "schedule,pp,seconds,scored,environment"
)
ROW = (
    "a,b,own,small,megatron-lm,dgx-h100-256x8,2048,4096,8192,bf16-master,1024,2,"
    "{0},{1},1,1.0,{2},"
)


def write(folder: Path, *rows: str) -> Path:
    """Write a folder of rows on one small model."""
    (folder / "models.json").write_text(json.dumps({"small": SIZES}), encoding="utf-8")
    (folder / "rows-own.csv").write_text(
        "\n".join([HEAD, *rows]) + "\n", encoding="utf-8"
    )
    return folder


def test_rows_are_priced_by_set(tmp_path: Path) -> None:
    """Rows that are not scored are left out; of a word that is `best` the fastest value counts."""
    rows = [
        ROW.format(*cells)
        for cells in (("2", "", "yes"), ("best", "", "yes"), ("1", "", "no"))
    ]
    folder = write(tmp_path, *rows)
    assert scale.is_here(folder)
    ((key, outcomes),) = scale.outcomes_by_set(folder).items()
    assert key == ("own", "megatron-lm")
    said, best = timed(outcomes)
    assert (said.gpus, said.plan.microbatch_size, said.microbatches) == (2048, 2, 4)
    assert best.answer.step_time is not None
    assert said.answer.step_time is not None
    assert best.answer.step_time <= said.answer.step_time


def test_rows_have_what_their_recipe_says() -> None:
    """A recipe's words count and its environment is added; rows of other sources stay."""
    row = {
        "source": "NVIDIA-NeMo/Automodel@36044ad3d:docs/performance-summary.mdx",
        "model": "Qwen3-30B-A3B",
        "environment": "transformer-engine+deepep",
        "compile": "",
    }
    experts = scale.as_its_recipe_says(row)
    assert experts["environment"].endswith("deepep+experts-in-turn+nvidia-h100")
    assert experts["compile"] == ""
    dense = scale.as_its_recipe_says(
        {**row, "model": "Llama-3.1-70B", "environment": ""}
    )
    assert (dense["compile"], dense["environment"]) == ("on", "nvidia-h100")
    other = {**row, "source": "NVIDIA/Megatron-LM@1:README.md"}
    assert scale.as_its_recipe_says(other) == other


def test_a_step_may_be_several_schedules_of_a_pipeline() -> None:
    """64 examples a replica in local batches of 8 take eight times what 8 examples take."""
    row = {
        "source": "NVIDIA-NeMo/Automodel@1:docs",
        "model": "Qwen3-small",
        "framework": "pytorch",
        "cluster": "nvswitch-h100-8",
        "gpus": "8",
        "length": "4096",
        "batch": "128",
        "precision": "bf16-true",
        "dp": "2",
        "pp": "4",
        "seconds": "1.0",
    }
    several = scale.outcome(row, SIZES, "rows")
    one = scale.outcome({**row, "batch": "16"}, SIZES, "rows")
    assert several.answer.step_time == pytest.approx(8 * one.answer.step_time)
    assert several.answer.peak == one.answer.peak
    assert several.microbatches == 8 * one.microbatches
    unknown = scale.outcome({**row, "source": "b"}, SIZES, "rows")
    assert unknown.answer.step_time < several.answer.step_time


def test_intervals_leave_families_out(tmp_path: Path) -> None:
    """Of families that took 0.8, 1 and 1.2 of the predicted seconds the middle one is in."""
    ((outcome,),) = scale.outcomes_by_set(
        write(tmp_path, ROW.format("2", "", "yes"))
    ).values()
    predicted = outcome.answer.step_time
    assert predicted is not None
    rows = {
        model: [replace(outcome, model=model, seconds=share * predicted)] * count
        for model, share, count in (("a", 0.8, 1), ("b", 1.0, 7), ("c", 1.2, 1))
    }
    (interval,) = framework_intervals(
        {"own": [row for part in rows.values() for row in part]}
    )
    assert (interval.framework, interval.families, interval.rows) == (
        "megatron-lm",
        3,
        9,
    )
    assert interval.families_inside == pytest.approx(1 / 3)
    assert interval.rows_inside == pytest.approx(7 / 9)
    assert 0.79 < interval.low < 1 < interval.high < 1.21


def test_what_cannot_be_priced_says_why(tmp_path: Path) -> None:
    """A precision without rates is refused by name, with the row's line; an unknown model too."""
    fp8 = ROW.format("2", "", "yes").replace("bf16-master", "fp8")
    ((outcome,),) = scale.outcomes_by_set(write(tmp_path, fp8)).values()
    assert outcome.answer.step_time is None
    assert "line 2" in outcome.answer.reason
    assert "precision 'fp8'" in outcome.answer.reason
    other = ROW.format("2", "", "yes").replace("small", "large")
    with pytest.raises(FormatError, match="line 2: model 'large' is not in"):
        scale.outcomes_by_set(write(tmp_path, other))
