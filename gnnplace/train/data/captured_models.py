"""What the store of captured graphs is made of: models, sizes; the split by family of all graphs.

Sizes follow the models' own papers and cards ("base", "large") and smaller ones beside them; the
batch is what one device would take. All of a family is in one part of the split, so that a policy
trained on the training part has never seen any graph of a held-out family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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


def _llama(layers: int, width: int, heads: int, length: int) -> str:
    inner = width * 8 // 3
    return (
        f"hf:llama?num_hidden_layers={layers}&hidden_size={width}&intermediate_size={inner}"
        f"&num_attention_heads={heads}&num_key_value_heads={heads}&vocab_size=32000"
        f"&batch=8&length={length}"
    )


def _mixtral(layers: int, width: int, experts: int) -> str:
    return (
        f"hf:mixtral?num_hidden_layers={layers}&hidden_size={width}&intermediate_size={2 * width}"
        f"&num_attention_heads=8&num_key_value_heads=8&vocab_size=8000&num_local_experts={experts}"
        "&batch=16&length=256"
    )


def _t5(layers: int, width: int, inner: int, heads: int, length: int) -> str:
    return (
        f"hf:t5?num_layers={layers}&d_model={width}&d_ff={inner}&num_heads={heads}&d_kv=64"
        f"&vocab_size=32128&batch=16&length={length}"
    )


MODELS: tuple[CapturedModel, ...] = (
    CapturedModel("gpt2-tiny", "gpt2", "gpt2?batch=32&length=128", "sgd"),
    CapturedModel("gpt2-mini", "gpt2", "gpt2?batch=16&length=256&layers=8&width=512&heads=8"),
    CapturedModel("gpt2-small", "gpt2", "hf:gpt2?batch=8&length=512"),
    CapturedModel("gpt2-medium", "gpt2", "hf:gpt2-medium?batch=8&length=512"),
    CapturedModel("llama-tiny", "llama", _llama(2, 512, 8, 256), "sgd"),
    CapturedModel("llama-small", "llama", _llama(8, 1024, 16, 512)),
    CapturedModel("llama-medium", "llama", _llama(16, 2048, 32, 1024)),
    CapturedModel("vit-tiny", "vit", "vit?batch=32", "sgd", fake=False),
    CapturedModel("vit-small", "vit", "vit?batch=32&size=128&layers=8&width=384", fake=False),
    CapturedModel("vit-base", "vit", "hf:vit-base?batch=32", fake=False),
    CapturedModel("resnet-small", "resnet", "small_resnet?batch=64", "sgd"),
    CapturedModel("resnet50-64", "resnet", "resnet50?batch=32", "sgd"),
    CapturedModel("resnet50-224", "resnet", "resnet50?batch=32&size=224&classes=1000", "sgd"),
    CapturedModel("mlp-small", "mlp", "mlp?batch=512", "sgd"),
    CapturedModel("mlp-deep", "mlp", "mlp?batch=2048&width=1024&depth=24"),
    CapturedModel("two-tower-small", "two_tower", "two_tower", "sgd"),
    CapturedModel("two-tower-deep", "two_tower", "two_tower?batch=4096&width=512&depth=12"),
    CapturedModel("moe-small", "moe", "moe?batch=1024", "sgd"),
    CapturedModel("moe-deep", "moe", "moe?batch=4096&width=512&hidden=2048&experts=8&depth=6"),
    CapturedModel("mixtral-tiny", "moe", _mixtral(2, 512, 8)),
    CapturedModel("mixtral-small", "moe", _mixtral(8, 512, 4)),
    CapturedModel("bert-mini", "bert", "bert?batch=32&length=128", "sgd"),
    CapturedModel("bert-base", "bert", "hf:bert-base-uncased?batch=16&length=256"),
    CapturedModel("bert-large", "bert", "hf:bert-large-uncased?batch=16&length=256"),
    CapturedModel("inception-small", "inception", "inception?batch=32", "sgd"),
    CapturedModel("inception-deep", "inception", "inception?batch=32&size=96&width=64&depth=12"),
    CapturedModel("seq2seq-short", "seq2seq", "seq2seq?batch=64&length=6&width=256", "sgd"),
    CapturedModel(
        "seq2seq-long", "seq2seq", "seq2seq?batch=64&length=20&width=512&vocabulary=8000&layers=3"
    ),
    CapturedModel("t5-tiny", "t5", _t5(2, 256, 1024, 4, 128), "sgd"),
    CapturedModel("t5-small", "t5", _t5(6, 512, 2048, 8, 256)),
)
