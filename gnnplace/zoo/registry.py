"""Workloads by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from gnnplace.errors import InputError
from gnnplace.zoo.cells import nasnet, searched_cnn
from gnnplace.zoo.densenet import densenet
from gnnplace.zoo.fractal import fractal
from gnnplace.zoo.gnmt import gnmt
from gnnplace.zoo.highway import highway
from gnnplace.zoo.inception import inception
from gnnplace.zoo.language_models import rnn_lm, searched_rnn, tagger
from gnnplace.zoo.mixture import moe
from gnnplace.zoo.mlp import mlp
from gnnplace.zoo.recommender import recommender
from gnnplace.zoo.resnet import resnet50, small_resnet
from gnnplace.zoo.seq2seq import seq2seq
from gnnplace.zoo.speech import speech
from gnnplace.zoo.transformers import bert, gpt2, vit
from gnnplace.zoo.tree_lstm import tree_lstm
from gnnplace.zoo.two_tower import two_tower
from gnnplace.zoo.unet import unet
from gnnplace.zoo.wired import wired
from gnnplace.zoo.workload import Workload

WORKLOADS: Mapping[str, Callable[..., Workload]] = {
    "bert": bert,
    "densenet": densenet,
    "fractal": fractal,
    "gnmt": gnmt,
    "gpt2": gpt2,
    "highway": highway,
    "inception": inception,
    "mlp": mlp,
    "moe": moe,
    "nasnet": nasnet,
    "recommender": recommender,
    "resnet50": resnet50,
    "rnn_lm": rnn_lm,
    "searched_cnn": searched_cnn,
    "searched_rnn": searched_rnn,
    "seq2seq": seq2seq,
    "small_resnet": small_resnet,
    "speech": speech,
    "tagger": tagger,
    "tree_lstm": tree_lstm,
    "two_tower": two_tower,
    "unet": unet,
    "vit": vit,
    "wired": wired,
}


def names() -> tuple[str, ...]:
    """Names of all workloads, sorted."""
    return tuple(sorted(WORKLOADS))


def default_batch(name: str) -> int:
    """Examples in a step of the workload as `build(name)` makes it.

    Raises:
        InputError: no such workload.
    """
    return int(inspect.signature(_factory(name)).parameters["batch"].default)


def build(name: str, *, seed: int = 0, **size: Any) -> Workload:
    """Make a workload; the same arguments give the same parameters and inputs.

    Args:
        name: One of `names()`.
        seed: The seed of the parameters.
        **size: Arguments of its factory, such as `batch`.

    Raises:
        InputError: no such workload, or an argument that it does not have.
    """
    factory = _factory(name)
    known = inspect.signature(factory).parameters
    unknown = [key for key in size if key not in known]
    if unknown:
        raise InputError(f"{name}: no size {unknown[0]!r}; there are {', '.join(known)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return factory(**size)


def _factory(name: str) -> Callable[..., Workload]:
    if name not in WORKLOADS:
        raise InputError(f"{name!r}: no such workload; there are {', '.join(names())}")
    return WORKLOADS[name]
