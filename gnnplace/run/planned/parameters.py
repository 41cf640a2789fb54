"""Parameters of one process: leaves for the passes, parts for the optimizer, and gradients.

A parameter of a stage is split over the shards as the plan says (`home`). Passes compute with this
shard, the *leaf*. Without ZeRO the optimizer updates the leaf itself. With ZeRO (Rajbhandari et
al., 2020, arXiv 1910.02054) over r replicas it updates one of r equal runs of the leaf's elements,
the *part*, padded with zeros. This is right for elementwise optimizers (SGD, Adam, AdamW), not for
those that use whole matrices.

* 0: gradients are all-reduced over the replicas at the end of a step;
* 1: gradients are reduce-scattered to the replicas' parts, and the leaf is all-gathered from the
  updated parts before the next step;
* 2: gradients are reduced after every backward pass, and only their parts are kept;
* 3: as 2, and the leaf's memory is freed between passes and filled by an all-gather before each.

If a parameter is replicated over shards, its gradient is first summed over them. With ZeRO such a
parameter has r t parts, over the t shards as well, unless several ranks hold it. The gradient of a
parameter that several ranks hold is summed over them at the end of the step, for every ZeRO stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from gnnplace.costs import BUCKET
from gnnplace.run.planned.seats import Seat
from gnnplace.run.split import redistribute
from gnnplace.sharding import PARTIAL, REPLICATED, Layout
from gnnplace.torch_names import gather_flat, scatter_flat


@dataclass(eq=False)
class LocalParameter:
    """A parameter on this process.

    Attributes:
        name: The name in the user's model.
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
        """Return the tensor that the optimizer updates."""
        if self.master is None:
            return self.part
        return self.master

    @property
    def pending(self) -> Layout:
        """Return the layout in which passes leave its gradient, before sums over shards."""
        pairs = zip(self.home, self.summed, strict=True)
        return tuple(PARTIAL if summed else place for place, summed in pairs)

    @property
    def split(self) -> bool:
        """Return whether the optimizer updates only a part of the leaf."""
        return self.part is not self.leaf

    @property
    def wide(self) -> bool:
        """Return whether shards, like replicas, update parts of the leaf."""
        learns = self.leaf.requires_grad
        return self.split and learns and any(self.summed) and not self.tied

    @property
    def tied(self) -> bool:
        """Return whether several pipeline ranks hold the parameter."""
        return len(self.ranks) > 1


def make_local_parameter(
    seat: Seat,
    name: str,
    parameter: nn.Parameter,
    home: Layout,
    summed: tuple[bool, ...],
    ranks: tuple[int, ...],
    zero: int,
    master: bool = False,
) -> LocalParameter:
    """Make this process's part of a parameter.

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
        replicated = (REPLICATED,) * len(home)
        local = redistribute(parameter.detach(), seat.mesh, replicated, home).clone()
        leaf = nn.Parameter(local, requires_grad=parameter.requires_grad)
    part = leaf
    learns = parameter.requires_grad
    if learns and len(ranks) == 1:
        over = summed
    else:
        over = (False,) * len(summed)
    owners = seat.owners[over]
    count = seat.replicas
    index = seat.replica
    for size, place, wide in zip(seat.axes, seat.places, over, strict=True):
        count, index = (count * size, index * size + place) if wide else (count, index)
    if count > 1 and zero >= (1 if learns else 3):
        row = split_into_rows(leaf.detach(), count)[index].clone()
        # It keeps its number of axes, because weight decay is often for matrices alone.
        axes = (1,) * (leaf.dim() - 1)
        part = nn.Parameter(row.view(*axes, -1), requires_grad=learns)
    half = (
        master and part.requires_grad and part.dtype in (torch.float16, torch.bfloat16)
    )
    if half:
        copy = nn.Parameter(part.detach().float())
    else:
        copy = None
    return LocalParameter(
        name=name,
        leaf=leaf,
        part=part,
        home=home,
        summed=summed,
        ranks=ranks,
        shape=leaf.shape,
        count=count,
        index=index,
        owners=owners,
        master=copy,
    )


def split_into_rows(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Return a tensor's elements as equal rows, the last padded with zeros. [count, row size]"""
    flat = tensor.reshape(-1)
    row_size = -(-flat.numel() // count)
    padded = torch.cat([flat, flat.new_zeros(row_size * count - flat.numel())])
    return padded.view(count, row_size)


def buckets(tensors: Sequence[torch.Tensor]) -> Iterator[list[int]]:
    """Yield indices of tensors for one collective: of one type, together at most `BUCKET` bytes."""
    bucket: list[int] = []
    room = 0
    dtype = None
    for i, tensor in enumerate(tensors):
        size = tensor.numel() * tensor.element_size()
        if bucket and (size > room or tensor.dtype != dtype):
            yield bucket
            bucket = []
        if not bucket:
            room = BUCKET
            dtype = tensor.dtype
        bucket.append(i)
        room -= size
    if bucket:
        yield bucket


def add_up(tensors: Sequence[torch.Tensor], group: dist.ProcessGroup) -> None:
    """Replace tensors by their sums over a group."""
    for bucket in buckets(tensors):  # many are added up in one collective
        flat = torch.cat([tensors[i].reshape(-1) for i in bucket])
        dist.all_reduce(flat, group=group)
        for i, part in zip(
            bucket, flat.split([tensors[i].numel() for i in bucket]), strict=True
        ):
            tensors[i].copy_(part.view(tensors[i].shape))


@dataclass(eq=False)
class Parameters:
    """The parameters on this process.

    Attributes:
        seat: the place of the process in the plan.
        zero: stage of ZeRO of its rank.
        held: what this process has of each parameter, by its name.
        whole_shapes: The shape of every parameter of the unsplit model, by name.
    """

    seat: Seat
    zero: int
    held: dict[str, LocalParameter]
    whole_shapes: dict[str, torch.Size]

    def leaf(self, name: str) -> nn.Parameter:
        """Return the leaf that passes compute with."""
        return self.held[name].leaf

    @torch.no_grad()
    def begin(self) -> None:
        """Begin a step: drop gradients, and fill leaves from the parts that were updated."""
        for local in self.held.values():
            local.leaf.grad = None
            local.part.grad = None
            local.learned.grad = None
            if local.master is not None:
                local.part.data.copy_(local.master)
        self.gather([h for h in self.held.values() if self.zero < 3 or h.tied])

    @torch.no_grad()
    def gather(self, parameters: Iterable[LocalParameter]) -> None:
        """Fill leaves from the replicas' parts."""
        for bucket in _bucket(
            [local for local in parameters if local.split], lambda local: local.part
        ):
            sent = torch.cat([local.part.flatten() for local in bucket])
            all_of = sent.new_empty(bucket[0].count * sent.numel())
            gather_flat(all_of, sent, bucket[0].owners)
            rows = all_of.view(bucket[0].count, -1)
            sizes = [local.part.numel() for local in bucket]
            for local, columns in zip(bucket, rows.split(sizes, 1), strict=True):
                fill(
                    local.leaf,
                    columns.reshape(-1)[: local.shape.numel()].view(local.shape),
                )

    def enter(self, names: Sequence[str]) -> None:
        """Gather the parameters that a pass reads, with ZeRO 3."""
        if self.zero == 3:
            self.gather([self.held[name] for name in names if not self.held[name].tied])

    def leave(self, names: Sequence[str]) -> None:
        """Free the parameters that a pass has read, with ZeRO 3."""
        if self.zero < 3:
            return
        for local in (self.held[name] for name in names):
            if local.split and not local.tied:
                local.leaf.untyped_storage().resize_(0)

    @torch.no_grad()
    def reduce(self, names: Sequence[str]) -> None:
        """Reduce gradients after a backward pass: ZeRO 2 and 3 keep parts of them alone."""
        if self.zero >= 2:
            parameters = [self.held[name] for name in names]
            self._scatter(
                [
                    h
                    for h in parameters
                    if h.split and not h.tied and h.leaf.grad is not None
                ]
            )

    @torch.no_grad()
    def finish(self) -> None:
        """Complete the gradients of the parts, after the last pass."""
        with_gradients = [
            local for local in self.held.values() if local.leaf.grad is not None
        ]
        self._sum_over_shards(with_gradients)
        for local in self.held.values():
            if local.tied and local.leaf.requires_grad:
                self._sum_over_ranks(local)
        with_gradients = [
            local for local in self.held.values() if local.leaf.grad is not None
        ]
        across = self.seat.owners[(False,) * len(self.seat.axes)]
        if across is not None:
            add_up([_gradient(h) for h in with_gradients if not h.split], across)
        self._scatter([local for local in with_gradients if local.split], summed=True)
        for local in self.held.values():
            if local.master is not None and local.part.grad is not None:
                local.master.grad = local.part.grad.float()
                local.part.grad = None

    @torch.no_grad()
    def unscale(self, factor: float) -> bool:
        """Divide gradients by a factor; drop all if one is not finite on any process.

        Returns:
            Whether all gradients are finite.
        """
        grads = [
            h.learned.grad for h in self.held.values() if h.learned.grad is not None
        ]
        num_infinite = torch.zeros((), device=self.seat.device)
        for gradient in grads:
            gradient.mul_(1.0 / factor)
            num_infinite += (~gradient.isfinite()).any()
        if self.seat.seats.count > 1:
            dist.all_reduce(num_infinite)
        if num_infinite > 0:
            for local in self.held.values():
                local.learned.grad = None
        return not num_infinite > 0

    def _sum_over_shards(self, parameters: Sequence[LocalParameter]) -> None:
        mesh = self.seat.mesh
        if mesh is not None:
            for dim in range(mesh.ndim):
                gradients = [
                    _gradient(local)
                    for local in parameters
                    if local.summed[dim] and not local.wide
                ]
                add_up(gradients, mesh.get_group(dim))

    def _sum_over_ranks(self, local: LocalParameter) -> None:
        """Add up whole gradients over the first shards of ranks, which may split it otherwise."""
        seat = self.seat
        mesh = self.seat.mesh
        gradient = local.leaf.grad
        if gradient is None:
            gradient = torch.zeros_like(local.leaf)
        total = gradient.contiguous()
        replicated = (REPLICATED,) * len(local.home)
        if mesh is not None:
            total = redistribute(total, mesh, local.home, replicated).contiguous()
        if seat.shard == 0:
            dist.all_reduce(total, group=seat.tied[local.ranks])
        if mesh is not None:
            # The members along the outer axis first, then along the inner.
            for dim in range(mesh.ndim):
                dist.broadcast(total, group=mesh.get_group(dim), group_src=0)
            total = redistribute(total, mesh, replicated, local.home).clone()
        local.leaf.grad = total

    def _scatter(
        self, parameters: Sequence[LocalParameter], summed: bool = False
    ) -> None:
        """Add the owners' gradients to the part that each has."""
        if not summed:
            self._sum_over_shards(parameters)
        for bucket in _bucket(parameters, _gradient):
            rows = torch.cat(
                [split_into_rows(_gradient(local), local.count) for local in bucket], 1
            )
            received = rows.new_empty(rows.shape[1])
            scatter_flat(received, rows.reshape(-1), bucket[0].owners)
            parts = received.split([local.part.numel() for local in bucket])
            for local, part in zip(bucket, parts, strict=True):
                part = part.view(local.part.shape)
                earlier = local.part.grad
                local.leaf.grad = None
                if earlier is None:
                    local.part.grad = part.clone()
                else:
                    local.part.grad = earlier + part

    def squares(self) -> torch.Tensor:
        """Return the sum of squares of the gradients that this process counts and no other."""
        seat = self.seat
        total = torch.zeros((), dtype=torch.float64, device=seat.device)
        for local in self.held.values():
            if local.learned.grad is None or seat.rank != local.ranks[0]:
                continue
            is_counted_elsewhere = not local.split and seat.replica > 0
            for place, shard_index, summed in zip(
                local.home, seat.places, local.summed, strict=True
            ):
                is_counted_elsewhere = is_counted_elsewhere or (
                    place == REPLICATED
                    and shard_index > 0
                    and not (local.wide and summed)
                )
            if not is_counted_elsewhere:
                total += local.learned.grad.detach().double().square().sum()
        return total

    @torch.no_grad()
    def whole(self, local: LocalParameter, tensor: torch.Tensor) -> torch.Tensor:
        """Gather a tensor like the part (the parameter, a moment) from all processes."""
        if local.split:
            rows = tensor.new_empty(local.count * tensor.numel())
            gather_flat(rows, tensor.flatten(), local.owners)
            tensor = rows[: local.shape.numel()].view(local.shape)
        if self.seat.mesh is not None:
            replicated = (REPLICATED,) * len(local.home)
            tensor = redistribute(
                tensor.contiguous(), self.seat.mesh, local.home, replicated
            )
        return tensor.clone()

    @torch.no_grad()
    def own(self, local: LocalParameter, tensor: torch.Tensor) -> torch.Tensor:
        """Return this process's part of a whole tensor."""
        if self.seat.mesh is not None:
            replicated = (REPLICATED,) * len(local.home)
            tensor = redistribute(tensor, self.seat.mesh, replicated, local.home)
        if local.split:
            tensor = split_into_rows(tensor, local.count)[local.index]
        return tensor.clone()


def _bucket(
    parameters: Sequence[LocalParameter],
    tensor_of: Callable[[LocalParameter], torch.Tensor],
) -> Iterator[list[LocalParameter]]:
    """Yield parameters whose tensors go in one collective: of the same owners, in buckets."""
    for owners in dict.fromkeys(local.owners for local in parameters):
        owned = [local for local in parameters if local.owners is owners]
        for bucket in buckets([tensor_of(local) for local in owned]):
            yield [owned[i] for i in bucket]


def fill(leaf: torch.Tensor, values: torch.Tensor) -> None:
    """Give a leaf new numbers, and its memory back if that was freed; graphs that read it stay."""
    storage = leaf.untyped_storage()
    size = leaf.numel() * leaf.element_size()
    if storage.nbytes() < size:
        storage.resize_(size)
    leaf.data.copy_(values)


def _gradient(local: LocalParameter) -> torch.Tensor:
    assert local.leaf.grad is not None
    return local.leaf.grad
