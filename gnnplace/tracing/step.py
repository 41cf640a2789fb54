"""`StepModule`: a model and its loss as one module from flat tensors to what a step returns.

Inputs come as people write them: `x`, `(x, y)`, `{"input_ids": x, "labels": y}`, `((x, index), y)`
or `({"x": x, "index": index}, y)`, as data loaders give them. Which of them the model is called
with, and which the loss gets as targets, is decided by their structure, never by a tensor, so that
the same holds for every batch:

1. A loss that requires more arguments than the output gets the last inputs, if the model takes the
   rest; of a dict it gets the entries that `forward` has no parameter for.
2. The model is called with what is left. A tuple or a dict that is all that is left is spread if
   `forward` cannot take it as it is, and a dict also if all its keys are parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gnnplace.errors import CaptureError, InputError, UnsupportedError
from gnnplace.torch_names import pytree
from gnnplace.tracing.inputs import as_inputs

Inputs = Any
"""A batch as people write it; see `gnnplace.tracing.as_inputs`."""
POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
Positional = tuple[Any, ...]
Keywords = dict[str, Any]
Loss = Callable[..., Any] | None


class StepModule(nn.Module):
    """A model and its loss as one module: calls `model` on the inputs, then the loss on its output.

    The loss is called as `loss(output)`; if it requires more arguments, with the last inputs
    too (targets). The model gets all inputs but those targets, or all where its forward asks
    for them (`describe_arguments`). Tensors among the inputs are flattened; all else is constant.

    Args:
        model: Becomes the submodule `model`.
        loss: A callable that returns the loss, or a dict with the entry `loss`; or `None`: the
            output's `.loss`, else the sum of all its floating-point tensors.
        inputs: Example inputs: positional, by keyword, or one tensor.
        forward_only: Return the output's tensors instead of the loss.

    Raises:
        InputError: inputs that the model's forward cannot take.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., torch.Tensor] | None,
        inputs: Inputs,
        *,
        forward_only: bool = False,
    ) -> None:
        super().__init__()
        initialise_lazy(model, loss, inputs)
        self.model = model
        self.loss = loss
        self.forward_only = forward_only
        batch = as_inputs(inputs, model)
        self.args: Positional = () if isinstance(batch, dict) else batch
        self.kwargs: Keywords = batch if isinstance(batch, dict) else {}
        describe_arguments(
            model, loss, self.args, self.kwargs
        )  # refuses what cannot be called
        self._leaves, self._spec = pytree.tree_flatten((self.args, self.kwargs))

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Return the example tensors in the order in which `forward` takes them."""
        return tuple(leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor))

    def sources(self) -> tuple[str, ...]:
        """Return a name for each of `inputs()`: its keyword, else its index among the tensors."""
        if self.kwargs and all(
            isinstance(v, torch.Tensor) for v in self.kwargs.values()
        ):
            return tuple(self.kwargs)
        return tuple(str(i) for i in range(len(self.inputs())))

    def forward(self, *tensors: torch.Tensor) -> object:
        """Return the loss, or the output's tensors if `forward_only`."""
        remaining = iter(tensors)
        leaves = [
            next(remaining) if isinstance(x, torch.Tensor) else x for x in self._leaves
        ]
        call = describe_arguments(
            self.model, self.loss, *pytree.tree_unflatten(leaves, self._spec)
        )
        output = self.model(*call.args, **call.kwargs)
        if self.forward_only:
            return tuple(output_tensors(output))
        if self.loss is not None:
            return scalar_loss(self.loss(output, *call.targets))
        return default_loss(output)


def is_uninitialised(model: nn.Module) -> bool:
    """Return whether a model has lazy layers that have not been called yet."""
    return any(map(is_lazy, chain(model.parameters(), model.buffers())))


def initialise_lazy(model: nn.Module, loss: Loss, inputs: Inputs) -> None:
    """Give lazy layers their parameters by one call of the model, as PyTorch does.

    The call is in `eval` mode and without gradients, so that nothing else changes.

    Raises:
        InputError: the call fails, or leaves parameters without a shape.
    """
    if not is_uninitialised(model):
        return
    batch = as_inputs(inputs, model)
    if isinstance(batch, dict):
        call = describe_arguments(model, loss, (), batch)
    else:
        call = describe_arguments(model, loss, batch, {})
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            model(*call.args, **call.kwargs)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"the model has lazy layers, and calling it with the example inputs failed ({reason}); "
            "call it once yourself, before"
        ) from error
    finally:
        for module, mode in modes:
            module.training = mode
    uninitialised = next((n for n, p in model.named_parameters() if is_lazy(p)), None)
    if uninitialised is not None:
        raise InputError(
            f"parameter {uninitialised!r} is lazy, and no call of the model gives it a shape"
        )


def scalar_loss(result: object) -> torch.Tensor:
    """Return the loss that a loss function returned: a tensor, or the entry `loss` of a dict.

    Raises:
        InputError: it returned something else, of which no part is known to be the loss.
    """
    if isinstance(result, Mapping) and isinstance(result.get("loss"), torch.Tensor):
        result = result["loss"]
    if isinstance(result, torch.Tensor):
        return result
    description = type(result).__name__
    if isinstance(result, Mapping) and result:
        description = f"a dict of {', '.join(map(str, result))}"
    raise InputError(
        f"the loss function returns {description}; return the loss alone, a tensor, or "
        "a dict with the entry 'loss'"
    )


def check_scalar(loss: torch.Tensor) -> None:
    """Refuse a loss that is no single number: there is no gradient of it.

    Raises:
        CaptureError: its shape is named.
    """
    if loss.numel() != 1:
        raise CaptureError(
            f"the loss has shape {tuple(loss.shape)}, not that of a scalar; return a mean"
        )


def check_loss(loss: Loss, model: nn.Module) -> None:
    """Refuse a loss with parameters that the model does not have: no name leads back to them.

    Raises:
        UnsupportedError: the first of them is named.
    """
    if isinstance(loss, nn.Module):
        model_parameters = set(model.parameters())
        named = loss.named_parameters()
        trained = [
            name for name, p in named if p.requires_grad and p not in model_parameters
        ]
        if trained:
            raise UnsupportedError(
                f"the loss has a parameter {trained[0]!r} of its own; make the loss a part of the "
                "model, so that it is trained and saved with it"
            )


def default_loss(output: object) -> torch.Tensor:
    """Return the output's own `.loss`, else the sum of its floating-point tensors.

    Raises:
        InputError: the output has neither a loss nor tensors to add up, or begins with a number
            that may be the loss.
    """
    if isinstance(output, Mapping):
        loss = output.get("loss")
    else:
        loss = getattr(output, "loss", None)
    if loss is not None:
        return loss
    tensors = [t for t in output_tensors(output) if t.is_floating_point()]
    if isinstance(output, tuple | list) and len(tensors) > 1 and tensors[0].dim() == 0:
        raise InputError(
            "the model returns a number and more, and nothing says that it is the loss; return it "
            "alone or as the entry 'loss' of a dict, or give a loss: lambda output: output[0]"
        )
    if not tensors:
        raise InputError("the model returns no floating-point tensor; give a loss")
    if len(tensors) > 1:
        return torch.stack([t.sum() for t in tensors]).sum()
    return tensors[0].sum()


def output_tensors(output: object) -> list[torch.Tensor]:
    """Return every tensor of a nested output, in order."""
    if isinstance(output, Mapping):
        output = dict(output)
    return [
        leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)
    ]


class Arguments(NamedTuple):
    """The arguments of a call of a model and of its loss.

    Attributes:
        args: Positional arguments of the model.
        kwargs: Keyword arguments of the model.
        targets: Arguments of the loss after the output.
    """

    args: Positional
    kwargs: Keywords
    targets: Positional


def describe_arguments(
    model: nn.Module, loss: Loss, args: Positional, kwargs: Keywords
) -> Arguments:
    """Return how a model and a loss are called with inputs.

    Args:
        model: Its `forward` says what it takes.
        loss: A function, a module, or None.
        args: Example inputs by position.
        kwargs: By keyword; a batch that is one dict.

    Raises:
        InputError: `forward` cannot take them.
    """
    if loss is None:
        extra = 0
    else:
        extra = min(max(0, _count_required(loss) - 1), len(args))
    # First without the targets of the loss; else the model takes them too.
    if extra:
        candidates = [(args[: len(args) - extra], args[len(args) - extra :])]
    else:
        candidates = []
    targets = args[len(args) - extra :]
    for inputs, last_inputs in (*candidates, (args, targets)):
        call = _find_input_form(model, inputs, kwargs)
        if call is not None:
            return Arguments(*call, last_inputs)
    batch: Any = kwargs if not args else args[0]
    if len(args) + bool(kwargs) == 1 and isinstance(batch, Mapping):
        call_by_name = _find_dict_call(model, loss, batch)
        if call_by_name is not None:
            return call_by_name
    raise InputError(_refusal(model, args, kwargs))


def _find_input_form(
    model: nn.Module, args: Positional, kwargs: Keywords
) -> tuple[Positional, Keywords] | None:
    """Return how `forward` takes inputs: as they are, or with a lone container spread; or None."""
    if len(args) == 1 and not kwargs:
        container = args[0]
    else:
        container = None
    if isinstance(container, Mapping) and _is_named(model, container):
        return (), dict(container)
    if _binds(model, args, kwargs):
        return args, kwargs
    if isinstance(container, tuple | list) and _binds(model, tuple(container), {}):
        return tuple(container), {}
    if isinstance(container, Mapping) and _binds(model, (), dict(container)):
        return (), dict(container)
    return None


def _find_dict_call(
    model: nn.Module, loss: Loss, kwargs: Mapping[str, Any]
) -> Arguments | None:
    """Return the call of which `forward` takes some entries of a dict and the loss the others.

    If that fits neither, `forward` takes the dict as its one argument; None if it does not.
    """
    model_entries = {
        key: value for key, value in kwargs.items() if key in _names(model)
    }
    targets = tuple(value for key, value in kwargs.items() if key not in model_entries)
    if loss is None:
        num_targets = 0
    else:
        num_targets = _count_required(loss) - 1
    fits = loss is not None and num_targets == len(targets)
    if model_entries and fits and _binds(model, (), model_entries):
        return Arguments((), model_entries, targets)
    if not _binds(model, (kwargs,), {}):
        return None
    return Arguments((kwargs,), {}, (kwargs,) if num_targets > 0 else ())


def _is_named(model: nn.Module, entries: Mapping[Any, Any]) -> bool:
    """Return whether `forward` can be called with the entries and has a parameter for each."""
    parameters = _names(model)
    return (
        bool(entries)
        and all(key in parameters for key in entries)
        and _binds(model, (), entries)
    )


def _names(model: nn.Module) -> list[str]:
    """Return the names of the parameters of `forward`."""
    return list(inspect.signature(model.forward).parameters)


def _count_required(function: Callable[..., Any]) -> int:
    """Return the number of arguments that a loss has to be given."""
    if isinstance(function, nn.Module):
        target = function.forward
    else:
        target = function
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return 1
    return sum(
        p.kind in POSITIONAL and p.default is inspect.Parameter.empty
        for p in parameters
    )


def _binds(model: nn.Module, args: Positional, kwargs: Mapping[str, Any]) -> bool:
    """Return whether `forward` can be called with these arguments."""
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _refusal(model: nn.Module, args: Positional, kwargs: Keywords) -> str:
    """Return the error for inputs that `forward` cannot take."""
    forward = inspect.signature(model.forward)
    return (
        f"{type(model).__name__}.forward{forward} cannot take {len(args)} positional and "
        f"{len(kwargs)} keyword inputs; return inputs that fit beside the model, such as x, "
        "(x, target), ((x, index), target) or a dict of its parameters"
    )
