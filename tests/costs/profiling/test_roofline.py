"""Estimates: operations and bytes counted by hand, and the roofline itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gnnplace.costs.profiling.roofline import estimate_ops, op_bytes, op_flops
from gnnplace.errors import InputError
from gnnplace.problem.cluster.gpus import CPU, GPUS, figures
from gnnplace.tracing import Program, capture, load
from tests.costs.profiling.programs import small


def by_name(program: Program, name: str) -> int:
    return program.op_index[name]


def test_operations_of_a_linear_layer() -> None:
    program = capture(nn.Linear(16, 32), (torch.ones(8, 16),))
    flops = {op.name: op_flops(program, op) for op in program.ops}
    assert flops["addmm"] == 2 * 8 * 16 * 32
    assert flops["mm"] == 2 * 8 * 16 * 32  # the weight's gradient; the input needs none
    assert flops["update.weight"] == 0


def test_operations_of_a_convolution_backwards_are_twice_those_forwards() -> None:
    program = small()
    forward = op_flops(program, program.ops[by_name(program, "convolution_1")])
    gradient = program.producer[program.gradients["stages.0.0.reduce.0.weight"]]
    assert op_flops(program, program.ops[gradient]) == 2 * forward


def test_operations_of_attention() -> None:
    size = "n_layer=1&n_embd=32&n_head=2&vocab_size=50&batch=2&length=8"
    work = load(f"hf:gpt2?{size}&attn_pdrop=0.0")
    program = capture(work.model, work.inputs)
    flops = {op.name: op_flops(program, op) for op in program.ops if "attention" in op.name}
    one = 4 * 2 * 2 * 8 * 8 * 16
    assert sorted(flops.values()) == [one, one * 5 / 2]


def test_bytes_are_read_and_written_once() -> None:
    program = capture(nn.Linear(16, 32), (torch.ones(8, 16),))
    addmm = program.ops[by_name(program, "addmm")]
    assert op_bytes(program, addmm) == 4 * (32 + 8 * 16 + 16 * 32 + 8 * 32)


def test_an_estimate_is_no_less_than_either_bound() -> None:
    program = small()
    for kind, of_kind in {"cpu": CPU, **GPUS}.items():
        seconds = estimate_ops(program, kind)
        for i, op in enumerate(program.ops):
            if not op.view:
                assert seconds[i] >= op_flops(program, op) / of_kind.flops("float32")
                assert seconds[i] >= op_bytes(program, op) / of_kind.bandwidth
                assert seconds[i] >= of_kind.launch


def test_half_precision_is_faster_where_compute_bounds() -> None:
    model, inputs = nn.Linear(4096, 4096), (torch.ones(4096, 4096),)
    plain = estimate_ops(capture(model, inputs), "a100").sum()
    half = estimate_ops(capture(model, inputs, dtype="bfloat16"), "a100").sum()
    assert half < plain / 4


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match=r"kind 'abacus'.*no published peaks"):
        estimate_ops(small("mlp", width=8, depth=1), "abacus")


def test_every_kind_of_the_presets_is_known() -> None:
    from gnnplace.problem.cluster.presets import preset, preset_names

    kinds = {kind for name in preset_names() for kind in preset(name).kinds}
    assert all(figures(kind).source for kind in kinds)
    assert np.isfinite([figures(kind).bandwidth for kind in kinds]).all()
