"""The micro-batch transform: a problem whose batch is cut into M shares in flight together.

Every forward and backward op ``x`` becomes ``x#0`` ... ``x#M-1``, all on one device because they
share parameters. Update ops stay single and read the gradients of all copies. Times and bytes are
divided by M, unless the caller profiled at 1/M of the batch and passes ``scale=1``. State counts
once (on ``x#0``). Ops are listed micro-batch by micro-batch, updates last. If copies change the
same buffer (batch norm's running mean), each runs after the one before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gnnplace.errors import InputError
from gnnplace.graph import ComputationGraph
from gnnplace.problem import UPDATE, Problem

T = TypeVar("T")
MOST_MICROBATCHES = 4_096
"""Shares of a batch: there is a copy of every op for each."""


def check_microbatches(count: int) -> None:
    """Refuse a number of micro-batches that no step has.

    Raises:
        InputError: it is no whole number from 1 to ``MOST_MICROBATCHES``.
    """
    if not isinstance(count, int) or not 1 <= count <= MOST_MICROBATCHES:
        rule = f"must be a whole number from 1 to {MOST_MICROBATCHES}"
        raise InputError(f"microbatches {count!r}: {rule}")


def with_microbatches(
    problem: Problem,
    count: int,
    *,
    profiled: bool = False,
    turns: Iterable[tuple[int, int]] = (),
) -> Problem:
    """Split the batch of ``problem`` into ``count`` micro-batches.

    Args:
        problem: one whole step, not cut yet.
        count: number of micro-batches M; 1 returns ``problem`` itself.
        profiled: times and bytes already are those of 1/M of the batch.
        turns: pairs of ops (a, b) of the problem where ``b`` touches a buffer that ``a`` changes:
            ``b#k+1`` comes after ``a#k``, by a tensor of no bytes.

    Raises:
        InputError: ``count`` is out of its range, or the problem is already cut.
    """
    check_microbatches(count)
    if problem.microbatches != 1:
        raise InputError(
            f"problem {problem.name!r} already has {problem.microbatches} micro-batches; "
            "start from the one without"
        )
    if count == 1:
        return problem
    return _Copies(problem, count, tuple(turns)).problem(1 if profiled else count)


class _Copies:
    """Indices of the copies of every op. ``self.copy``: [M, num_ops]"""

    def __init__(
        self, problem: Problem, count: int, turns: tuple[tuple[int, int], ...]
    ) -> None:
        self.source = problem
        self.count = count
        self.turns = turns
        self.single = problem.phase == UPDATE
        cut = np.flatnonzero(~self.single)
        updates = np.flatnonzero(self.single)
        self.origin = np.concatenate([np.tile(cut, count), updates])
        shares = np.repeat(np.arange(count), len(cut))
        self.share = np.concatenate([shares, np.full(len(updates), -1)])
        self.copy = np.empty((count, problem.num_ops), dtype=np.int64)
        self.copy[:, cut] = np.arange(count * len(cut)).reshape(count, -1)
        self.copy[:, updates] = count * len(cut) + np.arange(len(updates))

    def problem(self, scale: int) -> Problem:
        p = self.source
        divisor = np.where(self.share >= 0, float(scale), 1.0)
        state = p.state[self.origin]
        state[self.share > 0] = 0.0
        return replace(
            p,
            graph=self._graph(scale),
            time={
                kind: seconds[self.origin] / divisor for kind, seconds in p.time.items()
            },
            state=state,
            phase=p.phase[self.origin],
            colocate=self._colocate(),
            pin=p.pin[self.origin],
            module=self._take(p.module),
            members=self._members(),
            estimated=p.estimated[self.origin],
            error={kind: values[self.origin] for kind, values in p.error.items()},
            source={kind: self._take(named) for kind, named in p.source.items()},
            microbatches=self.count,
            forbid=None if p.forbid is None else p.forbid[self.origin],
        )

    def _take(self, values: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(values[i] for i in self.origin)

    def _add_suffix(self, name: str, share: int) -> str:
        if share < 0:
            return name
        return f"{name}#{share}"

    def _colocate(self) -> tuple[str | None, ...]:
        names = self.source.graph.names
        labels = self.source.colocate
        taken = {label for label in labels if label is not None}
        return tuple(
            labels[i] if labels[i] is not None or share < 0 else _fresh(names[i], taken)
            for i, share in zip(self.origin, self.share, strict=True)
        )

    def _members(self) -> tuple[tuple[str, ...], ...]:
        members = self.source.members
        return tuple(
            tuple(self._add_suffix(name, share) for name in members[i])
            for i, share in zip(self.origin, self.share, strict=True)
        )

    def _graph(self, scale: int) -> ComputationGraph:
        old = self.source.graph
        names = [
            self._add_suffix(old.names[i], share)
            for i, share in zip(self.origin, self.share, strict=True)
        ]
        cut = np.flatnonzero(~self.single[old.producer])
        tensors = []
        for copy in self.copy:
            for k in cut:
                tensors.append(
                    (
                        int(copy[old.producer[k]]),
                        float(old.size[k]) / scale,
                        copy[old.consumers(int(k))],
                    )
                )
        tensors += self._turn_tensors() + self._update_tensors()
        return ComputationGraph.from_tensors(names, tensors)

    def _turn_tensors(self) -> list[tuple[int, float, NDArray[Any]]]:
        """Return tensors without bytes that order ops which touch the same buffer.

        Each goes from an op that changes the buffer to the next micro-batch's ops that touch it.
        """
        touching: dict[int, list[int]] = {}
        for writer, toucher in self.turns:
            touching.setdefault(writer, []).append(toucher)
        return [
            (int(self.copy[k, writer]), 0.0, self.copy[k + 1, touching[writer]])
            for k in range(self.count - 1)
            for writer in sorted(touching)
        ]

    def _update_tensors(self) -> list[tuple[int, float, NDArray[Any]]]:
        """Return the tensors of update ops. Each goes, whole, to every copy of its consumers."""
        old = self.source.graph
        return [
            (int(self.copy[0, old.producer[k]]), float(old.size[k]), targets)
            for k in np.flatnonzero(self.single[old.producer])
            for targets in [np.unique(self.copy[:, old.consumers(int(k))])]
        ]


def _fresh(name: str, taken: set[str]) -> str:
    """Return a new colocation class for the copies of op ``name``."""
    if name not in taken:
        return name
    return _fresh(f"{name}#", taken)
