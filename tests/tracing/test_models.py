"""Captured steps compute what eager PyTorch computes, on a matrix of models."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gnnplace import zoo
from gnnplace.errors import CaptureError, InputError
from gnnplace.tracing.loading import load
from gnnplace.tracing.models import capture
from gnnplace.tracing.program.optimizers import sgd
from gnnplace.tracing.step import StepModule
from tests.tracing import models
from tests.tracing.oracle import Eager, eager
from tests.tracing.straight_run import run_program

# Sizes that keep the suite fast; every architecture of the zoo is there.
SIZES: dict[str, dict[str, int]] = {
    "bert": {
        "batch": 2,
        "length": 16,
        "layers": 2,
        "width": 64,
        "heads": 2,
        "vocabulary": 100,
    },
    "gpt2": {
        "batch": 2,
        "length": 16,
        "layers": 2,
        "width": 64,
        "heads": 2,
        "vocabulary": 100,
    },
    "inception": {"batch": 4, "size": 16, "width": 8, "depth": 2},
    "mlp": {"batch": 16, "width": 32, "depth": 3},
    "moe": {"batch": 16, "width": 32, "hidden": 64},
    "resnet50": {"batch": 1, "size": 64},
    "seq2seq": {"batch": 4, "length": 2, "vocabulary": 50, "width": 16},
    "small_resnet": {"batch": 4},
    "two_tower": {"batch": 16, "vocabulary": 100, "hidden": 32, "width": 16},
    "big_lstm": {
        "batch": 2,
        "length": 2,
        "vocabulary": 50,
        "cells": 32,
        "samples": 16,
        "width": 8,
    },
    "densenet": {"batch": 2, "size": 16, "growth": 4},
    "gnmt": {"batch": 2, "source": 2, "target": 2, "vocabulary": 50, "width": 16},
    "nasnet": {"batch": 2, "size": 16, "width": 4},
    "recommender": {"batch": 8, "tables": 2, "rows": 50, "width": 8, "hidden": 16},
    "rnn_lm": {"batch": 2, "length": 2, "vocabulary": 50, "width": 16},
    "searched_cnn": {"batch": 2, "size": 16, "width": 4},
    "searched_rnn": {"batch": 2, "length": 2, "vocabulary": 50, "width": 16},
    "tagger": {"batch": 2, "length": 2, "vocabulary": 50, "width": 16},
    "wired": {"batch": 2, "size": 16, "nodes": 6, "stages": 2, "width": 4},
    "fractal": {"batch": 2, "size": 16, "columns": 2, "stages": 2, "width": 4},
    "highway": {"batch": 2, "length": 2, "vocabulary": 50, "width": 16, "depth": 2},
    "speech": {"batch": 2, "frames": 4, "letters": 2, "width": 16},
    "tree_lstm": {"batch": 2, "length": 4, "vocabulary": 50, "width": 16},
    "unet": {"batch": 2, "size": 16, "width": 4, "depth": 2},
    "vit": {"batch": 2, "size": 32, "layers": 2, "width": 64, "heads": 2},
}
# Decomposed into time steps, where eager runs one fused kernel: equal up to rounding.
ROUNDED = {"big_lstm", "gnmt", "rnn_lm", "seq2seq", "speech", "tagger"}


def agree(ours: torch.Tensor, theirs: torch.Tensor, rounded: bool) -> bool:
    same = ours.shape == theirs.shape and ours.dtype == theirs.dtype
    if rounded:
        return same and torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    return same and torch.equal(ours, theirs)


def check(program: Any, truth: Eager, steps: int = 1, rounded: bool = False) -> None:
    result = run_program(program)
    for step in range(1, steps):
        result = run_program(program, step, result.state)
    assert agree(result.loss, truth.loss, rounded)
    assert set(result.gradients) == set(truth.gradients)
    wrong = [
        n
        for n, g in truth.gradients.items()
        if not agree(result.gradients[n], g, rounded)
    ]
    for kind, tensors in (("parameter", truth.parameters), ("buffer", truth.buffers)):
        for name, tensor in tensors.items():
            ours = result.state.get(f"{kind}.{name}")
            if ours is not None and not agree(ours, tensor, rounded):
                wrong.append(f"{kind}.{name}")
    assert wrong == []


LARGE = pytest.param("resnet50", marks=pytest.mark.campaign)


def test_the_matrix_is_the_whole_zoo() -> None:
    assert set(SIZES) == set(zoo.list_workload_names())


@pytest.mark.parametrize("name", [*sorted(SIZES.keys() - {"resnet50"}), LARGE])
def test_zoo_step_equals_eager(name: str) -> None:
    """Loss, gradients, buffers and parameters after two steps of AdamW, bit by bit.

    AdamW's first steps are the sign of the gradient: where that is rounded, SGD's are compared.
    """
    work, optimizer = (
        zoo.build(name, **SIZES[name]),
        "sgd" if name in ROUNDED else "adamw",
    )
    program = capture(
        work.model, work.inputs, loss=work.loss, optimizer=optimizer, name=name
    )
    truth = eager(work.model, work.inputs, work.loss, steps=2, optimizer=optimizer)
    changed = [n for n in truth.buffers if n in program.buffers]
    assert len(changed) == 3 * sum(
        isinstance(m, nn.BatchNorm2d) for m in work.model.modules()
    )
    check(program, truth, steps=2, rounded=name in ROUNDED)


@pytest.mark.parametrize(
    "model",
    [
        models.Tied(),
        models.Frozen(),
        models.InPlace(),
        models.Pieces(),
        models.Constants(),
        models.SharedNorm(),
    ],
    ids=lambda m: type(m).__name__,
)
def test_difficult_models_equal_eager(model: nn.Module) -> None:
    inputs = (models.batch(),)
    check(capture(model, inputs), eager(model, inputs, steps=2), steps=2)


def test_a_tied_weight_is_one_parameter_with_one_update() -> None:
    program = capture(models.Tied(), (models.batch(),))
    updates = [op.name for op in program.ops if op.phase == "update"]
    assert sorted(updates) == ["update.a.bias", "update.a.weight", "update.b.bias"]


def test_a_frozen_parameter_has_no_gradient_and_no_update() -> None:
    program = capture(models.Frozen(), (models.batch(),))
    assert set(program.gradients) == {"a.bias", "b.weight", "b.bias"}
    assert program.buffers == {}


def test_losses_targets_and_keywords() -> None:
    x, y = models.batch(), torch.tensor([0, 1, 2, 0])
    model = nn.Linear(8, 3)
    check(
        capture(model, (x, y), loss=nn.CrossEntropyLoss()),
        eager(model, (x, y), functional.cross_entropy),
    )
    words = models.Keywords()
    inputs = {"x": x, "mask": torch.ones(8), "scale": 3.0}
    check(capture(words, inputs), eager(words, inputs))
    square = capture(words, (x,), loss=lambda out: out["out"].pow(2).mean())
    check(square, eager(words, (x,), lambda out: out["out"].pow(2).mean()))


def test_input_that_the_model_changes_stays_as_it_is() -> None:
    class Changing(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            input += 1
            return super().forward(input)

    x = models.batch()
    model = Changing(8, 8)
    before = x.clone()
    check(capture(model, (x,)), eager(model, (x,)))
    assert torch.equal(x, before)


def test_capturing_leaves_the_model_alone() -> None:
    work = zoo.build("small_resnet")
    before = {n: t.clone() for n, t in work.model.state_dict().items()}
    run_program(capture(work.model, work.inputs, loss=work.loss, optimizer="adamw"))
    after = work.model.state_dict()
    assert all(torch.equal(before[n], after[n]) for n in before)
    assert all(p.grad is None for p in work.model.parameters())


def test_dropout_depends_on_op_and_step_alone() -> None:
    program = capture(models.Dropping(), (models.batch(),))
    torch.manual_seed(1)
    first = run_program(program, 3)
    torch.manual_seed(2)
    again, other = run_program(program, 3), run_program(program, 4)
    assert torch.equal(first.loss, again.loss)
    assert not torch.equal(first.loss, other.loss)
    names = [
        op.args[0]
        for op in program.ops
        if getattr(op.target, "__name__", "") == "seeded"
    ]
    assert len(names) == len(set(names)) == 3


def test_views_are_flagged_and_aliases_are_gone() -> None:
    program = capture(models.Pieces(), (models.batch(),))
    kinds = {op.name.rstrip("_0123456789"): op.view for op in program.ops}
    assert kinds["split"]
    assert kinds["t"]
    assert not kinds["addmm"]
    assert not any("detach" in op.name or "alias" in op.name for op in program.ops)


def test_no_dead_code() -> None:
    program = capture(models.Tied(), (models.batch(),))
    read = {name for op in program.ops for name in op.reads} | set(
        program.gradients.values()
    )
    made = {r for op in program.ops for r in op.results if r is not None}
    assert made <= read | {program.loss}


def test_phases_and_modules() -> None:
    work = zoo.build("small_resnet")
    program = capture(work.model, work.inputs, loss=work.loss)
    phases = [op.phase for op in program.ops]
    assert phases == sorted(phases, key=["forward", "backward", "update"].index)
    by_name = {op.name: op for op in program.ops}
    assert by_name["convolution"].module == "stem.0.0"
    convolutions = [
        op for op in program.ops if op.name.startswith("convolution_backward")
    ]
    assert convolutions[-1].module == "stem.0.0"
    assert all(op.phase == "backward" for op in convolutions)


def test_forward_only_returns_what_the_model_returns() -> None:
    work = zoo.build("vit", **SIZES["vit"])
    work.model.eval()
    program = capture(work.model, work.inputs, forward_only=True)
    step = StepModule(work.model, None, work.inputs, forward_only=True)
    with torch.no_grad():
        truth = step(*step.inputs())
    result = run_program(program)
    assert all(torch.equal(a, b) for a, b in zip(result.outputs, truth, strict=True))
    assert program.loss is None
    assert not program.gradients
    assert {op.phase for op in program.ops} == {"forward"}


def test_bfloat16_is_a_choice() -> None:
    model = nn.Linear(8, 8)
    program = capture(
        model, (models.batch(),), dtype="bfloat16", optimizer=sgd(momentum=0.9)
    )
    result = run_program(program)
    assert result.loss.dtype == torch.bfloat16
    assert model.weight.dtype == torch.float32
    with pytest.raises(InputError, match="dtype 'int8'"):
        capture(model, (models.batch(),), dtype="int8")


def test_capture_error_names_module_and_line(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(models.Greedy(), (models.batch(),))
    message = str(caught.value)
    assert "module 'inner' (Inner)" in message
    assert "models.py:" in message
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")


def test_loss_must_be_a_scalar() -> None:
    with pytest.raises(CaptureError, match=r"shape \(4, 8\)"):
        capture(nn.Linear(8, 8), (models.batch(),), loss=lambda out: out)


def test_same_model_same_program() -> None:
    work = [load("inception?batch=2&size=16") for _ in range(2)]
    a, b = (capture(w.model, w.inputs, loss=w.loss) for w in work)
    assert [(o.name, o.args, o.results) for o in a.ops] == [
        (o.name, o.args, o.results) for o in b.ops
    ]


@pytest.mark.campaign
def test_gpt2_xl_under_fake_tensors_takes_less_than_a_gigabyte() -> None:
    """1.56 billion parameters, 4 texts of 1024 words.

    `VmHWM` and not `ru_maxrss`, which a child inherits from its parent.
    """
    script = """
import json
from pathlib import Path
from gnnplace.tracing import capture, load
work = load("hf:gpt2-xl?length=1024", fake=True)
program = capture(work.model, work.inputs)
size = sum(i.info.bytes for i in program.inputs.values() if i.kind == "parameter")
lines = Path("/proc/self/status").read_text().splitlines()
peak = int([line for line in lines if line.startswith("VmHWM")][0].split()[1])
print(json.dumps({"ops": len(program.ops), "bytes": size, "peak": peak * 1024,
                  "initial": len(program.initial)}))
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["bytes"] > 6.2e9
    assert found["peak"] < 1e9
    assert found["ops"] > 5000
    assert found["initial"] == 0


def test_a_fake_model_is_captured_in_half_precision_as_a_real_one_is() -> None:
    """`gnnplace capture --fake --dtype bfloat16` failed: `Module.to` swaps fake tensors."""
    made = [load("small_resnet", fake=fake) for fake in (False, True)]
    real, fake = (
        capture(w.model, w.inputs, loss=w.loss, dtype="bfloat16") for w in made
    )
    assert fake.values == real.values
    assert [op.name for op in fake.ops] == [op.name for op in real.ops]
    assert {i.info.dtype for i in fake.inputs.values() if i.kind == "parameter"} == {
        torch.bfloat16
    }
    assert next(made[1].model.parameters()).dtype == torch.float32
