"""Predicted memory of a step beside what torch's allocator hands out in it, model by model.

Each model is captured, placed on two CPU workers by ``contiguous`` (and on one by ``single``) and
run; a row is the device that needs most. A row fails if it is off by more than 10 % and 3 MB.

    python benchmarks/memory.py [--models bert,unet] [-o benchmarks/results/memory.md]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gnnplace
from gnnplace.cli.console import say
from gnnplace.costs.profiling import cache
from gnnplace.errors import GnnplaceError

MODELS = (
    "bert",
    "gpt2",
    "vit",
    "resnet50?size=64&batch=8",
    "inception",
    "densenet",
    "unet?batch=4",
    "seq2seq",
    "moe",
    "recommender",
    "two_tower",
    "benchmarks.checkpointed:bert",
    "benchmarks.checkpointed:gpt2",
    "benchmarks.checkpointed:vit",
)
SHARE, CONSTANT = 0.1, 3e6
HEAD = (
    "| model | optimizer | M | workers | predicted MB | measured MB | of it state | off | within |",
    "|---|---|---|---|---|---|---|---|---|",
)


def rows(model: str, optimizer: str, microbatches: int) -> list[str]:
    """A row for one worker and one for two."""
    options = gnnplace.CaptureOptions(microbatches=microbatches, optimizer=optimizer)
    program = gnnplace.capture(model, options=options)
    told = []
    for workers, placer in ((1, "single"), (2, "contiguous")):
        problem = gnnplace.profile(model, f"cpu:{workers}", options=options)
        placed = gnnplace.place(problem, placer=placer, budget=0)
        done = gnnplace.execute(
            program,
            problem,
            placed.placement,
            options=options,
            run=gnnplace.ExecutionOptions(steps=1),
        )
        names = [device.name for device in problem.cluster.devices]
        predicted = dict(zip(names, placed.simulation.peak_memory.tolist(), strict=True))
        name = max(predicted, key=lambda each: predicted[each])
        found, expected = done.execution.memory[name], predicted[name]
        off = found.peak - expected
        within = abs(off) <= SHARE * found.peak + CONSTANT
        told.append(
            f"| {model} | {optimizer} | {microbatches} | {workers} | {expected / 1e6:.2f} | "
            f"{found.peak / 1e6:.2f} | {found.state / 1e6:.2f} | {off / found.peak:+.1%} | "
            f"{'yes' if within else 'no'} |"
        )
    return told


def main() -> None:
    """Prints a Markdown table, and writes it where asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("-o", "--output", type=Path, default=None)
    arguments = parser.parse_args()
    cache.MOST_LOAD = cache.MOST_NOISE = float("inf")  # seconds do not matter here
    lines = list(HEAD)
    for model in arguments.models.split(","):
        for optimizer in ("sgd", "adamw"):
            for microbatches in (1, 4):
                say(f"{model}, {optimizer}, {microbatches} micro-batches")
                try:
                    lines += rows(model, optimizer, microbatches)
                except GnnplaceError as error:  # a failure is a row
                    lines.append(f"| {model} | {optimizer} | {microbatches} | - | {error} |||||")
                if arguments.output:
                    arguments.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
