"""The catalogue of models: names, defaults, and the parameters of every row."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig

from gnnplace.errors import InputError
from gnnplace.models import default_batch, find_model, model_names, nearest_names
from gnnplace.plans.decoders.decoder import catalogue_decoder, find_decoder
from gnnplace.tracing.loading import load
from gnnplace.zoo.hf import hugging_face, transformers_config

MODELS = {
    name: model for name in model_names() if (model := find_model(name)) is not None
}
ROWS = {model.name: model for model in MODELS.values()}
PLANNED = [model for model in ROWS.values() if not model.refused]
NOT_BY_SIZES = {
    "facebook/opt-350m",  # its embedding is narrower than its layers
    "meta-llama/Llama-4-Maverick-17B-128E",  # every other layer has experts
}
OTHER_TYPES = ("bert", "roberta", "xlm-roberta", "modernbert", "distilbert", "t5", "bart", "vit",
               "clip", "whisper")  # fmt: skip


def smallest_of_each_type():
    """The model of each type that is made quickest."""
    by_type = {}
    for model in sorted(PLANNED, key=lambda row: row.parameters):
        by_type.setdefault(model.type, model)
    return list(by_type.values())


def count_parameters(model):
    """The parameters of a model of the catalogue as transformers makes it."""
    with torch.device("meta"):
        made = hugging_face(model.name, batch=1, length=8).model
    return sum(parameter.numel() for parameter in made.parameters())


def sizes_in(config, values):
    """The values of a configuration under the names of others, of its parts too."""
    return {
        name: sizes_in(getattr(config, name), value)
        if isinstance(value, dict)
        else getattr(config, name)
        for name, value in values.items()
    }


OF_CLASSES = [model for model in ROWS.values() if model.source == "transformers"]


@pytest.mark.parametrize("model", OF_CLASSES, ids=lambda model: model.name)
def test_a_row_from_transformers_has_the_defaults_of_its_class(model):
    """Its classes name the model that their defaults are of; `architectures` is no size."""
    config = AutoConfig.for_model(model.type)
    sizes = {
        name: value for name, value in model.config.items() if hasattr(config, name)
    }
    sizes.pop("architectures", None)
    assert len(sizes) >= 2
    assert sizes_in(config, sizes) == sizes


def test_rows_name_a_file_that_their_sizes_were_compared_with():
    """Most do; of the others no stored file was found that says their sizes."""
    on_card = {model.name for model in ROWS.values() if model.source == "card"}
    assert len(on_card) <= 25
    # The file that was found says other sizes.
    assert "zai-org/GLM-4-32B-0414" in on_card


def test_there_are_the_models_that_people_train():
    assert len(ROWS) >= 200
    assert ROWS["Qwen/Qwen3-8B"].parameters == 8_190_735_360


@pytest.mark.parametrize("model", PLANNED, ids=lambda model: model.name)
def test_sizes_have_the_parameters_of_the_row(model):
    decoder = catalogue_decoder(model.name)
    if model.type in OTHER_TYPES or model.name in NOT_BY_SIZES:
        assert decoder is None
    else:
        assert decoder is not None
        assert decoder.parameters == model.parameters


@pytest.mark.parametrize("model", smallest_of_each_type(), ids=lambda model: model.name)
def test_transformers_makes_as_many_parameters(model):
    assert count_parameters(model) == model.parameters


@pytest.mark.campaign
@pytest.mark.parametrize("model", PLANNED, ids=lambda model: model.name)
def test_transformers_makes_as_many_parameters_of_every_row(model):
    assert count_parameters(model) == model.parameters


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B"),
        ("hf:LLAMA-3-70B", "meta-llama/Meta-Llama-3-70B"),
        ("hf:gpt2-xl", "openai-community/gpt2-xl"),
        ("deepseek-r1", "deepseek-ai/DeepSeek-V3"),
        ("bert-base-uncased", "google-bert/bert-base-uncased"),
    ],
)
def test_a_name_is_found_in_any_case_with_and_without_its_owner(name, full):
    assert find_model(name) is ROWS[full]


def test_a_model_type_is_no_name_of_the_catalogue():
    assert find_model("hf:gpt2") is None
    assert find_model("hf:bloom") is None


def test_an_alias_is_the_name_of_one_model():
    names = [name.lower() for name in model_names()]
    assert len(names) == len(set(names))


def test_the_nearest_names_are_offered():
    nearest = nearest_names("Qwen/Qwen3-9B")
    assert len(nearest) == 5
    assert nearest[0] == "Qwen/Qwen3-8B"
    with pytest.raises(InputError, match="nearest names are Qwen/Qwen3-8B"):
        transformers_config("Qwen/Qwen3-9B", {})
    with pytest.raises(
        InputError, match="nearest names of the catalogue are Qwen/Qwen3-8B"
    ):
        load("qwen3-9b")


@pytest.mark.parametrize(
    ("name", "word"),
    [("ai21labs/Jamba-v0.1", "Mamba"), ("qwen3-next-80b-a3b", "linear attention")],
)
def test_layers_that_no_plan_is_made_for_are_refused_by_their_kind(name, word):
    with pytest.raises(InputError, match=word):
        find_decoder(name)
    with pytest.raises(InputError, match=word):
        transformers_config(name, {})


@pytest.mark.parametrize(
    ("length", "devices", "batch"),
    [(4096, 8, 256), (1024, 8, 1024), (4096, 4096, 1024), (197, 1, 8192)],
)
def test_a_step_has_a_million_tokens_or_a_thousand_a_device(length, devices, batch):
    assert default_batch(length, devices) == batch


def test_length_and_batch_may_follow_a_name():
    usual = catalogue_decoder("qwen3-8b", num_devices=64)
    assert usual is not None
    assert (usual.length, usual.batch) == (4096, 256)
    shorter = catalogue_decoder("qwen3-8b?length=1024&batch=8")
    assert shorter == replace(usual, length=1024, batch=8)
    with pytest.raises(InputError, match="learned positions for 1,024 tokens"):
        catalogue_decoder("gpt2-xl?length=4096")
    with pytest.raises(InputError, match="whole numbers"):
        catalogue_decoder("qwen3-8b?length=long")


def test_fields_of_the_configuration_may_differ():
    config = transformers_config("Qwen/Qwen3-0.6B", {"num_hidden_layers": 2})
    assert (config.num_hidden_layers, config.hidden_size) == (2, 1024)
    assert transformers_config("gpt2-xl", {"n_layer": 3}).num_hidden_layers == 3
    assert isinstance(config, type(AutoConfig.for_model("qwen3")))


def test_a_name_is_known_without_torch():
    code = (
        "import sys\n"
        "from gnnplace.plans.decoders.decoder import find_decoder\n"
        "find_decoder('Qwen/Qwen3-8B', num_devices=8)\n"
        "assert not {'torch', 'transformers', 'numba'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
