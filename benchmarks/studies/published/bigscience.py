"""Megatron-DeepSpeed on 8 to 384 A100 of Jean Zay (bigscience, the choice of BLOOM's topology).

Four cards of 100 Gbit/s serve eight GPUs; everything is recomputed. Repaired: layers with "~" are
read as their number; where seconds and TFLOP/s of a row stand in each other's columns (line 669 or
670) it is left out; lines 387 to 570 ran in part with `CUDA_LAUNCH_BLOCKING=1` and are left out of
seconds, as is a row whose layers its stages do not divide. From line 904 on gradients are summed in
float32 and the embedding counts as a layer.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from benchmarks.studies.published.outcomes import GIBIBYTE, Outcome, number, read_rows
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.decoders.setting import PricingSetting, make_pricing_setting
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import price
from gnnplace.problem.cluster import Cluster, Link
from gnnplace.problem.cluster.presets import ServerGroup

FOLDER = "bigscience"
VOCABULARY, LENGTH = 250880, 2048
CARD = 4 * 12.5e9 / 8  # bytes a second of a GPU's part of a server's cards
BLOCKING, SWAPPED, REBALANCED = 570, (669, 670), 904


@cache
def machine() -> Cluster:
    """48 servers of Jean Zay; of links what the first GPU sees is all that is asked."""
    inner = ServerGroup("a100-80", 8, "nvswitch-a100").cluster()
    many = tuple(
        inner.devices[0].model_copy(update={"name": f"gpu:{i}"}) for i in range(48 * 8)
    )
    outer = tuple(
        Link(source="gpu:0", target=f"gpu:{i}", latency=17e-6, bandwidth=CARD * 0.9)
        for i in range(8, len(many))
    )
    return Cluster(many, inner.links + outer, "jean-zay")


@cache
def setting(hidden: int, layers: int, heads: int, half: str) -> PricingSetting:
    """A model on it, in float16 or bfloat16 over float32 copies."""
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
    return make_pricing_setting(
        decoder,
        machine(),
        framework_name="megatron-deepspeed",
        precision=half,
        optimizer="adam",
        environment_name="jean-zay-a100",
    )


def outcomes(folder: Path) -> list[Outcome]:
    """Every row whose plan is whole."""
    rows = read_rows(folder / FOLDER / "runs.csv.gz")
    return [o for row in rows if (o := outcome(row)) is not None]


def outcome(row: dict[str, str]) -> Outcome | None:
    """A row; None where its plan or its model is not all there, or two cells are swapped."""
    line, gpus = int(row["line"]), int(row["gpus"])
    shape = [number(row[name]) for name in ("dp", "tp", "pp", "mbs", "gbs")]
    layers, heads = number(row["layers"].strip("~")), number(row["heads"])
    if None in shape or layers is None or heads is None or line in SWAPPED:
        return None
    dp, tp, pp, size, batch = (int(value or 0) for value in shape)
    hidden, late = int(row["hidden"]), line >= REBALANCED
    if hidden % int(heads) or dp * tp * pp != gpus:
        return None
    own = setting(
        hidden, int(layers), int(heads), "bf16-master" if late else "16-master"
    )
    words = PlanSpec(
        dp=dp, tp=tp, pp=pp, microbatch_size=size, batch=batch - batch % (dp * size),
        zero=int(row["zero"]), recompute="full", gradients="fp32" if late else "same",
    )  # fmt: skip
    peak, seconds = number(row["peak_mem_gb"]), number(row["sec_per_iter"])
    ran = False if row["peak_mem_gb"] == "OOM" else True if peak or seconds else None
    return Outcome(
        f"{hidden}x{layers:g}, {heads:g} heads, {gpus} GPUs, batch {batch}", f"{hidden} wide",
        own, words, price(own, words), seconds if line > BLOCKING else None, None,
        peak * GIBIBYTE if peak else None, ran, True, words.num_microbatches(batch),
    )  # fmt: skip
