"""What a plan takes as a batch: the leaves of the example inputs, found again by their paths.

A batch has the example's leaves at the same paths, in any order of names; where a loader makes
lists of tuples they are taken as such. Tensors have the example's element types, and what is no
tensor is equal to what stood there. Anything else is refused: a model called with it would compute
what was not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gnnplace.errors import InputError
from gnnplace.plans.segments.chains import as_type


@dataclass(frozen=True)
class BatchLeaf:
    """A leaf of the example inputs.

    Attributes:
        cut: whether its first dimension is examples.
        shape: of a tensor, without the examples.
        dtype: element type of a tensor as the model gets it; None: no tensor.
        constant: what is no tensor.
    """

    cut: bool
    shape: torch.Size
    dtype: torch.dtype | None
    constant: Any = None

    @classmethod
    def of(cls, leaf: Any, examples: int, precision: str) -> BatchLeaf:
        """What a leaf of inputs of so many examples says."""
        if not isinstance(leaf, torch.Tensor):
            return cls(False, torch.Size(), None, leaf)
        cut = leaf.shape[:1] == (examples,)
        return cls(cut, leaf.shape[cut:], as_type(leaf, precision).dtype)


@dataclass(frozen=True)
class BatchForm:
    """The leaves of a batch by path, in the example's order, and the precision of a plan."""

    leaves: Mapping[str, BatchLeaf]
    precision: str

    @classmethod
    def of(cls, inputs: Any, examples: int, precision: str) -> BatchForm:
        """The form of inputs by position or by name, of so many examples."""
        found = _by_path(inputs).items()
        return cls({p: BatchLeaf.of(x, examples, precision) for p, x in found}, precision)

    def tensors(self, batch: Any) -> list[torch.Tensor]:
        """The tensors of a batch in the example's order, in the types that the model gets.

        Raises:
            InputError: a leaf is missing, new, of another type, or another value; names its path.
        """
        found = _by_path(self.arguments(batch))
        missing, new = self.leaves.keys() - found.keys(), found.keys() - self.leaves.keys()
        if missing or new:
            odd = min(missing or new)
            has = "has no input" if missing else "has an input that the plan was not applied to:"
            raise InputError(f"batch: it {has} {odd}; give what the plan was applied to")
        return [as_type(x, self.precision) for p in self.leaves if self._tensor(p, x := found[p])]

    def _tensor(self, path: str, leaf: Any) -> bool:
        known = self.leaves[path]
        dtype = getattr(as_type(leaf, self.precision), "dtype", None)
        if dtype != known.dtype:
            what = known.dtype or repr(known.constant)
            raise InputError(f"batch: input {path} is {dtype or repr(leaf)}; the plan was applied "
                             f"to {what}")  # fmt: skip
        if dtype is None and leaf != known.constant:
            raise InputError(
                f"batch: {leaf!r} stands at {path}, where the plan was applied to "
                f"{known.constant!r}; apply it anew"
            )
        return dtype is not None

    def arguments(self, batch: Any) -> Any:
        """A batch as positional or named arguments."""
        if isinstance(batch, Mapping):
            return dict(batch)
        several = isinstance(batch, tuple | list) and _by_path(tuple(batch)).keys()
        return tuple(batch) if several == self.leaves.keys() else whole_arguments(batch)

    def examples(self, tensors: Sequence[torch.Tensor]) -> int:
        """Examples of a batch.

        Raises:
            InputError: its inputs have different numbers of them.
        """
        own = [leaf for leaf in self.leaves.values() if leaf.dtype is not None]
        sizes = {x.shape[:1] for x, leaf in zip(tensors, own, strict=True) if leaf.cut}
        if len(sizes) != 1 or () in sizes:
            raise InputError("batch: its inputs have different numbers of examples")
        return int(sizes.pop()[0])

    def refuse_lengths(self, tensors: Sequence[torch.Tensor]) -> None:
        """Refuses inputs of other lengths than those that the calls were recorded on."""
        own = {path: leaf for path, leaf in self.leaves.items() if leaf.dtype is not None}
        for tensor, (path, leaf) in zip(tensors, own.items(), strict=True):
            if tensor.shape[leaf.cut :] != leaf.shape:
                raise InputError(
                    f"step: input {path} has shape {[*tensor.shape]}, and the plan was applied to "
                    f"{['examples'] * leaf.cut + [*leaf.shape]}; apply it with inputs of this shape"
                )

    def cut(self, tensors: Sequence[torch.Tensor], count: int) -> list[tuple[torch.Tensor, ...]]:
        """Tensors of each of so many micro-batches."""
        own = [leaf for leaf in self.leaves.values() if leaf.dtype is not None]
        parts = [
            tensor.chunk(count) if leaf.cut else (tensor,) * count
            for tensor, leaf in zip(tensors, own, strict=True)
        ]
        return [tuple(part[m] for part in parts) for m in range(count)]

    def share(self, batch: Any, size: int, number: int, most: int) -> Any:
        """Examples `number * size` to `(number + 1) * size` of a batch, or what there is of them.

        Raises:
            InputError: as `tensors`, or more examples than `most`.
        """
        given = self.arguments(batch)
        if (count := self.examples(self.tensors(given))) > most:
            raise InputError(f"share: {count} examples; the plan's batch is {most}")

        def part(path: tuple[Any, ...], leaf: Any) -> Any:
            cut = self.leaves[pytree.keystr(path)].cut
            return leaf[number * size : (number + 1) * size] if cut else leaf

        return pytree.tree_map_with_path(part, given)


def whole_arguments(inputs: Any) -> Any:
    """Inputs as positional or named arguments: one that is neither is the first."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    return inputs if isinstance(inputs, tuple) else (inputs,)


def _by_path(inputs: Any) -> dict[str, Any]:
    return {pytree.keystr(p): leaf for p, leaf in pytree.tree_flatten_with_path(inputs)[0]}
