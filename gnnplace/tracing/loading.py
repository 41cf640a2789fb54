"""Find the model that a command line names: a zoo name, `hf:CONFIG`, or a function.

A function is named as ``module:callable`` or ``path/to/file.py:callable`` (``gnnplace.imports``).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar
from unittest import mock

import torch
import yaml
from torch import nn

from gnnplace import zoo
from gnnplace.errors import GnnplaceError, InputError, suggestion
from gnnplace.imports import SUFFIX, find_callable, importable, said
from gnnplace.models import find_model, nearest_names
from gnnplace.torch_names import (
    FakeTensorMode,
    fake_tensor,
    pytree,
    unset_fake_temporarily,
)
from gnnplace.tracing.calls import loop_over_experts
from gnnplace.tracing.fakes import make_fake_mode
from gnnplace.tracing.inputs import as_inputs
from gnnplace.zoo import TRANSFORMERS_BATCH, Workload

ZOO = "zoo"
HUGGING_FACE = "hf"
SHORT = 4096  # elements of a fake tensor whose numbers are kept


def load(spec: str, *, share: int = 1, fake: bool | FakeTensorMode = False) -> Workload:
    """Make the workload that a spec names.

    Args:
        spec: A zoo name (`inception`, `zoo:inception`), a configuration of Hugging Face
            (`hf:gpt2`, `hf:folder`, `hf:path/config.json`), or `module:callable`, the module also
            in the current directory or a path such as `models/mine.py:build`; the callable returns
            `model, inputs` or `model, inputs, loss`, and the model is called by its class.
            Arguments may follow, as in `inception?batch=16` or `hf:gpt2?n_layer=4&batch=2`.
        share: Micro-batches: the batch is divided by it. A zoo or Hugging Face workload is built
            with the smaller batch, and so is that of a callable with a parameter `batch`;
            otherwise the example tensors are cut along their first dimension.
        fake: Make the model under `FakeTensorMode`: it takes no memory and can be captured, but
            not run. A mode that is given is the one: fake tensors of two modes do not meet.

    Returns:
        The workload.

    Raises:
        InputError: nothing of that name, or what it returns is no workload; names the mistake.
    """
    path, _, query = spec.partition("?")
    options = parse_options(query, spec)
    try:
        with _fake_mode(fake):
            return _build(path, options, share, spec)
    except GnnplaceError:
        raise
    except Exception as error:
        raise InputError(f"model {spec!r}: {said(error)}") from error


def _build(path: str, options: dict[str, Any], share: int, spec: str) -> Workload:
    """Make the workload of a kind of model, `path`, at 1/`share` of its batch."""
    prefix, colon, name = path.partition(":")
    if colon and prefix == HUGGING_FACE:
        batch = _share(options.pop("batch", TRANSFORMERS_BATCH), share, spec)
        return _call_seeded(lambda: zoo.hugging_face(name, batch=batch, **options))
    if not colon or prefix == ZOO:
        name = name if colon else path
        if name not in zoo.list_workload_names() and not colon:
            if find_model(name) is None:
                raise InputError(_unknown(path, spec))
            batch = _share(options.pop("batch", TRANSFORMERS_BATCH), share, spec)
            return _call_seeded(lambda: zoo.hugging_face(name, batch=batch, **options))
        batch = options.pop("batch", zoo.default_batch(name))
        return zoo.build(name, batch=_share(batch, share, spec), **options)
    return _from_callable(prefix, name, options, share, spec)


def _unknown(path: str, spec: str) -> str:
    """Return the error for a name without a colon that the zoo does not have."""
    if path.endswith(SUFFIX):
        return f"model {spec!r}: name the function that builds the model too, as in {path}:build"
    near = suggestion(path, zoo.list_workload_names())
    nearest = nearest_names(path)
    if not near and nearest:
        near = f"; the nearest names of the catalogue are {', '.join(nearest)}"
    return (
        f"model {spec!r}: use a name of the catalogue, "
        f"a zoo name ({', '.join(zoo.list_workload_names())}), "
        f"hf:CONFIG, module:callable or path/to/file.py:callable{near}"
    )


def _from_callable(
    module: str, name: str, options: dict[str, Any], share: int, spec: str
) -> Workload:
    """Make the workload that a callable returns, at 1/`share` of its batch.

    A parameter `batch` of the callable is given the smaller batch; else the inputs are cut.
    """
    function = find_callable(module, name, f"model {spec!r}")
    sized = share > 1 and _default_batch(function, options) is not None
    if sized:
        options["batch"] = _share(
            int(_default_batch(function, options) or 0), share, spec
        )
    try:
        inspect.signature(function).bind(**options)
    except TypeError as error:
        raise InputError(f"model {spec!r}: {name}: {error}") from None
    try:
        with importable(module):
            result = _call_seeded(lambda: function(**options))
    except (Exception, SystemExit) as error:
        raise InputError(f"model {spec!r}: {name} failed: {said(error)}") from error
    workload = _workload(result, spec)
    if sized or share == 1:
        return workload
    return cut_workload(workload, share)


def is_sized(spec: str) -> bool:
    """Return whether a spec names a callable that has a parameter `batch`.

    Such a callable builds a share of the batch itself, which may stand on any axis of its inputs.
    """
    path, _, query = spec.partition("?")
    module, colon, name = path.partition(":")
    if not colon or module in (ZOO, HUGGING_FACE):
        return False
    function = find_callable(module, name, f"model {spec!r}")
    return _default_batch(function, parse_options(query, spec)) is not None


def _default_batch(
    function: Callable[..., Any], options: Mapping[str, Any]
) -> int | None:
    """Return the batch that a callable builds: its option or its default, if it is a number."""
    parameter = inspect.signature(function).parameters.get("batch")
    if parameter is None:
        default = None
    else:
        default = parameter.default
    value = options.get("batch", default)
    if isinstance(value, int):
        return value
    return None


ResultT = TypeVar("ResultT")


def _call_seeded(function: Callable[[], ResultT]) -> ResultT:
    """Call a function with one seed, so that random parameters are the same in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return function()


def _workload(result: object, spec: str) -> Workload:
    """Return what a callable made as a workload, with the types in its batch registered.

    Raises:
        InputError: it is neither a `Workload` nor (model, inputs) nor (model, inputs, loss).
    """
    if isinstance(result, Workload):
        return replace(result, inputs=as_inputs(result.inputs, result.model))
    if isinstance(result, tuple | list) and len(result) in (2, 3):
        model, inputs, *loss = result
        if isinstance(model, nn.Module):
            name = type(model).__name__  # `build` would tell nobody which of many it is
            return Workload(
                name, model, as_inputs(inputs, model), loss[0] if loss else None
            )
    raise InputError(
        f"model {spec!r}: must return (model, inputs) or (model, inputs, loss) with an nn.Module, "
        f"not {type(result).__name__}"
    )


def cut_workload(workload: Workload, share: int) -> Workload:
    """Return the workload with the first of `share` equal parts of its batch; see `make_shares`.

    Raises:
        InputError: the batch cannot be divided.
    """
    inputs = make_shares(workload, share)[0]
    return Workload(workload.name, workload.model, inputs, workload.loss)


def make_shares(workload: Workload, count: int) -> list[Any]:
    """Return the inputs of each of `count` equal parts of a workload's batch, in order.

    The batch is the first dimension of the first tensor; tensors of another first dimension stay
    as they are.

    Raises:
        InputError: the batch cannot be divided.
    """
    leaves = pytree.tree_leaves(workload.inputs)
    tensors = [x for x in leaves if isinstance(x, torch.Tensor) and x.dim() > 0]
    if not tensors:
        raise InputError(f"{workload.name}: no input has a batch that could be cut")
    batch = tensors[0].shape[0]
    size = _share(batch, count, workload.name)

    def part(value: object, index: int) -> object:
        if isinstance(value, torch.Tensor) and value.shape[:1] == (batch,):
            return value[index * size : (index + 1) * size].contiguous()
        return value

    return [
        pytree.tree_map(lambda x, k=k: part(x, k), workload.inputs)
        for k in range(count)
    ]


def with_double_precision(workload: Workload) -> Workload:
    """Return a copy of a workload in double precision."""
    inputs = pytree.tree_map(convert_to_double, workload.inputs)
    model = copy.deepcopy(workload.model).double()
    loop_over_experts(model)
    return Workload(workload.name, model, inputs, workload.loss)


def convert_to_double(value: object) -> object:
    """Return a real tensor in double precision, and any other value as it is."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    return value


def _share(batch: object, share: int, what: str) -> int:
    """Return the number of examples in one of `share` equal parts of a batch.

    Raises:
        InputError: the batch is no positive number, or no multiple of `share`.
    """
    if not isinstance(batch, int) or batch < 1:
        raise InputError(f"{what}: batch {batch!r} is not a positive number")
    if share < 1 or batch % share:
        raise InputError(
            f"{what}: a batch of {batch} cannot be cut into {share} equal micro-batches; "
            f"give a batch that is a multiple of {max(share, 1)}"
        )
    return batch // share


def parse_options(query: str, spec: str) -> dict[str, Any]:
    """Return the options behind the `?` of a spec, ``NAME=VALUE`` joined by ``&``, values as YAML.

    Raises:
        InputError: a part is not ``NAME=VALUE``.
    """
    options = {}
    for part in query.split("&") if query else []:
        key, equals, text = part.partition("=")
        if not key or not equals:
            raise InputError(f"model {spec!r}: {part!r} is not NAME=VALUE")
        options[key] = yaml.safe_load(text)
    return options


@contextmanager
def _fake_mode(fake: bool | FakeTensorMode) -> Iterator[None]:
    """Enter a mode in which models are made without memory; none if `fake` is false."""
    if not fake:
        yield
        return
    # `trunc_normal_` draws until all numbers are within bounds; fake tensors have no numbers.
    truncated_normal = mock.patch.object(
        nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor
    )
    # Rates that grow from layer to layer are read as numbers while the layers are made.
    linspace = mock.patch.object(torch, "linspace", _with_numbers(torch.linspace))
    short_constants = mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", SHORT)
    mode = make_fake_mode() if fake is True else fake
    module_apply = mock.patch.object(nn.Module, "_apply", apply_to_tensors)
    with mode, truncated_normal, linspace, short_constants, module_apply:
        yield


def apply_to_tensors(
    module: nn.Module, change: Callable[[Any], Any], recurse: bool = True
) -> nn.Module:
    """Apply a change to every parameter and buffer of a module, as `Module._apply` does.

    Torch's own cannot swap fake parameters. Tensors that are one stay one, those that are of the
    type and on the device already stay as they are, and parameters keep their hooks.

    Args:
        module: Changed in place.
        change: Returns the tensor that replaces a tensor.
        recurse: Whether submodules are changed too.
    """
    changed_by_id: dict[int, torch.Tensor] = {}
    for owner in module.modules() if recurse else [module]:
        for table in (owner._parameters, owner._buffers):
            for name, tensor in list(table.items()):
                if tensor is None:
                    continue
                with torch.no_grad():
                    changed = change(tensor)
                if (changed.dtype, changed.device) == (tensor.dtype, tensor.device):
                    continue
                if isinstance(tensor, nn.Parameter):
                    changed = nn.Parameter(changed, tensor.requires_grad)
                    changed._backward_hooks = tensor._backward_hooks
                    changed._post_accumulate_grad_hooks = (
                        tensor._post_accumulate_grad_hooks
                    )
                changed = changed_by_id.setdefault(id(tensor), changed)
                table[name] = changed  # type: ignore[assignment]
    return module


def _with_numbers(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a factory whose short fake tensors know their numbers, as constants do."""

    def create(*args: object, **options: object) -> torch.Tensor:
        fake = factory(*args, **options)
        if fake.numel() > SHORT:
            return fake
        with unset_fake_temporarily():
            numbers = factory(*args, **options | {"device": "cpu"}).tolist()
        return torch.tensor(numbers, dtype=fake.dtype)

    return create
