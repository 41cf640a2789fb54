"""GPT on 2 to 8 A100 under Megatron-DeepSpeed (VIA-Research/vTrain); nothing is fitted to it.

The single-node file is composed of some 32 measured cells (`benchmarks.studies.plans.vtrain`), so
that it says nothing of overlap or jitter. Nothing is recomputed, as its largest rows say.
"""

from __future__ import annotations

import csv
import gzip
import io
from functools import cache
from pathlib import Path

from benchmarks.studies.published.outcomes import Outcome
from gnnplace.errors import FormatError
from gnnplace.plans.decoders.decoder import DecoderSizes
from gnnplace.plans.decoders.pricing import price
from gnnplace.plans.decoders.setting import PricingSetting, setting_of
from gnnplace.plans.decoders.words import GivenWords
from gnnplace.problem.cluster.presets import preset

FOLDER = "vtrain"
VOCABULARY = 51200


@cache
def setting(hidden: int, heads: int, layers: int, length: int) -> PricingSetting:
    """A model of the file on a server, in float16."""
    decoder = DecoderSizes(
        layers, hidden, heads, heads, 4 * hidden, length, VOCABULARY, gated=False, tied=True
    )
    return setting_of(
        decoder, preset("nvswitch-a100-80-8"), framework_name="megatron-deepspeed",
        precision="16-master", optimizer="adam",
    )  # fmt: skip


def outcomes(folder: Path) -> list[Outcome]:
    """Every row: GPUs, batch, micro-batch, width, heads, layers, length, tp, dp, pp, milliseconds.

    Raises:
        FormatError: the file cannot be read.
    """
    path = folder / FOLDER / "single.csv.gz"
    try:
        text = gzip.decompress(path.read_bytes()).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: cannot be read: {error}") from None
    return [outcome(line) for line in list(csv.reader(io.StringIO(text)))[1:]]


def outcome(line: list[str]) -> Outcome:
    """A row."""
    gpus, batch, size, hidden, heads, layers, length, tp, dp, pp = map(int, line[:10])
    own = setting(hidden, heads, layers, length)
    words = GivenWords(dp=dp, tp=tp, pp=pp, microbatch_size=size, batch=batch)
    return Outcome(
        f"GPT {hidden}x{layers}, {gpus} A100, batch {batch}", f"{hidden} wide", own, words,
        price(own, words), float(line[10]) / 1e3, ran=True, microbatches=words.microbatches(batch),
    )  # fmt: skip
