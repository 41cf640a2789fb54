"""Recipes of the datasets in ``datasets/``: which models a dataset is captured from.

``networks``: families that the shipped store lacks, several sizes each. ``searched-cnn``,
``searched-rnn`` and ``nmt``: the three families of graphs that Addanki et al. (Placeto, NeurIPS
2019) and Wang et al. (2022, arXiv 2201.09676) place, ``EACH`` graphs each: CNN cells and recurrent
cells as architecture search samples them, and translation models of varied lengths and layers.
Their graphs are not public; these are drawn from the same search spaces, one seed a graph. Sizes
are drawn too (below), so that a family covers a few hundred to a few thousand ops.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from gnnplace.data.captured_models import MODELS, CapturedModel
from gnnplace.errors import InputError

EACH = 32  # graphs of a sampled family


@dataclass(frozen=True)
class Recipe:
    """What a dataset is made of.

    Attributes:
        name: the name of the dataset and its folder.
        about: one sentence for its card.
        gaps: what is known to be missing, for its card.
        models: to capture.
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


def _sampled(family: str, factory: str) -> tuple[CapturedModel, ...]:
    return tuple(
        CapturedModel(f"{family}-{i:02}", family, f"{factory}?{_sizes(family, i)}", "sgd")
        for i in range(EACH)
    )


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
