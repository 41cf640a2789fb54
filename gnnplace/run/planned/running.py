"""`run_plan`: a plan on worker processes of this machine, or on those that torchrun started.

Workers are supervised: if one dies, fails or makes no progress, the run ends with one line that
names the worker and its current action. Nothing is written before all workers are done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from gnnplace.errors import MismatchError
from gnnplace.plans import MESSAGES, PASSES, Action, Plan, check_plan
from gnnplace.run.checking import Verification
from gnnplace.run.planned.seats import make_seats
from gnnplace.run.planned.stages import check_model
from gnnplace.run.planned.trial import LOSSES, Trial, loss_difference, run_trial
from gnnplace.run.workers import make_shared_words, run_group
from gnnplace.tracing import load, make_workload, refuse_meta
from gnnplace.zoo import Workload

KINDS = (*PASSES, *MESSAGES)
WORDS = 8  # 64 bytes: words of different workers on lines of their own


@dataclass(frozen=True)
class PlanRun:
    """A plan that was run for real.

    Attributes:
        plan: the plan that was run.
        verification: loss and gradients of a step against one device's, in double precision where
            they are not bitwise equal in the model's own.
        single: the worst relative difference in the model's own precision; 0: bitwise equal.
        losses: Losses of the steps of AdamW under the plan.
        expected: Losses of the same steps on one device.
        seconds: measured wall seconds of every timed step.
        doubled: whether the losses are of double precision.
        beside: measured wall seconds of every timed step of what ran by turns with it, by name.
    """

    plan: Plan
    verification: Verification
    single: float
    losses: tuple[float, ...]
    expected: tuple[float, ...]
    seconds: tuple[float, ...]
    doubled: bool = False
    beside: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def measured(self) -> float | None:
        """Return the median measured seconds of a step."""
        if self.seconds:
            return median(self.seconds)
        return None

    @property
    def apart(self) -> float:
        """Return the largest relative difference between the losses of the two trainings."""
        return loss_difference(self.losses, self.expected)

    @property
    def passed(self) -> bool:
        """Return whether gradients and losses are within their tolerances.

        Halves have 2^16 times larger roundings than single precision; losses follow them.
        """
        if self.plan.file.precision == "32-true":
            looser = 1.0
        else:
            looser = 200.0
        return self.verification.passed and self.apart <= LOSSES * looser

    @property
    def covered(self) -> bool | None:
        """Return whether the predicted interval contains the measured time, or None."""
        interval = self.plan.file.interval
        if interval is None or self.measured is None:
            return None
        return interval[0] <= self.measured <= interval[1]

    def answer(self) -> dict[str, Any]:
        """Return what `execute --json` prints."""
        return {
            "mode": "measured",
            "step_time": self.measured,
            "predicted_step_time": self.plan.file.step_time,
            "interval": self.plan.file.interval,
            "covered": self.covered,
            "verified": self.passed,
            "bitwise": self.single == 0.0,
            "largest_difference": self.single,
            "loss": self.losses[0] if self.losses else None,
            "losses": list(self.losses),
            "losses_of_one_device": list(self.expected),
            "beside": {
                name: median(times) for name, times in self.beside.items() if times
            },
            "differences": [asdict(d) for d in self.verification.different[:10]],
        }


def run_plan(
    plan: Plan,
    model: str | Callable[[], Workload],
    *,
    train: int = 20,
    steps: int = 5,
    timeout: float = 120.0,
    beside: bool = False,
) -> PlanRun | None:
    """Run a plan, compare it with one device, and time it.

    Args:
        plan: A plan for CPU workers (`cpu:N`), or for the processes of torchrun.
        model: `module:callable`, `hf:CONFIG` or a zoo name; or a function that makes the workload,
            the same in every process.
        train: steps of AdamW whose losses are compared.
        steps: how many steps are timed.
        timeout: seconds without any progress after which the run is given up.
        beside: whether DistributedDataParallel and one device are timed by turns with it.

    Returns:
        What was found; None on processes of torchrun that do not report.

    Raises:
        FormatError: the plan's actions cannot run.
        MismatchError: the plan is of another model.
        ExecutionError: a worker died, failed or hung.
    """
    check_plan(plan.file)
    seats = make_seats(plan.file)
    make = (lambda: make_workload(model)) if isinstance(model, str) else model
    if "WORLD_SIZE" in os.environ and int(os.environ["WORLD_SIZE"]) > 1:
        return _under_torchrun(
            plan, make, timeout, train=train, steps=steps, beside=beside
        )
    foreign = [name for name in seats.devices if not name.startswith("cpu")]
    if foreign:
        raise MismatchError(
            f"plan: stages[..].devices: {foreign[0]!r} is no worker of this machine; plan for "
            f"cpu:{seats.count}, or start torchrun --nproc-per-node {seats.count} -m gnnplace "
            "execute on its machines"
        )
    if isinstance(model, str):
        workload = load(model, fake=True)
        refuse_meta(workload.model, workload.inputs, "execute")
        check_model(plan.file, workload)
    # Each worker notes its current action in shared memory. As long as that changes, the run has
    # not hung, and what is written there says where a worker stopped.
    words = make_shared_words(seats.count * WORDS)

    def work(process: int) -> Trial:
        notify = partial(_note_action, words, process)
        return run_trial(
            plan, make(), train=train, steps=steps, notify=notify, beside=beside
        )

    trials = run_group(
        work,
        seats.devices,
        timeout=timeout,
        progress=lambda: words.tobytes(),
        doing=lambda worker: _doing(words, worker),
    )
    return _make_result(plan, trials[0], [trial.seconds for trial in trials])


def _note_action(words: memoryview, worker: int, action: Action | None) -> None:
    """Note where a worker is: how often it said so, stage, kind, micro-batch, begun."""
    at = worker * WORDS
    words[at] += 1
    if action is not None:
        words[at + 1] = action.chunk
        words[at + 2] = KINDS.index(action.kind)
        words[at + 3] = action.microbatch
        words[at + 4] = 1


def _doing(words: memoryview, worker: int) -> str:
    """Return where a worker is, for messages."""
    stage, kind, m, has_begun = (words[worker * WORDS + k] for k in range(1, 5))
    if not has_begun:
        return " before its first action"
    return f" at action {Action(stage, KINDS[kind], m)}"


def _make_result(plan: Plan, first: Trial, seconds: list[list[float]]) -> PlanRun:
    verification = Verification(first.tensors, tuple(first.exact or first.first))
    slowest = tuple(max(times) for times in zip(*seconds, strict=True))
    return PlanRun(
        plan=plan,
        verification=verification,
        single=max((d.relative for d in first.first), default=0.0),
        losses=tuple(first.losses),
        expected=tuple(first.expected),
        seconds=slowest,
        doubled=first.doubled,
        beside=first.beside,
    )


def _under_torchrun(
    plan: Plan, make: Callable[[], Workload], timeout: float, **options: Any
) -> PlanRun | None:
    """Run this process of the plan, which torchrun started; the first one reports."""
    gpus = torch.cuda.is_available()
    if gpus:
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    else:
        device = "cpu"
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group(timeout=timedelta(seconds=timeout))
    try:
        trial = run_trial(plan, make(), device=device, **options)
        seconds: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(seconds, trial.seconds)
        if dist.get_rank() == 0:
            return _make_result(plan, trial, seconds)
        return None
    finally:
        dist.destroy_process_group()
