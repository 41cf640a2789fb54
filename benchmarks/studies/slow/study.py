"""`study slow`: which cause `explain --measured` names first, of runs whose cause is known.

**Threads** (`benchmarks/slow_runs.csv`): public issues that have a run, its step, the cause and a
comment that confirms it. Many do not say the length, the kind of GPU or the batch, so that the step
is a multiple of what a healthy run of the thread is predicted to take (`times` x `baseline`).
Looked at and left out, as they name no measured step, no cause, or none that was confirmed:
haotian-liu/LLaVA#362, foundation-model-stack/fms-fsdp#78, pytorch/torchtitan#676,
NVIDIA/Megatron-LM#1000 and #2762, deepspeedai/DeepSpeed#5770, hiyouga/LLaMA-Factory#4620,
huggingface/transformers#3274 (BERT), deepspeedai/DeepSpeed#650 (Adam on the CPU, which has no price
yet).

**Made situations**: steps of Megatron-LM's weak scaling that were published (Narayanan et al.,
2021, table 1), and two of vTrain's whose layers are small, with one part slowed by a factor that
such a fault has and 5 % noise on the others. The published step is not the predicted one, so that
the prediction's own error is in it.

Priors and usual factors were judged with the threads at hand, so that the threads are no test of
them; the made situations are one of the arithmetic, and of how far one number can tell parts apart.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.published import vtrain
from benchmarks.studies.published.outcomes import Outcome
from benchmarks.studies.published.weak_scaling import outcomes
from gnnplace.errors import FormatError
from gnnplace.explaining.causes import SlowdownCause
from gnnplace.explaining.in_words import SpecStep
from gnnplace.explaining.steps import cause_prices, step_causes, step_parts
from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers
from gnnplace.plans.decoders.setting import PricingSetting, make_pricing_setting
from gnnplace.plans.spec import PlanSpec, parse_spec
from gnnplace.plans.spec_answers import price_spec
from gnnplace.problem.cluster.presets import make_preset

Say = Callable[[str], None]
THREADS = Path(__file__).parents[2] / "slow_runs.csv"
NOISE, SEED = 0.05, 0
SMALL_ROWS = (
    "8,16,1,1024,16,20,1024,1,8,1,145.176273",
    "8,32,1,1024,16,24,1024,4,2,1,1373.163443",
)
"""Rows of vTrain's file (`benchmarks/studies/plans/vtrain.csv.gz`) whose launches take long."""
SITUATIONS = (
    # Row, of the table or of `SMALL_ROWS` behind it; cause; factor.
    (0, "across", 40.0),
    (2, "across", 180.0),
    (3, "across", 80.0),
    (4, "across", 250.0),
    (2, "inside", 10.0),
    (3, "inside", 8.0),
    (4, "inside", 12.0),
    (0, "clock", 1.33),
    (2, "clock", 1.25),
    (4, "clock", 1.5),
    (5, "host", 3.0),
    (6, "host", 4.0),
)
"""Sockets over 10 to 100 Gb/s, PCIe instead of NVLink, clocks under a power cap, a busy host."""


@dataclass(frozen=True)
class NamedCause:
    """A run whose cause is known, and what was named.

    Attributes:
        run: The run, in a few words.
        cause: The cause.
        causes: Those that were named, the likeliest first.
        slowdown: The measured step over the predicted one.
    """

    run: str
    cause: str
    causes: tuple[SlowdownCause, ...]
    slowdown: float

    @property
    def is_first(self) -> bool:
        """Whether the cause was named first."""
        return bool(self.causes) and self.causes[0].name == self.cause

    @property
    def place(self) -> int | None:
        """The place of the cause among those named, from 1; None where it was not."""
        names = [cause.name for cause in self.causes]
        return names.index(self.cause) + 1 if self.cause in names else None


@dataclass(frozen=True)
class SlowStudy:
    """What was named.

    Attributes:
        threads: Of public threads.
        situations: Of made situations.
    """

    threads: tuple[NamedCause, ...]
    situations: tuple[NamedCause, ...]


def study_slow(*, progress: Say = lambda line: None) -> SlowStudy:
    """Name the causes of all runs. It takes a minute of one core."""
    progress("study slow: public threads")
    threads = tuple(name_thread(row) for row in read_threads(THREADS))
    progress("study slow: made situations")
    rows = [*outcomes(Path()), *(vtrain.outcome(row.split(",")) for row in SMALL_ROWS)]
    generator = np.random.default_rng(SEED)
    situations = tuple(
        name_situation(rows[row], cause, factor, generator)
        for row, cause, factor in SITUATIONS
    )
    return SlowStudy(threads, situations)


def read_threads(path: Path) -> list[dict[str, str]]:
    """Return the rows of the table of threads.

    Raises:
        FormatError: It has a row without a cause or a comment that confirms it.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if not (row["cause"] and row["confirmed_by"] and row["times"]):
            raise FormatError(
                f"{path}: {row['thread']}: must have a step, a cause and its proof"
            )
    return rows


def find_run_sizes(text: str) -> DecoderSizes:
    """Return the sizes that `layers=24 hidden=2048 ...` says; experts are count/active/width."""
    values: dict[str, Any] = {}
    for pair in text.split():
        name, _, value = pair.partition("=")
        if name == "experts":
            values[name] = ExpertLayers(*(int(number) for number in value.split("/")))
        else:
            values[name] = bool(int(value)) if name in SWITCHES else int(value)
    return DecoderSizes(**values)


SWITCHES = ("gated", "tied", "head_norms")


def name_thread(row: dict[str, str]) -> NamedCause:
    """Return the causes of a thread's run."""
    sizes = find_run_sizes(row["sizes"])

    def on(cluster: str) -> PricingSetting:
        return make_pricing_setting(
            sizes,
            make_preset(cluster),
            framework_name=row["framework"],
            precision=row["precision"],
        )

    setting, spec = on(row["cluster"]), parse_spec(row["words"])
    healthy = price_spec(
        on(row["baseline_cluster"]), parse_spec(row["baseline"])
    ).step_time
    measured = float(row["times"]) * healthy
    return _named(row["thread"], row["cause"], setting, spec, measured)


def name_situation(
    outcome: Outcome, cause: str, factor: float, generator: np.random.Generator
) -> NamedCause:
    """Return the causes of a published step of which one part is slowed.

    Args:
        outcome: The published row.
        cause: What slows it.
        factor: By which.
        generator: Of the noise of the other parts.
    """
    setting, spec = outcome.setting, outcome.plan
    assert setting is not None
    assert outcome.seconds is not None
    explained = SpecStep(setting, spec)
    parts = step_parts(explained)
    step = sum(parts.values())
    noisy = sum(seconds * generator.normal(1.0, NOISE) for seconds in parts.values())
    added = cause_prices(explained, parts)(cause, factor) - step
    measured = outcome.seconds / step * (noisy + added)
    run = f"{outcome.question}, {cause} x {factor:g}"
    return _named(run, cause, setting, spec, measured)


def _named(
    run: str, cause: str, setting: PricingSetting, spec: PlanSpec, measured: float
) -> NamedCause:
    explained = SpecStep(setting, spec)
    parts = step_parts(explained)
    causes = step_causes(explained, parts, measured)
    return NamedCause(run, cause, causes, measured / sum(parts.values()))


def headline(study: SlowStudy) -> list[str]:
    """Return the lines that the command prints."""
    lines = []
    for title, named in (("public threads", study.threads), ("made", study.situations)):
        lines.append(
            f"{title}: {count_first(named)} of {len(named)} causes are named first"
        )
        lines += [_line(entry) for entry in named]
    return lines


def count_first(named: Sequence[NamedCause]) -> int:
    """Return how many causes are named first."""
    return sum(entry.is_first for entry in named)


def _line(entry: NamedCause) -> str:
    line = f"{entry.run} ({entry.slowdown:.2f} times as predicted): {entry.cause}"
    if entry.is_first:
        return f"  {line}, first: {entry.causes[0].text}"
    first = entry.causes[0].text if entry.causes else "nothing"
    return f"  {line}, place {entry.place or 'none'}; first: {first}"
