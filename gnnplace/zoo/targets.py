"""What the classes of transformers learn from: example targets by the end of a class's name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PretrainedConfig

CHOICES = 2  # answers that a multiple-choice head chooses from
FRAMES_PER_LETTER = 4  # Frames of a sound for each letter, for heads with CTC
LANGUAGE = (
    "ForCausalLM",
    "ForMaskedLM",
    "LMHeadModel",
    "MTModel",
    "ForConditionalGeneration",
)
ONE_LABEL = (
    "ForSequenceClassification",
    "ForImageClassification",
    "ForVideoClassification",
    "ForAudioClassification",
    "ForXVector",
)
REPLACED_TOKENS = ("ElectraForPreTraining", "FunnelForPreTraining")
WITHOUT_LOSS = ("Backbone", "Encoder", "Decoder", "WithProjection", "WithTeacher")


def add_targets(
    inputs: dict[str, Any],
    model: nn.Module,
    config: PretrainedConfig,
    random: torch.Generator,
) -> None:
    """Add what a model's head is trained on to its example inputs, in place.

    Args:
        inputs: without targets; the main one has the batch first. The tokens of a multiple choice
            get one more axis.
        model: A model of transformers.
        config: its configuration.
        random: The generator of the targets.

    Raises:
        AttributeError: the head learns from what is not known here, or needs further inputs.
    """
    name = type(model).__name__
    accepted = inspect.signature(model.forward).parameters
    targets = _make_example_targets(name, inputs, config, random)
    if targets is None:
        targets = _make_position_targets(name, inputs, config, random)
    if targets is None and "labels" in accepted and "input_ids" in inputs:
        targets = _make_language_targets(name, inputs["input_ids"], accepted, random)
    learns = ("For" in name or "Heads" in name) and not name.endswith(WITHOUT_LOSS)
    if targets is None and learns and "labels" not in inputs:
        raise AttributeError(f"no targets are known that {name} learns from")
    if targets is not None and not targets.keys() <= accepted.keys():
        missing = next(key for key in targets if key not in accepted)
        raise AttributeError(f"{name} takes no {missing!r}")
    inputs.update(targets or {})
    _check_complete(name, accepted.values(), inputs)


def _make_example_targets(
    name: str, inputs: dict[str, Any], config: PretrainedConfig, random: torch.Generator
) -> dict[str, Any] | None:
    """Return one target an example; None for a head that learns otherwise."""
    main = next(iter(inputs.values()))
    batch = main.shape[0]
    if name.endswith("ForMultipleChoice"):
        return {
            "input_ids": main.unsqueeze(1).repeat(1, CHOICES, 1),
            "labels": torch.randint(CHOICES, (batch,), generator=random),
        }
    if name.endswith("ForQuestionAnswering"):
        ends = torch.randint(main.shape[1], (2, batch), generator=random)
        return {"start_positions": ends[0], "end_positions": ends[1]}
    if name.endswith(ONE_LABEL):
        return {"labels": _class_labels(config, batch, random)}
    if name.endswith("ForNextSentencePrediction"):
        return {"labels": torch.randint(2, (batch,), generator=random)}
    if name.endswith("ForCTC"):
        return {"labels": _letters(config, main, random)}
    return None


def _make_position_targets(
    name: str, inputs: dict[str, Any], config: PretrainedConfig, random: torch.Generator
) -> dict[str, Any] | None:
    """Return a class for each token or pixel; None for a head that learns otherwise."""
    main = next(iter(inputs.values()))
    count = max(1, config.num_labels or 1)
    if name.endswith("ForTokenClassification"):
        shape = tuple(main.shape[:2])
        return {"labels": torch.randint(count, shape, generator=random)}
    if name.endswith("ForSemanticSegmentation"):
        shape = (main.shape[0], *main.shape[-2:])
        return {"labels": torch.randint(count, shape, generator=random)}
    if name in REPLACED_TOKENS:
        return {"labels": torch.randint(2, tuple(main.shape), generator=random)}
    return None


def _make_language_targets(
    name: str, words: torch.Tensor, accepted: Mapping[str, Any], random: torch.Generator
) -> dict[str, Any] | None:
    """Return the words themselves, and whether sentences follow; None for another head."""
    if name.endswith(LANGUAGE):
        return {"labels": words.clone()}
    pairs = [
        key
        for key in ("next_sentence_label", "sentence_order_label")
        if key in accepted
    ]
    if not name.endswith("ForPreTraining"):
        return None
    targets = {"labels": words.clone()}
    for key in pairs:
        shape = (words.shape[0],)
        targets[key] = torch.randint(2, shape, generator=random)
    return targets


def _class_labels(
    config: PretrainedConfig, batch: int, random: torch.Generator
) -> torch.Tensor:
    """Return a class an example, or numbers where the head's problem has these."""
    if config.problem_type == "regression":
        shape = (batch,) if config.num_labels == 1 else (batch, config.num_labels)
        return torch.randn(shape, generator=random)
    if config.problem_type == "multi_label_classification":
        return torch.randint(2, (batch, config.num_labels), generator=random).float()
    return torch.randint(max(1, config.num_labels), (batch,), generator=random)


def _letters(
    config: PretrainedConfig, main: torch.Tensor, random: torch.Generator
) -> torch.Tensor:
    """Return letters of a sound, fewer than its frames; none is the blank."""
    frames = main.shape[1]
    if hasattr(config, "conv_stride"):
        for kernel, stride in zip(config.conv_kernel, config.conv_stride, strict=True):
            frames = (frames - kernel) // stride + 1
    shape = (main.shape[0], max(1, frames // FRAMES_PER_LETTER))
    letters = torch.randint(config.vocab_size - 1, shape, generator=random)
    blank = config.pad_token_id or 0
    return letters + (letters >= blank)


def _check_complete(
    name: str, accepted: Iterable[inspect.Parameter], inputs: dict[str, Any]
) -> None:
    """Refuse a class whose forward needs an input that is not among the examples.

    Raises:
        AttributeError: naming the input.
    """
    for parameter in accepted:
        is_named = parameter.kind in (
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        )
        if (
            is_named
            and parameter.default is parameter.empty
            and parameter.name not in inputs
        ):
            raise AttributeError(f"{name} needs {parameter.name!r}")


def set_problem(config: PretrainedConfig, name: str) -> None:
    """Set what a classifier asks for in its first pass: the kind of its problem, and a padding.

    Args:
        config: The model's configuration, which is changed in place.
        name: The name of the model's class.
    """
    if not name.endswith(ONE_LABEL):
        return
    if config.problem_type is None and config.num_labels is not None:
        is_number = config.num_labels == 1
        if is_number:
            config.problem_type = "regression"
        else:
            config.problem_type = "single_label_classification"
    text_config = config.get_text_config()
    has_padding = getattr(text_config, "pad_token_id", None) is not None
    if name.endswith("ForSequenceClassification") and not has_padding:
        end = getattr(text_config, "eos_token_id", None)
        if isinstance(end, int):
            text_config.pad_token_id = end
        else:
            text_config.pad_token_id = 0
