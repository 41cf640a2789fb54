"""A layer that does otherwise than its siblings is seen, although two of each kind are numbered.

Every model is six blocks of which one in the middle is odd. It is trained by plain PyTorch and by
its recorded calls; where they differ it must be refused, as where all blocks are numbered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.nn import functional

from gnnplace.errors import CaptureError
from gnnplace.tracing.guards.alike import (
    count_storages,
    describe_module,
    describe_surroundings,
)
from gnnplace.tracing.recording import recorder
from gnnplace.tracing.recording.recorder import record_calls
from gnnplace.tracing.step import StepModule
from tests.tracing.guards.test_proof import alike, batch

WIDTH, BLOCKS, ODD = 6, 6, 3
COUNTED: list[int] = []


class Block(nn.Module):
    """A layer with dropout, and code of the test's at the end."""

    passes = 0

    def __init__(
        self, index: int, forward: Callable[[Any, torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__()
        self.inner, self.chance = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.0)
        self.index, self.odd, self.kept_from_all, self._forward = (
            index,
            False,
            7 * index,
            forward,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(self, self.chance(self.inner(x)).tanh())


def plain(m: Any, x: torch.Tensor) -> torch.Tensor:
    return x


def stack(
    forward: Callable[[Any, torch.Tensor], torch.Tensor] = plain,
    change: Callable[[nn.Sequential], Any] = lambda blocks: None,
) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torch.manual_seed(0)
        COUNTED.clear()
        Block.passes = 0
        blocks = nn.Sequential(*(Block(i, forward) for i in range(BLOCKS)))
        change(blocks)
        return blocks

    return build


def odd(change: Callable[[Any], Any]) -> Callable[[], nn.Module]:
    return stack(change=lambda blocks: change(blocks[ODD]))


def hooked_at(m: Any, x: torch.Tensor) -> torch.Tensor:
    if m.index == ODD:
        x.register_hook(lambda g: g * 2)
    return x


def hooked_by_count(m: Any, x: torch.Tensor) -> torch.Tensor:
    COUNTED.append(m.training)
    if len(COUNTED) % BLOCKS == ODD:
        x.register_hook(lambda g: g * 2)
    return x


def scaled_by_late_count(m: Any, x: torch.Tensor) -> torch.Tensor:
    COUNTED.append(0)
    return x * (2 if len(COUNTED) == BLOCKS + ODD else 1)


def scaled_by_class_count(m: Any, x: torch.Tensor) -> torch.Tensor:
    Block.passes += 1
    return x * (2 if Block.passes == BLOCKS + ODD else 1)


def node_hooked(m: Any, x: torch.Tensor) -> torch.Tensor:
    if m.index == ODD and x.grad_fn is not None:
        x.grad_fn.register_hook(lambda i, o: tuple(g * 2 for g in i))
    return x


def cast(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=m.index == ODD):
        return x @ x.t() @ x


def rounded(m: Any, x: torch.Tensor) -> torch.Tensor:
    if not m.odd:
        return x * x
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.round(), lambda t: t):
        return x * x


def odd_is(m: Any) -> None:
    m.odd = True


def tied(blocks: nn.Sequential) -> None:
    blocks[ODD].inner.weight = blocks[0].inner.weight


def clamped(m: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        if m.index == ODD:
            m.inner.weight.clamp_(-0.1, 0.1)
    return x


KINDS: dict[str, Callable[[], nn.Module]] = {
    "alike": stack(),
    "index as a number": stack(lambda m, x: x * (1 + m.index)),
    "index decides": stack(lambda m, x: x * 2 if m.index == ODD else x),
    "tensor hook by index": stack(hooked_at),
    "tensor hook by a count": stack(hooked_by_count),
    "later count in a list": stack(scaled_by_late_count),
    "later count in a class": stack(scaled_by_class_count),
    "hook of a node": stack(node_hooked),
    "autocast": stack(cast),
    "saved tensors": stack(rounded, lambda blocks: odd_is(blocks[ODD])),
    "parameter hook": odd(lambda m: m.inner.weight.register_hook(lambda g: g * 2)),
    "forward hook": odd(lambda m: m.inner.register_forward_hook(lambda a, b, y: y * 2)),
    "backward hook": odd(
        lambda m: m.register_full_backward_hook(lambda a, i, o: (i[0] * 2,))
    ),
    "frozen": odd(lambda m: m.inner.requires_grad_(False)),
    "without bias": odd(lambda m: m.inner.register_parameter("bias", None)),
    "replaced forward": odd(lambda m: setattr(m, "forward", lambda x: x * 2)),
    "of its own class": stack(
        change=lambda b: b.__setitem__(ODD, nn.Linear(WIDTH, WIDTH))
    ),
    "tied": stack(change=tied),
    "parameter changed": stack(clamped),
    "detached": stack(
        lambda m, x: x.detach() if m.odd else x, lambda b: odd_is(b[ODD])
    ),
}


def is_refused(model: nn.Module) -> bool:
    try:
        record_calls(StepModule(model, functional.mse_loss, batch()), "test")
    except CaptureError:
        return True
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_an_odd_layer_is_refused_where_it_trains_otherwise_and_nowhere_else(
    kind: str,
) -> None:
    found = is_refused(KINDS[kind]())
    with patch.object(recorder, "find_omitted_layers", return_value={}):
        assert found is is_refused(KINDS[kind]())
    assert found or alike(KINDS[kind])


def left_out(model: nn.Module) -> list[str]:
    found: list[str] = []

    def noting(
        step: Any, replay: Any, name: str, mode: Any, stands: dict[str, Any]
    ) -> Any:
        known = proved(step, replay, name, mode, stands)
        assert known is not None
        found.extend(stands)
        return known

    proved = recorder.prove_apart
    with patch.object(recorder, "prove_apart", noting):
        record_calls(StepModule(model, functional.mse_loss, batch()), "test")
    return found


def test_layers_between_the_first_and_the_last_of_a_kind_are_left_out() -> None:
    # The first gets what needs no gradient.
    between = [f"model.{i}" for i in range(2, BLOCKS - 1)]
    assert left_out(KINDS["alike"]()) == between
    assert left_out(KINDS["frozen"]()) == [x for x in between if x != f"model.{ODD}"]
    assert left_out(KINDS["index as a number"]()) == []


def test_calls_that_draw_are_known_in_layers_that_are_left_out() -> None:
    model = KINDS["alike"]()
    for block in model.children():
        block.chance.p = 0.5
    assert len(left_out(model)) == BLOCKS - 3
    graph = record_calls(StepModule(model, functional.mse_loss, batch()), "test")
    assert [graph.calls[i].name for i in graph.random] == [
        f"{i}.chance" for i in range(BLOCKS)
    ]


def told(module: nn.Module, root: nn.Module) -> list[Any]:
    read = {(id(module), name) for name in vars(module)}
    return describe_module(module, read, count_storages(root))


def test_what_differs_between_modules_is_described() -> None:
    root = nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(3)))
    changes: list[Callable[[Any], Any]] = [
        lambda m: setattr(m, "scale", 2.0),
        lambda m: setattr(m, "act", partial(functional.gelu, approximate="tanh")),
        lambda m: m.eval(),
        lambda m: m[0].weight.requires_grad_(False),
        lambda m: m[0].register_forward_hook(lambda *_: None),
        lambda m: m.append(nn.ReLU()),
        lambda m: m[0].register_buffer("kept", torch.zeros(1)),
        lambda m: setattr(m[0].weight, "kind", "router"),
    ]
    for change in changes:
        assert told(root[0], root) == told(root[2], root)
        change(root[0])
        assert told(root[0], root) != told(root[2], root)
        root[0] = nn.Sequential(nn.Linear(2, 2), nn.ReLU())


def test_plain_data_of_classes_and_their_files_is_seen_to_change() -> None:
    model = KINDS["alike"]()
    before = describe_surroundings(model)
    assert before == describe_surroundings(model)
    COUNTED.append(1)
    assert before != describe_surroundings(model)
    COUNTED.clear()
    Block.passes += 1
    assert before != describe_surroundings(model)
