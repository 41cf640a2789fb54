"""Autograd functions that the user wrote, as one call each, and whether they may be split.

Modes of torch's functions do not see `torch.autograd.Function.apply`. Within `user_functions` they
see it as one call of the user's forward and backward pass. `apply` of the base class is replaced,
because the user may have bound that of the class before (`gelu = Gelu.apply`). Since torch 2.14
that is C's own and cannot be replaced: a forward pass that no call announced is refused.

No rule says how such a call may be split, so it is tried on random numbers: results of the parts,
side by side, must be those of the whole, and so must gradients, which add up for tensors that all
parts read. A trial is no proof; it is repeated on other numbers. For shares of a batch, results may
be sums or means over the shares, and gradients must also grow in proportion to those of the
results. A function that draws random numbers fails. Calls with more than `MOST_ELEMENTS` elements
are tried at smaller sizes, equal sizes at an equal one. O(elements).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, wraps
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.overrides import handle_torch_function, has_torch_function

from gnnplace.errors import CaptureError
from gnnplace.torch_names import (
    APPLY_OWNER,
    IS_APPLY_OF_C,
    SingleLevelFunction,
    disable_current_modes,
    pytree,
)
from gnnplace.tracing.rounding import SCALES, coarsest, relative_error
from gnnplace.tracing.tensors import DATA, find_tensors
from gnnplace.tracing.user_code import OUR_MODULES, user_place

MOST_ELEMENTS = 1 << 18
SMALL = 8
"""Sizes from this one on are tried smaller where all are too many."""
DRAWS = (torch.randn, lambda shape: 0.1 * torch.randn(shape), torch.rand)
"""Of numbers that are tried, in single precision; functions may want small or positive ones."""
Tensors = list[torch.Tensor]
_ANNOUNCED: list[type] = []
"""Functions that are called by `UserFunction`, and whose forward pass has not begun."""


@dataclass(frozen=True)
class UserFunction:
    """A user's autograd function as one function of tensors, with its forward and backward pass."""

    of: type

    @property
    def __name__(self) -> str:
        return f"{self.of.__name__}.apply"

    def __call__(self, *args: object) -> object:
        """Call it as the user does."""
        depth = len(_ANNOUNCED)
        _ANNOUNCED.append(self.of)
        try:
            return super(SingleLevelFunction, self.of).apply(*args)  # type: ignore[misc]
        finally:
            del _ANNOUNCED[depth:]


class Like(NamedTuple):
    """The shape and type of a tensor, in its place."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class UserCall:
    """A call of a user's autograd function.

    Attributes:
        function: The function.
        leaves: Its arguments, with a `Like` for every tensor.
        form: How the leaves are nested.
    """

    function: UserFunction
    leaves: tuple[Any, ...]
    form: Any

    @property
    def words(self) -> str:
        """Return its name for messages, as `attributes.custom_gradients` has it."""
        return f"autograd function {self.function.of.__name__}"

    @classmethod
    def of(cls, function: UserFunction, args: object, like: type[Any]) -> UserCall:
        """Return a call with its arguments.

        Args:
            function: The function that is called.
            args: Its arguments, nested in any way.
            like: Instances of this type, which has a shape and a dtype, are tensors.
        """
        leaves, form = pytree.tree_flatten(args)
        stand_ins = [
            Like(tuple(x.shape), x.dtype) if isinstance(x, like) else x for x in leaves
        ]
        return cls(function, tuple(stand_ins), form)

    @property
    def tensors(self) -> list[Like]:
        """Return what stands for tensors, in order."""
        return [x for x in self.leaves if isinstance(x, Like)]

    def on(self, tensors: Sequence[torch.Tensor]) -> Tensors:
        """Return the tensors that the call makes of these."""
        remaining = iter(tensors)
        leaves = [next(remaining) if isinstance(x, Like) else x for x in self.leaves]
        return find_tensors(self.function(*pytree.tree_unflatten(leaves, self.form)))


@contextmanager
def user_functions() -> Iterator[list[UserCall]]:
    """Show modes of torch's functions a user's autograd functions as one call each, within.

    Yields:
        their calls, as they are made.

    Raises:
        CaptureError: an argument is neither a tensor nor plain data, so tensors may hide in it.
    """
    calls: list[UserCall] = []

    def apply(cls: type, *args: object) -> object:
        if cls.__module__.startswith(OUR_MODULES):
            return UserFunction(cls)(*args)
        call = UserCall.of(UserFunction(cls), args, torch.Tensor)
        opaque_types = [
            type(x).__name__ for x in call.leaves if not isinstance(x, (Like, *DATA))
        ]
        if opaque_types:
            raise CaptureError(
                f"{call.words}{user_place()} is given a {opaque_types[0]}, of which a recorded "
                "call knows nothing: give it tensors and numbers"
            )
        calls.append(call)
        if not has_torch_function(tensors := find_tensors(args)):
            return call.function(*args)
        return handle_torch_function(call.function, tensors, *args)

    with patch.object(APPLY_OWNER, "apply", classmethod(apply)), _bound_calls_refused():
        yield calls


@contextmanager
def _bound_calls_refused() -> Iterator[None]:
    """Refuse calls within that a replaced `apply` does not see: `f = X.apply` since torch 2.14."""
    if not IS_APPLY_OF_C:
        yield
        return
    with ExitStack() as stack:
        for user_class in _user_classes(torch.autograd.Function):
            forward = vars(user_class).get("forward")
            if isinstance(forward, staticmethod):
                body: Callable[..., Any] = forward.__func__
                refusing = staticmethod(_refuse_unannounced(user_class, body))
                stack.enter_context(patch.object(user_class, "forward", refusing))
        yield


def _user_classes(base: type) -> Iterator[type]:
    """Yield all subclasses of a class that are neither torch's nor this package's."""
    subclasses: list[type] = base.__subclasses__()
    for function in subclasses:
        if not function.__module__.startswith(OUR_MODULES):
            yield function
        yield from _user_classes(function)


def _refuse_unannounced(
    function: type, forward: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a forward pass that raises a CaptureError unless a `UserFunction` was called."""

    @wraps(forward)  # torch reads its defaults
    def run(*args: object) -> object:
        caller = next(
            (one for one in reversed(_ANNOUNCED) if issubclass(one, function)), None
        )
        if caller is None:
            name = function.__name__
            raise CaptureError(
                f"autograd function {name}{user_place()} was bound before the capture, as in "
                f"f = {name}.apply, and torch {torch.__version__} does not show what such a call "
                f"does: call {name}.apply itself"
            )
        _ANNOUNCED.remove(caller)
        return forward(*args)

    return run


def find_mixing(
    calls: Sequence[UserCall], shares: Sequence[UserCall], count: int
) -> str | None:
    """Return why a user's function mixes the examples of a batch, as tried on random numbers.

    Args:
        calls: calls on the whole batch.
        shares: calls on a share, in the same order.
        count: number of shares.

    Returns:
        The reason; empty if no call does; None if the calls do not correspond.
    """
    if len(calls) != len(shares):
        return None
    for call, share in dict.fromkeys(zip(calls, shares, strict=True)):
        pairs = list(zip(call.tensors, share.tensors, strict=False))
        axes = tuple(_axis(a.shape, b.shape) for a, b in pairs)
        if call.function != share.function or len(share.tensors) != len(axes):
            return None
        # A tensor that is not cut must be the same in both.
        for axis, (full, part) in zip(axes, pairs, strict=True):
            if axis is None and full.shape != part.shape:
                return None
        if any(axis is not None for axis in axes) and not agrees_in_parts(
            call, axes, count, grows=True
        ):
            return f"{call.words} is another one on shares of the batch, tried on random numbers"
    return ""


def _axis(whole: Sequence[int], part: Sequence[int]) -> int | None:
    """Return the one axis along which two shapes differ; None if there is no such axis."""
    if len(whole) != len(part):
        return None
    axes = [k for k, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b]
    if len(axes) == 1:
        return axes[0]
    return None


@cache
def agrees_in_parts(
    call: UserCall, axes: tuple[int | None, ...], parts: int, *, grows: bool = False
) -> bool:
    """Return whether both passes over parts, side by side, equal those over the whole; as tried.

    Args:
        call: The call that is tried.
        axes: For each of its tensors, the axis that is cut; None if all parts read all of it.
        parts: Number of equal parts.
        grows: Whether gradients must grow in proportion to those of the results.
    """
    if sum(torch.Size(x.shape).numel() for x in call.tensors) > MOST_ELEMENTS:
        call = _smaller(call, axes, parts)
    try:
        with (
            disable_current_modes(),
            torch.random.fork_rng(devices=[]),
            torch.enable_grad(),
        ):
            outcomes = [_agrees(call, axes, parts, grows, k) for k in range(len(DRAWS))]
            # A draw whose numbers are not finite says nothing; two must say that parts agree.
            return False not in outcomes and outcomes.count(True) > 1
    except Exception:  # whatever an unknown function raises: it cannot be tried
        return False


def _smaller(call: UserCall, axes: Sequence[int | None], parts: int) -> UserCall:
    """Return the call with smaller sizes; those of cut axes are multiples of `parts`."""
    cut = {x.shape[k] for x, k in zip(call.tensors, axes, strict=True) if k is not None}
    sizes = sorted({n for x in call.tensors for n in x.shape if n >= SMALL} - cut)
    small = {n: 2 * parts * (SMALL + k) for k, n in enumerate(sorted(cut))}
    small |= {n: SMALL + k for k, n in enumerate(sizes)}
    leaves = [
        x._replace(shape=tuple(small.get(n, n) for n in x.shape))
        if isinstance(x, Like)
        else x
        for x in call.leaves
    ]
    return replace(call, leaves=tuple(leaves))


def _agrees(
    call: UserCall, axes: Sequence[int | None], parts: int, grows: bool, draw: int
) -> bool | None:
    """Return whether parts and the whole agree on one draw; None if a number is not finite."""
    torch.manual_seed(draw)
    tensors = [
        DRAWS[draw](tensor.shape)
        if tensor.dtype.is_floating_point
        else torch.randint(0, 2, tensor.shape).to(tensor.dtype)
        for tensor in call.tensors
    ]
    random_state = torch.get_rng_state()
    shards = _split(tensors, axes, parts)
    full_results = call.on(tensors)
    by_shard = [call.on(shard) for shard in shards]
    if not torch.equal(random_state, torch.get_rng_state()):
        return False  # it draws random numbers
    if any(len(results) != len(full_results) for results in by_shard):
        return False

    joined = _join_results(by_shard, full_results)
    if None in joined.axes and not grows:
        return False
    if not _is_finite(full_results):
        return None
    if not all(map(_same, joined.tensors, full_results)):
        return False

    # The backward pass, from random gradients of the results.
    gradients = [
        torch.randn_like(r) if r.is_floating_point() else r for r in full_results
    ]
    expected = _gradients(call, tensors, gradients)
    if not _is_finite(expected):
        return None
    shard_gradients = _split(
        joined.scale_gradients(gradients, parts), joined.axes, parts
    )
    gradients_by_shard = [
        _gradients(call, shard, of_shard)
        for shard, of_shard in zip(shards, shard_gradients, strict=True)
    ]
    if not all(map(_same, _joined(gradients_by_shard, axes), expected)):
        return False
    return not grows or _is_linear(call, tensors, gradients, expected)


def _split(
    tensors: Sequence[torch.Tensor], axes: Sequence[int | None], parts: int
) -> list[Tensors]:
    """Return the tensors of every part: chunks along their axes; without an axis, all of it."""
    chunks = [
        [tensor] * parts if axis is None else tensor.chunk(parts, axis)
        for tensor, axis in zip(tensors, axes, strict=True)
    ]
    return [[pieces[k] for pieces in chunks] for k in range(parts)]


@dataclass(frozen=True)
class _JoinedResults:
    """Results of all parts, put together.

    Attributes:
        tensors: The results, to be compared with those of the whole.
        axes: The axis of each along which parts are side by side; None: a sum or a mean.
        is_mean: Whether each is the mean over the parts.
    """

    tensors: Tensors
    axes: list[int | None]
    is_mean: list[bool]

    def scale_gradients(self, gradients: Sequence[torch.Tensor], parts: int) -> Tensors:
        """Return the gradients that parts get of results: of a mean, 1/parts of it."""
        pairs = zip(gradients, self.is_mean, strict=True)
        return [
            gradient / parts if is_mean else gradient for gradient, is_mean in pairs
        ]


def _join_results(by_shard: Sequence[Tensors], whole: Tensors) -> _JoinedResults:
    """Put results of parts side by side; a result without an axis is a sum, else a mean."""
    axes = [_axis(a.shape, b.shape) for a, b in zip(whole, by_shard[0], strict=True)]
    tensors: Tensors = []
    is_mean: list[bool] = []
    for tensor, axis, expected in zip(
        _joined(by_shard, axes), axes, whole, strict=True
    ):
        is_mean.append(axis is None and not _same(tensor, expected))
        tensors.append(tensor / len(by_shard) if is_mean[-1] else tensor)
    return _JoinedResults(tensors, axes, is_mean)


def _is_finite(tensors: Tensors) -> bool:
    """Return whether all numbers are finite."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def _is_linear(
    call: UserCall, tensors: Tensors, gradients: Tensors, expected: Tensors
) -> bool:
    """Return whether gradients grow in proportion to those of the results."""
    for scale in SCALES:
        scaled = _gradients(call, tensors, [scale * gradient for gradient in gradients])
        if not all(map(_same, [gradient / scale for gradient in scaled], expected)):
            return False
    return True


def _gradients(
    call: UserCall, tensors: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
) -> Tensors:
    """Return the gradient of every tensor from those of the results; zeros if there is none."""
    leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
    results = call.on([x.clone() for x in leaves])
    pairs = [(r, g) for r, g in zip(results, gradients, strict=True) if r.requires_grad]
    trained = [x for x in leaves if x.requires_grad]
    if not pairs or not trained:
        return [torch.zeros_like(x) for x in leaves]
    roots, backward = zip(*pairs, strict=True)
    computed = iter(torch.autograd.grad(roots, trained, backward, allow_unused=True))
    by_leaf = [next(computed) if x.requires_grad else None for x in leaves]
    return [
        torch.zeros_like(x) if g is None else g
        for x, g in zip(leaves, by_leaf, strict=True)
    ]


def _joined(parts: Sequence[Tensors], axes: Sequence[int | None]) -> Tensors:
    """Return tensors of parts side by side, or added up if they have no axis."""
    rows = zip(zip(*parts, strict=True), axes, strict=True)
    return [sum(row[1:], row[0]) if k is None else torch.cat(row, k) for row, k in rows]


def _same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether a tensor is the expected one; floating-point numbers within a tolerance."""
    if not expected.is_floating_point():
        return torch.equal(found, expected)
    return relative_error(found, expected) <= coarsest([expected.dtype])
