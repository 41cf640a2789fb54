"""Megatron-LM on eight B200 (MooreThreads/SimuMax); bytes of every rank.

Sequence 4096 unless the case names another, one example a micro-batch, bfloat16, fused loss, the
distributed optimizer, split tokens, no exchange hidden, no recomputation.
"""

from __future__ import annotations

import gzip
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.studies.published.outcomes import Outcome
from gnnplace.errors import FormatError
from gnnplace.plans.decoders.decoder import DecoderSizes, ExpertLayers, LatentAttention
from gnnplace.plans.decoders.setting import PricingSetting, make_pricing_setting
from gnnplace.plans.spec import Layers, PlanSpec
from gnnplace.plans.spec_answers import price
from gnnplace.problem.cluster.presets import make_preset

FOLDER = "simumax"
MEGA = 2.0**20
# Width, heads, heads of keys, feed-forward, words: model-*.json of the source; of DeepSeek's the
# experts of its layers and its attention besides, one layer being dense in the runs.
MODELS = {
    "llama3_8b": (4096, 32, 8, 14336, 128257), "llama3_70b": (8192, 64, 8, 28672, 128256),
    "llama3_405b": (16384, 128, 16, 53248, 128256),
    "deepseekv2": (5120, 128, 128, 12288, 102400), "deepseekv3": (7168, 128, 128, 18432, 129280),
}  # fmt: skip

EXPERTS = {
    "deepseekv2": ExpertLayers(160, 6, 1536, 3072, 1),
    "deepseekv3": ExpertLayers(256, 8, 2048, 2048, 1),
}
LATENT, ROTARY_AND_PLAIN = LatentAttention(1536, 512, 64, 128), 64 + 128


@cache
def setting(model: str, layers: int, length: int) -> PricingSetting:
    """A model with so many of its layers."""
    hidden, heads, kv_heads, inside, words = MODELS[model]
    decoder = DecoderSizes(
        layers, hidden, heads, kv_heads, inside, length, words,
        own_head_size=ROTARY_AND_PLAIN if model in EXPERTS else None,
        experts=EXPERTS.get(model), latent=LATENT if model in EXPERTS else None,
    )  # fmt: skip
    return make_pricing_setting(
        decoder, make_preset("nvswitch-b200-8"), framework_name="megatron-lm"
    )


def outcomes(folder: Path) -> list[Outcome]:
    """Every row."""
    path = folder / FOLDER / "b200_runs.json.gz"
    try:
        rows = json.loads(gzip.decompress(path.read_bytes()))["rows"]
    except (OSError, ValueError, KeyError) as error:
        raise FormatError(f"{path}: cannot be read: {error}") from None
    return [o for row in rows if (o := outcome(row)) is not None]


def outcome(row: dict[str, Any]) -> Outcome | None:
    """A row; None where its model is another."""
    case = str(row["case"])
    model = next((name for name in MODELS if case.startswith(name)), None)
    if model is None:
        return None
    sizes = {
        name: int(n) for name, n in re.findall(r"(tp|cp|ep|pp|dp|mbc|seq)(\d+)", case)
    }
    layers = int(row["layer_num"])
    own = setting(model, layers, sizes.get("seq", 4096))
    dp, count = sizes.get("dp", 1), sizes["mbc"]
    even: Layers | None = "equal" if layers % sizes.get("pp", 1) == 0 else None
    words = PlanSpec(
        dp=dp, tp=sizes.get("tp", 1), cp=sizes.get("cp", 1), ep=sizes.get("ep", 1),
        pp=sizes.get("pp", 1), zero=1, batch=dp * count, layers=even,
    )  # fmt: skip
    held = [
        rank["max_allocated_mb"]
        for rank in row.get("peak_memory_by_rank_mb", {}).values()
    ]
    answer = price(own, words)
    return Outcome(
        case, model, own, words, answer, float(row["real_ms"]) / 1e3, None,
        max(held) * MEGA if held else None, True, True, count, predicted_peak=answer.allocated,
    )  # fmt: skip
