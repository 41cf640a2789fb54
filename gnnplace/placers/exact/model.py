"""The constraint model of placing and scheduling one step, for CP-SAT (ortools).

Formulation, with the method of each constraint. Times are whole multiples of a time unit.

* a unit (colocation class) is on one of its allowed devices: kinds, pins, colocation (``_assign``);
* an op runs without a break on its unit's device, a device runs one op at a time (``_run_ops``);
* an op starts after its inputs' producers have finished (``_precede``);
* a tensor is sent once to every other device with a consumer, after its producer; a channel serves
  one tensor at a time, and a tensor holds all channels of its link; it arrives a latency later;
  without a link the pair of devices is forbidden; a busy sender makes the copy itself; overheads
  occupy their device (``_send``); tensors of one op with the same readers are sent as one, which
  delays none of them (``bundling``);
* the state of a device's units, and with it the inputs and outputs of each op of theirs alone,
  fit into its memory (``_remember``);
* the step lasts until the last finish, and at least as long as any device's work (``_last``);
* equal devices are first used in the order they are listed (``_break_symmetry``).

It is a relaxation of the simulated step, so its least step time is a lower bound:

* channels serve in any order and may idle, the simulator's serve first come, first served, which
  ``_queue`` adds on request;
* copies and overheads may come at any time between producer and consumer, the simulator's come at
  once after the producer or right before the consumer;
* activations count only as said above, not by the lifetimes of all tensors on a device;
* durations are rounded down. Starts rounded down then keep every constraint, because
  ``floor(a + b) >= floor(a) + floor(b)``, so a bound in units times the unit is a bound in
  seconds. It loses less than one unit for each op and transfer on the longest path.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gnnplace.arrays import IntArray
from gnnplace.graph import downward_rank
from gnnplace.placers.exact.input import (
    Bundle,
    Scale,
    bundles,
    equal_devices,
    serial_time,
    use_order,
)
from gnnplace.placers.search.space import SearchSpace
from gnnplace.simulation import Simulation, compute_least_times, split_message_seconds

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import IntervalVar, IntVar, LinearExpr

MOST_BYTES = 2.0**60  # What the solver's whole numbers hold.


class Queued(NamedTuple):
    """A send on a channel: producer, where, its finish, whether it is needed, its service."""

    producer: int
    source: int
    finish: Any
    needed: Any
    start: Any
    end: Any


class ScheduleModel:
    """A CP-SAT model of a problem, whole or with most decisions fixed.

    Args:
        space: the problem's search space.
        scale: the scale of the times; the step must end within its horizon.
        options: devices that each unit may be on.
        chains: pairs of ops that share a device and run in this order.
        symmetry: whether equal devices are told apart by their first use.
        queues: whether channels serve first come, first served; a larger model.
    """

    def __init__(
        self,
        space: SearchSpace,
        scale: Scale,
        options: list[list[int]],
        chains: list[tuple[int, int]] | None = None,
        symmetry: bool = False,
        queues: bool = False,
    ) -> None:
        # Imported late: it takes a second, and other placers do not need it.
        from ortools.sat.python import cp_model

        self.space = space
        self.scale = scale
        self.options = options
        self.queues = queues
        self.problem = space.problem
        self.model = cp_model.CpModel()
        self.unit_of = self.problem.unit_of.tolist()
        self.limit = int(scale.down(scale.horizon))
        self.far = self.limit + int(scale.down(serial_time(self.problem))) + 1
        self.time = scale.down(np.where(self.problem.allowed, self.problem.times, 0.0))
        self.on_device: list[list[Any]] = [[] for _ in range(self.problem.num_devices)]
        self.on_channel: dict[int, list[Any]] = {}
        self.queued: dict[int, list[Queued]] = {}
        self.sent: dict[tuple[int, int], Any] = {}
        self._needs: dict[tuple[int, tuple[int, ...], int, int], Any] = {}
        self._assign()
        self._run_ops()
        self._precede(chains or [])
        self._send(queues)
        self._remember()
        self._last()
        if symmetry:
            self._break_symmetry()
        for intervals in (*self.on_device, *self.on_channel.values()):
            if len(intervals) > 1:
                self.model.add_no_overlap(intervals)
        if queues:
            self._queue()
        self.model.minimize(self.step)

    def _assign(self) -> None:
        self.x: list[dict[int, Any]] = []
        for u, devices in enumerate(self.options):
            if len(devices) == 1:
                self.x.append({devices[0]: self.model.new_constant(1)})
            elif len(devices) == 2:
                first = self.model.new_bool_var(f"x{u}")
                self.x.append({devices[0]: first, devices[1]: ~first})
            else:
                row = {d: self.model.new_bool_var(f"x{u},{d}") for d in devices}
                self.model.add_exactly_one(row.values())
                self.x.append(row)

    def _run_ops(self) -> None:
        problem = self.problem
        shortest_times = compute_least_times(problem)
        head = downward_rank(
            problem.graph, shortest_times, np.zeros(len(problem.graph.edges[0]))
        )
        slack = self.scale.horizon - self.space.compiled.tail - shortest_times
        # A unit of room for what floating-point sums lose.
        low = np.maximum(0, self.scale.down(head) - 1).tolist()
        high = np.minimum(
            self.limit, self.scale.down(np.maximum(slack, 0)) + 1
        ).tolist()
        self.start = [
            self.model.new_int_var(low[i], max(low[i], high[i]), f"s{i}")
            for i in range(len(low))
        ]
        self.finish: list[Any] = []
        for op, start in enumerate(self.start):
            row = self.x[self.unit_of[op]]
            times = {d: int(self.time[op, d]) for d in row}
            for d, literal in row.items():
                self.on_device[d].append(self._interval(start, times[d], literal))
            shortest = min(times.values())
            extra = [
                (times[d] - shortest) * x for d, x in row.items() if times[d] > shortest
            ]
            self.finish.append(start + shortest + sum(extra))

    def _interval(self, start: LinearExpr, size: int, literal: IntVar) -> IntervalVar:
        return self.model.new_optional_fixed_size_interval_var(start, size, literal, "")

    def _precede(self, chains: list[tuple[int, int]]) -> None:
        source, target, _ = self.problem.graph.edges
        pairs = dict.fromkeys(
            [*zip(source.tolist(), target.tolist(), strict=True), *chains]
        )
        for first, second in pairs:
            self.model.add(self.start[second] >= self.finish[first])

    def _send(self, runs: bool) -> None:
        for bundle in bundles(self.problem, runs=runs):
            producer_unit = self.unit_of[bundle.producer]
            for source in self.options[producer_unit]:
                targets = {
                    d for c in bundle.readers for d in self.options[self.unit_of[c]]
                }
                for target in sorted(targets - {source}):
                    self._send_one(bundle, source, target)

    def _send_one(self, bundle: Bundle, source: int, target: int) -> None:
        producer_unit = self.unit_of[bundle.producer]
        cluster = self.problem.cluster
        readers = [c for c in bundle.readers if target in self.x[self.unit_of[c]]]
        units = tuple(sorted({self.unit_of[c] for c in readers}))
        if not cluster.linked[source, target]:
            for u in units:
                self.model.add_bool_or(
                    ~self.x[producer_unit][source], ~self.x[u][target]
                )
            return
        size = float(self.problem.graph.size[list(bundle.tensors)].sum())
        seconds = split_message_seconds(
            cluster, source, target, size, len(bundle.tensors)
        )
        service, latency, send, receive = (
            int(units) for units in self.scale.down(seconds)
        )
        if service + latency + send + receive == 0:
            return
        # One copy a target, which needs the link only if both ends are there.
        needed = self._is_needed(producer_unit, units, source, target)
        start = self._sending(bundle, target)
        if service > 0:
            copy = self._interval(start, service, needed)
            finish = self.finish[bundle.producer]
            queued = Queued(
                producer=bundle.producer,
                source=source,
                finish=finish,
                needed=needed,
                start=start,
                end=start + service,
            )
            for channel in cluster.channels[source, target].tolist():
                if channel >= 0:
                    self.on_channel.setdefault(channel, []).append(copy)
                    self.queued.setdefault(channel, []).append(queued)
            if cluster.sender_busy[source, target]:
                self.on_device[source].append(copy)
        # Overheads take time of the sender after its op, and of the receiver before its readers.
        arrival = start + service + latency
        if send > 0:
            self._overhead(source, send, needed, self.finish[bundle.producer])
        if receive > 0:
            arrival = self._overhead(target, receive, needed, arrival) + receive
        for c in readers:
            read = [needed, self.x[self.unit_of[c]][target]]
            self.model.add(self.start[c] >= arrival).only_enforce_if(*read)

    def _is_needed(
        self, own: int, units: tuple[int, ...], source: int, target: int
    ) -> IntVar:
        """Return whether a unit on ``source`` sends what ``units`` read to ``target``."""
        key = (own, units, source, target)
        if key not in self._needs:
            on_source = self.x[own][source]
            readers = [self.x[u][target] for u in units]
            needed = self.model.new_bool_var("")
            self.model.add_implication(needed, on_source)
            self.model.add_bool_or(~needed, *readers)
            for reader in readers:
                self.model.add_bool_or(~on_source, ~reader, needed)
            self._needs[key] = needed
        return self._needs[key]

    def _sending(self, bundle: Bundle, target: int) -> IntVar:
        """Return the start of service of a bundle towards a device; one variable for all its
        sources.
        """
        key = (bundle.tensors[0], target)
        if key not in self.sent:
            start = self.model.new_int_var(0, self.limit, f"t{key[0]},{target}")
            self.model.add(start >= self.finish[bundle.producer])
            self.sent[key] = start
        return self.sent[key]

    def _overhead(
        self, device: int, size: int, needed: IntVar, after: LinearExpr
    ) -> IntVar:
        start = self.model.new_int_var(0, self.far, "")
        self.model.add(start >= after).only_enforce_if(needed)
        self.on_device[device].append(self._interval(start, size, needed))
        return start

    def _queue(self) -> None:
        """Serve of two sends on a channel the one first whose producer finishes first.

        Tensors of one op are served as listed. Whole finishes are less than two units before the
        true ones where times are rounded, so only finishes that far apart decide.
        """
        slack = 0 if self.scale.exact else 1
        for sends in self.queued.values():
            for a, b in combinations(sends, 2):
                both = (a.needed, b.needed)
                if a.producer == b.producer:
                    if a.source == b.source:
                        self.model.add(a.end <= b.start).only_enforce_if(*both)
                    continue
                first = self.model.new_bool_var("")
                for earlier, second, order in ((a, b, first), (b, a, ~first)):
                    conditions = (order, *both)
                    self.model.add(
                        earlier.finish <= second.finish + slack
                    ).only_enforce_if(*conditions)
                    self.model.add(earlier.end <= second.start).only_enforce_if(
                        *conditions
                    )

    def _remember(self) -> None:
        if not self.space.memory_matters:
            return
        state = np.floor(self.problem.unit_state).astype(np.int64).tolist()
        touched = self._find_touched_bytes()
        limits = np.ceil(np.minimum(self.problem.cluster.memory, MOST_BYTES)).astype(
            np.int64
        )
        for d, memory in enumerate(limits.tolist()):
            units = [u for u, row in enumerate(self.x) if d in row]
            resident = sum(state[u] * self.x[u][d] for u in units)
            self.model.add(resident <= memory)
            for u in units:
                if touched[u] > 0:
                    self.model.add(resident + touched[u] * self.x[u][d] <= memory)

    def _find_touched_bytes(self) -> list[int]:
        """Return the most bytes that one op of positive time reads and writes, of each unit. [U]"""
        graph = self.problem.graph
        shortest_times = compute_least_times(self.problem)
        touched = np.bincount(graph.producer, graph.size, graph.num_ops)
        read = np.unique(np.stack([graph.consumer, graph.consumption_tensor]), axis=1)
        touched += np.bincount(read[0], graph.size[read[1]], graph.num_ops)
        result = np.zeros(self.problem.num_units)
        np.maximum.at(
            result, self.problem.unit_of, np.where(shortest_times > 0, touched, 0.0)
        )
        return [int(size) for size in np.floor(result)]

    def _last(self) -> None:
        self.step = self.model.new_int_var(0, self.limit, "step")
        ends = np.diff(self.problem.graph.successor_offset) == 0
        for op in np.flatnonzero(ends):
            self.model.add(self.step >= self.finish[op])
        work = np.zeros(
            (self.problem.num_units, self.problem.num_devices), dtype=np.int64
        )
        np.add.at(work, self.problem.unit_of, self.time)
        for d in range(self.problem.num_devices):
            load = [
                int(work[u, d]) * row[d] for u, row in enumerate(self.x) if d in row
            ]
            self.model.add(self.step >= sum(load))

    def _break_symmetry(self) -> None:
        for members in equal_devices(self.problem):
            for former, later in pairwise(members):
                self._find_used_after(former, later)

    def _find_used_after(self, former: int, later: int) -> None:
        earlier: list[Any] = []
        for u in use_order(self.space).tolist():
            row = self.x[u]
            if later in row:
                self.model.add_bool_or(~row[later], *earlier)
            if former in row:
                earlier.append(row[former])

    def hint(self, simulation: Simulation, label: IntArray) -> None:
        """Start the search from a simulated step, its devices renamed to ``label``. [D]"""
        device = label[simulation.device]
        for op, start in enumerate(self.scale.down(simulation.start).tolist()):
            self.model.add_hint(self.start[op], start)

        # Two options are one variable and its negation, so that one hint is enough.
        for u, on in enumerate(self.space.find_unit_devices(device).tolist()):
            if len(self.options[u]) > 1:
                for d, literal in self.x[u].items():
                    if len(self.options[u]) > 2 or d == self.options[u][0]:
                        self.model.add_hint(literal, int(on == d))

        sends = simulation.transfers
        tensors = sends.tensor.tolist()
        targets = label[sends.target].tolist()
        starts = self.scale.down(sends.start).tolist()
        for tensor, target, start in zip(tensors, targets, starts, strict=True):
            if (tensor, target) in self.sent:
                self.model.add_hint(self.sent[tensor, target], start)
        self.model.add_hint(self.step, int(self.scale.down(simulation.step_time)))
