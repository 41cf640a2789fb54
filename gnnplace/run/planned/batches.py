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

from gnnplace.errors import InputError
from gnnplace.plans.segments.chains import as_type
from gnnplace.torch_names import pytree
from gnnplace.tracing import BatchStructure, as_inputs, leaves_by_path, refuse_input_gradients


@dataclass(frozen=True)
class BatchLeaf:
    """A leaf of the example inputs.

    Attributes:
        cut: whether its first dimension is examples.
        shape: of a tensor, without the examples.
        dtype: element type of a tensor as the model gets it; None: no tensor.
    """

    cut: bool
    shape: torch.Size
    dtype: torch.dtype | None

    @classmethod
    def of(cls, leaf: Any, examples: int, precision: str) -> BatchLeaf:
        """What a leaf of inputs of so many examples says."""
        if not isinstance(leaf, torch.Tensor):
            return cls(False, torch.Size(), None)
        cut = leaf.shape[:1] == (examples,)
        return cls(cut, leaf.shape[cut:], as_type(leaf, precision).dtype)


@dataclass(frozen=True)
class BatchForm:
    """The leaves of a batch by path, in the example's order, and the precision of a plan."""

    leaves: Mapping[str, BatchLeaf]
    structure: BatchStructure
    precision: str

    @classmethod
    def of(cls, inputs: Any, examples: int, precision: str) -> BatchForm:
        """The form of inputs by position or by name, of so many examples."""
        inputs = as_inputs(inputs)
        found = leaves_by_path(inputs).items()
        leaves = {p: BatchLeaf.of(x, examples, precision) for p, x in found}
        return cls(leaves, BatchStructure.of(inputs), precision)

    def tensors(self, batch: Any, *, training: bool = False) -> list[torch.Tensor]:
        """The tensors of a batch in the example's order, in the types that the model gets.

        Args:
            batch: All of it, or a replica's share.
            training: Refuse inputs that ask for a gradient.

        Raises:
            InputError: a leaf is missing, new, or of another type; names its path.
            MismatchError: what is no tensor has another value; names its path.
        """
        tensors, given = [], self.structure.tensors(batch)
        if training:
            refuse_input_gradients(given)
        for path, tensor in given.items():
            known, tensor = self.leaves[path].dtype, as_type(tensor, self.precision)
            if tensor.dtype != known:
                raise InputError(f"batch: input {path} is {tensor.dtype}; the plan was applied to "
                                 f"{known}")  # fmt: skip
            tensors.append(tensor)
        return tensors

    def arguments(self, batch: Any) -> Any:
        """A batch as positional or named arguments."""
        return self.structure.inputs(batch)

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

    def joined(self, pieces: Sequence[Sequence[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
        """Tensors of all examples of some pieces of a batch, in order."""
        own = [leaf for leaf in self.leaves.values() if leaf.dtype is not None]
        columns = zip(*pieces, strict=True)
        return tuple(
            torch.cat(column) if leaf.cut else column[0]
            for leaf, column in zip(own, columns, strict=True)
        )

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
