"""``Images``: builds layer graphs of convolutional networks one layer after the other."""

from __future__ import annotations

from dataclasses import dataclass

from gnnplace.sharding.layers import (
    Dimension,
    Layer,
    Network,
    convolution,
    cross_entropy,
    linear,
    pointwise,
)

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Position:
    """Where the next layer is attached: a layer (None: the data) and its output's shape.

    Attributes:
        shape: channels, height, width.
    """

    layer: str | None
    shape: Shape


class Images:
    """A network on square images with three channels.

    Attributes:
        position: where the next layer is attached.
    """

    def __init__(self, name: str, batch: int, size: int) -> None:
        self.name, self.batch = name, batch
        self.layers: list[Layer] = []
        self.position = Position(None, (3, size, size))

    @property
    def shape(self) -> Shape:
        """Channels, height and width of the last layer's output."""
        return self.position.shape

    def convolution(
        self,
        name: str,
        filters: int,
        kernel: int | tuple[int, int],
        *,
        stride: int = 1,
        padding: int | None = None,
    ) -> None:
        """A convolution; padded to the same size by default."""
        rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
        channels, height, width = self.shape
        over = (rows // 2, columns // 2) if padding is None else (padding, padding)
        output = (
            (height + 2 * over[0] - rows) // stride + 1,
            (width + 2 * over[1] - columns) // stride + 1,
        )
        first = self.position.layer is None
        operation = convolution(
            self.batch, channels, filters, output, (rows, columns), stride, first=first
        )
        self._append(Layer(name, operation, (self.position.layer,)), (filters, *output))

    def pool(self, name: str, kernel: int, stride: int, padding: int = 0) -> None:
        """Pooling."""
        channels, height, width = self.shape
        out = ((height + 2 * padding - kernel) // stride + 1,
               (width + 2 * padding - kernel) // stride + 1)  # fmt: skip
        operation = pointwise("pool", self._rows((channels, *out)))
        self._append(Layer(name, operation, (self.position.layer,)), (channels, *out))

    def join(self, name: str, kind: str, sources: tuple[Position, ...]) -> None:
        """An addition of equal shapes (kind "add") or a concatenation of channels ("concat")."""
        channels, height, width = sources[0].shape
        if kind == "concat":
            channels = sum(source.shape[0] for source in sources)
        shape = (channels, height, width)
        operation = pointwise(kind, self._rows(shape), len(sources))
        self._append(Layer(name, operation, tuple(source.layer for source in sources)), shape)

    def linear(self, name: str, features: int) -> None:
        """A linear layer on all that the last layer made."""
        channels, height, width = self.shape
        flat = 2 if height * width > 1 or self.layers[-1].operation.kind == "pool" else 0
        inner = Dimension("in", channels, height * width)
        operation = linear(self.batch, inner, Dimension("out", features), flat=flat)
        self._append(Layer(name, operation, (self.position.layer,)), (features, 1, 1))

    def network(self) -> Network:
        """The network with its loss."""
        loss = cross_entropy(self.batch, 0, self.shape[0])
        self._append(Layer("loss", loss, (self.position.layer,)), (1, 1, 1))
        return Network(self.name, tuple(self.layers))

    def _rows(self, shape: Shape) -> tuple[Dimension, ...]:
        names = ("channels", "height", "width")
        rows = [Dimension(name, size) for name, size in zip(names, shape, strict=True)]
        return (Dimension("batch", self.batch), *rows)

    def _append(self, layer: Layer, shape: Shape) -> None:
        self.layers.append(layer)
        self.position = Position(layer.name, shape)
