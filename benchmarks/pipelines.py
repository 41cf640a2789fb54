"""Micro-batches on two workers against one worker, measured side by side in one run.

One worker runs the whole batch; two workers run M micro-batches of 1/M of it. Rounds alternate
between the two, so that a busy machine disturbs both alike; the table shows the least disturbed
round of each and the virtual clock's median. Every run is verified against one process.

    python benchmarks/pipelines.py [--models "gpt2?batch=8,resnet50?size=112&batch=16"] [--rounds 3]
"""

from __future__ import annotations

import argparse
import sys
from statistics import median

import gnnplace

MODELS = "gpt2?batch=8,resnet50?size=112&batch=16"


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--budget", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=7)
    arguments = parser.parse_args()
    print(
        "| model | placement | predicted | measured | virtual | speed-up (virtual) | verified |"
    )
    print("|---|---|---|---|---|---|---|")
    for model in arguments.models.split(","):
        report(model, arguments)
        sys.stdout.flush()


def report(model: str, arguments: argparse.Namespace) -> None:
    """One row for one worker, one for the best placement on two."""
    cases = [case(model, 1, "single", arguments)]
    for placer in ("contiguous", "best"):
        cases.append(case(model, arguments.microbatches, placer, arguments))
    wall: list[list[float]] = [[] for _ in cases]
    virtual: list[list[float]] = [[] for _ in cases]
    exact = [True] * len(cases)
    for _ in range(arguments.rounds):
        for k, (program, problem, result) in enumerate(cases):
            run = gnnplace.execute(
                program,
                problem,
                result.placement,
                run=gnnplace.ExecutionOptions(steps=arguments.steps),
            )
            wall[k].append(run.execution.wall_step_time)
            virtual[k].append(run.execution.virtual_step_time)
            exact[k] &= run.verification.bitwise
    for k, (_, problem, result) in enumerate(cases):
        speed, clock = (
            min(wall[0]) / min(wall[k]),
            median(virtual[0]) / median(virtual[k]),
        )
        print(
            f"| {model} | {result.placer}, {problem.microbatches} micro-batches "
            f"| {1e3 * result.step_time:.1f} ms | {1e3 * min(wall[k]):.1f} ms "
            f"| {1e3 * median(virtual[k]):.1f} ms | {speed:.2f}x ({clock:.2f}x) "
            f"| {'bitwise equal' if exact[k] else 'within tolerance'} |"
        )


def case(model: str, microbatches: int, placer: str, arguments: argparse.Namespace):
    """Program, problem and placement of one row."""
    options = gnnplace.CaptureOptions(microbatches=microbatches)
    program = gnnplace.capture(model, options=options)
    problem = gnnplace.profile(program, "cpu:2", options=options)
    return (
        program,
        problem,
        gnnplace.place(problem, placer=placer, budget=arguments.budget),
    )


if __name__ == "__main__":
    main()
