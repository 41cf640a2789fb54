"""GPT on A100 under Megatron-DeepSpeed (VIA-Research/vTrain); nothing is fitted to it.

Every `*.csv.gz` of the folder whose first line names the columns of the source's files. The
single-node file is composed of some 32 measured cells (`benchmarks.studies.plans.vtrain`), so that
it says nothing of overlap or jitter. Nothing is recomputed, as its largest rows say; a plan of
several servers, which its paper (arXiv 2312.12391) has four cards of 200 Gbit/s in, is taken to be
recomputed where it fits no other way.
"""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import replace
from functools import cache
from pathlib import Path

from benchmarks.studies.published.outcomes import Outcome
from gnnplace.errors import FormatError
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.decoders.setting import PricingSetting, make_pricing_setting
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import price
from gnnplace.problem.cluster import Cluster, Link
from gnnplace.problem.cluster.presets import make_preset

FOLDER = "vtrain"
VOCABULARY = 51200
COLUMNS = ("GPUs", "global batch", "micro batch", "hidden size", "attention heads", "# layers",
           "sequence length", "tensor parallelism", "data parallelism", "pipeline parallelism",
           "iteration time (ms)")  # fmt: skip
CARDS = 4 * 25e9 / 8  # bytes a second of a GPU's part of a server's cards


@cache
def machine(servers: int, cards: float = CARDS) -> Cluster:
    """Servers of eight A100; of links what the first GPU sees is all that is asked."""
    inner = make_preset("nvswitch-a100-80-8")
    if servers == 1:
        return inner
    many = tuple(
        inner.devices[0].model_copy(update={"name": f"gpu:{i}"})
        for i in range(8 * servers)
    )
    outer = tuple(
        Link(source="gpu:0", target=f"gpu:{i}", latency=17e-6, bandwidth=0.9 * cards)
        for i in range(8, len(many))
    )
    return Cluster(many, inner.links + outer, f"a100-80 {servers}x8")


@cache
def setting(
    hidden: int, heads: int, layers: int, length: int, servers: int = 1
) -> PricingSetting:
    """A model of the file on servers, in float16."""
    decoder = DecoderSizes(
        layers,
        hidden,
        heads,
        heads,
        4 * hidden,
        length,
        VOCABULARY,
        gated=False,
        tied=True,
    )
    return make_pricing_setting(
        decoder, machine(servers), framework_name="megatron-deepspeed",
        precision="16-master", optimizer="adam",
    )  # fmt: skip


def outcomes(folder: Path) -> list[Outcome]:
    """Every row: GPUs, batch, micro-batch, width, heads, layers, length, tp, dp, pp, milliseconds.

    Raises:
        FormatError: the file cannot be read.
    """
    found = []
    for path in sorted((folder / FOLDER).glob("*.csv.gz")):
        try:
            text = gzip.decompress(path.read_bytes()).decode("utf-8")
            head, *lines = csv.reader(io.StringIO(text.lstrip("# \ufeff")))
            if tuple(name.strip() for name in head) != COLUMNS:
                raise ValueError(f"its columns are not {', '.join(COLUMNS)}")
            found += [outcome(line) for line in lines if line]
        except (OSError, EOFError, ValueError) as error:
            raise FormatError(f"{path}: cannot be read: {error}") from None
    return found


def outcome(line: list[str]) -> Outcome:
    """A row."""
    gpus, batch, size, hidden, heads, layers, length, tp, dp, pp = map(int, line[:10])
    own = setting(hidden, heads, layers, length, -(-gpus // 8))
    words = PlanSpec(dp=dp, tp=tp, pp=pp, microbatch_size=size, batch=batch)
    answer = price(own, words)
    if gpus > 8 and not answer.feasible:
        words = replace(words, recompute="full")
        answer = price(own, words)
    return Outcome(
        f"GPT {hidden}x{layers}, {gpus} A100, batch {batch}", f"{hidden} wide", own, words,
        answer, float(line[10]) / 1e3, ran=True, microbatches=words.num_microbatches(batch),
    )  # fmt: skip
