"""One question has one answer, whatever road asks it: words, table, plan's file, explanation.

A decoder in half precision on GPUs with tables is priced by its sizes, captured or not. Where
stages have whole layers every road answers the same seconds and bytes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

import gnnplace
from gnnplace.cli.main import run
from gnnplace.explaining.captured import CapturedStep
from gnnplace.explaining.in_words import SpecStep
from gnnplace.explaining.steps import step_causes, step_parts
from gnnplace.plans.answers import find_plans, price_given_plan
from gnnplace.plans.decoders.decoder import DecoderSizes, find_decoder
from gnnplace.plans.decoders.setting import make_pricing_setting
from gnnplace.plans.given import draft_spec
from gnnplace.plans.job import SearchOptions, TrainingJob
from gnnplace.plans.mesh import MeshFabric
from gnnplace.plans.plan import Plan
from gnnplace.plans.search.draft import realize_draft
from gnnplace.plans.search.framework_pricing import make_pricer
from gnnplace.plans.segments.chain import Chain
from gnnplace.plans.segments.chains import capture_chain
from gnnplace.plans.segments.recognition import read_configured_sizes
from gnnplace.plans.spec import parse_spec
from gnnplace.plans.spec_answers import PlanAnswer, price
from gnnplace.problem import Cluster
from gnnplace.problem.cluster.presets import make_preset
from gnnplace.problem.constraints.constraints import cluster_with_headroom
from gnnplace.tracing.models import make_workload

CLUSTER = "nvswitch-h100-8"
BATCH = 16
SMALL = (
    "num_hidden_layers=4&hidden_size=256&num_attention_heads=8&vocab_size=512&length=128"
    "&intermediate_size=512"
)
MODELS = {
    "llama": f"hf:llama?{SMALL}&num_key_value_heads=4",
    "llama, tied": f"hf:llama?{SMALL}&tie_word_embeddings=true",
    "gpt2": "hf:gpt2?n_layer=4&n_embd=256&n_head=8&vocab_size=512&length=128",
    "mixtral": f"hf:mixtral?{SMALL}&num_local_experts=4&num_key_value_heads=4",
}
PLANS = (
    "dp=8,microbatch_size=1",
    "dp=8,zero=1,microbatch_size=2",
    "dp=8,zero=2,microbatch_size=1",
    "dp=8,zero=3,microbatch_size=1,recompute=full",
    "dp=2,pp=4,microbatch_size=1,layers=1+1+1+1",
    "dp=2,pp=4,microbatch_size=1,layers=1+1+1+1,recompute=full",
    "dp=2,tp=4,microbatch_size=1",
    "dp=2,tp=4,microbatch_size=1,sp=off,zero=1",
    "dp=4,cp=2,microbatch_size=1",
    "dp=2,tp=2,pp=2,microbatch_size=2,recompute=selective",
    "dp=2,tp=2,pp=2,microbatch_size=1,recompute=block:1,schedule=interleaved:2",
)
EXPLAINED = (PLANS[3], PLANS[5], PLANS[7], PLANS[8], PLANS[9])
EXPERTS = ("dp=8,ep=4,microbatch_size=1,zero=1", "dp=8,ep=2,microbatch_size=2")


@cache
def machine() -> Cluster:
    """The devices, with what libraries take of them."""
    return cluster_with_headroom(make_preset(CLUSTER), "auto")


@cache
def captured(model: str) -> Chain:
    """The model as it was captured, priced by its sizes."""
    job = TrainingJob(MODELS[model], batch=BATCH, precision="bf16-mixed")
    return capture_chain(job, machine())


def by_sizes(model: str, words: str) -> PlanAnswer:
    """What a plan takes by the sizes alone."""
    sizes = find_decoder(MODELS[model])
    assert isinstance(sizes, DecoderSizes)
    setting = make_pricing_setting(
        replace(sizes, batch=BATCH), make_preset(CLUSTER), precision="bf16-mixed"
    )
    return price(setting, parse_spec(words))


def peak(plan: Plan) -> float:
    """The bytes of the fullest device."""
    return max(entry.all for entry in plan.file.memory.values())


QUESTIONS = [(model, words) for model in MODELS for words in PLANS]
QUESTIONS += [("mixtral", words) for words in EXPERTS]


@pytest.mark.parametrize(("model", "words"), QUESTIONS)
def test_a_captured_decoder_takes_what_its_sizes_say(model, words):
    answer = by_sizes(model, words)
    plan = price_given_plan(captured(model), machine(), words)
    assert plan.file.source == "sizes"
    # GPT-2 has no cut between its embedding and its first layer: they are gathered together.
    seconds, size = (0.04, 0.03) if model == "gpt2" else (1e-6, 1e-6)
    assert plan.step_time == pytest.approx(answer.step_time, rel=seconds)
    assert peak(plan) == pytest.approx(answer.peak, rel=size)
    assert plan.file.interval == pytest.approx([answer.low, answer.high], rel=seconds)
    assert sum(plan.file.parts.values()) == pytest.approx(plan.step_time, rel=1e-6)


def test_every_road_answers_alike(tmp_path):
    """Words in Python, a table's row, a saved plan asked for again, and its explanation."""
    words = "dp=2,tp=2,pp=2,microbatch_size=2,zero=1,recompute=full,layers=2+2"
    asked = {"batch": BATCH, "precision": "bf16-mixed"}
    model = MODELS["llama"]
    (plan,) = gnnplace.plan(model, CLUSTER, given=words, **asked)
    plan.save(tmp_path / "plan.json")
    (again,) = gnnplace.plan(model, CLUSTER, given=str(tmp_path / "plan.json"))
    table = tmp_path / "plans.csv"
    table.write_text(
        "dp,tp,pp,microbatch_size,zero,recompute,layers\n2,2,2,2,1,full,2+2\n"
    )
    (row,) = gnnplace.price_plans(model, CLUSTER, str(table), **asked).answers
    (named,) = gnnplace.price_plans(
        model, CLUSTER, words, framework_name="pytorch", **asked
    ).answers
    explained = gnnplace.explain_plan(plan)
    seconds = [again.step_time, row.step_time, named.step_time, explained.step_time]
    assert seconds == pytest.approx([plan.step_time] * 4, rel=1e-6)
    assert [peak(again), row.peak, named.peak] == pytest.approx(
        [peak(plan)] * 3, rel=1e-6
    )
    assert sum(explained.parts.values()) == pytest.approx(plan.step_time, rel=1e-6)


@pytest.mark.parametrize("words", EXPLAINED)
def test_a_captured_decoder_is_explained_as_its_sizes_are(words):
    """Parts and causes are one mechanism's, whatever its prices come from."""
    chain, spec = captured("llama"), parse_spec(words)
    draft = draft_spec(chain, machine(), spec)
    priced = realize_draft(make_pricer(chain, MeshFabric(machine()), draft.size), draft)
    step = CapturedStep(price_given_plan(chain, machine(), words), priced)
    by_sizes = SpecStep(chain.source.sizes.setting, spec)
    parts, expected = step_parts(step), step_parts(by_sizes)
    if spec.cp > 1:  # by sizes alone gradients over shards of tokens count as shards'
        for found in (parts, expected):
            found["shards"] += found.pop("replicas")
    assert parts == pytest.approx(expected, rel=1e-6, abs=1e-9)
    causes, expected_causes = (
        {cause.name: cause.seconds for cause in step_causes(x, step_parts(x))}
        for x in (step, by_sizes)
    )
    assert causes == pytest.approx(expected_causes, rel=1e-6)


def test_what_is_found_is_priced_as_what_is_given():
    chain = captured("llama")
    (best, *_) = find_plans(chain, machine(), SearchOptions(budget=0.0))
    assert best.feasible
    again = price_given_plan(chain, machine(), best)
    assert again.step_time == pytest.approx(best.step_time, rel=1e-9)
    assert best.file.lower_bound is not None
    assert best.file.lower_bound <= best.step_time * (1 + 1e-9)
    for words in PLANS:
        plan = price_given_plan(chain, machine(), words)
        assert best.file.lower_bound <= plan.step_time * (1 + 1e-9), words


def test_other_models_are_not_taken_for_their_sizes():
    workload = make_workload(MODELS["llama"], fake=True)
    assert read_configured_sizes(workload, BATCH) is not None
    workload.model.lm_head.weight.requires_grad_(False)
    assert read_configured_sizes(workload, BATCH) is None


def test_the_command_line_says_where_prices_come_from(capsys):
    asked = ["--cluster", CLUSTER, "--batch", str(BATCH), "--given", PLANS[0]]
    assert run(["plan", MODELS["llama"], "--precision", "bf16-mixed", *asked]) == 0
    assert (
        "priced by the model's sizes as pytorch trains them" in capsys.readouterr().out
    )
    assert run(["plan", MODELS["llama"], *asked]) == 0
    assert "priced by the kernels that were captured" in capsys.readouterr().out
