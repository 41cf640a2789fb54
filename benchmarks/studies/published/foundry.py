"""MPT under PyTorch FSDP on 8 to 512 A100 and H100 (mosaicml/llm-foundry); float8 is left out.

All published rows ran. What is recomputed there is presumed not to fit without: rows without
seconds, which are to be refused.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from benchmarks.studies.published.outcomes import Outcome, read_rows
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.decoders.setting import PricingSetting, make_pricing_setting
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import price
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.cluster.presets import PORT, ServerGroup

FOLDER = "llm-foundry"
KINDS = {"a100_40gb": "a100", "a100_80gb": "a100-80", "h100_80gb": "h100"}
FLOAT8 = "amp_fp8"


@cache
def machine(kind: str, servers: int) -> Cluster:
    """Servers of eight with 200 or 400 Gbit/s a GPU."""
    inside, between = ("nvswitch-h100", "infiniband-dgx-h100") if kind == "h100" else (
        "nvswitch-a100", "infiniband-dgx-a100"
    )  # fmt: skip
    several = servers > 1
    return ServerGroup(
        kind, 8, inside, PORT, servers if several else 1, between if several else None
    ).cluster(f"{kind} {servers}x8")


@cache
def setting(kind: str, servers: int, sizes: tuple[int, ...]) -> PricingSetting:
    """A model on a machine; sizes are width, layers, heads, words, feed-forward and length."""
    hidden, layers, heads, words, inside, length = sizes
    decoder = DecoderSizes(
        layers, hidden, heads, heads, inside, length, words, False, True
    )
    return make_pricing_setting(decoder, machine(kind, servers), precision="bf16-mixed")


def outcomes(folder: Path) -> list[Outcome]:
    """Every row in bfloat16, and what is presumed too large."""
    rows = read_rows(folder / FOLDER / "runs.csv.gz")
    ran = [outcome(row) for row in rows if row["precision"] != FLOAT8]
    return [*ran, *(presumed(o) for o in ran if o.plan.recompute == "full")]


def presumed(ran: Outcome) -> Outcome:
    """The plan of a row that recomputes, without: presumed too large."""
    words = replace(ran.plan, recompute="none")
    return replace(
        ran, plan=words, answer=price(ran.setting, words), seconds=None, ran=False
    )


def outcome(row: dict[str, str]) -> Outcome:
    """A row."""
    names = ("hidden", "layers", "heads", "vocab", "ffn", "seq")
    kind, gpus = KINDS[row["gpu"]], int(row["gpus"])
    own = setting(kind, gpus // 8, tuple(int(row[name]) for name in names))
    words = PlanSpec(
        dp=gpus, microbatch_size=int(row["micro_batch"]), batch=int(row["global_batch"]),
        zero=3 if row["sharding"] == "FULL_SHARD" else 2,
        recompute="full" if row["checkpointing"] == "True" else "none",
    )  # fmt: skip
    question = f"{row['model']}, {gpus} {kind}, {row['seq']} tokens"
    return Outcome(
        question, row["model"], own, words, price(own, words), float(row["step_seconds"]),
        ran=True, microbatches=int(row["grad_accum"]),
    )  # fmt: skip
