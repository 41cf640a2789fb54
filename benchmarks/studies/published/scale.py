"""Published steps at scale, in one CSV format: a row a run, with its words, sizes in `models.json`.

Columns: `id`, `source` (repository@commit:path), `set`, `model` (a name of `models.json`),
`framework`, `cluster` (a preset), `gpus`, `length`, `batch`, `precision`, `environment`, every word
of `plan --given`, `seconds` of a step, `scored` ("yes", else why not) and others for people. A word
that is `best` is not said by the source: the value that is predicted to be the fastest that fits
counts, micro-batches of 1, 2 or 4 examples and 1, 2 or 4 chunks a rank. Such rows bias low.

Every folder that has `models.json` and `rows*.csv` is read so. Each `set` is a row of the table.

Repaired: what its source's own recipe says of a row beside its columns (`RECIPES`).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.studies.published.outcomes import Outcome, number
from gnnplace.errors import FormatError, InputError
from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers, LatentAttention
from gnnplace.plans.decoders.setting import PricingSetting, make_pricing_setting
from gnnplace.plans.spec import WORDS, PlanSpec, parse_spec_values
from gnnplace.plans.spec_answers import PlanAnswer, price
from gnnplace.problem.cluster.presets import make_preset

MODELS, ROWS = "models.json", "rows*.csv"
BEST = "best"
CHOICES: Mapping[str, tuple[str, ...]] = {
    "microbatch_size": ("1", "2", "4"),
    "schedule": ("1f1b", "interleaved:2", "interleaved:4"),
}
"""Values that are tried of a word that the source does not say."""
Row = Mapping[str, str]


class Recipe(NamedTuple):
    """What the recipe of some rows says beside their columns.

    Attributes:
        source: The beginning of the rows' `source`.
        models: Beginnings of the models that it trains.
        words: Values by column, which count instead of the rows' own.
        environment: What the recipe adds to the environment.
        local_batch: Examples of a replica that pass the pipeline before it is empty again, if there
            is one; a step of more accumulates the gradients of several such schedules. 0: all.
    """

    source: str
    models: tuple[str, ...]
    words: Mapping[str, str]
    environment: str = ""
    local_batch: int = 0


AUTOMODEL = {"precision": "bf16-true", "gradients": "fp32"}
"""Parameters and Adam's moments in bfloat16, which `from_config` and `torch_dtype` say, and sums of
gradients in float32, the default of `mp_policy`."""
RECIPES = (
    # examples/benchmark/configs/*_te_deepep.yaml of 89e3a9fd: fake_balanced_gate: true; the table
    # has local batches of 8 in pipelines.
    Recipe(
        "NVIDIA-NeMo/Automodel",
        ("DeepSeek", "Qwen3", "Kimi", "GPT-OSS"),
        AUTOMODEL,
        "experts-in-turn+nvidia-h100",
        local_batch=8,
    ),
    # examples/llm_pretrain/custom_llama3_1_70b_pretrain_benchmark_8nodes.yaml of 2013a4dd:
    # enable_compile: True.
    Recipe(
        "NVIDIA-NeMo/Automodel",
        ("Llama-3.1-70B",),
        {**AUTOMODEL, "compile": "on"},
        "nvidia-h100",
    ),
    # NVIDIA/NeMo, scripts/performance/llm/pretrain_grok1_314b.py: tp_comm_overlap=True. The runs
    # of v24.11 and v25.02 had it off.
    Recipe("NVIDIA/dgxc-benchmarking@v25.05", ("Grok",), {"tp_overlap": "on"}),
)


def recipe_of(row: Row) -> Recipe:
    """Return the recipe of a row; an empty one where its columns are all that is known."""
    for recipe in RECIPES:
        is_source = row.get("source", "").startswith(recipe.source)
        if is_source and row["model"].startswith(recipe.models):
            return recipe
    return Recipe("", (), {})


def as_its_recipe_says(row: Row) -> Row:
    """Return a row with what its source's recipe says."""
    recipe = recipe_of(row)
    names = [row.get("environment"), recipe.environment]
    environment = "+".join(name for name in names if name)
    return {**row, **recipe.words, "environment": environment}


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
            found.setdefault(key, []).append(
                outcome(as_its_recipe_says(row), models[row["model"]], where)
            )
    return found


def find_run_sizes(model: Mapping[str, Any], length: int) -> DecoderSizes:
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
    return make_pricing_setting(
        sizes,
        make_preset(cluster),
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
        yield parse_spec_values(
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
    rounds = num_rounds(row, plans[0])
    if rounds > 1:
        plans = [replace(plan, batch=int(row["batch"]) // rounds) for plan in plans]
    sizes = find_run_sizes(model, int(row["length"]))
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
    answer = of_rounds(answer, rounds)
    plan = replace(plan, batch=rounds * plan.batch) if plan.batch else plan
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


def num_rounds(row: Row, plan: PlanSpec) -> int:
    """Return how many schedules of a pipeline accumulate the gradients of a row's step."""
    local_batch = recipe_of(row).local_batch
    if plan.pp == 1 or not local_batch:
        return 1
    return max(1, int(row["batch"]) // (plan.dp * local_batch))


def of_rounds(answer: PlanAnswer, rounds: int) -> PlanAnswer:
    """Return the answer of a step that takes so many times as long, bytes and all else the same."""
    if answer.step_time is None or answer.low is None or answer.high is None:
        return answer
    return replace(
        answer,
        step_time=rounds * answer.step_time,
        low=rounds * answer.low,
        high=rounds * answer.high,
    )


def _rank(answered: tuple[PlanAnswer, PlanSpec]) -> tuple[bool, float]:
    """Return what answers are ordered by: those that fit first, then by seconds."""
    answer = answered[0]
    seconds = float("inf") if answer.step_time is None else answer.step_time
    return not answer.feasible, seconds
