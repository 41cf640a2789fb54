"""Order of in-place changes, aliases, dead code."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from gnnplace.errors import CaptureError
from gnnplace.tracing.aten.builder import live, with_order
from gnnplace.tracing.models import capture
from gnnplace.tracing.program.operations import sgd_update
from gnnplace.tracing.program.program import ProgramOp, Ref, alias_roots
from tests.tracing import models

ATEN = torch.ops.aten


def op(name: str, *reads: str, view: bool = False, made: bool = True) -> ProgramOp:
    target = ATEN.t.default if view else ATEN.relu.default
    args = tuple(Ref(r) for r in reads)
    return ProgramOp(
        name, target, args, {}, (name,) if made else (), "forward", None, view=view
    )


def test_an_update_waits_for_all_readers_of_a_view_of_its_parameter() -> None:
    update = ProgramOp(
        "update", sgd_update, (Ref("p"), [Ref("g")]), {}, (), "update", None
    )
    ops = [
        op("t", "p", view=True),
        op("tt", "t", view=True),
        op("mm", "x", "tt"),
        op("g", "x"),
    ]
    ordered = with_order([*ops, update])
    assert ordered[-1].after == ("t", "tt", "mm")
    assert alias_roots(ops)["tt"] == {"p"}


def test_dead_code_goes_and_changes_stay() -> None:
    ops = [
        op("a", "x"),
        op("dead", "a"),
        op("b", "a"),
        op("write", "buffer", "a", made=False),
    ]
    assert [o.name for o in live(ops, {"b"})] == ["a", "b", "write"]


def test_every_update_comes_after_the_readers_of_its_parameter() -> None:
    program = capture(models.Tied(), (models.batch(),))
    roots = alias_roots(program.ops)
    for update in (o for o in program.ops if o.phase == "update"):
        readers = {
            o.name
            for o in program.ops
            if o is not update
            and any(update.args[0].name in roots.get(r, {r}) for r in o.reads)
        }
        assert set(update.after) == readers
        assert readers


def test_a_parameter_that_the_model_changes_is_refused() -> None:
    class Renormed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Embedding(4, 8, max_norm=1.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a(x)

    with pytest.raises(CaptureError, match=r"a\.weight|in-place|inplace|in place"):
        capture(Renormed(), (torch.tensor([1, 2]),))
