"""Whether a plan fits: bytes of the fullest device by part, and the changes that make it fit."""

from __future__ import annotations

from typing import Any

from gnnplace.planning import FitAnswer, FitChange
from gnnplace.report.answer import Answer, Lines
from gnnplace.units import bytes_text, seconds_text

SHOWN = 5  # changes
PARTS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "the optimizer's state",
    "frozen": "frozen parameters",
    "buckets": "buckets of exchanges",
    "activations": "activations kept for the backward pass",
    "working": "values at work, gathered parameters among them",
    "slack": "the allocator's fragmentation, and libraries",
}


def _lines(answer: FitAnswer) -> list[str]:
    """Format the verdict, what fills the fullest device, and what would make it fit."""
    terms = answer.terms
    parts = answer.parts
    verdict = "fits" if answer.fits else "does not fit"
    if answer.answer.fits is None:
        chance = ""
    else:
        chance = f" ({answer.answer.fits:.0%} likely to fit)"
    if answer.job is None:
        model = ""
    else:
        model = f"{answer.job.model} "
    adapters = terms.adapters
    if adapters is None:
        trained = ""
    else:
        trained = f"{adapters.label}, "
    if terms.length is None:
        batch = f"batch {terms.batch}"
    else:
        batch = f"batch {terms.batch} x {terms.length:,} tokens"
    # What was asked, and the verdict.
    lines = [
        f"{model}on {terms.cluster}: {verdict}{chance}",
        f"  {terms.framework}, {terms.precision}, {terms.optimizer}, {trained}{batch}: "
        f"{answer.spec}",
        f"  fullest device {parts.device}: {bytes_text(parts.total)} of {bytes_text(parts.usable)}",
    ]
    # What fills the fullest device; what it has none of is left out.
    for name, size in parts.parts.items():
        if size:
            lines.append(
                f"  {size / 1e9:>9.2f} GB  {size / parts.total:>4.0%}  {PARTS[name]}"
            )
    lines.append(f"  what binds: {PARTS[parts.binds]}")
    lines.append(f"  slack: {terms.slack_source}")
    if answer.fits:
        return lines
    # What would make it fit, or comes nearest to it.
    if not answer.changes:
        lines.append(
            "  no single change makes it fit; take more devices, or change several words"
        )
    if answer.nearest is not None:
        lines.append(
            f"  nearest: {answer.nearest.change}: {bytes_text(answer.nearest.parts.total)}, lacks "
            f"{bytes_text(answer.nearest.parts.lacking)}"
        )
    for number, change in enumerate(answer.changes[:SHOWN]):
        if number == 0:
            label = "smallest change that fits"
        else:
            label = "or"
        lines.append(
            f"  {label}: {change.change}: {bytes_text(change.parts.total)}, "
            f"{seconds_text(change.step_time)} a step"
        )
    return lines


def describe_fit(answer: FitAnswer) -> Answer:
    """Describe whether a plan fits, for `gnnplace plan --fits`."""
    terms = answer.terms
    data = {
        "model": None if answer.job is None else answer.job.model,
        "cluster": terms.cluster,
        "framework": terms.framework,
        "words": str(answer.spec),
        "precision": terms.precision,
        "optimizer": terms.optimizer,
        "lora": None if terms.adapters is None else str(terms.adapters),
        "batch": terms.batch,
        "length": terms.length,
        "step_time": answer.answer.step_time,
        "fits": answer.fits,
        "probability": answer.answer.fits,
        "reason": answer.answer.reason or None,
        "fullest": answer.parts.to_data(),
        "slack_source": terms.slack_source,
        "changes": [_change_data(change) for change in answer.changes],
        "nearest": None if answer.nearest is None else _change_data(answer.nearest),
    }
    return Answer("Does it fit?", [Lines(_lines(answer))], data)


def _change_data(change: FitChange) -> dict[str, Any]:
    """Return a change as JSON has it."""
    return {
        "kind": change.kind,
        "change": change.change,
        "step_time": change.step_time,
        "fullest": change.parts.to_data(),
    }
