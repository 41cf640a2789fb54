"""Losses that a cut batch must get right, or that must be refused: model, batch and loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gnnplace.zoo import Workload

BATCH = 8
RANDOM = torch.Generator().manual_seed(0)
X = torch.randn(BATCH, 4, generator=RANDOM)
T = torch.randn(BATCH, 3, generator=RANDOM)
Y = torch.randint(3, (BATCH,), generator=RANDOM)
MASK = torch.tensor([1.0, 1, 1, 0, 1, 0, 0, 0])
"""Of the first four examples three count, of the last four one."""
WORDS = torch.randn(BATCH, 5, 4, generator=RANDOM)
TAGS = torch.randint(3, (BATCH, 5), generator=RANDOM)
TAGS[:3, 2:] = TAGS[5, 1:] = -100  # padding


def net(out: int = 3, *between: nn.Module) -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 6), *between, nn.Tanh(), nn.Linear(6, out))


class Tagger(nn.Module):
    """Scores of every word, flat."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.net(words).flatten(0, 1)


class Towers(nn.Module):
    """Two towers, as CLIP has them."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = net(), net()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.left(x), self.right(y)


class Experts(nn.Module):
    """A mixture of experts, with an auxiliary loss of its gates."""

    def __init__(self, auxiliary: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.gate, self.experts = (
            nn.Linear(4, 3),
            nn.ModuleList(nn.Linear(4, 3) for _ in range(3)),
        )
        self.auxiliary = auxiliary

    def forward(self, x: torch.Tensor) -> Any:
        scores = self.gate(x)
        gates = scores.softmax(-1)
        mixed = sum(gates[:, i : i + 1] * e(x) for i, e in enumerate(self.experts))
        return mixed, self.auxiliary(scores)


class Decayed(nn.Module):
    """Returns the square of its parameters too."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x), sum(p.square().sum() for p in self.net.parameters())


class Normed(nn.Module):
    """Takes statistics of its inputs over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net((x - x.mean(0)) / (x.std(0) + 1e-5))


class Entropy(nn.Module):
    """Cross entropy of flat scores."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.entropy = nn.CrossEntropyLoss(**options)

    def forward(self, scores: torch.Tensor, tags: torch.Tensor) -> torch.Tensor:
        return self.entropy(scores, tags.flatten())


class Sorted(nn.Module):
    """Puts the examples into another order and back, as a mixture of experts may."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        order = x[:, 0].argsort()
        return self.net(x[order])[order.argsort()]


def masked(
    found: torch.Tensor, target: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    return ((found - target).square().mean(-1) * mask).sum() / mask.sum()


def clamped(
    found: torch.Tensor, target: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    return ((found - target).square().mean(-1) * mask).sum() / mask.sum().clamp(min=1)


def squares(found: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (found - target).square().sum()


def looped(found: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    pairs: Iterable[Any] = zip(found, target, strict=True)
    return torch.stack([functional.mse_loss(one, other) for one, other in pairs]).mean()


def clip(towers: Any) -> torch.Tensor:
    left, right = (functional.normalize(tower, dim=-1) for tower in towers)
    scores, own = 5 * left @ right.T, torch.arange(len(left))
    return functional.cross_entropy(scores, own) + functional.cross_entropy(
        scores.T, own
    )


def mined(found: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    distance, alike = torch.cdist(found, found), labels[:, None] == labels[None]
    hardest = (distance * alike).amax(1) - (distance + 100 * alike).amin(1)
    return functional.relu(hardest + 0.2).mean()


def balanced(scores: torch.Tensor) -> torch.Tensor:
    """Of the Switch transformer: share of the tokens times mean gate, of every expert."""
    gates = scores.softmax(-1)
    share = functional.one_hot(gates.argmax(-1), 3).float().mean(0)
    return 3 * (share * gates.mean(0)).sum()


def with_auxiliary(found: Any, target: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(found[0], target) + 0.1 * found[1]


def case(model: nn.Module, inputs: tuple[torch.Tensor, ...], loss: Any) -> Workload:
    return Workload(type(model).__name__, model, inputs, loss)


class Rotated(nn.Module):
    """Positions turned as complex numbers, then a filter of frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.filter = (
            net(),
            nn.Parameter(torch.randn(3, dtype=torch.cfloat)),
        )
        self.register_buffer("turns", torch.polar(torch.ones(2), torch.arange(2.0)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = torch.view_as_complex(x.unflatten(-1, (2, 2))) * self.turns
        waves = torch.fft.rfft(torch.view_as_real(turned).flatten(-2)) * self.filter
        spectrum = torch.fft.fftn(self.layer(x)[:, None], dim=(-2, -1))
        return torch.fft.irfft(waves, n=4).sum(-1, keepdim=True) + spectrum.abs().mean(
            1
        )


WEIGHTS = torch.tensor([1.0, 2.0, 0.5])
RIGHT: dict[str, Callable[[], Workload]] = {
    "mean": lambda: case(net(), (X, T), functional.mse_loss),
    "sum over the size": lambda: case(
        net(), (X, T), lambda o, t: squares(o, t) / len(o)
    ),
    "shares of classes": lambda: case(net(), (X, T.softmax(-1)), nn.CrossEntropyLoss()),
    "mean of each": lambda: case(
        net(),
        (X, Y),
        lambda o, y: functional.cross_entropy(o, y, reduction="none").mean(),
    ),
    "beside an empty cache": lambda: case(
        net(),
        (X, T),
        lambda o, t: (
            (torch.cat((torch.tensor([]), o[:, None]), -2)[:, 0] - t).square().mean()
        ),
    ),
    "triplets given": lambda: case(
        net(),
        (WORDS,),
        lambda o: functional.triplet_margin_loss(o[:, 0], o[:, 1], o[:, 2]),
    ),
    "router's z": lambda: case(
        Experts(lambda s: s.logsumexp(-1).square().mean()), (X, T), with_auxiliary
    ),
    "l2 beside a mean": lambda: case(Decayed(), (X, T), with_auxiliary),
    "dict": lambda: case(
        net(),
        (X, T),
        lambda o, t: {"loss": functional.mse_loss(o, t), "size": o.square().sum()},
    ),
    "complex numbers": lambda: case(Rotated(), (X, T), functional.mse_loss),
    "loop over examples": lambda: case(net(), (X, T), looped),
    "sorted and back": lambda: case(Sorted(), (X, T), functional.mse_loss),
}
REPAIRED: dict[str, Callable[[], Workload]] = {
    "sum": lambda: case(net(), (X, Y), nn.CrossEntropyLoss(reduction="sum")),
    "no loss": lambda: case(net(), (X,), None),
    "sum over a number": lambda: case(net(), (X, T), lambda o, t: squares(o, t) / 8),
    "l2 beside a sum": lambda: case(
        Decayed(), (X, T), lambda o, t: squares(o[0], t) + 0.1 * o[1]
    ),
    "unequal masks": lambda: case(net(), (X, T, MASK), masked),
    "equal masks": lambda: case(net(), (X, T, torch.ones(BATCH)), masked),
    "clamped count": lambda: case(net(), (X, T, MASK), clamped),
    "two counts and a sum": lambda: case(
        net(),
        (X, T, MASK, MASK.flip(0) + 1),
        lambda o, t, m, n: masked(o, t, m) + masked(o, t, n) + squares(o, t),
    ),
    "padding": lambda: case(Tagger(), (WORDS, TAGS), Entropy()),
    "padding, smoothed": lambda: case(
        Tagger(), (WORDS, TAGS), Entropy(label_smoothing=0.1)
    ),
    "class weights": lambda: case(net(), (X, Y), nn.CrossEntropyLoss(weight=WEIGHTS)),
    "class weights, smoothed": lambda: case(
        Tagger(), (WORDS, TAGS), Entropy(weight=WEIGHTS, label_smoothing=0.1)
    ),
    "class weights of a closure": lambda: case(
        net(), (X, Y), lambda o, y: functional.cross_entropy(o, y, weight=WEIGHTS)
    ),
    "label smoothing": lambda: case(
        net(), (X, Y), nn.CrossEntropyLoss(label_smoothing=0.1)
    ),
    "rare ones weigh more": lambda: case(
        net(),
        (X, (T > 0).float()),
        lambda o, t: functional.binary_cross_entropy_with_logits(
            o, t, pos_weight=(t == 0).sum() / t.sum()
        ),
    ),
    "inputs normed over the batch": lambda: case(Normed(), (X, T), functional.mse_loss),
}
REFUSED: dict[str, tuple[str, Callable[[], Workload]]] = {
    "root of a mean": (
        "op 'sqrt'",
        lambda: case(net(), (X, T), lambda o, t: functional.mse_loss(o, t).sqrt()),
    ),
    "clip": ("op 'matmul'", lambda: case(Towers(), (X, X.flip(0)), clip)),
    "triplets mined in the batch": ("op 'cdist'", lambda: case(net(), (X, Y), mined)),
    "balance of experts": (
        "op 'mul'",
        lambda: case(Experts(balanced), (X, T), with_auxiliary),
    ),
    "spread over the batch": (
        "op 'std'",
        lambda: case(net(), (X,), lambda o: functional.relu(1 - o.std(0)).mean()),
    ),
    "pairs by broadcasting": ("op 'broadcast_tensors'", lambda: case(net(1), (X, Y * 1.0),
                                                                     functional.mse_loss)),
    "mixed up examples": (
        "op 'index'",
        lambda: case(net(), (X, torch.arange(8).roll(3)), lambda o, i: (o + o[i]).square().mean()),
    ),
    "hardest examples": (
        "op 'topk'",
        lambda: case(net(), (X, T), lambda o, t: (o - t).square().mean(-1).topk(2).values.mean()),
    ),
}  # fmt: skip
EXCEPTIONS: dict[str, tuple[str, Callable[[], Workload]]] = {
    "batch norm": (
        "batch norm (1 in all) sees micro-batches one by one",
        lambda: case(net(3, nn.BatchNorm1d(6)), (X, T), functional.mse_loss),
    ),
    "dropout": (
        "are drawn anew for every micro-batch",
        lambda: case(net(3, nn.Dropout(0.5)), (X, T), functional.mse_loss),
    ),
}
