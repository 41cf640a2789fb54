"""The cost study's report: tables in Markdown, two pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.studies.costs.galvatron import MEBI, layer_rows
from benchmarks.studies.costs.left_out import GPU, OP, POINT, Trial, op_kind, summaries
from benchmarks.studies.costs.provenance import KIND, table_rows
from benchmarks.studies.costs.sailor import mean_error, misordered
from benchmarks.studies.costs.sailor import rows as sailor_rows
from benchmarks.studies.costs.sailor_memory import memory_rows
from benchmarks.studies.costs.steps import StepRow, agreements
from gnnplace.costs.prediction import PROVENANCES
from gnnplace.report.pictures import Axis, Series, chart

if TYPE_CHECKING:
    from benchmarks.studies.costs.study import CostStudy
    from gnnplace.report import Picture

HEAD = """# Predicted times of ops and steps against published ones

Written by `benchmarks.studies costs --report`. Nothing was fitted to the steps: op times come from
the package's tables of measured kernels, programs from captures of the models under fake tensors.

"""
LEFT = {
    POINT: "Points: each measured op answered by its own table without it",
    GPU: "GPUs: each answered by the tables of all others",
    OP: "Ops: each answered without any of its tables",
}


def page(study: CostStudy) -> str:
    """The whole report."""
    parts = [
        HEAD,
        *_language(study),
        *_layers(study),
        *_networks(study),
        *_trials(study),
    ]
    parts += [*_pipelines(study), *_memory(), *_sources(study)]
    return "\n".join(parts).rstrip() + "\n"


def headline(study: CostStudy) -> list[str]:
    """The figures that the command prints."""
    lines = [
        f"language models{', own shapes taken out' if rows is study.unseen else ''}: backward "
        f"{_mean(_backward(rows)):.1%} off on {len(rows)} steps, forward and backward "
        f"{_mean(_both(rows)):.1%} on the {len(_both(rows))} whose forward is sound"
        for rows in (study.steps, study.unseen)
    ]
    lines += [
        f"{one.networks} CNNs on {one.gpu}: {one.off:.1%} off, rank correlation {one.rank:.2f}; "
        f"{one.fitted:.1%} with a factor fitted on half"
        for one in agreements(study.networks)
    ]
    lines += [
        f"{name} left out: {_mean([t.covered for t in mine]):.1%} of times within the promised "
        "90 % interval"
        for name, mine in study.trials.items()
    ]
    if study.layers:
        kinds = {row.gpu for row in study.layers}
        off = _mean([abs(row.off) for row in study.layers])
        lines.append(
            f"a layer of OPT-350M on {len(kinds)} kinds of GPUs: {off:.1%} off"
        )
    if study.sources:
        ops, without = (
            sum(getattr(row, n) for row in study.sources) for n in ("ops", "without")
        )
        lines.append(
            f"{len(study.sources)} models, {ops} ops: {without} without a time"
        )
    return lines


def _backward(rows: Sequence[StepRow]) -> list[float]:
    return [abs(row.backward_off) for row in rows]


def _both(rows: Sequence[StepRow]) -> list[float]:
    return [abs(row.both_off) for row in rows if row.sound]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else float("nan")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def _language(study: CostStudy) -> list[str]:
    heads = ("GPU", "model", "batch", "forward", "published", "backward", "published",
             "backward off", "both off", "own shapes out: backward, both", "promised")  # fmt: skip
    rows = []
    for row, bare in zip(study.steps, study.unseen, strict=True):
        both = f"{row.both_off:+.1%}" if row.sound else "(forward not sound)"
        bare_both = f"{bare.both_off:+.1%}" if bare.sound else "-"
        times = (row.forward, row.measured_forward, row.backward, row.measured_backward)
        cells = [f"{1e3 * seconds:.1f} ms" for seconds in times]
        off = [
            f"{row.backward_off:+.1%}",
            both,
            f"{bare.backward_off:+.1%}, {bare_both}",
        ]
        told = [row.gpu, row.model, f"{row.batch} x {row.length}"]
        rows.append([*told, *cells, *off, f"±{row.error:.0%}"])
    mean = (
        f"Mean error of backward {_mean(_backward(study.steps)):.1%} (own shapes out "
        f"{_mean(_backward(study.unseen)):.1%}), of forward and backward where the published "
        f"forward is sound {_mean(_both(study.steps)):.1%} ({_mean(_both(study.unseen)):.1%}).\n"
    )
    return ["## Training steps of language models, float32, eager\n", _table(heads, rows), mean,
            "![Predicted and published steps](costs-steps.svg)\n"]  # fmt: skip


def _layers(study: CostStudy) -> list[str]:
    if not study.layers:
        return []
    heads = (
        "GPU",
        "batch",
        "forward",
        "published",
        "backward",
        "published",
        "both off",
    )
    rows = []
    for row in sorted(study.layers, key=lambda row: (row.gpu, row.batch)):
        times = (row.forward, row.measured_forward, row.backward, row.measured_backward)
        cells = [f"{1e3 * seconds:.1f} ms" for seconds in times]
        rows.append([row.gpu, f"{row.batch} x 2048", *cells, f"{row.off:+.1%}"])
    told = f"Mean error of both passes {_mean([abs(row.off) for row in study.layers]):.1%}.\n"
    return ["## A layer of OPT-350M, float32 with TF32 where there is, nothing fitted (Sailor)\n",
            _table(heads, rows), told]  # fmt: skip


def _networks(study: CostStudy) -> list[str]:
    heads = ("GPU", "networks", "mean error", "rank correlation", "published over predicted",
             "mean error, one factor fitted on half")  # fmt: skip
    rows = [
        (one.gpu, f"{one.networks}", f"{one.off:.1%}", f"{one.rank:.3f}", f"{one.factor:.2f}",
         f"{one.fitted:.1%}")
        for one in agreements(study.networks)
    ]  # fmt: skip
    return ["## Training steps of CNNs, batch 12\n", _table(heads, rows),
            "![CNNs](costs-networks.svg)\n"]  # fmt: skip


def _trials(study: CostStudy) -> list[str]:
    parts = ["## Promised errors and found ones\n"]
    for name, mine in study.trials.items():
        parts += [f"### {LEFT[name]}\n", _summaries(mine, op_kind, "op")]
        if name != OP:
            parts.append(_summaries(mine, lambda trial: trial.kind, "GPU"))
    return parts


def _summaries(trials: list[Trial], by: Callable[[Trial], str], name: str) -> str:
    heads = (name, "tables", "promised", "found, mean", "within the 90 % interval")
    rows = [
        (
            one.name,
            f"{one.pairs}",
            f"{one.promised:.1%}",
            f"{one.missed:.1%}",
            f"{one.covered:.1%}",
        )
        for one in summaries(trials, by)
    ]
    return _table(heads, rows)


def _pipelines(study: CostStudy) -> list[str]:
    if not study.pipelines:
        return []
    rows = [asdict(row) if is_dataclass(row) else dict(row) for row in study.pipelines]  # type: ignore[call-overload, arg-type]
    heads = list(rows[0])
    return ["## Pipelines on several GPUs (Sailor), from layer profiles\n", *_pipeline_figures(),
            _table(heads, [[_cell(row[head]) for head in heads] for row in rows])]  # fmt: skip


def _pipeline_figures() -> list[str]:
    found = sailor_rows()
    several = [row for row in found if row.microbatch > 1]
    return [f"Mean error {mean_error(found):.1%}, {mean_error(several):.1%} of the {len(several)} "
            f"with micro-batches above 1; pairs of plans in the wrong order: "
            f"{len(misordered(found))}.\n"]  # fmt: skip


def _memory() -> list[str]:
    peaks = [
        (row.model, row.plan, f"{1e-9 * row.predicted:.2f} GB", f"{1e-9 * row.published:.2f} GB",
         f"{row.error:+.1%}")
        for row in memory_rows()
    ]  # fmt: skip
    peak_heads = ("model", "plan", "predicted", "published", "error")
    layers = [
        (row.profile, f"{row.tensor_parallel}{' and positions' * row.sequence_parallel}",
         f"{row.batch:g} x {row.positions}", f"{row.activations / MEBI:.1f} MiB",
         f"{row.published_activations / MEBI:.1f} MiB", f"{row.error:+.1%}",
         f"{row.state_error:+.1%}")
        for row in layer_rows()
    ]  # fmt: skip
    layer_heads = (
        "profile",
        "ways",
        "batch",
        "activations",
        "published",
        "error",
        "states, error",
    )
    return ["## Memory\n", "### Peaks of Sailor's pipelines on GH200\n",
            "Slack and the bytes of a process are fitted to these rows; fitted to one model they "
            "predict the other to 1.5 and 2.0 % (`tests/studies/costs/test_sailor.py`). Mean error "
            f"{_mean([abs(row.error) for row in memory_rows()]):.1%}.\n",
            _table(peak_heads, peaks),
            "### One layer more (Galvatron), nothing fitted\n",
            f"Mean error of activations {_mean([abs(row.error) for row in layer_rows()]):.1%}, "
            f"median {np.median([abs(row.error) for row in layer_rows()]):.1%}; of states "
            f"{_mean([abs(row.state_error) for row in layer_rows()]):.1%}, median "
            f"{np.median([abs(row.state_error) for row in layer_rows()]):.1%}.\n",
            _table(layer_heads, layers)]  # fmt: skip


def _sources(study: CostStudy) -> list[str]:
    if not study.sources:
        return []
    heads = ("model", "ops", "views", *(f"{name}, ops (time)" for name in PROVENANCES),
             "without a time", "promised")  # fmt: skip
    return [f"## Where times are from: every op of a training step, float32, on {KIND}\n",
            _table(heads, table_rows(study.sources))]  # fmt: skip


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def step_picture(study: CostStudy) -> Picture:
    """Predicted over published, of both passes."""
    series = []
    for name, rows in (("all tables", study.steps), ("own shapes out", study.unseen)):
        told = [
            f"{row.model}, batch {row.batch}, {row.gpu}: {row.backward_off:+.1%}"
            for row in rows
        ]
        measured = [1e3 * row.measured_backward for row in rows]
        off = [100 * row.backward_off for row in rows]
        series.append(Series(f"backward, {name}", measured, off, told, joined="none"))
    axes = (
        Axis("published, ms", logarithmic=True),
        Axis("predicted less published, %"),
    )
    return chart(
        series, axes, title="Training steps of language models on A100-80 and V100"
    )


def network_picture(study: CostStudy) -> Picture:
    """Predicted against published, by GPU."""
    series = []
    for gpu in dict.fromkeys(row.gpu for row in study.networks):
        mine = [row for row in study.networks if row.gpu == gpu]
        told = [f"{row.network} on {gpu}: {row.off:+.1%}" for row in mine]
        measured = [1e3 * row.measured for row in mine]
        series.append(
            Series(
                gpu,
                measured,
                [1e3 * row.predicted for row in mine],
                told,
                joined="none",
            )
        )
    axes = (
        Axis("published, ms", logarithmic=True),
        Axis("predicted, ms", logarithmic=True),
    )
    return chart(series, axes, title="Training steps of CNNs, batch 12")
