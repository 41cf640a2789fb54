"""Numbers of a cut batch: made unequal on purpose, they show a wrong cut."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from gnnplace.tracing import cut_numbers
from gnnplace.tracing.cut_batch import CutBatch
from gnnplace.tracing.step import StepModule
from tests.tracing import losses


def graphs(name: str, count: int = 2) -> tuple[fx.GraphModule, fx.GraphModule, Any, CutBatch]:
    """Of the whole batch and of an unrepaired share, with the inputs and how they are cut."""
    work = {**losses.RIGHT, **losses.REPAIRED, **_exceptions()}[name]()
    whole = StepModule(work.model, work.loss, work.inputs)
    share = StepModule(work.model, work.loss, tuple(x.chunk(count)[0] for x in work.inputs))
    made = [
        torch.export.export(step, step.inputs(), strict=False).module(check_guards=False)
        for step in (whole, share)
    ]
    assert all(isinstance(module, fx.GraphModule) for module in made)
    batch = CutBatch(count, (0,) * len(work.inputs))
    return made[0], made[1], work.inputs, batch  # type: ignore[return-value]


def _exceptions() -> Any:
    return {name: make for name, (_, make) in losses.EXCEPTIONS.items()}


def test_a_mean_agrees_and_a_sum_does_not() -> None:
    assert cut_numbers.differences(*graphs("mean")) == ""
    assert "the loss is" in (cut_numbers.differences(*graphs("no loss")) or "")


def test_equal_masks_would_show_nothing() -> None:
    given = graphs("equal masks")
    assert cut_numbers.differences(*given, uneven=False) == ""
    assert "the loss is" in (cut_numbers.differences(*given) or "")


def test_batch_norm_is_frozen_and_dropout_is_off() -> None:
    """Both agree with a batch that is cut then, and leave the model's running mean alone."""
    for name in losses.EXCEPTIONS:
        assert cut_numbers.differences(*graphs(name)) == ""


def test_masks_and_padding_are_made_unequal() -> None:
    whole, _, inputs, batch = graphs("equal masks")
    mask = cut_numbers.unequal(whole, inputs, batch)[2]
    assert 0 < int(mask.sum()) < len(mask)
    assert torch.equal(cut_numbers.unequal(whole, inputs, batch)[0], inputs[0])
    whole, _, inputs, batch = graphs("padding")
    tags = cut_numbers.unequal(whole, inputs, batch)[1]
    ignored = (tags == -100).sum(1)
    assert ignored[:4].sum() > ignored[4:].sum()
    assert ((tags == inputs[1]) | (tags == -100)).all()


def test_a_batch_that_needs_too_much_memory_is_not_run(monkeypatch: Any) -> None:
    monkeypatch.setattr(cut_numbers, "ROOM", 0.0)
    assert cut_numbers.differences(*graphs("mean")) is None
