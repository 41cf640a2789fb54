"""Random small models with losses: what users may write, drawn by a seed.

A model is a chain of pieces on one kind of tensor (rows, sequences or images); pieces change what
flows, wrap other pieces (residual, checkpoint, autocast, hooks, frozen, eval mode) or do what
training code does beside computing (buffers, detached branches, gradients inside the step).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

WIDTH = 8
BATCH = 4
Draw = random.Random


@dataclass
class Drawn:
    """A model, its inputs (targets last) and its loss; what it is made of, for messages.

    Attributes:
        half: Some of it is computed in bfloat16.
    """

    model: nn.Module
    inputs: tuple[Any, ...]
    loss: Callable[..., torch.Tensor]
    parts: list[str]
    half: bool


class Function(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


class Around(nn.Module):
    """Calls `wrap(inner, x)`."""

    def __init__(self, inner: nn.Module, wrap: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.wrap = inner, wrap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.wrap(self.inner, x)


class Averaged(nn.Module):
    """Subtracts a running mean, changed in place or bound anew."""

    def __init__(self, width: int, anew: bool) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.anew = anew

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        now = x.detach().reshape(-1, x.shape[-1]).mean(0)
        self.calls += 1
        if self.anew:
            self.mean = 0.9 * self.mean + 0.1 * now
        else:
            self.mean.mul_(0.9).add_(now, alpha=0.1)
        return x - self.mean


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.sign(x) * x.abs().sqrt()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 0.5


# Pieces that keep the shape ----------------------------------------------------------------------

ANYWHERE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "tanh": torch.tanh,
    "softplus": functional.softplus,
    "leaky": lambda x: functional.leaky_relu(x, 0.2),
    "hardswish": functional.hardswish,
    "sine": lambda x: torch.sin(x) + x,
    "in_place": lambda x: (x * 1.0).add_(1).mul_(0.5),
    "masked": lambda x: x.masked_fill(x > 1, 0.5),
    "where": lambda x: torch.where(x > 0, x, 0.1 * x),
    "clamp": lambda x: x.clamp(-1, 2),
    "softmax": lambda x: torch.softmax(x, -1) * x.shape[-1],
    "cumsum": lambda x: torch.cumsum(x, -1) / x.shape[-1],
    "flip": lambda x: torch.cat([x.flip(-1)[..., :3], x[..., 3:]], -1),
    "halves": lambda x: torch.cat(
        [a * b for a, b in [x.chunk(2, -1), x.chunk(2, -1)[::-1]]], -1
    ),
    "sorted": lambda x: x.sort(-1).values,
    "topk": lambda x: x + x.topk(2, -1).values.mean(-1, keepdim=True),
    "index": lambda x: x[..., torch.arange(x.shape[-1]).flip(0)],
    "written": lambda x: x.clone().index_fill_(-1, torch.tensor([0]), 0.0) + x.mean(),
    "norm": lambda x: x / (x.norm(dim=-1, keepdim=True) + 1),
    "double": lambda x: torch.tanh(x.double()).to(x.dtype),
    "stopped": lambda x: x + torch.tanh(x).detach(),
    "rounded": lambda x: x + (torch.round(x) - x).detach(),
    "own_backward": Straight.apply,
    "dropout": lambda x: functional.dropout(x, 0.3),
    "noise": lambda x: x + 0.1 * torch.randn_like(x),
    "clipped_gradient": lambda x: _hooked(
        x * 1.0, lambda grad: grad.clamp(-0.01, 0.01)
    ),
    "scaled_gradient": lambda x: _hooked(x * 1.0, lambda grad: grad * 0.5),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.1),
    "logsumexp": lambda x: x - torch.logsumexp(x, -1, keepdim=True),
    "expanded": lambda x: x + x[:1].expand_as(x),
    "strided": lambda x: (
        torch.as_strided(x.contiguous(), x.shape, x.contiguous().stride()) * 2
    ),
    "complex": lambda x: (
        torch.fft.rfft(x.float(), dim=-1).abs().sum(-1, True).to(x.dtype) * 0.1 + x
    ),
}


def _hooked(
    x: torch.Tensor, hook: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    if x.requires_grad:
        x.register_hook(hook)
    return x


def _linear(draw: Draw) -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH, bias=draw.random() < 0.7)
    kind = draw.choice(["plain"] * 4 + ["weight", "spectral", "orthogonal"])
    change = {
        "weight": parametrizations.weight_norm,
        "spectral": parametrizations.spectral_norm,
        "orthogonal": parametrizations.orthogonal,
    }
    return change[kind](layer) if kind in change else layer


def _attention(draw: Draw) -> nn.Module:
    layer = nn.MultiheadAttention(WIDTH, draw.choice([1, 2]), batch_first=True)
    wanted = draw.random() < 0.5
    return Around(layer, lambda inner, x: inner(x, x, x, need_weights=wanted)[0])


def _recurrent(draw: Draw) -> nn.Module:
    kind = draw.choice([nn.GRU, nn.LSTM, nn.RNN])
    layer = kind(WIDTH, WIDTH, num_layers=draw.choice([1, 2]), batch_first=True)
    return Around(layer, lambda inner, x: inner(x)[0])


def _attention_by_hand(draw: Draw) -> nn.Module:
    causal = draw.random() < 0.5

    def attend(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
        q, k, v = inner(x).chunk(3, -1)
        return functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return Around(nn.Linear(WIDTH, 3 * WIDTH), attend)


def _convolution(draw: Draw) -> nn.Module:
    groups, dilation = draw.choice([1, 2, WIDTH]), draw.choice([1, 2])
    options = {"padding": dilation, "dilation": dilation, "groups": groups}
    mode = draw.choice(["zeros", "circular", "reflect"])
    return nn.Conv2d(WIDTH, WIDTH, 3, padding_mode=mode, **options)


Maker = Callable[[Draw], nn.Module]
ROWS: dict[str, Maker] = {
    "linear": _linear,
    "layer_norm": lambda draw: nn.LayerNorm(WIDTH),
    "batch_norm": lambda draw: nn.BatchNorm1d(WIDTH, momentum=draw.choice([0.1, 0.5])),
    "glu": lambda draw: nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GLU()),
    "bilinear": lambda draw: Around(
        nn.Bilinear(WIDTH, WIDTH, WIDTH), lambda m, x: m(x, x)
    ),
    "prelu": lambda draw: nn.PReLU(WIDTH),
    "averaged": lambda draw: Averaged(WIDTH, draw.random() < 0.5),
}
SEQUENCES: dict[str, Maker] = {
    "linear": _linear,
    "layer_norm": lambda draw: nn.LayerNorm(WIDTH),
    "attention": _attention,
    "attention_by_hand": _attention_by_hand,
    "encoder": lambda draw: nn.TransformerEncoderLayer(
        WIDTH, 2, 16, dropout=draw.choice([0.0, 0.2]), batch_first=True
    ),
    "recurrent": _recurrent,
    "convolution": lambda draw: Around(
        nn.Conv1d(WIDTH, WIDTH, 3, padding=1), lambda m, x: m(x.mT).mT
    ),
    "averaged": lambda draw: Averaged(WIDTH, draw.random() < 0.5),
    "einsum": lambda draw: Function(
        lambda x: torch.einsum("btd,bsd->bts", x, x) @ x * 0.1
    ),
}
IMAGES: dict[str, Maker] = {
    "convolution": _convolution,
    "batch_norm": lambda draw: nn.BatchNorm2d(WIDTH),
    "group_norm": lambda draw: nn.GroupNorm(2, WIDTH),
    "instance_norm": lambda draw: nn.InstanceNorm2d(
        WIDTH, affine=True, track_running_stats=True
    ),
    "pool": lambda draw: draw.choice(
        [nn.MaxPool2d(3, 1, 1), nn.AvgPool2d(3, 1, 1), nn.LPPool2d(2, 1)]
    ),
    "up_and_down": lambda draw: nn.Sequential(
        nn.Upsample(scale_factor=2, mode=draw.choice(["nearest", "bilinear"])),
        nn.MaxPool2d(2),
    ),
    "transposed": lambda draw: nn.ConvTranspose2d(WIDTH, WIDTH, 3, padding=1),
    "dropout": lambda draw: nn.Dropout2d(0.3),
    "shuffled": lambda draw: nn.Sequential(nn.PixelShuffle(2), nn.PixelUnshuffle(2)),
}
KINDS = {"rows": ROWS, "sequences": SEQUENCES, "images": IMAGES}


# Pieces around others ----------------------------------------------------------------------------


def _half(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return inner(x).to(x.dtype)


def _beside(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        seen = inner(x)
    return x + seen


def _energy(inner: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A step along the gradient of the inner piece, which is itself differentiated."""
    with torch.enable_grad():
        y = x if x.requires_grad else x.detach().requires_grad_(True)
        (grad,) = torch.autograd.grad(
            inner(y).float().pow(2).sum(), y, create_graph=True
        )
    return x - 0.1 * grad.to(x.dtype)


WRAPS: dict[str, Callable[..., torch.Tensor]] = {
    "residual": lambda inner, x: x + inner(x),
    "checkpoint": lambda inner, x: checkpoint(inner, x, use_reentrant=False),
    "checkpoint_reentrant": lambda inner, x: checkpoint(inner, x, use_reentrant=True),
    "checkpoint_residual": lambda inner, x: (
        x + checkpoint(inner, x, use_reentrant=False)
    ),
    "autocast": _half,
    "no_grad": _beside,
    "twice": lambda inner, x: inner(torch.tanh(inner(x))),
    "energy": _energy,
}
CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "frozen": lambda module: module.requires_grad_(False),
    "eval": lambda module: module.eval(),
    "forward_hook": lambda m: m.register_forward_hook(
        lambda module, inputs, output: output * 0.9
    ),
    "backward_hook": lambda m: m.register_full_backward_hook(
        lambda module, into, out: (None if into[0] is None else into[0] * 0.9,)
    ),
    "gradient_hooks": lambda m: [
        p.register_hook(lambda g: g * 0.5) for p in m.parameters() if p.requires_grad
    ],
}


def _piece(draw: Draw, kind: str, parts: list[str], depth: int = 0) -> nn.Module:
    if draw.random() < 0.35:
        name = draw.choice(sorted(ANYWHERE))
        parts.append(name)
        module: nn.Module = Function(ANYWHERE[name])
    else:
        name = draw.choice(sorted(KINDS[kind]))
        parts.append(name)
        module = KINDS[kind][name](draw)
    if depth < 2 and draw.random() < 0.4:
        more = [_piece(draw, kind, parts, depth + 1) for _ in range(draw.randint(0, 2))]
        name = draw.choice(sorted(WRAPS))
        parts.append(f"{name}(...)")
        module = Around(nn.Sequential(module, *more), WRAPS[name])
    if draw.random() < 0.2:
        name = draw.choice(sorted(CHANGES))
        parts.append(name)
        CHANGES[name](module)
    return module


class Chain(nn.Module):
    """Pieces one after the other, between an entrance and a head."""

    def __init__(
        self, entrance: nn.Module, pieces: list[nn.Module], head: nn.Module
    ) -> None:
        super().__init__()
        self.entrance, self.pieces, self.head = entrance, nn.Sequential(*pieces), head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pieces(self.entrance(x))
        return self.head(x.flatten(2).mean(2) if x.dim() == 4 else x)


def _ends(draw: Draw, kind: str) -> tuple[torch.Tensor, nn.Module]:
    generator = torch.Generator().manual_seed(draw.randrange(10**6))
    if kind == "images":
        return torch.randn(BATCH, 3, 8, 8, generator=generator), nn.Conv2d(
            3, WIDTH, 3, padding=1
        )
    if kind == "sequences":
        words = torch.randint(11, (BATCH, 4), generator=generator)
        return words, nn.Embedding(11, WIDTH, padding_idx=draw.choice([None, 0]))
    return torch.randn(BATCH, WIDTH, generator=generator), nn.Linear(WIDTH, WIDTH)


# Losses ------------------------------------------------------------------------------------------


def _classes(
    output: torch.Tensor, targets: torch.Tensor, **options: Any
) -> torch.Tensor:
    return functional.cross_entropy(
        output.reshape(-1, WIDTH), targets.reshape(-1), **options
    )


def _near(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.one_hot(targets, WIDTH).to(output.dtype)


LOSSES: dict[str, Callable[..., torch.Tensor]] = {
    "cross_entropy": _classes,
    "smoothed": lambda out, y: _classes(out, y, label_smoothing=0.1),
    "ignoring": lambda out, y: _classes(out, y, ignore_index=1),
    "weighted": lambda out, y: _classes(
        out, y, weight=torch.linspace(0.5, 1.5, WIDTH, dtype=out.dtype)
    ),
    "summed": lambda out, y: _classes(out, y, reduction="sum"),
    "square": lambda out, y: functional.mse_loss(out, _near(out, y)),
    "huber": lambda out, y: functional.huber_loss(out, _near(out, y)),
    "absolute": lambda out, y: functional.l1_loss(out, _near(out, y)),
    "binary": lambda out, y: functional.binary_cross_entropy_with_logits(
        out, _near(out, y)
    ),
    "divergence": lambda out, y: functional.kl_div(
        functional.log_softmax(out, -1), _near(out, y), reduction="batchmean"
    ),
    "margin": lambda out, y: functional.multi_margin_loss(
        out.reshape(-1, WIDTH), y.reshape(-1), margin=0.5
    ),
    "cosine": lambda out, y: (
        1 - functional.cosine_similarity(out, _near(out, y) + 0.1, -1).mean()
    ),
    "pairs": lambda out, y: torch.logsumexp(
        (out.reshape(-1, WIDTH) @ out.reshape(-1, WIDTH).T) * 0.1, 1
    ).mean(),
    "masked": lambda out, y: (
        (out.square() * (y > 2).unsqueeze(-1)).sum() / ((y > 2).sum() + 1)
    ),
    "spread": lambda out, y: out.var() + (out - _near(out, y)).abs().max(),
}


def _penalised(model: nn.Module, loss: Callable[..., torch.Tensor]) -> Any:
    def penalised(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        size = torch.stack([p.square().sum() for p in model.parameters()]).sum()
        return loss(output, targets) + 0.01 * size

    return penalised


def drawn(seed: int) -> Drawn:
    """The model of a seed, the same at every call."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    kind = draw.choice(sorted(KINDS))
    example, entrance = _ends(draw, kind)
    parts = [kind]
    pieces = [_piece(draw, kind, parts) for _ in range(draw.randint(1, 5))]
    head = nn.Linear(WIDTH, WIDTH)
    if draw.random() < 0.2 and isinstance(entrance, nn.Linear):
        head.weight = entrance.weight
        parts.append("tied")
    model = Chain(entrance, pieces, head)
    name = draw.choice(sorted(LOSSES))
    loss = LOSSES[name]
    parts.append(f"loss {name}")
    if draw.random() < 0.2:
        parts.append("penalty")
        loss = _penalised(model, loss)
    shape = (BATCH, 4) if kind == "sequences" else (BATCH,)
    targets = torch.randint(WIDTH, shape, generator=torch.Generator().manual_seed(seed))
    return Drawn(model, (example, targets), loss, parts, "autocast(...)" in parts)


HARD = {"clipped_gradient", "scaled_gradient", "own_backward", "checkpoint_reentrant(...)",
        "autocast(...)", "energy(...)", "backward_hook", "gradient_hooks", "averaged",
        "loss pairs", "loss spread", "written", "expanded"}  # fmt: skip
"""What plans refuse by their page, or what mixes the examples of a batch."""
HARD_ONES = 10
"""One model of so many may have it."""


def usual(seed: int) -> Drawn:
    """The model of a seed, drawn again while it has what is hard, but for one of ten."""
    again = (seed + 10_000 * k for k in itertools.count())
    cases = (drawn(each) for each in again)
    return next(
        c for c in cases if seed % HARD_ONES == 0 or not HARD.intersection(c.parts)
    )
