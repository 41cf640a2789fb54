"""Hugging Face configurations with random weights; nothing is downloaded."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gnnplace.errors import GnnplaceError, InputError, suggestion
from gnnplace.files import read_json
from gnnplace.foreign import naming_extras
from gnnplace.models import find_model, nearest_names, require_planned
from gnnplace.transformers_names import has_model_for, make_model
from gnnplace.zoo.targets import add_targets, set_problem
from gnnplace.zoo.workload import Workload, generator

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

READ: Mapping[str, tuple[str, ...]] = {"qwen3_moe": ("head_dim",)}
"""Fields that a model reads and its configuration does not declare."""
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
    # Models of pairs, not of images alone.
    **dict.fromkeys(("clip", "metaclip_2", "siglip"), "AutoModel"),
}
QUANTIZED = ("quantization_config", "compression_config")
"""Fields that say that weights are stored with fewer bits."""
DOES_NOT_FIT = (KeyError, AttributeError, IndexError, AssertionError, TypeError)
"""What transformers' classes raise where fields do not fit each other and nothing checks them."""
TRANSFORMERS_BATCH = 4
TRANSFORMERS_LENGTH = 64
CONFIG = "config.json"
IMAGE = 224  # height and width where the configuration has none
MAIN = (
    "pixel_values",
    "pixel_values_videos",
    "input_ids",
    "input_values",
    "input_features",
)


def hugging_face(
    name: str,
    batch: int = TRANSFORMERS_BATCH,
    length: int = TRANSFORMERS_LENGTH,
    **options: object,
) -> Workload:
    """Return a model of the `transformers` package, made from its configuration.

    Args:
        name: A model type ("gpt2"), a name of the catalogue ("gpt2-xl"), the path of a
            `config.json` or of a local folder that has one, as a checkpoint's; its weights are not
            read. The model is of the class that `architectures` names, or of the type's usual one.
        batch: Examples in a step.
        length: Tokens of an example (images have the size of the configuration).
        **options: Fields of the configuration that are to differ, such as `n_layer=4`.

    Returns:
        The workload; its loss is the model's own where its head has one.

    Raises:
        InputError: an unknown name, field or class, quantized weights, or a class that learns from
            what is not known here.
    """
    config = transformers_config(name, options)
    try:
        model = _model(config)
        inputs = _inputs(model, model.config, batch, length)
    except (GnnplaceError, MemoryError):
        raise
    except Exception as error:
        # Models of transformers check few of their fields and may raise anything.
        raise InputError(
            f"hf:{name}: transformers makes no model of it: {_find_reason(name, config, error)}"
        ) from None
    if _file(name) is None:
        called = name
    else:
        called = type(model).__name__
    return Workload(called, model.train(), inputs)


def _null_sizes(fields: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the sizes of a configuration, and of its parts, that are null."""
    for key, value in fields.items():
        if isinstance(value, dict) and key.endswith("_config"):
            yield from _null_sizes(value, f"{path}{key}.")
        elif value is None and key.endswith("_size"):
            yield f"{path}{key}"


def _find_reason(name: str, config: PreTrainedConfig, error: Exception) -> str:
    """Return why transformers makes no model of a configuration, null fields by their names."""
    if "NoneType" not in str(error) or not isinstance(
        error, TypeError | AttributeError
    ):
        return _reason(error)
    sizes = [
        size
        for size in _null_sizes(config.to_dict())
        if not size.endswith("chunk_size")
    ]
    if not sizes:
        return "a field that it needs is null; give it a value, or the path of a whole config.json"
    if "." not in sizes[0]:
        example = f", as in hf:{name}?{sizes[0]}=64"
    else:
        example = ""
    return (
        f"its configuration has no {' and no '.join(sizes)}; give it a number{example}"
    )


def _reason(error: Exception) -> str:
    """Return what an error of transformers says, without Python's name for its kind."""
    text = " ".join(str(error).split())[:300]
    if isinstance(error, DOES_NOT_FIT) or not text:
        return f"a field is missing or does not fit another ({text or 'it does not say which'})"
    return re.sub(r"\b[A-Z]\w*Error: ", "", text)


def transformers_config(name: str, options: dict[str, Any]) -> PreTrainedConfig:
    """Return the configuration of `transformers` that a name and fields make.

    Raises:
        InputError: as `hugging_face`, of names, fields and quantized weights.
    """
    try:
        with naming_extras():
            return _configuration(name, options)
    except GnnplaceError:
        raise
    except Exception as error:
        # Checks of transformers have exception types of their own.
        raise InputError(
            f"hf:{name}: transformers makes no configuration of it: {_reason(error)}"
        ) from None


def _configuration(name: str, options: dict[str, Any]) -> PreTrainedConfig:
    from transformers import AutoConfig

    path = _file(name)
    row = find_model(name) if path is None else None
    if row is not None:
        require_planned(row)
        kind = row.type
        fields = dict(row.config)
    else:
        kind, fields = (name, {}) if path is None else _read(path, name)
    try:
        config = AutoConfig.for_model(kind)
    except (ValueError, KeyError):
        raise InputError(_unknown(name, kind)) from None
    optional = (*READ.get(kind, ()), *QUANTIZED)
    unknown = [k for k in options if not hasattr(config, k) and k not in optional]
    if unknown:
        near = suggestion(unknown[0], config.to_dict())
        raise InputError(
            f"hf:{name}: the configuration has no field {unknown[0]!r}{near}"
        )
    # The catalogue and people call fields as most types do; a type may have names of its own.
    own_names = config.attribute_map
    merged: dict[str, Any] = {}
    for key, value in (*fields.items(), *options.items()):
        merged[own_names.get(key, key)] = value
    fields = {**merged, "use_cache": False}
    _check_weights(name, fields)
    if isinstance(fields.get("architectures"), str):
        fields["architectures"] = [fields["architectures"]]
    try:
        config = AutoConfig.for_model(kind, **fields)
    except (KeyError, AttributeError, IndexError, AssertionError):
        raise
    except Exception as error:  # in several lines, of which the last says what
        lines = str(error).strip().splitlines() or [_reason(error)]
        reason = re.sub(r"\b[A-Z]\w*Error: ", "", lines[-1].strip())
        raise InputError(f"hf:{name}: {reason}") from None
    if getattr(config, "num_experts_per_tok", 0) is None:
        raise InputError(
            f"hf:{name}: the configuration has no num_experts_per_tok, how many experts a token "
            f"has: hf:{name}?num_experts_per_tok=6"
        )
    if (
        config.is_encoder_decoder
        and getattr(config, "decoder_start_token_id", None) is None
    ):
        config.decoder_start_token_id = 0  # otherwise set by what generates text
    return config


def _check_weights(name: str, fields: Mapping[str, Any], path: str = "") -> None:
    """Refuse a configuration whose weights are quantized: they are priced as they are trained.

    Args:
        name: The name of the model.
        fields: The fields of its configuration, or of a part of it.
        path: The path of that part in the configuration.

    Raises:
        InputError: naming how they are quantized.
    """
    for key, value in fields.items():
        if key in QUANTIZED and value:
            if path:
                mend = f"take {key} out of {path}"
            else:
                mend = f"add {key}=null"
            raise InputError(
                f"hf:{name}: its weights are quantized ({_quantization(value)}), and plans price "
                f"weights of 2 or 4 bytes a number; to plan it unquantized {mend}"
            )
        if isinstance(value, dict) and key.endswith("_config") and key not in QUANTIZED:
            _check_weights(name, value, f"{path}.{key}" if path else key)


def _quantization(value: object) -> str:
    """Return the method and the bits of a `quantization_config`."""
    if not isinstance(value, dict):
        return "as it says"
    method = str(value.get("quant_method", "unknown method"))
    bits = next(
        (value[key] for key in ("bits", "w_bit", "nbits") if key in value), None
    )
    for key, width in (("load_in_8bit", 8), ("load_in_4bit", 4)):
        if value.get(key):
            bits = width
    if bits is None:
        return method
    return f"{method}, {bits} bits"


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
        raise InputError(
            f"hf:{name}: the folder has no {CONFIG}; give one that has, or a name"
        )
    return path / CONFIG


def _read(path: Path, name: str) -> tuple[str, dict[str, Any]]:
    """Return the model type and the fields of a configuration's file.

    Raises:
        FormatError: the file cannot be read.
        InputError: it names no model type.
    """
    fields = read_json(path)
    if isinstance(fields, dict):
        kind = fields.pop("model_type", None)
    else:
        kind = None
    if not isinstance(kind, str):
        raise InputError(
            f'hf:{name}: {path} names no model_type, as in {{"model_type": "gpt2"}}'
        )
    return kind, fields


def _unknown(name: str, kind: str) -> str:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    plain = kind.rpartition("/")[2]
    near = suggestion(plain, CONFIG_MAPPING) or suggestion(
        plain.partition("-")[0], CONFIG_MAPPING
    )
    nearest = nearest_names(kind)
    if nearest:
        listed = f"; the nearest names are {', '.join(nearest)}"
    else:
        listed = near
    return (
        f"hf:{name}: no such configuration{listed or ''}; nothing is downloaded: use a name of the "
        "catalogue, a model type of transformers such as 'gpt2', or a local folder with a "
        f"{CONFIG}"
    )


def _model(config: PreTrainedConfig) -> PreTrainedModel:
    """Return the model of the class that a configuration names, or of its type's usual one.

    Raises:
        InputError: transformers has no such class.
    """
    model = _made_model(config)
    set_problem(model.config, type(model).__name__)
    if getattr(model, "loss_type", "") is None:
        model.loss_type = "ForCausalLM"  # its default, but it warns that it is
    return model


def _made_model(config: PreTrainedConfig) -> PreTrainedModel:
    import transformers

    if config.architectures:
        return make_model(_named_class(config, str(config.architectures[0])), config)
    config.architectures = []  # None is no list where a type has several classes for a head
    first = PREFERRED.get(config.model_type)
    if config.is_encoder_decoder:
        first = "AutoModelForSeq2SeqLM"
    for head in (first, *HEADS) if first else HEADS:
        factory = getattr(transformers, head)
        if has_model_for(factory, config):
            return factory.from_config(config)
    raise InputError(f"hf:{config.model_type}: transformers has no model for it")


def _named_class(config: PreTrainedConfig, name: str) -> type[PreTrainedModel]:
    """Return the class of transformers that `architectures` names.

    Raises:
        InputError: there is none, or it is of another model type.
    """
    import transformers

    model_class = getattr(transformers, name, None)
    is_model = isinstance(model_class, type) and issubclass(
        model_class, transformers.PreTrainedModel
    )
    if not is_model:
        owner = f"{config.model_type.replace('_', '').replace('-', '')}"
        names = [
            class_name
            for class_name in dir(transformers)
            if class_name.lower().startswith(owner)
        ]
        names = [
            class_name
            for class_name in names
            if class_name.endswith("Model") or "For" in class_name
        ]
        raise InputError(
            f"hf:{config.model_type}: architectures names {name}, which transformers "
            f"{transformers.__version__} does not have{suggestion(name, names)}; code beside a "
            "configuration is not run: write a callable that returns (model, inputs)"
        )
    assert isinstance(model_class, type)
    config_class = getattr(model_class, "config_class", None)
    if config_class is None or not isinstance(config, config_class):
        wanted = getattr(config_class, "model_type", "no") or "no"
        raise InputError(
            f"hf:{config.model_type}: architectures names {name}, a class of model type {wanted!r}"
            f", and model_type is {config.model_type!r}; make the two one"
        )
    return model_class


def _inputs(
    model: nn.Module, config: PreTrainedConfig, batch: int, length: int
) -> dict[str, Any]:
    try:
        return _random_inputs(model, config, batch, length)
    except AttributeError as error:
        raise InputError(
            f"hf:{config.model_type}: no example inputs are known for it ({error}); write a "
            "callable that returns (model, inputs) and give it as module:callable"
        ) from None


def _random_inputs(
    model: nn.Module, config: PreTrainedConfig, batch: int, length: int
) -> dict[str, Any]:
    random = generator(0)
    main = getattr(model, "main_input_name", "input_ids")
    taken = inspect.signature(model.forward).parameters
    if main not in MAIN or main not in taken:
        raise AttributeError(f"its main input is {main!r}")
    # Models of pairs of images and texts.
    if "return_loss" in taken and hasattr(config, "vision_config"):
        return {
            "pixel_values": torch.randn(
                _image(config.vision_config, batch), generator=random
            ),
            "input_ids": _words(config.text_config, batch, length, random),
            "return_loss": True,
        }
    if main in ("input_values", "input_features"):
        shape = (batch, *_sound(config, main, length))
        inputs = {main: torch.randn(shape, generator=random)}
    elif main.startswith("pixel_values"):
        images = getattr(config, "vision_config", None) or config
        inputs = {main: torch.randn(_image(images, batch), generator=random)}
    else:
        inputs = {"input_ids": _words(config, batch, length, random)}
    if config.is_encoder_decoder and type(model).__name__.endswith(
        "ForSequenceClassification"
    ):
        inputs[main] = _ended(inputs[main], config)
    if main == "input_features" and hasattr(config, "max_target_positions"):
        inputs["labels"] = _words(config, batch, config.max_target_positions, random)
    add_targets(inputs, model, config, random)
    return inputs


def _ended(words: torch.Tensor, config: PreTrainedConfig) -> torch.Tensor:
    """Return examples that have the token of the end once, as the last."""
    end = config.eos_token_id
    words = torch.where(words == end, (end + 1) % config.vocab_size, words)
    words[:, -1] = end
    return words


def _image(config: object, batch: int) -> tuple[int, ...]:
    """Return the shape of images; of videos where the configuration counts their frames."""
    size = getattr(config, "image_size", getattr(config, "crop_size", IMAGE))
    frames = [
        getattr(config, key)
        for key in ("num_frames", "frames_per_clip")
        if hasattr(config, key)
    ]
    channels = getattr(config, "num_channels", getattr(config, "in_chans", None))
    if channels is None:
        raise AttributeError("its configuration says no number of channels")
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return (batch, *frames[:1], channels, height, width)


def _words(
    config: object, batch: int, length: int, random: torch.Generator
) -> torch.Tensor:
    vocabulary = getattr(config, "vocab_size", None)
    if vocabulary is None:
        raise AttributeError(
            "its configuration says no vocabulary; it reads more than text"
        )
    return torch.randint(vocabulary, (batch, length), generator=random)


def _sound(config: PreTrainedConfig, main: str, length: int) -> tuple[int, ...]:
    """Return the shape of a sound: samples that make `length` frames, or a spectrogram.

    Raises:
        AttributeError: the configuration says neither.
    """
    if hasattr(config, "conv_stride") and main == "input_values":
        samples = length
        for kernel, stride in reversed(
            [*zip(config.conv_kernel, config.conv_stride, strict=True)]
        ):
            # The samples that a convolution without padding needs.
            samples = (samples - 1) * stride + kernel
        return (samples,)
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
        # A convolution halves the length.
        return (config.num_mel_bins, 2 * config.max_source_positions)
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        return (config.max_length, config.num_mel_bins)
    if main == "input_features" and hasattr(config, "feature_projection_input_dim"):
        return (length, config.feature_projection_input_dim)
    raise AttributeError(f"its configuration says no size of {main!r}")
