"""Sizes of the models of the dataset ``varied``: each is drawn from its name.

A family's function takes a source of random numbers and gives what its model differs in; ``batch``
is drawn before, and stays where the family does not draw its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from random import Random

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
