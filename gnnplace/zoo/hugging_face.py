"""Hugging Face configurations with random weights; nothing is downloaded."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gnnplace.errors import GnnplaceError, InputError, suggestion
from gnnplace.files import read_json
from gnnplace.zoo.workload import Workload, generator

READ: Mapping[str, tuple[str, ...]] = {"qwen3_moe": ("head_dim",)}
"""Fields that a model reads and its configuration does not declare."""
# Model type and what differs from the type's default configuration, as on each model's card.
KNOWN: Mapping[str, tuple[str, dict[str, Any]]] = json.loads(
    Path(__file__).with_name("configurations.json").read_text()
)
# Auto classes in the order in which they are tried.
HEADS = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForImageClassification",
    "AutoModel",
)
PREFERRED = {
    "bert": "AutoModelForMaskedLM",
    "vit": "AutoModelForImageClassification",
    **dict.fromkeys(("clip", "metaclip_2", "siglip"), "AutoModel"),  # of pairs, not of images alone
}
BATCH, LENGTH = 4, 64
CONFIG = "config.json"
IMAGE = 224  # height and width where the configuration has none
MAIN = ("pixel_values", "pixel_values_videos", "input_ids", "input_values", "input_features")


def hugging_face(name: str, batch: int = BATCH, length: int = LENGTH, **options: Any) -> Workload:
    """Return a model of the `transformers` package, made from its configuration.

    Args:
        name: A model type ("gpt2"), a known size ("gpt2-xl"), the path of a `config.json` or of a
            local folder that has one, as a checkpoint's; its weights are not read.
        batch: Examples in a step.
        length: Tokens of an example (images have the size of the configuration).
        **options: Fields of the configuration that are to differ, such as `n_layer=4`.

    Returns:
        The workload; its loss is the model's own where its head has one.

    Raises:
        InputError: an unknown name or field.
    """
    config = configuration(name, options)
    try:
        model = _model(config)
        inputs = _inputs(model, config, batch, length)
    except (GnnplaceError, MemoryError):
        raise
    except Exception as error:  # of transformers' models, which check few of their fields
        told = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise InputError(f"hf:{name}: transformers makes no model of it: {told}") from None
    called = name if _file(name) is None else type(model).__name__
    return Workload(called, model.train(), inputs)


def configuration(name: str, options: dict[str, Any]) -> Any:
    """The configuration of `transformers` that a name and fields make; see `hugging_face`."""
    from transformers import AutoConfig

    path = _file(name)
    kind, fields = KNOWN.get(name, (name, {})) if path is None else _read(path, name)
    try:
        config = AutoConfig.for_model(kind)
    except (ValueError, KeyError):
        raise InputError(_unknown(name, kind)) from None
    unknown = [k for k in options if not hasattr(config, k) and k not in READ.get(kind, ())]
    if unknown:
        near = suggestion(unknown[0], config.to_dict())
        raise InputError(f"hf:{name}: the configuration has no field {unknown[0]!r}{near}")
    try:
        config = AutoConfig.for_model(kind, **{**fields, **options, "use_cache": False})
    except Exception as error:  # of transformers' own checks, in several lines
        told = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"hf:{name}: {told[-1].strip().removeprefix('TypeError: ')}") from None
    if getattr(config, "num_experts_per_tok", 0) is None:
        raise InputError(
            f"hf:{name}: the configuration has no num_experts_per_tok, how many experts a token "
            f"has: hf:{name}?num_experts_per_tok=6"
        )
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0  # otherwise set by what generates text
    return config


def _file(name: str) -> Path | None:
    """Return the configuration's file, where a name is a path; None for a name of a model.

    Raises:
        InputError: a folder without ``config.json``.
    """
    path = Path(name).expanduser()
    if name.endswith(".json"):
        return path
    if not path.is_dir():
        return None
    if not (path / CONFIG).is_file():
        raise InputError(f"hf:{name}: the folder has no {CONFIG}; give one that has, or a name")
    return path / CONFIG


def _read(path: Path, name: str) -> tuple[str, dict[str, Any]]:
    """Model type and fields of a configuration's file.

    Raises:
        FormatError: the file cannot be read.
        InputError: it names no model type.
    """
    fields = read_json(path)
    kind = fields.pop("model_type", None) if isinstance(fields, dict) else None
    if not isinstance(kind, str):
        raise InputError(f'hf:{name}: {path} names no model_type, as in {{"model_type": "gpt2"}}')
    return kind, fields


def _unknown(name: str, kind: str) -> str:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    plain = kind.rpartition("/")[2]
    near = suggestion(plain, [*KNOWN, *CONFIG_MAPPING]) or suggestion(
        plain.partition("-")[0], CONFIG_MAPPING
    )
    return (
        f"hf:{name}: no such configuration{near or ';'} nothing is downloaded: use a model type of "
        f"transformers such as 'gpt2', one of {', '.join(KNOWN)}, or a local folder with a "
        f"{CONFIG}"
    )


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


def _inputs(model: nn.Module, config: Any, batch: int, length: int) -> dict[str, Any]:
    try:
        return _random_inputs(model, config, batch, length)
    except AttributeError as error:
        raise InputError(
            f"hf:{config.model_type}: no example inputs are known for it ({error}); write a "
            "callable that returns (model, inputs) and give it as module:callable"
        ) from None


def _random_inputs(model: nn.Module, config: Any, batch: int, length: int) -> dict[str, Any]:
    random, main = generator(0), getattr(model, "main_input_name", "input_ids")
    taken = inspect.signature(model.forward).parameters
    if main not in MAIN or main not in taken:
        raise AttributeError(f"its main input is {main!r}")
    if "return_loss" in taken and hasattr(config, "vision_config"):  # pairs of image and text
        return {
            "pixel_values": torch.randn(_image(config.vision_config, batch), generator=random),
            "input_ids": _words(config.text_config, batch, length, random),
            "return_loss": True,
        }
    if main in ("input_values", "input_features"):
        shape = (batch, *_sound(config, main, length))
        return {main: torch.randn(shape, generator=random)}
    if main.startswith("pixel_values"):
        inputs = {main: torch.randn(_image(config, batch), generator=random)}
        count = max(2, getattr(config, "num_labels", 2))
        labels = torch.randint(count, (batch,), generator=random)
    else:
        words = _words(config, batch, length, random)
        inputs, labels = {"input_ids": words}, words
    named = any(part in type(model).__name__ for part in ("For", "LMHead", "MTModel"))
    if named and "labels" in taken:
        inputs["labels"] = labels.clone()
    return inputs


def _image(config: Any, batch: int) -> tuple[int, ...]:
    """Return the shape of images; of videos where the configuration counts their frames."""
    size = getattr(config, "image_size", getattr(config, "crop_size", IMAGE))
    frames = [
        getattr(config, key) for key in ("num_frames", "frames_per_clip") if hasattr(config, key)
    ]
    channels = getattr(config, "num_channels", getattr(config, "in_chans", None))
    if channels is None:
        raise AttributeError("its configuration says no number of channels")
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return (batch, *frames[:1], channels, height, width)


def _words(config: Any, batch: int, length: int, random: torch.Generator) -> torch.Tensor:
    return torch.randint(config.vocab_size, (batch, length), generator=random)


def _sound(config: Any, main: str, length: int) -> tuple[int, ...]:
    """Return the shape of a sound: samples that make `length` frames, or a spectrogram.

    Raises:
        AttributeError: the configuration says neither.
    """
    if hasattr(config, "conv_stride") and main == "input_values":
        samples = length
        for kernel, stride in reversed([*zip(config.conv_kernel, config.conv_stride, strict=True)]):
            samples = (samples - 1) * stride + kernel  # of a convolution without padding
        return (samples,)
    if hasattr(config, "num_mel_bins"):
        return (config.max_length, config.num_mel_bins)
    if main == "input_features" and hasattr(config, "feature_projection_input_dim"):
        return (length, config.feature_projection_input_dim)
    raise AttributeError(f"its configuration says no size of {main!r}")
