"""How values of a batch follow from those of its shares: every rule against real numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from gnnplace.tracing.batch.axis import Flow, _Follower, _Mode, flat_nodes, follow
from gnnplace.tracing.batch.cut import subgraph
from gnnplace.tracing.batch.state import MIXED, SAME, SPLIT, SUM, UNKNOWN, State

BATCH, COUNT = 6, 3


class Called(nn.Module):
    """A function of the batch and of a parameter w of 4 x 4."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.w = nn.Parameter(torch.linspace(-1, 1, 16).reshape(4, 4))

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs, self.w)


def exported(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> fx.GraphModule:
    found = torch.export.export(module, inputs, strict=False).module(check_guards=False)
    assert isinstance(found, fx.GraphModule)
    return found


def followed(
    function: Callable[..., Any], inputs: tuple[torch.Tensor, ...], axis: int = 0
) -> tuple[State, Flow, torch.Tensor, list[torch.Tensor]]:
    """State of the function's result, and the result of the whole batch and of every share."""
    module = Called(function)
    shares = list(zip(*(x.chunk(COUNT, axis) for x in inputs), strict=True))
    share, whole = exported(module, shares[0]), exported(module, inputs)
    follower = _Follower(share, whole, COUNT, _Mode(False, False))
    follower._walk()
    share.recompile()
    result = flat_nodes(share.graph.output_node())[0]
    for name, node in follower.result.given.items():
        setattr(share, name, whole_value(whole, node, inputs))
    outputs = [share(*part) for part in shares]
    return follower.states[result], follower.result, module(*inputs), outputs


def whole_value(
    whole: fx.GraphModule, node: fx.Node, inputs: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    value: torch.Tensor = subgraph(whole, [node])(*inputs)[0].detach()
    return value


def rebuilt(state: State, shares: list[torch.Tensor]) -> torch.Tensor:
    """The whole batch's value as the state says it follows from the shares'."""
    if state.kind == SAME:
        assert all(torch.equal(shares[0], other) for other in shares)
        return shares[0]
    if state.kind == SUM:
        return state.scale * torch.stack([s.double() for s in shares]).sum(0)
    shape = shares[0].shape
    parts = [
        s.reshape(*shape[: state.dim], state.outer, -1, *shape[state.dim + 1 :])
        for s in shares
    ]
    joined = torch.cat(parts, state.dim + 1)
    return state.scale * joined.flatten(state.dim, state.dim + 1)


X = torch.randn(BATCH, 5, 4, generator=torch.Generator().manual_seed(1))
Y = torch.randn(BATCH, 5, 4, generator=torch.Generator().manual_seed(2))
WORDS = torch.randint(4, (BATCH, 5), generator=torch.Generator().manual_seed(3))

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda x, y, w: x + y * w[0] - 2,
    "mul": lambda x, y, w: x * y * w.sum(),
    "div": lambda x, y, w: x / (1 + y.abs()),
    "where": lambda x, y, w: torch.where(x > y, x, w[0]),
    "softmax": lambda x, y, w: (x @ w).softmax(-1).log_softmax(1),
    "cumsum": lambda x, y, w: (x + w[0]).cumsum(1).flip(2).roll(1, 2),
    "sort": lambda x, y, w: (x + w[0]).sort(-1).values,
    "topk": lambda x, y, w: (x + w[0]).topk(2, 1).values,
    "max": lambda x, y, w: (x + w[0]).max(1).values,
    "sum": lambda x, y, w: (x * w[0]).sum(),
    "sum_of_some": lambda x, y, w: (x * w[0]).sum((0, 2)),
    "sum_kept": lambda x, y, w: (x * w[0]).sum((1, 2), keepdim=True),
    "mean": lambda x, y, w: (x * w[0]).mean(0),
    "mean_of_sum": lambda x, y, w: (x * w[0]).sum(1).mean(),
    "var": lambda x, y, w: (x * w[0]).var((1, 2)),
    "logsumexp": lambda x, y, w: (x * w[0]).logsumexp(1),
    "by_size": lambda x, y, w: (x * w[0]).sum() / x.shape[0],
    "each_by_size": lambda x, y, w: (x * w[0] / x.shape[0]).sum(),
    "by_root": lambda x, y, w: (x * w[0]).sum() / x.shape[0] ** 0.5,
    "by_number": lambda x, y, w: (x * w[0]).sum() / 6,
    "scaled_then_squared": lambda x, y, w: (x * w[0] / len(x)).square(),
    "weight_by_size": lambda x, y, w: w.sum() / x.shape[0],
    "view": lambda x, y, w: (x * w[0]).view(-1, 4),
    "flatten": lambda x, y, w: (x * w[0]).flatten(),
    "pairs": lambda x, y, w: (x * w[0]).reshape(x.shape[0] // 2, 2, 5, 4),
    "transpose": lambda x, y, w: (x * w[0]).transpose(0, 2).reshape(20, -1),
    "words_first": lambda x, y, w: (x * w[0]).transpose(0, 1).reshape(-1, 4),
    "words_first_and_back": lambda x, y, w: (
        (x * w[0])
        .transpose(0, 1)
        .reshape(-1, 4)
        .softmax(-1)
        .view(5, -1, 4)
        .movedim(0, 2)
    ),
    "permute": lambda x, y, w: (x * w[0]).permute(2, 0, 1),
    "squeeze": lambda x, y, w: (x * w[0]).unsqueeze(1).squeeze(1).unsqueeze(-1),
    "select": lambda x, y, w: (x * w[0])[:, 0],
    "slice": lambda x, y, w: (x * w[0])[:, 1:, ::2],
    "split": lambda x, y, w: (x * w[0]).split(2, 2)[1],
    "unbind": lambda x, y, w: (x * w[0]).unbind(1)[3],
    "cat": lambda x, y, w: torch.cat([x * w[0], y], 1),
    "cat_weight": lambda x, y, w: torch.cat([x, w[:1].expand(len(x), 1, 4)], 1),
    "stack": lambda x, y, w: torch.stack([x * w[0], y]),
    "two_views": lambda x, y, w: torch.cat([x * w[0], y]),
    "expand": lambda x, y, w: w[0].expand(x.shape[0], 5, 4) * x,
    "repeat": lambda x, y, w: w[0].repeat(x.shape[0], 1),
    "copies": lambda x, y, w: (x * w[0]).repeat(3, 1, 2),
    "copies_by_example": lambda x, y, w: (x * w[0]).repeat_interleave(3, 0),
    "copies_of_words": lambda x, y, w: (x * w[0]).repeat_interleave(3, 1),
    "a_copy_for_every_expert": lambda x, y, w: (
        (x.flatten(0, 1).repeat(3, 1) * (y[..., :3].flatten(0, 1).T.reshape(-1, 1)))
        .view(3, -1, 4)
        .bmm(w.expand(3, 4, 4))
        .view(-1, 4)
        .reshape(3, -1, 4)
        .sum(0)
    ),
    "zeros": lambda x, y, w: torch.zeros(x.shape[0], 3) + w.sum(),
    "shape_of_one": lambda x, y, w: x * w[0] + torch.full_like(x[0], 2.0).triu(1),
    "ones_like": lambda x, y, w: torch.ones_like(x) * w[0],
    "linear": lambda x, y, w: functional.linear(x, w, w[0]),
    "matmul": lambda x, y, w: x @ w,
    "attention": lambda x, y, w: (x @ w @ y.transpose(1, 2)).softmax(-1) @ y,
    "contracted": lambda x, y, w: (x @ w).flatten(1).T @ y.flatten(1),
    "einsum": lambda x, y, w: torch.einsum("bij,jk,bik->bi", x, w, y),
    "einsum_contracted": lambda x, y, w: torch.einsum("bij,jk,blk->il", x, w, y),
    "cdist": lambda x, y, w: torch.cdist(x @ w, y),
    "cosine": lambda x, y, w: functional.cosine_similarity(x @ w, y, dim=-1),
    "normalize": lambda x, y, w: functional.normalize(x @ w, dim=1),
    "layer_norm": lambda x, y, w: functional.layer_norm(x @ w, (5, 4)),
    "group_norm": lambda x, y, w: functional.group_norm((x @ w).transpose(1, 2), 2),
    "sdpa": lambda x, y, w: functional.scaled_dot_product_attention(
        x @ w, y, y, is_causal=True
    ),
    "conv": lambda x, y, w: functional.conv1d(x.transpose(1, 2), w[:, :, None]),
    "pool": lambda x, y, w: functional.avg_pool1d(x @ w, 2),
    "upsample": lambda x, y, w: functional.interpolate(x @ w, scale_factor=2.0),
    "pad": lambda x, y, w: functional.pad(x @ w, (1, 0, 2, 1)),
    "tril": lambda x, y, w: (x @ w @ x.transpose(1, 2)).tril(),
    "mse": lambda x, y, w: functional.mse_loss(x @ w, y),
    "l1_sum": lambda x, y, w: functional.l1_loss(x @ w, y, reduction="sum"),
    "huber": lambda x, y, w: functional.huber_loss(x @ w, y),
    "kl": lambda x, y, w: functional.kl_div(
        (x @ w).log_softmax(-1), y.softmax(-1), reduction="batchmean"
    ),
    "triplet": lambda x, y, w: functional.triplet_margin_loss(
        x[:, 0] @ w, y[:, 1], y[:, 2]
    ),
    "sum_linear": lambda x, y, w: ((x * y).sum((0, 1)) * 3 @ w).view(2, 2).T.mean(),
    "sums_added": lambda x, y, w: (x @ w).sum() - (y @ w).sum(),
    "losses_in_one": lambda x, y, w: torch.stack(
        [(x @ w).sum(), (y @ w).mean(), w.sum()]
    ),
    "sums_in_one": lambda x, y, w: torch.stack([(x @ w).sum(), (y @ w).sum()]).mean(),
    "given": lambda x, y, w: (x - x.mean(0)) / (x.std((0, 1)) + 1) * w[0],
    "given_count": lambda x, y, w: (x @ w * (y > 0)).sum() / (y > 0).sum().clamp(min=1),
    "given_largest": lambda x, y, w: (x @ w / y.abs().max()).mean(),
    "in_place": lambda x, y, w: (x @ w).mul_(2).add_(y).relu_(),
    "part_in_place": lambda x, y, w: _set(x @ w, y),
    "first_rows": lambda x, y, w: (x @ w)[: x.shape[0]],
    "dot": lambda x, y, w: torch.dot(x[:, 0, 0], y[:, 0, 0]) * w.sum(),
    "vector": lambda x, y, w: x @ w[0],
    "outer": lambda x, y, w: torch.outer((x @ w)[:, 0, 0], w[0]),
    "addmm": lambda x, y, w: torch.addmm(y[:, 0], x[:, 0], w),
    "baddbmm": lambda x, y, w: torch.baddbmm(y[:, :1, :1], x @ w, y.transpose(1, 2)),
    "einsum_in_order": lambda x, y, w: torch.einsum("bij,jk", x, w),
    "einsum_diagonal": lambda x, y, w: torch.einsum(
        "bjj->bj", x @ w @ y.transpose(1, 2)
    ),
    "linear_contracted": lambda x, y, w: functional.linear((x @ w)[:, 0].T, y[:, 0].T),
    "two_views_through": lambda x, y, w: (
        torch.cat([x @ w, y]).softmax(-1).transpose(0, 1) @ w
    ),
    "scaled_and_turned": lambda x, y, w: (
        ((x @ w) / len(x)).transpose(0, 1).unsqueeze(0)
    ),
    "sum_turned": lambda x, y, w: (x @ w).mean(0).T.unsqueeze(0).expand(3, 4, 5),
    "expand_as": lambda x, y, w: w[:1].expand_as(x[:, 0]) * y[:, 0],
    "fft": lambda x, y, w: torch.fft.rfft2(x @ w).abs(),
    "stft": lambda x, y, w: torch.stft(
        (x @ w).flatten(1), 8, window=torch.ones(8), return_complex=True
    ).abs(),
    "unfold": lambda x, y, w: (x @ w).unfold(1, 2, 1),
    "diff": lambda x, y, w: (x @ w).diff(dim=1, prepend=y[:, :1]),
    "glu": lambda x, y, w: functional.glu(x @ w),
    "kthvalue": lambda x, y, w: (x @ w).kthvalue(2, 1).values,
    "pairwise": lambda x, y, w: functional.pairwise_distance(x @ w, y[:, :1]),
    "sdpa_of_a_table": lambda x, y, w: functional.scaled_dot_product_attention(
        (x @ w)[:, None], w[None, None], w[None, None]
    ),
    "sdpa_for_a_table": lambda x, y, w: functional.scaled_dot_product_attention(
        w, x @ w, y
    ),
    "queries": lambda x, y, w: functional.scaled_dot_product_attention(
        x[:, 0] @ w, w, w
    ),
    "lstm_cell": lambda x, y, w: torch.lstm_cell(
        x[:, 0] @ w, (y[:, 0], y[:, 1]), w.repeat(4, 1), w.repeat(4, 1)
    )[0],
    "lstm": lambda x, y, w: torch.lstm(
        x,
        (y[None, :, 0], y[None, :, 1]),
        [w.repeat(4, 1)] * 2,
        False,
        1,
        0.0,
        False,
        False,
        True,
    )[0],
    "pixels": lambda x, y, w: functional.pixel_shuffle((x @ w)[:, :4, :, None], 2),
    "patches": lambda x, y, w: functional.unfold((x @ w)[:, None], 2),
    "grid": lambda x, y, w: functional.grid_sample(
        (x @ w)[:, None], y[:, :3, None, :2], align_corners=False
    ),
    "pool_with_places": lambda x, y, w: functional.max_pool2d_with_indices(
        (x @ w)[:, None], 2
    )[0],
    "frozen_norm": lambda x, y, w: functional.batch_norm(x @ w, *torch.ones(2, 5)),
    "instance_norm": lambda x, y, w: functional.instance_norm(x @ w),
    "places_turned": lambda x, y, w: (x @ w)[
        torch.arange(len(x))[:, None], torch.arange(3)[None]
    ],
}


def _set(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x[:, 0] = y[:, 1]
    return x


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_batch_follows_from_its_shares_as_the_state_says(name: str) -> None:
    state, _, whole, shares = followed(FUNCTIONS[name], (X, Y))
    assert not state.is_failure, state.why
    torch.testing.assert_close(rebuilt(state, shares).to(whole.dtype), whole)


LOOK_UPS: dict[str, Callable[..., Any]] = {
    "embedding": lambda i, x, w: functional.embedding(i, w),
    "table": lambda i, x, w: w[i, 1],
    "gather": lambda i, x, w: (x @ w).gather(2, i[:, :, None]),
    "scatter": lambda i, x, w: torch.zeros_like(x @ w).scatter(2, i[:, :, None], 1),
    "scatter_in_place": lambda i, x, w: torch.zeros_like(x @ w).scatter_(
        2, i[:, :, None], 2.0
    ),
    "scatter_add": lambda i, x, w: (x @ w).scatter_add(2, i[:, :, None], x[..., :1]),
    "index_select": lambda i, x, w: (x @ w).index_select(1, torch.tensor([3, 1])),
    "own_word": lambda i, x, w: (x @ w)[torch.arange(len(i)), i[:, 0]],
    "table_gather": lambda i, x, w: w.gather(0, i[:, :4]),
    "table_select": lambda i, x, w: w.index_select(0, i[:, 0]),
    "take_along": lambda i, x, w: (x @ w).take_along_dim(i[:, :, None], 2),
    "one_hot": lambda i, x, w: functional.one_hot(i, 4).float() @ w,
    "entropy": lambda i, x, w: functional.cross_entropy(
        (x @ w).flatten(0, 1), i.flatten(), reduction="sum"
    ),
    "entropy_each": lambda i, x, w: functional.cross_entropy(
        (x @ w).transpose(1, 2), i, reduction="none"
    ),
}


@pytest.mark.parametrize("name", LOOK_UPS)
def test_tables_are_looked_up_example_by_example(name: str) -> None:
    state, _, whole, shares = followed(LOOK_UPS[name], (WORDS, X))
    assert not state.is_failure, state.why
    torch.testing.assert_close(rebuilt(state, shares).to(whole.dtype), whole)


MIXES: dict[str, tuple[str, Callable[..., Any]]] = {
    "matmul": (MIXED, lambda x, y, w: (x[:, 0] @ w) @ y[:, 0].T),
    "cdist": (MIXED, lambda x, y, w: torch.cdist(x[:, 0] @ w, y[:, 0])),
    "sqrt": (MIXED, lambda x, y, w: (x @ w).square().mean().sqrt()),
    "div": (MIXED, lambda x, y, w: (x @ w).sum() / (y @ w).exp().sum()),
    "mul": (MIXED, lambda x, y, w: ((x @ w).mean(0) * (y @ w).mean(0)).sum()),
    "max": (MIXED, lambda x, y, w: (x @ w).max()),
    "std": (MIXED, lambda x, y, w: (x @ w).std(0)),
    "softmax": (MIXED, lambda x, y, w: (x @ w).softmax(0)),
    "cumsum": (MIXED, lambda x, y, w: (x @ w).cumsum(0)),
    "sub": (MIXED, lambda x, y, w: (x @ w)[None, :, 0] - y[:, None, 0]),
    "select": (MIXED, lambda x, y, w: (x @ w)[0]),
    "reshape": (MIXED, lambda x, y, w: (x @ w).transpose(0, 1).reshape(-1, len(x) * 2)),
    "sort": (UNKNOWN, lambda x, y, w: (x @ w).sort(0).values),
    "roll": (UNKNOWN, lambda x, y, w: (x @ w).roll(1, 0)),
    "index": (UNKNOWN, lambda x, y, w: (x @ w)[x[:, 0, 0].argsort()]),
    "scatter": (
        UNKNOWN,
        lambda x, y, w: (x @ w).scatter(0, x[..., :1].long().abs() % 2, 1),
    ),
    "causal_queries": (
        UNKNOWN,
        lambda x, y, w: functional.scaled_dot_product_attention(
            x[:, 0] @ w, w, w, is_causal=True
        ),
    ),
    "table_by_size": (UNKNOWN, lambda x, y, w: x[:, 0] * w.repeat(3, 1)[: x.shape[0]]),
    "power_of_size": (MIXED, lambda x, y, w: (x @ w) ** x.shape[0]),
    "plus_size": (MIXED, lambda x, y, w: x @ w + x.shape[0]),
    "by_size_and_down": (
        MIXED,
        lambda x, y, w: torch.div(x @ w, x.shape[0], rounding_mode="floor"),
    ),
    "select_by_size": (MIXED, lambda x, y, w: (x @ w)[:, x.shape[0] - 2]),
    "copies_by_size": (MIXED, lambda x, y, w: (x @ w).repeat(len(x), 1, 1)),
    "words_by_size": (MIXED, lambda x, y, w: (x @ w).repeat(1, len(x), 1)),
    "copies_in_one_axis": (UNKNOWN, lambda x, y, w: (x @ w).repeat_interleave(2)),
    "copies_by_numbers": (
        UNKNOWN,
        lambda x, y, w: (x @ w).repeat_interleave(
            torch.tensor([1, 2, 0, 1, 1]), 1, output_size=5
        ),
    ),
    "matrix_exp": (UNKNOWN, lambda x, y, w: torch.linalg.matrix_exp(x[:, :4] @ w)),
}


@pytest.mark.parametrize("name", MIXES)
def test_the_op_that_mixes_examples_is_named(name: str) -> None:
    kind, function = MIXES[name]
    state, _, _, _ = followed(function, (X, Y))
    assert state.kind == kind
    assert state.culprit is not None
    assert state.why


def test_a_loop_over_the_examples_is_another_graph() -> None:
    share, whole = (exported(Called(_looped), (x,)) for x in (X[:2], X))
    flow = follow(share, whole, COUNT)
    assert flow.loss.kind == UNKNOWN
    assert "another size" in flow.loss.why


def _looped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    total = w.sum()
    for example in x:
        total = total + (example @ w).sum()
    return total


def test_a_batch_on_another_axis() -> None:
    """Words first, as recurrent layers have them."""
    x = X.transpose(0, 1).contiguous()
    state, _, whole, shares = followed(lambda x, w: (x @ w).mean(0), (x,), axis=1)
    assert (state.kind, state.dim) == (SPLIT, 0)
    torch.testing.assert_close(rebuilt(state, shares), whole)


def test_shares_of_one_example() -> None:
    module = Called(lambda x, w: (x @ w).square().mean())
    flow = follow(exported(module, (X[:1],)), exported(module, (X,)), BATCH)
    assert flow.holds
    assert not flow.scaled
