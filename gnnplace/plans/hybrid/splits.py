"""Every way to use N devices: data-parallel groups times devices in a group, with what it costs.

For a split of N into ``groups`` of ``devices``::

    global batch = groups * batch
    steps        = ceil(examples / global batch)          an epoch
    epochs       = convergence(global batch)
    seconds      = step * steps * epochs

where ``step`` is a step with its all-reduce, and the batch of a group is the same whatever its
size, as in Pal et al. (2019). Where single ops are placed (``gradients``), groups are runs of
devices as listed; alike ones are placed once; the slowest decides. What several groups of one
server share (a PCIe channel) is counted for the all-reduce, not for the steps. Where groups are
plans of layers (``groups``), the whole split is one plan.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from gnnplace.costs import ALL_REDUCE
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.plans.hybrid.convergence import Training
from gnnplace.plans.hybrid.gradients import ReplicaStep, StepParts, with_all_reduce
from gnnplace.plans.mesh import MeshFabric
from gnnplace.problem import Cluster

PlaceOn = Callable[[Cluster], Sequence[ReplicaStep]]
MOST_DEVICES = 4096
MICROBATCHES = (1, 4)
"""Numbers of micro-batches of a group that are tried: none in flight, and a few."""


@dataclass(frozen=True)
class SplitRow:
    """One split of the devices into groups, with its figures.

    Attributes:
        groups: The number of data-parallel groups.
        devices: The devices of a group, model-parallel.
        microbatches: M of the group's placement.
        parts: Seconds of the step; None where nothing fits.
        global_batch: Examples of a step.
        steps: The number of steps in an epoch.
        epochs: Epochs until convergence; None where the table ends.
        note: Why figures are missing.
    """

    groups: int
    devices: int
    microbatches: int
    parts: StepParts | None
    global_batch: int
    steps: int
    epochs: float | None
    note: str = ""

    @property
    def total_devices(self) -> int:
        """Return the number of devices in use, N."""
        return self.groups * self.devices

    @property
    def seconds(self) -> float:
        """Return the seconds of the whole training, or inf if they are not known."""
        if self.parts is None or self.epochs is None:
            return math.inf
        return self.parts.total * self.steps * self.epochs

    @property
    def name(self) -> str:
        """Return a name of a few characters."""
        if self.devices == 1:
            return "data parallel"
        return f"hybrid {self.devices}"


class Splitter(ABC):
    """A maker of rows for one training on one fabric.

    Args:
        fabric: All devices and what joins them.
        training: Batch of a group, examples of an epoch, and convergence.
        mixes: Why several groups cannot have a batch of their own each: the loss of the whole is
            another one. Empty if they can.

    Attributes:
        copy: The devices and links of one copy, if the cluster is copies of another; else its own.
            A group has at most as many devices.
    """

    def __init__(self, fabric: MeshFabric, training: Training, mixes: str = "") -> None:
        copies = fabric.cluster.copies
        self.fabric = fabric
        self.copy = fabric.cluster if copies is None else copies.cluster
        self.training = training
        self.mixes = mixes

    @abstractmethod
    def step(
        self, groups: int, devices: int
    ) -> tuple[StepParts, int] | InfeasibleError:
        """Return the step of groups of devices and its number of micro-batches.

        The error of groups whose step cannot be made is returned, not raised.
        """

    def rows(self, counts: Sequence[int], sizes: Sequence[int]) -> list[SplitRow]:
        """Return the splits of each number of devices into groups of each size that divides it.

        Args:
            counts: Numbers of devices.
            sizes: Numbers of devices in a group.
        """
        num_devices = self.copy.num_devices
        return [
            self.row(count // size, size)
            for count in counts
            for size in sizes
            if count % size == 0
            and size <= num_devices
            and (num_devices % size == 0 or count <= num_devices)
        ]

    def row(self, groups: int, devices: int) -> SplitRow:
        """Return the split into `groups` groups of `devices` devices, with predicted figures."""
        training = self.training
        batch = groups * training.batch
        steps = training.steps(batch)
        epochs = training.convergence.epochs(batch)
        if groups > 1 and self.mixes:
            note = f"the loss of several groups is another one: {self.mixes}"
            return SplitRow(groups, devices, 1, None, batch, steps, epochs, note)
        step = self.step(groups, devices)
        if isinstance(step, InfeasibleError):
            return SplitRow(groups, devices, 1, None, batch, steps, epochs, str(step))
        parts, microbatches = step
        if epochs is not None:
            note = ""
        else:
            note = f"no epochs are given for a batch of {batch}"
        return SplitRow(
            groups, devices, microbatches, parts, batch, steps, epochs, note
        )


class PlacedSplitter(Splitter):
    """A maker of rows whose groups are placed alone, inside of a copy of the cluster.

    Args:
        fabric: All devices and what joins them.
        training: Batch of a group, examples of an epoch, and convergence.
        place_on: Returns the placed steps of the model on a cluster, one for each number of
            micro-batches.
        mixes: Why several groups cannot have a batch of their own each; empty if they can.

    Attributes:
        overlap: Whether devices can compute while they reduce. They cannot where workers make the
            messages themselves.
    """

    def __init__(
        self,
        fabric: MeshFabric,
        training: Training,
        place_on: PlaceOn,
        mixes: str = "",
    ) -> None:
        super().__init__(fabric, training, mixes)
        self.place_on = place_on
        self.overlap = not self.copy.sender_busy.any()
        self._placed: dict[object, Sequence[ReplicaStep] | InfeasibleError] = {}

    def step(
        self, groups: int, devices: int
    ) -> tuple[StepParts, int] | InfeasibleError:
        """Return the slowest group's step and its best number of micro-batches."""
        slowest = list[tuple[StepParts, int]]()
        seconds = partial(self._all_reduce, groups=groups, devices=devices)
        firsts = {g * devices % self.copy.num_devices for g in range(groups)}
        for first in sorted(firsts):
            placed = self._place(range(first, first + devices))
            if isinstance(placed, InfeasibleError):
                return placed
            tried = [
                (
                    with_all_reduce(step, seconds, overlap=self.overlap),
                    step.microbatches,
                )
                for step in placed
            ]
            slowest.append(min(tried, key=lambda pair: (pair[0].total, pair[1])))
        return max(slowest, key=lambda pair: pair[0].total)

    def _all_reduce(self, device: int, size: float, groups: int, devices: int) -> float:
        """Return the seconds of an all-reduce over one device of every group.

        The other devices of the groups reduce at the same time.

        Args:
            device: The index of the device in its group.
            size: Bytes of its gradients.
            groups: The number of groups.
            devices: The number of devices of a group.

        Raises:
            InputError: If two of the devices have no link.
        """
        members = range(device, groups * devices, devices)
        return self.fabric.collective(ALL_REDUCE, size, members, devices)

    def _place(self, devices: range) -> Sequence[ReplicaStep] | InfeasibleError:
        """Return the placed steps of a group, or the error that says why nothing fits.

        Groups that differ in names alone are placed once.
        """
        cluster = self.fabric.cluster
        kinds = tuple(
            (cluster.devices[d].kind, cluster.devices[d].memory) for d in devices
        )
        key = kinds, self.copy.pattern(devices)
        if key not in self._placed:
            try:
                self._placed[key] = self.place_on(cluster.part(devices))
            except InfeasibleError as error:
                self._placed[key] = error
        return self._placed[key]


def device_counts(most: int) -> list[int]:
    """Return 1, 2, 4, ... up to ``most``, and ``most`` itself.

    Raises:
        InputError: If the number is not positive, or more than ``MOST_DEVICES``.
    """
    if not 1 <= most <= MOST_DEVICES:
        raise InputError(f"devices {most}: must be between 1 and {MOST_DEVICES}")
    powers_of_two = [1 << k for k in range(most.bit_length())]
    return sorted({*powers_of_two, most})


def group_sizes(most: int, largest: int) -> list[int]:
    """Return the sizes of groups to try: 1, 2, 4, 8 and ``most``'s divisors, up to ``largest``."""
    divisors = {k for k in range(1, most + 1) if most % k == 0}
    return sorted(k for k in {1, 2, 4, 8} | divisors if k <= largest)
