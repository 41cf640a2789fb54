"""Layer graphs of transformers: encoder, encoder and decoder, GPT, mixture of experts."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.pase.layers import (
    Dimension,
    Layer,
    Network,
    Operation,
    attention,
    embedding,
    linear,
    pointwise,
)
from benchmarks.pase.networks.recurrent import head


@dataclass(frozen=True)
class TransformerSizes:
    """Sizes of a transformer.

    Attributes:
        hidden: features between the two products of a perceptron.
        experts: perceptrons of a mixture.
    """

    batch: int
    sequence: int
    features: int
    heads: int
    hidden: int
    experts: int = 0

    @property
    def per_head(self) -> int:
        """Features of a head."""
        return self.features // self.heads

    def product(self, inner: Dimension, outer: Dimension) -> Operation:
        """Build a matrix product at every position."""
        return linear(self.batch, inner, outer, self.sequence)

    def add(self) -> Operation:
        """Build a residual addition."""
        rows = (Dimension("batch", self.batch), Dimension("sequence", self.sequence))
        return pointwise("add", (*rows, Dimension("features", self.features)), 2)


def self_attention(name: str, source: str, shape: TransformerSizes) -> list[Layer]:
    """Build attention of a sequence to itself, with its residual."""
    of_heads = Dimension("heads", shape.heads, 3 * shape.per_head)
    length = shape.sequence
    attend = attention(shape.batch, shape.heads, length, length, shape.per_head)
    return [
        Layer(f"{name}.qkv", shape.product(_inner(shape), of_heads), (source,)),
        Layer(f"{name}.attention", attend, (f"{name}.qkv",)),
        *_projected(name, source, shape),
    ]


def cross_attention(
    name: str, source: str, memory: str, shape: TransformerSizes
) -> list[Layer]:
    """Build attention of a sequence to another one, with its residual."""
    queries = Dimension("heads", shape.heads, shape.per_head)
    pairs = Dimension("heads", shape.heads, 2 * shape.per_head)
    length = shape.sequence
    attend = attention(
        shape.batch, shape.heads, length, length, shape.per_head, cross=True
    )
    return [
        Layer(f"{name}.q", shape.product(_inner(shape), queries), (source,)),
        Layer(f"{name}.kv", shape.product(_inner(shape), pairs), (memory,)),
        Layer(f"{name}.attention", attend, (f"{name}.q", f"{name}.kv")),
        *_projected(name, source, shape),
    ]


def _inner(shape: TransformerSizes) -> Dimension:
    return Dimension("in", shape.features)


def _projected(name: str, source: str, shape: TransformerSizes) -> list[Layer]:
    gathered = Dimension("heads", shape.heads, shape.per_head)
    product = shape.product(gathered, Dimension("features", shape.features))
    return [
        Layer(f"{name}.projection", product, (f"{name}.attention",)),
        Layer(f"{name}.add", shape.add(), (source, f"{name}.projection")),
    ]


def perceptron(name: str, source: str, shape: TransformerSizes) -> list[Layer]:
    """Build two products with a residual."""
    wide = Dimension("hidden", shape.hidden)
    narrow = Dimension("features", shape.features)
    return [
        Layer(f"{name}.mlp1", shape.product(_inner(shape), wide), (source,)),
        Layer(f"{name}.mlp2", shape.product(wide, narrow), (f"{name}.mlp1",)),
        Layer(f"{name}.add", shape.add(), (source, f"{name}.mlp2")),
    ]


CHOICES = 2  # Experts of each token (GShard, section 2.2).


def mixture(name: str, source: str, shape: TransformerSizes) -> list[Layer]:
    """Build a mixture of experts with a residual (GShard: Lepikhin et al., 2020, arXiv 2006.16668).

    A gate chooses each token's experts; tokens are copied for each of them, go to where the
    experts are (an all-to-all if these are split), and come back. A split of the sequence and one
    of the experts never overlap, so they are different axes of the tensor between them.
    """
    gate = shape.product(_inner(shape), Dimension("out", shape.experts))
    copied = ("batch", "sequence", "features", "choices")
    flops = float(CHOICES * shape.batch * shape.sequence * shape.features)
    inputs = (copied[:3], ("batch", "sequence", None))
    dispatch = Operation(
        kind="dispatch",
        dimensions=_tokens(shape),
        flops=flops,
        output=copied,
        inputs=inputs,
    )
    combine = Operation(
        kind="combine",
        dimensions=_tokens(shape),
        flops=2.0 * flops,
        output=copied[:3],
        inputs=(copied,),
    )
    return [
        Layer(f"{name}.gate", gate, (source,)),
        Layer(f"{name}.dispatch", dispatch, (source, f"{name}.gate")),
        Layer(f"{name}.expert1", _expert(shape, "in", "hidden"), (f"{name}.dispatch",)),
        Layer(
            f"{name}.expert2",
            _expert(shape, "hidden", "features"),
            (f"{name}.expert1",),
        ),
        Layer(f"{name}.combine", combine, (f"{name}.expert2",)),
        Layer(f"{name}.add", shape.add(), (source, f"{name}.combine")),
    ]


def _tokens(shape: TransformerSizes) -> tuple[Dimension, ...]:
    return (
        Dimension("batch", shape.batch),
        Dimension("sequence", shape.sequence),
        Dimension("features", shape.features),
        Dimension("choices", CHOICES, split=False),
    )


def _expert(shape: TransformerSizes, inner: str, outer: str) -> Operation:
    """Build one product of all experts; each takes an equal share of each example's tokens."""
    sizes = {"in": shape.features, "hidden": shape.hidden, "features": shape.features}
    capacity = shape.sequence * CHOICES // shape.experts
    dims = (
        Dimension("batch", shape.batch),
        Dimension("experts", shape.experts),
        Dimension("capacity", capacity, split=False),
        Dimension(inner, sizes[inner]),
        Dimension(outer, sizes[outer]),
    )
    flops = 2.0 * shape.batch * shape.experts * capacity * sizes[inner] * sizes[outer]
    inputs = ("batch", None, inner, "experts", "capacity")
    output = ("batch", None, outer, "experts", "capacity")
    return Operation(
        kind="expert",
        dimensions=dims,
        flops=flops,
        output=output,
        inputs=(inputs,),
        parameters=(("experts", inner, outer),),
    )


def _stack(name: str, blocks: int, shape: TransformerSizes, vocabulary: int) -> Network:
    """Build blocks of self-attention and perceptron; every second perceptron a mixture if
    any is.
    """
    words = embedding(shape.batch, shape.sequence, vocabulary, shape.features)
    layers = [Layer("embedding", words, (None,))]
    for k in range(blocks):
        layers += self_attention(f"block{k}.self", layers[-1].name, shape)
        if shape.experts and k % 2:
            part = mixture
        else:
            part = perceptron
        layers += part(f"block{k}.mlp", layers[-1].name, shape)
    tail = head(
        source=layers[-1].name,
        batch=shape.batch,
        sequence=shape.sequence,
        features=shape.features,
        vocabulary=vocabulary,
    )
    return Network(name, (*layers, *tail))


def transformer() -> Network:
    """Build the base model of Vaswani et al., 2017 (arXiv 1706.03762), table 3: 6 blocks on either
    side, 512 features, 8 heads, 37,000 tokens; sentences of 256 positions.
    """
    batch = 64
    shape = TransformerSizes(
        batch=batch,
        sequence=256,
        features=512,
        heads=8,
        hidden=2048,
    )
    vocabulary = 37_000
    words = embedding(batch, shape.sequence, vocabulary, shape.features)
    layers = [Layer("source", words, (None,))]
    for k in range(6):
        layers += self_attention(f"encoder{k}.self", layers[-1].name, shape)
        layers += perceptron(f"encoder{k}.mlp", layers[-1].name, shape)
    memory = layers[-1].name
    layers.append(Layer("target", words, (None,)))
    for k in range(6):
        layers += self_attention(f"decoder{k}.self", layers[-1].name, shape)
        layers += cross_attention(f"decoder{k}.cross", layers[-1].name, memory, shape)
        layers += perceptron(f"decoder{k}.mlp", layers[-1].name, shape)
    tail = head(
        source=layers[-1].name,
        batch=batch,
        sequence=shape.sequence,
        features=shape.features,
        vocabulary=vocabulary,
    )
    return Network("transformer", (*layers, *tail))


def transformer_encoder() -> Network:
    """Build the encoder of ``transformer`` alone, with a classifier."""
    return _stack(
        "transformer_encoder",
        6,
        TransformerSizes(
            batch=64,
            sequence=256,
            features=512,
            heads=8,
            hidden=2048,
        ),
        37_000,
    )


def gpt() -> Network:
    """Build GPT-2 medium (Radford et al., 2019): 24 blocks of 1024 features and 16 heads."""
    return _stack(
        "gpt",
        24,
        TransformerSizes(
            batch=32,
            sequence=1024,
            features=1024,
            heads=16,
            hidden=4096,
        ),
        50_257,
    )


def gpt3_100() -> Network:
    """Build a hundred blocks of 12,288 features and 96 heads, near GPT-3 (Brown et al., 2020)."""
    return _stack(
        "gpt3_100",
        100,
        TransformerSizes(
            batch=64,
            sequence=2048,
            features=12_288,
            heads=96,
            hidden=49_152,
        ),
        50_257,
    )


def moe() -> Network:
    """Build GShard (Lepikhin et al., 2020, arXiv 2006.16668), section 4: 12 blocks of 1024
    features, 16 heads, 8192 features inside, every second perceptron 128 experts, two of them a
    token.
    """
    return _stack(
        "moe",
        12,
        TransformerSizes(
            batch=64,
            sequence=512,
            features=1024,
            heads=16,
            hidden=8192,
            experts=128,
        ),
        64_000,
    )
