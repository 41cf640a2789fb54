"""A slow, literal simulator of the step-time semantics, written from the format's text alone.

It keeps explicit queues and walks from event to event with exact fractions, so that "the same
instant" is never a matter of rounding.
"""

from __future__ import annotations

from fractions import Fraction

from gnnplace.problem import Problem


class Oracle:
    """One simulated step; see ``step_time``, ``start``, ``finish`` and ``peak_memory``."""

    def __init__(
        self, problem: Problem, device: list[int], sequence: list[list[int]]
    ) -> None:
        self.p, self.device, self.sequence = problem, device, sequence
        graph = problem.graph
        self.tensors = [
            (
                int(graph.producer[k]),
                Fraction(graph.size[k]),
                [int(c) for c in graph.consumers(k)],
            )
            for k in range(graph.num_tensors)
        ]
        self.start: dict[int, Fraction] = {}
        self.finish: dict[int, Fraction] = {}
        self.sends: list[dict] = []
        self.deadlock = self.no_link = False
        self._run()

    def _cost(self, op: int) -> Fraction:
        return Fraction(self.p.times[op, self.device[op]])

    def _run(self) -> None:
        n, num_devices = self.p.num_ops, self.p.num_devices
        self.free = [Fraction(0)] * num_devices
        self.channel_free: dict[object, Fraction] = {}
        self.arrival: dict[
            tuple[int, int], Fraction
        ] = {}  # (tensor, device) -> when it is there
        self.next = [0] * num_devices
        self.running: dict[int, int] = {}
        self._start_what_can()
        while len(self.finish) < n:
            if not self.running:
                self.deadlock = True
                return
            now = min(self.start[op] + self._cost(op) for op in self.running.values())
            self._instant(now)
            if self.no_link:
                return

    def _instant(self, now: Fraction) -> None:
        done: list[int] = []
        held: set[int] = set()
        while True:
            ends = [
                (d, op)
                for d, op in self.running.items()
                if self.start[op] + self._cost(op) == now
            ]
            if not ends:
                break
            for d, op in ends:
                del self.running[d]
                self.finish[op] = now
                self.free[d] = now
                done.append(op)
                for k, (producer, _, _) in enumerate(self.tensors):
                    if producer == op:
                        self.arrival[k, d] = now
                if self._has_costly_send(op):
                    held.add(d)
            self._start_what_can(held)
        for op in sorted(done):
            self._queue_sends(op, now)
            if self.no_link:
                return
        self._start_what_can()

    def _targets(self, tensor: int) -> list[int]:
        producer, _, consumers = self.tensors[tensor]
        return sorted({self.device[c] for c in consumers} - {self.device[producer]})

    def _has_costly_send(self, op: int) -> bool:
        cluster, d = self.p.cluster, self.device[op]
        return any(
            cluster.sender_busy[d, t] or cluster.send_overhead[d, t] > 0
            for k, (producer, _, _) in enumerate(self.tensors)
            if producer == op
            for t in self._targets(k)
        )

    def _queue_sends(self, op: int, now: Fraction) -> None:
        cluster, d = self.p.cluster, self.device[op]
        overhead = Fraction(0)
        for k, (producer, size, _) in enumerate(self.tensors):
            if producer != op:
                continue
            for t in self._targets(k):
                channels = self._channels(d, t)
                if not channels:
                    self.no_link = True
                    return
                begin = max(
                    [now, *(self.channel_free.get(c, Fraction(0)) for c in channels)]
                )
                if cluster.sender_busy[d, t]:
                    begin = max(begin, self.free[d])
                end = begin + size / Fraction(cluster.bandwidth[d, t])
                for channel in channels:
                    self.channel_free[channel] = end
                if cluster.sender_busy[d, t]:
                    self.free[d] = end
                overhead += Fraction(cluster.send_overhead[d, t])
                self.arrival[k, t] = end + Fraction(cluster.latency[d, t])
                self.sends.append(
                    {"tensor": k, "target": t, "begin": begin, "end": end}
                )
        self.free[d] += overhead

    def _channels(self, d: int, t: int) -> list[object]:
        """Names of what the link holds, the link itself if it names none; empty without a link."""
        names = [device.name for device in self.p.cluster.devices]
        for link in self.p.cluster.links:
            if (link.source, link.target) == (names[d], names[t]):
                held = (
                    [link.channel]
                    if isinstance(link.channel, str)
                    else list(link.channel or ())
                )
                return held or [(d, t)]
        return []

    def _start_what_can(self, held: set[int] = frozenset()) -> None:
        for d in range(self.p.num_devices):
            if d in self.running or d in held or self.next[d] == len(self.sequence[d]):
                continue
            op = self.sequence[d][self.next[d]]
            inputs = [
                k for k, (_, _, consumers) in enumerate(self.tensors) if op in consumers
            ]
            if any((k, d) not in self.arrival for k in inputs):
                continue
            begin = max([self.free[d], *(self.arrival[k, d] for k in inputs)])
            begin += self._receive_overhead(op, d, inputs)
            self.start[op] = begin
            self.running[d] = op
            self.next[d] += 1

    def _receive_overhead(self, op: int, d: int, inputs: list[int]) -> Fraction:
        total = Fraction(0)
        for k in inputs:
            producer, _, consumers = self.tensors[k]
            here = [c for c in consumers if self.device[c] == d]
            first = min(here, key=self.sequence[d].index)
            if self.device[producer] != d and first == op:
                total += Fraction(
                    self.p.cluster.receive_overhead[self.device[producer], d]
                )
        return total

    @property
    def step_time(self) -> float:
        return float(max(self.finish.values()))

    def peak_memory(self) -> list[float]:
        lives = []
        for k, (producer, size, consumers) in enumerate(self.tensors):
            d = self.device[producer]
            ends = [self.finish[producer]]
            ends += [self.finish[c] for c in consumers if self.device[c] == d]
            ends += [send["end"] for send in self.sends if send["tensor"] == k]
            lives.append((d, self.start[producer], max(ends), size))
            for send in self.sends:
                if send["tensor"] == k:
                    t = send["target"]
                    last = max(self.finish[c] for c in consumers if self.device[c] == t)
                    lives.append((t, send["begin"], last, size))
        peaks = []
        for d in range(self.p.num_devices):
            mine = [life for life in lives if life[0] == d]
            state = sum(
                Fraction(s)
                for s, x in zip(self.p.state, self.device, strict=True)
                if x == d
            )
            alive = [
                sum(z for _, b, e, z in mine if b <= t < e)
                for t in {m[1] for m in mine}
            ]
            peaks.append(float(state + max([Fraction(0), *alive])))
        return peaks
