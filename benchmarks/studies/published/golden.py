"""Bytes of Megatron-LM's functional tests, exact to the byte (NVIDIA/Megatron-LM, BSD-3-Clause).

Dense GPTs whose plan divides the eight GPUs of a run, those without a name being A100. Goldens are
not made anew on every cluster: one whose peak is `STALE` times that of its case elsewhere is from
before the case's attention was fused, and priced so. `allocated_bytes.all.current` is the state of
the last rank between steps, `…all.peak` its peak. Times of these small models are launches and
logging, and not predicted.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.studies.published.outcomes import Outcome, number, read_rows
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.decoders.setting import PricingSetting, make_pricing_setting
from gnnplace.plans.search.draft import rank_bytes
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import price, price_spec
from gnnplace.problem.cluster.presets import make_preset

FOLDER = "megatron-lm-golden"
VOCABULARY, MULTIPLE = 50257, 128
STALE = 1.1
LOCAL = {"local": "unfused"}  # implementations of layers whose attention is products
OTHER = ("fp8-format", "num-experts", "encoder-num-layers", "use-megatron-fsdp", "optimizer",
         "multi-latent-attention", "hybrid-layer-pattern", "grad-reduce-in-bf16", "spec",
         "cuda-graph-impl", "mtp-num-layers", "decoder-first-pipeline-num-layers",
         "pipeline-model-parallel-layout", "main-grads-dtype",
         "num-distributed-optimizer-instances", "exp-avg-dtype")  # fmt: skip
"""Arguments of runs that are no dense GPT in half precision with Adam over equal stages."""


@cache
def setting(
    sizes: tuple[int, ...],
    gated: bool,
    tied: bool,
    positions: int,
    half: str,
    unfused: bool,
    kind: str,
) -> PricingSetting:
    """A model of the tests; sizes are width, layers, heads, heads of keys, feed-forward, words and
    length."""
    hidden, layers, heads, kv_heads, inside, words, length = sizes
    decoder = DecoderSizes(
        layers, hidden, heads, kv_heads, inside, length, words, gated, tied, positions=positions
    )  # fmt: skip
    return make_pricing_setting(
        decoder, make_preset(f"nvswitch-{kind}-8"), framework_name="megatron-lm", precision=half,
        optimizer="adam", environment_name="unfused-attention" if unfused else None,
    )  # fmt: skip


def outcomes(folder: Path) -> list[Outcome]:
    """Every dense GPT's row that is no copy of another."""
    rows = read_rows(folder / FOLDER / "runs.csv.gz")
    least: dict[str, float] = {}
    for row in rows:
        peak = number(row["mem_max_allocated"]) or np.inf
        least[row["case"]] = min(peak, least.get(row["case"], np.inf))
    return [
        o for row in rows
        if not row["copy_of"] and (o := outcome(row, least[row["case"]])) is not None
    ]  # fmt: skip


def outcome(row: dict[str, str], least: float = np.inf) -> Outcome | None:
    """A row; None where its model or its plan is of another kind.

    Args:
        row: by column.
        least: the least published peak of its case, in bytes.
    """
    if not row["case"].startswith("gpt/") or any(row.get(name) for name in OTHER):
        return None

    def count(name: str, otherwise: int = 1) -> int:
        return int(number(row.get(name, "")) or otherwise)

    tp, pp, cp = (
        count(f"{n}-model-parallel-size") for n in ("tensor", "pipeline", "context")
    )
    cp = count("context-parallel-size")
    dp = count("dp_derived", 0)
    if not dp or row["num-layers"] == "":
        return None
    hidden, heads, layers = (
        count("hidden-size"),
        count("num-attention-heads"),
        count("num-layers"),
    )
    pad, gated = MULTIPLE * tp, row.get("swiglu") == "True"
    inside = int(8 * hidden / 3 / 64) * 64 if gated else 4 * hidden
    sizes = (
        hidden, layers, heads, count("num-query-groups", heads),
        count("ffn-hidden-size", inside), -(-VOCABULARY // pad) * pad, count("seq-length"),
    )  # fmt: skip
    rotary = row.get("position-embedding-type") == "rope"
    tied = row.get("untie-embeddings-and-output-weights") != "True"
    named = row.get("attention-backend"), LOCAL.get(row.get("transformer-impl", ""))
    stale = (number(row["mem_max_allocated"]) or 0.0) > STALE * least
    own = setting(
        sizes, gated, tied,
        0 if rotary else count("max-position-embeddings"),
        "bf16-master" if row.get("bf16") == "True" else "16-master",
        "unfused" in named or stale,
        "h100" if row["gpu"].startswith("H100") else "a100-80",
    )  # fmt: skip
    chunk = count("num-layers-per-virtual-pipeline-stage", 0)
    words = PlanSpec(
        dp=dp, tp=tp, pp=pp, cp=cp, microbatch_size=count("micro-batch-size"),
        batch=count("global-batch-size"), zero=int(row["use-distributed-optimizer"] == "True"),
        sp=row.get("sequence-parallel") == "True",
        recompute="full" if row.get("recompute-granularity") == "full" else "none",
        schedule=f"interleaved:{layers // pp // chunk}" if chunk and pp > 1 else "1f1b",
    )  # fmt: skip
    answer = price(own, words)
    if answer.step_time is None:
        return None
    last = rank_bytes(price_spec(own, words))[-1]
    return Outcome(
        row["case"], "fp16" if "bf16" not in row or row["bf16"] != "True" else "bf16", own, words,
        answer, None, number(row["mem_allocated"]), number(row["mem_max_allocated"]),
        predicted_state=answer.state_last,
        predicted_peak=last.allocated,
    )  # fmt: skip
