"""The buffers that a forward pass changes: running statistics, queues, counters.

Several micro-batches are in flight at the same time, and recomputed calls run twice. So a pass
works on copies of the buffers that the model's calls change, and writes them back at its end.
Values that it read, saved for its backward pass or sends to another stage stay unchanged.
Recomputed calls get copies of the buffers as they were in the first run, and write nothing back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

import torch
from torch import nn

from gnnplace.tracing import CallGraph

NORMS = ("batch_norm", "instance_norm")
"""Functions that save nothing of the running statistics that they keep."""


@dataclass(eq=False)
class PassBuffers:
    """The buffers of a model as one pass sees them.

    Attributes:
        model: The user's model, which has the buffers.
        copied: Names of those that the pass works on copies of; others are the model's own.
        tensors: The copies, by name.
        storages: The memory of the copies, by the address of what it was copied from.
    """

    model: nn.Module
    copied: Collection[str]
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)

    def get(self, name: str) -> torch.Tensor:
        """Return a buffer, to be read or changed in place."""
        if name not in self.copied and name not in self.tensors:
            return self.model.get_buffer(name)
        if name not in self.tensors:
            self.tensors[name] = self.get_copy(self.model.get_buffer(name))
        return self.tensors[name]

    def get_copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor on memory of this pass; tensors that share memory share it here too."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in self.storages:
            self.storages[address] = storage.clone()
        copied = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        with torch.no_grad():
            return copied.set_(
                self.storages[address],
                tensor.storage_offset(),
                tensor.size(),
                tensor.stride(),
            )

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is a view of a copy of this pass."""
        address = tensor.untyped_storage().data_ptr()
        return any(storage.data_ptr() == address for storage in self.storages.values())

    def snapshot(
        self, names: Iterable[str], views: Iterable[torch.Tensor]
    ) -> PassBuffers:
        """Return copies of buffers as they are now, with the memory of views of them."""
        taken = PassBuffers(self.model, ())
        taken.tensors = {name: taken.get_copy(self.get(name)) for name in names}
        for view in views:
            taken.get_copy(view)
        return taken

    @torch.no_grad()
    def write_back(self) -> None:
        """Give the model's buffers what the pass has left."""
        for name, tensor in self.tensors.items():
            self.model.get_buffer(name).copy_(tensor)


def list_observed_buffers(graph: CallGraph) -> frozenset[str]:
    """Return the changed buffers of which something is read, saved or sent.

    Of others no pass needs a copy: counters that nothing reads, running statistics of norms.
    """
    read = {value for call in graph.calls for value in call.reads}

    def is_quiet(index: int) -> bool:
        call = graph.calls[index]
        return call.kind in NORMS or not read.intersection(call.results)

    return frozenset(
        name
        for name, changing in graph.changed.items()
        if not all(map(is_quiet, {*changing, *graph.readers(name)}))
    )
