"""NeuSight's training and inference steps of language models on one GPU (ASPLOS 2025), in float32.

`label/GPU/MODEL-train|inf-LENGTH-BATCH.json` (sitar-lab/NeuSight, MIT) have milliseconds of the
forward pass of eager PyTorch, and of the backward pass of the sum of the logits; no optimizer runs.
Models are captured with two and with three layers, their ops priced from the tables, and all other
layers taken to be as the third. Nothing is fitted to the steps. The allocator's cache was emptied
before each step, which some forward passes were timed with: where one takes more than
`SHARE` of its backward pass, whose products are twice as many, the backward pass alone counts.
Models under `torch.compile` (`-fusion`) are priced as such. Left out are four GPUs (`-dp4`, `-tp4`,
`-pp4`), Switch's mixtures, and GPUs of AMD.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from benchmarks.studies.costs.models import CONFIGURATIONS, captured
from benchmarks.studies.costs.steps import phase_seconds
from benchmarks.studies.published.outcomes import Outcome
from gnnplace.costs.profiling.estimation import estimate_times
from gnnplace.errors import FormatError
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import PlanAnswer
from gnnplace.tracing.program.program import BACKWARD, FORWARD

FOLDER = "neusight"
SHARE = 0.65  # of the backward pass
LAYERS = (2, 3)  # that are captured
KINDS = {"A100": "a100-80", "A100-40": "a100", "H100": "h100", "L4": "l4", "P100": "p100",
         "P4": "p4", "T4": "t4", "V100": "v100"}  # fmt: skip
LOW, HIGH = 0.911, 1.021
"""Tenth and ninetieth percentile of published over predicted seconds of 39 rows of five GPUs."""
ROW = re.compile(
    r"(?P<model>\w+)-(?P<what>train|inf)-(?P<length>\d+)-(?P<batch>\d+)(?P<fused>-fusion)?"
)


def kind_of(folder: str) -> str | None:
    """The kind of GPU that a folder's name is of; None of one without tables."""
    words = re.split(r"[_\-]", folder)
    name = next((word for word in words if word in KINDS), "")
    return KINDS.get("A100-40" if name == "A100" and "40GB" in words else name)


def outcomes(folder: Path) -> list[Outcome]:
    """Every step of a GPU and a model that are known.

    Raises:
        FormatError: a file cannot be read.
    """
    paths = sorted((folder / FOLDER / "label").glob("*/*.json"))
    return [o for path in paths for o in rows(path)]


def rows(path: Path) -> Iterator[Outcome]:
    """The step of a file, if it is one."""
    found, kind = ROW.fullmatch(path.stem), kind_of(path.parent.name)
    if found is None or kind is None or found["model"] not in CONFIGURATIONS:
        return
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        layers = int(content["num_layer"])
        ahead, back = (
            1e-3 * float(content[name]) for name in ("fw_latency", "bwall_latency")
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path}: cannot be read: {error}") from None
    inference, length, batch = (
        found["what"] == "inf",
        int(found["length"]),
        int(found["batch"]),
    )
    fused = found["fused"] is not None
    forward, backward = passes(
        found["model"], batch, length, inference, layers, kind, fused
    )
    if not inference and ahead > SHARE * back:
        ahead = forward = 0.0
    seconds = forward + backward
    yield Outcome(
        f"{path.stem}, {kind}", f"{kind}, compiled" if fused else kind, None,
        PlanSpec(microbatch_size=batch, batch=batch),
        PlanAnswer(seconds, LOW * seconds, HIGH * seconds, feasible=True), ahead + back, ran=True,
    )  # fmt: skip


def passes(
    model: str,
    batch: int,
    length: int,
    inference: bool,
    layers: int,
    kind: str,
    fused: bool,
) -> tuple[float, float]:
    """Seconds of the forward and the backward pass on a kind of GPU, as the third layer goes on."""
    few, more = (
        phases(model, batch, length, inference, count, kind, fused) for count in LAYERS
    )
    first, second = (
        a + (layers - LAYERS[0]) * (b - a) for a, b in zip(few, more, strict=True)
    )
    return first, second


@cache
def phases(
    model: str,
    batch: int,
    length: int,
    inference: bool,
    layers: int,
    kind: str,
    fused: bool,
) -> tuple[float, float]:
    """Seconds of the forward and the backward pass of so many layers."""
    program = captured(model, batch, length, inference, layers)
    times = estimate_times(program, kind, compiled=fused)
    return phase_seconds(program, times, FORWARD), phase_seconds(
        program, times, BACKWARD
    )
