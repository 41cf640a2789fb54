"""Parameters on one process: what passes compute with, what the optimizer updates, and gradients.

A parameter of a stage is split over the shards as the plan says (`home`). Passes compute with this
part, the *leaf*. Without ZeRO the optimizer updates the leaf itself. With ZeRO (Rajbhandari et al.,
2020, arXiv 1910.02054) over r replicas it updates one of r equal runs of the leaf's elements, the
*part*, padded with zeros; this is right for optimizers that treat every element alike (SGD, Adam,
AdamW), not for those that look at whole matrices.

* 0: gradients are added up over the replicas at the end of a step (all-reduce);
* 1: every replica gets the sum of its part (reduce-scatter), and the parts of the leaf are gathered
  before the next step;
* 2: gradients are reduced after every backward pass and only parts of them kept;
* 3: as 2, and the leaf's memory is freed between passes and filled by a gather before each.

A gradient that is a sum over shards is added up over them first; with ZeRO such a parameter, whole
on every shard, has r t parts instead, over the t shards as well, unless several ranks hold it. One
that several ranks hold is added up over these, at the end of the step, whatever ZeRO is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from gnnplace.costs.collectives import BUCKET
from gnnplace.run.planned.seats import Seat
from gnnplace.sharding.captured.layout import REPLICATED, Layout
from gnnplace.sharding.run.move import redistributed
from gnnplace.torch_names import gather_flat, scatter_flat


@dataclass(eq=False)
class Held:
    """A parameter on this process.

    Attributes:
        name: in the user's model.
        leaf: this shard's part of it, which passes compute with.
        part: this replica's; the leaf itself without ZeRO.
        master: a float32 copy of the part, where the precision keeps one.
        home: layout of the leaf over the shards.
        summed: whether its gradient is a sum over each axis of the shards.
        ranks: the pipeline ranks that hold it.
        shape: the sizes of the leaf.
        count: the processes among which ZeRO would part the leaf: its replicas; where the gradient
            is a sum over shards too, and one rank holds it, these times the replicas.
        index: the number of this process among them.
        owners: their group; None if it is this process alone.
    """

    name: str
    leaf: nn.Parameter
    part: nn.Parameter
    home: Layout
    summed: tuple[bool, ...]
    ranks: tuple[int, ...]
    shape: torch.Size
    count: int
    index: int
    owners: dist.ProcessGroup | None
    master: nn.Parameter | None = None

    @property
    def learned(self) -> nn.Parameter:
        """What the optimizer updates."""
        return self.part if self.master is None else self.master

    @property
    def split(self) -> bool:
        """Whether the optimizer has a part of the leaf."""
        return self.part is not self.leaf

    @property
    def wide(self) -> bool:
        """Whether shards have parts of the leaf as replicas do."""
        learns = self.leaf.requires_grad
        return self.split and learns and any(self.summed) and not self.tied

    @property
    def tied(self) -> bool:
        """Whether several ranks hold it."""
        return len(self.ranks) > 1


def held_of(
    seat: Seat,
    name: str,
    parameter: nn.Parameter,
    home: Layout,
    summed: tuple[bool, ...],
    ranks: tuple[int, ...],
    zero: int,
    master: bool = False,
) -> Held:
    """A parameter on this process.

    Args:
        seat: the place of the process in the plan.
        name: the name of the parameter.
        parameter: the whole parameter, as the model has it.
        home: layout over the shards.
        summed: whether its gradient is a sum over each axis of these.
        ranks: the pipeline ranks that hold it.
        zero: the stage of ZeRO, 0 to 3.
        master: keep a float32 copy of what is in half precision.
    """
    leaf = parameter
    if seat.mesh is not None:
        whole = (REPLICATED,) * len(home)
        local = redistributed(parameter.detach(), seat.mesh, whole, home).clone()
        leaf = nn.Parameter(local, requires_grad=parameter.requires_grad)
    part = leaf
    learns = parameter.requires_grad
    over = summed if learns and len(ranks) == 1 else (False,) * len(summed)
    owners, count, index = seat.owners[over], seat.replicas, seat.replica
    for size, place, wide in zip(seat.axes, seat.places, over, strict=True):
        count, index = (count * size, index * size + place) if wide else (count, index)
    if count > 1 and zero >= (1 if learns else 3):
        row = in_parts(leaf.detach(), count)[index].clone()
        axes = (1,) * (leaf.dim() - 1)  # as many as it has: decay is often for matrices alone
        part = nn.Parameter(row.view(*axes, -1), requires_grad=learns)
    half = master and part.requires_grad and part.dtype in (torch.float16, torch.bfloat16)
    copy = nn.Parameter(part.detach().float()) if half else None
    return Held(name, leaf, part, home, summed, ranks, leaf.shape, count, index, owners, copy)


def in_parts(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """A tensor's elements as equal rows, the last padded with zeros. [count, elements of a part]"""
    flat = tensor.reshape(-1)
    each = -(-flat.numel() // count)
    padded = torch.cat([flat, flat.new_zeros(each * count - flat.numel())])
    return padded.view(count, each)


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


def add_up(tensors: Sequence[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Replaces tensors by their sums over a group."""
    for some in buckets(tensors):  # many are added up in one collective
        flat = torch.cat([tensors[i].reshape(-1) for i in some])
        dist.all_reduce(flat, group=group)
        for i, part in zip(some, flat.split([tensors[i].numel() for i in some]), strict=True):
            tensors[i].copy_(part.view(tensors[i].shape))


@dataclass(eq=False)
class Parameters:
    """All parameters on this process.

    Attributes:
        seat: the place of the process in the plan.
        zero: stage of ZeRO of its rank.
        held: what this process has of each parameter, by its name.
        whole_shapes: of every parameter of the model, by its name.
    """

    seat: Seat
    zero: int
    held: dict[str, Held]
    whole_shapes: dict[str, torch.Size]

    def leaf(self, name: str) -> nn.Parameter:
        """What passes compute with."""
        return self.held[name].leaf

    @torch.no_grad()
    def begin(self) -> None:
        """Before a step: no gradients; leaves have what the optimizer made of the parts."""
        for held in self.held.values():
            held.leaf.grad = held.part.grad = held.learned.grad = None
            if held.master is not None:
                held.part.data.copy_(held.master)
        self.gather([h for h in self.held.values() if self.zero < 3 or h.tied])

    @torch.no_grad()
    def gather(self, some: Iterable[Held]) -> None:
        """Fills leaves from the replicas' parts."""
        for own in _bucketed([held for held in some if held.split], lambda held: held.part):
            mine = torch.cat([held.part.flatten() for held in own])
            all_of = mine.new_empty(own[0].count * mine.numel())
            gather_flat(all_of, mine, own[0].owners)
            rows = all_of.view(own[0].count, -1)
            sizes = [held.part.numel() for held in own]
            for held, columns in zip(own, rows.split(sizes, 1), strict=True):
                fill(held.leaf, columns.reshape(-1)[: held.shape.numel()].view(held.shape))

    def enter(self, names: Sequence[str]) -> None:
        """Before a pass that reads parameters."""
        if self.zero == 3:
            self.gather([self.held[name] for name in names if not self.held[name].tied])

    def leave(self, names: Sequence[str]) -> None:
        """After that pass."""
        if self.zero < 3:
            return
        for held in (self.held[name] for name in names):
            if held.split and not held.tied:
                held.leaf.untyped_storage().resize_(0)

    @torch.no_grad()
    def reduce(self, names: Sequence[str]) -> None:
        """After a backward pass with weights: ZeRO 2 and 3 keep parts of the gradients alone."""
        if self.zero >= 2:
            some = [self.held[name] for name in names]
            self._scatter([h for h in some if h.split and not h.tied and h.leaf.grad is not None])

    @torch.no_grad()
    def finish(self) -> None:
        """After the last pass: gradients of the parts are complete."""
        found = [held for held in self.held.values() if held.leaf.grad is not None]
        self._sum_over_shards(found)
        for held in self.held.values():
            if held.tied and held.leaf.requires_grad:
                self._sum_over_ranks(held)
        found = [held for held in self.held.values() if held.leaf.grad is not None]
        across = self.seat.owners[(False,) * len(self.seat.axes)]
        if across is not None:
            add_up([_gradient(h) for h in found if not h.split], across)
        self._scatter([held for held in found if held.split], summed=True)
        for held in self.held.values():
            if held.master is not None and held.part.grad is not None:
                held.master.grad = held.part.grad.float()
                held.part.grad = None

    @torch.no_grad()
    def unscaled(self, factor: float) -> bool:
        """Divides gradients by a factor; where one anywhere is not finite, drops all of them."""
        grads = [h.learned.grad for h in self.held.values() if h.learned.grad is not None]
        found = torch.zeros((), device=self.seat.device)
        for gradient in grads:
            gradient.mul_(1.0 / factor)
            found += (~gradient.isfinite()).any()
        if self.seat.seats.count > 1:
            dist.all_reduce(found)
        if found > 0:
            for held in self.held.values():
                held.learned.grad = None
        return not found > 0

    def _sum_over_shards(self, some: Sequence[Held]) -> None:
        mesh = self.seat.mesh
        if mesh is not None:
            for dim in range(mesh.ndim):
                own = [_gradient(held) for held in some if held.summed[dim] and not held.wide]
                add_up(own, mesh.get_group(dim))

    def _sum_over_ranks(self, held: Held) -> None:
        """Ranks may split it otherwise: their first shards add up whole gradients."""
        seat, mesh = self.seat, self.seat.mesh
        gradient = held.leaf.grad
        if gradient is None:
            gradient = torch.zeros_like(held.leaf)
        whole, everywhere = gradient.contiguous(), (REPLICATED,) * len(held.home)
        if mesh is not None:
            whole = redistributed(whole, mesh, held.home, everywhere).contiguous()
        if seat.shard == 0:
            dist.all_reduce(whole, group=seat.tied[held.ranks])
        if mesh is not None:
            for dim in range(mesh.ndim):  # of the first along the outer axis, then along the inner
                dist.broadcast(whole, group=mesh.get_group(dim), group_src=0)
            whole = redistributed(whole, mesh, everywhere, held.home).clone()
        held.leaf.grad = whole

    def _scatter(self, some: Sequence[Held], summed: bool = False) -> None:
        """Adds the owners' gradients to the part that each keeps."""
        if not summed:
            self._sum_over_shards(some)
        for own in _bucketed(some, _gradient):
            rows = torch.cat([in_parts(_gradient(held), held.count) for held in own], 1)
            made = rows.new_empty(rows.shape[1])
            scatter_flat(made, rows.reshape(-1), own[0].owners)
            parts = made.split([held.part.numel() for held in own])
            for held, part in zip(own, parts, strict=True):
                part, before = part.view(held.part.shape), held.part.grad
                held.leaf.grad = None
                held.part.grad = part.clone() if before is None else before + part

    def squares(self) -> torch.Tensor:
        """Sum of squares of gradients that no other process counts."""
        seat = self.seat
        total = torch.zeros((), dtype=torch.float64, device=seat.device)
        for held in self.held.values():
            if held.learned.grad is None or seat.rank != held.ranks[0]:
                continue
            again = not held.split and seat.replica > 0
            for place, own, summed in zip(held.home, seat.places, held.summed, strict=True):
                again = again or (place == REPLICATED and own > 0 and not (held.wide and summed))
            if not again:
                total += held.learned.grad.detach().double().square().sum()
        return total

    @torch.no_grad()
    def whole(self, held: Held, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor like the part (the parameter, a moment), put together from all processes."""
        if held.split:
            rows = tensor.new_empty(held.count * tensor.numel())
            gather_flat(rows, tensor.flatten(), held.owners)
            tensor = rows[: held.shape.numel()].view(held.shape)
        if self.seat.mesh is not None:
            whole = (REPLICATED,) * len(held.home)
            tensor = redistributed(tensor.contiguous(), self.seat.mesh, held.home, whole)
        return tensor.clone()

    @torch.no_grad()
    def own(self, held: Held, whole: torch.Tensor) -> torch.Tensor:
        """This process's part of a whole tensor."""
        if self.seat.mesh is not None:
            before = (REPLICATED,) * len(held.home)
            whole = redistributed(whole, self.seat.mesh, before, held.home)
        if held.split:
            whole = in_parts(whole, held.count)[held.index]
        return whole.clone()


def _bucketed(
    some: Sequence[Held], tensor_of: Callable[[Held], torch.Tensor]
) -> Iterator[list[Held]]:
    """Parameters whose tensors go in one collective: of the same owners, in buckets."""
    for owners in dict.fromkeys(held.owners for held in some):
        own = [held for held in some if held.owners is owners]
        for bucket in buckets([tensor_of(held) for held in own]):
            yield [own[i] for i in bucket]


def fill(leaf: torch.Tensor, values: torch.Tensor) -> None:
    """Gives a leaf other numbers, its memory back if that was freed; graphs that read it stay."""
    storage = leaf.untyped_storage()
    size = leaf.numel() * leaf.element_size()
    if storage.nbytes() < size:
        storage.resize_(size)
    leaf.data.copy_(values)


def _gradient(held: Held) -> torch.Tensor:
    assert held.leaf.grad is not None
    return held.leaf.grad
