"""A recording is refused exactly where it trains otherwise than the user's step in plain PyTorch.

Every model is trained for two steps by plain PyTorch and by its recorded calls, with nothing
proven. Where losses, gradients or buffers differ, `record_calls` must refuse, and nowhere else.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from gnnplace.errors import CaptureError
from gnnplace.tracing.guards.numbering import Numbering
from gnnplace.tracing.guards.proof import Proof
from gnnplace.tracing.recording import recorder
from gnnplace.tracing.recording.recorder import record_calls
from gnnplace.tracing.step import StepModule

Forward = Callable[[Any, torch.Tensor], torch.Tensor]
WIDTH = 6


class Net(nn.Module):
    """Two layers and a forward pass of the test's."""

    def __init__(self, forward: Forward = lambda m, x: m.b(m.a(x).tanh())) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("kept", torch.ones(WIDTH))
        self.calls, self._forward = 0, forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(self, x)


def net(forward: Forward) -> Callable[[], Net]:
    return lambda: Net(forward)


def after(change: Callable[[Net], Any]) -> Callable[[], Net]:
    def build() -> Net:
        model = Net()
        change(model)
        return model

    return build


def tensor_hook(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.a(x)
    y.register_hook(lambda g: 3 * g)
    return m.b(y)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient


def packed(pack: Any, unpack: Any) -> Callable[[], Net]:
    def forward(m: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return m.b(m.a(x).tanh())

    return net(forward)


def cast(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = m.a(x)
    return m.b(y.float())


def bound(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.kept = m.kept + 1
    return m.b(m.a(x) * m.kept)


def in_place(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.kept.mul_(0.5).add_(1)
    m.kept[:2].sub_(m.a(x).detach().mean())
    return m.b(m.a(x) * m.kept)


def by_data(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.kept.data = m.kept * 2
    return m.b(m.a(x) * m.kept)


def counted(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.calls += 1
    return m.b(m.a(x)) / m.calls


def unread(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.calls, m.last = m.calls + 1, x
    return m.b(m.a(x))


def remembered(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.a(x) + getattr(m, "past", 0)
    m.past = y.detach()
    return m.b(y)


def lazy(m: Any, x: torch.Tensor) -> torch.Tensor:
    if not hasattr(m, "mask"):
        m.mask = torch.ones(WIDTH).cumsum(0)
    return m.b(m.a(x) * m.mask)


def frozen_inside(m: Any, x: torch.Tensor) -> torch.Tensor:
    y = m.a(x)
    m.a.weight.requires_grad_(False)
    return m.b(y)


def clamped(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        m.a.weight.clamp_(-0.1, 0.1)
    return m.b(m.a(x))


def without_gradient(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = m.a(x)
    return m.b(y) + m.a(x).detach()


def masked(m: Net) -> None:
    m.a.weight.register_hook(lambda g: g * 0.5)


KINDS: dict[str, Callable[[], nn.Module]] = {
    "plain": Net,
    "parameter hook": after(masked),
    "parameter hook that only looks": after(
        lambda m: m.a.weight.register_hook(lambda g: None)
    ),
    "post-accumulate hook": after(
        lambda m: m.a.weight.register_post_accumulate_grad_hook(
            lambda p: p.grad.mul_(2)
        )
    ),
    "tensor hook": net(tensor_hook),
    "full backward hook": after(
        lambda m: m.b.register_full_backward_hook(lambda m, i, o: (2 * i[0],))
    ),
    "full backward pre-hook": after(
        lambda m: m.b.register_full_backward_pre_hook(lambda m, o: (2 * o[0],))
    ),
    "forward hook": after(lambda m: m.a.register_forward_hook(lambda m, i, o: o * 2)),
    "autograd.Function": net(lambda m, x: m.b(Doubled.apply(m.a(x)))),
    "saved tensors rounded": packed(lambda t: t.half(), lambda t: t.float()),
    "saved tensors as they are": packed(lambda t: t, lambda t: t),
    "autocast": net(cast),
    "reentrant checkpoint": net(
        lambda m, x: m.b(checkpoint(m.a, x * m.b.bias, use_reentrant=True))
    ),
    "checkpoint": net(lambda m, x: m.b(checkpoint(m.a, x, use_reentrant=False))),
    "buffer bound anew": net(bound),
    "buffer changed in place": net(in_place),
    "buffer changed by data": net(by_data),
    "counter": net(counted),
    "attributes that nobody reads": net(unread),
    "hidden state": net(remembered),
    "mask made once": net(lazy),
    "requires_grad changed inside": net(frozen_inside),
    "no_grad and detach": net(without_gradient),
    "spectral norm": after(lambda m: parametrizations.spectral_norm(m.a)),
    "weight norm": after(lambda m: parametrizations.weight_norm(m.a)),
    "batch norm": after(lambda m: setattr(m, "b", nn.BatchNorm1d(WIDTH))),
    "tied": after(lambda m: setattr(m.b, "weight", m.a.weight)),
    "frozen": after(lambda m: m.a.requires_grad_(False)),
    "dropout": net(lambda m, x: functional.dropout(m.b(m.a(x)), 0.5)),
    "parameter changed": net(clamped),
}
Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(4, WIDTH), torch.randn(4, WIDTH)


def trained(model: nn.Module, step: Step) -> list[torch.Tensor | None]:
    """Losses, gradients and state of two steps."""
    found: list[torch.Tensor | None] = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        torch.manual_seed(2)
        optimizer.zero_grad()
        loss = step(*batch())
        loss.backward()
        found += [
            loss.detach(),
            *(p.grad if p.grad is None else p.grad.clone() for p in model.parameters()),
        ]
        optimizer.step()
        found += [t.detach().clone() for t in model.state_dict().values()]
    return found


def by_calls(model: nn.Module) -> Step:
    """A step that runs the recorded calls on the model's own numbers, with nothing proven."""
    step = StepModule(model, functional.mse_loss, batch())
    with patch.object(recorder, "prove", return_value=Proof()):
        graph = record_calls(step, "test")
    run = recorder._replay(graph)

    def step_by_calls(*inputs: torch.Tensor) -> torch.Tensor:
        state = dict(model.named_parameters()) | dict(model.named_buffers())
        bare = {n: t.detach().requires_grad_(t.requires_grad) for n, t in state.items()}
        loss: torch.Tensor = run(Numbering({}), inputs, bare)
        learned = {n: t for n, t in bare.items() if t.requires_grad}
        found = torch.autograd.grad(loss, list(learned.values()), allow_unused=True)
        for name, gradient in zip(learned, found, strict=True):
            state[name].grad = gradient
        return loss.detach().requires_grad_()

    return step_by_calls


def alike(build: Callable[[], nn.Module]) -> bool:
    mine, other = build(), build()
    try:
        expected = trained(mine, lambda x, y: functional.mse_loss(mine(x), y))
        found = trained(other, by_calls(other))
    except (CaptureError, RuntimeError):
        return False
    same = lambda a, b: a is b if a is None or b is None else torch.equal(a, b)  # noqa: E731
    return all(map(same, found, expected))


def recorded(model: nn.Module) -> None:
    record_calls(StepModule(model, functional.mse_loss, batch()), "test")


@pytest.mark.parametrize("kind", KINDS)
def test_what_would_train_otherwise_is_refused_and_nothing_else(kind: str) -> None:
    model = KINDS[kind]()
    before = {n: t.clone() for n, t in model.state_dict().items()}
    try:
        recorded(model)
        refused = ""
    except CaptureError as error:
        refused = str(error)
    assert bool(refused) is (not alike(KINDS[kind]) or kind == "parameter changed")
    assert "\n" not in refused
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[n], t) for n, t in before.items())
    assert all(
        p.grad is None and p.requires_grad is (kind != "frozen" or n[0] == "b")
        for n, p in model.named_parameters()
    )


WORDS = {
    "parameter hook": r"hook of parameter 'a\.weight'",
    "tensor hook": r"hook of a tensor in module 'model' \(Net\) at .*test_proof\.py:\d+",
    "full backward hook": "backward hook of module 'b'",
    "saved tensors rounded": r"hooks of saved tensors .*test_proof\.py:\d+",
    "autocast": r"torch\.autocast .*test_proof\.py:\d+",
    "reentrant checkpoint": r"use_reentrant=True .*test_proof\.py:\d+",
    "buffer bound anew": "buffer 'kept'",
    "counter": "'calls'",
    "hidden state": "'past'",
    "parameter changed": r"parameter 'a\.weight'",
}


@pytest.mark.parametrize("kind", WORDS)
def test_a_refusal_says_what_and_where(kind: str) -> None:
    with pytest.raises(CaptureError, match=WORDS[kind]):
        recorded(KINDS[kind]())


def warms_up(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.calls += 1
    return m.b(m.a(x)) * (1 if m.calls > 1000 else 0.5)


def seeded(m: Any, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return m.b(functional.dropout(m.a(x)))


GENERATOR = torch.Generator()


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (warms_up, "'calls'"),
        (seeded, "manual_seed"),
        (lambda m, x: m.b(m.a(x)) * random.random(), "Python's `random`"),
        (
            lambda m, x: m.b(m.a(x) + torch.randn(WIDTH, generator=GENERATOR)),
            "generator of its own",
        ),
    ],
)
def test_what_differs_in_later_steps_is_refused(forward: Forward, words: str) -> None:
    state = random.getstate()
    with pytest.raises(CaptureError, match=words):
        recorded(Net(forward))
    assert random.getstate() == state


def test_statistics_of_the_batch_are_known_and_those_of_batch_norms_are_not() -> None:
    model = nn.Sequential(Net(in_place), nn.BatchNorm1d(WIDTH))
    graph = record_calls(StepModule(model, functional.mse_loss, batch()), "test")
    assert graph.statistics == ("0.kept",)


def test_calls_that_draw_are_known() -> None:
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5), nn.Dropout(0.0), nn.Softmax(-1)
    )
    graph = record_calls(StepModule(model, functional.mse_loss, batch()), "test")
    assert [graph.calls[i].name for i in graph.random] == ["1"]


def test_a_hook_that_asks_for_numbers_is_followed_on_real_tensors() -> None:
    looks = after(
        lambda m: m.a.weight.register_hook(lambda g: g if g.norm() > 0 else None)
    )
    recorded(looks())
    clips = after(
        lambda m: m.a.weight.register_hook(lambda g: g / 2 if g.norm() > 0 else None)
    )
    with pytest.raises(CaptureError, match=r"hook of parameter 'a\.weight'"):
        recorded(clips())
