"""Within what a step is traced: Python code that is watched, and torch mended where it errs.

A captured step is a fixed list of operations. Python code runs once, at capture; what it does
then must not differ from what it would do at the next step. `watched` refuses what would:

* random numbers from Python's or numpy's generators, and seeds set anew at every step;
* a number of a tensor that the code asks for and then goes on without (`try: x.item()`);
* a backward pass inside the forward pass, which leaves gradients behind.

It answers `torch.compiler.is_compiling()` and its like with "no", so that the path of eager mode is
captured. The library transformers alone is told "yes": it asks in order to leave out decisions
that depend on numbers, and its two paths compute the same. One of them is decided as in eager mode
all the same (`as_eager`), for it is slower otherwise: where no sequences are packed and nothing is
padded, attention is causal by a flag, and not by a mask of [batch, 1, tokens, tokens] for which no
flash kernel is there. Whether they are packed, position ids say, which mostly follow from no input.

A number of a tensor that follows from no input, such as a mask made of `arange`, is the same at
every step: code that asks for it is answered, on every road (`as_eager`). `gaussian_nll_loss` of
torch, which looks at its variances and raises where one is negative, gives no number there instead.
`ctc_loss`, which asks for its lengths, is one call that asks where it runs (`ctc`).
`torch._check_tensor_all`, by which transformers refuses a batch whose text has not as many places
for pictures as there are pictures, is not asked for a tensor without numbers, which is said. Nor is
a branch that only raises (`assertions`).

`other_autocasts`: autocast looks at the device of every tensor. A model that says
`torch.autocast("cuda")` computes in half precision on a GPU; captured on a CPU its ops have no
casts, wherever they run afterwards, just as eager PyTorch has none on a CPU. That is said in a
line. One that was made before the capture, as a decorator is, does not tell whether it was asked
for where torch has no GPU; the line says so.

`recurrent_layers` mends two faults of torch 2.13's `torch._decomp.decompositions`, which would
change what a captured LSTM, GRU or RNN computes in training:

* `_rnn_helper` drops the dropout between layers: it keeps it only where `num_layers < i - 1`,
  which is never.
* An LSTM layer whose input needs no gradient is turned into oneDNN's inference layer, although
  its parameters do need one; that layer has no workspace for a backward pass.
"""

from __future__ import annotations

import inspect
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn
from torch.amp import autocast_mode
from torch.fx import traceback
from torch.nn import functional
from torch.overrides import TorchFunctionMode, handle_torch_function

from gnnplace.errors import CaptureError
from gnnplace.foreign import patch_private, read_private
from gnnplace.torch_names import (
    MODULE_CALL,
    DisableTorchFunction,
    FunctionalTensor,
    decompositions,
    disable_current_modes,
    fake_tensor,
    parse_to,
    pytree,
    torch_utils,
)
from gnnplace.tracing.calls import SelectedRow, ctc_loss, selection_of
from gnnplace.tracing.fakes import without_pretended_gpus
from gnnplace.tracing.guards import assertions
from gnnplace.tracing.guards.failures import on_numbers, user_place
from gnnplace.tracing.guards.numbering import storage_of

TRACED_LIBRARIES = ("transformers",)
"""Libraries that are told that they are being traced."""
_PACKAGE = str(Path(__file__).parents[2])
HOST = "cpu"
ASKED = "_gnnplace_asked"
"""Attribute of an autocast: whether it was asked for; torch turns it off where there is no GPU."""
QUESTIONS = ("__bool__", "__int__", "__float__", "__index__", "__contains__", "item", "tolist",
             "equal", "allclose", "is_nonzero")  # fmt: skip
"""Functions that say numbers of tensors."""
INQUIRIES = frozenset(
    (
        *("layout", "shape", "requires_grad", "dtype", "device", "ndim", "is_leaf", "_version"),
        *("is_sparse", "is_quantized", "is_nested", "is_mkldnn", "is_meta", "grad_fn"),
        *("size", "stride", "storage_offset", "untyped_storage", "numel", "dim", "_is_view"),
        *("is_conj", "is_neg", "is_inference", "is_floating_point", "is_complex"),
    )
)
"""Properties and methods of tensors that say neither numbers nor tensors."""
SIZED = ("view", "reshape", "as_strided", "expand", "repeat", "unflatten")
"""Functions whose other arguments are sizes, which a tensor may say that follows from no other."""
STACK = "nn_module_stack"
"""Where torch keeps it: qualified name and class of every module that is being called."""
LayerFunction = Callable[..., tuple[torch.Tensor, Any]]


@contextmanager
def watched() -> Iterator[None]:
    """Refuses what a captured step cannot repeat; generators are left as they were.

    Raises:
        CaptureError: names what was done and, where it is known, the line.
    """
    asked: list[str] = []
    with other_generators() as drawn, ExitStack() as stack:
        for context in (*_answers(), *_refusals(), _unanswered(asked)):
            stack.enter_context(context)
        yield
    if drawn:
        raise CaptureError(
            f"the model draws from {drawn[0]}, and a captured step would use the same number every "
            "time; draw from torch's generators"
        )
    if asked:
        raise CaptureError(
            f"the model asks for a number of a tensor{asked[0]} and goes on without it when it "
            "gets none; take that out, the captured step would be another one"
        )


@contextmanager
def as_eager() -> Iterator[list[str]]:
    """Within it all that `torch.compile` has wrapped runs as it was written, so that it is seen.

    Transformers (5.23) makes those masks of attention that it makes in eager mode. Yields the
    checks that were left out, each in a line, as they come.
    """
    left: list[str] = []

    def note() -> None:
        left.append(f"the check of a tensor{user_place()} is not made by the step")

    def checked(error: object, found: torch.Tensor, message: object = None) -> None:
        found = known.numbers([found]).get(id(found), found)
        if fake_tensor.is_fake(found):
            note()
        else:
            with disable_current_modes(), DisableTorchFunction():
                _CHECK(error, found, message)

    def checked_number(
        error: type[Exception],
        condition: bool | torch.SymBool | torch.Tensor,
        message: Callable[[], str],
    ) -> None:
        if isinstance(condition, torch.Tensor):
            checked(error, condition, message)
        else:
            _CHECK_NUMBER(error, condition, message)

    with ExitStack() as stack:
        if (dynamo := sys.modules.get("torch._dynamo")) is not None:  # else nothing is wrapped
            stack.enter_context(dynamo.set_stance("force_eager"))
            stack.enter_context(dynamo.config.patch(error_on_nested_fx_trace=False))
        stack.enter_context(without_pretended_gpus())
        known = stack.enter_context(_Constants(note))
        stack.enter_context(patch.object(FunctionalTensor, "tolist", _listed))
        stack.enter_context(patch.object(FunctionalTensor, "__bool__", torch.Tensor.__bool__))
        stack.enter_context(patch.object(nn.Module, "to", _converted))
        stack.enter_context(patch.object(functional, "gaussian_nll_loss", _gaussian_nll_loss))
        stack.enter_context(patch.object(functional, "ctc_loss", ctc_loss))
        stack.enter_context(patch.object(torch, "_check_tensor_all_with", checked))
        stack.enter_context(patch.object(torch, "_check_with", checked_number))
        masks = sys.modules.get("transformers.masking_utils")
        if (find := getattr(masks, "find_packed_sequence_indices", None)) is not None:

            def found(position_ids: torch.Tensor) -> Any:
                numbers = known.numbers([position_ids]).get(id(position_ids))
                with disable_current_modes(), DisableTorchFunction():
                    packed = None if numbers is None else find(numbers)
                    plain = numbers is not None and (packed is None or not bool(packed.any()))
                return None if plain else find(position_ids)

            stack.enter_context(patch.object(masks, find.__name__, found))
            if hasattr(masks, "is_torchdynamo_exporting"):  # some versions have none
                stack.enter_context(patch.object(masks, "is_torchdynamo_exporting", lambda: False))
        yield left


class _Constants(TorchFunctionMode):
    """Knows how tensors were made that follow from no others, and answers what asks for numbers.

    A change in place, if it follows from no others either, is one of all that share the memory.
    What draws random numbers, or has memory that nobody wrote, has none that are known. An
    assertion about numbers that are not known is answered so that it holds.

    Args:
        note: Is called where an assertion was answered so.
    """

    def __init__(self, note: Callable[[], None]) -> None:
        super().__init__()
        self._note = note
        self._made: dict[int, tuple[torch.Tensor, int]] = {}  # with its version
        self._calls: list[tuple[list[int], bool, Any, list[Any], Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if (getattr(func.__self__, "__name__", "") if name == "__get__" else name) in INQUIRIES:
            _check_selections(args[:1])  # nine of ten calls are such ones
            return func(*args, **(kwargs or {}))
        given, form = pytree.tree_flatten((args, kwargs or {}))
        if name in QUESTIONS and (numbers := self.numbers(given)):
            with disable_current_modes(), DisableTorchFunction():
                return _called(func, given, form, numbers)
        unknown = name in QUESTIONS and args and fake_tensor.is_fake(args[0])
        if unknown and (outcome := assertions.answer(name, args[0])) is not None:
            if outcome is not args[0]:
                self._note()
            return outcome
        read = [x for x in given if torch.is_tensor(x)]
        _check_selections(read)
        selects = name == "masked_select" and len(read) == 2 and fake_tensor.is_fake(read[0])
        if selects and read[0].shape == read[1].shape:
            return SelectedRow(read[0], read[1], user_place()).stand_in()
        if name in SIZED and args and len(read) > 1 and (numbers := self.numbers(read[1:])):
            with disable_current_modes():
                sizes = as_numbers((args[1:], kwargs or {}), numbers)
            return func(args[0], *sizes[0], **sizes[1])
        known = all(map(self._knows, given))
        versions = [x._version for x in read] if known else []
        result = func(*args, **(kwargs or {}))
        if not known or "empty" in name:
            return result
        changed = {storage_of(x) for x, v in zip(read, versions, strict=True) if x._version != v}
        made = pytree.tree_leaves(result)
        if changed:
            made = [x for x, _ in self._made.values() if storage_of(x) in changed]
        elif not all(map(torch.is_tensor, made)) or not {*map(id, made)}.isdisjoint(map(id, read)):
            return result
        self._made.update((id(x), (x, x._version)) for x in made)
        self._calls.append(([*map(id, made)], bool(changed), func, given, form))
        return result

    def _knows(self, value: object) -> bool:
        if not isinstance(value, torch.Tensor):
            return True
        tensor, version = self._made.get(id(value), (None, 0))
        return tensor is value and version == value._version

    def numbers(self, asked: list[Any]) -> dict[int, torch.Tensor]:
        """Numbers of tensors, by their id; none if one follows from others or was changed."""
        values: dict[int, torch.Tensor] = {}
        needed = {id(x) for x in asked if isinstance(x, torch.Tensor)}
        if not all(map(self._knows, asked)):
            return {}
        calls = []
        for call in reversed(self._calls):
            if not needed.isdisjoint(call[0]):
                needed.update(map(id, call[3]))
                calls.append(call)
        with disable_current_modes(), DisableTorchFunction(), torch.random.fork_rng([]):
            before = torch.get_rng_state()
            try:
                for ids, changes, func, given, form in reversed(calls):
                    made = pytree.tree_leaves(_called(func, given, form, values))
                    values.update([] if changes else zip(ids, made, strict=True))
            except (RuntimeError, AssertionError):  # such as on a device that is not there
                return {}
            return values if torch.equal(before, torch.get_rng_state()) else {}


_CHECK, _CHECK_NUMBER = (getattr(torch, name) for name in ("_check_tensor_all_with", "_check_with"))
_CONVERT = nn.Module.to


def _check_selections(tensors: Sequence[torch.Tensor]) -> None:
    """Refuse a call of the model's that reads a row of an unknown length.

    Raises:
        CaptureError: naming the line that makes it.
    """
    selections = []
    for tensor in tensors:
        row = selection_of(tensor)
        if row is not None:
            selections.append(row)
    mode = inspect.currentframe()
    caller = None if mode is None or mode.f_back is None else mode.f_back.f_back
    if not selections or caller is None:
        return
    code = caller.f_code
    if code.co_filename.startswith(_PACKAGE) and code.co_name != "__torch_function__":
        return  # what records the step looks at shapes
    place = selections[0].place
    raise CaptureError(f"capture failed{place}: {on_numbers('masked_select', place)}")


def _converted(module: nn.Module, *args: Any, **options: Any) -> nn.Module:
    """`Module.to`, which torch refuses for tensors that are traced also where nothing changes."""
    device, dtype, _, layout = parse_to(*args, **options)
    held = [*module.parameters(), *module.buffers()]
    moves = device is not None and any(x.device != device for x in held)
    casts = dtype is not None and any(x.dtype != dtype for x in held if x.is_floating_point())
    same = layout is None and not moves and not casts
    return module if same else _CONVERT(module, *args, **options)


def _listed(tensor: torch.Tensor) -> Any:
    """As torch's own, one by one; torch's (2.13) asks tensors that it has inside."""
    return [_listed(x) for x in tensor.unbind()] if tensor.dim() else tensor.item()


def _gaussian_nll_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """As torch's own (2.13): (log v + (x - y)^2 / v) / 2, v at least `eps` but for its gradient."""
    if not isinstance(var, torch.Tensor):
        return _GAUSSIAN(input, target, var, full, eps, reduction)
    if var.size() != input.size() and input.size()[:-1] == var.size():
        var = var.unsqueeze(-1)
    odd = sum(y for x, y in zip(input.size(), var.size(), strict=False) if x != y)
    if input.dim() != var.dim() or odd > 1:
        raise ValueError("var is of incorrect size")
    var = var.masked_fill(var < 0, -torch.inf)  # of which there is no logarithm
    var = var + (var.clamp(min=eps) - var).detach()
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    loss = loss + 0.5 * math.log(2 * math.pi) if full else loss
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    found: torch.Tensor = loss if reduction == "none" else getattr(loss, reduction)()
    return found


_GAUSSIAN = functional.gaussian_nll_loss


def as_numbers(sizes: object, known: Mapping[int, torch.Tensor] | None = None) -> Any:
    """Sizes with numbers for tensors.

    Args:
        sizes: numbers and tensors, in any containers.
        known: tensors with numbers, by the ids of those without; None: all have numbers.
    """

    def number(size: Any) -> Any:
        whole = size if known is None else known.get(id(size), size)
        return int(whole) if isinstance(size, torch.Tensor) else size

    return pytree.tree_map(number, sizes)


def _called(func: Any, given: list[Any], form: Any, numbers: dict[int, torch.Tensor]) -> Any:
    own = [numbers[id(x)] if isinstance(x, torch.Tensor) else x for x in given]
    args, kwargs = pytree.tree_unflatten(own, form)
    return func(*args, **kwargs)


@contextmanager
def other_generators() -> Iterator[list[str]]:
    """Collects the generators of Python and numpy that are drawn from; leaves them as they were."""
    python, arrays, found = random.getstate(), _arrays(), list[str]()
    try:
        yield found
    finally:
        found += ["Python's `random`"] * (random.getstate() != python)
        found += ["`numpy.random`"] * (not all(map(np.array_equal, _arrays(), arrays)))
        random.setstate(python)
        np.random.set_state(arrays)  # noqa: NPY002 - the user's, not ours


def _arrays() -> Any:
    return np.random.get_state()  # noqa: NPY002 - the user's, not ours


def _answers() -> Iterator[Any]:
    """What code is told that asks whether it is being compiled."""

    def answer() -> bool:
        name = sys._getframe(1).f_globals.get("__name__", "")
        return str(name).partition(".")[0] in TRACED_LIBRARIES

    for owner, name in (
        (torch.compiler, "is_compiling"),
        (torch.compiler, "is_exporting"),
        (torch_utils, "is_compiling"),
    ):
        yield patch.object(owner, name, answer)


def _refusals() -> Iterator[Any]:
    for owner, name, mend in (
        (torch, "manual_seed", "seeds that a step sets are not part of a captured one"),
        (torch.Tensor, "backward", "use torch.autograd.grad"),
        (torch.autograd, "backward", "use torch.autograd.grad"),
    ):
        yield patch.object(owner, name, _refusal(name, mend))
    yield patch.object(functional, "handle_torch_function", _handled)


def _handled(function: Any, given: Any, *args: Any, **options: Any) -> Any:
    """As torch's own, for functions that pass on all tensors that they are given."""
    kept = {*map(id, (*args, *options.values()))}
    if any(isinstance(x, torch.Tensor) and id(x) not in kept for x in given):
        raise CaptureError(
            f"torch loses a tensor that {function.__name__} is given{user_place()}, such as its "
            "weight, where it is recorded; write it out"
        )
    return handle_torch_function(function, given, *args, **options)


def _refusal(name: str, mend: str) -> Callable[..., Any]:
    def refuse(*args: object, **options: object) -> Any:
        raise CaptureError(f"the model calls {name}(){user_place()}; {mend}")

    return refuse


def _unanswered(asked: list[str]) -> Any:
    """Collects the places of questions that tensors without numbers cannot answer."""
    original = fake_tensor.DataDependentOutputException.__init__

    def noted(self: Any, *args: Any) -> None:
        asked.append(user_place())
        original(self, *args)

    return patch.object(fake_tensor.DataDependentOutputException, "__init__", noted)


@contextmanager
def other_autocasts() -> Iterator[list[str]]:
    """Collects a line for every region of another device that is entered inside."""
    found: list[str] = []
    kind = autocast_mode.autocast
    make, enter = kind.__init__, kind.__enter__

    def made(
        self: Any,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        *rest: Any,
        **more: Any,
    ) -> None:
        make(self, device_type, dtype, enabled, *rest, **more)
        setattr(self, ASKED, enabled)

    def entered(self: Any) -> Any:
        asked = getattr(self, ASKED, self._enabled or None)
        if self.device != HOST and asked is not False:
            known = "" if asked else ", if it is enabled,"
            found.append(
                f"torch.autocast({self.device!r}){user_place()}{known} does nothing to a step that "
                "is captured on a CPU, wherever it runs; use torch.autocast('cpu'), whose casts "
                "are kept, or capture with dtype='bfloat16'"
            )
        return enter(self)

    with ExitStack() as stack:
        stack.enter_context(patch.object(kind, "__init__", made))
        stack.enter_context(patch.object(kind, "__enter__", entered))
        yield found


@contextmanager
def module_paths(root: nn.Module) -> Iterator[None]:
    """Within it every node that is traced carries the names of the modules that were called.

    Torch hands them on to the backward nodes of the same operation. A module of several names has
    the first.

    Args:
        root: Names are relative to it; it is not named itself.
    """
    names = {id(module): name for name, module in root.named_modules() if name}
    original = read_private(nn.Module, MODULE_CALL, "torch")

    def call(self: nn.Module, *args: object, **options: object) -> Any:
        name = names.get(id(self))
        if name is None:
            return original(self, *args, **options)
        outer = traceback.current_meta.get(STACK)
        traceback.current_meta[STACK] = {**(outer or {}), name: (name, type(self))}
        try:
            return original(self, *args, **options)
        finally:
            traceback.current_meta.pop(STACK)
            if outer is not None:
                traceback.current_meta[STACK] = outer

    patched = patch_private(nn.Module, MODULE_CALL, call, "torch")
    with traceback.preserve_node_meta(), patched:
        yield


@contextmanager
def recurrent_layers(*, training: bool) -> Iterator[None]:
    """Within it recurrent layers are decomposed faithfully.

    Args:
        training: There will be a backward pass.
    """
    enabled = torch.backends.mkldnn.enabled and not training
    with (
        patch.object(decompositions, "_rnn_helper", _layers),
        torch.backends.mkldnn.flags(enabled=enabled),
    ):
        yield


def _layers(
    input: torch.Tensor,
    hidden: object,
    params: object,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    layer_fn: LayerFunction,
) -> tuple[torch.Tensor, list[Any]]:
    """Layers one after the other, with dropout between them; the signature is torch's."""
    x = input.transpose(0, 1) if batch_first else input
    finals: list[Any] = []
    for i in range(num_layers):
        own, state, other, other_state = decompositions.params_hiddens(
            params, hidden, i, bidirectional
        )
        outputs = [layer_fn(x, state, own, has_biases)]
        if bidirectional:
            outputs.append(layer_fn(x, other_state, other, has_biases, reverse=True))
        finals += [final for _, final in outputs]
        x = torch.cat([y for y, _ in outputs], -1) if bidirectional else outputs[0][0]
        if train and dropout and i < num_layers - 1:
            x = torch.dropout(x, dropout, train=True)
    return (x.transpose(0, 1) if batch_first else x), finals
