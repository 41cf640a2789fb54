"""Models of the catalogue: their defaults, and plans by their sizes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gnnplace.planning.plans import plan_model, read_plan
from gnnplace.planning.rows import price_plans
from gnnplace.plans.decoders.named import find_named, find_named_chain
from gnnplace.plans.job import TrainingJob
from gnnplace.problem import load_cluster

H100 = load_cluster("8xH100")


def named(model: str, cluster=H100, **fields):
    """A model of the catalogue with its defaults."""
    found = find_named(TrainingJob(model, **fields), cluster)
    assert found is not None
    return found


def test_what_is_not_asked_for_has_a_default():
    job = named("Qwen/Qwen3-8B").job
    assert (job.model, job.batch, job.precision) == (
        "Qwen/Qwen3-8B?length=4096",
        256,
        "bf16-mixed",
    )
    asked = TrainingJob("Qwen/Qwen3-8B?length=2048", batch=8, precision="bf16-true")
    job = find_named(asked, H100).job
    assert (job.model, job.batch, job.precision) == (
        "Qwen/Qwen3-8B?length=2048",
        8,
        "bf16-true",
    )


@pytest.mark.parametrize(
    ("model", "model_asked", "batch"),
    [
        ("google-t5/t5-small", "google-t5/t5-small?length=512", 2048),
        ("google/vit-base-patch16-224", "google/vit-base-patch16-224", 8192),
        ("openai/whisper-tiny", "openai/whisper-tiny", 1024),
    ],
)
def test_models_that_sizes_cannot_say_are_captured_with_the_same_defaults(
    model, model_asked, batch
):
    found = named(model)
    assert (found.job.model, found.job.batch, found.sizes) == (model_asked, batch, None)
    assert find_named_chain(found, H100) is None


def test_gpus_without_bfloat16_train_in_float32():
    assert named("gpt2-xl", load_cluster("pcie-v100-4")).job.precision == "32-true"


@pytest.mark.parametrize(
    ("model", "cluster"),
    [("hf:gpt2", H100), ("mlp", H100), ("Qwen/Qwen3-8B", load_cluster("8xH100"))],
)
def test_types_zoo_names_and_fields_are_no_names_of_the_catalogue(model, cluster):
    if model.startswith("Qwen"):
        model += "?num_hidden_layers=4"
    assert find_named(TrainingJob(model), cluster) is None


def test_defaults_are_told():
    assert TrainingJob("Qwen/Qwen3-8B").defaults == (
        "batch",
        "length",
        "precision",
        "optimizer",
    )
    job = TrainingJob(
        "qwen3-8b?length=1024", batch=8, precision="bf16-true", optimizer="sgd"
    )
    assert job.defaults == ()
    assert TrainingJob("google/vit-base-patch16-224", batch=8).defaults == (
        "precision",
        "optimizer",
    )


def test_a_plan_in_words_takes_what_its_row_of_a_table_takes():
    words = "dp=8,zero=2,microbatch_size=2"
    (plan,) = plan_model("llama-3.2-1b", "8xH100", given=words, batch=64)
    table = price_plans(
        "llama-3.2-1b", "8xH100", words, framework_name="pytorch", batch=64
    )
    assert plan.step_time == pytest.approx(table.answers[0].step_time)
    assert plan.parameters == 1_235_814_400
    assert plan.defaults == ("length", "precision", "optimizer")
    assert plan.file.tokens == 64 * 4096
    assert plan.file.flops == pytest.approx(
        6 * plan.parameters * plan.file.tokens, rel=0.3
    )


def test_a_searched_plan_is_written_and_priced_again(tmp_path):
    (plan,) = plan_model("smollm2-135m", "8xH100", batch=64, budget=0)
    path = tmp_path / "plan.json"
    plan.save(path)
    assert read_plan(path).file.model == "smollm2-135m"
    (again,) = plan_model("smollm2-135m", "8xH100", given=str(path))
    assert again.step_time == pytest.approx(plan.step_time)


def test_what_is_priced_otherwise_is_told():
    (plan,) = plan_model(
        "gemma-3-4b", "8xH100", given="dp=8,zero=1,microbatch_size=1", batch=64
    )
    text = " ".join(plan.notices)
    assert "multi-modal: its text part alone is planned" in text
    assert "windows of 1,024 tokens is priced over the whole 4,096" in text
    (plan,) = plan_model(
        "smollm2-135m", "8xL40S", given="dp=8,microbatch_size=1", batch=64
    )
    assert "priced by roofline" in " ".join(plan.notices)
    low, high = plan.file.interval
    assert high / low > 2


def test_a_plan_by_name_needs_no_torch():
    code = (
        "import sys\n"
        "from gnnplace.cli.main import run\n"
        "command = 'plan smollm2-135m --cluster 8xH100 --batch 64 --budget 0 --quiet'\n"
        "assert run(command.split()) == 0\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    environment = {**os.environ, "GNNPLACE_STORE": "none"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
