"""Inception-V3 (Szegedy et al., 2015, arXiv 1512.00567, as released: 299 x 299, no second head)."""

from __future__ import annotations

from gnnplace.sharding.layers import Network
from gnnplace.sharding.networks.stack import Images, Position

# A branch is a list of (filters, rows, columns, stride) convolutions; "pool" is an average or
# maximum pooling of 3 x 3 with the stride of the module.
Convolution = tuple[int, int, int, int]
Branch = list[Convolution | str]


def inception_v3(batch: int = 128) -> Network:
    """The 94 convolutions, their pools and concatenations, the classifier and the loss."""
    net = Images("inception_v3", batch, 299)
    net.convolution("conv1", 32, 3, stride=2, padding=0)
    net.convolution("conv2", 32, 3, padding=0)
    net.convolution("conv3", 64, 3)
    net.pool("pool1", 3, 2)
    net.convolution("conv4", 80, 1)
    net.convolution("conv5", 192, 3, padding=0)
    net.pool("pool2", 3, 2)
    for k, pooled in enumerate((32, 64, 64)):
        _module(net, f"a{k}", _a(pooled))
    _module(net, "b", [[(384, 3, 3, 2)], [(64, 1, 1, 1), (96, 3, 3, 1), (96, 3, 3, 2)], ["pool2"]])
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
    return [[(64, 1, 1, 1)], [(48, 1, 1, 1), (64, 5, 5, 1)], double, ["pool", (pooled, 1, 1, 1)]]


def _c(width: int) -> list[Branch]:
    single: Branch = [(width, 1, 1, 1), (width, 1, 7, 1), (192, 7, 1, 1)]
    double: Branch = [(width, 1, 1, 1), (width, 7, 1, 1), (width, 1, 7, 1), (width, 7, 1, 1)]
    return [[(192, 1, 1, 1)], single, [*double, (192, 1, 7, 1)], ["pool", (192, 1, 1, 1)]]


def _d() -> list[Branch]:
    single: Branch = [(192, 1, 1, 1), (320, 3, 3, 2)]
    double: Branch = [(192, 1, 1, 1), (192, 1, 7, 1), (192, 7, 1, 1), (192, 3, 3, 2)]
    return [single, double, ["pool2"]]


def _module(net: Images, name: str, branches: list[Branch]) -> None:
    entry = net.position
    ends = [_branch(net, f"{name}.{k}", entry, branch) for k, branch in enumerate(branches)]
    net.join(f"{name}.concat", "concat", tuple(ends))


def _branch(net: Images, name: str, entry: Position, branch: Branch) -> Position:
    net.position = entry
    for k, item in enumerate(branch):
        if isinstance(item, str):
            whole = item == "pool"
            net.pool(f"{name}.pool", 3, 1 if whole else 2, 1 if whole else 0)
            continue
        filters, rows, columns, stride = item
        padding = 0 if stride == 2 else None
        net.convolution(f"{name}.{k}", filters, (rows, columns), stride=stride, padding=padding)
    return net.position


def _e(net: Images, name: str) -> None:
    """The widest module: two of its branches fork again."""
    entry = net.position
    ends = [_branch(net, f"{name}.0", entry, [(320, 1, 1, 1)])]
    stems: list[Branch] = [[(384, 1, 1, 1)], [(448, 1, 1, 1), (384, 3, 3, 1)]]
    for k, stem in enumerate(stems, start=1):
        fork = _branch(net, f"{name}.{k}.stem", entry, stem)
        ends.append(_branch(net, f"{name}.{k}.wide", fork, [(384, 1, 3, 1)]))
        ends.append(_branch(net, f"{name}.{k}.tall", fork, [(384, 3, 1, 1)]))
    ends.append(_branch(net, f"{name}.3", entry, ["pool", (192, 1, 1, 1)]))
    net.join(f"{name}.concat", "concat", tuple(ends))
