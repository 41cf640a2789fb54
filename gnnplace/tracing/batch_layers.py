"""Rules of layers and losses: convolutions, norms, attention, recurrent layers, cross entropy."""

from __future__ import annotations

from typing import Any

from torch import fx

from gnnplace.tracing.batch_rules import Rule, aligned, each, elementwise, fresh
from gnnplace.tracing.batch_state import (
    SAME,
    SPLIT,
    SUM,
    MixesError,
    Op,
    State,
    UndecidedError,
    same,
    shape_of,
)

NONE, MEAN, TOTAL = 0, 1, 2
"""Reductions of losses, as ATen numbers them."""


def batched_first(op: Op) -> Any:
    """A layer whose first axis is the batch, whatever it does along the others.

    Raises:
        MixesError: the batch is elsewhere, or in its weights.
    """
    node = op.operands[0]
    states = [op.plain(n) for n in op.operands]
    if any(s.kind == SPLIT for s in states[1:]) and states[0].kind != SPLIT:
        raise MixesError("its weights depend on the batch")
    if any(s.kind == SPLIT and s.dim != 0 for s in states):
        raise MixesError("it works along the batch")
    first = states[0]
    if first.kind == SAME:
        return each(op, fresh(op))
    return each(op, op.split(0, first.outer)) if len(shape_of(node)) > 1 else first


def experts(op: Op) -> State:
    """The experts of a mixture: rows are independent, given what the router chose.

    Raises:
        MixesError: matrices that depend on the batch, or rows of several batches.
    """
    states = [op.plain(n) for n in op.operands]
    rows = {(s.dim, s.outer) for s in states[:3] if s.kind == SPLIT}
    if any(s.kind == SPLIT for s in states[3:]) or len(rows) > 1:
        raise MixesError("the experts' matrices, or their rows, mix examples of the batch")
    return op.split(*rows.pop()) if rows else same(op.known)


def convolution(op: Op) -> State:
    """A convolution of a batch of images; without a batch axis the first is its channels."""
    x, weight = op.get("input"), op.get("weight")
    if op.plain(weight).kind == SPLIT:
        raise UndecidedError("its weights depend on the batch")
    if op.plain(x).kind == SPLIT and len(shape_of(x)) != len(shape_of(weight)):
        raise MixesError("it works along the batch")
    found: State = batched_first(op)
    return found


def batch_norm(op: Op) -> Any:
    """Batch norm: stated as an exception, so that it counts as if it were frozen."""
    node = op.operands[0]
    state = op.plain(node)
    if state.kind == SPLIT and state.dim != 0:
        raise MixesError("it works along the batch")
    if state.kind == SAME:
        return each(op, same())
    return each(op, op.split(0, state.outer))


def last_axes(op: Op) -> Any:
    """Layer norm and the like: over the last axes, which the batch is not among."""
    node = op.operands[0]
    state, over = op.plain(node), len(op.args["normalized_shape"])
    if state.kind == SPLIT and state.dim >= len(shape_of(node)) - over:
        raise MixesError("it takes statistics of the batch")
    return each(op, state if state.kind == SAME else op.split(state.dim, state.outer))


def attention(op: Op) -> Any:
    """Scaled dot-product attention: between the words of an example.

    Raises:
        MixesError: examples are mixed along the axis.
    """
    names = ("query", "key", "value", "attn_mask", "attn_bias")
    nodes = [op.args[n] for n in names if isinstance(op.args.get(n), fx.Node)]
    states = [(n, op.plain(n)) for n in nodes]
    for node, state in states:
        words = state.dim >= len(shape_of(node)) - 2
        if state.kind == SPLIT and words:
            raise MixesError("it lets examples attend to each other")
    return each(op, aligned(op, states))


def recurrent(op: Op) -> Any:
    """Recurrent layers: the batch is the second axis, or the first of inputs and outputs."""
    x = op.get("input")
    state = op.plain(x)
    if len(shape_of(x)) != 3 or any(op.plain(n).kind == SPLIT for n in op.args["params"]):
        raise UndecidedError("a recurrent layer in a form without a rule")
    own = 0 if op.args.get("batch_first") else 1
    if state.kind == SPLIT and state.dim != own:
        raise MixesError("it runs along the batch")
    hidden = op.get("hx")
    others = hidden if isinstance(hidden, list | tuple) else [hidden]
    if any(s.kind == SPLIT and s.dim != 1 for s in map(op.plain, others)):
        raise MixesError("it runs along the batch")
    rest = [op.split(1, state.outer)] * (len(op.shapes) - 1)
    return (op.split(own, state.outer), *rest)


def cell(op: Op) -> Any:
    """One step of a recurrent layer: the batch is the first axis of everything."""
    for node in op.operands:
        state = op.plain(node)
        if state.kind == SPLIT and state.dim != 0:
            raise MixesError("it runs along the batch")
    return each(op, op.split(0))


def loss(op: Op) -> State:
    """A loss of ATen that is reduced over all elements: none, mean or sum.

    Raises:
        MixesError: its operands have the batch on different axes.
    """
    states = [(n, op.plain(n)) for n in op.operands]
    if op.get("reduction", default=MEAN) == NONE:
        return aligned(op, states)
    if all(state.kind == SAME for _, state in states):
        return same(op.known)
    front = {(s.dim, s.outer) for _, s in states if s.kind == SPLIT}
    back = {(s.dim - len(shape_of(n)), s.outer) for n, s in states if s.kind == SPLIT}
    if len(front) > 1 and len(back) > 1:  # neither row by row nor with broadcasting
        raise MixesError("it pairs examples of the batch")
    total = op.args["reduction"] == TOTAL
    return State(SUM, scale=1.0 if total else 1.0 / op.count, known=op.known)


def cross_entropy(op: Op) -> Any:
    """Cross entropy and negative log-likelihood: [N, C, ...] against classes or their shares.

    The mean over classes divides by the weights of those targets that are not ignored. It is
    rewritten beforehand as a sum over that count (`gnnplace.tracing.cut_batch`).

    Raises:
        MixesError: the batch is the axis of the classes.
    """
    x, target = op.args["self"], op.args["target"]
    states = [(n, op.plain(n)) for n in op.operands if n is not op.get("weight")]
    if isinstance(op.get("weight"), fx.Node) and op.plain(op.args["weight"]).kind != SAME:
        raise MixesError("its class weights depend on the batch")
    classes = 1 if len(shape_of(x)) > 1 else 0
    if any(s.kind == SPLIT and n is x and s.dim == classes for n, s in states):
        raise MixesError("the batch is its axis of classes, as in a contrastive loss")
    if all(state.kind == SAME for _, state in states):
        return each(op, same(op.known))
    shares = shape_of(x) == shape_of(target)  # of classes, instead of a class
    places = {
        (s.dim - (not shares and n is x and s.dim > classes), s.outer)
        for n, s in states
        if s.kind == SPLIT
    }
    if len(places) > 1 and op.args["reduction"] == NONE:
        raise MixesError("it pairs examples of the batch")
    if op.args["reduction"] == NONE:
        return each(op, op.split(*places.pop()))
    if op.args["reduction"] == MEAN and not shares:
        raise UndecidedError("it is a mean over targets that may be ignored")
    total = op.args["reduction"] == TOTAL
    return each(op, State(SUM, scale=1.0 if total else 1.0 / op.count))


def similarity(op: Op) -> State:
    """`cosine_similarity` and `pairwise_distance`: of rows that belong to one example."""
    dim = op.get("dim", default=-1)
    rank = max(len(shape_of(n)) for n in op.operands)
    state = _over(op, [(n, op.plain(n)) for n in op.operands], rank)
    if state.kind == SPLIT and state.dim == dim % rank:
        raise MixesError("it works along the batch")
    return state if state.kind == SAME else state.at(state.dim - (dim % rank < state.dim))


def _over(op: Op, states: list[tuple[fx.Node, State]], rank: int) -> State:
    found = {(s.dim + rank - len(shape_of(n)), s.outer) for n, s in states if s.kind == SPLIT}
    if len(found) > 1:
        raise MixesError("it pairs examples of the batch")
    return op.split(*found.pop()) if found else same(op.known)


FIRST = ("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
         "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
         "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
         "max_pool2d_with_indices", "_adaptive_avg_pool2d", "mkldnn_max_pool2d",
         "group_norm", "native_group_norm", "instance_norm", "pixel_shuffle", "pixel_unshuffle",
         "channel_shuffle", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
         "upsample_bilinear2d", "upsample_bicubic2d", "upsample_linear1d", "upsample_trilinear3d",
         "_upsample_nearest_exact2d", "im2col", "col2im", "grid_sampler", "grid_sampler_2d",
         "affine_grid_generator", "bilinear", "lp_pool2d")  # fmt: skip
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "conv_transpose1d",
                "conv_transpose2d", "conv_transpose3d")  # fmt: skip
LOSSES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
          "binary_cross_entropy_with_logits", "kl_div", "soft_margin_loss",
          "hinge_embedding_loss", "cosine_embedding_loss", "margin_ranking_loss",
          "triplet_margin_loss", "poisson_nll_loss", "multi_margin_loss",
          "multilabel_margin_loss", "gaussian_nll_loss", "ctc_loss")  # fmt: skip
ENTROPIES = ("cross_entropy_loss", "nll_loss", "nll_loss_nd", "nll_loss2d", "nll_loss_forward",
             "nll_loss2d_forward")  # fmt: skip

RULES: dict[str, Rule] = {
    **dict.fromkeys(FIRST, batched_first),
    **dict.fromkeys(CONVOLUTIONS, convolution),
    **dict.fromkeys(("batch_norm", "native_batch_norm", "_native_batch_norm_legit"), batch_norm),
    **dict.fromkeys(("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"), last_axes),
    "scaled_dot_product_attention": attention,
    "experts": experts,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), cell),
    **dict.fromkeys(LOSSES, loss),
    **dict.fromkeys(ENTROPIES, cross_entropy),
    **dict.fromkeys(("cosine_similarity", "pairwise_distance"), similarity),
    "dropout": elementwise,
}
