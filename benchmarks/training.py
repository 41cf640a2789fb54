"""A small GPT trained on a text that ships with Python, placed on two workers and on one.

Every row trains the same model on the same batches, with AdamW and a warm-up of the learning rate.
Losses of a row are compared with those of the first one: rows with as many micro-batches must agree
to the last bit, others within the rounding of another order of sums. Wall-clock seconds mean
something on an idle machine alone; virtual ones count each worker's own CPU time.

    python benchmarks/training.py [--steps 200] [--microbatches 4] [--model "gpt2?batch=16"]
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pydoc_data.topics import topics

import torch

import gnnplace
from gnnplace import tracing

LETTERS = 128
"""The text is read letter by letter, as ASCII."""
PEAK, WARM_UP = 1e-3, 20


@dataclass
class Row:
    """What one way of training came to."""

    name: str
    losses: list[float]
    wall: float
    virtual: float | None


def main() -> None:
    """Prints a Markdown table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=f"gpt2?batch=16&vocabulary={LETTERS}")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--budget", type=float, default=3.0)
    parser.add_argument("--placer", default="best")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    many = arguments.microbatches
    cases = [(1, "single"), (many, "single"), (many, arguments.placer)]
    rows = [train(arguments, count, placer) for count, placer in cases]
    print(table(rows))


def train(arguments: argparse.Namespace, microbatches: int, placer: str) -> Row:
    """Trains on a placement of a placer."""
    options = gnnplace.CaptureOptions(optimizer="adamw", microbatches=microbatches)
    workload = tracing.load(arguments.model)
    problem = gnnplace.profile(arguments.model, "cpu:2", options=options)
    gnnplace.warm([placer])
    result = gnnplace.place(problem, placer=placer, budget=arguments.budget)
    optimizer = torch.optim.AdamW(workload.model.parameters(), lr=PEAK)
    losses, virtual = [], 0.0
    given = list(batches(workload.inputs, arguments.steps))
    with gnnplace.compile(
        workload.model,
        result.placement,
        optimizer,
        loss=workload.loss,
        problem=problem,
        inputs=given[0],
    ) as step:
        start = time.perf_counter()
        for k, batch in enumerate(given):
            step.param_groups[0]["lr"] = PEAK * min(1.0, (k + 1) / WARM_UP)
            losses.append(float(step(batch)))
            virtual += step.timing().virtual
        wall = time.perf_counter() - start
    devices = len(set(result.placement.device.tolist()))
    name = (
        f"{placer}: {devices} worker{'s' * (devices > 1)}, {microbatches} micro-batches"
    )
    sys.stderr.write(f"  {name}: {wall:.1f} s\n")
    return Row(name, losses, wall, virtual)


def batches(example: dict[str, torch.Tensor], steps: int):
    """Batches of random windows of the text, the same in every call."""
    text = "\n".join(topics.values()).encode("ascii", "replace")
    letters = torch.tensor(list(text), dtype=torch.long).clamp(max=LETTERS - 1)
    size, length = example["input_ids"].shape
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        starts = torch.randint(len(letters) - length, (size,), generator=generator)
        words = torch.stack([letters[s : s + length] for s in starts.tolist()])
        yield {**example, "input_ids": words, "labels": words}


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    first = rows[0].losses
    lines = [
        "| trained on | loss, first → last | off by at most | wall | virtual |",
        "|---" * 5 + "|",
    ]
    for row in rows:
        twin = next(
            r for r in rows if r.name.split(", ")[-1] == row.name.split(", ")[-1]
        )
        off = max(abs(a - b) for a, b in zip(row.losses, first, strict=True))
        same = f"{off:.1e}" + (
            ", bitwise as on one" if twin.losses == row.losses else ", DIFFERS"
        )
        lines.append(
            f"| {row.name} | {row.losses[0]:.4f} → {row.losses[-1]:.4f} | {same} "
            f"| {row.wall:.1f} s | {row.virtual:.1f} s |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
