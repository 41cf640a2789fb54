"""A placement of a captured model run, checked against one process and kept in the store."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from gnnplace.problem import Placement, Problem
from gnnplace.run.checking import (
    DryRun,
    Verification,
    WholeBatch,
    compare_with_whole_batch,
    dry_run,
    parse_claimed_count,
    verify,
)
from gnnplace.run.measuring.eager import eager_step_time
from gnnplace.run.measuring.recording import recording
from gnnplace.run.placed import (
    AUTO,
    Execution,
    ExecutionOptions,
    RecordOptions,
    execute,
    execution_mode,
    read_unbound_placement,
)
from gnnplace.tracing import (
    CaptureOptions,
    Program,
    capture_model,
    make_workload,
    with_program_microbatches,
)

STEPS = 10  # The default number of steps of a run


@dataclass(frozen=True, eq=False)
class Executed:
    """A placement that was run, and whether it computed what one device computes.

    Attributes:
        execution: What the run took.
        verification: What it computed, against one process.
        whole: The same, against eager PyTorch on the whole batch.
        run: Its name in the store of measurements; None if it was not kept.
        fault: Why the store took no more of it; empty if it took all.
    """

    execution: Execution
    verification: Verification
    run: str | None = None
    fault: str = ""
    whole: WholeBatch = field(default_factory=WholeBatch)

    @property
    def passed(self) -> bool:
        """Return whether it computed what one process and what eager PyTorch compute."""
        return self.verification.passed and self.whole.passed

    def summary(self) -> str:
        """Return in one line what was compared, or what is wrong."""
        wrong = [part for part in (self.verification, self.whole) if not part.passed]
        return (wrong[0] if wrong else self.verification).summary()


def execute_placement(
    model: str | Program,
    problem: Problem,
    placement: Placement,
    *,
    options: CaptureOptions | None = None,
    run: ExecutionOptions | None = None,
    record: RecordOptions | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Executed:
    """Run a placement for real and check it against one process.

    Args:
        model: The captured model at 1/M of the batch, or its name.
        problem: What the placement is of.
        placement: The devices of the ops, and their sequences if it has any.
        options: The options that the model was captured with.
        run: How workers run it; ten steps, and else the defaults, without it.
        record: Where every measured step is stored, and why the run failed if it fails; nothing is
            kept without it.
        progress: Called with a line when something begins that takes seconds.

    Raises:
        ExecutionError: a worker died, hung or failed.
    """
    options = options or CaptureOptions()
    if isinstance(model, str):
        program = capture_model(model, options=options)
    else:
        program = model
    if problem.microbatches > 1 and program.microbatches == 1:
        program = with_program_microbatches(program, problem.microbatches)
    run = run or ExecutionOptions(steps=STEPS)
    record = record or RecordOptions()
    if run.mode == AUTO:
        run = replace(run, mode=execution_mode(placement, problem))
    name = record.label or (model if isinstance(model, str) else program.name)
    about = {"mode": run.mode, "transport": run.transport, "source": record.source}
    progress(f"running {run.steps} steps on {problem.num_devices} workers ({run.mode})")
    with recording(record.store, name, problem, placement, **about) as recorder:
        observer = recorder.steps if recorder else None
        execution = execute(program, problem, placement, run, observer=observer)
        # Of several hosts one compares and records; the others have only run.
        if not run.reports:
            return Executed(execution, Verification(0, ()))
        progress("comparing with one process")
        verification = verify(program, execution)
    # One process runs the captured graph: eager PyTorch also checks the capture itself.
    progress("comparing with eager PyTorch on the whole batch")
    whole_batch = compare_with_whole_batch(
        program, execution.first, on_gpus=execution.uses_gpus
    )
    if recorder is None:
        return Executed(execution, verification, whole=whole_batch)
    recorder.finish(verification)
    return Executed(
        execution=execution,
        verification=verification,
        run=recorder.run,
        fault=recorder.fault,
        whole=whole_batch,
    )


def dry_run_placement(
    model: str | Program,
    placement: Placement | str | Path,
    problem: Problem | None = None,
    *,
    options: CaptureOptions | None = None,
    claim: str = "cuda:4",
) -> DryRun:
    """Check without a GPU whether a placement would run on GPUs: see `dry_run`.

    Both the workers of `execute` and those of `gnnplace.compile` are walked.

    Args:
        model: The captured model at 1/M of the batch, or its name; then nothing is allocated.
        placement: The placement, or its file.
        problem: What the placement is of, if it is at hand.
        options: The options that the model was captured with. A placement's file has them.
        claim: "cuda:N": the GPUs that are claimed; device d of the placement becomes "cuda:d".

    Raises:
        InputError: the placement uses more devices than are claimed.
        MismatchError: the placement is of another model.
    """
    options = options or CaptureOptions()
    parse_claimed_count(claim)
    unbound = read_unbound_placement(
        placement,
        problem,
        microbatches=options.microbatches,
        groups=options.groups,
        dtype=options.dtype,
        constraints=options.constraints,
    )
    if isinstance(model, str):
        program = capture_model(model, options=options, fake=True)
    else:
        program = model
    problem, placement = unbound.bind(program, problem, anywhere=True)
    if program.microbatches == 1:
        program = with_program_microbatches(program, problem.microbatches)
    walks = [dry_run(program, problem, placement, claim=claim)]
    if program.loss is not None:
        walks.append(dry_run(program, problem, placement, claim=claim, standing=True))
    return next((walk for walk in walks if not walk.passed), walks[0])


def eager_times(
    model: str,
    options: CaptureOptions | None = None,
    progress: Callable[[str], None] | None = None,
) -> dict[int, float]:
    """Measure the seconds of an eager PyTorch step on the whole batch, by number of CPU cores."""
    options = options or CaptureOptions()
    workload = make_workload(model)
    return {
        threads: eager_step_time(
            workload.model,
            workload.inputs,
            threads=threads,
            loss=workload.loss,
            optimizer=options.optimizer,
            progress=progress,
        )
        for threads in sorted({1, len(os.sched_getaffinity(0))})
    }
