"""`Numbering`: a number for every value of a run, the same for the same computation.

A storage has one number: the hash of the ATen op that wrote it, of the op's constants, and of the
numbers of its operands (value numbering: Kildall, 1973, applied to a trace instead of a program
text). Reading a view includes its geometry, an in-place write changes the number, and a copy keeps
it. So a run of a user's step and a run of its recording have equal numbers exactly where they
compute the same values by the same ops, whatever Python did in between: hooks, autocast,
checkpoints. It works on tensors without numbers. O(ops); a hash may collide (2^-61).

Deviations from what ops say of themselves (torch 2.13): a batch norm's schema hides its writes; a
fill does not read what it writes; autograd takes a gradient as it is or copies it, by counts of
references, so that a copy in place keeps the number of what it copies; attention without dropout
and ops in eval mode have the tag of random ops, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch

from gnnplace.torch_names import (
    DisableTorchDispatch,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    pytree,
)
from gnnplace.tracing.fakes import BareMode
from gnnplace.tracing.signatures import Signature, get_signature, may_draw
from gnnplace.tracing.tensors import find_tensors, get_storage_key
from gnnplace.tracing.user_code import user_place

COPIES = ("clone", "lift_fresh", "detach", "alias")
FILLS = (
    "copy_",
    "zero_",
    "fill_",
    "bernoulli_",
    "uniform_",
    "normal_",
    "exponential_",
    "random_",
)
SMALL = 1 << 16
"""Elements up to which a tensor that no op made is known by its bytes, not by its address."""
TWINS = ("mkldnn_rnn_layer_backward",)
"""Ops of which two results are one tensor, which the cache of fake tensors forgets (torch 2.13)."""
DEVICE = torch.ops.prim.device.default
INDEX = torch.ops.aten.index.Tensor
UNLIKE = "no two steps would be alike; leave it out"
Cell = list[Any]
"""Number and geometry of a storage, as the tensor has it that wrote all of it."""
Origin = tuple[str, str, list[int]]
"""Place, op and numbers read, of a number."""


class Numbering(BareMode):
    """A mode in which every value gets a number.

    Args:
        names: names of tensors that exist before, by `get_storage_key`.
        inputs: Which of these names are inputs.
        places: called for every op, returns where the user's code is; None: places are empty.
        mode: makes tensors without numbers: what an op would write is one, as torch (2.13) writes
            real tensors else, if all that it reads has numbers.

    Attributes:
        label: label of the calls that run, for `random`.
        random: label of every draw, in order.
        seen: all numbers.
        where: place, op and numbers read, by the number that was made.
        batch: numbers that depend on an input.
        moments: numbers that batch norms wrote.
        fixed: numbers that depend on no input, parameter, buffer or draw.
        faults: what no recording can repeat, in words.
        asked: place and op of the first question for numbers that differ from step to step.
    """

    def __init__(
        self,
        names: dict[int, Hashable],
        inputs: frozenset[Hashable] = frozenset(),
        places: Callable[[], str] | None = None,
        mode: FakeTensorMode | None = None,
    ) -> None:
        super().__init__()
        self.names = names
        self.inputs = inputs
        self.places = places
        self.mode = mode
        self.label: int | None = None
        self.random: list[int | None] = []
        self.seen: set[int] = set()
        self.where: dict[int, Origin] = {}
        self.batch: set[int] = set()
        self.moments: set[int] = set()
        self.fixed: set[int] = set()
        self.faults: dict[str, str] = {}
        self.asked: tuple[str, str] = ("", "")
        self._cells: dict[int, Cell] = {}
        self._alive: list[torch.Tensor] = []  # so that no address is used twice
        self._drawn = False

    def carry(self, other: Numbering) -> None:
        """Take over what an earlier run has left and every run would make alike: cached masks."""
        self._alive.extend(other._alive)
        for key, cell in other._cells.items():
            if cell[0] in other.fixed and key not in self.names:
                self._cells[key] = list(cell)
                self.seen.add(cell[0])
                self.fixed.add(cell[0])

    def number(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor as it is at this moment."""
        (number, storage_geometry), geometry = self._cell(tensor)
        if storage_geometry == geometry:
            return int(number)
        return hash((number, geometry))

    def _cell(self, tensor: torch.Tensor) -> tuple[Cell, Hashable]:
        """Return the storage's number and geometry, and the tensor's own geometry."""
        key = get_storage_key(tensor)
        geometry = _geometry(tensor)
        if key not in self._cells:
            self._alive.append(tensor)
            name = self.names.get(key)
            if name is None:
                content = self._content(tensor, key)
            else:
                content = name
            number = hash((content, tuple(tensor.shape)))
            self._cells[key] = [number, geometry]
            self.seen.add(number)
            if name is None:
                self.fixed.add(number)
            elif name in self.inputs:
                self.batch.add(number)
        return self._cells[key], geometry

    def _content(self, tensor: torch.Tensor, key: int) -> Hashable:
        """Return the bytes of a tensor that no op made, or its address."""
        plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
        if (
            isinstance(tensor, FakeTensor)
            or not plain
            or not 0 < tensor.numel() <= SMALL
        ):
            return key
        with DisableTorchDispatch():  # type: ignore[no-untyped-call]
            flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
            return bytes(flat.view(torch.uint8).numpy())

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if func is DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # which is asked for twice an op
        kwargs = kwargs or {}
        signature = get_signature(func)
        if signature.inquires:
            return func(*args, **kwargs)

        # What the op reads, before it may change it.
        self._drawn = False
        read: list[int] = []
        number = self._op_number(signature, args, kwargs, read)
        self._judge(signature.plain, func, args, kwargs)
        self._note_question(func, signature, args, read)
        origin = (self.places() if self.places else "", signature.plain, read)
        targets = self._targets(signature, args, kwargs)

        result = self._run(func, signature, args, kwargs, bool(targets))

        # What it wrote and made.
        results = find_tensors(result)
        first = next(iter(find_tensors(args) or find_tensors(kwargs)), None)
        if first is not None and _copies(signature.plain, args, results, first):
            number = self.number(args[1] if signature.plain == "copy_" else first)
        self._write(signature, number, targets, origin)
        mask = signature.argument_mask(args)
        if mask is None:
            positions: Sequence[int] = range(len(results))
        else:
            positions = [i for i, is_made in enumerate(mask) if is_made]
        self._make(
            signature, number, zip(positions, results, strict=True), first, origin
        )
        return result

    def _op_number(
        self,
        signature: Signature,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        read: list[int],
    ) -> int:
        """Return the number of a call's results; the numbers that it reads are added to `read`.

        A result is the same whatever else the call makes, and a fill does not read its target.
        """
        if signature.plain in FILLS:
            operands = (None, *args[1:])
        else:
            operands = args
        position = signature.mask
        if position is not None and position < len(args):  # which results are made
            operands = (*operands[:position], None, *operands[position + 1 :])
        options: list[tuple[str, Any]] = []
        for key, value in kwargs.items():
            if key != "out":
                options.append((key, self._hash_argument(value, read)))
        return hash(
            (signature.name, self._hash_argument(operands, read), tuple(options))
        )

    def _note_question(
        self, func: object, signature: Signature, args: tuple[Any, ...], read: list[int]
    ) -> None:
        """Note the first op that asks for numbers which differ from step to step."""
        if self.asked[1] or not signature.asks or self.fixed.issuperset(read):
            return
        masks = (torch.bool, torch.uint8)
        if func is INDEX and not any(
            x is not None and x.dtype in masks for x in args[1]
        ):
            return  # an index by positions asks for none
        self.asked = user_place(), signature.plain

    def _run(
        self,
        func: OpOverload,
        signature: Signature,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        writes: bool,
    ) -> object:
        """Run the op, on fake tensors if it would write real ones."""
        if signature.plain in TWINS and self.mode is not None:
            with patch.object(self.mode, "cache_enabled", False):
                return func(*args, **kwargs)
        if writes and self.mode is not None:
            return func(*self._fake(args), **self._fake(kwargs))
        return func(*args, **kwargs)

    def number_made(
        self,
        key: Hashable,
        operands: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
    ) -> int:
        """Give tensors a number as made of others by what a key stands for, and return it."""
        read: list[int] = []
        number = hash((key, self._hash_argument(operands, read)))
        self._drawn = True  # or may have: it is not looked into
        for i, tensor in enumerate(results):
            self._alive.append(tensor)
            cell = self._cells[get_storage_key(tensor)] = [
                hash((number, i)),
                _geometry(tensor),
            ]
            self._note(cell[0], ("", str(key), read))
        return number

    def _hash_argument(self, value: object, read: list[int]) -> Hashable:
        """Return what stands for an argument; numbers of tensors are added to `read`."""
        if isinstance(value, torch.Tensor):
            number = self.number(value)
            if number not in self.seen:  # a view
                self._note(number, ("", "", [self._cell(value)[0][0]]))
            read.append(number)
            return number
        if isinstance(value, list | tuple):
            return tuple(self._hash_argument(x, read) for x in value)
        # The type is part of the key, because 1, 1.0 and True have the same hash.
        plain = isinstance(value, bool | int | float | complex)
        if plain:
            return (type(value), value)
        return str(value)

    def _judge(
        self, op: str, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Note draws, and what no recording can repeat."""
        self._drawn = may_draw(func, args, kwargs)
        if self._drawn:
            self.random.append(self.label)
            if kwargs.get("generator") is not None:
                self.faults["generator"] = (
                    f"{op} draws from a generator of its own: {UNLIKE}"
                )

    def _fake(self, arguments: object) -> Any:
        """Return arguments without numbers."""
        mode = self.mode
        assert mode is not None

        def fake(x: object) -> object:
            if isinstance(x, torch.Tensor) and not isinstance(x, FakeTensor):
                return mode.from_tensor(x)
            return x

        return pytree.tree_map(fake, arguments)

    def _targets(
        self, signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[torch.Tensor]:
        """Return the tensors that an op writes."""
        written = signature.written
        if signature.norm and not written:
            averages = [i for i in (3, 4) if isinstance(args[i], torch.Tensor)]
            written = tuple(averages) if args[5] else ()
        return find_tensors(
            [args[i] for i in written if i < len(args)] + [kwargs.get("out")]
        )

    def _write(
        self,
        signature: Signature,
        number: int,
        targets: list[torch.Tensor],
        origin: Origin,
    ) -> None:
        """Give new numbers to tensors that an op wrote; a part of a storage keeps the others'."""
        place, op, read = origin
        for i, tensor in enumerate(targets):
            cell, geometry = self._cell(tensor)
            is_entire = cell[1] == geometry
            old_numbers = [] if is_entire else [cell[0]]
            if is_entire and i == 0 and not signature.norm:
                cell[0] = number
            else:
                cell[0] = hash(
                    (number, i, () if is_entire else (geometry, *old_numbers))
                )
            self._note(cell[0], (place, op, [*read, *old_numbers]))
            if signature.norm:
                self.moments.add(cell[0])

    def _make(
        self,
        signature: Signature,
        number: int,
        results: Iterable[tuple[int, torch.Tensor]],
        first: torch.Tensor | None,
        origin: Origin,
    ) -> None:
        """Give numbers to results of an op, by their positions; a view has its base's number."""
        for i, tensor in results:
            key = get_storage_key(tensor)
            self._alive.append(tensor)
            if key in self._cells and (
                signature.shares or signature.plain == "_unsafe_view"
            ):
                continue
            # A stand-in has the memory of a real tensor.
            if signature.shares and first is not None:
                self._cells[key] = self._cell(first)[0]
                continue
            self._cells[key] = [
                number if i == 0 else hash((number, i)),
                _geometry(tensor),
            ]
            self._note(self._cells[key][0], origin)

    def _note(self, number: int, origin: Origin) -> None:
        """Note where a number comes from, and whether it depends on an input or on nothing."""
        self.seen.add(number)
        self.where.setdefault(number, origin)
        if not self.batch.isdisjoint(origin[2]):
            self.batch.add(number)
        if self.fixed.issuperset(origin[2]) and not self._drawn:
            self.fixed.add(number)

    def origins(
        self, numbers: list[int], other_numbers: set[int]
    ) -> Iterator[tuple[str, str]]:
        """Yield places and ops of the first numbers that another run lacks but for operands.

        Args:
            numbers: The numbers of this run to begin with.
            other_numbers: numbers of the other run.
        """
        pending = list(numbers)
        passed = set(numbers)
        while pending:
            place, op, read = self.where.get(pending.pop(), ("", "", []))
            later = [r for r in read if r not in other_numbers and r not in passed]
            if op and not [r for r in read if r not in other_numbers]:
                yield place, op
            passed.update(later)
            pending += later


def _geometry(tensor: torch.Tensor) -> Hashable:
    """Return what tells views of a storage apart."""
    if tensor.layout != torch.strided:
        return tuple(tensor.shape), tensor.dtype
    layout = (
        tensor.stride(),
        tensor.storage_offset(),
        tensor.is_conj(),
        tensor.is_neg(),
    )
    return tuple(tensor.shape), tensor.dtype, *layout


def _copies(
    op: str, args: tuple[Any, ...], results: list[torch.Tensor], first: torch.Tensor
) -> bool:
    """Return whether an op makes what it reads once more."""
    if op == "copy_":
        return bool(args[0].dtype == args[1].dtype and args[0].shape == args[1].shape)
    return op in COPIES or (op == "_to_copy" and results[0].dtype == first.dtype)
