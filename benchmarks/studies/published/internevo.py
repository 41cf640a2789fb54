"""InternEvo's 7B on 8 to 1,024 A100 (InternLM/InternEvo c628a8c, `doc/en/train_performance.md`).

Tokens a second and GPU, 16,384 tokens of a GPU in a step but where the table says otherwise, bf16,
four cards of 100 Gbit/s a server. ZeRO 1 parts over all replicas or over groups (`zero1`). InternLM
7B is Llama's layers of 4096, 11,008 inside, with 103,168 tokens (`configs/7B_sft.py`). Nothing is
fitted to these rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from benchmarks.studies.published.outcomes import Outcome
from benchmarks.studies.published.vtrain import machine
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.decoders.setting import PricingSetting, make_pricing_setting
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import price

FOLDER = "internevo"
SIZES = DecoderSizes(32, 4096, 32, 32, 11008, 2048, 103168)
GPUS = (8, 16, 32, 64, 128, 256, 512, 1024)
THROUGHPUT = {  # (tp, zero1): tokens a second and GPU, 4 micro-batches of 2 tp examples
    (1, 0): (4062, 3842, 3752, 3690, 3571, 3209, 2861, 2271),
    (1, 8): (4078, 3939, 3919, 3944, 3928, 3920, 3835, 3625),
    (2, 0): (3822, 3595, 3475, 3438, 3308, 3094, 2992, 2785),
    (2, 4): (3761, 3658, 3655, 3650, 3651, 3653, 3589, 3486),
}
PACKED = (  # GPUs, examples of a micro-batch, micro-batches, recomputation, tokens a second and GPU
    *((gpus, 8, 1, "full", rate) for gpus, rate in
      zip(GPUS, (3314, 3268, 3323, 3217, 3260, 3215, 3199, 3163), strict=True)),
    (512, 4, 1, "full", 2963), (1024, 2, 1, "full", 2341), (1024, 4, 1, "full", 2796),
    (512, 2, 2, "none", 3084), (1024, 2, 1, "none", 2346), (1024, 2, 2, "none", 2817),
)  # fmt: skip
TWENTY = DecoderSizes(60, 5120, 40, 40, 13824, 2048, 103168)
MEMORY = (  # sizes, GPUs, tp, pp, layers, GB of a GPU; all recomputed, zero1 of all, no FSDP
    (SIZES, 3, 1, 3, (11, 11, 10), 75), (SIZES, 4, 4, 1, None, 61), (SIZES, 4, 1, 4, None, 69),
    (SIZES, 5, 1, 5, (7, 7, 6, 6, 6), 62), (SIZES, 6, 1, 6, (6, 6, 5, 5, 5, 5), 56),
    (TWENTY, 16, 1, 16, (4,) * 12 + (3,) * 4, 52),
)  # fmt: skip
CARDS = 4 * 12.5e9 / 8  # bytes a second of a GPU's part of a server's cards


@cache
def setting(servers: int) -> PricingSetting:
    """The model on so many servers."""
    return make_pricing_setting(
        SIZES, machine(servers, CARDS), framework_name="internevo"
    )


def outcomes(_: Path) -> list[Outcome]:
    """Every row of three tables, which stand in the checkout."""
    found = []
    for (tp, group), rates in THROUGHPUT.items():
        for gpus, rate in zip(GPUS, rates, strict=True):
            found.append(outcome(gpus, tp, group, (2 * tp, 4, "none"), rate))
    found += [outcome(row[0], 1, 8, row[1:4], row[4]) for row in PACKED]
    return found + [held(*row) for row in MEMORY]


def held(
    sizes: DecoderSizes,
    gpus: int,
    tp: int,
    pp: int,
    layers: tuple[int, ...] | None,
    giga: int,
) -> Outcome:
    """Bytes that a run of four micro-batches of an example held."""
    words = PlanSpec(
        tp=tp,
        pp=pp,
        layers=layers,
        microbatch_size=1,
        batch=4,
        zero=1,
        recompute="full",
        sp=False,
    )
    own = replace(setting(-(-gpus // 8)), decoder=sizes)
    return Outcome(
        f"InternLM {sizes.layers} layers, {gpus} A100, bytes", "bytes", own, words,
        price(own, words), peak=1e9 * giga, ran=True,
    )  # fmt: skip


def outcome(
    gpus: int, tp: int, group: int, told: tuple[int, int, str], rate: float
) -> Outcome:
    """A row."""
    size, count, again = told
    dp = gpus // tp
    words = PlanSpec(
        dp=dp, tp=tp, microbatch_size=size, batch=dp * size * count, zero=1, recompute=again,
        zero_group=group or None, sp=False,
    )  # fmt: skip
    own = setting(gpus // 8)
    tokens = size * count * SIZES.length / tp
    return Outcome(
        f"InternLM 7B, {gpus} A100, batch {words.batch}",
        f"tp {tp}, zero1 {group or 'all'}, recompute {again}", own, words,
        price(own, words), tokens / rate, ran=True, microbatches=count,
    )  # fmt: skip
