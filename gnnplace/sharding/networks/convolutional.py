"""Layer graphs of convolutional networks: AlexNet, ResNet, wide ResNet, DenseNet."""

from __future__ import annotations

from gnnplace.sharding.layers import Network
from gnnplace.sharding.networks.stack import Images


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
    return _residual("resnet101", batch, (3, 4, 23, 3), 1)


def wide_resnet50(batch: int = 128) -> Network:
    """Zagoruyko and Komodakis, 2016 (arXiv 1605.07146), section 3: ResNet-50 whose bottlenecks are
    twice as wide inside.
    """
    return _residual("wide_resnet50", batch, (3, 4, 6, 3), 2)


def _residual(name: str, batch: int, stages: tuple[int, ...], wider: int) -> Network:
    net = Images(name, batch, 224)
    net.convolution("conv1", 64, 7, stride=2, padding=3)
    net.pool("pool1", 3, 2, padding=1)
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            stride = 2 if stage > 0 == block else 1
            _bottleneck(net, f"stage{stage + 1}.{block}", 64 << stage, wider, stride)
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


def densenet121(batch: int = 128) -> Network:
    """Huang et al., 2016 (arXiv 1608.06993), table 1: dense blocks of 6, 12, 24, 16 layers with 32
    new channels each; each layer reads all channels before it, kept as one growing concatenation.
    """
    net = Images("densenet121", batch, 224)
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
