"""Every rule of the table, whole against parts: a rule without a case here fails."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from gnnplace.tracing.rules.registry import RULES
from tests.tracing.rules.oracle import check_call

ATEN = torch.ops.aten
PLACES = torch.randint(4, (4, 6), generator=torch.Generator().manual_seed(0))


def real(*shape, seed=0):
    made = torch.randn(
        *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return made.requires_grad_()


X, XYZ, IMAGE, VOLUME = real(4, 6), real(4, 6, 8), real(4, 4, 6, 6), real(2, 2, 4, 4, 4)
CUBE = {1: real(4, 4, 6), 2: IMAGE, 3: VOLUME}
KERNEL = {
    n: real(*CUBE[n].shape[1:2], *CUBE[n].shape[1:2], *[2] * n, seed=1) for n in CUBE
}
HALF = real(4, 6, seed=1).detach().sigmoid()
STEP = [real(16, 6), real(16, 4, seed=1)]
"""Weights of a step of an LSTM; other cells have the first rows."""


def weights(gates):
    return [one[: 4 * gates] for one in STEP]


CASES = {
    "view": (Tensor.view, X, 24),
    "reshape": (torch.reshape, X, (2, 2, 6)),
    "flatten": (torch.flatten, XYZ, 1),
    "unflatten": (torch.unflatten, X, 0, (2, 2)),
    "squeeze": (torch.squeeze, real(4, 1, 6), 1),
    "unsqueeze": (torch.unsqueeze, X, 0),
    "view_as": (Tensor.view_as, real(4, 8), real(4, 2, 4)),
    "ravel": (torch.ravel, X),
    **{name: (getattr(Tensor, name), X) for name in
       ("contiguous", "float", "double", "detach", "clone", "bool", "long", "int", "cpu",
        "requires_grad_")},
    **{name: (getattr(Tensor, name), X.detach()) for name in ("half", "bfloat16")},
    "to": (Tensor.to, X, torch.float32),
    "type": (Tensor.type, X, torch.float32),
    "type_as": (Tensor.type_as, X, real(2).float()),
    "alias": (ATEN.alias, X),
    "data": (Tensor.data.__get__, X),
    **{name: (getattr(torch, name), X) for name in ("zeros_like", "ones_like")},
    "full_like": (torch.full_like, X, 2.0),
    **{name: (getattr(torch, name), XYZ, 0, 2) for name in
       ("transpose", "swapaxes", "swapdims", "movedim", "moveaxis")},
    "permute": (torch.permute, XYZ, (2, 0, -2)),
    "t": (torch.t, X),
    **{name: (getattr(Tensor, name).__get__, X) for name in ("T", "mT")},
    "adjoint": (torch.adjoint, XYZ),
    "numpy_T": (ATEN.numpy_T, XYZ),
    "expand": (Tensor.expand, real(4, 1), 2, 4, 6),
    "expand_as": (Tensor.expand_as, real(4, 1), X),
    "broadcast_to": (torch.broadcast_to, real(4, 1), (2, 4, 6)),
    "repeat": (Tensor.repeat, real(4, 1), 3, 1, 6),
    "repeat_interleave": (torch.repeat_interleave, X, 3, 1),
    **{name: (getattr(torch, name), XYZ, 2, 1) for name in
       ("split", "chunk", "unsafe_split", "unsafe_chunk", "tensor_split")},
    "split_with_sizes": (ATEN.split_with_sizes, X, [1, 5], 1),
    "unbind": (torch.unbind, XYZ, 1),
    "narrow": (torch.narrow, XYZ, 1, 2, 3),
    "select": (Tensor.select, XYZ, 1, 2),
    "slice": (ATEN.slice, XYZ, 1, 2, 5),
    **{name: (getattr(torch, name), [X, HALF], 1) for name in
       ("cat", "concat", "concatenate", "stack")},
    "getitem": (operator.getitem, XYZ, (slice(None), 1)),
    "setitem": (Tensor.__setitem__, HALF.clone(), (slice(None), 1), HALF[:, 0].clone()),
    "view_as_complex": (torch.view_as_complex, real(4, 6, 2)),
    "view_as_real": (torch.view_as_real, torch.view_as_complex(real(4, 6, 2)).detach()),
    "new_full": (Tensor.new_full, X, (4, 3), 2.0),
    **{name: (getattr(Tensor, name), X, (4, 3)) for name in ("new_zeros", "new_ones")},
    "pad": (functional.pad, X, (1, 2)),
    "constant_pad_nd": (torch.constant_pad_nd, X, (1, 2)),
    "dropout": (functional.dropout, X, 0.0),
    **{name: (getattr(torch, name), XYZ, 1) for name in
       ("softmax", "log_softmax", "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")},
    **{name: (getattr(ATEN, name), XYZ, 1, False) for name in ("_softmax", "_log_softmax")},
    **{name: (getattr(torch, name), XYZ, 2, 1) for name in ("topk", "diff")},
    **{name: (getattr(torch, name), XYZ, 1) for name in ("sort", "argsort")},
    "glu": (functional.glu, XYZ, 1),
    "flip": (torch.flip, XYZ, (0, 2)),
    "roll": (torch.roll, XYZ, (1, 2), (0, 1)),
    "unfold": (Tensor.unfold, X, 1, 2, 1),
    "fold": (functional.fold, real(4, 8, 9), (4, 4), 2),
    **{name: (getattr(ATEN, name), real(4, 6, 6, seed=2)) for name in RULES
       if name.startswith("fft_") and not name.endswith("n") and name[4:6] != "ih"},
    **{name: (getattr(ATEN, name), XYZ, None, (1, 2)) for name in RULES
       if name.startswith("fft_") and name.endswith("n")},
    **{name: (getattr(ATEN, name), XYZ) for name in ("fft_ihfft", "fft_ihfft2")},
    "msort": (torch.msort, XYZ),
    "stft": (ATEN.stft, real(4, 16), 8, None, None, torch.ones(8).double(), False, True, True),
    **{name: (getattr(torch, name), XYZ) for name in ("tril", "triu")},
    "one_hot": (functional.one_hot, PLACES, 4),
    "gather": (torch.gather, real(6, 6), 1, PLACES),
    "scatter": (torch.scatter, X, 1, PLACES[:, :2], HALF[:, :2]),
    "scatter_add": (torch.scatter_add, X, 1, PLACES, HALF),
    "scatter_reduce": (torch.scatter_reduce, X, 1, PLACES, HALF, "amax"),
    "take_along_dim": (torch.take_along_dim, X, PLACES, 1),
    "index_select": (Tensor.index_select, X, 1, PLACES[0]),
    **{name: (getattr(functional, name), XYZ, real(6, 1, seed=1)) for name in
       ("cosine_similarity", "pairwise_distance")},
    "normalize": (functional.normalize, XYZ),
    **{name: (getattr(torch, name), XYZ, 1) for name in
       ("sum", "mean", "amax", "amin", "argmax", "argmin", "std", "var", "logsumexp")},
    "linear": (functional.linear, X, real(8, 6), real(8)),
    "addmm": (torch.addmm, real(4, 1), X, real(6, 8)),
    "baddbmm": (torch.baddbmm, real(8), XYZ.mT, real(4, 6, 8)),
    "matmul": (torch.matmul, XYZ, real(8)),
    "bmm": (torch.bmm, XYZ, real(4, 8, 2)),
    "mm": (torch.mm, X, real(6, 8)),
    "mv": (torch.mv, X, real(6)),
    **{name: (getattr(torch, name), real(6), real(6, seed=1)) for name in
       ("dot", "vdot", "outer", "ger")},
    "cdist": (torch.cdist, XYZ, real(2, 8, seed=1)),
    "_cdist_forward": (ATEN._cdist_forward, XYZ.detach(), real(4, 2, 8).detach(), 2.0, None),
    **{f"conv{n}d": (getattr(functional, f"conv{n}d"), CUBE[n], KERNEL[n],
                     real(len(KERNEL[n]))) for n in CUBE},
    **{f"conv_transpose{n}d": (getattr(functional, f"conv_transpose{n}d"), CUBE[n], KERNEL[n])
       for n in CUBE},
    **{f"{way}_pool{n}d": (getattr(functional, f"{way}_pool{n}d"), CUBE[n], 2) for n in CUBE
       for way in ("max", "avg", "adaptive_avg", "adaptive_max")},
    "interpolate": (functional.interpolate, IMAGE, (12, 12)),
    "lp_pool2d": (functional.lp_pool2d, IMAGE, 2.0, 2),
    "max_pool2d_with_indices": (ATEN.max_pool2d_with_indices, IMAGE, 2),
    "_adaptive_avg_pool2d": (ATEN._adaptive_avg_pool2d, IMAGE, [2, 2]),
    **{f"upsample_nearest{n}d": (getattr(ATEN, f"upsample_nearest{n}d"), CUBE[n],
                                 [2 * s for s in CUBE[n].shape[2:]], None) for n in CUBE},
    **{name: (getattr(ATEN, name), CUBE[int(name[-2])], [2 * s for s in
              CUBE[int(name[-2])].shape[2:]], False, None) for name in
       ("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d")},
    "_upsample_nearest_exact2d": (ATEN._upsample_nearest_exact2d, IMAGE, [12, 12], None),
    **{name: (getattr(functional, name), IMAGE, 2) for name in
       ("pixel_shuffle", "pixel_unshuffle")},
    "channel_shuffle": (torch.channel_shuffle, IMAGE.detach(), 2),
    "im2col": (ATEN.im2col, IMAGE, [2, 2], [1, 1], [0, 0], [1, 1]),
    "col2im": (ATEN.col2im, real(4, 8, 25), [6, 6], [2, 2], [1, 1], [0, 0], [1, 1]),
    "instance_norm": (functional.instance_norm, IMAGE),
    "grid_sampler": (torch.grid_sampler, IMAGE, real(4, 3, 3, 2), 0, 0, False),
    "grid_sampler_2d": (torch.grid_sampler_2d, IMAGE, real(4, 3, 3, 2), 0, 0, False),
    "bilinear": (functional.bilinear, X, real(4, 2), real(3, 6, 2), real(3)),
    "embedding": (functional.embedding, PLACES, real(8, 6)),
    "einsum": (torch.einsum, "bii,bij->bj", real(4, 6, 6), XYZ),
    "lstm": (torch.lstm, XYZ[..., :6].detach(), (real(1, 4, 4), real(1, 4, 4)), weights(4), False,
             1, 0.0, False, False, True),
    **{name: (getattr(torch, name), XYZ[..., :6].detach(), real(1, 4, 4), weights(gates), False, 1,
              0.0, False, False, True)
       for name, gates in (("gru", 3), ("rnn_tanh", 1), ("rnn_relu", 1))},
    "lstm_cell": (torch.lstm_cell, X, (real(4, 4), real(4, 4)), *weights(4)),
    **{name: (getattr(torch, name), X, real(4, 4), *weights(gates))
       for name, gates in (("gru_cell", 3), ("rnn_tanh_cell", 1), ("rnn_relu_cell", 1))},
    "scaled_dot_product_attention": (functional.scaled_dot_product_attention, real(4, 4, 6, 2),
                                     real(1, 4, 6, 2), real(4, 1, 6, 2)),
    "multi_head_attention_forward": (
        functional.multi_head_attention_forward, real(6, 4, 8), real(6, 4, 8), real(6, 4, 8), 8, 2,
        real(24, 8), real(24), None, None, False, 0.0, real(8, 8), real(8)),
    "layer_norm": (functional.layer_norm, XYZ, (8,), real(8)),
    "rms_norm": (functional.rms_norm, XYZ, (6, 8)),
    "native_layer_norm": (torch.native_layer_norm, XYZ, (8,), real(8), real(8), 1e-5),
    "_fused_rms_norm": (ATEN._fused_rms_norm, XYZ.detach(), (8,), real(8).detach(), 1e-5),
    "group_norm": (functional.group_norm, IMAGE, 2),
    "batch_norm": (functional.batch_norm, XYZ, real(6).detach(), HALF[0]),
    "cross_entropy": (functional.cross_entropy, XYZ.transpose(1, 2), PLACES),
    "nll_loss": (functional.nll_loss, XYZ.transpose(1, 2), PLACES),
    **{name: (getattr(functional, name), X, HALF) for name in
       ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
        "binary_cross_entropy_with_logits")},
    "binary_cross_entropy": (functional.binary_cross_entropy, HALF, HALF),
    "ctc_losses": (torch.ops.gnnplace.ctc_losses, real(8, 4, 6), PLACES[:, :2] + 1,
                   torch.tensor([[8, 7, 6, 8], [2, 1, 2, 0]]), None, 0, False),
    "experts": (torch.ops.gnnplace.experts, real(4, 6), PLACES[:, :2], real(4, 2),
                real(4, 16, 6), real(4, 6, 8), "silu", 0),
}  # fmt: skip
CASES["requires_grad"] = CASES.pop("requires_grad_")
UNSEEN = ("new_empty", "empty_like", "cuda")
"""Calls whose numbers are any, or are on another device; others of their rules have cases."""


@pytest.mark.parametrize("name", sorted(set(RULES) - set(UNSEEN)))
def test_a_rule_of_the_table_is_run_whole_against_parts(name):
    kind, labels = check_call(*CASES[name])
    assert kind == name
    assert labels


def test_windows_of_images_are_cut_along_examples_alone():
    assert check_call(functional.unfold, real(4, 2, 6, 6), 3)[1] == {"0"}
    assert not check_call(functional.unfold, real(2, 6, 6), 3)[1]


def test_no_case_is_without_a_rule():
    assert set(CASES) <= set(RULES)
