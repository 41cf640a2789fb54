"""Recipes of the datasets in ``datasets/``: which models a dataset is captured from.

``networks``: families that the shipped store lacks, several sizes each. ``searched-cnn``,
``searched-rnn`` and ``nmt``: the three families of graphs that Addanki et al. (Placeto, NeurIPS
2019) and Wang et al. (2022, arXiv 2201.09676) place, ``EACH`` graphs each: CNN cells and recurrent
cells as architecture search samples them, and translation models of varied lengths and layers.
Their graphs are not public; these are drawn from the same search spaces, one seed a graph. Sizes
are drawn too (below), so that a family covers a few hundred to a few thousand ops. ``pipelines``
and ``whole``: transformers of many depths and widths, one set of families to learn from and
another, of larger graphs, to test on. ``varied``: families to learn from, in many sizes.
The sizes of ``varied`` are drawn from a graph's name: a family's function takes a source of random
numbers and gives what its model differs in; ``batch`` is drawn before, and stays where the family
does not draw its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from gnnplace.errors import InputError
from gnnplace.train.data.captured_models import MODELS, CapturedModel

Sizes = dict[str, object]
COUNTS: Mapping[str, int] = {  # models of each family; equal ones count once
    "wired": 20,
    "rnn_lm": 14,
    "tagger": 14,
    "two_tower": 6,
    "densenet": 5,
    "unet": 5,
    "fractal": 12,
    "highway": 14,
    "speech": 16,
    "tree_lstm": 14,
}
WIDTHS, VOCABULARIES = (256, 512, 1024), (2000, 8000, 32000)
EACH = 32  # graphs of a sampled family


def varied_sizes(family: str, name: str) -> str:
    """Sizes of a model of a family, as a model's spec has them behind its question mark."""
    draw = random.Random(name)
    sizes: Sizes = {"batch": draw.choice((16, 32, 64, 128))}
    sizes |= FAMILIES[family](draw)
    return "&".join(f"{key}={value}" for key, value in sizes.items())


def _wired(draw: Random) -> Sizes:
    sizes: Sizes = {"nodes": draw.randint(6, 24), "stages": draw.randint(2, 3)}
    return sizes | {"width": draw.choice((16, 32, 64)), "architecture": draw.randrange(1000)}


def _recurrent(draw: Random) -> Sizes:
    layers = draw.randint(1, 4)
    sizes: Sizes = {"layers": layers, "length": draw.randint(3, 32 // layers)}
    sizes |= {"width": draw.choice(WIDTHS), "cell": draw.choice(("lstm", "gru"))}
    return sizes | {"vocabulary": draw.choice(VOCABULARIES)}


def _two_tower(draw: Random) -> Sizes:
    sizes: Sizes = {"batch": draw.choice((512, 2048)), "hidden": draw.choice((512, 1024))}
    return sizes | {"width": draw.choice((64, 256)), "depth": draw.randint(3, 10)}


def _densenet(draw: Random) -> Sizes:
    sizes: Sizes = {"layers": draw.choice((22, 40)), "growth": draw.choice((12, 24, 32))}
    return sizes | {"size": draw.choice((32, 64))}


def _unet(draw: Random) -> Sizes:
    return {"size": 64, "width": draw.choice((16, 32, 64)), "depth": draw.randint(3, 5)}


def _fractal(draw: Random) -> Sizes:
    sizes: Sizes = {"columns": draw.randint(2, 4), "stages": draw.randint(2, 4)}
    return sizes | {"width": draw.choice((16, 32, 64))}


def _highway(draw: Random) -> Sizes:
    layers, depth = draw.randint(1, 3), draw.randint(2, 8)
    sizes: Sizes = {"layers": layers, "depth": depth, "width": draw.choice(WIDTHS)}
    sizes |= {"length": draw.randint(3, max(4, 72 // (layers * depth)))}
    return sizes | {"vocabulary": draw.choice(VOCABULARIES)}


def _speech(draw: Random) -> Sizes:
    layers = draw.randint(2, 4)
    sizes: Sizes = {"layers": layers, "frames": draw.randint(1, 3) * 2 ** (layers - 1)}
    sizes |= {"letters": draw.randint(3, 12), "spelling": draw.randint(1, 3)}
    return sizes | {"width": draw.choice(WIDTHS)}


def _tree_lstm(draw: Random) -> Sizes:
    sizes: Sizes = {"length": draw.randint(4, 40), "tree": draw.randrange(1000)}
    return sizes | {"width": draw.choice(WIDTHS)}


FAMILIES: Mapping[str, Callable[[Random], Sizes]] = {
    "wired": _wired,
    "rnn_lm": _recurrent,
    "tagger": _recurrent,
    "two_tower": _two_tower,
    "densenet": _densenet,
    "unet": _unet,
    "fractal": _fractal,
    "highway": _highway,
    "speech": _speech,
    "tree_lstm": _tree_lstm,
}


@dataclass(frozen=True)
class Recipe:
    """What a dataset is made of.

    Attributes:
        name: the name of the dataset and its folder.
        about: one sentence for its card.
        gaps: what is known to be missing, for its card.
        models: the models to capture.
    """

    name: str
    about: str
    gaps: str
    models: tuple[CapturedModel, ...]


def _networks() -> tuple[CapturedModel, ...]:
    wanted = {
        "densenet": (
            ("densenet-22", "layers=22&batch=64", "sgd"),
            ("densenet-40", "layers=40&batch=64", "sgd"),
            ("densenet-121", "layers=121&batch=32&size=128&growth=32&classes=1000", "sgd"),
        ),
        "unet": (
            ("unet-small", "batch=16", "sgd"),
            ("unet-deep", "batch=8&size=256&width=32&depth=5", "adamw"),
            ("unet-wide", "batch=8&size=256&width=64&depth=4", "adamw"),
        ),
        "rnn_lm": (
            ("rnn-lm-short", "batch=64&length=8&width=256", "sgd"),
            ("rnn-lm-long", "batch=32&length=24&width=512&layers=2&vocabulary=8000", "adamw"),
            ("rnn-lm-deep", "batch=32&length=10&width=512&layers=5&vocabulary=8000", "adamw"),
            ("rnn-lm-gru", "batch=64&length=12&width=512&layers=3&cell=gru", "sgd"),
        ),
        "nasnet": (
            ("nasnet-small", "batch=32", "sgd"),
            ("nasnet-mobile", "batch=32&size=64&width=44&each=2&stages=3", "sgd"),
            ("nasnet-deep", "batch=32&width=32&each=4&stages=3", "adamw"),
        ),
        "gnmt": (
            ("gnmt-2", "batch=64&source=6&target=6&width=512&vocabulary=8000", "sgd"),
            ("gnmt-4", "batch=64&source=8&target=8&width=512&layers=4&vocabulary=8000", "adamw"),
            ("gnmt-8", "batch=32&source=6&target=6&width=1024&layers=8&vocabulary=32000", "adamw"),
        ),
        "recommender": (
            ("recommender-4", "batch=2048", "sgd"),
            ("recommender-12", "batch=4096&tables=12&rows=50000&depth=3", "adamw"),
            ("recommender-26", "batch=4096&tables=26&rows=100000&hidden=512&depth=3", "adamw"),
        ),
    }
    return tuple(
        CapturedModel(name, family, f"{family}?{sizes}", optimizer)
        for family, models in wanted.items()
        for name, sizes, optimizer in models
    )


def _pipelines() -> tuple[CapturedModel, ...]:
    wanted = {
        "gpt2": (
            ("gpt2-6", "n_layer=6&n_embd=512&n_head=8&batch=8&length=256"),
            ("gpt2-18", "n_layer=18&n_embd=1024&n_head=16&batch=8&length=1024"),
            ("gpt2-36", "n_layer=36&n_embd=1280&n_head=20&batch=8&length=512"),
        ),
        "llama": (
            ("llama-6", "num_hidden_layers=6&hidden_size=768&intermediate_size=2048&length=512"),
            ("llama-24", "num_hidden_layers=24&hidden_size=2048&intermediate_size=5504&length=512"),
        ),
        "gpt_neox": (
            ("gpt-neox-6", "num_hidden_layers=6&hidden_size=512&intermediate_size=2048"),
            ("gpt-neox-16", "num_hidden_layers=16&hidden_size=1024&intermediate_size=4096"),
        ),
        "opt": (
            ("opt-12", "num_hidden_layers=12&hidden_size=768&ffn_dim=3072&word_embed_proj_dim=768"),
            (
                "opt-20",
                "num_hidden_layers=20&hidden_size=1280&ffn_dim=5120&word_embed_proj_dim=1280",
            ),
        ),
        "qwen2": (
            ("qwen2-8", "num_hidden_layers=8&hidden_size=896&num_key_value_heads=2"),
            ("qwen2-24", "num_hidden_layers=24&hidden_size=896&num_key_value_heads=2"),
        ),
        "beit": (
            ("beit-12", "num_hidden_layers=12&batch=32"),
            ("beit-24", "num_hidden_layers=24&hidden_size=1024&intermediate_size=4096&batch=16"),
        ),
        "swin": (("swin-tiny", "batch=32"), ("swin-deep", "depths=[2,2,18,2]&batch=16")),
    }
    heads = {"llama": 16, "gpt_neox": 8, "opt": 16, "qwen2": 14}
    return tuple(
        CapturedModel(name, family, f"hf:{family}?{_with_heads(sizes, heads.get(family))}")
        for family, models in wanted.items()
        for name, sizes in models
    )


def _with_heads(sizes: str, heads: int | None) -> str:
    """The sizes of a language model with its heads, a batch of 8 and a vocabulary of 32,000."""
    if heads is None:
        return sizes
    more = {"num_attention_heads": heads, "vocab_size": 32000, "batch": 8, "length": 256}
    said = [f"{key}={value}" for key, value in more.items() if f"{key}=" not in sizes]
    return "&".join([sizes, *said])


def _whole() -> tuple[CapturedModel, ...]:
    wanted = {
        "bert": (
            ("bert-48", "num_hidden_layers=48&batch=16&length=256"),
            ("bert-wide", "num_hidden_layers=18&hidden_size=1600&num_attention_heads=25&batch=8"),
        ),
        "t5": (
            ("t5-12", "num_layers=12&d_model=768&d_ff=3072&num_heads=12&batch=16&length=256"),
            ("t5-24", "num_layers=24&d_model=1024&d_ff=4096&num_heads=16&batch=8&length=256"),
        ),
        "electra": (
            ("electra-12", "num_hidden_layers=12&hidden_size=768&embedding_size=768&batch=16"),
            ("electra-24", "num_hidden_layers=24&hidden_size=1024&num_attention_heads=16&batch=16"),
        ),
        "bart": (
            ("bart-6", "encoder_layers=6&decoder_layers=6&d_model=768&batch=16&length=256"),
            ("bart-12", "encoder_layers=12&decoder_layers=12&d_model=1024&batch=8&length=512"),
        ),
        "mpnet": (("mpnet-12", "batch=16&length=256"),),
        "deberta": (("deberta-12", "batch=16&length=256"),),
    }
    return tuple(
        CapturedModel(name, family, f"hf:{family}?{sizes}")
        for family, models in wanted.items()
        for name, sizes in models
    )


def _sampled(family: str, factory: str) -> tuple[CapturedModel, ...]:
    return tuple(
        CapturedModel(f"{family}-{i:02}", family, f"{factory}?{_sizes(family, i)}", "sgd")
        for i in range(EACH)
    )


def _varied() -> tuple[CapturedModel, ...]:
    """Graphs of families with branches; the sizes of each are drawn from its name, none twice."""
    found: dict[str, CapturedModel] = {}
    for family, count in COUNTS.items():
        for name in (f"varied-{family}-{i:02}" for i in range(count)):
            spec = f"{family}?{varied_sizes(family, name)}"
            found.setdefault(spec, CapturedModel(name, family, spec, "sgd"))
    return tuple(found.values())


def _sizes(family: str, number: int) -> str:
    """Sizes of a sampled family's graph, drawn from its number."""
    draw = random.Random(f"{family} {number}")
    if family == "searched-cnn":
        sizes = {"batch": 64, "architecture": number, "nodes": draw.randint(4, 7)}
        sizes |= {"each": draw.randint(1, 2), "stages": draw.randint(2, 3)}
    elif family == "searched-rnn":
        nodes = draw.randint(6, 12)
        sizes = {"batch": 64, "architecture": number, "nodes": nodes, "width": 512}
        sizes |= {"length": draw.randint(4, 80 // nodes)}
    else:
        layers = draw.randint(2, 4)
        sizes = {"batch": draw.choice((32, 64, 128)), "layers": layers}
        sizes |= {"source": draw.randint(3, 24 // layers), "target": draw.randint(3, 24 // layers)}
        sizes |= {"width": draw.choice((256, 512, 1024)), "vocabulary": draw.choice((4000, 16000))}
    return "&".join(f"{key}={value}" for key, value in sizes.items())


STORE = Recipe(
    "store",
    "The graphs that come with the package, for training and for its suites.",
    "No convolutional families but ResNet and Inception; no reinforcement learning or diffusion.",
    MODELS,
)
RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        STORE,
        Recipe(
            "networks",
            "Families of networks that the package's store lacks, several sizes of each.",
            "NASNet applies separable convolutions once; the recommender sums bags of ids by hand "
            "and its tables are dense; GNMT and language models are unrolled over few words.",
            _networks(),
        ),
        Recipe(
            "pipelines",
            "Transformers of 6 to 36 blocks and several widths, whole, to learn pipelines from.",
            "Adam alone; causal language models and vision transformers alone.",
            _pipelines(),
        ),
        Recipe(
            "varied",
            "Families with branches, sizes drawn at random: what the network of `gnn` learns from.",
            "Recurrent models are unrolled over few words; plain SGD alone.",
            _varied(),
        ),
        Recipe(
            "whole",
            "Large transformers of families that nothing learned from: the suite ``whole``.",
            "Adam alone; no vision.",
            _whole(),
        ),
        Recipe(
            "searched-cnn",
            "CNNs of two cells drawn from the micro search space of ENAS, as for CIFAR-10.",
            "Drawn evenly, not by a trained controller; separable convolutions once; no auxiliary "
            "head, no path dropout.",
            _sampled("searched-cnn", "searched_cnn"),
        ),
        Recipe(
            "searched-rnn",
            "Language models with a cell drawn from the recurrent search space of ENAS, unrolled.",
            "Drawn evenly, not by a trained controller; unrolled over 4 to 13 words, not 35; no "
            "dropout.",
            _sampled("searched-rnn", "searched_rnn"),
        ),
        Recipe(
            "nmt",
            "Translation models (GNMT) of 2 to 4 layers and 3 to 12 words on either side.",
            "Shorter sentences than the papers' 16 to 32 words.",
            _sampled("nmt", "gnmt"),
        ),
    )
}


def recipe(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        InputError: there is none; the names are listed.
    """
    if name not in RECIPES:
        raise InputError(f"recipe {name!r}: unknown; recipes: {', '.join(RECIPES)}")
    return RECIPES[name]
