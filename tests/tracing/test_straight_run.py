"""The reference runner."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gnnplace.errors import InputError
from gnnplace.tracing.loading import load
from gnnplace.tracing.models import capture
from gnnplace.tracing.program.program import clone_initial
from tests.tracing import models
from tests.tracing.straight_run import run_program


def test_initial_tensors_stay_and_copies_keep_strides() -> None:
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    program = capture(model, (torch.randn(2, 3, 8, 8),), optimizer="adamw")
    before = {n: t.clone() for n, t in program.initial.items()}
    copies = clone_initial(program)
    assert copies["parameter.weight"].stride() == model.weight.stride()
    run_program(program)
    assert all(torch.equal(before[n], program.initial[n]) for n in before)


def test_steps_follow_each_other() -> None:
    program = capture(models.InPlace(), (models.batch(),))
    first = run_program(program)
    second = run_program(program, 1, first.state)
    assert first.state["buffer.count"] == 1
    assert second.state["buffer.count"] == 2
    assert not torch.equal(first.loss, second.loss)


def test_a_fake_capture_cannot_be_run() -> None:
    work = load("mlp?width=16&depth=1", fake=True)
    with pytest.raises(InputError, match="captured without tensors"):
        run_program(capture(work.model, work.inputs, loss=work.loss))
