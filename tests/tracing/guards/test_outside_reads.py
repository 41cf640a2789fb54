"""Whatever a step's code reads outside of its modules is found; what it does not read is not."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property, lru_cache, partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from gnnplace import capture, shard
from gnnplace.errors import CaptureError
from gnnplace.tracing.guards.fingerprint import Fingerprint, note_attribute_reads
from gnnplace.tracing.options import CaptureOptions

beta, unread = 1.0, 0
SETTINGS = {"beta": [1.0]}
WEIGHTS = torch.ones(3)


class Schedule:
    """An object that is called, with an attribute of its class."""

    beta = 1.0

    def __call__(self) -> float:
        return self.half() * 2

    def half(self) -> float:
        return self.beta / 2


class Criterion(nn.Module):
    """A loss with an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = 1.0

    def forward(self, output: torch.Tensor) -> torch.Tensor:
        return output.sum() * self.beta


class Trainer:
    """What computes a loss by its own method; it counts, and keeps what was."""

    def __init__(self) -> None:
        self.beta, self.steps, self.kept = 1.0, 0, list[float]()

    def loss(self, output: torch.Tensor) -> torch.Tensor:
        return output.sum() * self.scale

    @property
    def scale(self) -> float:
        return self.beta

    def log(self) -> int:
        self.kept.append(self.beta)
        return unread


class Net(nn.Module):
    """A layer whose code reads what a test gives it."""

    def __init__(self, read: Callable[[], Any]) -> None:
        super().__init__()
        self.layer, self.read, self.count = nn.Linear(3, 3), read, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.read()


def closed() -> tuple[Callable[[], float], Callable[[], None]]:
    value = 1.0

    def read() -> float:
        return value

    def change() -> None:
        nonlocal value
        value = 2.0

    return read, change


def in_globals() -> None:
    global beta
    beta += 1.0


def taken(model: nn.Module, loss: Any = None) -> Fingerprint:
    with note_attribute_reads(model) as read:
        output = model(torch.ones(2, 3))
        (loss or torch.sum)(output)
    return Fingerprint(model, None, read, loss, follows=lambda tensor: False)


def nested() -> tuple[Any, Callable[[], Any]]:
    config = SimpleNamespace(inner={"sizes": [1.0]})
    return lambda: config.inner["sizes"][0], lambda: config.inner["sizes"].append(2.0)


def arrays() -> tuple[Any, Callable[[], Any]]:
    held = np.ones(2)
    return lambda: float(held[0]), lambda: held.fill(2.0)


def scheduled() -> tuple[Any, Callable[[], Any]]:
    schedule = Schedule()
    return schedule, lambda: setattr(schedule, "beta", 2.0)


READS: dict[str, Callable[[], tuple[Any, Callable[[], Any]]]] = {
    "global": lambda: (lambda: beta, in_globals),
    "dictionary": lambda: (
        lambda: SETTINGS["beta"][0],
        lambda: SETTINGS["beta"].append(2.0),
    ),
    "class": lambda: (
        lambda: Schedule.beta,
        lambda: setattr(Schedule, "beta", Schedule.beta + 1),
    ),
    "closure": closed,
    "object": scheduled,
    "nested": nested,
    "array": arrays,
    "tensor": lambda: (lambda: WEIGHTS[0], lambda: WEIGHTS.mul_(2.0)),
    "environment": lambda: (
        lambda: float(os.environ.get("GNNPLACE_BETA", "1")),
        lambda: os.environ.update(GNNPLACE_BETA="2"),
    ),
    "partial": lambda: (
        partial(lambda held: held["x"], SETTINGS | {"x": 1}),
        lambda: None,
    ),
}


@pytest.mark.parametrize("name", READS)
def test_what_the_code_of_a_layer_reads_is_seen_to_change(name: str) -> None:
    read, change = READS[name]()
    fingerprint = taken(Net(read))
    assert fingerprint.changes() == []
    change()
    assert bool(fingerprint.changes()) == (name != "partial")
    os.environ.pop("GNNPLACE_BETA", None)


def test_what_a_loss_reads_is_seen_to_change() -> None:
    criterion, trainer = Criterion(), Trainer()
    classes = nn.CrossEntropyLoss(weight=torch.ones(3))

    def loss(output: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = classes(output, output.detach().softmax(1))
        return found

    for own, change in (
        (criterion, lambda: setattr(criterion, "beta", 2.0)),
        (trainer.loss, lambda: setattr(trainer, "beta", 2.0)),
        (loss, lambda: setattr(classes, "label_smoothing", 0.1)),
        (loss, lambda: classes.weight.mul_(2.0)),
        (loss, lambda: setattr(classes, "weight", torch.zeros(3))),
    ):
        fingerprint = taken(nn.Linear(3, 3), own)
        assert fingerprint.changes() == []
        change()
        (told,) = {words for _, words in fingerprint.changes()}
        assert any(name in told for name in ("beta", "label_smoothing", "weight"))


def test_what_no_code_of_the_step_reads_may_change() -> None:
    global unread
    model, trainer = Net(lambda: 1.0), Trainer()
    fingerprint = taken(model, trainer.loss)
    unread += 1
    trainer.steps += 1
    model.count += 1
    trainer.log()
    assert fingerprint.changes() == []


def test_a_hook_and_another_forward_are_code_of_the_step() -> None:
    model, held = nn.Sequential(nn.Linear(3, 3)), {"by": 2.0}
    model[0].register_forward_hook(lambda module, args, output: output * held["by"])
    fingerprint = taken(model)
    held["by"] = 3.0
    assert [kind for kind, _ in fingerprint.changes()] == ["held"]
    fingerprint = taken(model)
    model[0].forward = functional.relu  # type: ignore[assignment]
    assert [kind for kind, _ in fingerprint.changes()] == ["forward"]


KEPT: dict[int, torch.Tensor] = {}
kept: torch.Tensor | None = None


def table(size: int) -> torch.Tensor:
    return torch.arange(1.0, size + 1).div(size)


@lru_cache
def remembered(size: int) -> torch.Tensor:
    return table(size)


def wrapped() -> Callable[[int], torch.Tensor]:
    cached = lru_cache(table)
    return lambda size: cached(size)


def of_file(size: int) -> torch.Tensor:
    if size not in KEPT:
        KEPT[size] = table(size)
    return KEPT[size]


def of_global(size: int) -> torch.Tensor:
    global kept
    if kept is None:
        kept = table(size)
    return kept


def of_function(size: int) -> torch.Tensor:
    if not hasattr(of_function, "kept"):
        of_function.kept = table(size)  # type: ignore[attr-defined]
    return of_function.kept  # type: ignore[attr-defined, no-any-return]


class Tables:
    """Tables in a class, made where they are asked for first."""

    one: torch.Tensor | None = None
    several: ClassVar[dict[int, torch.Tensor]] = {}

    @classmethod
    def of_class(cls, size: int) -> torch.Tensor:
        if cls.one is None:
            cls.one = table(size)
        return cls.one

    def of_its_dict(self, size: int) -> torch.Tensor:
        return self.several.setdefault(size, table(size))

    @cached_property
    def ready(self) -> torch.Tensor:
        return table(4)


def ready_of(tables: Tables, size: int) -> torch.Tensor:
    return tables.ready[:size]


KEEPS: dict[str, Callable[[], Callable[[int], torch.Tensor]]] = {
    "a function's cache": lambda: remembered,
    "a wrapped function's cache": wrapped,
    "a dict of the file": lambda: of_file,
    "a global": lambda: of_global,
    "an attribute of a function": lambda: of_function,
    "an attribute of a class": lambda: Tables.of_class,
    "a dict of a class": lambda: Tables().of_its_dict,
    "a cached property": lambda: partial(ready_of, Tables()),
}


def forget() -> None:
    global kept
    kept, Tables.one = None, None
    remembered.cache_clear()
    for tables in (KEPT, Tables.several, vars(of_function)):
        tables.clear()


@pytest.mark.parametrize("road", ["capture", "micro-batches", "shard"])
@pytest.mark.parametrize("name", KEEPS)
def test_a_table_that_the_first_step_makes_and_keeps_is_in_the_step_and_stays_real(
    name: str, road: str
) -> None:
    """Tracing leaves no tensors without numbers where code keeps some for later steps."""
    forget()
    find = KEEPS[name]()
    torch.manual_seed(0)
    model = nn.Sequential(*(Net(lambda: find(3)) for _ in range(2)))
    inputs = torch.randn(4, 3), torch.randn(4, 3)
    if road == "shard":
        shard(model, inputs, 1, loss=functional.mse_loss)
    else:
        options = CaptureOptions(microbatches=2 if road == "micro-batches" else 1)
        capture(model, inputs, loss=functional.mse_loss, options=options)
    found = functional.mse_loss(model(inputs[0]), inputs[1])
    forget()
    assert torch.equal(found, functional.mse_loss(model(inputs[0]), inputs[1]))


def test_what_code_keeps_of_its_batch_makes_the_next_step_another_one() -> None:
    def add(x: torch.Tensor) -> torch.Tensor:
        KEPT[0] = x.detach() + KEPT.get(0, 0.0)
        return x * KEPT[0]

    class Sum(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return add(self.layer(x))

    forget()
    with pytest.raises(CaptureError, match=r"'KEPT'.*another one"):
        capture(Sum(find_none), torch.randn(4, 3))
    assert not KEPT


def find_none() -> None:
    return None
