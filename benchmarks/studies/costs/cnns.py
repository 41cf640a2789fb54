"""The 32 convolutional networks of pytorch-gpu-benchmark, as torchvision 0.8 defines them.

ResNet, ResNeXt and wide ResNet (He et al., 2016; Xie et al., 2017; Zagoruyko, 2016), DenseNet
(Huang et al., 2017), VGG (Simonyan, 2015), SqueezeNet (Iandola, 2016), MobileNetV2 (Sandler, 2018),
MNASNet (Tan, 2019), ShuffleNetV2 (Ma, 2018). They are here for their op times alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import nn

IMAGE, CLASSES = 224, 1000


def convolved(
    source: int,
    out: int,
    window: int = 3,
    stride: int = 1,
    groups: int = 1,
    relu: str = "relu",
) -> nn.Sequential:
    """Convolution, batch norm and, unless it is named otherwise, a rectifier."""
    layers: list[nn.Module] = [
        nn.Conv2d(source, out, window, stride, window // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
    ]
    rectifiers = {"relu": nn.ReLU, "relu6": nn.ReLU6}
    return nn.Sequential(*layers, *([rectifiers[relu](inplace=True)] if relu else []))


class Residual(nn.Module):
    """What a body makes, added to its input or to a shortcut."""

    def __init__(
        self, body: nn.Module, shortcut: nn.Module | None, rectify: bool = True
    ) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut
        self.last = nn.ReLU(inplace=True) if rectify else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of images."""
        return self.last(
            self.body(x) + (x if self.shortcut is None else self.shortcut(x))
        )


def resnet(
    depths: tuple[int, ...], deep: bool, groups: int = 1, width: int = 64
) -> nn.Module:
    """ResNets, of bottlenecks if deep."""
    stages: list[nn.Module] = []
    source, expansion = 64, 4 if deep else 1
    for number, depth in enumerate(depths):
        planes = 64 * 2**number
        inner = planes * width // 64 * groups
        for block in range(depth):
            stride = 2 if number and not block else 1
            shortcut = None
            if stride > 1 or source != planes * expansion:
                shortcut = convolved(source, planes * expansion, 1, stride, relu="")
            body = [
                convolved(source, planes, 3, stride),
                convolved(planes, planes, relu=""),
            ]
            if deep:
                body = [
                    convolved(source, inner, 1),
                    convolved(inner, inner, 3, stride, groups),
                    convolved(inner, planes * 4, 1, relu=""),
                ]
            stages.append(Residual(nn.Sequential(*body), shortcut))
            source = planes * expansion
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(source, CLASSES)]
    return nn.Sequential(convolved(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), *stages, *head)


class DenseLayer(nn.Module):
    """Appends channels to those that it gets."""

    def __init__(self, source: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_before(source), nn.Conv2d(source, 4 * growth, 1, bias=False),
            *_before(4 * growth), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of images."""
        return torch.cat([x, self.body(x)], 1)


def _before(source: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(source), nn.ReLU(inplace=True)]


def densenet(depths: tuple[int, ...], growth: int = 32, source: int = 64) -> nn.Module:
    """DenseNets."""
    layers: list[nn.Module] = [convolved(3, source, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for number, depth in enumerate(depths):
        for _ in range(depth):
            layers.append(DenseLayer(source, growth))
            source += growth
        if number < len(depths) - 1:
            layers += [*_before(source), nn.Conv2d(source, source // 2, 1, bias=False)]
            layers.append(nn.AvgPool2d(2))
            source //= 2
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(source, CLASSES)]
    return nn.Sequential(*layers, *_before(source), *head)


def vgg(depths: tuple[int, ...], norm: bool) -> nn.Module:
    """VGG, with batch norm or without."""
    layers: list[nn.Module] = []
    source = 3
    for depth, out in zip(depths, (64, 128, 256, 512, 512), strict=True):
        for _ in range(depth):
            layers.append(nn.Conv2d(source, out, 3, padding=1))
            layers += [nn.BatchNorm2d(out)] if norm else []
            layers.append(nn.ReLU(inplace=True))
            source = out
        layers.append(nn.MaxPool2d(2))
    wide = [
        nn.Linear(512 * 49, 4096),
        nn.ReLU(True),
        nn.Dropout(),
        nn.Linear(4096, 4096),
    ]
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        *wide,
        nn.ReLU(True),
        nn.Dropout(),
        nn.Linear(4096, CLASSES),
    )


class Fire(nn.Module):
    """Squeezes, then expands by windows of 1 and 3."""

    def __init__(self, source: int, squeezed: int, out: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(
            nn.Conv2d(source, squeezed, 1), nn.ReLU(inplace=True)
        )
        self.one = nn.Sequential(nn.Conv2d(squeezed, out, 1), nn.ReLU(inplace=True))
        self.three = nn.Sequential(
            nn.Conv2d(squeezed, out, 3, padding=1), nn.ReLU(inplace=True)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of images."""
        x = self.squeeze(x)
        return torch.cat([self.one(x), self.three(x)], 1)


def squeezenet(newer: bool) -> nn.Module:
    """SqueezeNet 1.0 or 1.1."""
    fires = [
        (16, 64),
        (16, 64),
        (32, 128),
        (32, 128),
        (48, 192),
        (48, 192),
        (64, 256),
        (64, 256),
    ]
    pools = (0, 2, 4) if newer else (0, 3, 7)
    source, window = (64, 3) if newer else (96, 7)
    layers: list[nn.Module] = [nn.Conv2d(3, source, window, 2), nn.ReLU(inplace=True)]
    for number, (squeezed, out) in enumerate(fires):
        layers += [nn.MaxPool2d(3, 2, ceil_mode=True)] if number in pools else []
        layers.append(Fire(source, squeezed, out))
        source = 2 * out
    last = [nn.Dropout(), nn.Conv2d(source, CLASSES, 1), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, *last, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def inverted(
    source: int, out: int, wider: int, window: int, stride: int, relu: str
) -> nn.Module:
    """Expands, convolves each channel by itself, projects."""
    inner = source * wider
    body = [convolved(source, inner, 1, relu=relu)] if wider > 1 else []
    body += [
        convolved(inner, inner, window, stride, inner, relu),
        convolved(inner, out, 1, relu=""),
    ]
    made = nn.Sequential(*body)
    return (
        Residual(made, None, rectify=False) if stride == 1 and source == out else made
    )


def mobilenet() -> nn.Module:
    """MobileNetV2."""
    blocks = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
              (6, 160, 3, 2), (6, 320, 1, 1)]  # fmt: skip
    layers: list[nn.Module] = [convolved(3, 32, 3, 2, relu="relu6")]
    source = 32
    for wider, out, count, stride in blocks:
        for number in range(count):
            layers.append(
                inverted(source, out, wider, 3, 1 if number else stride, "relu6")
            )
            source = out
    last = [
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(1280, CLASSES),
    ]
    return nn.Sequential(*layers, convolved(320, 1280, 1, relu="relu6"), *last)


def mnasnet(alpha: float) -> nn.Module:
    """MNASNet of a width."""
    blocks = [(24, 3, 2, 3, 3), (40, 5, 2, 3, 3), (80, 5, 2, 6, 3), (96, 3, 1, 6, 2),
              (192, 5, 2, 6, 4), (320, 3, 1, 6, 1)]  # fmt: skip
    first, source = _eighths(32 * alpha), _eighths(16 * alpha)
    layers: list[nn.Module] = [
        convolved(3, first, 3, 2),
        convolved(first, first, 3, 1, first),
        convolved(first, source, 1, relu=""),
    ]
    for width, window, stride, wider, count in blocks:
        out = _eighths(width * alpha)
        for number in range(count):
            layers.append(
                inverted(source, out, wider, window, 1 if number else stride, "relu")
            )
            source = out
    last = [
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(1280, CLASSES),
    ]
    return nn.Sequential(*layers, convolved(source, 1280, 1), *last)


def _eighths(width: float) -> int:
    rounded = max(8, int(width + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * width else rounded + 8


class Shuffle(nn.Module):
    """Halves of the channels apart, one of them convolved, then shuffled."""

    def __init__(self, source: int, out: int, stride: int) -> None:
        super().__init__()
        half, given = out // 2, source if stride > 1 else out // 2
        self.stride = stride
        self.side = (
            nn.Sequential(
                convolved(given, given, 3, 2, given, ""), convolved(given, half, 1)
            )
            if stride > 1
            else nn.Identity()
        )
        self.body = nn.Sequential(
            convolved(given, half, 1), convolved(half, half, 3, stride, half, ""),
            convolved(half, half, 1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of images."""
        first, second = (x, x) if self.stride > 1 else x.chunk(2, 1)
        joined = torch.cat([self.side(first), self.body(second)], 1)
        batch, channels, height, width = joined.shape
        paired = joined.view(batch, 2, channels // 2, height, width).transpose(1, 2)
        return paired.contiguous().view(batch, channels, height, width)


def shufflenet(*widths: int) -> nn.Module:
    """ShuffleNetV2 of given widths."""
    layers: list[nn.Module] = [convolved(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)]
    source = 24
    for out, count in zip(widths[:3], (4, 8, 4), strict=True):
        layers += [
            Shuffle(source if not i else out, out, 1 if i else 2) for i in range(count)
        ]
        source = out
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[3], CLASSES)]
    return nn.Sequential(*layers, convolved(source, widths[3], 1), *last)


VGG = {
    "11": (1, 1, 2, 2, 2),
    "13": (2,) * 5,
    "16": (2, 2, 3, 3, 3),
    "19": (2, 2, 4, 4, 4),
}
NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: resnet((2, 2, 2, 2), False),
    "resnet34": lambda: resnet((3, 4, 6, 3), False),
    "resnet50": lambda: resnet((3, 4, 6, 3), True),
    "resnet101": lambda: resnet((3, 4, 23, 3), True),
    "resnet152": lambda: resnet((3, 8, 36, 3), True),
    "resnext50_32x4d": lambda: resnet((3, 4, 6, 3), True, 32, 4),
    "resnext101_32x8d": lambda: resnet((3, 4, 23, 3), True, 32, 8),
    "wide_resnet50_2": lambda: resnet((3, 4, 6, 3), True, 1, 128),
    "wide_resnet101_2": lambda: resnet((3, 4, 23, 3), True, 1, 128),
    "densenet121": lambda: densenet((6, 12, 24, 16)),
    "densenet169": lambda: densenet((6, 12, 32, 32)),
    "densenet201": lambda: densenet((6, 12, 48, 32)),
    "densenet161": lambda: densenet((6, 12, 36, 24), 48, 96),
    "squeezenet1_0": lambda: squeezenet(False),
    "squeezenet1_1": lambda: squeezenet(True),
    "mobilenet_v2": mobilenet,
    "mnasnet0_5": lambda: mnasnet(0.5),
    "mnasnet0_75": lambda: mnasnet(0.75),
    "mnasnet1_0": lambda: mnasnet(1.0),
    "mnasnet1_3": lambda: mnasnet(1.3),
    "shufflenet_v2_x0_5": lambda: shufflenet(48, 96, 192, 1024),
    "shufflenet_v2_x1_0": lambda: shufflenet(116, 232, 464, 1024),
    "shufflenet_v2_x1_5": lambda: shufflenet(176, 352, 704, 1024),
    "shufflenet_v2_x2_0": lambda: shufflenet(244, 488, 976, 2048),
    **{f"vgg{n}": partial(vgg, depths, False) for n, depths in VGG.items()},
    **{f"vgg{n}_bn": partial(vgg, depths, True) for n, depths in VGG.items()},
}


def network(
    name: str, batch: int
) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor], nn.Module]:
    """A network, images with their classes, and its loss."""
    images = torch.zeros(batch, 3, IMAGE, IMAGE)
    classes = torch.zeros(batch, dtype=torch.long)
    return NETWORKS[name]().train(), (images, classes), nn.CrossEntropyLoss()
