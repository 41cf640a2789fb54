"""Updates equal torch.optim; random ops have seeds of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gnnplace.tracing.program import operations
from gnnplace.tracing.program.optimizers import Optimizer, adam, adamw, sgd

GRADIENTS = [
    torch.randn(5, 3, generator=torch.Generator().manual_seed(k)) for k in range(4)
]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (sgd(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
        (
            sgd(0.1, weight_decay=0.3),
            lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.3),
        ),
        (
            sgd(0.1, momentum=0.9, weight_decay=0.3),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.3),
        ),
        (adamw(), lambda p: torch.optim.AdamW(p)),
        (adam(), lambda p: torch.optim.Adam(p)),
        (
            adam(0.1, (0.8, 0.9), 1e-4, 0.2),
            lambda p: torch.optim.Adam(
                p, lr=0.1, betas=(0.8, 0.9), eps=1e-4, weight_decay=0.2
            ),
        ),
        (
            adamw(0.1, (0.8, 0.9), 1e-4, 0.2),
            lambda p: torch.optim.AdamW(
                p, lr=0.1, betas=(0.8, 0.9), eps=1e-4, weight_decay=0.2
            ),
        ),
    ],
)
def test_four_updates_equal_torch(
    ours: Optimizer, theirs: Callable[[Any], torch.optim.Optimizer]
) -> None:
    mine, other = torch.ones(5, 3), torch.nn.Parameter(torch.ones(5, 3))
    state, method = ours.new_state(mine), theirs([other])
    for gradient in GRADIENTS:
        ours.update(mine, [gradient], *state, *ours.constants)
        other.grad = gradient.clone()
        method.step()
        assert torch.equal(mine, other)


@pytest.mark.parametrize(
    ("ours", "theirs"), [(adamw, torch.optim.AdamW), (adam, torch.optim.Adam)]
)
def test_complex_numbers_are_two_real_ones_as_in_torch(ours: Any, theirs: Any) -> None:
    start = torch.complex(torch.ones(5, 3), torch.full((5, 3), 2.0))
    mine, other, kept = start.clone(), torch.nn.Parameter(start.clone()), ours()
    state, method = kept.new_state(mine), theirs([other])
    for gradient in GRADIENTS:
        other.grad = torch.complex(gradient, gradient.flip(0))
        kept.update(mine, [other.grad.conj().clone().conj()], *state, *kept.constants)
        method.step()
        assert torch.equal(mine, other)


def test_mean_gradient_equals_accumulation() -> None:
    total = torch.zeros(5, 3)
    for gradient in GRADIENTS:
        total += gradient / 4
    before = [g.clone() for g in GRADIENTS]
    assert torch.allclose(operations.mean_gradient(GRADIENTS), total)
    assert all(torch.equal(a, b) for a, b in zip(before, GRADIENTS, strict=True))
    assert operations.mean_gradient(GRADIENTS[:1]) is GRADIENTS[0]


def test_seeded_draws_by_name_and_step_and_leaves_the_generator_alone() -> None:
    ones = torch.ones(64)

    def draw(name: str, step: int) -> torch.Tensor:
        operations.set_step(step)
        result: torch.Tensor = operations.seeded(
            name, "aten.native_dropout.default", ones, 0.5, True
        )[0]
        return result

    state = torch.random.get_rng_state()
    first = draw("a", 0)
    assert torch.equal(first, draw("a", 0))
    assert not torch.equal(first, draw("b", 0))
    assert not torch.equal(first, draw("a", 1))
    assert torch.equal(state, torch.random.get_rng_state())


def test_seeds_do_not_change_between_versions() -> None:
    """Runs that are compared may come from different machines and days."""
    assert operations.op_seed("native_dropout", 0) == 3662179091119943437


def test_only_takes_the_single_element() -> None:
    x = torch.arange(4.0)
    assert torch.equal(operations.only("aten.split.Tensor", x, 4), x)


def test_a_gpus_random_op_seeds_the_generator_of_that_gpu_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three generators stand in for those of GPUs."""
    gpus = tuple(torch.Generator().manual_seed(k) for k in range(3))
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "default_generators", gpus)
    known = [torch.default_generator, *gpus]
    before = [generator.get_state() for generator in known]
    with operations.drawing(torch.device("cuda", 1), 7):
        assert gpus[1].initial_seed() == 7
        others = [generator.get_state() for generator in (known[0], gpus[0], gpus[2])]
        assert all(map(torch.equal, others, (before[0], before[1], before[3])))
    assert all(map(torch.equal, (generator.get_state() for generator in known), before))


def test_a_random_op_without_tensors_draws_where_it_makes_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places: list[torch.device] = []
    drawing = operations.drawing

    def noted(device: torch.device, seed: int) -> Any:
        places.append(device)
        return drawing(torch.device("cpu"), seed)

    monkeypatch.setattr(operations, "drawing", noted)
    monkeypatch.setattr(
        operations, "overload", lambda target: lambda *args, **options: None
    )
    operations.seeded("a", "aten.rand.default", [4], device=torch.device("cuda", 2))
    operations.seeded("b", "aten.native_dropout.default", torch.zeros(2), 0.5, True)
    operations.seeded("c", "aten.randperm.default", 4)
    assert places == [torch.device("cuda", 2), torch.device("cpu"), torch.device("cpu")]
