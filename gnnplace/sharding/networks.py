"""Layer graphs of networks that papers split: built from published sizes, no weights involved.

Batch norm, activations and biases are part of the layer they follow: their work is small beside
it and they are split alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gnnplace.errors import InputError
from gnnplace.sharding.inception import inception_v3
from gnnplace.sharding.layers import (
    Dimension,
    Layer,
    Network,
    Operation,
    attention,
    cross_entropy,
    embedding,
    linear,
    lstm,
    pointwise,
)
from gnnplace.sharding.stack import Images


def alexnet(batch: int = 128) -> Network:
    """Krizhevsky, 2014, "One weird trick" (arXiv 1404.5997): the one-tower AlexNet."""
    net = Images("alexnet", batch, 227)
    net.convolution("conv1", 96, 11, stride=4, padding=0)
    net.pool("pool1", 3, 2)
    net.convolution("conv2", 256, 5)
    net.pool("pool2", 3, 2)
    net.convolution("conv3", 384, 3)
    net.convolution("conv4", 384, 3)
    net.convolution("conv5", 256, 3)
    net.pool("pool5", 3, 2)
    net.linear("fc6", 4096)
    net.linear("fc7", 4096)
    net.linear("fc8", 1000)
    return net.network()


def resnet101(batch: int = 128) -> Network:
    """He et al., 2015 (arXiv 1512.03385), table 1: bottleneck blocks 3, 4, 23, 3."""
    net = Images("resnet101", batch, 224)
    net.convolution("conv1", 64, 7, stride=2, padding=3)
    net.pool("pool1", 3, 2, padding=1)
    for stage, blocks in enumerate((3, 4, 23, 3)):
        for block in range(blocks):
            _bottleneck(net, f"stage{stage + 1}.{block}", 64 << stage, int(stage > 0 == block) + 1)
    net.pool("pool", net.shape[1], net.shape[1], padding=0)
    net.linear("fc", 1000)
    return net.network()


def _bottleneck(net: Images, name: str, width: int, stride: int) -> None:
    entry = net.position
    net.convolution(f"{name}.conv1", width, 1)
    net.convolution(f"{name}.conv2", width, 3, stride=stride)
    net.convolution(f"{name}.conv3", 4 * width, 1)
    main = net.position
    net.position = entry
    if name.endswith(".0"):
        net.convolution(f"{name}.shortcut", 4 * width, 1, stride=stride)
    net.join(f"{name}.add", "add", (main, net.position))


def rnnlm(batch: int = 64) -> Network:
    """A two-layer LSTM language model, sizes as in PaSE (arXiv 2407.04001): 2048 features, 40
    positions, and the billion-word vocabulary of 793,470 (Jozefowicz et al., 2016, 1602.02410).
    """
    sequence, hidden, vocabulary = 40, 2048, 793_470
    layers = [
        Layer("embedding", embedding(batch, sequence, vocabulary, hidden), (None,)),
        Layer("lstm1", lstm(batch, sequence, hidden, hidden), ("embedding",)),
        Layer("lstm2", lstm(batch, sequence, hidden, hidden), ("lstm1",)),
    ]
    return Network("rnnlm", (*layers, *_head("lstm2", batch, sequence, hidden, vocabulary)))


def _head(source: str, batch: int, sequence: int, features: int, vocabulary: int) -> list[Layer]:
    classes = Dimension("vocabulary", vocabulary)
    product = linear(batch, Dimension("in", features), classes, sequence)
    return [
        Layer("classifier", product, (source,)),
        Layer("loss", cross_entropy(batch, sequence, vocabulary), ("classifier",)),
    ]


def _block(
    name: str, source: str, batch: int, sequence: int, features: int, heads: int
) -> list[Layer]:
    """Self-attention and perceptron of four times the width, both with residuals."""
    wide, narrow = Dimension("hidden", 4 * features), Dimension("features", features)
    per_head = features // heads
    rows = (Dimension("batch", batch), Dimension("sequence", sequence), narrow)
    add = pointwise("add", rows, 2)

    def product(inner: Dimension, outer: Dimension) -> Operation:
        return linear(batch, inner, outer, sequence)

    inner = Dimension("in", features)
    of_heads = Dimension("heads", heads, 3 * per_head)
    gathered = Dimension("heads", heads, per_head)
    attend = attention(batch, heads, sequence, sequence, per_head)
    return [
        Layer(f"{name}.qkv", product(inner, of_heads), (source,)),
        Layer(f"{name}.attention", attend, (f"{name}.qkv",)),
        Layer(f"{name}.projection", product(gathered, narrow), (f"{name}.attention",)),
        Layer(f"{name}.add1", add, (source, f"{name}.projection")),
        Layer(f"{name}.mlp1", product(inner, wide), (f"{name}.add1",)),
        Layer(f"{name}.mlp2", product(wide, narrow), (f"{name}.mlp1",)),
        Layer(f"{name}.add2", add, (f"{name}.add1", f"{name}.mlp2")),
    ]


def _blocks(
    name: str, blocks: int, batch: int, sequence: int, features: int, heads: int, vocabulary: int
) -> Network:
    layers = [Layer("embedding", embedding(batch, sequence, vocabulary, features), (None,))]
    for k in range(blocks):
        source = layers[-1].name
        layers += _block(f"block{k}", source, batch, sequence, features, heads)
    return Network(name, (*layers, *_head(layers[-1].name, batch, sequence, features, vocabulary)))


def transformer(batch: int = 64) -> Network:
    """The base encoder of Vaswani et al., 2017 (arXiv 1706.03762): 6 blocks of 512 features and 8
    heads, 37,000 tokens.
    """
    return _blocks("transformer", 6, batch, 256, 512, 8, 37_000)


def gpt(batch: int = 32) -> Network:
    """GPT-2 medium (Radford et al., 2019): 24 blocks of 1024 features and 16 heads."""
    return _blocks("gpt", 24, batch, 1024, 1024, 16, 50_257)


def gpt3_100(batch: int = 64) -> Network:
    """A hundred blocks of 12,288 features and 96 heads, near GPT-3 (Brown et al., 2020)."""
    return _blocks("gpt3_100", 100, batch, 2048, 12_288, 96, 50_257)


NETWORKS: Mapping[str, Callable[..., Network]] = {
    "alexnet": alexnet,
    "gpt": gpt,
    "gpt3_100": gpt3_100,
    "inception_v3": inception_v3,
    "resnet101": resnet101,
    "rnnlm": rnnlm,
    "transformer": transformer,
}


def build_network(name: str) -> Network:
    """The layer graph of that name.

    Raises:
        InputError: no such network.
    """
    if name not in NETWORKS:
        known = ", ".join(NETWORKS)
        raise InputError(f"network {name!r}: unknown; a file NAME.json, or one of {known}")
    return NETWORKS[name]()
