"""A captured decoder's search begins with the fastest plans in words, at the same prices."""

from __future__ import annotations

import pytest

import gnnplace
from gnnplace.errors import InputError
from gnnplace.planning.plans import plan_devices
from gnnplace.plans.answers import find_plans
from gnnplace.plans.decoders.decoder import find_decoder
from gnnplace.plans.job import SearchOptions, TrainingJob
from gnnplace.plans.seeds import seed_drafts
from gnnplace.plans.segments.chain import Chain
from gnnplace.plans.segments.chains import capture_chain

MODEL = (
    "hf:llama?num_hidden_layers=4&hidden_size=2048&intermediate_size=5632&vocab_size=32000"
    "&num_attention_heads=16&num_key_value_heads=4&length=2048&batch=4"
)


DEVICES = plan_devices("nvswitch-h100-8", None, None)


@pytest.fixture(scope="module")
def chain() -> Chain:
    return capture_chain(TrainingJob(MODEL, precision="bf16-mixed"), DEVICES)


def test_a_captured_decoder_is_no_slower_than_its_plans_in_words(chain):
    captured = find_plans(chain, DEVICES, SearchOptions(budget=0.0))[0]
    (words,) = gnnplace.plan(
        MODEL,
        "nvswitch-h100-8",
        headroom=None,
        precision="bf16-mixed",
        launcher="gnnplace",
    )
    assert captured.file.source == words.file.source == "sizes"
    assert captured.file.words is None  # it has the calls that are run
    assert captured.step_time <= words.step_time * (1 + 1e-9)


def test_seeds_are_plans_of_the_whole_step(chain):
    seeds = seed_drafts(chain, DEVICES)
    assert (
        len({(seed.size, seed.schedule, seed.stages) for seed in seeds})
        == len(seeds)
        > 1
    )
    assert all(seed.size * seed.microbatches == 4 for seed in seeds)


def test_words_of_launchers_are_searched_for_models_by_their_sizes():
    assert find_decoder(MODEL) is not None
    options = SearchOptions(launcher="megatron-lm")
    assert options.is_of_words
    (plan,) = gnnplace.plan(MODEL, "nvswitch-h100-8", launcher="megatron-lm")
    assert plan.file.launcher == "megatron-lm"
    assert plan.file.model == MODEL
    assert list(plan.file.alternatives) == ["megatron-lm"]


def test_layers_of_another_kind_are_not_searched_for_launchers():
    with pytest.raises(
        InputError, match="no decoder of text that is known by its sizes"
    ):
        gnnplace.plan("resnet50", "nvswitch-h100-8", launcher="megatron-lm")
