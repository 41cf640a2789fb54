"""Recipes of the datasets in ``data_sets/``: which models a dataset is captured from.

``networks``: families that the shipped store lacks, several sizes each. ``searched-cnn``,
``searched-rnn`` and ``nmt``: the three families of graphs that Addanki et al. (Placeto, NeurIPS
2019) and Wang et al. (2022, arXiv 2201.09676) place, ``EACH`` graphs each: CNN cells and recurrent
cells as architecture search samples them, and translation models of varied lengths and layers.
Their code is public (github.com/bwhub/Graph_Traversal_Order_in_Device_Placement); their graphs are
pickles on Dropbox, which could not be fetched. These are drawn from the same search spaces, one
seed a graph. Sizes are drawn too (below), so that a family covers a few hundred to a few thousand
ops. ``pipelines``
and ``whole``: transformers of many depths and widths, one set of families to learn from and
another, of larger graphs, to test on. ``varied``: families to learn from, in many sizes.
``measured``: small batches, whose placements are run on two CPU workers (``measured_pairs``).
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
from gnnplace.train.data.captured import (
    CapturedModel,
    list_recipe_models,
    read_model_list,
)

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


def draw_sizes(family: str, name: str) -> str:
    """Draw the sizes of a family's model, as a model's spec has them behind its question mark."""
    draw = random.Random(name)
    sizes: Sizes = {"batch": draw.choice((16, 32, 64, 128))}
    sizes |= FAMILIES[family](draw)
    return "&".join(f"{key}={value}" for key, value in sizes.items())


def _recurrent(draw: Random) -> Sizes:
    layers = draw.randint(1, 4)
    sizes: Sizes = {"layers": layers, "length": draw.randint(3, 32 // layers)}
    sizes |= {"width": draw.choice(WIDTHS), "cell": draw.choice(("lstm", "gru"))}
    return sizes | {"vocabulary": draw.choice(VOCABULARIES)}


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


FAMILIES: Mapping[str, Callable[[Random], Sizes]] = {
    "wired": lambda draw: {
        "nodes": draw.randint(6, 24),
        "stages": draw.randint(2, 3),
        "width": draw.choice((16, 32, 64)),
        "architecture": draw.randrange(1000),
    },
    "rnn_lm": _recurrent,
    "tagger": _recurrent,
    "two_tower": lambda draw: {
        "batch": draw.choice((512, 2048)),
        "hidden": draw.choice((512, 1024)),
        "width": draw.choice((64, 256)),
        "depth": draw.randint(3, 10),
    },
    "densenet": lambda draw: {
        "layers": draw.choice((22, 40)),
        "growth": draw.choice((12, 24, 32)),
        "size": draw.choice((32, 64)),
    },
    "unet": lambda draw: {
        "size": 64,
        "width": draw.choice((16, 32, 64)),
        "depth": draw.randint(3, 5),
    },
    "fractal": lambda draw: {
        "columns": draw.randint(2, 4),
        "stages": draw.randint(2, 4),
        "width": draw.choice((16, 32, 64)),
    },
    "highway": _highway,
    "speech": _speech,
    "tree_lstm": lambda draw: {
        "length": draw.randint(4, 40),
        "tree": draw.randrange(1000),
        "width": draw.choice(WIDTHS),
    },
}


@dataclass(frozen=True)
class Recipe:
    """The contents of a dataset.

    Attributes:
        name: The name of the dataset and its folder.
        about: One sentence for its card.
        gaps: What is known to be missing, for its card.
        models: The models to capture.
    """

    name: str
    about: str
    gaps: str
    models: tuple[CapturedModel, ...]


def _sample(family: str, factory: str) -> tuple[CapturedModel, ...]:
    return tuple(
        CapturedModel(
            f"{family}-{i:02}", family, f"{factory}?{_sizes(family, i)}", "sgd"
        )
        for i in range(EACH)
    )


def _make_varied() -> tuple[CapturedModel, ...]:
    """Return graphs of families with branches.

    The sizes of each are drawn from its name. No two graphs have the same.
    """
    by_spec: dict[str, CapturedModel] = {}
    for family, count in COUNTS.items():
        for name in (f"varied-{family}-{i:02}" for i in range(count)):
            spec = f"{family}?{draw_sizes(family, name)}"
            by_spec.setdefault(spec, CapturedModel(name, family, spec, "sgd"))
    return tuple(by_spec.values())


def _sizes(family: str, number: int) -> str:
    """Return the sizes of a sampled family's graph, drawn from its number."""
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
        sizes |= {
            "source": draw.randint(3, 24 // layers),
            "target": draw.randint(3, 24 // layers),
        }
        sizes |= {
            "width": draw.choice((256, 512, 1024)),
            "vocabulary": draw.choice((4000, 16000)),
        }
    return "&".join(f"{key}={value}" for key, value in sizes.items())


SAMPLED = {
    "searched-cnn": "searched_cnn",
    "searched-rnn": "searched_rnn",
    "nmt": "gnmt",
}
"""Sampled families, and what makes a model of each."""


def _models(name: str) -> tuple[CapturedModel, ...]:
    if name in SAMPLED:
        return _sample(name, SAMPLED[name])
    return _make_varied() if name == "varied" else list_recipe_models(name)


RECIPES: Mapping[str, Recipe] = {
    row["name"]: Recipe(**row, models=_models(row["name"]))
    for row in read_model_list()["recipes"]
}
STORE = RECIPES["store"]
MEASURED = "measured"  # name of the recipe whose placements are measured too


def recipe(name: str) -> Recipe:
    """Return the recipe of that name.

    Raises:
        InputError: There is none; the names are listed.
    """
    if name not in RECIPES:
        raise InputError(f"recipe {name!r}: unknown; recipes: {', '.join(RECIPES)}")
    return RECIPES[name]
