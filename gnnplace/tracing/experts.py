"""`experts`: the experts of a mixture as one call, which every road can follow.

For every token x with its chosen experts e and their weights w (Shazeer et al., 2017, 1701.06538):

    y = sum over e of w_e  D_e h_e,   h_e = act(G_e x) * (V_e x)   or   h_e = act(V_e x)

with U_e = [G_e; V_e] where there is a gate. The tokens of an expert are known to the router alone:
written in calls of torch, as a sort or a loop over experts, their numbers decide shapes, and no
recording of such a loop is one of the next batch. As one call, a token's result depends on nothing
but the token. Rows are put in the order of their experts once, and each expert is two products over
its own; what they made is computed again in the backward pass. O(rows) products, one wait for the
counts.

The models of transformers (5) look their experts' forward pass up by name in a public registry;
within `as_one_call` they find this one. One's own experts call `gnnplace.experts`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from gnnplace.errors import CaptureError, InputError

Tensor = torch.Tensor
NAME, IMPLEMENTATION = "gnnplace", "_experts_implementation_internal"
aten = torch.ops.aten


class Activation(NamedTuple):
    """A function of every element, and the gradient of what it read from that of what it made."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]


ACTIVATIONS = {
    "silu": Activation(functional.silu, aten.silu_backward),
    "gelu": Activation(functional.gelu, aten.gelu_backward),
    "gelu_tanh": Activation(
        partial(functional.gelu, approximate="tanh"),
        partial(aten.gelu_backward, approximate="tanh"),
    ),
    "relu": Activation(functional.relu, lambda given, x: given * (x > 0)),
    "relu2": Activation(lambda x: x.relu().square(), lambda given, x: given * 2 * x.relu()),
}
CLASSES = {
    "SiLUActivation": "silu", "SiLU": "silu", "GELUActivation": "gelu", "GELU": "gelu",
    "GELUTanh": "gelu_tanh", "PytorchGELUTanh": "gelu_tanh", "ReLU": "relu",
    "ReLUSquaredActivation": "relu2",
}  # fmt: skip
"""Names of `ACTIVATIONS` by the classes of torch and transformers."""


def experts(
    x: Tensor, index: Tensor, weights: Tensor, up: Tensor, down: Tensor, act: str = "silu"
) -> Tensor:
    """The weighted sum of the experts that a router chose for every token.

    Args:
        x: tokens. [N, H]
        index: experts of every token, each below E; what is E or more is none. [N, K]
        weights: their weights. [N, K]
        up: first matrices; those with a gate have its rows first. [E, I or 2 I, H]
        down: second matrices. [E, H, I]
        act: one of `ACTIVATIONS`.

    Returns:
        [N, H], of the type of `x`.

    Raises:
        InputError: sizes that do not fit, or an unknown activation.
    """
    inner = down.shape[-1] if down.dim() == 3 else 0
    fits = (
        x.dim() == 2 and index.dim() == 2 and index.shape == weights.shape
        and len(index) == len(x) and up.dim() == down.dim() == 3 and len(up) == len(down)
        and up.shape[1] in (inner, 2 * inner) and up.shape[2] == x.shape[1] == down.shape[1]
    )  # fmt: skip
    if not fits:
        sizes = ", ".join(str(list(t.shape)) for t in (x, index, weights, up, down))
        raise InputError(
            f"experts: x, index, weights, up and down are {sizes}; they must be [N, H], [N, K], "
            "[N, K], [E, I or 2 I, H] and [E, H, I]"
        )
    if act not in ACTIVATIONS:
        raise InputError(f"experts: no activation {act!r}; use one of {', '.join(ACTIVATIONS)}")
    found: Tensor = torch.ops.gnnplace.experts(x, index, weights, up, down, act, 0)
    return found


def _middle(made: Tensor, inner: int, act: str) -> Tensor:
    """What the second matrix reads: the activation, times the rest where there is a gate."""
    if made.shape[-1] == inner:
        return ACTIVATIONS[act].forward(made)
    gate, rest = made.chunk(2, -1)
    return ACTIVATIONS[act].forward(gate) * rest


def _middle_backward(given: Tensor, made: Tensor, inner: int, act: str) -> Tensor:
    """The gradient of `made` from that of `_middle`."""
    if made.shape[-1] == inner:
        return ACTIVATIONS[act].backward(given, made)
    gate, rest = made.chunk(2, -1)
    activation = ACTIVATIONS[act]
    return torch.cat(
        [activation.backward(given * rest, gate), given * activation.forward(gate)], -1
    )


def _sorted(index: Tensor, first: int, count: int) -> tuple[Tensor, list[int]]:
    """Places of `index` in the order of their experts, and how many each of `count` has."""
    flat = index.reshape(-1) - first
    inside = torch.where((flat >= 0) & (flat < count), flat, count)
    sizes = torch.bincount(inside, minlength=count + 1)[:count].tolist()
    return torch.argsort(inside, stable=True)[: sum(sizes)], sizes


def _working(x: Tensor) -> torch.dtype:
    """The type that products are made in: that of autocast, within it."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


@torch.library.custom_op("gnnplace::experts", mutates_args=())
def _experts(
    x: Tensor, index: Tensor, weights: Tensor, up: Tensor, down: Tensor, act: str, first: int
) -> Tensor:
    places, sizes = _sorted(index, first, len(up))
    token, dtype = places // index.shape[1], _working(x)
    parts = x[token].to(dtype).split(sizes)
    made = []
    for rows, first_matrix, second in zip(parts, up.to(dtype), down.to(dtype), strict=True):
        made.append(_middle(rows @ first_matrix.t(), down.shape[2], act) @ second.t())
    weighed = torch.cat(made) * weights.reshape(-1)[places].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, token, weighed.to(x.dtype))


@_experts.register_fake
def _(x: Tensor, index: Any, weights: Any, up: Any, down: Any, act: str, first: int) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("gnnplace::experts_backward", mutates_args=())
def _backward(
    gradient: Tensor, x: Tensor, index: Tensor, weights: Tensor, up: Tensor, down: Tensor,
    act: str, first: int,
) -> list[Tensor]:  # fmt: skip
    places, sizes = _sorted(index, first, len(up))
    token, inner = places // index.shape[1], down.shape[2]
    weight, given = weights.reshape(-1)[places].unsqueeze(1), gradient[token]
    dw = torch.zeros_like(weights, memory_format=torch.contiguous_format)
    rows, scaled = x[token].split(sizes), (given * weight).to(x.dtype).split(sizes)
    parts = zip(rows, scaled, given.split(sizes), up, down, strict=True)
    found: list[list[Tensor]] = [[], [], [], []]
    for read, g, plain, matrix, second in parts:
        made = read @ matrix.t()
        middle = _middle(made, inner, act)
        back = _middle_backward(g @ second, made, inner, act)
        own = (back @ matrix, ((middle @ second.t()) * plain).sum(-1), back.t() @ read,
               g.t() @ middle)  # fmt: skip
        for total, part in zip(found, own, strict=True):
            total.append(part)
    dx = torch.zeros_like(x).index_add_(0, token, torch.cat(found[0]))
    dw.view(-1)[places] = torch.cat(found[1]).to(dw.dtype)
    return [dx, dw, torch.stack(found[2]), torch.stack(found[3])]


@_backward.register_fake
def _(
    gradient: Any, x: Tensor, index: Any, weights: Tensor, up: Tensor, down: Tensor, act: str,
    first: int,
) -> list[Tensor]:  # fmt: skip
    return [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (x, weights, up, down)]


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.act, ctx.first = inputs[5:]
    ctx.dtype = _working(inputs[0])


def _gradients(ctx: Any, gradient: Tensor) -> Any:
    x, index, weights, up, down = ctx.saved_tensors
    dx, dw, dup, ddown = torch.ops.gnnplace.experts_backward(
        gradient, x.to(ctx.dtype), index, weights, up.to(ctx.dtype), down.to(ctx.dtype), ctx.act,
        ctx.first,
    )  # fmt: skip
    return dx.to(x.dtype), None, dw, dup.to(up.dtype), ddown.to(down.dtype), None, None


_experts.register_autograd(_gradients, setup_context=_setup)


def balanced(
    x: Tensor, index: Tensor, weights: Tensor, up: Tensor, down: Tensor, act: str, parts: float = 1
) -> Tensor:
    """The calls of experts that have equally many rows each, for kernels to be priced by.

    Args:
        x: as for `experts`, as all the others.
        index: [N, K]
        weights: [N, K]
        up: of the experts that are here.
        down: likewise.
        act: one of `ACTIVATIONS`.
        parts: how many devices have experts; each has so much less than all rows.
    """
    count, rows = len(up), int(index.numel() / max(parts, 1.0))
    each = max(1, -(-rows // count))
    token = index.reshape(-1)[:rows].sort()[1] // index.shape[1]
    own = x[token]
    fill = count * each - rows
    own = functional.pad(own, (0, 0, 0, fill)) if fill > 0 else own
    made = _middle(torch.bmm(own.view(count, each, -1), up.transpose(1, 2)), down.shape[2], act)
    out = torch.bmm(made, down.transpose(1, 2)).reshape(count * each, -1)[:rows]
    weighed = out * weights.reshape(-1)[:rows].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, token, weighed.to(x.dtype))


@contextmanager
def as_one_call(model: nn.Module) -> Iterator[None]:
    """Within it the experts of transformers' models are one call each; others are as they were."""
    registry = sys.modules.get("transformers.integrations.moe")
    if registry is None:
        yield
        return
    registry.ALL_EXPERTS_FUNCTIONS.register(NAME, _of_transformers)
    before = [(config, getattr(config, IMPLEMENTATION)) for config in _configurations(model)]
    for config, _ in before:
        setattr(config, IMPLEMENTATION, NAME)
    try:
        yield
    finally:
        for config, own in before:
            setattr(config, IMPLEMENTATION, own)


def loop_over_experts(model: nn.Module) -> None:
    """Has transformers' models run their experts as their classes have them written.

    The grouped products that they prefer have no double precision (torch 2.13).
    """
    for config in _configurations(model):
        setattr(config, IMPLEMENTATION, "eager")


def _configurations(model: nn.Module) -> list[Any]:
    """Those that name a way to run experts."""
    owners = [getattr(m, "config", None) for m in model.modules() if hasattr(m, "is_concatenated")]
    return list({id(c): c for c in owners if hasattr(c, IMPLEMENTATION)}.values())


def _of_transformers(
    module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """The forward pass of a module of experts.

    Raises:
        CaptureError: it has more than two matrices an expert, or another layout of them.
    """
    registry = sys.modules["transformers.integrations.moe"]
    name, act = type(module).__name__, CLASSES.get(type(getattr(module, "act_fn", None)).__name__)
    plain = type(module)._apply_gate is registry._default_apply_gate
    odd = [
        words
        for words, there in (
            ("biases", module.has_bias),
            ("transposed matrices", module.is_transposed),
            ("interleaved gates", module.has_gate and not module.is_concatenated),
            ("a norm", getattr(module, "has_post_expert_norm", False)),
            ("a gate of their own", module.has_gate and not plain),
            ("an activation that is not known", act is None),
        )
        if there
    ]
    if odd:
        raise CaptureError(
            f"{name}: its experts have {' and '.join(odd)}, and cannot be cut; write them by "
            "gnnplace.experts(x, index, weights, up, down, act)"
        )
    up = module.gate_up_proj if module.has_gate else module.up_proj
    weights = top_k_weights.to(hidden_states.dtype)
    return experts(hidden_states, top_k_index, weights, up, module.down_proj, act or "")
