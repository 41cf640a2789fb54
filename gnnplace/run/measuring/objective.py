"""`MeasuredObjective`: measured step times of placements, as an objective for optimisers.

The step time is the shortest step of a run, because disturbances only make steps longer. If other
programs used the cores in all steps of a run, the workers' own time counts instead (the virtual
clock), unless the caller asks for a clock; the result says which.

A placement that fails (no memory, no link, a worker that dies, wrong numbers) does not raise but
gets a bad step time. A placement that the store of measurements has for this machine is not run
again, so that an interrupted optimisation continues where it stopped.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from gnnplace.errors import ExecutionError, GnnplaceError, InputError
from gnnplace.measurements import (
    CLOCKS,
    FAILED,
    OK,
    VIRTUAL,
    WALL,
    Selection,
    StepRecord,
    StoredRun,
    find_fastest,
    is_disturbed,
)
from gnnplace.measurements import Measured as Measured
from gnnplace.problem import Placement, Problem, describe_machine, placement_to_data
from gnnplace.run.checking import verify
from gnnplace.run.measuring.recording import recording, step_record
from gnnplace.run.placed import (
    AUTO,
    ExecutionOptions,
    RecordOptions,
    execute,
    execution_mode,
    with_sequences,
)
from gnnplace.run.workers import core_groups, side_by_side
from gnnplace.tracing import Program, with_program_microbatches

SOURCE = "objective"
"""What the store calls these runs; failures of others may have had other reasons."""
OPTIONS = ExecutionOptions(timeout=60.0)
UNRECORDED = RecordOptions()
PENALTY = 10.0
"""A failure counts as so many times the work of all ops on one device."""
DIED = Measured(None, "the process that measured it died")


class MeasuredObjective:
    """Seconds of a step of a program's placements; call it with a problem and a placement.

    Args:
        program: Captured at 1/M of the batch, with its tensors.
        run: How workers run a placement; whether they bring numbers back is for `check` to say.
        record: Where every run goes, and where known ones are looked up.
        clock: "wall", "virtual" (which a busy machine does not disturb), or None: by the mode, and
            virtual of a run that was disturbed from beginning to end.
        check: Whether a run that computes something else than one process has failed.
        max_age: Seconds after which what a placement took is measured again; None: never.

    Attributes:
        runs: Placements that were run.
        known: Placements that the store knew.

    Raises:
        InputError: an unknown clock.
    """

    def __init__(
        self,
        program: Program,
        *,
        run: ExecutionOptions = OPTIONS,
        record: RecordOptions = UNRECORDED,
        clock: str | None = None,
        check: bool = True,
        max_age: float | None = None,
    ) -> None:
        if clock not in (None, *CLOCKS):
            raise InputError(
                f"objective: clock {clock!r}: must be one of {', '.join(CLOCKS)}"
            )
        self.runs = 0
        self.known = 0
        self._program = program
        self._store = record.store
        self._label = record.label or program.name
        self._clock = clock
        self._options = replace(run, outputs=check)
        self._check = check
        self._memory: dict[str, Measured] = {}
        self._max_age, self._began = max_age, dict[str, datetime]()  # of runs, by key
        self._runs: dict[str, str] = {}  # of the store, by key
        self._read: set[tuple[str, str]] = set()

    def __call__(self, problem: Problem, placement: Placement) -> float:
        """Return the seconds of a step; of a failure `PENALTY` times the work on one device."""
        seconds = self.measure(problem, placement).seconds
        if seconds is None:
            return PENALTY * work(problem)
        return seconds

    def measure(self, problem: Problem, placement: Placement) -> Measured:
        """Look a placement up, or run it; a failure of the run is a result."""
        return self.measure_all(problem, [placement])[0]

    def measure_all(
        self, problem: Problem, placements: Sequence[Placement], at_once: int = 1
    ) -> list[Measured]:
        """Measure several placements, `at_once` at a time, each on cores of its own."""
        keys = [self._key(problem, placement) for placement in placements]
        for key in filter(self._is_old, keys):
            self._memory.pop(key, None)
            self._runs.pop(key, None)
        new = {
            k: p for k, p in zip(keys, placements, strict=True) if k not in self._memory
        }
        self.known += len(set(keys)) - len(new)
        jobs = {k: partial(self._run, problem, p) for k, p in new.items()}
        if len(jobs) > 1 and at_once > 1:
            groups = core_groups(at_once)
        else:
            groups = []
        if len(groups) > 1:
            describe_machine()  # known before the cores are shared out
            results = side_by_side(list(jobs.values()), groups)
            completed = [DIED if measured is None else measured for measured in results]
            self._memory.update(zip(jobs, completed, strict=True))
        else:
            for key, job in jobs.items():
                self._memory[key] = job()
        self.runs += len(jobs)
        self._began |= dict.fromkeys(jobs, datetime.now(UTC))
        return [self._with_ops(key) for key in keys]

    def _is_old(self, key: str) -> bool:
        """Return whether the last measurement of a placement is older than allowed."""
        if self._max_age is None or key not in self._began:
            return False
        return (datetime.now(UTC) - self._began[key]).total_seconds() > self._max_age

    def _key(self, problem: Problem, placement: Placement) -> str:
        """Return the key of a placement in memory, after a look into the store.

        One whose sequences cannot be completed is kept as a failure under a key of its own.
        """
        try:
            mode = self._get_mode(problem, placement)
            placement = with_sequences(problem, placement)
            self._look_up(problem.fingerprint, mode)
        except GnnplaceError as error:
            key = f"impossible {placement.device.tobytes().hex()}"
            self._memory[key] = Measured(None, str(error))
            return key
        return f"{mode} {placement_key(placement_to_data(placement, problem))}"

    def _get_mode(self, problem: Problem, placement: Placement) -> str:
        mode = self._options.mode
        if mode == AUTO:
            return execution_mode(placement, problem)
        return mode

    def _with_ops(self, key: str) -> Measured:
        """Return a result in memory with its ops, which are read when they are needed."""
        measured = self._memory[key]
        run = self._runs.get(key)
        if (
            self._store is None
            or run is None
            or measured.ops
            or measured.seconds is None
        ):
            return measured
        self._memory[key] = replace(measured, ops=op_seconds(self._store.steps(run)))
        return self._memory[key]

    def _run(self, problem: Problem, placement: Placement) -> Measured:
        program = self._program
        options = replace(self._options, mode=self._get_mode(problem, placement))
        if problem.microbatches > 1 and program.microbatches == 1:
            program = with_program_microbatches(program, problem.microbatches)
        about = {"mode": options.mode, "transport": options.transport, "source": SOURCE}
        try:
            with recording(
                self._store, self._label, problem, placement, **about
            ) as recorder:
                if recorder:
                    observer = recorder.steps
                else:
                    observer = None
                run = execute(program, problem, placement, options, observer=observer)
                if self._check:
                    verification = verify(program, run)
                else:
                    verification = None
                if verification is not None and not verification.passed:
                    raise ExecutionError(verification.summary())
            if recorder is not None:
                recorder.finish(verification)
        except GnnplaceError as error:
            return Measured(None, str(error))
        steps = [step_record(k, timing) for k, timing in enumerate(run.steps)]
        rows = [(step.wall, step.virtual, step.interrupted) for step in run.steps]
        disturbed = (
            self._counts_wall_clock(run.mode)
            and not run.uses_gpus
            and is_disturbed(rows)
        )
        clock = VIRTUAL if disturbed else self._clock
        times = {
            WALL: run.fastest_wall,
            VIRTUAL: run.fastest_virtual,
            None: run.fastest,
        }
        return Measured(times[clock], disturbed=disturbed, ops=op_seconds(steps))

    def _counts_wall_clock(self, mode: str) -> bool:
        """Return whether the wall clock counts, and nobody asked for it."""
        return self._clock is None and mode == "measured"

    def _look_up(self, fingerprint: str, mode: str) -> None:
        """Read what the store has of a problem, once; the newest run of a placement counts."""
        if self._store is None or (fingerprint, mode) in self._read:
            return
        self._read.add((fingerprint, mode))
        for run in self._store.runs(Selection(fingerprint=fingerprint, mode=mode)):
            result = self._read_result(run)
            if result is not None:
                key = f"{mode} {placement_key(self._store.placement(run.id))}"
                self._memory.setdefault(key, result)
                self._began.setdefault(key, datetime.fromisoformat(run.began))
                self._runs.setdefault(key, run.id)

    def _read_result(self, run: StoredRun) -> Measured | None:
        """Return a stored run as a result, if it is of this model and machine and says anything."""
        if run.machine != describe_machine() or run.model != self._label:
            return None
        if run.outcome.status == FAILED and run.source == SOURCE:
            return Measured(None, run.outcome.error, stored=True)
        disturbed = self._counts_wall_clock(run.mode) and run.disturbed
        seconds = find_fastest(run, VIRTUAL if disturbed else self._clock)
        good = run.outcome.status == OK and seconds
        if good:
            return Measured(seconds, stored=True, disturbed=disturbed)
        return None


def op_seconds(steps: Iterable[StepRecord]) -> dict[str, float]:
    """Return the median seconds that each op's worker computed for it."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for step in steps:
        for name, (_, _, busy) in step.ops.items():
            seconds[name].append(busy)
    return {name: median(values) for name, values in seconds.items()}


def work(problem: Problem) -> float:
    """Return the seconds of all ops in sequence, each on the fastest kind that can run it."""
    fastest = problem.kind_times.min(axis=1)
    return float(fastest[np.isfinite(fastest)].sum())


def placement_key(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 of devices and sequences in the data of a placement file."""
    parts = (
        sorted(data["device"].items()),
        sorted((data.get("sequence") or {}).items()),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()
