"""Layers as iteration spaces (PaSE: Elango, 2021, arXiv 2407.04001, section on iteration spaces).

An operation visits every point of the product of its dimensions. Each of its tensors lies along
some of them; the dimensions that a tensor does not have are summed over where the tensor is
computed, or shared where it is read. Splitting a dimension over k devices gives each a k-th of the
points and of every tensor along it. Costs (``costs.py``) need nothing else, so one rule covers
every kind of layer, as einsum notation does. A configuration says how many parts each dimension
of an operation is cut into.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Axes = tuple[str | None, ...]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Dimension:
    """A dimension of an iteration space.

    Attributes:
        name: such as "batch"; unique in its operation.
        extent: positions that can be split over devices.
        width: elements at each position, such as the features of one head.
        split: whether it may be split.
    """

    name: str
    extent: int
    width: int = 1
    split: bool = True


@dataclass(frozen=True)
class Operation:
    """What a layer does, without its name: equal operations share their tables.

    Attributes:
        dimensions: the dimensions of the iteration space.
        flops: forward FLOP of one example of the whole space, in total.
        output: dimension of each axis of the output.
        inputs: dimension of each axis of each input; None is an axis that is read whole.
        parameters: dimensions of each parameter.
        needs_gradient: whether the inputs' gradients are computed.
        halo: elements of the input that neighbours along a dimension exchange, as (dimension,
            positions, dimensions of the input along the border).
        saved: dimensions of what the backward pass needs, where that is not the output.
        stages: a dimension whose parts work one after the other on a number of shares, as in a
            pipeline: (dimension, shares).
    """

    kind: str
    dimensions: tuple[Dimension, ...]
    flops: float
    output: Axes
    inputs: tuple[Axes, ...]
    parameters: tuple[tuple[str, ...], ...] = ()
    needs_gradient: bool = True
    halo: tuple[tuple[str, int, tuple[str, ...]], ...] = ()
    saved: Axes | None = None
    stages: tuple[str, int] | None = None

    def elements(self, axes: Axes) -> float:
        """Return the elements of a tensor along ``axes``; axes without a dimension count one."""
        sizes = {d.name: d.extent * d.width for d in self.dimensions}
        return float(math.prod(sizes[name] for name in axes if name is not None))


@dataclass(frozen=True)
class Layer:
    """A named operation and the layers whose outputs it reads, in the order of its inputs.

    An input of None is the network's own (data), which is where it is needed from the start.
    ``reason`` says why it is split less than others of its kind, if it is.
    """

    name: str
    operation: Operation
    inputs: tuple[str | None, ...]
    reason: str = ""


@dataclass(frozen=True)
class Network:
    """Layers in an order in which every layer comes after those it reads."""

    name: str
    layers: tuple[Layer, ...]


def linear(
    batch: int, features: Dimension, output: Dimension, sequence: int = 0, flat: int = 0
) -> Operation:
    """Build a matrix product along the last axis: 2 FLOP for every multiplication and addition.

    Args:
        batch: the number of examples of a step.
        features: what is summed over.
        output: the dimensions of the tensor that is made.
        sequence: positions of an example; 0: it has no such axis.
        flat: further axes of the input that are flattened into the features and read whole.
    """
    rows = [
        Dimension("batch", batch),
        *([Dimension("sequence", sequence)] if sequence else []),
    ]
    dims = (*rows, features, output)
    points = math.prod(d.extent * d.width for d in dims)
    lead = tuple(d.name for d in rows)
    return Operation(
        kind="linear",
        dimensions=dims,
        flops=2.0 * points,
        output=(*lead, output.name),
        inputs=((*lead, features.name, *([None] * flat)),),
        parameters=((features.name, output.name), (output.name,)),
    )


def convolution(
    batch: int,
    channels: int,
    filters: int,
    output: tuple[int, int],
    kernel: tuple[int, int],
    stride: int = 1,
    *,
    first: bool = False,
) -> Operation:
    """Build a convolution; its height and width are those of the output.

    Neighbours along a split height exchange kernel - stride rows of the input (spatial
    parallelism: Dryden et al., 2019, arXiv 1903.06681), and columns along a split width.
    """
    height, width = output
    rows, columns = kernel
    taps = rows * columns
    dims = (
        Dimension("batch", batch),
        Dimension("in", channels),
        Dimension("out", filters),
        Dimension("height", height),
        Dimension("width", width),
    )
    halo = (
        ("height", max(0, rows - stride), ("batch", "in", "width")),
        ("width", max(0, columns - stride), ("batch", "in", "height")),
    )
    return Operation(
        kind="convolution",
        dimensions=(*dims, Dimension("taps", taps, split=False)),
        flops=2.0 * batch * channels * filters * height * width * taps,
        output=("batch", "out", "height", "width"),
        inputs=(("batch", "in", "height", "width"),),
        parameters=(("in", "out", "taps"), ("out",)),
        needs_gradient=not first,
        halo=tuple(entry for entry in halo if entry[1]),
    )


def pointwise(
    kind: str, dimensions: tuple[Dimension, ...], inputs: int = 1
) -> Operation:
    """Build an operation on every element, such as a pooling; one FLOP an element."""
    names = tuple(d.name for d in dimensions)
    points = math.prod(d.extent * d.width for d in dimensions)
    return Operation(
        kind=kind,
        dimensions=dimensions,
        flops=float(points),
        output=names,
        inputs=(names,) * inputs,
    )


def embedding(batch: int, sequence: int, vocabulary: int, features: int) -> Operation:
    """Build a table of rows; a device without a token's row adds zeros: a sum over vocabulary."""
    dims = (
        Dimension("batch", batch),
        Dimension("sequence", sequence),
        Dimension("vocabulary", vocabulary),
        Dimension("features", features),
    )
    lead = ("batch", "sequence")
    flops = float(batch * sequence * features)
    return Operation(
        kind="embedding",
        dimensions=dims,
        flops=flops,
        output=(*lead, "features"),
        inputs=(lead,),
        parameters=(("vocabulary", "features"),),
        needs_gradient=False,
    )


def attention(
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    features: int,
    *,
    cross: bool = False,
) -> Operation:
    """Build scaled products of queries and keys, and the weighted sum of values: 4 FLOP a pair and
    feature. Every position reads the keys of all others, so a split sequence reads keys and values
    whole.

    Args:
        batch: the number of examples of a step.
        heads: the number of heads, of ``features`` each.
        queries: the number of positions that attend.
        keys: positions that are attended to.
        features: the number of features of a head.
        cross: queries come from another layer than keys and values; else one input carries queries,
            keys and values of a head together.
    """
    dims = (
        Dimension("batch", batch),
        Dimension("heads", heads, features),
        Dimension("sequence", queries),
        Dimension("keys", keys, split=False),
        Dimension("keys and values", 2, split=False),
    )
    output = ("batch", "sequence", "heads")
    read = ("batch", "keys", "heads", "keys and values")
    flops = 4.0 * batch * heads * features * queries * keys
    return Operation(
        kind="attention",
        dimensions=dims,
        flops=flops,
        output=output,
        inputs=(output, read) if cross else (read,),
    )


def cross_entropy(batch: int, sequence: int, vocabulary: int) -> Operation:
    """Build softmax and loss: about five FLOP an element; sums over a split vocabulary are
    exchanged.
    """
    rows = [
        Dimension("batch", batch),
        *([Dimension("sequence", sequence)] if sequence else []),
    ]
    lead = tuple(d.name for d in rows)
    dims = (*rows, Dimension("vocabulary", vocabulary))
    points = math.prod(d.extent for d in dims)
    return Operation(
        kind="cross_entropy",
        dimensions=dims,
        flops=5.0 * points,
        output=lead,
        inputs=((*lead, "vocabulary"),),
    )


def lstm(
    batch: int,
    sequence: int,
    features: int,
    hidden: int,
    layers: int = 1,
    state: int | None = None,
) -> Operation:
    """Build a stack of LSTM layers: 8 FLOP for every weight of the input's and the state's
    products.

    The sequence is not split: each position waits for the one before. Layers on different devices
    work on different positions at a time, a pipeline in ``sequence`` shares (as in PaSE, arXiv
    2407.04001, whose recurrent operator has a dimension of layers too). ``in`` are the input's
    features and the state that is read; the input's own split is that of their sum.

    Args:
        batch: the number of examples of a step.
        sequence: the number of positions.
        features: the number of features of the input.
        hidden: the number of cells of a layer.
        layers: the number of layers of the stack.
        state: features of the state that is read; ``hidden`` unless it is projected.
    """
    read = features + (hidden if state is None else state)
    dims = (
        Dimension("layers", layers),
        Dimension("batch", batch),
        Dimension("sequence", sequence, split=False),
        Dimension("in", read),
        Dimension("hidden", hidden),
        Dimension("gates", 4, split=False),
    )
    return Operation(
        kind="lstm",
        dimensions=dims,
        flops=2.0 * 4 * layers * batch * sequence * read * hidden,
        output=("batch", "sequence", "hidden"),
        inputs=(("batch", "sequence", "in"),),
        parameters=(("layers", "in", "hidden", "gates"),),
        saved=("layers", "batch", "sequence", "hidden"),
        stages=("layers", sequence),
    )


class SplitSpace(NamedTuple):
    """Which splits are allowed.

    Attributes:
        exactly: only those that use all devices, where any does.
        powers_of_two: a dimension is cut into 1, 2, 4 … parts; else into any divisor of the
            number of devices.
    """

    exactly: bool = False
    powers_of_two: bool = False


ANY = SplitSpace()


@lru_cache(maxsize=4096)
def configurations(
    operation: Operation, devices: int, space: SplitSpace = ANY
) -> IntArray:
    """Return all splits whose product is at most ``devices``. [K, dimensions]

    A dimension is never cut into more parts than it has positions. The first configuration splits
    nothing, if that is allowed.

    Args:
        operation: whose dimensions are split.
        devices: the number of devices that there are.
        space: which splits are allowed.
    """
    parts = [k for k in range(1, devices + 1) if devices % k == 0]
    if space.powers_of_two:
        parts = [1 << k for k in range(devices.bit_length())]

    # One dimension after the other: every split so far, times every number of parts that fits.
    rows = np.ones((1, 0), np.int64)
    used_devices = np.ones(1, np.int64)
    for dimension in operation.dimensions:
        if dimension.split:
            max_parts = dimension.extent
        else:
            max_parts = 1
        allowed = np.array([k for k in parts if k <= max_parts])
        products = used_devices[:, None] * allowed
        row, choice = np.nonzero(products <= devices)
        rows = np.column_stack([rows[row], allowed[choice]])
        used_devices = products[row, choice]
    if space.exactly and (used_devices == devices).any():
        rows = rows[used_devices == devices]
    return rows[np.lexsort(rows.T[::-1])]


def data_parallel(operation: Operation, devices: int, space: SplitSpace = ANY) -> int:
    """Return the index of the configuration that splits the batch the most and nothing else."""
    rows = configurations(operation, devices, space)
    batch = [d.name for d in operation.dimensions].index("batch")
    ways_of_rest = rows.prod(axis=1) // rows[:, batch]
    return int(np.lexsort((-rows[:, batch], ways_of_rest))[0])


def in_words(operation: Operation, split: IntArray) -> str:
    """Describe a split, such as ``heads over 4, batch over 2``; the largest split first."""
    names = [d.name for d in operation.dimensions]
    parts = [(int(k), name) for k, name in zip(split, names, strict=True) if k > 1]
    parts.sort(key=lambda entry: (-entry[0], entry[1]))
    return ", ".join(f"{name} over {k}" for k, name in parts) or "whole on every device"
