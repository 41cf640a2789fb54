"""Autograd functions of a user's own, as one call each: what they compute, and how they are cut.

`torch.autograd.Function.apply` is no function that modes of torch's functions see; within
`own_functions` it is one, whole, and is called as it stands: the user's forward and backward pass.
It is the base's that is replaced, for `apply` may be bound before (`gelu = Gelu.apply`).

What such a call does to parts of its tensors nobody says. It is tried on random numbers: results of
parts, side by side, must be those of the whole, and so must gradients, which add up for what all
parts read. A trial is no proof; it is made on other numbers, too. Where shares of a batch are
asked for, results may be sums or means over them, and gradients must also grow as what they are
made of. What draws random numbers fails. Tensors above `MOST_ELEMENTS` are tried at smaller sizes,
equal ones at an equal one. O(elements).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch.overrides import handle_torch_function, has_torch_function

from gnnplace.errors import CaptureError
from gnnplace.torch_names import SingleLevelFunction, disable_current_modes, pytree
from gnnplace.tracing.batch import SCALES, coarsest, relative_error
from gnnplace.tracing.guards import DATA, OURS, tensors_in, user_place

BASE = SingleLevelFunction
MOST_ELEMENTS = 1 << 18
SMALL = 8
"""Sizes from this one on are tried smaller where all are too many."""
DRAWS = (torch.randn, lambda shape: 0.1 * torch.randn(shape), torch.rand)
"""Of numbers that are tried, in single precision; functions may want small or positive ones."""
Tensors = list[torch.Tensor]


@dataclass(frozen=True)
class OwnFunction:
    """An autograd function of a user's as one function of tensors: its own passes, both."""

    of: type

    @property
    def __name__(self) -> str:
        return f"{self.of.__name__}.apply"

    def __call__(self, *args: Any) -> Any:
        """As the user calls it."""
        return super(BASE, self.of).apply(*args)  # type: ignore[misc]


class Like(NamedTuple):
    """What stands for a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class OwnCall:
    """A call of such a function.

    Attributes:
        function: The function.
        leaves: Its arguments, with a `Like` for every tensor.
        form: How they stand in it.
    """

    function: OwnFunction
    leaves: tuple[Any, ...]
    form: Any

    @property
    def words(self) -> str:
        """For people, as `attributes.own_gradients` has them."""
        return f"autograd function {self.function.of.__name__}"

    @classmethod
    def of(cls, function: OwnFunction, args: Any, like: type[Any]) -> OwnCall:
        """A call with its arguments; tensors are those of a type that has a shape and a dtype."""
        leaves, form = pytree.tree_flatten(args)
        stand = [Like(tuple(x.shape), x.dtype) if isinstance(x, like) else x for x in leaves]
        return cls(function, tuple(stand), form)

    @property
    def tensors(self) -> list[Like]:
        """What stands for tensors, in order."""
        return [x for x in self.leaves if isinstance(x, Like)]

    def on(self, tensors: Sequence[torch.Tensor]) -> Tensors:
        """The tensors that it makes of others."""
        rest = iter(tensors)
        leaves = [next(rest) if isinstance(x, Like) else x for x in self.leaves]
        return tensors_in(self.function(*pytree.tree_unflatten(leaves, self.form)))


@contextmanager
def own_functions() -> Iterator[list[OwnCall]]:
    """Within it modes of torch's functions see a user's autograd functions as one call each.

    Yields:
        their calls, as they are made.

    Raises:
        CaptureError: one is given what is no tensor and no plain data, where others may hide.
    """
    found: list[OwnCall] = []

    def apply(cls: type, *args: Any) -> Any:
        if cls.__module__.startswith(OURS):
            return OwnFunction(cls)(*args)
        call = OwnCall.of(OwnFunction(cls), args, torch.Tensor)
        odd = [type(x).__name__ for x in call.leaves if not isinstance(x, (Like, *DATA))]
        if odd:
            raise CaptureError(
                f"{call.words}{user_place()} is given a {odd[0]}, of which a recorded call knows "
                "nothing: give it tensors and numbers"
            )
        found.append(call)
        if not has_torch_function(tensors := tensors_in(args)):
            return call.function(*args)
        return handle_torch_function(call.function, tensors, *args)

    with patch.object(BASE, "apply", classmethod(apply)):
        yield found


def mixed_by(calls: Sequence[OwnCall], shares: Sequence[OwnCall], count: int) -> str | None:
    """What is off between own functions on a batch and on its shares, as `batch.numbers` says it.

    Args:
        calls: those of the whole batch.
        shares: those of a share, in the same order.
        count: how many shares there are.
    """
    if len(calls) != len(shares):
        return None
    for call, share in dict.fromkeys(zip(calls, shares, strict=True)):
        pairs = list(zip(call.tensors, share.tensors, strict=False))
        axes = tuple(_axis(a.shape, b.shape) for a, b in pairs)
        if call.function != share.function or len(share.tensors) != len(axes):
            return None
        if any(
            axis is None and a.shape != b.shape for axis, (a, b) in zip(axes, pairs, strict=True)
        ):
            return None
        if any(axis is not None for axis in axes) and not in_parts(call, axes, count, grows=True):
            return f"{call.words} is another one on shares of the batch, tried on random numbers"
    return ""


def _axis(whole: Sequence[int], part: Sequence[int]) -> int | None:
    """The one axis along which two shapes differ."""
    if len(whole) != len(part):
        return None
    odd = [k for k, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b]
    return odd[0] if len(odd) == 1 else None


@cache
def in_parts(
    call: OwnCall, axes: tuple[int | None, ...], parts: int, *, grows: bool = False
) -> bool:
    """Whether both passes over parts, side by side, are those over the whole; as tried.

    Args:
        call: what is tried.
        axes: of each of its tensors, the one that is cut; None: all parts read all of it.
        parts: how many equal ones.
        grows: gradients must grow as those do that they are made of.
    """
    if sum(torch.Size(x.shape).numel() for x in call.tensors) > MOST_ELEMENTS:
        call = _smaller(call, axes, parts)
    try:
        with disable_current_modes(), torch.random.fork_rng(devices=[]), torch.enable_grad():
            found = [_agrees(call, axes, parts, grows, k) for k in range(len(DRAWS))]
            return False not in found and found.count(True) > 1
    except Exception:  # whatever an unknown function raises: it cannot be tried
        return False


def _smaller(call: OwnCall, axes: Sequence[int | None], parts: int) -> OwnCall:
    """The call with smaller sizes, those of cut axes a multiple of the parts."""
    cut = {x.shape[k] for x, k in zip(call.tensors, axes, strict=True) if k is not None}
    sizes = sorted({n for x in call.tensors for n in x.shape if n >= SMALL} - cut)
    small = {n: 2 * parts * (SMALL + k) for k, n in enumerate(sorted(cut))}
    small |= {n: SMALL + k for k, n in enumerate(sizes)}
    leaves = [
        x._replace(shape=tuple(small.get(n, n) for n in x.shape)) if isinstance(x, Like) else x
        for x in call.leaves
    ]
    return replace(call, leaves=tuple(leaves))


def _agrees(
    call: OwnCall, axes: Sequence[int | None], parts: int, grows: bool, draw: int
) -> bool | None:
    """Whether parts and the whole agree on one draw of numbers; None: not all are finite."""
    torch.manual_seed(draw)
    drawn = [
        DRAWS[draw](x.shape) if x.dtype.is_floating_point
        else torch.randint(0, 2, x.shape).to(x.dtype) for x in call.tensors
    ]  # fmt: skip
    before = torch.get_rng_state()
    pieces = [
        [t] * parts if k is None else t.chunk(parts, k) for t, k in zip(drawn, axes, strict=True)
    ]
    whole = call.on(drawn)
    made = [call.on([x[k] for x in pieces]) for k in range(parts)]
    if not torch.equal(before, torch.get_rng_state()) or len({len(x) for x in (whole, *made)}) > 1:
        return False
    places = [_axis(a.shape, b.shape) for a, b in zip(whole, made[0], strict=True)]
    joined = _joined(made, places)
    means = [k is None and not _same(r, w) for r, k, w in zip(joined, places, whole, strict=True)]
    joined = [r / parts if mean else r for r, mean in zip(joined, means, strict=True)]
    if None in places and not grows:
        return False
    if not all(bool(x.isfinite().all()) for x in whole):
        return None
    if not all(map(_same, joined, whole)):
        return False
    given = [torch.randn_like(r) if r.is_floating_point() else r for r in whole]
    each = [g / parts if mean else g for g, mean in zip(given, means, strict=True)]
    shares = [
        [g] * parts if k is None else g.chunk(parts, k) for g, k in zip(each, places, strict=True)
    ]
    expected = _gradients(call, drawn, given)
    if not all(bool(x.isfinite().all()) for x in expected):
        return None
    found = [_gradients(call, [x[k] for x in pieces], [x[k] for x in shares]) for k in range(parts)]
    if not all(map(_same, _joined(found, axes), expected)):
        return False
    scaled = ([x / s for x in _gradients(call, drawn, [s * g for g in given])] for s in SCALES)
    return not grows or all(all(map(_same, other, expected)) for other in scaled)


def _gradients(
    call: OwnCall, tensors: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
) -> Tensors:
    """Of every tensor from those of the results; zeros where there is none."""
    leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
    results = call.on([x.clone() for x in leaves])
    pairs = [(r, g) for r, g in zip(results, given, strict=True) if r.requires_grad]
    wanted = [x for x in leaves if x.requires_grad]
    if not pairs or not wanted:
        return [torch.zeros_like(x) for x in leaves]
    roots, backward = zip(*pairs, strict=True)
    made = iter(torch.autograd.grad(roots, wanted, backward, allow_unused=True))
    found = [next(made) if x.requires_grad else None for x in leaves]
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]


def _joined(parts: Sequence[Tensors], axes: Sequence[int | None]) -> Tensors:
    """Tensors of parts side by side, or added up where they have no axis."""
    rows = zip(zip(*parts, strict=True), axes, strict=True)
    return [sum(row[1:], row[0]) if k is None else torch.cat(row, k) for row, k in rows]


def _same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    exact = not expected.is_floating_point()
    return (
        torch.equal(found, expected)
        if exact
        else (relative_error(found, expected) <= coarsest([expected.dtype]))
    )
