"""How a placement is run, and what of the run is kept: one record each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnnplace.measurements import MeasurementStore
    from gnnplace.run.workers import Hosts

AUTO = "auto"


@dataclass(frozen=True)
class ExecutionOptions:
    """Options of a run on workers.

    Attributes:
        steps: Steps that are timed; parameters go on from step to step.
        warmup: The number of steps before those that are timed.
        mode: ``measured``: a core or GPU for each worker, wall clock. ``emulated``: workers may
            share cores; each worker's own CPU time and the problem's links make a virtual clock.
            ``auto``: measured where there are enough cores.
        transport: How tensors travel: ``shm`` (shared memory) or ``gloo`` (`torch.distributed`).
        timeout: Seconds without progress after which the run is given up.
        outputs: Whether to bring the numbers of the first step back.
        hosts: Several hosts, each of which runs this with the same arguments; shared memory is used
            inside a host and gloo across, whatever `transport` says. The first one has the result,
            verifies it and keeps it; on the others there are neither steps nor numbers.
    """

    steps: int = 5
    warmup: int = 2
    mode: str = AUTO
    transport: str = "shm"
    timeout: float = 120.0
    outputs: bool = True
    hosts: Hosts | None = None

    @property
    def reports(self) -> bool:
        """Return whether this host has the result of the run."""
        return self.hosts is None or self.hosts.first


@dataclass(frozen=True)
class RecordOptions:
    """The store of measured steps, and their label in it.

    Attributes:
        store: The store; None: nothing is kept.
        label: What the store calls the model; its name by default.
        source: What makes the run.
    """

    store: MeasurementStore | None = None
    label: str | None = None
    source: str = "execute"
