"""Megatron-LM's weak scaling on 32 to 512 A100 (Narayanan et al., 2021, arXiv 2104.04473, table 1).

What is published are TFLOP/s a GPU (`benchmarks.studies.plans.megatron`). The size of micro-batches
is not: the one that is predicted to be the fastest is taken. Megatron split no tokens then, and
summed float16 gradients as such (`megatron/arguments.py` of August 2021, 3d718bf: in float32 for
bfloat16 alone, unless told). Nothing is fitted to these rows.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.studies.plans.megatron import (
    LENGTH,
    MICRO_BATCHES,
    TABLE,
    VOCABULARY,
    seconds_of,
)
from benchmarks.studies.published.outcomes import Outcome
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.decoders.setting import make_pricing_setting
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import price
from gnnplace.problem.cluster.presets import make_preset

FOLDER = "weak-scaling"


def outcomes(_: Path) -> list[Outcome]:
    """The table's rows of one to 64 servers, which stand in the checkout."""
    return [outcome(row) for row in TABLE]


def outcome(row: tuple[float, ...]) -> Outcome:
    """A row."""
    billions = row[0]
    heads, hidden, layers, tp, pp, gpus, batch = (int(value) for value in row[1:8])
    decoder = DecoderSizes(
        layers,
        hidden,
        heads,
        heads,
        4 * hidden,
        LENGTH,
        VOCABULARY,
        gated=False,
        tied=True,
    )
    own = make_pricing_setting(
        decoder, make_preset(f"superpod-a100-80-{gpus // 8}x8"), framework_name="megatron-lm",
        environment_name="unfused-attention", precision="16-master", optimizer="adam",
    )  # fmt: skip
    dp = gpus // tp // pp
    plans = [
        PlanSpec(
            dp=dp,
            tp=tp,
            pp=pp,
            microbatch_size=size,
            batch=batch,
            recompute="full",
            sp=False,
            gradients="same",
        )
        for size in MICRO_BATCHES
        if batch % (dp * size) == 0
    ]
    answer, words = min(
        ((price(own, plan), plan) for plan in plans),
        key=lambda x: x[0].step_time or float("inf"),
    )
    return Outcome(
        f"GPT {billions} B, {gpus} A100", f"{hidden} wide", own, words, answer, seconds_of(row),
        ran=True, microbatches=words.num_microbatches(batch),
    )  # fmt: skip
