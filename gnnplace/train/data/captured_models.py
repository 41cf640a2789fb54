"""What the store of captured graphs is made of: models, sizes; the split by family of all graphs.

Sizes follow the models' own papers and cards ("base", "large") and smaller ones beside them; the
batch is what one device would take. All of a family is in one part of the split, so that a policy
trained on the training part has never seen any graph of a held-out family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

TRAIN, VALIDATION, TEST = "train", "validation", "test"
PARTS = (TRAIN, VALIDATION, TEST)
SPLIT: Mapping[str, str] = {
    "gpt2": TRAIN,
    "llama": TRAIN,
    "vit": TRAIN,
    "resnet": TRAIN,
    "mlp": TRAIN,
    "two_tower": TRAIN,
    "moe": VALIDATION,
    "bert": TEST,
    "inception": TEST,
    "seq2seq": TEST,
    "t5": TEST,
}
# Families of the datasets beside the store (``recipes``). The policy of ``learned`` learned from
# none of them, the network of ``gnn`` from the training part.
MORE_SPLIT: Mapping[str, str] = {
    "densenet": TRAIN,
    "unet": TRAIN,
    "rnn_lm": TRAIN,
    "tagger": TRAIN,
    "wired": TRAIN,
    "fractal": TRAIN,
    "highway": TRAIN,
    "speech": TRAIN,
    "tree_lstm": TRAIN,
    "gpt_neox": TRAIN,
    "opt": TRAIN,
    "qwen2": TRAIN,
    "beit": TRAIN,
    "swin": TRAIN,
    "nasnet": VALIDATION,
    "gnmt": TEST,
    "recommender": TEST,
    "electra": TEST,
    "bart": TEST,
    "mpnet": TEST,
    "deberta": TEST,
    "searched-cnn": TEST,
    "searched-rnn": TEST,
    "nmt": TEST,
}


@dataclass(frozen=True)
class CapturedModel:
    """One graph of the store.

    Attributes:
        name: The name of the graph and its file.
        family: A key of ``SPLIT`` or of ``MORE_SPLIT``.
        spec: The model as ``gnnplace capture`` takes it.
        optimizer: What the training step updates with.
        fake: Captured without memory; False where the model's code asks for real numbers.
    """

    name: str
    family: str
    spec: str
    optimizer: str = "adamw"
    fake: bool = True

    @property
    def part(self) -> str:
        """Part of the split that the graph is in."""
        return SPLIT.get(self.family) or MORE_SPLIT[self.family]


def listed_models(recipe: str) -> tuple[CapturedModel, ...]:
    """The models of a recipe that ``models.yaml`` lists."""
    text = Path(__file__).with_name("models.yaml").read_text(encoding="utf-8")
    return tuple(CapturedModel(**row) for row in yaml.safe_load(text)[recipe])


MODELS = listed_models("store")
