"""Which ops have a kernel for CUDA, by torch's own list."""

from __future__ import annotations

import pytest
import torch

from gnnplace.tracing.program.cuda import has_cuda_kernel

aten = torch.ops.aten


@pytest.mark.parametrize(
    "op",
    [
        aten.mm.default,  # a structured twin
        aten.add.Tensor,  # a universal function
        aten.linear.default,  # composed of others
        aten.zeros.default,
        aten.native_dropout.default,
        aten.convolution_backward.default,
        aten._native_batch_norm_legit_functional.default,
        aten.embedding_dense_backward.default,
    ],
)
def test_ops_that_run_on_gpus(op: torch._ops.OpOverload) -> None:
    assert has_cuda_kernel(op)


@pytest.mark.parametrize(
    "op",
    [
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten.mkldnn_rnn_layer.default,
        aten.mkldnn_convolution.default,
    ],
)
def test_ops_of_a_cpu_alone(op: torch._ops.OpOverload) -> None:
    assert not has_cuda_kernel(op)


def test_an_op_of_ones_own_has_the_kernels_that_it_was_given() -> None:
    library = torch.library.Library("gnnplace_kernels", "FRAGMENT")
    library.define("host(Tensor x) -> Tensor")
    library.impl("host", lambda x: x, "CPU")
    library.define("everywhere(Tensor x) -> Tensor")
    library.impl("everywhere", lambda x: x, "CompositeExplicitAutograd")
    assert not has_cuda_kernel(torch.ops.gnnplace_kernels.host.default)
    assert has_cuda_kernel(torch.ops.gnnplace_kernels.everywhere.default)


@pytest.mark.parametrize(
    "op", [aten.mkldnn_rnn_layer.default, aten.mkldnn_convolution.default]
)
def test_a_build_with_cuda_and_no_gpu_says_the_same(
    op: torch._ops.OpOverload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert not has_cuda_kernel(op)
