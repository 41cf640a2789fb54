"""New batches for a captured step: checked against what was captured, cut into micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gnnplace.errors import InputError
from gnnplace.tracing.program import Program
from gnnplace.tracing.step import Inputs


class Batches:
    """Copies batches into the inputs of a program.

    Args:
        program: Cut into M micro-batches, or not.
        example: The whole batch that was captured; a batch has its structure and shapes.
    """

    def __init__(self, program: Program, example: Inputs) -> None:
        self._program = program
        self._spec = pytree.tree_structure(_grouped(example))
        self._constants = [
            None if isinstance(leaf, torch.Tensor) else leaf
            for leaf in pytree.tree_leaves(_grouped(example))
        ]
        leaves = _tensors(example)
        keywords = isinstance(example, Mapping) and len(leaves) == len(example)
        self._sources = list(example) if keywords else [str(i) for i in range(len(leaves))]
        self._shapes = [tuple(tensor.shape) for tensor in leaves]
        self._batch = next((shape[0] for shape in self._shapes if shape), 0)

    def load(self, batch: Inputs, tensors: dict[str, torch.Tensor]) -> None:
        """Copies a batch.

        Args:
            batch: A batch with the example's structure and shapes.
            tensors: Input tensors of the program by value name; filled.

        Raises:
            InputError: another structure, shape, type, or another constant than was captured.
        """
        given = self._checked(batch)
        for name, entry in self._program.inputs.items():
            if entry.kind != "input":
                continue
            source, _, copy = entry.source.partition("#")
            tensor = given[source]
            target = tensors[name]
            if tensor.dtype != target.dtype and not (
                tensor.is_floating_point() and target.is_floating_point()
            ):
                raise InputError(
                    f"batch: input {source} is of {tensor.dtype}; {target.dtype} was captured"
                )
            target.copy_(self._share(tensor, int(copy or 0)))
        self._give(given, tensors)

    def _give(self, given: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
        """What every micro-batch reads of the whole batch, such as its number of words."""
        batch = self._program.batch
        if batch is None or batch.count == 1:
            return
        whole = [given[source] for source in self._sources]
        batch.check(whole)
        for name, value in batch.values(whole).items():
            tensors[name].copy_(value)

    def _checked(self, batch: Inputs) -> dict[str, torch.Tensor]:
        grouped = _grouped(batch)
        if pytree.tree_structure(grouped) != self._spec:
            raise InputError(
                f"batch: its structure is {pytree.tree_structure(grouped)}; {self._spec} was "
                "captured"
            )
        for leaf, constant in zip(pytree.tree_leaves(grouped), self._constants, strict=True):
            if constant is not None and leaf != constant:
                raise InputError(f"batch: {leaf!r} stands where {constant!r} was captured")
        tensors = _tensors(batch)
        for source, tensor, shape in zip(self._sources, tensors, self._shapes, strict=True):
            if tuple(tensor.shape) != shape:
                raise InputError(
                    f"batch: input {source} has shape {tuple(tensor.shape)}; {shape} was captured; "
                    "give equal batches, without a last, shorter one (drop_last=True)"
                )
        return dict(zip(self._sources, tensors, strict=True))

    def _share(self, tensor: torch.Tensor, copy: int) -> torch.Tensor:
        """Micro-batch `copy` of a tensor that has the batch first; all of any other."""
        if tensor.dim() == 0 or tensor.shape[0] != self._batch:
            return tensor
        size = self._batch // self._program.microbatches
        return tensor[copy * size : (copy + 1) * size]


def _grouped(inputs: Inputs) -> Any:
    if isinstance(inputs, torch.Tensor):
        return (inputs,)
    return dict(inputs) if isinstance(inputs, Mapping) else tuple(inputs)


def _tensors(inputs: Inputs) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(_grouped(inputs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
