"""Models of the class that a configuration names, each with what its head learns from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnplace.errors import InputError
from gnnplace.planning.plans import plan_model
from gnnplace.plans.decoders.decoder import find_decoder
from gnnplace.tracing.loading import load
from gnnplace.zoo import hugging_face
from tests.run.planned.toys import cpus

TINY = {
    "num_hidden_layers": 1,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 64,
}
LLAMA = {**TINY, "model_type": "llama", "num_key_value_heads": 2}
BERT = {**TINY, "model_type": "bert"}
GPTQ = {"quant_method": "gptq", "bits": 4}


def folder_of(path: Path, fields: dict[str, Any]) -> str:
    (path / "config.json").write_text(json.dumps(fields))
    return str(path)


@pytest.mark.parametrize(
    ("fields", "name", "shapes"),
    [
        (BERT, "BertForSequenceClassification", {"labels": [2]}),
        (BERT, "BertForTokenClassification", {"labels": [2, 8]}),
        (
            BERT,
            "BertForQuestionAnswering",
            {"start_positions": [2], "end_positions": [2]},
        ),
        (BERT, "BertForMultipleChoice", {"input_ids": [2, 2, 8], "labels": [2]}),
        (BERT, "BertForNextSentencePrediction", {"labels": [2]}),
        (BERT, "BertForPreTraining", {"labels": [2, 8], "next_sentence_label": [2]}),
        (LLAMA, "LlamaForSequenceClassification", {"labels": [2]}),
        (LLAMA, "LlamaForCausalLM", {"labels": [2, 8]}),
        (
            {
                **TINY,
                "model_type": "vit",
                "image_size": 16,
                "patch_size": 8,
                "num_labels": 5,
            },
            "ViTForImageClassification",
            {"pixel_values": [2, 3, 16, 16], "labels": [2]},
        ),
        (
            {**TINY, "model_type": "electra"},
            "ElectraForPreTraining",
            {"labels": [2, 8]},
        ),
    ],
)
def test_a_folder_is_the_class_that_it_names(
    tmp_path: Path, fields: dict[str, Any], name: str, shapes: dict[str, list[int]]
) -> None:
    folder = folder_of(tmp_path, {**fields, "architectures": [name]})
    work = load(f"hf:{folder}?batch=2&length=8")
    assert type(work.model).__name__ == work.name == name
    assert {key: list(work.inputs[key].shape) for key in shapes} == shapes
    with torch.no_grad():
        assert torch.isfinite(work.model(**work.inputs).loss)


@pytest.mark.parametrize(
    ("fields", "shape"),
    [
        ({"num_labels": 1}, [2]),
        ({"problem_type": "regression", "num_labels": 3}, [2, 3]),
        ({"problem_type": "multi_label_classification", "num_labels": 3}, [2, 3]),
    ],
)
def test_a_classifier_learns_from_what_its_problem_has(
    fields: dict[str, Any], shape: list[int]
) -> None:
    sizes = {key: value for key, value in BERT.items() if key != "model_type"} | fields
    work = hugging_face(
        "bert", 2, 8, architectures="BertForSequenceClassification", **sizes
    )
    assert list(work.inputs["labels"].shape) == shape
    assert work.inputs["labels"].is_floating_point()
    with torch.no_grad():
        assert torch.isfinite(work.model(**work.inputs).loss)


def test_letters_are_fewer_than_the_frames_and_none_is_the_blank() -> None:
    """Two layers with convolutions over a second of sound: 0.5 s."""
    small = {**TINY, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    sound = hugging_face("wav2vec2", 2, 24, architectures=["Wav2Vec2ForCTC"], **small)
    labels = sound.inputs["labels"]
    assert labels.shape == (2, 6)
    assert labels.min() > 0
    assert labels.max() < 64
    with torch.no_grad():
        assert torch.isfinite(sound.model.eval()(**sound.inputs).loss)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "BertForNothing",
            "architectures names BertForNothing, which transformers .* not have",
        ),
        (
            "RobertaForMaskedLM",
            "a class of model type 'roberta', and model_type is 'bert'",
        ),
        ("TFBertModel", "did you mean 'BertModel'"),
    ],
)
def test_a_class_that_cannot_be_is_one_line(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        hugging_face("bert", architectures=[name])
    assert "\n" not in str(error.value)


def test_a_head_whose_targets_are_not_known_is_refused_by_name() -> None:
    with pytest.raises(
        InputError, match="no targets are known that ViTForMaskedImageModeling"
    ):
        hugging_face(
            "vit", architectures=["ViTForMaskedImageModeling"], num_hidden_layers=1
        )
    with pytest.raises(
        InputError, match="no targets are known that GPT2DoubleHeadsModel"
    ):
        hugging_face("gpt2", architectures=["GPT2DoubleHeadsModel"], n_layer=1)


def test_a_classifier_is_planned_and_is_no_decoder_of_text(tmp_path: Path) -> None:
    fields = {**LLAMA, "architectures": ["LlamaForSequenceClassification"]}
    spec = f"hf:{folder_of(tmp_path, fields)}?batch=4&length=8"
    assert find_decoder(spec) is None
    plan = plan_model(spec, cpus(2), given="dp=2,microbatch_size=2")[0]
    assert plan.feasible
    assert any(
        name.startswith("score") for name in load(spec, fake=True).model.state_dict()
    )
    folder_of(tmp_path, {**fields, "architectures": ["LlamaForCausalLM"]})
    assert find_decoder(spec) is not None


@pytest.mark.parametrize(
    ("quantization", "method"),
    [
        (GPTQ, "gptq, 4 bits"),
        ({"quant_method": "awq", "w_bit": 4}, "awq, 4 bits"),
        (
            {"quant_method": "bitsandbytes", "load_in_8bit": True},
            "bitsandbytes, 8 bits",
        ),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            "bitsandbytes, 4 bits",
        ),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8"),
    ],
)
def test_quantized_weights_are_refused_by_name(
    tmp_path: Path, quantization: dict[str, Any], method: str
) -> None:
    spec = f"hf:{folder_of(tmp_path, {**LLAMA, 'quantization_config': quantization})}"
    for road in (load, find_decoder):
        with pytest.raises(InputError, match=rf"weights are quantized \({method}\)"):
            road(spec)
    assert find_decoder(f"{spec}?quantization_config=null") is not None


def test_a_quantized_part_is_refused_too() -> None:
    with pytest.raises(InputError, match="take quantization_config out of text_config"):
        hugging_face("clip", text_config={"quantization_config": GPTQ})
