"""Published steps at scale, in one CSV format: a row a run, with its words, sizes in `models.json`.

Columns: `id`, `source` (repository@commit:path), `set`, `model` (a name of `models.json`),
`framework`, `cluster` (a preset), `gpus`, `length`, `batch`, `precision`, `environment`, every word
of `plan --given`, `seconds` of a step, `scored` ("yes", else why not) and others for people. A word
that is `best` is not said by the source: the value that is predicted to be the fastest that fits
counts, micro-batches of 1, 2 or 4 examples and 1, 2 or 4 chunks a rank. Such rows bias low.

Every folder that has `models.json` and `rows*.csv` is read so. Each `set` is a row of the table.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.studies.published.outcomes import Outcome, number
from gnnplace.errors import FormatError, InputError
from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers, LatentAttention
from gnnplace.plans.decoders.setting import PricingSetting, setting_of
from gnnplace.plans.spec import WORDS, PlanSpec, spec_of_values
from gnnplace.plans.spec_answers import PlanAnswer, price
from gnnplace.problem.cluster.presets import preset

MODELS, ROWS = "models.json", "rows*.csv"
BEST = "best"
CHOICES: Mapping[str, tuple[str, ...]] = {
    "microbatch_size": ("1", "2", "4"),
    "schedule": ("1f1b", "interleaved:2", "interleaved:4"),
}
"""Values that are tried of a word that the source does not say."""
Row = Mapping[str, str]


def is_here(folder: Path) -> bool:
    """Return whether a folder has rows of this format."""
    return (folder / MODELS).is_file() and any(folder.glob(ROWS))


def outcomes_by_set(folder: Path) -> dict[tuple[str, str], list[Outcome]]:
    """Return the scored rows of a folder by set and framework, each with its answer.

    Raises:
        FormatError: A file cannot be read, or a row names no model of `models.json`.
    """
    try:
        models = json.loads((folder / MODELS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"{folder / MODELS}: cannot be read: {error}") from None
    found: dict[tuple[str, str], list[Outcome]] = {}
    for path in sorted(folder.glob(ROWS)):
        with path.open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream))
        for line, row in enumerate(rows, 2):
            if row.get("scored", "yes") != "yes":
                continue
            where = f"{path}: line {line}"
            if row["model"] not in models:
                raise FormatError(f"{where}: model {row['model']!r} is not in {MODELS}")
            key = row["set"], row["framework"]
            found.setdefault(key, []).append(outcome(row, models[row["model"]], where))
    return found


def sizes_of(model: Mapping[str, Any], length: int) -> DecoderSizes:
    """Return the sizes of an entry of `models.json`, on examples of so many tokens."""
    sizes = dict(model)
    if "experts" in sizes:
        sizes["experts"] = ExpertLayers(**sizes["experts"])
    if "latent" in sizes:
        sizes["latent"] = LatentAttention(**sizes["latent"])
    return DecoderSizes(**sizes, length=length)


@cache
def setting(
    sizes: DecoderSizes, cluster: str, framework: str, environment: str, precision: str
) -> PricingSetting:
    """Return what the plans of a model on a cluster are priced on."""
    return setting_of(
        sizes,
        preset(cluster),
        framework_name=framework,
        environment_name=environment or None,
        precision=precision,
    )


def plans_of(row: Row, where: str) -> Iterator[PlanSpec]:
    """Yield the plan of a row; of words that are `best` one for every value.

    Raises:
        InputError: A word has a value that it cannot have.
    """
    values = {name: row.get(name) or "" for name in WORDS}
    unsaid = [name for name in CHOICES if values[name] == BEST]
    for chosen in product(*(CHOICES[name] for name in unsaid)):
        yield spec_of_values(
            {**values, **dict(zip(unsaid, chosen, strict=True))}, where
        )


def outcome(row: Row, model: Mapping[str, Any], where: str) -> Outcome:
    """Return a row with its answer; what cannot be priced has the reason.

    Args:
        row: Text by column.
        model: The row's entry of `models.json`.
        where: File and line, for errors.
    """
    plans = list(plans_of(row, where))
    sizes = sizes_of(model, int(row["length"]))
    own: PricingSetting | None = None
    answers: list[tuple[PlanAnswer, PlanSpec]] = []
    try:
        own = setting(
            sizes,
            row["cluster"],
            row["framework"],
            row.get("environment", ""),
            row["precision"],
        )
        answers = [(price(own, plan), plan) for plan in plans]
    except InputError as error:
        answers = [(PlanAnswer(reason=f"{where}: {error}"), plans[0])]
    answer, plan = min(answers, key=_rank)
    batch = plan.batch or sizes.batch
    asked = (
        row["model"],
        f"{row['gpus']} GPUs of {row['cluster']}",
        row["length"],
        str(batch),
    )
    return Outcome(
        question=", ".join(asked),
        model=row["model"],
        setting=own,
        plan=plan,
        answer=answer,
        seconds=number(row["seconds"]),
        ran=True,
        microbatches=plan.num_microbatches(batch),
        gpus=int(row["gpus"]),
    )


def _rank(answered: tuple[PlanAnswer, PlanSpec]) -> tuple[bool, float]:
    """Return what answers are ordered by: those that fit first, then by seconds."""
    answer = answered[0]
    seconds = float("inf") if answer.step_time is None else answer.step_time
    return not answer.feasible, seconds
