"""`experts`: the experts of a mixture as one call, for capture, sharding and plans.

For every token x with its chosen experts e and their weights w (Shazeer et al., 2017, 1701.06538):

    y = sum over e of w_e  D_e h_e,   h_e = act(G_e x) * (V_e x)   or   h_e = act(V_e x)

with U_e = [G_e; V_e] if there is a gate. Only the router knows the tokens of an expert. Written as
calls of torch, such as a sort or a loop over experts, the numbers of tokens decide shapes, and a
recording would not hold for the next batch. As one call, a token's result depends only on the
token. Rows are sorted by expert once, and each expert computes two products over its rows; their
results are recomputed in the backward pass. O(rows) products, and one synchronisation for the
counts.

The models of transformers (5) look up their experts' forward pass by name in a public registry;
within `as_one_call` they find this one. Other experts call `gnnplace.experts`. A class may have its
own gate, such as that of gpt-oss, which clamps: its formula is called unchanged, if a test with
random rows shows that it treats each row by itself.
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
from gnnplace.torch_names import (
    DisableTorchFunction,
    FunctionContext,
    disable_current_modes,
)
from gnnplace.tracing.tensors import DATA
from gnnplace.transformers_names import find_gate

Tensor = torch.Tensor
NAME = "gnnplace"
IMPLEMENTATION = "_experts_implementation_internal"
aten = torch.ops.aten


class Activation(NamedTuple):
    """An elementwise function, and the gradient of its operand from that of its result."""

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]


ACTIVATIONS = {
    "silu": Activation(functional.silu, aten.silu_backward),
    "gelu": Activation(functional.gelu, aten.gelu_backward),
    "gelu_tanh": Activation(
        partial(functional.gelu, approximate="tanh"),
        partial(aten.gelu_backward, approximate="tanh"),
    ),
    "relu": Activation(functional.relu, lambda gradient, x: gradient * (x > 0)),
    "relu2": Activation(
        lambda x: x.relu().square(), lambda gradient, x: gradient * 2 * x.relu()
    ),
}


class Gate(NamedTuple):
    """The function between the first and the second matrices of a class of experts.

    Attributes:
        formula: Computes the gate from the rows that the first matrices make.
        groups: 2 if the gate's rows stand before the others'; 1 if they are interleaved.
    """

    formula: Callable[[Tensor], Tensor]
    groups: int


GATES: dict[str, Gate] = {}
"""Gates of classes that were met, by class and numbers."""
CLASSES = {
    "SiLUActivation": "silu",
    "SiLU": "silu",
    "GELUActivation": "gelu",
    "GELU": "gelu",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "ReLU": "relu",
    "ReLUSquaredActivation": "relu2",
}
"""Names of `ACTIVATIONS` by the classes of torch and transformers."""


def experts(
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    up: Tensor,
    down: Tensor,
    act: str = "silu",
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Tensor:
    """Return the weighted sum of the experts that a router chose for every token.

    Args:
        x: tokens. [N, H]
        index: experts of every token, each below E; an index of E or more is no expert. [N, K]
        weights: weights of these experts. [N, K]
        up: first matrices; those with a gate have its rows first. [E, I or 2 I, H]
        down: second matrices. [E, H, I]
        act: one of `ACTIVATIONS`.
        up_bias: bias behind the first matrices. [E, I or 2 I]
        down_bias: bias behind the second matrices. [E, H]

    Returns:
        [N, H], of the type of `x`.

    Raises:
        InputError: sizes that do not fit, or an unknown activation.
    """
    inner = down.shape[-1] if down.dim() == 3 else 0
    is_routed = x.dim() == index.dim() == 2 and index.shape == weights.shape
    is_stacked = up.dim() == down.dim() == 3 and len(up) == len(down)
    fits = (
        is_routed
        and is_stacked
        and len(index) == len(x)
        and up.shape[1] in (inner, 2 * inner)
        and up.shape[2] == x.shape[1] == down.shape[1]
        and (up_bias is None or up_bias.shape == up.shape[:2])
        and (down_bias is None or down_bias.shape == down.shape[:2])
    )
    if not fits:
        sizes = ", ".join(str(list(t.shape)) for t in (x, index, weights, up, down))
        raise InputError(
            f"experts: x, index, weights, up and down are {sizes}; they must be [N, H], [N, K], "
            "[N, K], [E, I or 2 I, H] and [E, H, I], and biases [E, I or 2 I] and [E, H]"
        )
    if act not in ACTIVATIONS | GATES:
        raise InputError(
            f"experts: no activation {act!r}; use one of {', '.join(ACTIVATIONS)}"
        )
    result: Tensor = torch.ops.gnnplace.experts(
        x, index, weights, up, down, act, 0, up_bias, down_bias
    )
    return result


def _middle(projected: Tensor, inner: int, act: str) -> Tensor:
    """Return what the second matrix reads: the activation, gated if there is a gate."""
    if act in GATES:
        return GATES[act].formula(projected)
    if projected.shape[-1] == inner:
        return ACTIVATIONS[act].forward(projected)
    gate, ungated = projected.chunk(2, -1)
    return ACTIVATIONS[act].forward(gate) * ungated


def _middle_backward(
    gradient: Tensor, projected: Tensor, inner: int, act: str
) -> Tensor:
    """Return the gradient of `projected` from that of what `_middle` makes of it."""
    if act in GATES:
        pull_back = torch.func.vjp(GATES[act].formula, projected)[1]
        result: Tensor = pull_back(gradient)[0]
        return result
    if projected.shape[-1] == inner:
        return ACTIVATIONS[act].backward(gradient, projected)
    gate, ungated = projected.chunk(2, -1)
    activation = ACTIVATIONS[act]
    return torch.cat(
        [
            activation.backward(gradient * ungated, gate),
            gradient * activation.forward(gate),
        ],
        -1,
    )


def _sort_by_expert(index: Tensor, first: int, count: int) -> tuple[Tensor, list[int]]:
    """Return positions in `index`, sorted by expert, and the number of rows of each expert.

    Args:
        index: Experts of every token. [N, K]
        first: The first expert that is here.
        count: Number of experts that are here; positions of others are left out.
    """
    flat = index.reshape(-1) - first
    inside = torch.where((flat >= 0) & (flat < count), flat, count)
    sizes = torch.bincount(inside, minlength=count + 1)[:count].tolist()
    return torch.argsort(inside, stable=True)[: sum(sizes)], sizes


def _working(x: Tensor) -> torch.dtype:
    """Return the type that products are made in: within autocast, autocast's."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def _add_bias(product: Tensor, bias: Tensor | None) -> Tensor:
    """Return a product with its bias, if it has one."""
    if bias is None:
        return product
    return product + bias


def _biases_by_expert(tensor: Tensor | None, count: int) -> Sequence[Tensor | None]:
    """Return a bias for every expert."""
    if tensor is None:
        return (None,) * count
    return tensor.unbind()


@torch.library.custom_op("gnnplace::experts", mutates_args=())
def _experts(
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    up: Tensor,
    down: Tensor,
    act: str,
    first: int,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Tensor:
    positions, num_rows = _sort_by_expert(index, first, len(up))
    token = positions // index.shape[1]
    dtype = _working(x)
    per_expert = zip(
        x[token].to(dtype).split(num_rows),
        up.to(dtype),
        _biases_by_expert(up_bias, len(up)),
        down.to(dtype),
        _biases_by_expert(down_bias, len(up)),
        strict=True,
    )
    outputs = []
    for rows, up_matrix, bias, down_matrix, out_bias in per_expert:
        middle = _middle(_add_bias(rows @ up_matrix.t(), bias), down.shape[2], act)
        outputs.append(_add_bias(middle.to(dtype) @ down_matrix.t(), out_bias))
    weighted = torch.cat(outputs) * weights.reshape(-1)[positions].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, token, weighted.to(x.dtype))


@_experts.register_fake
def _(
    x: Tensor,
    index: object,
    weights: object,
    up: object,
    down: object,
    act: str,
    first: int,
    up_bias: object = None,
    down_bias: object = None,
) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


class _RowGradients(NamedTuple):
    """Gradients of one expert, from its rows.

    Attributes:
        rows: Gradients of the rows of the tokens that it reads. [rows, H]
        weights: Gradients of the weights of its rows. [rows]
        up: The gradient of its first matrix. [I or 2 I, H]
        down: The gradient of its second matrix. [H, I]
        up_bias: The gradient of its first bias. [I or 2 I]
        down_bias: The gradient of its second bias. [H]
    """

    rows: Tensor
    weights: Tensor
    up: Tensor
    down: Tensor
    up_bias: Tensor
    down_bias: Tensor


@torch.library.custom_op("gnnplace::experts_backward", mutates_args=())
def _backward(
    gradient: Tensor,
    x: Tensor,
    index: Tensor,
    weights: Tensor,
    up: Tensor,
    down: Tensor,
    act: str,
    first: int,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> list[Tensor]:
    positions, num_rows = _sort_by_expert(index, first, len(up))
    token = positions // index.shape[1]
    inner = down.shape[2]
    row_gradients = gradient[token]
    weighted_gradients = row_gradients * weights.reshape(-1)[positions].unsqueeze(1)
    per_expert = zip(
        x[token].split(num_rows),
        row_gradients.split(num_rows),
        weighted_gradients.to(x.dtype).split(num_rows),
        up,
        _biases_by_expert(up_bias, len(up)),
        down,
        _biases_by_expert(down_bias, len(up)),
        strict=True,
    )
    by_expert: list[_RowGradients] = []
    for (
        rows,
        unweighted,
        weighted,
        up_matrix,
        bias,
        down_matrix,
        out_bias,
    ) in per_expert:
        # The forward pass of these rows, again: nothing of it was kept.
        projected = _add_bias(rows @ up_matrix.t(), bias)
        middle = _middle(projected, inner, act).to(x.dtype)
        output = _add_bias(middle @ down_matrix.t(), out_bias)

        middle_gradient = (weighted @ down_matrix).to(projected.dtype)
        projected_gradient = _middle_backward(middle_gradient, projected, inner, act)
        in_product_type = projected_gradient.to(x.dtype)
        by_expert.append(
            _RowGradients(
                rows=in_product_type @ up_matrix,
                weights=(output * unweighted).sum(-1),
                up=in_product_type.t() @ rows,
                down=weighted.t() @ middle,
                up_bias=projected_gradient.sum(0),
                down_bias=weighted.sum(0),
            )
        )
    dx = torch.zeros_like(x).index_add_(
        0, token, torch.cat([g.rows for g in by_expert])
    )
    dweights = torch.zeros_like(weights, memory_format=torch.contiguous_format)
    dweights.view(-1)[positions] = torch.cat([g.weights for g in by_expert]).to(
        dweights.dtype
    )
    dup_bias = torch.stack([g.up_bias for g in by_expert])
    ddown_bias = torch.stack([g.down_bias for g in by_expert])
    return [
        dx,
        dweights,
        torch.stack([g.up for g in by_expert]),
        torch.stack([g.down for g in by_expert]),
        dup_bias.to(x.dtype if up_bias is None else up_bias.dtype),
        ddown_bias.to(x.dtype if down_bias is None else down_bias.dtype),
    ]


@_backward.register_fake
def _(
    gradient: object,
    x: Tensor,
    index: object,
    weights: Tensor,
    up: Tensor,
    down: Tensor,
    act: str,
    first: int,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
) -> list[Tensor]:
    gradients = [
        torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        for tensor in (x, weights, up, down)
    ]
    for matrices, bias in ((up, up_bias), (down, down_bias)):
        gradients.append(
            (matrices if bias is None else bias).new_empty(matrices.shape[:2])
        )
    return gradients


class _ExpertsContext(FunctionContext):
    """The state that the op keeps for its backward pass.

    Attributes:
        act: Name of the activation, as in `GATES`.
        first: Number of the first expert that is on this device.
        dtype: Type of the products.
    """

    act: str
    first: int
    dtype: torch.dtype


def _setup(ctx: _ExpertsContext, inputs: tuple[Any, ...], output: object) -> None:
    """Keep the operands of a call, and the type of its products."""
    ctx.save_for_backward(*inputs[:5], *inputs[7:])
    ctx.act, ctx.first = inputs[5:7]
    ctx.dtype = _working(inputs[0])


def _gradients(ctx: _ExpertsContext, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of all arguments of the op; None of those that are no tensors."""
    x, index, weights, up, down, *biases = ctx.saved_tensors
    dx, dweights, dup, ddown, *bias_gradients = torch.ops.gnnplace.experts_backward(
        gradient,
        x.to(ctx.dtype),
        index,
        weights,
        up.to(ctx.dtype),
        down.to(ctx.dtype),
        ctx.act,
        ctx.first,
        *biases,
    )
    dbiases = [
        None if bias is None else bias_gradient.to(bias.dtype)
        for bias, bias_gradient in zip(biases, bias_gradients, strict=True)
    ]
    return (
        dx.to(x.dtype),
        None,
        dweights,
        dup.to(up.dtype),
        ddown.to(down.dtype),
        None,
        None,
        *dbiases,
    )


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


def balance_experts(
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

    if experts.up_bias is None:
        up_bias = None
    else:
        up_bias = experts.up_bias.unsqueeze(1)
    if experts.down_bias is None:
        down_bias = None
    else:
        down_bias = experts.down_bias.unsqueeze(1)
    batched = dispatched.view(num_experts, rows_per_expert, -1)
    projected = _add_bias(torch.bmm(batched, experts.up.transpose(1, 2)), up_bias)
    middle = _middle(projected, experts.down.shape[2], experts.act)
    out = _add_bias(torch.bmm(middle, experts.down.transpose(1, 2)), down_bias)

    rows_out = out.reshape(num_experts * rows_per_expert, -1)[:rows]
    weighted = rows_out * weights.reshape(-1)[:rows].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, token, weighted.to(x.dtype))


@contextmanager
def as_one_call(model: nn.Module) -> Iterator[None]:
    """Make the experts of transformers' models one call each within."""
    registry = sys.modules.get("transformers.integrations.moe")
    if registry is None:
        yield
        return
    registry.ALL_EXPERTS_FUNCTIONS.register(NAME, _run_experts)
    implementations = [
        (config, getattr(config, IMPLEMENTATION)) for config in _configurations(model)
    ]
    for config, _ in implementations:
        setattr(config, IMPLEMENTATION, NAME)
    try:
        yield
    finally:
        for config, implementation in implementations:
            setattr(config, IMPLEMENTATION, implementation)


def loop_over_experts(model: nn.Module) -> None:
    """Make transformers' models run their experts as their classes have them written.

    The grouped products that they prefer have no double precision (torch 2.13).
    """
    for config in _configurations(model):
        setattr(config, IMPLEMENTATION, "eager")


def _configurations(model: nn.Module) -> list[Any]:
    """Return the configurations that name a way to run experts."""
    owners = [
        getattr(m, "config", None)
        for m in model.modules()
        if hasattr(m, "is_concatenated")
    ]
    return list({id(c): c for c in owners if hasattr(c, IMPLEMENTATION)}.values())


def _run_experts(
    module: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Run the forward pass of a module of experts of transformers.

    Raises:
        CaptureError: it has a norm behind, or a gate whose rows and columns do not stay apart.
    """
    name = type(module).__name__
    act = CLASSES.get(type(getattr(module, "act_fn", None)).__name__)
    has_default_gate = find_gate(type(module)) is transformers_names.default_apply_gate
    if act is None or (
        module.has_gate and not (has_default_gate and module.is_concatenated)
    ):
        act = _find_gate(module)
    norm = getattr(module, "has_post_expert_norm", False)
    if norm or act is None:
        raise CaptureError(
            f"{name}: its experts have {'a norm' if norm else 'a gate that mixes what it reads'}, "
            "and cannot be cut; write them by gnnplace.experts(x, index, weights, up, down, act)"
        )
    if module.has_gate:
        up_name = "gate_up_proj"
    else:
        up_name = "up_proj"
    up = getattr(module, up_name)
    down = module.down_proj
    if module.is_transposed:
        up = up.mT
        down = down.mT
    biases: tuple[Tensor | None, ...] = (None, None)
    if module.has_bias:
        biases = (getattr(module, f"{up_name}_bias"), module.down_proj_bias)
    weights = top_k_weights.to(hidden_states.dtype)
    return experts(hidden_states, top_k_index, weights, up, down, act, *biases)


class _Reads:
    """A module whose attributes are noted as they are read."""

    def __init__(self, module: nn.Module) -> None:
        self.__dict__.update(of=module, read={})

    def __getattr__(self, name: str) -> Any:
        return self.read.setdefault(name, getattr(self.of, name))


def _find_gate(module: Any) -> str | None:
    """Return the name of a module's gate in `GATES`; None if it mixes rows or columns.

    The name has the formula and the numbers that it reads, so that every process finds the same.
    """
    kind = type(module)
    groups = 1 + (module.has_gate and module.is_concatenated)
    formula = (
        find_gate(kind) if module.has_gate else lambda module, rows: module.act_fn(rows)
    )
    reads = _Reads(module)
    with disable_current_modes(), DisableTorchFunction(), torch.no_grad():
        rows = torch.linspace(-9, 9, 32 * (1 + module.has_gate)).view(4, -1)
        halves = [x.flatten(1) for x in rows.unflatten(1, (groups, -1)).chunk(2, 2)]
        # By rows, and by halves of the columns, the formula must give what it gives at once.
        splits = ((rows.split(1), 0), (halves, 1))
        joined = [
            torch.cat([formula(reads, x) for x in split], axis)
            for split, axis in splits
        ]
        is_independent = all(torch.allclose(x, formula(reads, rows)) for x in joined)
    attributes = {k: (str(v), _numbers(v)) for k, v in sorted(reads.read.items())}
    if not is_independent or any(numbers is None for _, numbers in attributes.values()):
        return None
    name = f"{kind.__module__}.{kind.__qualname__}{attributes}"
    # Modules are copied: those of a model in parts refuse to be called.
    if name not in GATES:
        GATES[name] = Gate(
            partial(formula, SimpleNamespace(**deepcopy(reads.read))), groups
        )
    return name


def _numbers(value: object) -> Any:
    """Return the plain data in an attribute; None if it may hold more."""
    if isinstance(value, nn.Module):
        tensors_and_modules = [*value.parameters(), *value.buffers(), *value.children()]
        if tensors_and_modules:
            return None
        return [(k, v) for k, v in vars(value).items() if isinstance(v, DATA)]
    if isinstance(value, DATA):
        return value
    return None
