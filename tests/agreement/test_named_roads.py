"""Models by name: one plan has one answer by words, a table, a plan's file and a launch file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gnnplace
from gnnplace.costs import TRAITS
from gnnplace.errors import InputError
from gnnplace.launch.registry import LAUNCHERS
from gnnplace.launch.side_by_side import price_file
from gnnplace.plans.plan import Plan

CLUSTER = "16xH100"
BATCH = 256
SEARCHED = {
    "Qwen/Qwen3-8B": "megatron-bridge",
    "meta-llama/Llama-3.1-8B": "torchtitan",
    "deepseek-ai/DeepSeek-V2-Lite": "megatron-lm",
    "google/gemma-2-9b": "accelerate",
    "tiiuae/falcon-7b": "deepspeed",
    "microsoft/phi-4": "nanotron",
}
"""Models of the catalogue, and the launcher that each is searched for."""
MODELS = (
    *SEARCHED,
    "mistralai/Mixtral-8x7B-v0.1",
    "openai-community/gpt2-xl",
    "Qwen/Qwen3-30B-A3B",
    "EleutherAI/pythia-6.9b",
    "allenai/OLMo-2-1124-7B",
    "ibm-granite/granite-3.0-8b-base",
)
DENSE = (
    "dp=4,tp=4,microbatch_size=1,zero=1",
    "dp=2,tp=2,pp=4,microbatch_size=1,recompute=full",
)
EXPERTS = ("dp=16,ep=4,microbatch_size=1,zero=1", "dp=8,ep=4,pp=2,microbatch_size=1")
MIXTURES = (
    "mistralai/Mixtral-8x7B-v0.1",
    "deepseek-ai/DeepSeek-V2-Lite",
    "Qwen/Qwen3-30B-A3B",
)
SUFFIX = {
    "megatron-bridge": ".py",
    "torchtitan": ".py",
    "megatron-lm": ".sh",
    "deepspeed": ".json",
}
LOST = 2e-4
"""Parts of a step by which what a launch file cannot say of norms and biases may change it."""


def table_of(words: str, path: Path) -> str:
    """Write words as a table of one plan, and return its path."""
    pairs = [word.partition("=") for word in words.split(",")]
    rows = [[name for name, _, _ in pairs], [value for _, _, value in pairs]]
    path.write_text("".join(",".join(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("model", MODELS)
def test_words_a_table_and_a_plan_agree_at_every_framework_s_prices(model, tmp_path):
    plans = [*DENSE, *(EXPERTS if model in MIXTURES else ())]
    for framework in TRAITS:
        for words in plans:
            asked = {"framework_name": framework, "batch": BATCH}
            (row,) = gnnplace.price_plans(model, CLUSTER, words, **asked).answers
            table = table_of(words, tmp_path / "plans.csv")
            assert gnnplace.price_plans(model, CLUSTER, table, **asked).answers == (
                row,
            )
            if framework == "pytorch" and row.step_time is None:
                with pytest.raises(InputError, match=re.escape(row.reason)):
                    gnnplace.plan(model, CLUSTER, batch=BATCH, given=words)
            elif framework == "pytorch":
                (plan,) = gnnplace.plan(model, CLUSTER, batch=BATCH, given=words)
                assert plan.step_time == pytest.approx(row.step_time, rel=1e-9)
                assert sum(plan.file.parts.values()) == pytest.approx(
                    row.step_time, rel=1e-6
                )


@pytest.mark.parametrize("model", SEARCHED)
def test_a_plan_that_is_searched_keeps_its_price_on_every_road(model, tmp_path):
    launcher = SEARCHED[model]
    (plan,) = gnnplace.plan(model, CLUSTER, launcher=launcher)
    assert isinstance(plan, Plan)
    file = plan.file
    plan.save(tmp_path / "plan.json")
    (again,) = gnnplace.plan(model, CLUSTER, given=str(tmp_path / "plan.json"))
    (row,) = gnnplace.price_plans(
        model,
        CLUSTER,
        file.words,
        framework_name=file.framework,
        batch=file.batch,
        precision=file.precision,
        optimizer=file.optimizer,
    ).answers
    explained = price_file(gnnplace.read_plan(tmp_path / "plan.json").file)
    seconds = [again.step_time, row.step_time, explained.answer.step_time]
    assert seconds == pytest.approx([plan.step_time] * 3, rel=1e-9)

    # Its launch file is the same run, but for what the file cannot say of the model.
    path = tmp_path / f"launch{SUFFIX.get(launcher, '.yaml')}"
    path.write_text(gnnplace.export_plan(plan, launcher).text)
    launched = gnnplace.read_launch_file(str(path))
    name = None if launched.sizes is not None else model
    priced = gnnplace.price_launch_plan(launched, launcher, CLUSTER, model=name)
    assert priced.answer.step_time == pytest.approx(plan.step_time, rel=LOST)
    assert launcher in LAUNCHERS


def test_a_plan_in_words_of_one_s_own_goes_on_as_one_that_is_searched(tmp_path):
    model, words = "openai-community/gpt2-xl", "dp=2,pp=4,microbatch_size=1,zero=1"
    words += ",recompute=block:5+3+1+0"
    (plan,) = gnnplace.plan(model, "8xA100-40", batch=64, given=words)
    plan.save(tmp_path / "plan.json")
    read = gnnplace.read_plan(tmp_path / "plan.json")
    assert gnnplace.explain_plan(read).answer.answer.step_time == pytest.approx(
        plan.step_time, rel=1e-9
    )
    (again,) = gnnplace.plan(model, "8xA100-40", given=str(tmp_path / "plan.json"))
    assert again.step_time == pytest.approx(plan.step_time, rel=1e-9)

    # A launcher has one number of recomputed layers for all ranks, which takes more time.
    made = gnnplace.export_plan(read, "megatron-lm")
    (loss, *_) = made.losses
    assert loss.summary.startswith("recompute=block:5+3+1+0: launchers have one number")
    assert loss.seconds is not None
    assert loss.seconds > 0
    assert "--recompute-num-layers 5" in made.text
