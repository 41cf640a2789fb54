"""Hugging Face configurations with random weights; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gnnplace.errors import InputError
from gnnplace.files import read_json
from gnnplace.zoo.workload import Workload, generator

# Model type and what differs from the type's default configuration, as on each model's card.
KNOWN: Mapping[str, tuple[str, dict[str, Any]]] = {
    "gpt2-medium": ("gpt2", {"n_layer": 24, "n_embd": 1024, "n_head": 16}),
    "gpt2-large": ("gpt2", {"n_layer": 36, "n_embd": 1280, "n_head": 20}),
    "gpt2-xl": ("gpt2", {"n_layer": 48, "n_embd": 1600, "n_head": 25}),
    "bert-base-uncased": ("bert", {}),
    "bert-large-uncased": (
        "bert",
        {
            "num_hidden_layers": 24,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
    ),
    "llama-7b": ("llama", {}),
    "vit-base": ("vit", {}),
}
# Auto classes in the order in which they are tried.
HEADS = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForImageClassification",
    "AutoModel",
)
PREFERRED = {"bert": "AutoModelForMaskedLM", "vit": "AutoModelForImageClassification"}
BATCH, LENGTH = 4, 64
IMAGE = 224  # height and width where the configuration has none


def hugging_face(name: str, batch: int = BATCH, length: int = LENGTH, **options: Any) -> Workload:
    """A model of the `transformers` package, made from its configuration.

    Args:
        name: A model type ("gpt2"), a known size ("gpt2-xl"), or the path of a `config.json`.
        batch: Examples in a step.
        length: Tokens of an example (images have the size of the configuration).
        **options: Fields of the configuration that are to differ, such as `n_layer=4`.

    Returns:
        The workload; its loss is the model's own where its head has one.

    Raises:
        InputError: an unknown name or field.
    """
    config = _config(name, options)
    model = _model(config)
    inputs = _inputs(model, config, batch, length)
    return Workload(name, model.train(), inputs)


def _config(name: str, options: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    if name.endswith(".json"):
        fields = dict(read_json(Path(name)))
        kind = fields.pop("model_type", "")
    else:
        kind, fields = KNOWN.get(name, (name, {}))
    try:
        config = AutoConfig.for_model(kind)
    except (ValueError, KeyError):
        raise InputError(
            f"hf:{name}: no such configuration; use a model type of transformers such as "
            f"'gpt2', one of {', '.join(KNOWN)}, or the path of a config.json"
        ) from None
    unknown = [key for key in options if not hasattr(config, key)]
    if unknown:
        raise InputError(f"hf:{name}: the configuration has no field {unknown[0]!r}")
    config = AutoConfig.for_model(kind, **{"use_cache": False, **fields, **options})
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0  # otherwise set by what generates text
    return config


def _model(config: Any) -> nn.Module:
    import transformers

    first = PREFERRED.get(config.model_type)
    if config.is_encoder_decoder:
        first = "AutoModelForSeq2SeqLM"
    for head in (first, *HEADS) if first else HEADS:
        factory = getattr(transformers, head)
        if type(config) in factory._model_mapping:
            model = factory.from_config(config)
            if hasattr(model, "loss_type") and model.loss_type is None:
                model.loss_type = "ForCausalLM"  # its default, but it warns that it is
            return model
    raise InputError(f"hf:{config.model_type}: transformers has no model for it")


def _inputs(model: nn.Module, config: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    try:
        return _random_inputs(model, config, batch, length)
    except AttributeError as error:
        raise InputError(
            f"hf:{config.model_type}: no example inputs are known for it ({error}); write a "
            "callable that returns (model, inputs) and give it as module:callable"
        ) from None


def _random_inputs(
    model: nn.Module, config: Any, batch: int, length: int
) -> dict[str, torch.Tensor]:
    random = generator(0)
    if getattr(model, "main_input_name", "input_ids") == "pixel_values":
        size = getattr(config, "image_size", IMAGE)
        shape = (batch, config.num_channels, size, size)
        inputs = {"pixel_values": torch.randn(shape, generator=random)}
        count = max(2, getattr(config, "num_labels", 2))
        labels = torch.randint(count, (batch,), generator=random)
    else:
        words = torch.randint(config.vocab_size, (batch, length), generator=random)
        inputs, labels = {"input_ids": words}, words
    if "For" in type(model).__name__ or "LMHead" in type(model).__name__:
        inputs["labels"] = labels.clone()
    return inputs
