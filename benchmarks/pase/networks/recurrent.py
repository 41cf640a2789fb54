"""Layer graphs of recurrent networks: RNNLM, BigLSTM, GNMT."""

from __future__ import annotations

from benchmarks.pase.layers import (
    Dimension,
    Layer,
    Network,
    attention,
    cross_entropy,
    embedding,
    linear,
    lstm,
    pointwise,
)

BILLION_WORDS = (
    793_470  # Vocabulary of the billion-word benchmark (Jozefowicz et al., 2016).
)


def head(
    source: str, batch: int, sequence: int, features: int, vocabulary: int
) -> list[Layer]:
    """Build a classifier over the vocabulary and its loss."""
    classes = Dimension("vocabulary", vocabulary)
    product = linear(batch, Dimension("in", features), classes, sequence)
    return [
        Layer("classifier", product, (source,)),
        Layer("loss", cross_entropy(batch, sequence, vocabulary), ("classifier",)),
    ]


def rnnlm() -> Network:
    """Build a two-layer LSTM language model with the sizes of PaSE (arXiv 2407.04001): 2048
    features, 40 positions, the billion-word vocabulary.
    """
    batch = 64
    sequence = 40
    hidden = 2048
    layers = [
        Layer("embedding", embedding(batch, sequence, BILLION_WORDS, hidden), (None,)),
        Layer(
            "lstm",
            lstm(
                batch=batch,
                sequence=sequence,
                features=hidden,
                hidden=hidden,
                layers=2,
            ),
            ("embedding",),
        ),
    ]
    tail = head("lstm", batch, sequence, hidden, BILLION_WORDS)
    return Network("rnnlm", (*layers, *tail))


def biglstm() -> Network:
    """Build BigLSTM (Jozefowicz et al., 2016, arXiv 1602.02410, section 4.2).

    Two LSTM layers of 8192 cells, each projected to 1024; 20 positions. The state that a layer
    reads is its projection.
    """
    batch = 128
    sequence = 20
    cells = 8192
    features = 1024
    layers = [
        Layer("embedding", embedding(batch, sequence, BILLION_WORDS, features), (None,))
    ]
    inner = Dimension("hidden", cells)
    outer = Dimension("features", features)
    for k in (1, 2):
        source = layers[-1].name
        recurrent = lstm(batch, sequence, features, cells, state=features)
        layers.append(Layer(f"lstm{k}", recurrent, (source,)))
        projection = linear(batch, inner, outer, sequence)
        layers.append(Layer(f"projection{k}", projection, (f"lstm{k}",)))
    tail = head(
        source="projection2",
        batch=batch,
        sequence=sequence,
        features=features,
        vocabulary=BILLION_WORDS,
    )
    return Network("biglstm", (*layers, *tail))


def gnmt() -> Network:
    """Build GNMT (Wu et al., 2016, arXiv 1609.08144, section 3).

    Eight LSTM layers of 1024 cells on either side, the first of the encoder in both directions,
    attention from the first of the decoder; 32,000 word pieces. Residual additions are part of the
    stacks; sentences have 50 positions.
    """
    batch = 128
    sequence = 50
    size = 1024
    pieces = 32_000
    rows = (Dimension("batch", batch), Dimension("sequence", sequence))
    both = pointwise("concat", (*rows, Dimension("features", 2 * size)), 2)
    words = embedding(batch, sequence, pieces, size)
    one = lstm(batch, sequence, size, size)
    upper = lstm(
        batch=batch,
        sequence=sequence,
        features=2 * size,
        hidden=size,
        layers=7,
    )
    heads = attention(batch, 1, sequence, sequence, size, cross=True)
    layers = (
        Layer("source", words, (None,)),
        Layer("encoder.forth", one, ("source",)),
        Layer("encoder.back", one, ("source",)),
        Layer("encoder.both", both, ("encoder.forth", "encoder.back")),
        Layer("encoder.stack", upper, ("encoder.both",)),
        Layer("target", words, (None,)),
        Layer("decoder.first", one, ("target",)),
        Layer("attention", heads, ("decoder.first", "encoder.stack")),
        Layer("decoder.both", both, ("decoder.first", "attention")),
        Layer("decoder.stack", upper, ("decoder.both",)),
    )
    tail = head("decoder.stack", batch, sequence, size, pieces)
    return Network("gnmt", (*layers, *tail))
