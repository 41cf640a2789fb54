"""References inside arguments, and what a program knows of itself."""

from __future__ import annotations

import torch
from torch import nn

from gnnplace.tracing.models import capture
from gnnplace.tracing.program.microbatching import with_program_microbatches
from gnnplace.tracing.program.program import (
    Ref,
    base_name,
    iter_refs,
    map_refs,
    value_info,
)


def test_references_are_found_and_replaced_at_any_depth() -> None:
    nested = (1, [Ref("a"), {"k": (Ref("b"), 2)}], "a", Ref("a"))
    assert [ref.name for ref in iter_refs(nested)] == ["a", "b", "a"]
    assert map_refs(nested, lambda ref: ref.name.upper()) == (
        1,
        ["A", {"k": ("B", 2)}],
        "a",
        "A",
    )


def test_base_name_drops_the_micro_batch_alone() -> None:
    assert base_name("mm_3#12") == "mm_3"
    assert base_name("mm_3") == "mm_3"


def test_value_info_keeps_strides() -> None:
    info = value_info(torch.zeros(3, 4, dtype=torch.bfloat16).t())
    assert (info.shape, info.stride, info.bytes) == ((4, 3), (1, 4), 24)


def test_a_program_knows_its_producers_and_losses() -> None:
    program = capture(nn.Linear(4, 2), (torch.ones(3, 4),))
    assert program.loss is not None
    assert program.ops[program.producer[program.loss]].results == (program.loss,)
    assert program.losses == (program.loss,)
    assert with_program_microbatches(program, 2).losses == (
        f"{program.loss}#0",
        f"{program.loss}#1",
    )
    for op in program.ops:
        assert len(set(op.reads)) == len(op.reads)
        assert all(
            r in program.values for r in (*op.reads, *op.results) if r is not None
        )
