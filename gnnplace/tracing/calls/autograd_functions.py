"""Records a user's autograd functions as one call each, and tries whether they may be split.

Recording. Torch's function modes do not see `torch.autograd.Function.apply`. Within
`user_functions` they see it as one call of the user's forward and backward pass. For this the
`apply` of the base class is replaced, which also reaches an `apply` that the user bound before
(`gelu = Gelu.apply`). Since torch 2.14 such a bound `apply` is implemented in C and cannot be
replaced. So a forward pass that did not come through a `UserFunction` is refused.

Splitting. No rule says how such a call may be split, so it is tried on random numbers. The results
of the shards, joined, must equal those of the unsplit call. So must the gradients; those of a
tensor that all shards read are added up. For shards of a batch there are two differences: a result
may also be the sum or the mean over shards, and gradients must be proportional to the gradients of
the results. A function that draws random numbers may not be split.

A trial is no proof, so it is repeated with the numbers of each of `DRAWS`. Calls with more than
`MOST_ELEMENTS` elements are tried at smaller sizes; sizes that are equal stay equal. Complexity:
O(elements) and a few runs of the function.
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
from gnnplace.tracing.rounding import SCALES, find_coarsest_tolerance, relative_error
from gnnplace.tracing.tensors import DATA, find_tensors
from gnnplace.tracing.user_code import OUR_MODULES, user_place

MOST_ELEMENTS = 1 << 18
"""Elements of a call's tensors up to which it is tried at its own sizes."""
SMALL = 8
"""Smallest size that is made smaller for the trial of a large call."""
DRAWS = (torch.randn, lambda shape: 0.1 * torch.randn(shape), torch.rand)
"""Draws of a tensor by its shape, one for each trial. Functions may need small or positive ones."""
Tensors = list[torch.Tensor]
_ANNOUNCED: list[type] = []
"""Functions that a `UserFunction` has called and whose forward pass has not begun yet."""


@dataclass(frozen=True)
class UserFunction:
    """A user's autograd function as a function of tensors that has both passes.

    Attributes:
        of: The user's subclass of `torch.autograd.Function`.
    """

    of: type

    @property
    def __name__(self) -> str:
        return f"{self.of.__name__}.apply"

    def __call__(self, *args: object) -> object:
        """Return what `apply` of the user's class returns."""
        depth = len(_ANNOUNCED)
        _ANNOUNCED.append(self.of)
        try:
            return super(SingleLevelFunction, self.of).apply(*args)  # type: ignore[misc]
        finally:
            del _ANNOUNCED[depth:]


class Like(NamedTuple):
    """The shape and type of a tensor, which stand for it among recorded arguments."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class UserCall:
    """A call of a user's autograd function.

    Attributes:
        function: The function that is called.
        leaves: The call's arguments without their nesting, a `Like` in the place of every tensor.
        form: How the leaves are nested (a pytree's spec).
    """

    function: UserFunction
    leaves: tuple[Any, ...]
    form: Any

    @property
    def words(self) -> str:
        """Return the function's name for messages, as `attributes.custom_gradients` writes it."""
        return f"autograd function {self.function.of.__name__}"

    @classmethod
    def of(cls, function: UserFunction, args: object, like: type[Any]) -> UserCall:
        """Return the record of a call.

        Args:
            function: The function that is called.
            args: Its arguments, nested in any way.
            like: The type of the arguments that are tensors; it has `shape` and `dtype`.
        """
        leaves, form = pytree.tree_flatten(args)
        stand_ins = [
            Like(tuple(x.shape), x.dtype) if isinstance(x, like) else x for x in leaves
        ]
        return cls(function, tuple(stand_ins), form)

    @property
    def tensors(self) -> list[Like]:
        """Return the shapes and types of the call's tensors, in order."""
        return [x for x in self.leaves if isinstance(x, Like)]

    def on(self, tensors: Sequence[torch.Tensor]) -> Tensors:
        """Run the call on other tensors, and return the tensors among its results.

        Args:
            tensors: One for each of `self.tensors`.
        """
        remaining = iter(tensors)
        leaves = [next(remaining) if isinstance(x, Like) else x for x in self.leaves]
        return find_tensors(self.function(*pytree.tree_unflatten(leaves, self.form)))


@contextmanager
def user_functions() -> Iterator[list[UserCall]]:
    """Let torch's function modes see each call of a user's autograd function within.

    Yields:
        A list to which every call is added when it is made.

    Raises:
        CaptureError: If an argument is neither a tensor nor plain data: it may hide tensors.
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
                f"{call.words}{user_place()} is given a {opaque_types[0]}, which may hide tensors "
                "that a recorded call does not know: give it tensors and numbers"
            )
        calls.append(call)
        tensors = find_tensors(args)
        if not has_torch_function(tensors):
            return call.function(*args)
        return handle_torch_function(call.function, tensors, *args)

    with patch.object(APPLY_OWNER, "apply", classmethod(apply)), _refuse_bound_calls():
        yield calls


@contextmanager
def _refuse_bound_calls() -> Iterator[None]:
    """Refuse calls within that the replaced `apply` cannot see.

    These are calls of an `apply` that was bound before, as in `f = X.apply`, since torch 2.14. The
    forward pass of every user's function is replaced by one that checks how it was called.
    """
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
    """Yield all subclasses of a class, at any depth, that are not torch's or this package's."""
    subclasses: list[type] = base.__subclasses__()
    for function in subclasses:
        if not function.__module__.startswith(OUR_MODULES):
            yield function
        yield from _user_classes(function)


def _refuse_unannounced(
    function: type, forward: Callable[..., Any]
) -> Callable[..., Any]:
    """Return the forward pass, which raises a CaptureError unless a `UserFunction` called it.

    Args:
        function: The user's function.
        forward: Its forward pass.
    """

    @wraps(forward)  # torch reads its defaults
    def run(*args: object) -> object:
        # The innermost call is the last; a subclass may inherit the forward pass.
        caller: type | None = None
        for announced in reversed(_ANNOUNCED):
            if issubclass(announced, function):
                caller = announced
                break
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
        calls: Calls on the whole batch.
        shares: Calls on a share of it, in the same order.
        count: Number of shares.

    Returns:
        The reason; empty if no function does; None if the two lists are not of the same calls.
    """
    if len(calls) != len(shares):
        return None
    # Equal pairs of calls are tried once.
    for call, share in dict.fromkeys(zip(calls, shares, strict=True)):
        pairs = list(zip(call.tensors, share.tensors, strict=False))
        axes = tuple(_find_axis(full.shape, part.shape) for full, part in pairs)
        if call.function != share.function or len(share.tensors) != len(axes):
            return None
        # A tensor that is not cut must be the same in both.
        for axis, (full, part) in zip(axes, pairs, strict=True):
            if axis is None and full.shape != part.shape:
                return None
        if any(axis is not None for axis in axes) and not agrees_in_parts(
            call, axes, count, grows=True
        ):
            return f"{call.words} differs on shares of the batch, as tried on random numbers"
    return ""


def _find_axis(full: Sequence[int], part: Sequence[int]) -> int | None:
    """Return the only axis along which two shapes differ, or None if there is no such axis."""
    if len(full) != len(part):
        return None
    axes = [k for k, (a, b) in enumerate(zip(full, part, strict=True)) if a != b]
    if len(axes) == 1:
        return axes[0]
    return None


@cache
def agrees_in_parts(
    call: UserCall, axes: tuple[int | None, ...], parts: int, *, grows: bool = False
) -> bool:
    """Return whether both passes over shards give what the unsplit call gives, as tried.

    Args:
        call: The call to try.
        axes: For each of its tensors, the axis that is cut; None if every shard reads all of it.
        parts: Number of equal shards.
        grows: Whether shards are of a batch: results may be sums or means over shards, and
            gradients must be proportional to the gradients of the results.
    """
    if sum(torch.Size(x.shape).numel() for x in call.tensors) > MOST_ELEMENTS:
        call = _make_smaller(call, axes, parts)
    try:
        with (
            disable_current_modes(),
            torch.random.fork_rng(devices=[]),
            torch.enable_grad(),
        ):
            outcomes = [_agrees(call, axes, parts, grows, k) for k in range(len(DRAWS))]
            # A draw with results that are not finite decides nothing. Two draws must agree.
            return False not in outcomes and outcomes.count(True) > 1
    except Exception:  # the user's function may raise anything: it cannot be tried then
        return False


def _make_smaller(call: UserCall, axes: Sequence[int | None], parts: int) -> UserCall:
    """Return the call with smaller sizes, different ones for different sizes.

    Sizes of cut axes become multiples of `parts`. Sizes below `SMALL` stay as they are.

    Args:
        call: The call.
        axes: The axis of each tensor that is cut.
        parts: Number of shards.
    """
    cut_sizes: set[int] = set()
    sizes: set[int] = set()
    for tensor, axis in zip(call.tensors, axes, strict=True):
        sizes.update(size for size in tensor.shape if size >= SMALL)
        if axis is not None:
            cut_sizes.add(tensor.shape[axis])
    smaller: dict[int, int] = {}
    for k, size in enumerate(sorted(cut_sizes)):
        smaller[size] = 2 * parts * (SMALL + k)
    for k, size in enumerate(sorted(sizes - cut_sizes)):
        smaller[size] = SMALL + k
    leaves = []
    for leaf in call.leaves:
        if isinstance(leaf, Like):
            shape = tuple(smaller.get(size, size) for size in leaf.shape)
            leaves.append(leaf._replace(shape=shape))
        else:
            leaves.append(leaf)
    return replace(call, leaves=tuple(leaves))


def _agrees(
    call: UserCall, axes: Sequence[int | None], parts: int, grows: bool, draw: int
) -> bool | None:
    """Return whether shards and the unsplit call agree on one draw of numbers.

    Args:
        call: The call.
        axes: The axis of each tensor that is cut.
        parts: Number of shards.
        grows: As of `agrees_in_parts`.
        draw: Index among `DRAWS`.

    Returns:
        None if a result or a gradient is not finite, so that the draw decides nothing.
    """
    torch.manual_seed(draw)
    tensors = []
    for like in call.tensors:
        if like.dtype.is_floating_point:
            tensors.append(DRAWS[draw](like.shape))
        else:  # 0 and 1 are valid as indices and as truth values
            tensors.append(torch.randint(0, 2, like.shape).to(like.dtype))
    # The forward pass of the unsplit call and of every shard.
    random_state = torch.get_rng_state()
    shards = _split(tensors, axes, parts)
    full_results = call.on(tensors)
    by_shard = [call.on(shard) for shard in shards]
    if not torch.equal(random_state, torch.get_rng_state()):
        return False  # the function draws random numbers
    if any(len(results) != len(full_results) for results in by_shard):
        return False

    joined = _join_results(by_shard, full_results)
    if None in joined.axes and not grows:
        return False
    if not _is_finite(full_results):
        return None
    if not all(map(_is_equal, joined.tensors, full_results)):
        return False

    # The backward pass, from random gradients of the results.
    gradients = [
        torch.randn_like(r) if r.is_floating_point() else r for r in full_results
    ]
    expected = _compute_gradients(call, tensors, gradients)
    if not _is_finite(expected):
        return None
    shard_gradients = _split(
        joined.scale_gradients(gradients, parts), joined.axes, parts
    )
    gradients_by_shard = [
        _compute_gradients(call, shard, result_gradients)
        for shard, result_gradients in zip(shards, shard_gradients, strict=True)
    ]
    if not all(map(_is_equal, _join(gradients_by_shard, axes), expected)):
        return False
    return not grows or _is_linear(call, tensors, gradients, expected)


def _split(
    tensors: Sequence[torch.Tensor], axes: Sequence[int | None], parts: int
) -> list[Tensors]:
    """Return the tensors of every shard: equal chunks along an axis; without one, all of it."""
    shards: list[Tensors] = [[] for _ in range(parts)]
    for tensor, axis in zip(tensors, axes, strict=True):
        chunks = [tensor] * parts if axis is None else tensor.chunk(parts, axis)
        for shard, chunk in zip(shards, chunks, strict=True):
            shard.append(chunk)
    return shards


@dataclass(frozen=True)
class _JoinedResults:
    """The results of all shards, joined.

    Attributes:
        tensors: The results, to be compared with those of the unsplit call.
        axes: The axis along which each is concatenated; None if it is a sum or a mean over shards.
        is_mean: Whether each is the mean over shards.
    """

    tensors: Tensors
    axes: list[int | None]
    is_mean: list[bool]

    def scale_gradients(self, gradients: Sequence[torch.Tensor], parts: int) -> Tensors:
        """Return the gradients of the results of one shard: of a mean, 1/parts of the gradient."""
        pairs = zip(gradients, self.is_mean, strict=True)
        return [
            gradient / parts if is_mean else gradient for gradient, is_mean in pairs
        ]


def _join_results(by_shard: Sequence[Tensors], full: Tensors) -> _JoinedResults:
    """Join the results of shards.

    A result of a shard with a smaller shape is concatenated. One with the full shape is added up;
    if that is not the expected result, it is taken to be a mean.

    Args:
        by_shard: Results of every shard.
        full: Results of the unsplit call.
    """
    axes = [
        _find_axis(expected.shape, part.shape)
        for expected, part in zip(full, by_shard[0], strict=True)
    ]
    tensors: Tensors = []
    is_mean: list[bool] = []
    for tensor, axis, expected in zip(_join(by_shard, axes), axes, full, strict=True):
        needs_mean = axis is None and not _is_equal(tensor, expected)
        is_mean.append(needs_mean)
        tensors.append(tensor / len(by_shard) if needs_mean else tensor)
    return _JoinedResults(tensors=tensors, axes=axes, is_mean=is_mean)


def _is_finite(tensors: Tensors) -> bool:
    """Return whether all numbers are finite."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def _is_linear(
    call: UserCall, tensors: Tensors, gradients: Tensors, expected: Tensors
) -> bool:
    """Return whether gradients are proportional to those of the results, for each of `SCALES`.

    Args:
        call: The call.
        tensors: Its tensors.
        gradients: Gradients of its results.
        expected: Gradients of its tensors from these.
    """
    for scale in SCALES:
        scaled_inputs = [scale * gradient for gradient in gradients]
        scaled = _compute_gradients(call, tensors, scaled_inputs)
        unscaled = [gradient / scale for gradient in scaled]
        if not all(map(_is_equal, unscaled, expected)):
            return False
    return True


def _compute_gradients(
    call: UserCall, tensors: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
) -> Tensors:
    """Return the gradient of every tensor, zeros if there is none.

    Args:
        call: The call.
        tensors: Its tensors.
        gradients: Gradients of its results.
    """
    leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
    results = call.on([x.clone() for x in leaves])
    roots: Tensors = []
    root_gradients: Tensors = []
    for result, gradient in zip(results, gradients, strict=True):
        if result.requires_grad:
            roots.append(result)
            root_gradients.append(gradient)
    trained = [leaf for leaf in leaves if leaf.requires_grad]
    if not roots or not trained:
        return [torch.zeros_like(leaf) for leaf in leaves]
    computed = iter(
        torch.autograd.grad(roots, trained, root_gradients, allow_unused=True)
    )
    leaf_gradients: Tensors = []
    for leaf in leaves:
        leaf_gradient = next(computed) if leaf.requires_grad else None
        if leaf_gradient is None:
            leaf_gradient = torch.zeros_like(leaf)
        leaf_gradients.append(leaf_gradient)
    return leaf_gradients


def _join(by_shard: Sequence[Tensors], axes: Sequence[int | None]) -> Tensors:
    """Return the tensors of shards, concatenated along their axes, or added up without one."""
    joined: Tensors = []
    for shards, axis in zip(zip(*by_shard, strict=True), axes, strict=True):
        if axis is None:
            joined.append(sum(shards[1:], shards[0]))
        else:
            joined.append(torch.cat(shards, axis))
    return joined


def _is_equal(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether two tensors are equal; floating-point numbers may differ by rounding."""
    if not expected.is_floating_point():
        return torch.equal(actual, expected)
    return relative_error(actual, expected) <= find_coarsest_tolerance([expected.dtype])
