"""Within what a model's code takes the path of eager mode, and constants answer for their numbers.

A step is traced on tensors without numbers. Inside `as_eager` code sees what it sees in eager mode:

* What `torch.compile` has wrapped runs as it was written.
* A number of a tensor that follows from no input, such as a mask made of `arange`, is the same at
  every step: code that asks for it is answered.
* Masks of attention in transformers are those of eager mode. Where no sequences are packed and
  nothing is padded, attention is causal by a flag, and not by a mask of [batch, 1, tokens, tokens],
  for which there is no flash kernel. Position ids say whether sequences are packed, and they mostly
  follow from no input.
* `gaussian_nll_loss` of torch looks at its variances and raises if one is negative. Here it gives
  no number instead.
* `ctc_loss`, which asks for its lengths, is one call that asks where it runs (`calls.ctc`).
* `torch._check_tensor_all`, by which transformers refuses a batch whose text has not as many places
  for pictures as there are pictures, is not asked of a tensor without numbers; the step does not
  make the check, which is said. Nor is a branch that only raises (`assertions`).
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from gnnplace.errors import CaptureError
from gnnplace.torch_names import (
    DisableTorchFunction,
    FunctionalTensor,
    disable_current_modes,
    fake_tensor,
    parse_to,
    pytree,
)
from gnnplace.tracing.calls import SelectedRow, ctc_loss, find_selection
from gnnplace.tracing.fakes import without_pretended_gpus
from gnnplace.tracing.guards import assertions
from gnnplace.tracing.guards.failures import describe_number_dependence
from gnnplace.tracing.tensors import get_storage_key
from gnnplace.tracing.user_code import user_place

_PACKAGE = str(Path(__file__).parents[2])
QUESTIONS = (
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__contains__",
    "item",
    "tolist",
    "equal",
    "allclose",
    "is_nonzero",
)
"""Functions that say numbers of tensors."""
INQUIRIES = frozenset(
    (
        *(
            "layout",
            "shape",
            "requires_grad",
            "dtype",
            "device",
            "ndim",
            "is_leaf",
            "_version",
        ),
        *("is_sparse", "is_quantized", "is_nested", "is_mkldnn", "is_meta", "grad_fn"),
        *(
            "size",
            "stride",
            "storage_offset",
            "untyped_storage",
            "numel",
            "dim",
            "_is_view",
        ),
        *("is_conj", "is_neg", "is_inference", "is_floating_point", "is_complex"),
    )
)
"""Properties and methods of tensors that say neither numbers nor tensors."""
SIZED = ("view", "reshape", "as_strided", "expand", "repeat", "unflatten")
"""Functions whose other arguments are sizes, which a tensor may say that follows from no other."""
Function = Callable[..., Any]
_CHECK, _CHECK_NUMBER = (
    getattr(torch, name) for name in ("_check_tensor_all_with", "_check_with")
)
_CONVERT = nn.Module.to
_GAUSSIAN = functional.gaussian_nll_loss


@contextmanager
def as_eager() -> Iterator[list[str]]:
    """Run code as in eager mode within; see the text of this module.

    Yields:
        The checks that were left out, each in a line, as they come.
    """
    unchecked: list[str] = []

    def note_unchecked() -> None:
        unchecked.append(f"the check of a tensor{user_place()} is not made by the step")

    with ExitStack() as stack:
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is not None:  # else nothing is wrapped
            stack.enter_context(dynamo.set_stance("force_eager"))
            stack.enter_context(dynamo.config.patch(error_on_nested_fx_trace=False))
        stack.enter_context(without_pretended_gpus())
        constants = stack.enter_context(_Constants(note_unchecked))
        checks = _Checks(constants, note_unchecked)
        for owner, name, replacement in (
            (FunctionalTensor, "tolist", _as_list),
            (FunctionalTensor, "__bool__", torch.Tensor.__bool__),
            (nn.Module, "to", _convert_module),
            (functional, "gaussian_nll_loss", _gaussian_nll_loss),
            (functional, "ctc_loss", ctc_loss),
            (torch, "_check_tensor_all_with", checks.check_tensor),
            (torch, "_check_with", checks.check),
        ):
            stack.enter_context(patch.object(owner, name, replacement))
        masks = sys.modules.get("transformers.masking_utils")
        find = getattr(masks, "find_packed_sequence_indices", None)
        if find is not None:
            replacement = _find_packed(find, constants)
            stack.enter_context(patch.object(masks, find.__name__, replacement))
            if hasattr(masks, "is_torchdynamo_exporting"):  # some versions have none
                stack.enter_context(
                    patch.object(masks, "is_torchdynamo_exporting", lambda: False)
                )
        yield unchecked


class _Checks:
    """Torch's checks of numbers, which are left out where a tensor has none.

    Args:
        constants: Knows numbers of tensors that follow from no others.
        note: Is called where a check is left out.
    """

    def __init__(self, constants: _Constants, note: Callable[[], None]) -> None:
        self._constants = constants
        self._note = note

    def check_tensor(
        self, error: object, condition: torch.Tensor, message: object = None
    ) -> None:
        """Check that all elements are true, as `torch._check_tensor_all_with` does."""
        condition = self._constants.numbers([condition]).get(id(condition), condition)
        if fake_tensor.is_fake(condition):
            self._note()
            return
        with disable_current_modes(), DisableTorchFunction():
            _CHECK(error, condition, message)

    def check(
        self,
        error: type[Exception],
        condition: bool | torch.SymBool | torch.Tensor,
        message: Callable[[], str],
    ) -> None:
        """Check a condition, as `torch._check_with` does."""
        if isinstance(condition, torch.Tensor):
            self.check_tensor(error, condition, message)
        else:
            _CHECK_NUMBER(error, condition, message)


def _find_packed(find: Function, constants: _Constants) -> Function:
    """Return the function of transformers that finds packed sequences, by constants if it can."""

    def find_packed(position_ids: torch.Tensor) -> torch.Tensor | None:
        numbers = constants.numbers([position_ids]).get(id(position_ids))
        if numbers is not None:
            with disable_current_modes(), DisableTorchFunction():
                packed = find(numbers)
                if packed is None or not bool(packed.any()):
                    return None
        result: torch.Tensor | None = find(position_ids)
        return result

    return find_packed


@dataclass(frozen=True)
class _ConstantCall:
    """A call all of whose tensors follow from no others.

    Attributes:
        results: Ids of the tensors that it made, or of all that share memory with what it changed.
        changes: Whether it changed tensors in place.
        function: The function.
        leaves: Its arguments.
        form: How the arguments are nested.
    """

    results: list[int]
    changes: bool
    function: Function
    leaves: list[Any]
    form: Any

    def run(self, numbers: Mapping[int, torch.Tensor]) -> object:
        """Call the function on numbers of its tensors, by the ids of those without."""
        return _call_on_numbers(self.function, self.leaves, self.form, numbers)


class _Constants(TorchFunctionMode):
    """Tensors that follow from no others, and how they were made; answers questions for numbers.

    A change in place, if it follows from no others either, is one of all that share the memory.
    What draws random numbers, or has memory that nobody wrote, has no numbers. An assertion about
    other numbers is answered so that it holds.

    Args:
        note: Is called where an assertion was answered so.
    """

    def __init__(self, note: Callable[[], None]) -> None:
        super().__init__()
        self._note = note
        self._constants: dict[int, tuple[torch.Tensor, int]] = {}  # with its version
        self._calls: list[_ConstantCall] = []

    def __torch_function__(
        self,
        func: Function,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        inquiry = name
        if name == "__get__":  # of a property of tensors, which has a name
            inquiry = getattr(getattr(func, "__self__", None), "__name__", "")
        if inquiry in INQUIRIES:
            _check_selections(args[:1])  # nine of ten calls are such ones
            return func(*args, **kwargs)
        leaves, form = pytree.tree_flatten((args, kwargs))
        if name in QUESTIONS:
            answer = self._answer(func, args, leaves, form)
            if answer is not None:
                return answer

        tensors = [leaf for leaf in leaves if torch.is_tensor(leaf)]
        _check_selections(tensors)
        if (
            name == "masked_select"
            and len(tensors) == 2
            and fake_tensor.is_fake(tensors[0])
        ):
            entries, mask = tensors
            if entries.shape == mask.shape:
                return SelectedRow(entries, mask, user_place()).stand_in()
        if name in SIZED and args and len(tensors) > 1:
            numbers = self.numbers(tensors[1:])
            if numbers:
                with disable_current_modes():
                    sizes, options = as_numbers((args[1:], kwargs), numbers)
                return func(args[0], *sizes, **options)
        if not all(map(self._is_constant, leaves)):
            return func(*args, **kwargs)
        versions = [tensor._version for tensor in tensors]
        result = func(*args, **kwargs)
        if "empty" not in name:
            self._note_call(func, leaves, form, versions, result)
        return result

    def _answer(
        self,
        func: Function,
        args: tuple[Any, ...],
        leaves: list[Any],
        form: pytree.TreeSpec,
    ) -> object | None:
        """Return the answer to a question for a number; None if only a real tensor can say."""
        numbers = self.numbers(leaves)
        if numbers:
            with disable_current_modes(), DisableTorchFunction():
                return _call_on_numbers(func, leaves, form, numbers)
        if not args or not fake_tensor.is_fake(args[0]):
            return None
        answer: object | None = assertions.answer(func.__name__, args[0])
        if answer is not None and answer is not args[0]:
            self._note()
        return answer

    def _note_call(
        self,
        func: Function,
        leaves: list[Any],
        form: pytree.TreeSpec,
        versions: list[int],
        result: object,
    ) -> None:
        """Note what a call made of constants, or that it changed some.

        Args:
            func: The function.
            leaves: Its arguments.
            form: How the arguments are nested.
            versions: The versions of the tensors among the arguments, before the call.
            result: What the call returned.
        """
        tensors = list(filter(torch.is_tensor, leaves))
        changed: set[int] = set()
        for tensor, version in zip(tensors, versions, strict=True):
            if tensor._version != version:
                changed.add(get_storage_key(tensor))
        results = pytree.tree_leaves(result)
        if changed:
            results = []
            for tensor, _ in self._constants.values():
                if get_storage_key(tensor) in changed:
                    results.append(tensor)
        elif not all(map(torch.is_tensor, results)):
            return
        elif not {*map(id, results)}.isdisjoint(map(id, tensors)):
            return  # it returned what it was given
        for tensor in results:
            self._constants[id(tensor)] = tensor, tensor._version
        self._calls.append(
            _ConstantCall([*map(id, results)], bool(changed), func, leaves, form)
        )

    def _is_constant(self, value: object) -> bool:
        """Return whether a value follows from no others, and was not changed by others."""
        if not isinstance(value, torch.Tensor):
            return True
        tensor, version = self._constants.get(id(value), (None, 0))
        return tensor is value and version == value._version

    def numbers(self, values: Sequence[Any]) -> dict[int, torch.Tensor]:
        """Return numbers of tensors, by their id; none if one follows from others or was changed.

        Args:
            values: The tensors; other values are left out.
        """
        if not all(map(self._is_constant, values)):
            return {}
        # The calls that lead to them, the last first.
        needed = {id(value) for value in values if isinstance(value, torch.Tensor)}
        calls: list[_ConstantCall] = []
        for call in reversed(self._calls):
            if not needed.isdisjoint(call.results):
                needed.update(map(id, call.leaves))
                calls.append(call)
        numbers: dict[int, torch.Tensor] = {}
        with disable_current_modes(), DisableTorchFunction(), torch.random.fork_rng([]):
            random_state = torch.get_rng_state()
            try:
                for call in reversed(calls):
                    results = pytree.tree_leaves(call.run(numbers))
                    if not call.changes:
                        numbers.update(zip(call.results, results, strict=True))
            except (RuntimeError, AssertionError):
                # An op may fail, for example on a device that is not there.
                return {}
            if torch.equal(random_state, torch.get_rng_state()):
                return numbers
            return {}


def _check_selections(tensors: Sequence[torch.Tensor]) -> None:
    """Refuse a call of the model's that reads a row of an unknown length.

    Raises:
        CaptureError: the line that makes the row is named.
    """
    selections = []
    for tensor in tensors:
        row = find_selection(tensor)
        if row is not None:
            selections.append(row)
    mode = inspect.currentframe()
    if mode is None or mode.f_back is None:
        caller = None
    else:
        caller = mode.f_back.f_back
    while caller is not None and caller.f_code.co_filename == fake_tensor.__file__:
        # Skip the fake tensor's own properties, such as `layout` since torch 2.14.
        caller = caller.f_back
    if not selections or caller is None:
        return
    code = caller.f_code
    if code.co_filename.startswith(_PACKAGE) and code.co_name != "__torch_function__":
        return  # what records the step looks at shapes
    place = selections[0].place
    raise CaptureError(
        f"capture failed{place}: {describe_number_dependence('masked_select', place)}"
    )


def _convert_module(module: nn.Module, *args: Any, **options: Any) -> nn.Module:
    """Run `Module.to`, which torch refuses for traced tensors also where nothing changes."""
    device, dtype, _, layout = parse_to(*args, **options)
    tensors = [*module.parameters(), *module.buffers()]
    moves = device is not None and any(tensor.device != device for tensor in tensors)
    floating = [tensor for tensor in tensors if tensor.is_floating_point()]
    casts = dtype is not None and any(tensor.dtype != dtype for tensor in floating)
    if layout is None and not moves and not casts:
        return module
    return _CONVERT(module, *args, **options)


def _as_list(tensor: torch.Tensor) -> object:
    """Return a tensor's numbers one by one; torch's own (2.13) asks tensors that it has inside."""
    if tensor.dim():
        return [_as_list(row) for row in tensor.unbind()]
    return tensor.item()


def _gaussian_nll_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """Return torch's loss (2.13), (log v + (x - y)^2 / v) / 2, with v clamped but its gradient.

    Raises:
        ValueError: as torch's own, but for negative variances: their loss is no number.
    """
    if not isinstance(var, torch.Tensor):
        return _GAUSSIAN(input, target, var, full, eps, reduction)
    if var.size() != input.size() and input.size()[:-1] == var.size():
        var = var.unsqueeze(-1)
    pairs = zip(input.size(), var.size(), strict=False)
    unequal_sizes = sum(size for expected, size in pairs if expected != size)
    if input.dim() != var.dim() or unequal_sizes > 1:
        raise ValueError("var is of incorrect size")
    var = var.masked_fill(var < 0, -torch.inf)  # which has no logarithm
    var = var + (var.clamp(min=eps) - var).detach()
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    result: torch.Tensor = loss if reduction == "none" else getattr(loss, reduction)()
    return result


def as_numbers(sizes: object, numbers: Mapping[int, torch.Tensor] | None = None) -> Any:
    """Return sizes with numbers in the place of tensors.

    Args:
        sizes: numbers and tensors, in any containers.
        numbers: tensors with numbers, by the ids of those without; None: all have numbers.
    """

    def number(size: object) -> object:
        if not isinstance(size, torch.Tensor):
            return size
        return int(size if numbers is None else numbers.get(id(size), size))

    return pytree.tree_map(number, sizes)


def _call_on_numbers(
    func: Function,
    leaves: list[Any],
    form: pytree.TreeSpec,
    numbers: Mapping[int, torch.Tensor],
) -> object:
    """Call a function on numbers of its tensors, by the ids of those without."""
    arguments = [
        numbers[id(leaf)] if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
    ]
    args, kwargs = pytree.tree_unflatten(arguments, form)
    return func(*args, **kwargs)
