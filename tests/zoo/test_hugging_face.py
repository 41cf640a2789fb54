"""Configurations of Hugging Face, offline."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gnnplace.errors import FormatError, InputError
from gnnplace.planning.plans import plan_model
from gnnplace.tracing.loading import load
from gnnplace.zoo import hugging_face
from tests.run.planned.toys import cpus

TINY = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2}


@pytest.mark.parametrize(
    ("name", "head", "fields"),
    [
        ("gpt2", "GPT2LMHeadModel", {"n_layer": 1, "n_embd": 32, "n_head": 2}),
        ("bert", "BertForMaskedLM", {**TINY, "intermediate_size": 64}),
        (
            "llama",
            "LlamaForCausalLM",
            {**TINY, "intermediate_size": 64, "vocab_size": 100},
        ),
        (
            "t5",
            "T5ForConditionalGeneration",
            {"num_layers": 1, "d_model": 32, "d_ff": 64, "num_heads": 2, "d_kv": 16},
        ),
        (
            "vit",
            "ViTForImageClassification",
            {**TINY, "image_size": 32, "intermediate_size": 64},
        ),
    ],
)
def test_a_model_has_a_loss_of_its_own(
    name: str, head: str, fields: dict[str, int]
) -> None:
    work = hugging_face(name, batch=2, length=8, **fields)
    assert type(work.model).__name__ == head
    assert work.model.training
    with torch.no_grad():
        assert torch.isfinite(work.model(**work.inputs).loss)


SMALL = "hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2"
VOCABULARY = "vocab_size: 99, eos_token_id: 2, bos_token_id: 1"
PAIR = (
    f"vision_config={{{SMALL}, image_size: 16, patch_size: 8}}"
    f"&text_config={{{SMALL}, {VOCABULARY}}}&length=8"
)


def test_images_need_not_be_square():
    (image, *_) = hugging_face(
        "yolos", 2, num_hidden_layers=1, image_size=[32, 48]
    ).inputs.values()
    assert image.shape == (2, 3, 32, 48)


@pytest.mark.parametrize(
    ("name", "frames"), [("videomae", "num_frames"), ("vjepa2", "frames_per_clip")]
)
def test_models_of_videos_have_frames(name, frames):
    made = hugging_face(name, 2, num_hidden_layers=2, **{frames: 4})
    (video,) = made.inputs.values()
    assert video.shape[:3] == (2, 4, 3)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_pairs_of_images_and_texts_have_the_loss_of_pairs(name: str) -> None:
    """Which compares every example with all others, so that replicas are refused in a line."""
    work = load(f"hf:{name}?{PAIR}")
    assert work.model(**work.inputs).loss.dim() == 0
    assert plan_model(f"hf:{name}?{PAIR}", cpus(2), given="pp=2,microbatch_size=4")[
        0
    ].feasible
    with pytest.raises(InputError, match="the batch cannot be cut") as told:
        plan_model(f"hf:{name}?{PAIR}", cpus(2), given="dp=2,microbatch_size=2")
    assert "\n" not in str(told.value)


def test_sizes_of_known_models() -> None:
    with torch.device("meta"):
        count = sum(
            p.numel() for p in hugging_face("gpt2-xl", batch=1).model.parameters()
        )
    assert count == 1_557_611_200  # the published 1.5 B, tied embedding counted once


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="hf:gpt5: no such configuration"):
        hugging_face("gpt5")
    with pytest.raises(InputError, match="no field 'layers'"):
        hugging_face("gpt2", layers=3)
    with pytest.raises(
        InputError, match="hf:gpt2: Field 'n_layer' expected int, got str"
    ):
        hugging_face("gpt2", n_layer="x")
    with pytest.raises(FormatError, match="cannot be read"):
        hugging_face(str(tmp_path / "config.json"))
    with pytest.raises(
        InputError, match=r"no num_experts_per_tok, how many experts a token has"
    ):
        hugging_face("deepseek_v2")
    with pytest.raises(
        InputError, match=r"no example inputs are known for it .its configuration"
    ):
        hugging_face("encodec")


def test_a_sound_has_as_many_samples_as_make_the_frames() -> None:
    """Two layers with convolutions over 20,000 samples: 0.7 s."""
    tiny = {**TINY, "num_feat_extract_layers": 7, "num_conv_pos_embeddings": 4}
    sound = hugging_face(
        "wav2vec2", batch=2, length=16, **tiny, num_conv_pos_embedding_groups=2
    )
    with torch.no_grad():
        assert sound.model.eval()(**sound.inputs).last_hidden_state.shape == (2, 16, 32)
    picture = hugging_face("audio-spectrogram-transformer", **TINY, max_length=64)
    assert picture.inputs["input_values"].shape == (4, 64, 128)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "esm",
            r"its configuration has no vocab_size; give it a number, as in hf:esm\?vocab_",
        ),
        (
            "diffusion_gemma",
            r"has no text_config\.moe_intermediate_size; give it a number$",
        ),
        ("granite4_vision", r"a field that it needs is null; give it a value"),
    ],
)
def test_fields_that_are_null_are_named(name: str, words: str) -> None:
    with pytest.raises(InputError, match=words):  # of full size: without numbers
        load(f"hf:{name}", fake=True)
