"""New batches for a captured step: checked against what was captured, cut into micro-batches."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from gnnplace.errors import InputError
from gnnplace.tracing import (
    BatchStructure,
    Inputs,
    Program,
    as_inputs,
    refuse_input_gradients,
)


class Batches:
    """Copies batches into the inputs of a program.

    Args:
        program: Cut into M micro-batches, or not.
        example: The whole batch that was captured; a batch has its structure and shapes.
    """

    def __init__(self, program: Program, example: Inputs) -> None:
        self._program = program
        inputs = as_inputs(example)
        self._structure = BatchStructure.of(inputs)
        leaves = self._structure.tensors(inputs)
        keywords = isinstance(inputs, Mapping) and len(leaves) == len(inputs)
        if keywords:
            self._sources = list(inputs)
        else:
            self._sources = [str(i) for i in range(len(leaves))]
        self._shapes = [tuple(tensor.shape) for tensor in leaves.values()]
        self._batch = next((shape[0] for shape in self._shapes if shape), 0)

    def load(self, batch: Inputs, tensors: dict[str, torch.Tensor]) -> None:
        """Copy a batch into the inputs of the program.

        Args:
            batch: A batch with the example's structure and shapes.
            tensors: Input tensors of the program by value name; filled.

        Raises:
            InputError: another structure, shape, type, or another constant than was captured.
        """
        batch_tensors = self._checked(batch)
        for name, entry in self._program.inputs.items():
            if entry.kind != "input":
                continue
            source, _, copy = entry.source.partition("#")
            tensor = batch_tensors[source]
            target = tensors[name]
            if tensor.dtype != target.dtype and not (
                tensor.is_floating_point() and target.is_floating_point()
            ):
                raise InputError(
                    f"batch: input {source} is of {tensor.dtype}; {target.dtype} was captured"
                )
            target.copy_(self._share(tensor, int(copy or 0)))
        self._load_shared_values(batch_tensors, tensors)

    def _load_shared_values(
        self,
        batch_tensors: Mapping[str, torch.Tensor],
        tensors: Mapping[str, torch.Tensor],
    ) -> None:
        """Copy what every micro-batch reads of the whole batch, such as its number of words."""
        batch = self._program.batch
        if batch is None or batch.count == 1:
            return
        batch_sources = [batch_tensors[source] for source in self._sources]
        batch.check(batch_sources)
        for name, value in batch.values(batch_sources).items():
            tensors[name].copy_(value)

    def _checked(self, batch: Inputs) -> dict[str, torch.Tensor]:
        by_path = self._structure.tensors(batch)
        refuse_input_gradients(by_path)
        for (path, tensor), shape in zip(by_path.items(), self._shapes, strict=True):
            if tuple(tensor.shape) != shape:
                raise InputError(
                    f"batch: input {path} has shape {tuple(tensor.shape)}; {shape} was captured; "
                    f"give equal batches{_mend(batch)}"
                )
        tensors = by_path.values()
        return dict(zip(self._sources, tensors, strict=True))

    def _share(self, tensor: torch.Tensor, copy: int) -> torch.Tensor:
        """Return micro-batch `copy` of a tensor that has the batch first, else all of it."""
        if tensor.dim() == 0 or tensor.shape[0] != self._batch:
            return tensor
        size = self._batch // self._program.microbatches
        return tensor[copy * size : (copy + 1) * size]


def _mend(batch: Inputs) -> str:
    """Return how batches become equal: by padding graphs, or without a shorter last batch."""
    if any(hasattr(entry, "edge_index") for entry in as_inputs(batch)):
        return ": pad the nodes and edges of every graph to one size"
    return ", without a last, shorter one (drop_last=True)"
