"""Builds models of `transformers` from their configurations, with random weights.

Nothing is downloaded, and no weights are read. A model is named by its model type ("gpt2"), by a
name of the catalogue ("gpt2-xl"), or by the path of a ``config.json``. Example inputs are random
numbers of the kind that the model reads: words, images, sounds, or images with words.
"""

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
from gnnplace.zoo.workload import Workload, make_generator

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

READ: Mapping[str, tuple[str, ...]] = {"qwen3_moe": ("head_dim",)}
"""Fields that a model reads although its configuration does not declare them, by model type."""
HEADS = (
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForMaskedLM",
    "AutoModelForImageClassification",
    "AutoModel",
)
"""Auto classes of transformers, in the order in which they are tried."""
PREFERRED = {
    "bert": "AutoModelForMaskedLM",
    "vit": "AutoModelForImageClassification",
    # These learn from pairs of images and texts. The classes above have the images alone.
    **dict.fromkeys(("clip", "metaclip_2", "siglip"), "AutoModel"),
}
"""The auto class that is tried first, by model type."""
QUANTIZED = ("quantization_config", "compression_config")
"""Fields which say that weights are stored with fewer bits."""
DOES_NOT_FIT = (KeyError, AttributeError, IndexError, AssertionError, TypeError)
"""Errors that transformers raises if fields do not fit each other and nothing has checked it."""
LONGEST_REASON = 300
"""Characters of an error of transformers that a message repeats, at most."""
TRANSFORMERS_BATCH = 4
"""Examples in a step by default."""
TRANSFORMERS_LENGTH = 64
"""Tokens of an example by default."""
CONFIG = "config.json"
IMAGE = 224
"""Height and width of images if the configuration has none, in pixels."""
MAIN = (
    "pixel_values",
    "pixel_values_videos",
    "input_ids",
    "input_values",
    "input_features",
)
"""Names of the main input for which example inputs can be made."""


def hugging_face(
    name: str,
    batch: int = TRANSFORMERS_BATCH,
    length: int = TRANSFORMERS_LENGTH,
    **options: object,
) -> Workload:
    """Return a model of the `transformers` package, made from its configuration.

    The model is of the class that the configuration's `architectures` names, or of the usual class
    of its model type.

    Args:
        name: A model type ("gpt2"), a name of the catalogue ("gpt2-xl"), or the path of a
            `config.json` or of a local folder with one, such as that of a checkpoint, whose weights
            are not read.
        batch: Examples in a step.
        length: Tokens of an example. Images have the size that the configuration says.
        **options: Fields of the configuration to change, such as `n_layer=4`.

    Returns:
        The workload. If the model's head has a loss of its own, that is the loss.

    Raises:
        InputError: If a name, field or class is unknown, weights are quantized, or no example
            inputs are known for the class.
    """
    config = transformers_config(name, options)
    try:
        model = _make_model(config)
        inputs = _make_inputs(model, model.config, batch, length)
    except (GnnplaceError, MemoryError):
        raise
    except Exception as error:
        # Models of transformers check few of their fields, and may raise anything.
        raise InputError(
            f"hf:{name}: transformers makes no model of it: {_find_reason(name, config, error)}"
        ) from None
    if _find_config_file(name) is None:
        workload_name = name
    else:
        workload_name = type(model).__name__
    return Workload(workload_name, model.train(), inputs)


def _list_null_sizes(fields: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the sizes of a configuration and of its parts that are null, as "text_config.x_size".

    Args:
        fields: Fields of the configuration, or of a part of it.
        path: Path of that part, with a dot at its end; empty for the configuration itself.
    """
    for key, value in fields.items():
        if isinstance(value, dict) and key.endswith("_config"):
            yield from _list_null_sizes(value, f"{path}{key}.")
        elif value is None and key.endswith("_size"):
            yield f"{path}{key}"


def _find_reason(name: str, config: PreTrainedConfig, error: Exception) -> str:
    """Return why transformers makes no model of a configuration.

    An error about `None` names no field, so the sizes that are null are named.

    Args:
        name: The name of the model, for an example of what to type.
        config: The configuration.
        error: What transformers raised.
    """
    is_about_none = "NoneType" in str(error)
    if not is_about_none or not isinstance(error, TypeError | AttributeError):
        return _describe_error(error)
    # A chunk's size may be null: it then means that there are no chunks.
    sizes = [
        size
        for size in _list_null_sizes(config.to_dict())
        if not size.endswith("chunk_size")
    ]
    if not sizes:
        return (
            "a field that it needs is null; give it a value, or give the path of a complete "
            "config.json"
        )
    if "." not in sizes[0]:
        example = f", as in hf:{name}?{sizes[0]}=64"
    else:
        example = ""
    return (
        f"its configuration has no {' and no '.join(sizes)}; give it a number{example}"
    )


def _describe_error(error: Exception) -> str:
    """Return the text of an error of transformers in one line, without names of Python's errors."""
    text = " ".join(str(error).split())[:LONGEST_REASON]
    if isinstance(error, DOES_NOT_FIT) or not text:
        return f"a field is missing or does not fit another ({text or 'it does not say which'})"
    return re.sub(r"\b[A-Z]\w*Error: ", "", text)


def transformers_config(name: str, options: dict[str, Any]) -> PreTrainedConfig:
    """Return the configuration of `transformers` that a name and fields make.

    Args:
        name: The name, as `hugging_face` takes it.
        options: Fields to change.

    Raises:
        InputError: If a name or a field is unknown or wrong, or weights are quantized.
    """
    try:
        with naming_extras():
            return _make_configuration(name, options)
    except GnnplaceError:
        raise
    except Exception as error:
        # The checks of transformers have exception types of their own.
        raise InputError(
            f"hf:{name}: transformers makes no configuration of it: {_describe_error(error)}"
        ) from None


def _make_configuration(name: str, options: dict[str, Any]) -> PreTrainedConfig:
    """Return the configuration as `transformers_config`. It may raise what transformers raises."""
    from transformers import AutoConfig

    model_type, fields = _find_fields(name)
    try:
        config = AutoConfig.for_model(model_type)
    except (ValueError, KeyError):
        raise InputError(_describe_unknown(name, model_type)) from None
    optional = (*READ.get(model_type, ()), *QUANTIZED)
    unknown = [
        key for key in options if not hasattr(config, key) and key not in optional
    ]
    if unknown:
        near = suggestion(unknown[0], config.to_dict())
        raise InputError(
            f"hf:{name}: the configuration has no field {unknown[0]!r}{near}"
        )
    # The catalogue and people use the names that most types have. A type may have others.
    type_names = config.attribute_map
    merged: dict[str, Any] = {}
    for key, value in (*fields.items(), *options.items()):
        merged[type_names.get(key, key)] = value
    fields = {**merged, "use_cache": False}
    _check_weights(name, fields)
    if isinstance(fields.get("architectures"), str):
        fields["architectures"] = [fields["architectures"]]
    try:
        config = AutoConfig.for_model(model_type, **fields)
    except (KeyError, AttributeError, IndexError, AssertionError):
        raise
    except Exception as error:
        # The text has several lines, of which the last one says what is wrong.
        lines = str(error).strip().splitlines() or [_describe_error(error)]
        reason = re.sub(r"\b[A-Z]\w*Error: ", "", lines[-1].strip())
        raise InputError(f"hf:{name}: {reason}") from None
    if getattr(config, "num_experts_per_tok", 0) is None:
        raise InputError(
            f"hf:{name}: the configuration has no num_experts_per_tok, how many experts a token "
            f"has: add it, as in hf:{name}?num_experts_per_tok=6"
        )
    if (
        config.is_encoder_decoder
        and getattr(config, "decoder_start_token_id", None) is None
    ):
        # Training needs a token that shifted targets begin with; only code that generates text
        # would set it.
        config.decoder_start_token_id = 0
    return config


def _find_fields(name: str) -> tuple[str, dict[str, Any]]:
    """Return the model type that a name means, and the fields that differ from its defaults.

    A name is that of a file, else of a model of the catalogue, else a model type.

    Raises:
        FormatError: If a file cannot be read.
        InputError: If a file names no model type, or no plan can be made for the model.
    """
    path = _find_config_file(name)
    if path is not None:
        return _read_config_file(path, name)
    model = find_model(name)
    if model is None:
        return name, {}
    require_planned(model)
    return model.type, dict(model.config)


def _check_weights(name: str, fields: Mapping[str, Any], path: str = "") -> None:
    """Check that the weights of a configuration are not quantized.

    Args:
        name: The name of the model.
        fields: Fields of its configuration, or of a part of it.
        path: Path of that part in the configuration; empty for the configuration itself.

    Raises:
        InputError: If they are; the message says how.
    """
    for key, value in fields.items():
        if key in QUANTIZED and value:
            if path:
                remedy = f"take {key} out of {path}"
            else:
                remedy = f"add {key}=null"
            method = _describe_quantization(value)
            raise InputError(
                f"hf:{name}: its weights are quantized ({method}), and plans price weights of 2 or "
                f"4 bytes a number; to plan it unquantized {remedy}"
            )
        if isinstance(value, dict) and key.endswith("_config") and key not in QUANTIZED:
            _check_weights(name, value, f"{path}.{key}" if path else key)


def _describe_quantization(value: object) -> str:
    """Return the method and the bits of a `quantization_config`, as "gptq, 4 bits"."""
    if not isinstance(value, dict):
        return "as it says"
    method = str(value.get("quant_method", "unknown method"))
    # Methods have names of their own for the number of bits.
    bits = None
    for key in ("nbits", "w_bit", "bits"):
        bits = value.get(key, bits)
    for key, width in (("load_in_8bit", 8), ("load_in_4bit", 4)):
        if value.get(key):
            bits = width
    if bits is None:
        return method
    return f"{method}, {bits} bits"


def _find_config_file(name: str) -> Path | None:
    """Return the configuration's file if a name is a path, else None.

    Raises:
        InputError: If the path is a folder without ``config.json``.
    """
    path = Path(name).expanduser()
    if name.endswith(".json"):
        return path
    if not path.is_dir():
        return None
    if not (path / CONFIG).is_file():
        raise InputError(
            f"hf:{name}: the folder has no {CONFIG}; give a folder with one, or a model's name"
        )
    return path / CONFIG


def _read_config_file(path: Path, name: str) -> tuple[str, dict[str, Any]]:
    """Return the model type and the fields of a configuration's file.

    Args:
        path: The file.
        name: The name that the user gave, for messages.

    Raises:
        FormatError: If the file cannot be read.
        InputError: If it names no model type.
    """
    fields = read_json(path)
    if isinstance(fields, dict):
        model_type = fields.pop("model_type", None)
    else:
        model_type = None
    if not isinstance(model_type, str):
        raise InputError(
            f'hf:{name}: {path} names no model_type, as in {{"model_type": "gpt2"}}'
        )
    return model_type, fields


def _describe_unknown(name: str, model_type: str) -> str:
    """Return the message that there is no such configuration, with names that are similar.

    Args:
        name: The name that the user gave.
        model_type: The model type that transformers does not have.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    nearest = nearest_names(model_type)
    if nearest:
        similar = f"; the nearest names are {', '.join(nearest)}"
    else:
        # Without its owner, and without its size, a name may resemble a model type.
        plain = model_type.rpartition("/")[2]
        similar = suggestion(plain, CONFIG_MAPPING)
        similar = similar or suggestion(plain.partition("-")[0], CONFIG_MAPPING)
    return (
        f"hf:{name}: no such configuration{similar or ''}; nothing is downloaded: use a name of "
        "the catalogue, a model type of transformers such as 'gpt2', or a local folder with a "
        f"{CONFIG}"
    )


def _make_model(config: PreTrainedConfig) -> PreTrainedModel:
    """Return the model of a configuration, with a kind of problem for its loss.

    Raises:
        InputError: If transformers has no class for it.
    """
    model = _make_plain_model(config)
    set_problem(model.config, type(model).__name__)
    if getattr(model, "loss_type", "") is None:
        model.loss_type = (
            "ForCausalLM"  # the default of transformers, set to avoid its warning
        )
    return model


def _make_plain_model(config: PreTrainedConfig) -> PreTrainedModel:
    """Return the model of the class that a configuration names, or of its type's usual class.

    Raises:
        InputError: If transformers has no class for it.
    """
    import transformers

    if config.architectures:
        model_class = _find_named_class(config, str(config.architectures[0]))
        return make_model(model_class, config)
    # Types with several classes for a head look into this list, which must not be None.
    config.architectures = []
    first = PREFERRED.get(config.model_type)
    if config.is_encoder_decoder:
        first = "AutoModelForSeq2SeqLM"
    for head in (first, *HEADS) if first else HEADS:
        factory = getattr(transformers, head)
        if has_model_for(factory, config):
            return factory.from_config(config)
    raise InputError(f"hf:{config.model_type}: transformers has no model for it")


def _find_named_class(config: PreTrainedConfig, name: str) -> type[PreTrainedModel]:
    """Return the class of transformers that `architectures` names.

    Args:
        config: The configuration.
        name: The name of the class.

    Raises:
        InputError: If there is no such class, or it is of another model type.
    """
    import transformers

    model_class = getattr(transformers, name, None)
    is_model = isinstance(model_class, type) and issubclass(
        model_class, transformers.PreTrainedModel
    )
    if not is_model:
        # Similar names are searched among the models of the same type.
        prefix = config.model_type.replace("_", "").replace("-", "")
        names = []
        for class_name in dir(transformers):
            is_of_type = class_name.lower().startswith(prefix)
            if is_of_type and (class_name.endswith("Model") or "For" in class_name):
                names.append(class_name)
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
            f", and model_type is {config.model_type!r}; change one of the two"
        )
    return model_class


def _make_inputs(
    model: nn.Module, config: PreTrainedConfig, batch: int, length: int
) -> dict[str, Any]:
    """Return random example inputs with targets, by name.

    Args:
        model: The model.
        config: Its configuration.
        batch: Number of examples.
        length: Tokens of an example.

    Raises:
        InputError: If it is not known what the model reads.
    """
    try:
        return _draw_inputs(model, config, batch, length)
    except AttributeError as error:
        raise InputError(
            f"hf:{config.model_type}: no example inputs are known for it ({error}); write a "
            "callable that returns (model, inputs) and give it as module:callable"
        ) from None


def _draw_inputs(
    model: nn.Module, config: PreTrainedConfig, batch: int, length: int
) -> dict[str, Any]:
    """Return random example inputs with targets; arguments as of `_make_inputs`.

    Raises:
        AttributeError: If it is not known what the model reads.
    """
    random = make_generator(0)
    main = getattr(model, "main_input_name", "input_ids")
    parameters = inspect.signature(model.forward).parameters
    if main not in MAIN or main not in parameters:
        raise AttributeError(f"its main input is {main!r}")
    # Models of pairs of images and texts: their loss compares the two.
    if "return_loss" in parameters and hasattr(config, "vision_config"):
        image_shape = _find_image_shape(config.vision_config, batch)
        return {
            "pixel_values": torch.randn(image_shape, generator=random),
            "input_ids": _draw_words(config.text_config, batch, length, random),
            "return_loss": True,
        }
    if main in ("input_values", "input_features"):
        shape = (batch, *_find_sound_shape(config, main, length))
        inputs = {main: torch.randn(shape, generator=random)}
    elif main.startswith("pixel_values"):
        image_config = getattr(config, "vision_config", None) or config
        shape = _find_image_shape(image_config, batch)
        inputs = {main: torch.randn(shape, generator=random)}
    else:
        inputs = {"input_ids": _draw_words(config, batch, length, random)}
    # Such a classifier reads the state at the end token, of which every example must have one.
    class_name = type(model).__name__
    if config.is_encoder_decoder and class_name.endswith("ForSequenceClassification"):
        inputs[main] = _end_words(inputs[main], config)
    # A model that writes down speech learns from words.
    if main == "input_features" and hasattr(config, "max_target_positions"):
        inputs["labels"] = _draw_words(
            config, batch, config.max_target_positions, random
        )
    add_targets(inputs, model, config, random)
    return inputs


def _end_words(words: torch.Tensor, config: PreTrainedConfig) -> torch.Tensor:
    """Return the examples with the end token once, as the last one. [batch, length]"""
    end = config.eos_token_id
    words = torch.where(words == end, (end + 1) % config.vocab_size, words)
    words[:, -1] = end
    return words


def _find_image_shape(config: object, batch: int) -> tuple[int, ...]:
    """Return the shape of images, or of videos if the configuration has a number of frames.

    Raises:
        AttributeError: If the configuration has no number of channels.
    """
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


def _draw_words(
    config: object, batch: int, length: int, random: torch.Generator
) -> torch.Tensor:
    """Return random words. [batch, length]

    Raises:
        AttributeError: If the configuration has no vocabulary.
    """
    vocabulary = getattr(config, "vocab_size", None)
    if vocabulary is None:
        raise AttributeError(
            "its configuration says no vocabulary; it reads more than text"
        )
    return torch.randint(vocabulary, (batch, length), generator=random)


def _find_sound_shape(
    config: PreTrainedConfig, main: str, length: int
) -> tuple[int, ...]:
    """Return the shape of one example of sound: its samples, or a spectrogram.

    Args:
        config: The configuration.
        main: The name of the input.
        length: Frames that the samples make, or frames of the spectrogram if the configuration
            does not say it.

    Raises:
        AttributeError: If the configuration says neither.
    """
    if hasattr(config, "conv_stride") and main == "input_values":
        # From the last convolution to the first: without padding, n outputs of a convolution take
        # (n - 1) x stride + kernel inputs.
        samples = length
        layers = list(zip(config.conv_kernel, config.conv_stride, strict=True))
        for kernel, stride in reversed(layers):
            samples = (samples - 1) * stride + kernel
        return (samples,)
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_source_positions"):
        # A convolution halves the length before there are positions.
        return (config.num_mel_bins, 2 * config.max_source_positions)
    if hasattr(config, "num_mel_bins") and hasattr(config, "max_length"):
        return (config.max_length, config.num_mel_bins)
    if main == "input_features" and hasattr(config, "feature_projection_input_dim"):
        return (length, config.feature_projection_input_dim)
    raise AttributeError(f"its configuration says no size of {main!r}")
