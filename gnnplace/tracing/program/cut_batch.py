"""`CutBatch`: how the batch of a program is cut, and what every share reads of the whole.

It travels with the program, so that whoever brings a new batch can cut it likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from gnnplace.errors import InputError

GIVEN = "given"
"""Kind of a program's input that every share reads of the whole batch."""
Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, eq=False)
class CutBatch:
    """A batch cut into equal shares, or left uncut (one share).

    Attributes:
        count: The number of shares, M.
        axes: Axis of the batch in each input tensor; None where every share has all of it.
        shares: The example's input tensors, share by share; empty of a fake capture.
        given: Names of the values that a share reads of the whole batch, such as the number of
            words that are not padding.
        numbers: Computes those values from the input tensors of the whole batch.
        counts: Computes, from a share's input tensors, counts that must be equal in all shares,
            because the loss could not be repaired; None if there are none.
        notes: What was repaired, a sentence each.
        exceptions: Deviations of shares from the batch: batch norm and random numbers.
        whole: Model and loss on the whole batch, as the user has them (a `StepModule`).
        differs: Why the loss is another one than the whole batch's; empty if it is the same.
    """

    count: int
    axes: tuple[int | None, ...]
    shares: tuple[Tensors, ...] = ()
    given: tuple[str, ...] = ()
    numbers: fx.GraphModule | None = None
    counts: fx.GraphModule | None = None
    notes: tuple[str, ...] = ()
    exceptions: tuple[str, ...] = ()
    whole: torch.nn.Module | None = field(default=None, repr=False)
    differs: str = ""

    def cut(self, inputs: Sequence[torch.Tensor]) -> tuple[Tensors, ...]:
        """Return the input tensors of every share of a whole batch."""
        parts = [
            [tensor] * self.count
            if axis is None
            else [part.contiguous() for part in tensor.chunk(self.count, axis)]
            for tensor, axis in zip(inputs, self.axes, strict=True)
        ]
        return tuple(tuple(part[k] for part in parts) for k in range(self.count))

    def joined(self, shares: Sequence[Tensors]) -> Tensors:
        """Return the whole batch of which these are the shares."""
        return tuple(
            shares[0][i]
            if axis is None
            else torch.cat([share[i] for share in shares], axis)
            for i, axis in enumerate(self.axes)
        )

    def values(self, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the values that every share reads of a whole batch, by name."""
        if self.numbers is None:
            return {}
        return dict(zip(self.given, _call_graph(self.numbers, inputs), strict=True))

    def check(self, inputs: Sequence[torch.Tensor]) -> None:
        """Refuse a whole batch whose shares have unequal counts, where they must be equal.

        Raises:
            InputError: the mean of the shares' losses would be another loss.
        """
        if self.counts is None:
            return
        counts_by_share = [
            _call_graph(self.counts, share) for share in self.cut(inputs)
        ]
        for counts in zip(*counts_by_share, strict=True):
            for index, count in enumerate(counts):
                if not torch.equal(counts[0], count):
                    raise InputError(
                        f"batch: a mean over {counts[0].sum():g} elements in micro-batch 0 and "
                        f"over {count.sum():g} in micro-batch {index} is another loss than that "
                        "of the whole batch; give equal counts, or leave the batch whole"
                    )


def _call_graph(module: fx.GraphModule, inputs: Sequence[torch.Tensor]) -> Tensors:
    """Return what a graph makes of tensors of a batch."""
    slots = module.graph.find_nodes(op="placeholder")
    converted = [
        _like(tensor, slot) for tensor, slot in zip(inputs, slots, strict=True)
    ]
    with torch.no_grad():
        outputs: Tensors = module(*converted)
    return outputs


def _like(tensor: torch.Tensor, slot: fx.Node) -> torch.Tensor:
    """Return a batch's tensor on the device, and of the type, that was captured."""
    expected = slot.meta["val"]
    floating = tensor.is_floating_point() and expected.is_floating_point()
    return tensor.to(expected.device, expected.dtype if floating else tensor.dtype)
