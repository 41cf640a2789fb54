"""Models of all kinds under plans of all kinds beside one device: the table of plans-run.md."""

import random
from dataclasses import replace

import pytest

import gnnplace
from benchmarks.plans_run import MODELS, PLANS, SHARDS, run
from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.plans import answers
from gnnplace.plans.given import draft_spec
from gnnplace.plans.job import TrainingJob
from gnnplace.plans.segments.chains import capture_chain
from gnnplace.sharding.captured.layout import count_parts, mesh_configurations


@pytest.mark.campaign
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("model", MODELS)
def test_a_model_trains_by_a_plan_as_on_one_device(model, plan):
    row, passed = run(model, plan, train=5)
    assert passed, row


@pytest.mark.campaign
@pytest.mark.parametrize(("model", "plan"), [(m, p) for m in SHARDS for p in SHARDS[m]])
def test_tokens_are_cut_and_sent_to_experts(model, plan):
    row, passed = run(model, plan, train=5)
    assert passed, row


def test_experts_get_their_tokens_from_all_shards():
    """Two processes, real all-to-alls; five seconds, most of them starts of processes."""
    row, passed = run("mixtral", "cp=2,ep=2", train=2)
    assert passed, row


SIZES = "hidden_size=64&vocab_size=128&length=16"
BLOOM = f"hf:bloom?{SIZES}&n_layer=2&n_head=4"
MIXTURE = (
    f"{SIZES}&num_hidden_layers=2&num_attention_heads=4&num_key_value_heads=2&intermediate_size=128"
    "&num_local_experts=4"
)
PHIMOE = f"hf:phimoe?{MIXTURE}"
GPT_OSS = f"hf:gpt_oss?{MIXTURE}&head_dim=16&num_experts_per_tok=2"
LLAMA4 = f"hf:llama4_text?{MIXTURE}&head_dim=16&intermediate_size_mlp=128"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (BLOOM, "tp=2,microbatch_size=2"),
        *(
            pytest.param(spec, words, marks=pytest.mark.campaign)
            for spec in (BLOOM, PHIMOE, GPT_OSS, LLAMA4)
            for words in ("tp=2,pp=2,microbatch_size=1", "tp=2,dp=2,microbatch_size=2")
        ),
        pytest.param(
            GPT_OSS, "cp=2,ep=2,microbatch_size=2", marks=pytest.mark.campaign
        ),
    ],
)
def test_functions_and_gates_of_models_own_train_as_on_one_device(spec, words):
    """Their forward and backward passes are their own; BLOOM's GELU is cut over its features."""
    plan = gnnplace.plan(spec, "cpu:4", batch=8, given=words)[0]
    found = gnnplace.run_plan(plan, spec, train=2, steps=1)
    assert found is not None
    assert found.passed, found.verification.summary()


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("words", "axes"),
    [
        ("shards=2,microbatch_size=2", (2,)),
        ("pp=2,shards=2,microbatch_size=1", (2,)),
        ("tp=2,cp=2,microbatch_size=2", (2, 2)),
    ],
)
@pytest.mark.parametrize("model", ["gpt2", "t5", "llama", "mixtral", "deepseek", "moe"])
def test_any_split_of_every_call_trains_as_one_device(model, words, axes, monkeypatch):
    """A random label for every call: all moves between layouts, of which a search has few."""
    rng, size = random.Random(words), int(words[-1])

    def any_of(source, i):
        own = source.find_example_labels(i)
        options = [
            c for c in mesh_configurations(source.layers.operations.ops[i].shape, axes)
            if all(size % n == 0 for label, n in count_parts(c, axes).items() if label in own)
        ]  # fmt: skip
        return rng.choice(options)

    trains_as_one_device(model, words, any_of, monkeypatch)


def test_queries_in_zigzag_train_as_on_one_device(monkeypatch):
    """Four processes, of which each attends for blocks of queries of two others."""

    def zigzag(source, i):
        causal = "zigzag" in source.layers.rules[i].extents
        return ("zigzag",) if causal else (None,)

    trains_as_one_device("llama", "shards=4,microbatch_size=2", zigzag, monkeypatch)


def trains_as_one_device(model, words, label_of, monkeypatch):
    spec, batch = MODELS[model]
    devices = resolve_cluster("cpu:4")
    chain = capture_chain(TrainingJob(spec, batch=batch), devices)
    calls = enumerate(chain.source.layers.calls.calls)
    labels = [(call.name, label_of(chain.source, i)) for i, call in calls]

    def draft(*given):
        made = draft_spec(*given)
        chosen = [
            replace(s, choice=replace(s.choice, labels=tuple(labels)))
            for s in made.stages
        ]
        return replace(made, stages=tuple(chosen))

    monkeypatch.setattr("gnnplace.plans.given.draft_spec", draft)
    plan = answers.price_given_plan(chain, devices, words)
    found = gnnplace.run_plan(plan, spec, train=0, steps=1)
    assert found is not None
    assert found.passed, found.verification.summary()
