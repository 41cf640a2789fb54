"""nanotron's sweep on 8 to 512 H100 (Hugging Face, Ultra-Scale Playbook), by its own cut.

Two environments, told apart by the row's all-reduce inside a server: above 435 GB/s, and 100 to 435
(collectives are checked); allocations of about 45 are broken and left out, as are, of seconds, rows
with stages before a fix of the pipeline's engine and rows of another batch than 256. Before that
fix a stage that had just its share of the cost got one layer more, as their bytes say. `Mem Alloc`
is what is allocated while the optimizer steps: state, with ZeRO 1 the gathered copies besides.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from benchmarks.studies.published.outcomes import GIBIBYTE, Outcome, number, read_rows
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.decoders.setting import PricingSetting, make_pricing_setting
from gnnplace.plans.decoders.stages import cut_layers
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import price, price_spec
from gnnplace.problem.cluster.presets import make_preset

FOLDER = "ultrascale-playbook"
BATCH, LENGTH = 256, 4096
FAST, BROKEN = 435.0, 100.0
CHECKED = "checked-collectives"
ALIKE = 0.05
# Layers, heads, width of the feed-forward, tied embedding, by width.
SHAPES = {
    2048: (16, 32, 8192, True), 3072: (28, 32, 8192, True), 4096: (32, 32, 14336, False),
    8192: (80, 64, 28672, False), 16384: (126, 128, 53248, False),
}  # fmt: skip


@cache
def setting(hidden: int, kv_heads: int, words: int, checked: bool) -> PricingSetting:
    """A model of the sweep on its 64 servers."""
    layers, heads, inside, tied = SHAPES[hidden]
    decoder = DecoderSizes(
        layers, hidden, heads, kv_heads, inside, LENGTH, words, tied=tied, batch=BATCH
    )
    return make_pricing_setting(
        decoder, make_preset("dgx-h100-64x8"), framework_name="nanotron",
        environment_name=CHECKED if checked else None,
    )  # fmt: skip


def outcomes(folder: Path) -> list[Outcome]:
    """Every row that was tried and whose plan can be said."""
    return [
        o for row in read_rows(folder / FOLDER / "runs.csv.gz") if (o := outcome(row))
    ]


def outcome(row: dict[str, str]) -> Outcome | None:
    """A row of the sweep; None where it is of no known model or neither ran nor was too large."""
    hidden, nodes = int(row["hidden_size"]), number(row["nodes"])
    ran, too_large = row["status"] == "Success", row["oom_error"] == "True"
    if hidden not in SHAPES or nodes is None or not (ran or too_large):
        return None
    words, count = _words(row)
    sound = row["after_pp_fix"] == "True" or words.pp == 1
    if words.num_devices != nodes * 8:
        return None
    rate = number(row["AR Intra-node (GB/s)"])
    checked = rate is not None and BROKEN < rate <= FAST
    kv_heads = int(number(row["num_kv_heads"]) or SHAPES[hidden][1])
    own = setting(hidden, kv_heads, int(row["vocab_size"]), checked)
    if not sound:
        longer = replace(own.decoder, vocabulary=own.decoder.vocabulary + 1)
        words = replace(words, layers=cut_layers(longer, words.pp, "cost"))
    answer = price(own, words)
    seconds, speed = None, number(row["tok/s/gpu"])
    usable = sound and words.batch == BATCH and rate is not None and rate > BROKEN
    if ran and speed and usable:
        seconds = (words.batch or 0) * LENGTH / (speed * nodes * 8)
    plain = price(
        setting(hidden, kv_heads, int(row["vocab_size"]), False), words
    ).step_time
    alike = plain is not None and (answer.step_time or plain) <= plain * (1 + ALIKE)
    state, peak = number(row["Mem Alloc (GB)"]), number(row["Mem Res (GB)"])
    return Outcome(
        f"{row['num_params']} B, {int(nodes)} servers", f"{hidden} wide", own, words, answer,
        seconds, state * GIBIBYTE if ran and state else None,
        peak * GIBIBYTE if ran and peak else None, ran, alike, count, _counter(own, words, answer),
    )  # fmt: skip


def _words(row: dict[str, str]) -> tuple[PlanSpec, int]:
    """The plan of a row, and its micro-batches."""
    dp, size = int(row["dp"]), int(row["mbs"])
    count = int(number(row["batch_accum"]) or max(1, BATCH // (dp * size)))
    plan = PlanSpec(
        dp=dp, tp=int(row["tp"]), pp=int(row["pp"]), microbatch_size=size, batch=dp * size * count,
        zero=int(row["zero_stage"]),
    )  # fmt: skip
    return plan, count


def _counter(own: PricingSetting, words: PlanSpec, answer: object) -> float | None:
    """Bytes of the log's counter on the first rank: with ZeRO 1 what passes in the update."""
    state = getattr(answer, "state_first", None)
    if state is None or words.zero == 0 or words.dp == 1:
        return state
    passing = own.framework.constants["update_passing"] * (2 + 1 / words.dp)
    priced = price_spec(own, words)
    return float(state + passing * priced.pricer.trained(priced.draft.stages[0]))
