"""One small model for everything that a user's step may do beside computing tensors.

`CASES` has a builder for each case by its name; `ROWS` says to which row of the table in
`docs/reference/kept.md` it belongs.
"""

from __future__ import annotations

import copy
import functools
import random
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.utils.prune as pruning
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import (
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from tests.tracing.truth import Build, batch

CASES: dict[str, Build] = {}
ROWS: dict[str, list[str]] = {}


def case(row: str) -> Callable[[Build], Build]:
    """Registers a builder under its own name."""

    def register(build: Build) -> Build:
        name = build.__name__  # type: ignore[attr-defined]
        CASES[name] = build
        ROWS.setdefault(row, []).append(name)
        return build

    return register


class Net(nn.Module):
    """Three layers; `middle` is what a case is about."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))

    def middle(self, x: torch.Tensor) -> Any:
        return torch.tanh(self.b(torch.sin(x)))

    def forward(self, x: torch.Tensor) -> Any:
        return self.c(self.middle(self.a(x)))


def net(middle: Any = None, forward: Any = None, **attributes: Any) -> Net:
    """A `Net` with another `middle(model, x)` or `forward(model, x)`."""
    methods = {"middle": middle, "forward": forward}
    model = type("Net", (Net,), {k: v for k, v in methods.items() if v is not None})()
    for name, value in attributes.items():
        if isinstance(value, torch.Tensor) and name.endswith("_buffer"):
            model.register_buffer(name, value)
        else:
            setattr(model, name, value)
    return model


def _block(model: Net, x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(model.b(torch.sin(x)))


# Activation checkpointing ------------------------------------------------------------------------

CHECKPOINTS = "Activation checkpointing"


def _checkpointed(function: Any, **options: Any) -> Any:
    return lambda model, x: checkpoint(functools.partial(function, model), x, **options)


@case(CHECKPOINTS)
def checkpoint_reentrant() -> Any:
    return net(_checkpointed(_block, use_reentrant=True))


@case(CHECKPOINTS)
def checkpoint_not_reentrant() -> Any:
    return net(_checkpointed(_block, use_reentrant=False))


@case(CHECKPOINTS)
def checkpoint_in_autocast() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return checkpoint(
                functools.partial(_block, model), x, use_reentrant=False
            ).float()

    return net(middle)


@case(CHECKPOINTS)
def checkpoint_twice_around() -> Any:
    def inner(model: Net, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(
            model.b(checkpoint(functools.partial(_block, model), x, use_reentrant=True))
        )

    return net(_checkpointed(inner, use_reentrant=False))


@case(CHECKPOINTS)
def checkpoint_of_a_sequence() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        layers = nn.Sequential(
            model.b, nn.Tanh(), model.b, nn.Tanh(), model.b, nn.Tanh()
        )
        return checkpoint_sequential(layers, 3, x, use_reentrant=True)

    return net(middle)


@case(CHECKPOINTS)
def checkpoint_without_an_input_that_needs_a_gradient() -> Any:
    """Reentrant regions give no gradients then; torch warns."""

    def forward(model: Net, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(
            functools.partial(_block, model), x, use_reentrant=True
        ) + model.a(x)

    return net(forward=forward)


@case(CHECKPOINTS)
def checkpoint_with_dropout() -> Any:
    def block(model: Net, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(torch.tanh(model.b(functional.dropout(x, 0.3))), 0.5)

    return net(_checkpointed(block, use_reentrant=True))


@case(CHECKPOINTS)
def checkpoint_with_batch_norm() -> Any:
    """Its running averages move twice a step, as in eager mode."""
    block = lambda model, x: model.norm(model.b(x))  # noqa: E731
    return net(_checkpointed(block, use_reentrant=False), norm=nn.BatchNorm1d(8))


@case(CHECKPOINTS)
def checkpoint_that_saves_products() -> Any:
    contexts = functools.partial(
        create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default]
    )
    return net(_checkpointed(_block, use_reentrant=False, context_fn=contexts))


@case(CHECKPOINTS)
def checkpoint_of_hugging_face() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {
        "n_layer": 2,
        "n_embd": 16,
        "n_head": 2,
        "vocab_size": 50,
        "n_positions": 16,
    }
    drops = {"embd_pdrop": 0, "resid_pdrop": 0, "attn_pdrop": 0}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(
        GPT2Config(**sizes, **drops, **ends, use_cache=False)
    ).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    words = torch.arange(20).reshape(2, 10)
    return model, {"input_ids": words, "labels": words}


# Hooks -------------------------------------------------------------------------------------------

MODULE_HOOKS = "Forward and backward hooks of modules"


def _hooked(register: str, hook: Any) -> Net:
    model = net()
    getattr(model.b, register)(hook)
    return model


@case(MODULE_HOOKS)
def forward_hook() -> Any:
    return _hooked("register_forward_hook", lambda module, inputs, output: output * 2)


@case(MODULE_HOOKS)
def forward_pre_hook() -> Any:
    return _hooked("register_forward_pre_hook", lambda module, inputs: (inputs[0] * 2,))


@case(MODULE_HOOKS)
def full_backward_hook() -> Any:
    return _hooked(
        "register_full_backward_hook", lambda module, into, out: (into[0] * 3,)
    )


@case(MODULE_HOOKS)
def full_backward_pre_hook() -> Any:
    return _hooked("register_full_backward_pre_hook", lambda module, out: (out[0] * 3,))


TENSOR_HOOKS = "Hooks of tensors, parameters and autograd nodes"


@case(TENSOR_HOOKS)
def tensor_hook_that_clips() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(model.b(x))
        y.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        return y

    return net(middle)


@case(TENSOR_HOOKS)
def parameter_hook() -> Any:
    model = net()
    model.b.weight.register_hook(lambda grad: grad * 3)
    return model


@case(TENSOR_HOOKS)
def node_hook() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(model.b(x))
        assert y.grad_fn is not None
        y.grad_fn.register_prehook(lambda grads: tuple(g * 3 for g in grads))
        return y

    return net(middle)


@case(TENSOR_HOOKS)
def hook_that_reads_a_parameter_and_writes_a_buffer() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(model.b(x))

        def hook(grad: torch.Tensor) -> torch.Tensor:
            model.size_buffer.copy_(grad.norm())
            return grad * model.a.bias

        y.register_hook(hook)
        return y

    return net(middle, size_buffer=torch.zeros(()))


SAVED = "Hooks of saved tensors, `save_on_cpu`"


@case(SAVED)
def saved_tensors_hooks() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t + 1):
            return torch.tanh(model.b(x))

    return net(middle)


@case(SAVED)
def save_on_cpu() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu():
            return torch.tanh(model.b(x))

    return net(middle)


# Precision and gradients -------------------------------------------------------------------------

AUTOCAST = "Autocast, inside the model, in the loss, around the capture"


@case(AUTOCAST)
def autocast_inside() -> Any:
    def forward(model: Net, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model.a(x)
            with torch.autocast("cpu", enabled=False):
                y = model.b(y.float())
            return model.c(y).float()

    return net(forward=forward)


@case(AUTOCAST)
def autocast_in_the_loss() -> Any:
    def loss(output: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return functional.linear(output, output).float().mean()

    return net(), (batch(),), loss


NO_GRADIENT = "`no_grad`, `enable_grad`, `inference_mode`, `detach`, `.data`"


@case(NO_GRADIENT)
def no_grad() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = model.b(x)
            with torch.enable_grad():
                z = torch.tanh(model.b(x))
        return y + z

    return net(middle)


@case(NO_GRADIENT)
def inference_mode() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            y = torch.tanh(model.b(x))
        return y + x

    return net(middle)


@case(NO_GRADIENT)
def straight_through() -> Any:
    return net(
        lambda model, x: x + (torch.round(model.b(x)) - x).detach() + model.b(x).data
    )


FUNCTIONS = "Autograd functions with a backward of their own"


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * grad * (x > 0)


@case(FUNCTIONS)
def custom_function() -> Any:
    return net(lambda model, x: Doubled.apply(model.b(x)))


@case(FUNCTIONS)
def custom_function_in_a_loss() -> Any:
    return net(), (batch(),), lambda output: Doubled.apply(output).mean()


@case(FUNCTIONS)
def custom_function_in_a_checkpoint() -> Any:
    block = lambda model, x: Doubled.apply(model.b(x))  # noqa: E731
    return net(_checkpointed(block, use_reentrant=True))


INNER = "Gradients inside the step: penalties, `torch.func`, double backward"


@case(INNER)
def gradient_penalty() -> Any:
    def forward(model: Net, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_(True)
        y = model.c(torch.tanh(model.b(model.a(x))))
        (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.mean() + (grad.norm(2, 1) - 1).pow(2).mean()

    return net(forward=forward), (batch(),), lambda value: value


@case(INNER)
def gradient_of_parameters() -> Any:
    def forward(model: Net, x: torch.Tensor) -> torch.Tensor:
        y = model.c(torch.tanh(model.b(model.a(x)))).pow(2).mean()
        grads = torch.autograd.grad(y, list(model.parameters()), create_graph=True)
        return y + torch.stack([grad.pow(2).sum() for grad in grads]).sum()

    return net(forward=forward), (batch(),), lambda value: value


@case(INNER)
def functional_gradient() -> Any:
    def forward(model: Net, x: torch.Tensor) -> torch.Tensor:
        energy = lambda row: torch.tanh(model.b(row)).sum()  # noqa: E731
        return model.c(model.a(x)) + torch.func.vmap(torch.func.grad(energy))(x)

    return net(forward=forward)


# State -------------------------------------------------------------------------------------------

BUFFERS = "Buffers that the step changes, in place or bound anew"


@case(BUFFERS)
def buffers_in_place() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        model.count_buffer += 1
        y = torch.tanh(model.b(x))
        with torch.no_grad():
            model.mean_buffer.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return y * model.count_buffer + model.mean_buffer

    return net(
        middle,
        count_buffer=torch.zeros((), dtype=torch.long),
        mean_buffer=torch.zeros(8),
    )


@case(BUFFERS)
def buffers_bound_anew() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        model.count_buffer = model.count_buffer + 1
        model.mean_buffer.add_(1)
        model.mean_buffer = model.mean_buffer * 0.9 + x.detach().mean(0) * 0.1
        return torch.tanh(model.b(x)) * model.count_buffer + model.mean_buffer

    return net(middle, count_buffer=torch.zeros(()), mean_buffer=torch.zeros(8))


@case(BUFFERS)
def buffers_through_data() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        model.mean_buffer.copy_(x.detach().mean(0))
        model.mean_buffer[0] = 1
        model.mean_buffer.data.mul_(2)
        return torch.tanh(model.b(x)) + model.mean_buffer

    return net(middle, mean_buffer=torch.zeros(8))


@case(BUFFERS)
def norms_of_both_modes() -> Any:
    model = net(
        lambda model, x: model.second(model.first(model.b(x))),
        first=nn.BatchNorm1d(8),
        second=nn.BatchNorm1d(8),
    )
    model.train()
    model.second.eval()
    return model


@case(BUFFERS)
def loss_with_parameters_and_a_counter() -> Any:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, output: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return (output * self.weight).pow(2).mean()

    return net(), (batch(),), Weighted()


WEIGHTS = "Parametrizations: weight norm, spectral norm, orthogonal, pruning, your own"


class Symmetric(nn.Module):
    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).T


def _changed(change: Any) -> Any:
    model = net()
    change(model.b)
    return model


@case(WEIGHTS)
def weight_norm() -> Any:
    return _changed(parametrizations.weight_norm)


@case(WEIGHTS)
def weight_norm_by_hooks() -> Any:
    return _changed(nn.utils.weight_norm)


@case(WEIGHTS)
def spectral_norm() -> Any:
    return _changed(parametrizations.spectral_norm)


@case(WEIGHTS)
def spectral_norm_by_hooks() -> Any:
    return _changed(nn.utils.spectral_norm)


@case(WEIGHTS)
def orthogonal() -> Any:
    return _changed(parametrizations.orthogonal)


@case(WEIGHTS)
def pruned() -> Any:
    return _changed(lambda layer: pruning.l1_unstructured(layer, "weight", amount=0.4))


@case(WEIGHTS)
def symmetric() -> Any:
    model = net(lambda model, x: model.b(torch.tanh(model.b(x))))
    parametrize.register_parametrization(model.b, "weight", Symmetric())
    return model


TIED = "Tied and frozen parameters"


@case(TIED)
def tied() -> Any:
    model = net(
        lambda model, x: functional.linear(torch.tanh(model.b(x)), model.a.weight.t())
    )
    model.c.weight = model.a.weight
    return model


@case(TIED)
def frozen() -> Any:
    model = net()
    model.b.requires_grad_(False)
    model.a.bias.requires_grad_(False)
    return model


# Python ------------------------------------------------------------------------------------------

RANDOM = "Random numbers of torch"


@case(RANDOM)
def dropout() -> Any:
    return net(lambda model, x: functional.dropout(torch.tanh(model.b(x)), 0.3))


@case(RANDOM)
def noise() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(model.b(x)) + torch.randn(4, 8) + torch.rand_like(x)
        return functional.gumbel_softmax(y[torch.randperm(4)])

    return net(middle)


OUTPUTS = (
    "Outputs that are dicts, dataclasses, named tuples, with values that are no tensors"
)


@dataclass
class Out:
    value: Any
    factor: int = 3


Named = namedtuple("Named", "value factor")


def _wrapped(wrap: Any, loss: Any) -> Any:
    forward = lambda model, x: wrap(model.c(model.middle(model.a(x))))  # noqa: E731
    return net(forward=forward), (batch(),), loss


@case(OUTPUTS)
def dataclass_output() -> Any:
    return _wrapped(Out, lambda out: out.value.pow(2).mean() * out.factor)


@case(OUTPUTS)
def dict_output() -> Any:
    wrap = lambda value: {"value": value, "factor": 3, "note": "x"}  # noqa: E731
    return _wrapped(wrap, lambda out: out["value"].pow(2).mean() * out["factor"])


@case(OUTPUTS)
def named_tuple_output() -> Any:
    return _wrapped(
        lambda v: Named(v, 3), lambda out: out.value.pow(2).mean() * out.factor
    )


MODES = "Decisions on shapes, modes, `requires_grad`, `is_grad_enabled`, `is_compiling`"


@case(MODES)
def decisions() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        wanted = (
            x.shape[0] > 2
            and x.requires_grad
            and torch.is_grad_enabled()
            and model.training
        )
        if torch.compiler.is_compiling() or torch.compiler.is_exporting() or not wanted:
            return x
        return torch.tanh(model.b(x))

    return net(middle)


HARMLESS = "Attributes that the next step does not read"


@case(HARMLESS)
def kept_activation() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        model.seen.append(float(x.shape[0]))
        model.calls += 1
        model.last = torch.tanh(model.b(x))
        model.last.retain_grad()
        return model.last

    return net(middle, seen=[], calls=0)


TABLES = "Tables that the first step makes of constants and keeps"


@case(TABLES)
def kept_mask() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        if model.mask is None:
            model.mask = torch.ones(x.shape[1], x.shape[1]).tril()
        return x @ model.mask

    return net(middle, mask=None)


@case(TABLES)
def kept_by_size() -> Any:
    @functools.lru_cache
    def angles(size: int) -> torch.Tensor:
        return torch.arange(size).div(size).cos()

    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        known = type(model).tables  # type: ignore[attr-defined]
        if x.shape[1] not in known:
            known[x.shape[1]] = angles(x.shape[1]).sin()
        return model.b(x * angles(x.shape[1])) + known[x.shape[1]]

    model = net(middle)
    type(model).tables = {}  # type: ignore[attr-defined]
    return model


FOREIGN = "Scripted and compiled parts, `DataParallel` on a CPU"


@case(FOREIGN)
def scripted() -> Any:
    return net(lambda model, x: model.part(x), part=torch.jit.script(nn.Linear(8, 8)))


@case(FOREIGN)
def traced() -> Any:
    part = torch.jit.trace(nn.Linear(8, 8), torch.zeros(4, 8))
    return net(lambda model, x: model.part(x), part=part)


@case(FOREIGN)
def compiled_part() -> Any:
    part = torch.compile(nn.Linear(8, 8), backend="aot_eager")
    return net(lambda model, x: model.part(x), part=part)


@case(FOREIGN)
def compiled_method() -> Any:
    model = net()
    model.b.compile(backend="eager")
    return torch.compile(model, backend="eager")


@case(FOREIGN)
def data_parallel() -> Any:
    return nn.DataParallel(net())


EMBEDDINGS = "Embeddings with padding, scaled or sparse gradients"


@case(EMBEDDINGS)
def embedding() -> Any:
    options = {"scale_grad_by_freq": True, "padding_idx": 1}
    words = torch.tensor([1, 2, 2, 3])
    model = nn.Sequential(nn.Embedding(10, 8, **options), nn.Linear(8, 8))
    return model, (words,), lambda output: output.pow(2).mean()


@case(EMBEDDINGS)
def sparse_embedding() -> Any:
    model = nn.Sequential(nn.Embedding(10, 8, sparse=True), nn.Linear(8, 8))
    return model, (torch.tensor([1, 2, 2, 3]),), lambda output: output.pow(2).mean()


# Refused -----------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Build, str]] = {}
REFUSED_ROWS: dict[str, list[str]] = {}


def refused(row: str, match: str) -> Callable[[Build], Build]:
    """Registers a builder of a model that must be refused with a message that matches."""

    def register(build: Build) -> Build:
        name = build.__name__  # type: ignore[attr-defined]
        REFUSED[name] = build, match
        REFUSED_ROWS.setdefault(row, []).append(name)
        return build

    return register


ATTRIBUTES = "Attributes that the next step reads: counters, flags, hidden states"
LASTING = "the forward pass sets '{}', and the next step would be another one"


@refused(ATTRIBUTES, LASTING.format("calls"))
def counter() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        model.calls += 1
        return torch.tanh(model.b(x)) * model.calls

    return net(middle, calls=0)


@refused(ATTRIBUTES, LASTING.format("seen"))
def flag() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        first, model.seen = not hasattr(model, "seen"), True
        return torch.tanh(model.b(x)) * (2 if first else 1)

    return net(middle)


@refused(ATTRIBUTES, LASTING.format("history"))
def list_that_grows() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        model.history.append(0)
        return torch.tanh(model.b(x)) * len(model.history)

    return net(middle, history=[])


@refused(ATTRIBUTES, LASTING.format("hidden"))
def hidden_state() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        hidden = getattr(model, "hidden", None)
        y = torch.tanh(model.b(x) + (0 if hidden is None else hidden))
        model.hidden = y.detach().mean(0)
        return y

    return net(middle)


@refused(ATTRIBUTES, LASTING.format("mean"))
def tensor_bound_anew() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        model.mean = model.mean + 1
        return torch.tanh(model.b(x)) + model.mean

    return net(middle, mean=torch.zeros(8))


@refused(ATTRIBUTES, "the model changes mean in place; only its buffers may change")
def tensor_in_place() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        model.mean += 1
        return torch.tanh(model.b(x)) + model.mean

    return net(middle, mean=torch.zeros(8))


PARAMETERS = (
    "Parameters that the forward pass changes: clamped weights, teachers, `max_norm`"
)


@refused(PARAMETERS, "the model changes b.weight in place; only its buffers may change")
def clamped_weight() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        model.b.weight.data.clamp_(-0.1, 0.1)
        return torch.tanh(model.b(x))

    return net(middle)


@refused(PARAMETERS, "the model changes teacher.weight in place")
def teacher() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for old, new in zip(
                model.teacher.parameters(), model.b.parameters(), strict=True
            ):
                old.mul_(0.9).add_(new, alpha=0.1)
        return model.b(x) - model.teacher(x)

    model = net(middle)
    model.teacher = copy.deepcopy(model.b).requires_grad_(False)
    return model


@refused(PARAMETERS, "the model changes 0.weight in place")
def bounded_embedding() -> Any:
    model = nn.Sequential(nn.Embedding(10, 8, max_norm=0.5), nn.Linear(8, 8))
    return model, (torch.arange(4),), lambda output: output.pow(2).mean()


@refused(PARAMETERS, "the model binds its parameter 'bias' anew")
def parameter_bound_anew() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        model.bias = nn.Parameter(torch.zeros(8))
        return torch.tanh(model.b(x)) + model.bias

    return net(middle, bias=nn.Parameter(torch.ones(8)))


BUFFER_SHAPES = (
    "Buffers that change their shape, or are bound anew while checkpointing runs again"
)


@refused(
    BUFFER_SHAPES,
    "the model binds its buffer 'seen_buffer' to something of another shape",
)
def growing_buffer() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        model.seen_buffer = torch.cat([model.seen_buffer, x.detach()])
        return torch.tanh(model.b(x))

    return net(middle, seen_buffer=torch.zeros(1, 8))


@refused(BUFFER_SHAPES, "the backward pass binds 'count_buffer' anew")
def buffer_bound_in_a_checkpoint() -> Any:
    def block(model: Net, x: torch.Tensor) -> torch.Tensor:
        model.count_buffer = model.count_buffer + 1
        return torch.tanh(model.b(x))

    return net(_checkpointed(block, use_reentrant=False), count_buffer=torch.zeros(()))


NUMBERS = "Decisions on the numbers of a tensor: `if`, `item()`, boolean indexing"
DECIDED = "depends on the numbers of a tensor"


@refused(NUMBERS, DECIDED)
def decision_on_a_sum() -> Any:
    return net(lambda model, x: torch.tanh(model.b(x)) if x.sum() > 0 else x)


@refused(NUMBERS, DECIDED)
def item() -> Any:
    return net(lambda model, x: torch.tanh(model.b(x)) * x.sum().item())


@refused(NUMBERS, DECIDED)
def boolean_index() -> Any:
    return net(lambda model, x: torch.tanh(model.b(x)) + x[x > 0].sum())


@refused(NUMBERS, DECIDED)
def cumulative_batch_norm() -> Any:
    return net(
        lambda model, x: model.norm(model.b(x)), norm=nn.BatchNorm1d(8, momentum=None)
    )


@refused(
    NUMBERS,
    "the model asks for a number of a tensor at .*kept_models.py:.* goes on without",
)
def item_with_a_way_out() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        try:
            factor = float(x.sum())
        except Exception:
            factor = 7.0
        return torch.tanh(model.b(x)) * factor

    return net(middle)


GENERATORS = "Random numbers of Python and numpy, generators and seeds of one's own"


@refused(GENERATORS, "the model draws from Python's `random`")
def layer_drop() -> Any:
    return net(lambda model, x: x if random.random() < 0.5 else torch.tanh(model.b(x)))


@refused(GENERATORS, "the model draws from `numpy.random`")
def numpy_noise() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        noise = torch.tensor(np.random.rand(8), dtype=torch.float32)  # noqa: NPY002
        return torch.tanh(model.b(x)) + noise

    return net(middle)


@refused(GENERATORS, LASTING.format("numbers"))
def numpy_generator() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(model.b(x)) * model.numbers.random()

    return net(middle, numbers=np.random.default_rng(0))


@refused(GENERATORS, "no objects such as a torch.Generator")
def torch_generator() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(3)
        return torch.tanh(model.b(x)) + torch.randn(4, 8, generator=generator)

    return net(middle)


@refused(GENERATORS, r"the model calls manual_seed\(\) at .*kept_models.py")
def seed_in_forward() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(5)
        return torch.tanh(model.b(x)) + torch.randn(4, 8)

    return net(middle)


LEFT = "A `backward()` inside the step, hooks behind the accumulation of gradients"


@refused(
    LEFT,
    r"the model calls backward\(\) at .*kept_models.py:.*; use torch.autograd.grad",
)
def backward_in_forward() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(model.b(x))
        y.pow(2).mean().backward(retain_graph=True)
        return y

    return net(middle)


@refused(LEFT, "parameter 'b.weight' has a post-accumulate hook")
def post_accumulate_hook() -> Any:
    model = net()
    model.b.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    return model


MEMORY = "Parameters that share memory without being one tensor"


@refused(MEMORY, "'a.weight' and 'c.weight' share memory")
def one_memory() -> Any:
    model = net()
    model.c.weight = nn.Parameter(model.a.weight.data)
    return model


@refused(MEMORY, "'b.weight' and 'copy' share memory")
def view_of_a_weight() -> Any:
    model = net(lambda model, x: torch.tanh(model.b(x)) + model.copy)
    model.copy = model.b.weight.data[0]
    return model


NUMPY = "Numbers that leave torch: `.numpy()`, `.tolist()`"


@refused(NUMPY, r"\.numpy\(\) is not supported")
def through_numpy() -> Any:
    def middle(model: Net, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(model.b(x)) + torch.from_numpy(x.detach().numpy().mean(0))

    return net(middle)


@refused(NUMPY, DECIDED)
def through_a_list() -> Any:
    return net(lambda model, x: torch.tanh(model.b(x)) + torch.tensor(x[0].tolist()))


DENSE = "Sparse and quantized tensors: parameters, buffers, attributes, inputs"


@refused(DENSE, "buffer 'graph' is no dense tensor")
def sparse_buffer() -> Any:
    model = net(lambda model, x: torch.sparse.mm(model.graph, x))
    model.register_buffer("graph", torch.eye(4).to_sparse_coo(), persistent=False)
    return model


@refused(DENSE, "attribute 'graph' is no dense tensor .torch.sparse_csr")
def sparse_attribute() -> Any:
    return net(lambda model, x: model.graph @ x, graph=torch.eye(4).to_sparse_csr())


@refused(DENSE, r"batch\[1\] is no dense tensor")
def sparse_input() -> Any:
    model = net(forward=lambda model, x, graph: torch.sparse.mm(graph, model.a(x)))
    return model, (batch(), torch.eye(4).to_sparse_coo()), lambda output: output.mean()
