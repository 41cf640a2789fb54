"""Batches by the time that training takes with each: lines for a terminal, and data for JSON."""

from __future__ import annotations

from collections.abc import Sequence

from gnnplace.plans import BatchPlan, Training
from gnnplace.report.answer import Answer, Lines
from gnnplace.report.plans import plan_lines
from gnnplace.report.side_by_side import short_words
from gnnplace.units import duration_text, seconds_text

HEAD = ("batch", "step", "epochs", "steps", "training takes", "")


def describe_batch(
    best: BatchPlan, *, entries: Sequence[BatchPlan], training: Training
) -> Answer:
    """Describe the batch with which training ends first, below what was tried.

    Args:
        best: The plan with that batch.
        entries: A plan for each batch that was tried.
        training: What is trained.
    """
    file = best.plan.file
    return Answer(
        title=f"{file.model} on {file.cluster}",
        sections=[
            Lines(lambda: [*batch_lines(entries, training), *plan_lines(best.plan)])
        ],
        data=lambda: {
            **best.plan.answer(),
            "training": batch_data(entries, training),
        },
    )


def batch_lines(entries: Sequence[BatchPlan], training: Training) -> list[str]:
    """Format what was tried, by rising batch, with a mark at the shortest.

    Args:
        entries: A plan for each batch.
        training: What is trained.
    """
    shortest = min(entries, key=lambda entry: entry.seconds)
    rows = [HEAD]
    for entry in entries:
        words = entry.plan.file.words
        steps = training.steps(entry.batch) * entry.epochs
        rows.append(
            (
                f"{entry.batch:,}",
                seconds_text(entry.plan.file.step_time),
                f"{entry.epochs:.3g}",
                f"{steps:,.0f}",
                f"{duration_text(entry.seconds)}{' *' if entry is shortest else ''}",
                entry.plan.file.schedule if words is None else short_words(words),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD) - 1)]
    lines = [
        f"training by global batch, predicted: {training.examples:,} examples an epoch, epochs "
        f"{training.convergence.origin} ({training.convergence.source}); the shortest has a star"
    ]
    for row in rows:
        cells = [
            f"{cell:>{width}}" for cell, width in zip(row[:-1], widths, strict=True)
        ]
        lines.append("  ".join(["", *cells, row[-1]]).rstrip())
    return lines


def batch_data(entries: Sequence[BatchPlan], training: Training) -> dict[str, object]:
    """Return what was tried for JSON, and where the epochs come from."""
    convergence = training.convergence
    return {
        "examples": training.examples,
        "epochs": f"{convergence.origin}: {convergence.source}",
        "batches": [
            {
                "batch": entry.batch,
                "step_time": entry.plan.file.step_time,
                "epochs": entry.epochs,
                "seconds": entry.seconds,
                "words": entry.plan.file.words,
                "launcher": entry.plan.file.launcher,
            }
            for entry in entries
        ],
    }
