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
within `as_one_call` they find this one. One's own experts call `gnnplace.experts`. A class may have
a gate of its own, as that of gpt-oss, which clamps: its formula is called as it stands, if parts of
random rows go through it by themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from gnnplace import transformers_names
from gnnplace.errors import CaptureError, InputError
from gnnplace.torch_names import DisableTorchFunction, disable_current_modes
from gnnplace.tracing.guards import DATA
from gnnplace.transformers_names import gate_of

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


class Gate(NamedTuple):
    """What a class of experts makes of the rows of its first matrices.

    Attributes:
        formula: Of rows.
        groups: 2 where the gate's rows stand before the others'; 1: beside each other.
    """

    formula: Callable[[Tensor], Tensor]
    groups: int


GATES: dict[str, Gate] = {}
"""Those of classes that were met, by class and numbers."""
CLASSES = {
    "SiLUActivation": "silu", "SiLU": "silu", "GELUActivation": "gelu", "GELU": "gelu",
    "GELUTanh": "gelu_tanh", "PytorchGELUTanh": "gelu_tanh", "ReLU": "relu",
    "ReLUSquaredActivation": "relu2",
}  # fmt: skip
"""Names of `ACTIVATIONS` by the classes of torch and transformers."""


def experts(
    x: Tensor, index: Tensor, weights: Tensor, up: Tensor, down: Tensor, act: str = "silu",
    up_bias: Tensor | None = None, down_bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The weighted sum of the experts that a router chose for every token.

    Args:
        x: tokens. [N, H]
        index: experts of every token, each below E; what is E or more is none. [N, K]
        weights: their weights. [N, K]
        up: first matrices; those with a gate have its rows first. [E, I or 2 I, H]
        down: second matrices. [E, H, I]
        act: one of `ACTIVATIONS`.
        up_bias: added to what the first matrices make. [E, I or 2 I]
        down_bias: to what the second ones make. [E, H]

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
        and (up_bias is None or up_bias.shape == up.shape[:2])
        and (down_bias is None or down_bias.shape == down.shape[:2])
    )  # fmt: skip
    if not fits:
        sizes = ", ".join(str(list(t.shape)) for t in (x, index, weights, up, down))
        raise InputError(
            f"experts: x, index, weights, up and down are {sizes}; they must be [N, H], [N, K], "
            "[N, K], [E, I or 2 I, H] and [E, H, I], and biases [E, I or 2 I] and [E, H]"
        )
    if act not in ACTIVATIONS | GATES:
        raise InputError(f"experts: no activation {act!r}; use one of {', '.join(ACTIVATIONS)}")
    found: Tensor = torch.ops.gnnplace.experts(
        x, index, weights, up, down, act, 0, up_bias, down_bias
    )  # fmt: skip
    return found


def _middle(made: Tensor, inner: int, act: str) -> Tensor:
    """What the second matrix reads: the activation, times the rest where there is a gate."""
    if act in GATES:
        return GATES[act].formula(made)
    if made.shape[-1] == inner:
        return ACTIVATIONS[act].forward(made)
    gate, rest = made.chunk(2, -1)
    return ACTIVATIONS[act].forward(gate) * rest


def _middle_backward(given: Tensor, made: Tensor, inner: int, act: str) -> Tensor:
    """The gradient of `made` from that of `_middle`."""
    if act in GATES:
        found: Tensor = torch.func.vjp(GATES[act].formula, made)[1](given)[0]
        return found
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


def _biased(made: Tensor, bias: Tensor | None) -> Tensor:
    return made if bias is None else made + bias


def _of_each(tensor: Tensor | None, count: int) -> Sequence[Tensor | None]:
    """A bias for every expert."""
    return (None,) * count if tensor is None else tensor.unbind()


@torch.library.custom_op("gnnplace::experts", mutates_args=())
def _experts(
    x: Tensor, index: Tensor, weights: Tensor, up: Tensor, down: Tensor, act: str, first: int,
    up_bias: Tensor | None = None, down_bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    places, sizes = _sorted(index, first, len(up))
    token, dtype = places // index.shape[1], _working(x)
    parts = x[token].to(dtype).split(sizes)
    matrices = (
        up.to(dtype),
        _of_each(up_bias, len(up)),
        down.to(dtype),
        _of_each(down_bias, len(up)),
    )
    made = []
    for rows, matrix, bias, second, other in zip(parts, *matrices, strict=True):
        middle = _middle(_biased(rows @ matrix.t(), bias), down.shape[2], act)
        made.append(_biased(middle.to(dtype) @ second.t(), other))
    weighed = torch.cat(made) * weights.reshape(-1)[places].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, token, weighed.to(x.dtype))


@_experts.register_fake
def _(
    x: Tensor, index: Any, weights: Any, up: Any, down: Any, act: str, first: int,
    up_bias: Any = None, down_bias: Any = None,
) -> Tensor:  # fmt: skip
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.custom_op("gnnplace::experts_backward", mutates_args=())
def _backward(
    gradient: Tensor, x: Tensor, index: Tensor, weights: Tensor, up: Tensor, down: Tensor,
    act: str, first: int, up_bias: Tensor | None, down_bias: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    places, sizes = _sorted(index, first, len(up))
    token, inner = places // index.shape[1], down.shape[2]
    weight, given = weights.reshape(-1)[places].unsqueeze(1), gradient[token]
    dw = torch.zeros_like(weights, memory_format=torch.contiguous_format)
    rows, scaled = x[token].split(sizes), (given * weight).to(x.dtype).split(sizes)
    biases = _of_each(up_bias, len(up)), _of_each(down_bias, len(up))
    parts = zip(rows, scaled, given.split(sizes), up, down, *biases, strict=True)
    found: list[list[Tensor]] = [[], [], [], [], [], []]
    for read, g, plain, matrix, second, bias, other in parts:
        made = _biased(read @ matrix.t(), bias)
        middle = _middle(made, inner, act).to(x.dtype)
        whole = _middle_backward((g @ second).to(made.dtype), made, inner, act)
        back, weighed = whole.to(x.dtype), _biased(middle @ second.t(), other) * plain
        own = (back @ matrix, weighed.sum(-1), back.t() @ read, g.t() @ middle, whole.sum(0),
               g.sum(0))  # fmt: skip
        for total, part in zip(found, own, strict=True):
            total.append(part)
    dx = torch.zeros_like(x).index_add_(0, token, torch.cat(found[0]))
    dw.view(-1)[places] = torch.cat(found[1]).to(dw.dtype)
    dup, ddown, *rest = map(torch.stack, found[2:])
    kinds = [x.dtype if b is None else b.dtype for b in (up_bias, down_bias)]
    return [dx, dw, dup, ddown, *map(Tensor.to, rest, kinds)]


@_backward.register_fake
def _(
    gradient: Any, x: Tensor, index: Any, weights: Tensor, up: Tensor, down: Tensor, act: str,
    first: int, up_bias: Any, down_bias: Any,
) -> list[Tensor]:  # fmt: skip
    made = [torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (x, weights, up, down)]
    biases = zip((up, down), (up_bias, down_bias), strict=True)
    return [*made, *((t if b is None else b).new_empty(t.shape[:2]) for t, b in biases)]


def _setup(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:5], *inputs[7:])
    ctx.act, ctx.first = inputs[5:7]
    ctx.dtype = _working(inputs[0])


def _gradients(ctx: Any, gradient: Tensor) -> Any:
    x, index, weights, up, down, *biases = ctx.saved_tensors
    dx, dw, dup, ddown, *rest = torch.ops.gnnplace.experts_backward(
        gradient, x.to(ctx.dtype), index, weights, up.to(ctx.dtype), down.to(ctx.dtype), ctx.act,
        ctx.first, *biases,
    )  # fmt: skip
    made = [None if b is None else g.to(b.dtype) for b, g in zip(biases, rest, strict=True)]
    return dx.to(x.dtype), None, dw, dup.to(up.dtype), ddown.to(down.dtype), None, None, *made


_experts.register_autograd(_gradients, setup_context=_setup)


class ExpertWeights(NamedTuple):
    """Weights of the experts of one device, as `experts` takes them.

    Attributes:
        up: First matrix of each expert. [E, width, hidden]
        down: Second matrix of each expert. [E, hidden, width]
        act: One of `ACTIVATIONS` or of `GATES`.
        up_bias: Bias behind the first matrix. [E, width]
        down_bias: Bias behind the second matrix. [E, hidden]
    """

    up: Tensor
    down: Tensor
    act: str
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None


def balanced(
    x: Tensor, index: Tensor, weights: Tensor, experts: ExpertWeights, parts: float = 1
) -> Tensor:
    """Run experts that have equally many rows each, for their kernels to be priced.

    Args:
        x: Tokens, as for `experts`. [N, hidden]
        index: Experts of each token. [N, K]
        weights: Their weights. [N, K]
        experts: The experts that are here.
        parts: Devices that have experts; each has so much less than all rows.
    """
    num_experts = len(experts.up)
    rows = int(index.numel() / max(parts, 1.0))
    rows_per_expert = max(1, -(-rows // num_experts))
    token = index.reshape(-1)[:rows].sort()[1] // index.shape[1]
    padding = num_experts * rows_per_expert - rows
    dispatched = x[token]
    if padding > 0:
        dispatched = functional.pad(dispatched, (0, 0, 0, padding))

    up_bias = None if experts.up_bias is None else experts.up_bias.unsqueeze(1)
    down_bias = None if experts.down_bias is None else experts.down_bias.unsqueeze(1)
    batched = dispatched.view(num_experts, rows_per_expert, -1)
    projected = _biased(torch.bmm(batched, experts.up.transpose(1, 2)), up_bias)
    middle = _middle(projected, experts.down.shape[2], experts.act)
    out = _biased(torch.bmm(middle, experts.down.transpose(1, 2)), down_bias)

    rows_out = out.reshape(num_experts * rows_per_expert, -1)[:rows]
    weighted = rows_out * weights.reshape(-1)[:rows].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, token, weighted.to(x.dtype))


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
        CaptureError: it has a norm behind, or a gate whose rows and columns do not stay apart.
    """
    name, act = type(module).__name__, CLASSES.get(type(getattr(module, "act_fn", None)).__name__)
    plain = gate_of(type(module)) is transformers_names.default_apply_gate
    if act is None or (module.has_gate and not (plain and module.is_concatenated)):
        act = _gate_of(module)
    norm = getattr(module, "has_post_expert_norm", False)
    if norm or act is None:
        raise CaptureError(
            f"{name}: its experts have {'a norm' if norm else 'a gate that mixes what it reads'}, "
            "and cannot be cut; write them by gnnplace.experts(x, index, weights, up, down, act)"
        )
    up, down = module.gate_up_proj if module.has_gate else module.up_proj, module.down_proj
    up, down = (up.mT, down.mT) if module.is_transposed else (up, down)
    first = "gate_up_proj_bias" if module.has_gate else "up_proj_bias"
    biases = (getattr(module, first), module.down_proj_bias) if module.has_bias else (None, None)
    weights = top_k_weights.to(hidden_states.dtype)
    return experts(hidden_states, top_k_index, weights, up, down, act, *biases)


class _Reads:
    """A module of which attributes are read, which are noted."""

    def __init__(self, module: nn.Module) -> None:
        self.__dict__.update(of=module, read={})

    def __getattr__(self, name: str) -> Any:
        return self.read.setdefault(name, getattr(self.of, name))


def _gate_of(module: Any) -> str | None:
    """The name of what a module makes of the rows of its first matrices; None: it mixes them.

    It stands for the formula and the numbers that this reads, which every process finds alike.
    """
    kind, groups = type(module), 1 + (module.has_gate and module.is_concatenated)
    formula = gate_of(kind) if module.has_gate else lambda own, made: own.act_fn(made)
    reads = _Reads(module)
    with disable_current_modes(), DisableTorchFunction(), torch.no_grad():
        rows = torch.linspace(-9, 9, 32 * (1 + module.has_gate)).view(4, -1)
        halves = [x.flatten(1) for x in rows.unflatten(1, (groups, -1)).chunk(2, 2)]
        parts = ((rows.split(1), 0), (halves, 1))
        made = [torch.cat([formula(reads, x) for x in split], axis) for split, axis in parts]
        apart = all(torch.allclose(x, formula(reads, rows)) for x in made)
    told = {k: (str(v), _numbers(v)) for k, v in sorted(reads.read.items())}
    if not apart or any(known is None for _, known in told.values()):
        return None
    name = f"{kind.__module__}.{kind.__qualname__}{told}"
    if name not in GATES:  # modules are copied: those of a model in parts refuse to be called
        GATES[name] = Gate(partial(formula, SimpleNamespace(**deepcopy(reads.read))), groups)
    return name


def _numbers(value: Any) -> Any:
    """What is plain data in an attribute; None where it may be more."""
    if isinstance(value, nn.Module):
        held = [*value.parameters(), *value.buffers(), *value.children()]
        return None if held else [(k, v) for k, v in vars(value).items() if isinstance(v, DATA)]
    return value if isinstance(value, DATA) else None
