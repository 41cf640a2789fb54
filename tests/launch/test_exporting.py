"""A plan as launch files: what is lost has a price, and the prices add up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import gnnplace
from gnnplace.cli.main import run
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.launch.exporting import export_plan
from gnnplace.launch.importing import complete_launch_plan, make_captured_spec
from gnnplace.launch.launch_plan import LaunchPlan
from gnnplace.launch.registry import LAUNCHERS, get_launcher, read_launch_file
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.plan import Plan

MODEL = "hf:gpt2?n_layer=4&n_embd=64&n_head=4&vocab_size=128&n_positions=32&length=32"
CLUSTER = "nvlink-a100-8"


@pytest.fixture(scope="module")
def lossy() -> Plan:
    """Five layers in two stages, as the framework cuts them; the model is captured in 2 s."""
    words = "dp=2,pp=2,microbatch_size=2,zero=1,schedule=zero-bubble"
    model = MODEL.replace("n_layer=4", "n_layer=5")
    (plan,) = gnnplace.plan(
        model, CLUSTER, batch=16, precision="bf16-mixed", given=words
    )
    return plan


def test_losses_have_prices_that_add_up_to_the_difference(lossy):
    """It captures the model twice, in both precisions."""
    made = export_plan(lossy, "megatron-lm")
    assert [loss.summary.split(":")[0] for loss in made.losses] == [
        "schedule zero-bubble", "precision bf16-mixed",
    ]  # fmt: skip
    assert made.seconds is not None
    total = sum(loss.seconds or 0.0 for loss in made.losses)
    assert made.seconds - lossy.step_time == pytest.approx(total)
    back = LAUNCHERS["megatron-lm"].read(made.text, "file")
    (again,) = gnnplace.plan(None, CLUSTER, given=back)
    assert again.step_time == pytest.approx(
        made.seconds
    )  # the sizes make the same model
    assert f"Not carried: {made.losses[0].summary}" in made.text


def test_a_launcher_without_stages_gives_no_file(lossy):
    with pytest.raises(InfeasibleError, match="no pipeline stages"):
        export_plan(lossy, "accelerate")


def test_an_unknown_launcher_is_one_line(lossy):
    with pytest.raises(InputError, match="did you mean 'megatron-lm'"):
        export_plan(lossy, "megatron")


@pytest.mark.parametrize(
    "words",
    [
        "dp=2,tp=2,pp=2,layers=1+3,microbatch_size=2,zero=1,recompute=block:1",
        "dp=2,cp=2,pp=2,layers=2+2,microbatch_size=2,zero=1",
    ],
)
def test_a_plan_that_can_be_said_loses_nothing(words):
    """It captures the model twice."""
    (plan,) = gnnplace.plan(
        MODEL, CLUSTER, batch=16, precision="bf16-master", given=words
    )
    made = export_plan(plan, "megatron-lm")
    assert made.losses == ()
    assert made.seconds == pytest.approx(plan.step_time)
    assert made.plan.words == words


def test_what_is_not_priced_is_said():
    plan = LaunchPlan(
        dp=2, microbatch_size=1, batch=4, recompute="uniform:2", schedule="gpipe",
        gradients="fp32", precision="bf16-master", overlap=("gradients",),
    )  # fmt: skip
    words, lines = make_captured_spec(plan)
    assert str(words) == "dp=2,microbatch_size=1,recompute=uniform:2"
    assert [line.split(":")[0] for line in lines] == [
        "schedule gpipe", "gradients in fp32", "overlap of gradients",
    ]  # fmt: skip
    assert (
        str(make_captured_spec(replace(plan, cp=2))[0])
        == "dp=2,cp=2,microbatch_size=1,recompute=uniform:2"
    )
    assert str(make_captured_spec(replace(plan, ep=2, tp=2))[0]).startswith(
        "dp=2,tp=2,ep=2,"
    )
    for other in ({"ep": 4}, {"cp": 4, "ep": 2}):
        with pytest.raises(InputError, match="ep = cp"):
            make_captured_spec(replace(plan, **other))


def test_replicas_that_a_file_leaves_open_are_the_clusters():
    plan = LaunchPlan(tp=2, pp=2, microbatch_size=1, batch=8)
    assert complete_launch_plan(plan, 8).dp == 2
    with pytest.raises(InputError, match="6 processes are no multiple of tp x cp x pp"):
        complete_launch_plan(plan, 6)
    with pytest.raises(InputError, match="does not say microbatch_size"):
        make_captured_spec(LaunchPlan(dp=2, batch=8))


def test_sizes_name_a_model_of_those_sizes():
    """transformers makes the model, of some thousand parameters."""
    from gnnplace.tracing.models import make_workload

    sizes = DecoderSizes(2, 32, 4, 2, 48, 16, 64, gated=True, tied=False)
    config = make_workload(sizes.model, fake=True).model.config
    assert (
        config.num_key_value_heads,
        config.intermediate_size,
        config.vocab_size,
    ) == (2, 48, 64)
    assert config.tie_word_embeddings is False


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b" " * ((1 << 20) + 1), "has 1 MB at most"),
        (b"hello\n", "cannot tell which launcher"),
    ],
)
def test_a_file_that_is_none_is_one_line(content, told, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(InputError, match=told) as caught:
        read_launch_file(path)
    assert "\n" not in str(caught.value)
    assert get_launcher("accelerate").framework == "pytorch"


def test_an_order_that_was_searched_goes_beside_a_torchtitan_module(
    tmp_path, monkeypatch, capsys
):
    """It captures the model twice; the rows are those of the plan's file, without messages."""
    sizes = "num_hidden_layers=6&hidden_size=256&num_attention_heads=16&num_key_value_heads=16"
    model = f"hf:llama?{sizes}&intermediate_size=768&vocab_size=2048&length=2048"
    words = "pp=2,microbatch_size=2,layers=3+3,schedule=zero-bubble"
    (plan,) = gnnplace.plan(
        model, CLUSTER, batch=8, precision="bf16-mixed", given=words
    )
    searched = plan.file.model_copy(update={"schedule": "zero-bubble:searched"})
    monkeypatch.chdir(tmp_path)
    Plan(searched).save("plan.json")
    assert run(["convert", "plan.json", "--to", "torchtitan", "-o", "job.py"]) == 0
    out = capsys.readouterr().out
    assert "beside it, in job.csv" in out
    assert "order of actions: was" not in out
    cells = [line.split(",") for line in Path("job.csv").read_text().splitlines()]
    passes = [[word for word in row if "_" not in word] for row in searched.actions]
    assert [[cell for cell in row if cell] for row in cells] == passes
    assert run(["convert", "plan.json", "--to", "torchtitan", "-o", "job.csv"]) == 2
