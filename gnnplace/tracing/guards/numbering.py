"""`Numbering`: a number for every value of a run, the same for the same computation.

A storage has one number: the hash of the op of ATen that wrote it, of the op's constants and of the
numbers that it read (value numbering: Kildall, 1973, over a trace, not a program text). A view of
it is read with its geometry beside, a write in place renews the number, a copy keeps it. So a run
of a user's step and a run of what was recorded of it have equal numbers where, and only where, they
make the same values by the same ops, whatever Python did on the way: hooks, autocast, checkpoints.
It works on tensors without numbers. O(ops); a hash may collide (2^-61).

Deviations from what ops say of themselves (torch 2.13): a batch norm's schema hides its writes; a
fill does not read what it writes; autograd takes a gradient as it is or copies it, by counts of
references, so that a copy in place keeps the number of what it copies; the tag of random ops stands
also at attention without dropout and in eval mode.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache
from typing import Any
from unittest.mock import patch

import torch

from gnnplace.torch_names import DisableTorchDispatch, FakeTensor, FakeTensorMode, pytree
from gnnplace.tracing.fakes import BareMode
from gnnplace.tracing.guards.failures import user_place

COPIES = ("clone", "lift_fresh", "detach", "alias")
FILLS = ("copy_", "zero_", "fill_", "bernoulli_", "uniform_", "normal_", "exponential_", "random_")
SMALL = 1 << 16
"""Elements up to which a tensor that no op made is known by its bytes, not by its address."""
CHANCES = ("dropout_p", "dropout", "p")
MODES = ("train", "training")
"""Arguments with which an op that may draw does not: where they are 0 or False."""
TORCH = ("aten", "prim", "prims", "mkldnn", "quantized", "torchvision", "_c10d_functional", "c10d",
         "gnnplace")  # fmt: skip
TWINS = ("mkldnn_rnn_layer_backward",)
"""Ops of which two results are one tensor, which the cache of fake tensors forgets (torch 2.13)."""
PLAIN = (bool, int, float, type(None), str)
DEVICE, INDEX = torch.ops.prim.device.default, torch.ops.aten.index.Tensor
ASKS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
UNLIKE = "no two steps would be alike; leave it out"
Cell = list[Any]
"""Number and geometry of a storage, as the tensor has it that wrote the whole of it."""


def draws(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of an op draws random numbers, or may: of custom ops nobody knows."""
    said = _signature(func)
    if not said.seeded:
        return said.foreign
    arguments = func._schema.arguments
    given = {a.name: a.default_value for a in arguments}
    given |= dict(zip((a.name for a in arguments), args, strict=False)) | kwargs
    return all(given.get(k, 1) for k in CHANCES) and all(given.get(k) is not False for k in MODES)


def storage_of(tensor: torch.Tensor) -> int:
    """What tensors that share memory have in common."""
    strided = tensor.layout == torch.strided
    return tensor.untyped_storage()._cdata if strided else id(tensor)


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Tensors among arguments or results, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if type(tree) in (tuple, list):
        return [t for x in tree if not isinstance(x, PLAIN) for t in tensors_in(x)]
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


class _Signature:
    """What the schema of an op says."""

    def __init__(self, func: Any) -> None:
        arguments = func._schema.arguments
        self.written = tuple(i for i, a in enumerate(arguments) if a.is_write)
        self.shares = any(r.alias_info is not None for r in func._schema.returns)
        self.name = func._schema.name.removesuffix("_")
        self.plain = func._schema.name.split("::")[1]
        self.seeded = (
            torch.Tag.nondeterministic_seeded in func.tags and "choice" not in func.__name__
        )
        self.inquires = func.namespace == "prim"
        self.foreign = func.namespace not in TORCH
        self.asks = bool(ASKS.intersection(func.tags))
        self.norm = "batch_norm" in self.plain and "backward" not in self.plain
        masks = (i for i, a in enumerate(arguments) if str(a.type) == "List[bool]")
        self.mask = next(masks, None)
        """Which argument of a backward op says what it is to make; a result is the same without."""


@cache
def _signature(func: object) -> _Signature:
    return _Signature(func)


class Numbering(BareMode):
    """Within it every value gets a number.

    Args:
        names: what stands for tensors that are there before, by `storage_of`.
        inputs: which of these names are inputs.
        places: called for every op, returns where the user's code is; None: nobody asks.
        mode: makes tensors without numbers: what an op would write is one, as torch (2.13) writes
            real ones else, where all that it reads has numbers.

    Attributes:
        label: of the calls that run now, for `random`.
        random: label of every draw, in order.
        seen: all numbers.
        where: place, op and numbers read, by the number that was made.
        batch: numbers that depend on an input.
        moments: numbers that batch norms wrote.
        fixed: numbers that no input, parameter, buffer or draw comes into.
        faults: what no recording can repeat, in words.
        asked: place and op of what asked first for numbers that are others in every step.
    """

    def __init__(
        self,
        names: dict[int, Hashable],
        inputs: frozenset[Hashable] = frozenset(),
        places: Callable[[], str] | None = None,
        mode: FakeTensorMode | None = None,
    ) -> None:
        super().__init__()
        self.names, self.inputs, self.places, self.mode = names, inputs, places, mode
        self.label: int | None = None
        self.random: list[int | None] = []
        self.seen: set[int] = set()
        self.where: dict[int, tuple[str, str, list[int]]] = {}
        self.batch: set[int] = set()
        self.moments: set[int] = set()
        self.fixed: set[int] = set()
        self.faults: dict[str, str] = {}
        self.asked: tuple[str, str] = ("", "")
        self._cells: dict[int, Cell] = {}
        self._alive: list[torch.Tensor] = []  # so that no address is used twice
        self._drawn = False

    def carry(self, other: Numbering) -> None:
        """Takes over what an earlier run has left and every run would make alike: cached masks."""
        self._alive.extend(other._alive)
        kept = {
            k: c for k, c in other._cells.items() if c[0] in other.fixed and k not in self.names
        }
        self._cells.update((key, list(cell)) for key, cell in kept.items())
        self.seen.update(cell[0] for cell in kept.values())
        self.fixed.update(cell[0] for cell in kept.values())

    def number(self, tensor: torch.Tensor) -> int:
        """The number of what a tensor holds now."""
        (number, whole), geometry = self._cell(tensor)
        return int(number) if whole == geometry else hash((number, geometry))

    def _cell(self, tensor: torch.Tensor) -> tuple[Cell, Any]:
        """The storage's number, and the tensor's own geometry."""
        key, geometry = storage_of(tensor), _geometry(tensor)
        if key not in self._cells:
            self._alive.append(tensor)
            name = self.names.get(key)
            number = hash((self._content(tensor, key) if name is None else name, geometry[0]))
            self._cells[key] = [number, geometry]
            self.seen.add(number)
            if name is None:
                self.fixed.add(number)
            elif name in self.inputs:
                self.batch.add(number)
        return self._cells[key], geometry

    def _content(self, tensor: torch.Tensor, key: int) -> Hashable:
        """Of a tensor that no op made: its bytes, or its address."""
        plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
        if isinstance(tensor, FakeTensor) or not plain or not 0 < tensor.numel() <= SMALL:
            return key
        with DisableTorchDispatch():  # type: ignore[no-untyped-call]
            flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
            return bytes(flat.view(torch.uint8).numpy())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # what is asked for two times an op
        said, kwargs = _signature(func), kwargs or {}
        if said.inquires:
            return func(*args, **kwargs)
        self._drawn = False
        read: list[int] = []
        given = (None, *args[1:]) if said.plain in FILLS else args
        mask = None if said.mask is None or len(args) <= said.mask else args[said.mask]
        if mask is not None:
            given = tuple(None if x is mask else x for x in given)
        rest = tuple((k, self._hashed(v, read)) for k, v in kwargs.items() if k != "out")
        number = hash((said.name, self._hashed(given, read), rest))
        self._judge(said.plain, func, args, kwargs)
        asks = said.asks and not self.fixed.issuperset(read)
        masks = (torch.bool, torch.uint8)
        whole = func is INDEX and not any(x is not None and x.dtype in masks for x in args[1])
        if asks and not self.asked[1] and not whole:
            self.asked = user_place(), said.plain
        place = (self.places() if self.places else "", said.plain)
        targets = self._targets(said, args, kwargs)
        if said.plain in TWINS and self.mode is not None:
            with patch.object(self.mode, "cache_enabled", False):
                result = func(*args, **kwargs)
        elif targets and self.mode is not None:
            result = func(*self._fake(args), **self._fake(kwargs))
        else:
            result = func(*args, **kwargs)
        made = tensors_in(result)
        first = next(iter(tensors_in(args) or tensors_in(kwargs)), None)
        if first is not None and _copies(said.plain, args, made, first):
            number = self.number(args[1] if said.plain == "copy_" else first)
        self._write(said, number, targets, (*place, read))
        ranks = range(len(made)) if mask is None else [i for i, wanted in enumerate(mask) if wanted]
        self._make(said, number, zip(ranks, made, strict=True), first, (*place, read))
        return result

    def made_by(
        self, key: Hashable, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor]
    ) -> int:
        """Says that tensors are made of others by what a key stands for; returns the number."""
        read: list[int] = []
        number = hash((key, self._hashed(given, read)))
        self._drawn = True  # or may have: it is not looked into
        for i, tensor in enumerate(made):
            self._alive.append(tensor)
            cell = self._cells[storage_of(tensor)] = [hash((number, i)), _geometry(tensor)]
            self._note(cell[0], ("", str(key), read))
        return number

    def _hashed(self, value: object, read: list[int]) -> Hashable:
        """What stands for an argument; numbers of tensors are noted in `read`."""
        if isinstance(value, torch.Tensor):
            number = self.number(value)
            if number not in self.seen:  # a view
                self._note(number, ("", "", [self._cell(value)[0][0]]))
            read.append(number)
            return number
        if isinstance(value, list | tuple):
            return tuple(self._hashed(x, read) for x in value)
        plain = isinstance(value, bool | int | float | complex)  # 1 == 1.0 == True hash alike
        return (type(value), value) if plain else str(value)

    def _judge(self, op: str, func: Any, args: Any, kwargs: Any) -> None:
        """Notes draws, and what no recording can repeat."""
        self._drawn = draws(func, args, kwargs)
        if self._drawn:
            self.random.append(self.label)
            if kwargs.get("generator") is not None:
                self.faults["generator"] = f"{op} draws from a generator of its own: {UNLIKE}"

    def _fake(self, arguments: object) -> Any:
        """Arguments without numbers."""
        mode = self.mode
        assert mode is not None

        def fake(x: Any) -> Any:
            real = isinstance(x, torch.Tensor) and not isinstance(x, FakeTensor)
            return mode.from_tensor(x) if real else x

        return pytree.tree_map(fake, arguments)

    def _targets(self, said: _Signature, args: Any, kwargs: Any) -> list[torch.Tensor]:
        """Tensors that an op writes."""
        written = said.written
        if said.norm and not written:
            running = [i for i in (3, 4) if isinstance(args[i], torch.Tensor)]
            written = tuple(running) if args[5] else ()
        return tensors_in([args[i] for i in written if i < len(args)] + [kwargs.get("out")])

    def _write(self, said: _Signature, number: int, targets: Any, origin: Any) -> None:
        for i, tensor in enumerate(targets):
            cell, geometry = self._cell(tensor)
            whole = cell[1] == geometry
            before = [] if whole else [cell[0]]
            plain = whole and i == 0 and not said.norm
            cell[0] = number if plain else hash((number, i, () if whole else (geometry, *before)))
            self._note(cell[0], (*origin[:2], [*origin[2], *before]))
            if said.norm:
                self.moments.add(cell[0])

    def _make(self, said: _Signature, number: int, made: Any, first: Any, origin: Any) -> None:
        for i, tensor in made:
            key = storage_of(tensor)
            self._alive.append(tensor)
            if key in self._cells and (said.shares or said.plain == "_unsafe_view"):
                continue
            if said.shares and first is not None:  # a stand-in of a real tensor's memory
                self._cells[key] = self._cell(first)[0]
                continue
            self._cells[key] = [number if i == 0 else hash((number, i)), _geometry(tensor)]
            self._note(self._cells[key][0], origin)

    def _note(self, number: int, origin: tuple[str, str, list[int]]) -> None:
        self.seen.add(number)
        self.where.setdefault(number, origin)
        if not self.batch.isdisjoint(origin[2]):
            self.batch.add(number)
        if self.fixed.issuperset(origin[2]) and not self._drawn:
            self.fixed.add(number)

    def origins(self, numbers: list[int], known: set[int]) -> Iterator[tuple[str, str]]:
        """Places and ops of the first numbers that are unknown elsewhere, whose operands are known.

        Args:
            numbers: where to begin, of this run.
            known: numbers of another run.
        """
        pending, passed = list(numbers), set(numbers)
        while pending:
            place, op, read = self.where.get(pending.pop(), ("", "", []))
            later = [r for r in read if r not in known and r not in passed]
            if op and not [r for r in read if r not in known]:
                yield place, op
            passed.update(later)
            pending += later


def _geometry(tensor: torch.Tensor) -> Any:
    if tensor.layout != torch.strided:
        return tuple(tensor.shape), tensor.dtype
    where = (tensor.stride(), tensor.storage_offset(), tensor.is_conj(), tensor.is_neg())
    return tuple(tensor.shape), tensor.dtype, *where


def _copies(op: str, args: Any, made: list[torch.Tensor], first: torch.Tensor) -> bool:
    """Whether an op makes what it reads once more."""
    if op == "copy_":
        return bool(args[0].dtype == args[1].dtype and args[0].shape == args[1].shape)
    return op in COPIES or (op == "_to_copy" and made[0].dtype == first.dtype)
