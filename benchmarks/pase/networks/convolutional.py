"""Layer graphs of convolutional networks: AlexNet, ResNet, wide ResNet, DenseNet, Inception-V3.

Inception-V3 is that of Szegedy et al., 2015, arXiv 1512.00567, as released: 299 x 299 pixels, no
second head. ``Images`` builds such graphs one layer after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.pase.layers import (
    Dimension,
    Layer,
    Network,
    convolution,
    cross_entropy,
    linear,
    pointwise,
)

# A branch is a list of (filters, rows, columns, stride) convolutions; "pool" is an average or
# maximum pooling of 3 x 3 with the stride of the module.
Convolution = tuple[int, int, int, int]
Branch = list[Convolution | str]
Shape = tuple[int, int, int]
BATCH = 128  # images of a step, of every network


@dataclass(frozen=True)
class Position:
    """Where the next layer is attached: a layer (None: the data) and its output's shape.

    Attributes:
        shape: channels, height and width of an image.
    """

    layer: str | None
    shape: Shape


class Images:
    """A network on square images with three channels.

    Attributes:
        position: where the next layer is attached.
    """

    def __init__(self, name: str, size: int) -> None:
        self.name = name
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
        """Append a convolution; padded to the same size by default."""
        rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
        channels, height, width = self.shape
        if padding is None:
            over = (rows // 2, columns // 2)
        else:
            over = (padding, padding)
        output = (
            (height + 2 * over[0] - rows) // stride + 1,
            (width + 2 * over[1] - columns) // stride + 1,
        )
        first = self.position.layer is None
        operation = convolution(
            BATCH, channels, filters, output, (rows, columns), stride, first=first
        )
        self._append(Layer(name, operation, (self.position.layer,)), (filters, *output))

    def pool(self, name: str, kernel: int, stride: int, padding: int = 0) -> None:
        """Append a pooling."""
        channels, height, width = self.shape
        out = (
            (height + 2 * padding - kernel) // stride + 1,
            (width + 2 * padding - kernel) // stride + 1,
        )
        operation = pointwise("pool", self._rows((channels, *out)))
        self._append(Layer(name, operation, (self.position.layer,)), (channels, *out))

    def join(self, name: str, kind: str, sources: tuple[Position, ...]) -> None:
        """Append an addition of equal shapes (kind "add") or a concatenation of channels
        ("concat").
        """
        channels, height, width = sources[0].shape
        if kind == "concat":
            channels = sum(source.shape[0] for source in sources)
        shape = (channels, height, width)
        operation = pointwise(kind, self._rows(shape), len(sources))
        self._append(
            Layer(name, operation, tuple(source.layer for source in sources)), shape
        )

    def linear(self, name: str, features: int) -> None:
        """Append a linear layer on all that the last layer made."""
        channels, height, width = self.shape
        if height * width > 1 or self.layers[-1].operation.kind == "pool":
            flat = 2
        else:
            flat = 0
        inner = Dimension("in", channels, height * width)
        operation = linear(BATCH, inner, Dimension("out", features), flat=flat)
        self._append(Layer(name, operation, (self.position.layer,)), (features, 1, 1))

    def network(self) -> Network:
        """Return the network with its loss."""
        loss = cross_entropy(BATCH, 0, self.shape[0])
        self._append(Layer("loss", loss, (self.position.layer,)), (1, 1, 1))
        return Network(self.name, tuple(self.layers))

    def _rows(self, shape: Shape) -> tuple[Dimension, ...]:
        names = ("channels", "height", "width")
        rows = [Dimension(name, size) for name, size in zip(names, shape, strict=True)]
        return (Dimension("batch", BATCH), *rows)

    def _append(self, layer: Layer, shape: Shape) -> None:
        self.layers.append(layer)
        self.position = Position(layer.name, shape)


def alexnet() -> Network:
    """Build the one-tower AlexNet (Krizhevsky, 2014, "One weird trick", arXiv 1404.5997)."""
    net = Images("alexnet", 227)
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


def resnet101() -> Network:
    """Build ResNet-101: bottleneck blocks 3, 4, 23, 3 (He et al., 2015, arXiv 1512.03385,
    table 1).
    """
    return _residual("resnet101", (3, 4, 23, 3), 1)


def wide_resnet50() -> Network:
    """Build ResNet-50 whose bottlenecks are twice as wide inside (Zagoruyko and Komodakis, 2016,
    arXiv 1605.07146, section 3).
    """
    return _residual("wide_resnet50", (3, 4, 6, 3), 2)


def _residual(name: str, stages: tuple[int, ...], wider: int) -> Network:
    net = Images(name, 224)
    net.convolution("conv1", 64, 7, stride=2, padding=3)
    net.pool("pool1", 3, 2, padding=1)
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            stride = 2 if stage > 0 == block else 1
            _bottleneck(
                net=net,
                name=f"stage{stage + 1}.{block}",
                width=64 << stage,
                wider=wider,
                stride=stride,
            )
    net.pool("pool", net.shape[1], net.shape[1], padding=0)
    net.linear("fc", 1000)
    return net.network()


def _bottleneck(net: Images, name: str, width: int, wider: int, stride: int) -> None:
    entry = net.position
    net.convolution(f"{name}.conv1", wider * width, 1)
    net.convolution(f"{name}.conv2", wider * width, 3, stride=stride)
    net.convolution(f"{name}.conv3", 4 * width, 1)
    main = net.position
    net.position = entry
    if name.endswith(".0"):
        net.convolution(f"{name}.shortcut", 4 * width, 1, stride=stride)
    net.join(f"{name}.add", "add", (main, net.position))


def densenet121() -> Network:
    """Build DenseNet-121 (Huang et al., 2016, arXiv 1608.06993, table 1).

    Dense blocks of 6, 12, 24, 16 layers add 32 channels each; each layer reads all channels before
    it, kept as one growing concatenation.
    """
    net = Images("densenet121", 224)
    net.convolution("conv1", 64, 7, stride=2, padding=3)
    net.pool("pool1", 3, 2, padding=1)
    for block, layers in enumerate((6, 12, 24, 16)):
        for layer in range(layers):
            _dense(net, f"block{block + 1}.{layer}")
        if block < 3:
            net.convolution(f"transition{block + 1}.conv", net.shape[0] // 2, 1)
            net.pool(f"transition{block + 1}.pool", 2, 2)
    net.pool("pool", net.shape[1], net.shape[1], padding=0)
    net.linear("fc", 1000)
    return net.network()


def _dense(net: Images, name: str) -> None:
    entry = net.position
    net.convolution(f"{name}.conv1", 128, 1)
    net.convolution(f"{name}.conv2", 32, 3)
    net.join(f"{name}.concat", "concat", (entry, net.position))


def inception_v3() -> Network:
    """Build Inception-V3: 94 convolutions, their pools and concatenations, classifier and loss."""
    net = Images("inception_v3", 299)
    net.convolution("conv1", 32, 3, stride=2, padding=0)
    net.convolution("conv2", 32, 3, padding=0)
    net.convolution("conv3", 64, 3)
    net.pool("pool1", 3, 2)
    net.convolution("conv4", 80, 1)
    net.convolution("conv5", 192, 3, padding=0)
    net.pool("pool2", 3, 2)
    for k, pooled in enumerate((32, 64, 64)):
        _module(net, f"a{k}", _a(pooled))
    _module(
        net,
        "b",
        [[(384, 3, 3, 2)], [(64, 1, 1, 1), (96, 3, 3, 1), (96, 3, 3, 2)], ["pool2"]],
    )
    for k, width in enumerate((128, 160, 160, 192)):
        _module(net, f"c{k}", _c(width))
    _module(net, "d", _d())
    for k in range(2):
        _e(net, f"e{k}")
    net.pool("pool3", net.shape[1], net.shape[1])
    net.linear("fc", 1000)
    return net.network()


def _a(pooled: int) -> list[Branch]:
    double: Branch = [(64, 1, 1, 1), (96, 3, 3, 1), (96, 3, 3, 1)]
    return [
        [(64, 1, 1, 1)],
        [(48, 1, 1, 1), (64, 5, 5, 1)],
        double,
        ["pool", (pooled, 1, 1, 1)],
    ]


def _c(width: int) -> list[Branch]:
    single: Branch = [(width, 1, 1, 1), (width, 1, 7, 1), (192, 7, 1, 1)]
    double: Branch = [
        (width, 1, 1, 1),
        (width, 7, 1, 1),
        (width, 1, 7, 1),
        (width, 7, 1, 1),
    ]
    return [
        [(192, 1, 1, 1)],
        single,
        [*double, (192, 1, 7, 1)],
        ["pool", (192, 1, 1, 1)],
    ]


def _d() -> list[Branch]:
    single: Branch = [(192, 1, 1, 1), (320, 3, 3, 2)]
    double: Branch = [(192, 1, 1, 1), (192, 1, 7, 1), (192, 7, 1, 1), (192, 3, 3, 2)]
    return [single, double, ["pool2"]]


def _module(net: Images, name: str, branches: list[Branch]) -> None:
    entry = net.position
    ends = [
        _branch(net, f"{name}.{k}", entry, branch) for k, branch in enumerate(branches)
    ]
    net.join(f"{name}.concat", "concat", tuple(ends))


def _branch(net: Images, name: str, entry: Position, branch: Branch) -> Position:
    net.position = entry
    for k, item in enumerate(branch):
        if isinstance(item, str):
            keeps_size = item == "pool"
            net.pool(f"{name}.pool", 3, 1 if keeps_size else 2, 1 if keeps_size else 0)
            continue
        filters, rows, columns, stride = item
        padding = 0 if stride == 2 else None
        net.convolution(
            f"{name}.{k}", filters, (rows, columns), stride=stride, padding=padding
        )
    return net.position


def _e(net: Images, name: str) -> None:
    """Append the widest module: two of its branches fork again."""
    entry = net.position
    ends = [_branch(net, f"{name}.0", entry, [(320, 1, 1, 1)])]
    stems: list[Branch] = [[(384, 1, 1, 1)], [(448, 1, 1, 1), (384, 3, 3, 1)]]
    for k, stem in enumerate(stems, start=1):
        fork = _branch(net, f"{name}.{k}.stem", entry, stem)
        ends.append(_branch(net, f"{name}.{k}.wide", fork, [(384, 1, 3, 1)]))
        ends.append(_branch(net, f"{name}.{k}.tall", fork, [(384, 3, 1, 1)]))
    ends.append(_branch(net, f"{name}.3", entry, ["pool", (192, 1, 1, 1)]))
    net.join(f"{name}.concat", "concat", tuple(ends))
