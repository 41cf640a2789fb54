"""Keeps a run in the store of measurements: what ran, its steps as they come, how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from gnnplace.errors import GnnplaceError
from gnnplace.measurements import (
    FAILED,
    INTERRUPTED,
    OK,
    MeasurementStore,
    Outcome,
    RunRecord,
    StepRecord,
)
from gnnplace.problem import (
    Placement,
    Problem,
    describe_machine,
    list_versions,
    placement_to_data,
    problem_to_data,
)
from gnnplace.run.checking import Verification
from gnnplace.run.placed import StepTiming, with_sequences
from gnnplace.simulation import simulate


class Recorder:
    """Writes one run to a store.

    A store that fails in mid-run does not end the run: nothing more is written then, and `fault`
    says why.

    Attributes:
        run: Name of the run in the store.
        fault: Why the store took no more; empty if it took all.
    """

    def __init__(self, store: MeasurementStore, record: RunRecord) -> None:
        self.run = record.id
        self.fault = ""
        self._store = store
        store.begin(record)

    def steps(self, first: int, timings: Sequence[StepTiming]) -> None:
        """Store steps; an `Observer` of `execute`."""
        records = [step_record(first + k, timing) for k, timing in enumerate(timings)]
        self._write(lambda: self._store.add_steps(self.run, records))

    def finish(self, verification: Verification | None) -> None:
        """Store that the run ended well, and whether it computed the right thing, if known."""
        outcome = Outcome(OK)
        if verification is not None:
            outcome = Outcome(
                OK, verified=verification.passed, bitwise=verification.bitwise
            )
        self._write(lambda: self._store.end(self.run, outcome))

    def fail(self, error: BaseException) -> None:
        """Store why the run failed."""
        if isinstance(error, GnnplaceError):
            text = str(error)
        else:
            text = repr(error)
        outcome = Outcome(FAILED, " ".join(text.split()))
        self._write(lambda: self._store.end(self.run, outcome))

    def interrupt(self) -> None:
        """Store that the run was broken off, by Ctrl-C or the like."""
        self._write(lambda: self._store.end(self.run, Outcome(INTERRUPTED)))

    def _write(self, write: Callable[[], None]) -> None:
        if self.fault:
            return
        try:
            write()
        except GnnplaceError as error:
            self.fault = str(error)


@contextmanager
def recording(
    store: MeasurementStore | None,
    model: str,
    problem: Problem,
    placement: Placement,
    **about: str,
) -> Iterator[Recorder | None]:
    """Record what runs inside, and that it failed if it raises; yields None without a store.

    A run that is interrupted (Ctrl-C) did not fail, and is kept as interrupted.

    Args:
        store: The store to keep it in.
        model: The model, as `run_record` takes it, as all others.
        problem: The problem with the times and links to predict with.
        placement: The placement of the problem.
        **about: Mode, transport and source.
    """
    if store is None:
        yield None
        return
    recorder = Recorder(store, run_record(model, problem, placement, **about))
    try:
        yield recorder
    except Exception as error:
        recorder.fail(error)
        raise
    except BaseException:
        recorder.interrupt()
        raise


def run_record(
    model: str,
    problem: Problem,
    placement: Placement,
    *,
    mode: str,
    transport: str,
    source: str = "execute",
) -> RunRecord:
    """Describe a run before it starts, with its predicted step time.

    Args:
        model: The model, as the caller named it.
        problem: The problem with the times and links to predict with.
        placement: The placement of the problem.
        mode: "measured" or "emulated".
        transport: How tensors will travel.
        source: What makes the run.

    Raises:
        DeadlockError: the placement's sequences contradict the graph.
    """
    placement = with_sequences(problem, placement)
    predicted = simulate(problem, placement).step_time
    return RunRecord(
        model=model,
        problem=problem_to_data(problem),
        fingerprint=problem.fingerprint,
        placement=placement_to_data(placement, problem),
        predicted=predicted if np.isfinite(predicted) else None,
        mode=mode,
        transport=transport,
        machine=describe_machine(),
        versions=list_versions(),
        source=source,
    )


def step_record(step: int, timing: StepTiming) -> StepRecord:
    """Return a measured step as the store has it."""
    return StepRecord(
        step=step,
        wall=timing.wall,
        virtual=timing.virtual,
        interrupted=timing.interrupted,
        ops={
            op.op: (
                op.start,
                op.finish,
                op.finish - op.start if op.busy is None else op.busy,
            )
            for op in timing.ops
        },
        transfers=tuple(
            (t.value, t.producer, t.source, t.target, float(t.bytes), t.start, t.finish)
            for t in timing.transfers
        ),
    )
