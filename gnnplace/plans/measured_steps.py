"""Measured steps: seconds that a user says, or those that the log of a launcher has.

| log | what is read |
|---|---|
| Megatron-LM | `elapsed time per iteration (ms): 834.5` |
| nanotron | `time_per_iteration_ms: 834`, with K and M |
| torchtitan | `tps: 1,234`: tokens a second and device (`components/metrics.py`) |
| DeepSpeed | `CurrSamplesPerSec=12.5`, of all replicas (`utils/timer.py`) |
| Trainer, accelerate, Lightning | tqdm's `1.10it/s`, `1.72s/it`; an iteration counts as a step |

The first iterations compile, allocate and warm up: a fifth of all, at least three and at most 20,
are left out where others are left. The median of the rest counts. Complexity: linear in the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gnnplace.errors import FormatError, InputError
from gnnplace.files import read_text
from gnnplace.plans.plan import PlanFile

SECONDS = re.compile(r"([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)\s*(s|ms|us)")
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
LARGE = {"": 1.0, "K": 1e3, "M": 1e6}
COLORS = re.compile(r"\x1b\[[0-9;]*m")
NUMBER = r"([0-9][0-9,]*\.?[0-9]*(?:e[+-]?[0-9]+)?)"
FEWEST, MOST, SHARE = 3, 20, 5  # iterations that are left out
LONGEST = 1 << 28  # bytes of a log


@dataclass(frozen=True)
class MeasuredSteps:
    """Seconds of a step of a run.

    Attributes:
        seconds: the median.
        count: steps that it is of; 1 where it was said.
        left_out: first steps that do not count.
        source: the launcher whose log has them; empty where it was said.
    """

    seconds: float
    count: int = 1
    left_out: int = 0
    source: str = ""


@dataclass(frozen=True)
class RunSizes:
    """What turns rates of a log into seconds of a step.

    Attributes:
        batch: examples of a step.
        tokens: of a step.
        devices: that run it.
    """

    batch: int
    tokens: int
    devices: int


def sizes_of(file: PlanFile) -> RunSizes:
    """Those of a plan's run."""
    shape = file.inputs[0].shape if file.inputs else []
    return RunSizes(file.batch, file.batch * (shape[1] if len(shape) > 1 else 1), len(file.memory))


def measured_steps(given: str, sizes: RunSizes) -> MeasuredSteps:
    """Seconds such as 0.83s or 830ms, or those of a log.

    Args:
        given: seconds with their unit, or a path.
        sizes: of the run.

    Raises:
        InputError: it is neither.
        FormatError: no step can be read from the log.
    """
    said = SECONDS.fullmatch(given.strip())
    if said is not None:
        seconds = float(said[1]) * UNITS[said[2]]
        if not 0 < seconds < 1e7:
            raise InputError(f"--measured {given}: must be more than no seconds")
        return MeasuredSteps(seconds)
    path = Path(given)
    if not path.is_file():
        raise InputError(f"--measured {given}: must be seconds such as 0.83s or 830ms, or a log")
    if path.stat().st_size > LONGEST:
        raise FormatError(f"{given}: has {path.stat().st_size / 1e6:.0f} MB; give its last part")
    return steps_of_log(read_text(path), given, sizes)


def steps_of_log(text: str, source: str, sizes: RunSizes) -> MeasuredSteps:
    """The steps of a launcher's log.

    Raises:
        FormatError: naming `source` and what a log may have.
    """
    text = COLORS.sub("", text).replace("\r", "\n")
    for name, (pattern, seconds_of) in _readers(sizes).items():
        found = [seconds_of(match) for match in re.finditer(pattern, text)]
        found = [seconds for seconds in found if 0 < seconds < 1e7]
        if found:
            out = min(max(FEWEST, len(found) // SHARE), MOST, len(found) - 1)
            return MeasuredSteps(median(found[out:]), len(found) - out, out, name)
    raise FormatError(
        f"{source}: has no step of Megatron-LM, nanotron, torchtitan, DeepSpeed or tqdm; give its "
        "seconds, as --measured 0.83s"
    )


def _readers(sizes: RunSizes) -> Mapping[str, tuple[str, Callable[[re.Match[str]], float]]]:
    """What finds a step in a log, and its seconds, by launcher."""

    def number(text: str) -> float:
        return float(text.replace(",", ""))

    return {
        "Megatron-LM": (
            rf"elapsed time per iteration \(ms\): *{NUMBER}",
            lambda m: number(m[1]) / 1e3,
        ),
        "nanotron": (
            rf"time_per_iteration_ms: *{NUMBER}([KM]?)",
            lambda m: number(m[1]) * LARGE[m[2]] / 1e3,
        ),
        "torchtitan": (
            rf"step: *[0-9]+ .*\btps: *{NUMBER}",
            lambda m: sizes.tokens / max(number(m[1]) * sizes.devices, 1e-9),
        ),
        "DeepSpeed": (
            rf"CurrSamplesPerSec={NUMBER}",
            lambda m: sizes.batch / max(number(m[1]), 1e-9),
        ),
        "tqdm": (
            rf"\b{NUMBER}(it/s|s/it)",
            lambda m: number(m[1]) if m[2] == "s/it" else 1 / max(number(m[1]), 1e-9),
        ),
    }
