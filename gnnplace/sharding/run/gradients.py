"""Gradients of parameters that are split over a mesh: added up together when backward is over.

A forward pass computes with leaves of its own, a part of a parameter each. When autograd has
filled in their gradients, those that are sums over devices are added up, many in one collective (as
DistributedDataParallel does: Li et al., 2020, arXiv 2006.15704), and land in the ``grad`` of the
parameters, which are DTensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from gnnplace.costs.collectives import BUCKET
from gnnplace.sharding.captured.layout import PARTIAL, Layout, settled
from gnnplace.sharding.run.move import placements, redistributed


def after_backward(callback: Callable[[], None]) -> None:
    """Has autograd call back when the backward pass that is running is over.

    Must be called during a backward pass, such as from a tensor's hook.
    """
    torch.autograd.Variable._execution_engine.queue_callback(callback)  # type: ignore[attr-defined]


def buckets(tensors: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """Indices of tensors that go into one collective: of one type, together not too large."""
    room, dtype, found = 0, None, list[int]()
    for i, tensor in enumerate(tensors):
        size = tensor.numel() * tensor.element_size()
        if found and (size > room or tensor.dtype != dtype):
            yield found
            found = []
        if not found:
            room, dtype = BUCKET, tensor.dtype
        found.append(i)
        room -= size
    if found:
        yield found


def added_up(
    tensors: Sequence[torch.Tensor], reduce: Callable[[torch.Tensor], object]
) -> Iterator[torch.Tensor]:
    """Sums of tensors over processes, in order; many are added up in one collective.

    Args:
        tensors: Gradients on this process.
        reduce: Makes a vector the sum of those of all processes, in place.
    """
    for some in buckets(tensors):
        flat = torch.cat([tensors[i].reshape(-1) for i in some])
        reduce(flat)
        for i, part in zip(some, flat.split([tensors[i].numel() for i in some]), strict=True):
            yield part.view(tensors[i].shape)


@dataclass(eq=False)
class Leaf:
    """A part of a parameter that one forward pass computes with.

    Attributes:
        parameter: The parameter, a DTensor.
        tensor: The part that passes compute with.
        gradient: Layout that its gradient is made in.
        home: Layout of the parameter.
    """

    parameter: torch.nn.Parameter
    tensor: torch.Tensor
    gradient: Layout
    home: Layout


@dataclass(eq=False)
class Gradients:
    """Of one forward pass."""

    mesh: DeviceMesh
    leaves: list[Leaf] = field(default_factory=list)
    waiting: bool = False

    def leaf(
        self, parameter: torch.nn.Parameter, home: Layout, read: Layout, gradient: Layout
    ) -> torch.Tensor:
        """A part of a parameter in the layout it is read in."""
        with torch.no_grad():  # without autograd a DTensor hands its part out as it is
            own = parameter.to_local()  # type: ignore[attr-defined]
            local = redistributed(own, self.mesh, home, read).detach()
        if parameter.requires_grad and torch.is_grad_enabled():
            local.requires_grad_()
            local.register_post_accumulate_grad_hook(self._arrived)
            self.leaves.append(Leaf(parameter, local, gradient, home))
        return local

    def _arrived(self, tensor: torch.Tensor) -> None:
        if not self.waiting:
            self.waiting = True
            after_backward(self._finish)

    @torch.no_grad()
    def _finish(self) -> None:
        """In the order of the forward pass, which is that of every device."""
        self.waiting = False
        alike: dict[tuple[int, ...], list[tuple[Leaf, torch.Tensor]]] = {}
        for leaf in self.leaves:
            made = leaf.tensor.grad
            if made is None:
                continue
            leaf.tensor.grad = None
            sums = tuple(i for i, place in enumerate(leaf.gradient) if place == PARTIAL)
            if settled(leaf.gradient) == leaf.home:
                alike.setdefault(sums, []).append((leaf, made))
            else:
                _give(leaf, redistributed(made, self.mesh, leaf.gradient, leaf.home), self.mesh)
        for sums, entries in alike.items():
            self._add_up(sums, entries)

    def _add_up(self, sums: tuple[int, ...], entries: list[tuple[Leaf, torch.Tensor]]) -> None:
        made = [gradient for _, gradient in entries]
        whole = added_up(made, lambda flat: self._all_reduce(flat, sums)) if sums else made
        for (leaf, _), gradient in zip(entries, whole, strict=True):
            _give(leaf, gradient, self.mesh)

    def _all_reduce(self, flat: torch.Tensor, sums: tuple[int, ...]) -> None:
        sizes = [self.mesh.size(dim) for dim in sums]
        if math.prod(sizes) == dist.get_world_size():
            dist.all_reduce(flat)
            return
        for dim, size in zip(sums, sizes, strict=True):
            if size > 1:
                dist.all_reduce(flat, group=self.mesh.get_group(dim))


def _give(leaf: Leaf, made: torch.Tensor, mesh: DeviceMesh) -> None:
    parameter = leaf.parameter
    if parameter.grad is not None:
        assert isinstance(parameter.grad, DTensor)
        parameter.grad.to_local().add_(made)
        return
    parameter.grad = DTensor.from_local(
        made.contiguous(),
        mesh,
        placements(leaf.home),
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
