"""Megatron-LM on eight B200, its dense models (MooreThreads/SimuMax); bytes of every rank.

Sequence 4096 unless the case names another, one example a micro-batch, bfloat16, fused loss, the
distributed optimizer, split tokens, no exchange hidden, no recomputation. Models of experts with
latent attention are not priced from sizes and left out.
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
from gnnplace.plans.decoders.decoder import Decoder
from gnnplace.plans.decoders.pricing import price
from gnnplace.plans.decoders.setting import Setting, setting_of
from gnnplace.plans.decoders.words import GivenWords
from gnnplace.problem.cluster.presets import preset

FOLDER = "simumax"
MEGA = 2.0**20
# Width, heads, heads of keys, feed-forward, words: model-*.json of the source.
MODELS = {
    "llama3_8b": (4096, 32, 8, 14336, 128257), "llama3_70b": (8192, 64, 8, 28672, 128256),
    "llama3_405b": (16384, 128, 16, 53248, 128256),
}  # fmt: skip


@cache
def setting(model: str, layers: int, length: int) -> Setting:
    """A dense model with so many of its layers."""
    hidden, heads, kv_heads, inside, words = MODELS[model]
    decoder = Decoder(
        model, hidden, layers, heads, kv_heads, hidden // heads, inside, True, words, False, length
    )
    return setting_of(decoder, preset("nvswitch-b200-8"), framework_name="megatron-lm")


def outcomes(folder: Path) -> list[Outcome]:
    """Every dense row."""
    path = folder / FOLDER / "b200_runs.json.gz"
    try:
        rows = json.loads(gzip.decompress(path.read_bytes()))["rows"]
    except (OSError, ValueError, KeyError) as error:
        raise FormatError(f"{path}: cannot be read: {error}") from None
    return [o for row in rows if (o := outcome(row)) is not None]


def outcome(row: dict[str, Any]) -> Outcome | None:
    """A row; None where its model is not dense."""
    case = str(row["case"])
    model = next((name for name in MODELS if case.startswith(name)), None)
    if model is None:
        return None
    sizes = {name: int(n) for name, n in re.findall(r"(tp|cp|pp|dp|mbc|seq)(\d+)", case)}
    layers = int(row["layer_num"])
    own = setting(model, layers, sizes.get("seq", 4096))
    dp, count = sizes.get("dp", 1), sizes["mbc"]
    words = GivenWords(
        dp=dp, tp=sizes.get("tp", 1), cp=sizes.get("cp", 1), pp=sizes.get("pp", 1), zero=1,
        batch=dp * count, layers="equal" if layers % sizes.get("pp", 1) == 0 else "",
    )  # fmt: skip
    held = [rank["max_allocated_mb"] for rank in row.get("peak_memory_by_rank_mb", {}).values()]
    answer = price(own, words)
    return Outcome(
        case, model, own, words, answer, float(row["real_ms"]) / 1e3, None,
        max(held) * MEGA if held else None, True, True, count, predicted_peak=answer.allocated,
    )  # fmt: skip
