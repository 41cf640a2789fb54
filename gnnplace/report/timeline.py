"""``Timeline``: one step as lanes of ops, transfers and memory, predicted or measured alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gnnplace.arrays import FloatArray, IntArray
from gnnplace.problem import PHASES, Problem
from gnnplace.simulation import Simulation
from gnnplace.units import faults_text

if TYPE_CHECKING:
    from gnnplace.report.rows import Row
    from gnnplace.run.placed import Execution

Curve = tuple[FloatArray, FloatArray]


@dataclass(frozen=True)
class OpSpan:
    """An op on a device, in seconds since the step's start."""

    name: str
    device: int
    start: float
    finish: float
    phase: str
    module: str


@dataclass(frozen=True)
class TransferSpan:
    """A tensor on its way, in seconds since the step's start."""

    name: str
    source: int
    target: int
    start: float
    finish: float
    bytes: float


@dataclass(frozen=True, eq=False)
class Naming:
    """The labels of a problem's ops.

    Attributes:
        kinds: what kinds of ops there are.
        kind: an index into them. [num_ops]
        module: the module of each op, empty where it has none. [num_ops]
        covers: further names that a module stands for, such as the modules of a stage.
        sized: whether the sizes of the problem's tensors are bytes.
        why: why an op is where it is, if neither a pin nor a class or the like says so.
    """

    kinds: tuple[str, ...]
    kind: NDArray[np.int8]
    module: Sequence[str]
    covers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    sized: bool = True
    why: str = "The placer chose it: nothing else was asked for."


def naming(problem: Problem) -> Naming:
    """Return the problem's own names: its phases and modules."""
    return Naming(PHASES, problem.phase, [name or "" for name in problem.module])


@dataclass(frozen=True, eq=False)
class Moves:
    """Transfers, K of them.

    Attributes:
        op: the op whose result it is. [K]
        source: the sending device. [K]
        target: the receiving device. [K]
        start: seconds. [K]
        finish: seconds. [K]
        bytes: how large it is. [K]
    """

    op: IntArray
    source: IntArray
    target: IntArray
    start: FloatArray
    finish: FloatArray
    bytes: FloatArray


@dataclass(frozen=True, eq=False)
class Timeline:
    """One step, m ops of it.

    Attributes:
        clock: ``predicted``, ``measured`` or ``emulated``.
        name: The name of the placer.
        step_time: seconds; inf where it cannot run.
        problem: what was placed.
        named: what its ops are called.
        op: ops of the problem. [m]
        device: where each is. [m]
        start: seconds since the step's start. [m]
        finish: seconds. [m]
        moves: transfers.
        memory: For each device, the instants (seconds) and the bytes from then on; may be empty.
        simulation: the prediction that it is; None of a run.
        faults: why it cannot be.
    """

    clock: str
    name: str
    step_time: float
    problem: Problem
    named: Naming
    op: IntArray
    device: IntArray
    start: FloatArray
    finish: FloatArray
    moves: Moves
    memory: tuple[Curve, ...] = ()
    simulation: Simulation | None = None
    faults: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Return the clock and the name."""
        return f"{self.clock}, {self.name}"

    @property
    def fault(self) -> str:
        """Return the first faults in one line, or "" if the placement can run."""
        return faults_text(self.faults)

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Return the names of the lanes."""
        return tuple(device.name for device in self.problem.cluster.devices)

    @cached_property
    def ops(self) -> tuple[OpSpan, ...]:
        """Return each op as a record."""
        names = self.problem.graph.names
        named = self.named
        columns = (self.op, self.device, self.start, self.finish)
        return tuple(
            OpSpan(
                names[i], d, start, finish, named.kinds[named.kind[i]], named.module[i]
            )
            for i, d, start, finish in zip(*(c.tolist() for c in columns), strict=True)
        )

    @cached_property
    def transfers(self) -> tuple[TransferSpan, ...]:
        """Return each transfer as a record."""
        m = self.moves
        names = self.problem.graph.names
        columns = (m.op, m.source, m.target, m.start, m.finish, m.bytes)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return tuple(TransferSpan(names[i], *span) for i, *span in rows)

    def rename_step(self, named: Naming) -> Timeline:
        """Return the same step with other names."""
        return replace(self, named=named)


def make_page(
    problem: Problem,
    timelines: Sequence[Timeline],
    rows: Sequence[Row] = (),
    *,
    beside: bool = False,
) -> str:
    """Make the text of a page about steps of a problem, as `placements_page`."""
    from gnnplace.report.placements import placements_page  # for pages alone

    return placements_page(problem, timelines, rows, beside=beside)


def from_simulation(problem: Problem, simulation: Simulation, name: str) -> Timeline:
    """Return the timeline of a predicted step; empty if the placement cannot run."""
    ran = bool(np.isfinite(simulation.step_time))
    op = np.arange(problem.num_ops if ran else 0, dtype=np.int32)
    t = simulation.transfers
    graph = problem.graph
    rows = slice(None) if ran else slice(0, 0)
    tensor = t.tensor[rows]
    ends = t.source[rows], t.target[rows], t.start[rows], t.arrival[rows]
    return Timeline(
        "predicted",
        name,
        float(simulation.step_time),
        problem,
        naming(problem),
        op,
        simulation.device[op],
        simulation.start[op],
        simulation.finish[op],
        Moves(graph.producer[tensor], *ends, graph.size[tensor]),
        simulation.memory_curve if ran else (),
        simulation,
        simulation.faults,
    )


def from_execution(problem: Problem, execution: Execution, name: str) -> Timeline:
    """Return the timeline of the run's most typical step."""
    index = problem.graph.index
    lane = problem.cluster.device_index
    ops = execution.timeline.ops
    transfers = execution.timeline.transfers
    producer, source, target = np.zeros((3, len(transfers)), dtype=np.int32)
    sent, received, size = np.zeros((3, len(transfers)))
    for k, transfer in enumerate(transfers):
        producer[k] = index[transfer.producer]
        source[k], target[k] = lane[transfer.source], lane[transfer.target]
        sent[k], received[k] = transfer.start, transfer.finish
        size[k] = transfer.bytes
    number, device = np.zeros((2, len(ops)), dtype=np.int32)
    start, finish = np.zeros((2, len(ops)))
    for k, op in enumerate(ops):
        number[k], device[k] = index[op.op], lane[op.device]
        start[k], finish[k] = op.start, op.finish
    return Timeline(
        execution.mode,
        name,
        execution.step_time,
        problem,
        naming(problem),
        number,
        device,
        start,
        finish,
        Moves(producer, source, target, sent, received, size),
    )
