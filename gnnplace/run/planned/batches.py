"""Batches of a plan: they must have the leaves of the example inputs, at the same paths.

Names may be in any order, and lists instead of tuples are accepted, since loaders make them.
Tensors must have the example's element types, and other leaves must be equal to the example's.
Anything else is refused, because the model would compute something that was not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gnnplace.errors import InputError
from gnnplace.plans import cast_input
from gnnplace.torch_names import pytree
from gnnplace.tracing import (
    BatchStructure,
    as_inputs,
    leaves_by_path,
    refuse_input_gradients,
)


@dataclass(frozen=True)
class BatchLeaf:
    """A leaf of the example inputs.

    Attributes:
        cut: whether its first dimension is examples.
        shape: The shape of a tensor, without the examples.
        dtype: element type of a tensor as the model gets it; None: no tensor.
    """

    cut: bool
    shape: torch.Size
    dtype: torch.dtype | None

    @classmethod
    def of(cls, leaf: object, examples: int, precision: str) -> BatchLeaf:
        """Describe a leaf of inputs that have so many examples."""
        if not isinstance(leaf, torch.Tensor):
            return cls(False, torch.Size(), None)
        cut = leaf.shape[:1] == (examples,)
        return cls(cut, leaf.shape[cut:], cast_input(leaf, precision).dtype)


@dataclass(frozen=True)
class BatchForm:
    """The leaves of a batch by path, in the example's order, and the precision of a plan."""

    leaves: Mapping[str, BatchLeaf]
    structure: BatchStructure
    precision: str

    @classmethod
    def of(cls, inputs: object, examples: int, precision: str) -> BatchForm:
        """Return the form of inputs, by position or by name, that have so many examples."""
        inputs = as_inputs(inputs)
        by_path = leaves_by_path(inputs).items()
        leaves = {p: BatchLeaf.of(x, examples, precision) for p, x in by_path}
        return cls(leaves, BatchStructure.of(inputs), precision)

    def tensors(self, batch: object, *, training: bool = False) -> list[torch.Tensor]:
        """Return the tensors of a batch in the example's order, in the types that the model gets.

        Args:
            batch: All of it, or a replica's share.
            training: Refuse inputs that ask for a gradient.

        Raises:
            InputError: a leaf is missing, new, or of another type; names its path.
            MismatchError: what is no tensor has another value; names its path.
        """
        by_path = self.structure.tensors(batch)
        if training:
            refuse_input_gradients(by_path)
        tensors = []
        for path, tensor in by_path.items():
            expected = self.leaves[path].dtype
            tensor = cast_input(tensor, self.precision)
            if tensor.dtype != expected:
                raise InputError(
                    f"batch: input {path} is {tensor.dtype}; the plan was applied to {expected}"
                )
            tensors.append(tensor)
        return tensors

    def arguments(self, batch: object) -> Any:
        """Return a batch as positional or named arguments."""
        return self.structure.inputs(batch)

    def _tensor_leaves(self) -> list[BatchLeaf]:
        """Return the leaves that are tensors, in the example's order."""
        return [leaf for leaf in self.leaves.values() if leaf.dtype is not None]

    def examples(self, tensors: Sequence[torch.Tensor]) -> int:
        """Return the number of examples of a batch.

        Raises:
            InputError: its inputs have different numbers of them.
        """
        leaves = self._tensor_leaves()
        sizes = {
            x.shape[:1] for x, leaf in zip(tensors, leaves, strict=True) if leaf.cut
        }
        if len(sizes) != 1 or () in sizes:
            raise InputError("batch: its inputs have different numbers of examples")
        return int(sizes.pop()[0])

    def refuse_lengths(self, tensors: Sequence[torch.Tensor]) -> None:
        """Refuse inputs of other lengths than those that the calls were recorded on."""
        leaves = {
            path: leaf for path, leaf in self.leaves.items() if leaf.dtype is not None
        }
        for tensor, (path, leaf) in zip(tensors, leaves.items(), strict=True):
            if tensor.shape[leaf.cut :] != leaf.shape:
                raise InputError(
                    f"step: input {path} has shape {[*tensor.shape]}, and the plan was applied to "
                    f"{['examples'] * leaf.cut + [*leaf.shape]}; apply it with inputs of this shape"
                )

    def cut(
        self, tensors: Sequence[torch.Tensor], count: int
    ) -> list[tuple[torch.Tensor, ...]]:
        """Cut tensors into micro-batches."""
        leaves = self._tensor_leaves()
        parts = [
            tensor.chunk(count) if leaf.cut else (tensor,) * count
            for tensor, leaf in zip(tensors, leaves, strict=True)
        ]
        return [tuple(part[m] for part in parts) for m in range(count)]

    def joined(
        self, pieces: Sequence[Sequence[torch.Tensor]]
    ) -> tuple[torch.Tensor, ...]:
        """Join pieces of a batch, in order."""
        leaves = self._tensor_leaves()
        columns = zip(*pieces, strict=True)
        return tuple(
            torch.cat(column) if leaf.cut else column[0]
            for leaf, column in zip(leaves, columns, strict=True)
        )

    def share(self, batch: object, size: int, number: int, most: int) -> Any:
        """Return examples `number * size` to `(number + 1) * size` of a batch, if it has them.

        Raises:
            InputError: as `tensors`, or more examples than `most`.
        """
        arguments = self.arguments(batch)
        if (count := self.examples(self.tensors(arguments))) > most:
            raise InputError(f"share: {count} examples; the plan's batch is {most}")

        def part(path: tuple[Any, ...], leaf: Any) -> Any:
            cut = self.leaves[pytree.keystr(path)].cut
            if cut:
                return leaf[number * size : (number + 1) * size]
            return leaf

        return pytree.tree_map_with_path(part, arguments)
