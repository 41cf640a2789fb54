"""What guards take: the proof beside recording and planning, a check beside a step.

Processor seconds of one run, each the least of a few rounds, side by side: recording without the
proof, and what it adds, by two layers of each kind and with every layer numbered; planning
likewise; and the microseconds that a check of the fingerprint takes before each step, and their
share of an eager step of AdamW beside it. What another run took on another day says nothing.

    python benchmarks/guards.py [MODEL ...] [--rounds 3] [--cluster C] [--batch B] [--unchecked]

A check is left out of models that no host holds (`--unchecked`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

import gnnplace
from gnnplace.tracing.guards.fingerprint import Fingerprint, note_attribute_reads
from gnnplace.tracing.guards.proof import Proof
from gnnplace.tracing.models import make_workload
from gnnplace.tracing.recording import recorder
from gnnplace.tracing.step import StepModule, default_loss

CHECKS = 1000


def main() -> None:
    """Prints a Markdown table, a row a model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=["hf:gpt2"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cluster", default="nvlink-a100-4")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--unchecked", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | recording | its proof | of every layer | planning | its proof "
          "| of every layer | check | of a step |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|")
    for model in arguments.models:
        record = by_turns(partial(recorded, model), arguments.rounds)
        plan = by_turns(partial(planned, model, arguments), arguments.rounds)
        told = [f"{bare:.2f} s | {x / bare - 1:+.0%} | {every / bare - 1:+.0%}"
                for bare, x, every in (record, plan)]  # fmt: skip
        check = " | "
        if not arguments.unchecked:
            seconds, of_step = check_and_step_seconds(model, arguments.rounds)
            check = f"{seconds * 1e6:.0f} us | {seconds / of_step:.3%} of {of_step * 1e3:.1f} ms"
        print(
            f"| {model.partition('?')[0]} | {' | '.join(told)} | {check} |", flush=True
        )


def planned(model: str, arguments: argparse.Namespace) -> object:
    """A plan of a model for the cluster and the batch that were asked for."""
    return gnnplace.plan(model, arguments.cluster, batch=arguments.batch, budget=1)


def by_turns(work: Callable[[], object], rounds: int) -> tuple[float, ...]:
    """Processor seconds without the proof, with it, and where it numbers every layer."""
    ways: tuple[AbstractContextManager[Any], ...] = (
        patch.object(recorder, "_prove_recording", lambda *_: Proof()),
        nullcontext(),
        patch.object(recorder, "find_omitted_layers", lambda *_: {}),
    )
    work()  # what is compiled and imported once
    found = []
    for _ in range(rounds):
        for way in ways:
            with way:
                found.append(processor_seconds(work))
    return tuple(min(found[i :: len(ways)]) for i in range(len(ways)))


def processor_seconds(work: Callable[[], object]) -> float:
    """What a piece of work takes."""
    begin = time.process_time_ns()
    work()
    return (time.process_time_ns() - begin) * 1e-9


def recorded(model: str) -> object:
    """The calls of a model's step, without numbers."""
    workload = make_workload(model, None, None, fake=True)
    step = StepModule(workload.model, workload.loss or default_loss, workload.inputs)
    return recorder.record_calls(step, workload.name)


def check_and_step_seconds(model: str, rounds: int) -> tuple[float, float]:
    """Seconds of a check before a step of AdamW, and of that step, by turns; each the least."""
    workload = make_workload(model, None, None)
    optimizer = torch.optim.AdamW(workload.model.parameters())
    step = StepModule(workload.model, workload.loss or default_loss, workload.inputs)

    def train() -> None:
        optimizer.zero_grad(set_to_none=False)
        step(*step.inputs()).backward()
        optimizer.step()

    train()
    with torch.no_grad(), note_attribute_reads(workload.model) as read:
        step(*step.inputs())
    known = Fingerprint(workload.model, optimizer, read)
    assert not known.changes()
    checks, steps = [], []
    for _ in range(rounds):
        checks += [processor_seconds(known.changes) for _ in range(CHECKS // rounds)]
        steps.append(processor_seconds(train))
    return min(checks), min(steps)


if __name__ == "__main__":
    main()
