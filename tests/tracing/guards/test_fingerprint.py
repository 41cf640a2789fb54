"""Whatever changes in a recorded model is named, and what trains alike in plain PyTorch is not."""

from __future__ import annotations

import random
import time
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from gnnplace.tracing.guards.attributes import Attributes
from gnnplace.tracing.guards.fingerprint import (
    MEMORY,
    STATE,
    Fingerprint,
    note_attribute_reads,
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.drop = (
            nn.Linear(4, 4),
            nn.BatchNorm1d(4),
            nn.Dropout(0.5),
        )
        self.scale, self.options, self.config = (
            2.0,
            {"shift": 1.0},
            SimpleNamespace(depth=2),
        )
        self.calls, self.unread = 0, "before"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for _ in range(self.config.depth):
            x = self.drop(self.norm(self.a(x)))
        return x * self.scale + self.options["shift"]


def made() -> tuple[Net, torch.optim.Optimizer, Fingerprint]:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    trained(model, optimizer)
    with note_attribute_reads(model) as read:
        model(torch.randn(3, 4))
    return model, optimizer, Fingerprint(model, optimizer, read)


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()


def set_data(m: Any, o: Any) -> None:
    m.a.weight.data = torch.ones(4, 4)


CHANGES: dict[str, tuple[Any, str, str]] = {
    "frozen": (lambda m, o: m.a.requires_grad_(False), "requires_grad", "'a.weight'"),
    "double": (lambda m, o: m.double(), "dtype", "torch.float64"),
    "parameter anew": (
        lambda m, o: setattr(m.a, "weight", nn.Parameter(torch.ones(4, 4))),
        "identity", "'a.weight'",
    ),
    "module anew": (lambda m, o: setattr(m, "drop", nn.Identity()), "identity", "module"),
    "other memory": (set_data, MEMORY, "'a.weight'"),
    "parameter hook": (lambda m, o: m.a.weight.register_hook(lambda g: g), "hooks", "'a.weight'"),
    "forward hook": (lambda m, o: m.norm.register_forward_hook(print), "hooks", "'norm'"),
    "backward hook": (lambda m, o: m.register_full_backward_hook(print), "hooks", "'model'"),
    "eval": (lambda m, o: m.eval(), "training", "was True, now it is False"),
    "dropout": (lambda m, o: setattr(m.drop, "p", 0.1), "p", "'drop'"),
    "attribute": (lambda m, o: setattr(m, "scale", 3.0), "scale", "2.0"),
    "momentum": (lambda m, o: setattr(m.norm, "momentum", 0.2), "momentum", "'norm'"),
    "option": (lambda m, o: m.options.update(shift=2.0), "options", "other values"),
    "configuration": (lambda m, o: setattr(m.config, "depth", 3), "config", "other values"),
    "group": (
        lambda m, o: o.add_param_group({"params": [nn.Parameter(torch.ones(1))]}), "groups", "other"
    ),
    "state cleared": (lambda m, o: o.state.clear(), STATE, "state"),
    "state loaded": (lambda m, o: o.load_state_dict(deepcopy(o.state_dict())), STATE, "state"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named(name: str) -> None:
    model, optimizer, fingerprint = made()
    assert fingerprint.changes() == []
    change, kind, words = CHANGES[name]
    change(model, optimizer)
    found = fingerprint.changes()
    assert kind in {k for k, _ in found}
    assert any(words in said for _, said in found)
    fingerprint.take()
    if kind in (MEMORY, STATE, "requires_grad"):
        assert fingerprint.changes() == []


def test_training_is_no_change() -> None:
    model, optimizer, fingerprint = made()
    for _ in range(3):
        trained(model, optimizer)
        optimizer.param_groups[0]["lr"] *= 0.5
        model.unread = "after"
        assert fingerprint.changes() == []
    model.eval()
    model(torch.randn(3, 4))
    model.train()
    assert fingerprint.changes() == []


def test_it_takes_less_than_a_hundredth_of_a_step() -> None:
    """Of a transformer of four layers, whose step takes some 10 ms; warm, the best of five."""
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    model = nn.TransformerEncoder(layer, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4, 64, 128)
    with note_attribute_reads(model) as read:
        functional.mse_loss(model(x), x)
    fingerprint = Fingerprint(model, optimizer, read)

    def step() -> None:
        functional.mse_loss(model(x), x).backward()

    def best(run: Any) -> float:
        seconds = []
        for _ in range(5):
            begun = time.process_time()
            run()
            seconds.append(time.process_time() - begun)
        return min(seconds)

    assert best(lambda: [fingerprint.changes() for _ in range(10)]) / 10 < 0.01 * best(
        step
    )


def test_reading_may_begin_within_another_of_the_same_model_and_of_others() -> None:
    model, other = Net(), Net()
    with note_attribute_reads(model) as outer:
        with note_attribute_reads(model) as inner, note_attribute_reads(other) as apart:
            model(torch.randn(3, 4))
            assert (id(model), "scale") in inner
        assert model.drop.p == 0.5
    assert {*outer} >= {*inner} > {*apart} == set()
    assert "__getattribute__" not in vars(nn.Module)


def test_a_generator_that_was_drawn_from_and_a_list_that_grew_are_seen() -> None:
    model, draws, taps = Net(), random.Random(0), [1]
    model.draws, model.taps = draws, taps  # type: ignore[assignment]
    with note_attribute_reads(model) as read:
        assert [model.draws, model.taps] == [draws, taps]
    known = Fingerprint(model, None, read)
    assert not known.changes()
    draws.random()
    taps.append(2)
    assert [c.kind for c in known.changes()] == ["draws", "taps"]


def test_a_model_of_transformers_may_be_saved_between_steps(tmp_path: Path) -> None:
    """Which writes its type into a configuration that says none."""
    config = GPT2Config(
        n_embd=8,
        n_layer=1,
        n_head=1,
        vocab_size=16,
        n_positions=8,
        bos_token_id=0,
        eos_token_id=0,
    )
    model, words = GPT2LMHeadModel(config), torch.zeros(1, 4, dtype=torch.long)
    with note_attribute_reads(model) as read:
        model(words, labels=words)
    fingerprint = Fingerprint(model, None, read)
    before = config.dtype
    model.save_pretrained(tmp_path)
    assert config.dtype != before
    assert fingerprint.changes() == []
    config.layer_norm_epsilon = 0.1
    assert [kind for kind, _ in fingerprint.changes()] == ["config"]


class Deciding(nn.Module):
    """Decides in its first pass what it goes on with, as classifiers of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.config = nn.Linear(4, 4), SimpleNamespace(kind=None, scale=1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.config.kind is None:
            self.config.kind = "mean"
        return self.layer(x).mean() * self.config.scale


def test_what_code_writes_into_an_object_itself_is_no_change() -> None:
    model = Deciding()
    with note_attribute_reads(model) as read, Attributes(model).restored():
        model(torch.ones(2, 4))
    fingerprint = Fingerprint(model, None, read)
    model(torch.ones(2, 4))
    assert model.config.kind == "mean"
    assert fingerprint.changes() == []
    model.config.scale = 2.0
    assert {kind for kind, _ in fingerprint.changes()} == {"config", "scale"}
