"""Layer graphs of networks that papers split, by name: built from published sizes, no weights.

Batch norm, activations and biases are part of the layer they follow: their work is small beside
it and they are split alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.pase.layers import Network
from benchmarks.pase.networks.convolutional import (
    alexnet,
    densenet121,
    inception_v3,
    resnet101,
    wide_resnet50,
)
from benchmarks.pase.networks.recurrent import biglstm, gnmt, rnnlm
from benchmarks.pase.networks.transforming import (
    gpt,
    gpt3_100,
    moe,
    transformer,
    transformer_encoder,
)
from gnnplace.errors import InputError

NETWORKS: Mapping[str, Callable[[], Network]] = {
    "alexnet": alexnet,
    "biglstm": biglstm,
    "densenet121": densenet121,
    "gnmt": gnmt,
    "gpt": gpt,
    "gpt3_100": gpt3_100,
    "inception_v3": inception_v3,
    "moe": moe,
    "resnet101": resnet101,
    "rnnlm": rnnlm,
    "transformer": transformer,
    "transformer_encoder": transformer_encoder,
    "wide_resnet50": wide_resnet50,
}


def build_network(name: str) -> Network:
    """Return the layer graph of that name.

    Raises:
        InputError: there is no network of that name.
    """
    if name not in NETWORKS:
        names = ", ".join(NETWORKS)
        raise InputError(
            f"network {name!r}: unknown; a file NAME.json, or one of {names}"
        )
    return NETWORKS[name]()
