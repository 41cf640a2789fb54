"""Rates that follow from a step time: tokens and FLOPs a second, MFU, days of a run.

Model FLOPs utilization (MFU) is the model's FLOPs of a step over the FLOPs that all devices could
do in that time, at the peak of dense products in the type of the precision (Chowdhery et al., 2022,
PaLM, arXiv 2204.02311, appendix B). The model's FLOPs are the forward and backward passes of all
products, including the whole square of attention, without recomputation. Peaks
are in `problem/cluster/gpus.json`.
"""

from __future__ import annotations

import re

from gnnplace.errors import GnnplaceError, InputError
from gnnplace.plans import PlanFile
from gnnplace.problem import find_kind, get_figures, load_cluster
from gnnplace.units import DAY, HOUR, count_text, days_text

TYPES = {"32": "float32", "bf16": "bfloat16", "16": "float16"}
COUNT = re.compile(r"([0-9]*\.?[0-9]+)\s*([KMBT]?)")
LARGE = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def utilization(file: PlanFile, seconds: float) -> float | None:
    """Return a step's MFU, or None if its FLOPs or the devices' peak are unknown."""
    kind = _kind(file)
    if file.flops is None or kind is None or seconds <= 0:
        return None
    peak = get_figures(kind).flops(TYPES[file.precision.partition("-")[0]])
    return file.flops / (seconds * len(file.memory) * peak)


def _kind(file: PlanFile) -> str | None:
    """Return the kind of the cluster's GPUs, if all are of one kind."""
    try:
        kinds = load_cluster(file.cluster_file or file.cluster).kinds
    except GnnplaceError:
        return None
    table_kind = find_kind(kinds[0])
    if len(kinds) == 1 and table_kind not in (None, "cpu"):
        return kinds[0]
    return None


def rates_line(file: PlanFile, seconds: float) -> str:
    """Format tokens or examples a second, in all and a device, TFLOP/s and MFU."""
    devices = len(file.memory)
    rate = (file.tokens or file.batch) / max(seconds, 1e-12)
    figures = [f"{rate:,.0f} {file.unit}/s", f"{rate / devices:,.0f} a device"]
    if file.flops:
        figures.append(f"{file.flops / seconds / devices / 1e12:.3g} TFLOP/s a device")
    share = utilization(file, seconds)
    return ", ".join([*figures, *([f"MFU {share:.1%}"] if share is not None else [])])


def parse_token_count(text: str, option: str = "--tokens") -> float:
    """Parse a number of tokens, such as 15T, 300B or 1.5e9.

    Raises:
        InputError: it is none.
    """
    match = COUNT.fullmatch(text.strip().upper())
    try:
        if match is None:
            count = float(text)
        else:
            count = float(match[1]) * LARGE[match[2]]
    except ValueError:
        count = 0.0
    if not 0 < count < 1e18:
        raise InputError(
            f"{option} {text}: must be a number of tokens, such as 300K, 300B or 15T"
        )
    return count


def run_line(file: PlanFile, seconds: float, tokens: float) -> str:
    """Format days and device hours of a run over `tokens` tokens.

    Raises:
        InputError: the model's examples are no rows of tokens.
    """
    tokens_a_step = file.tokens
    if tokens_a_step is None:
        raise InputError(
            f"--tokens: the examples of {file.model} are no rows of tokens"
        )
    run_seconds = tokens / tokens_a_step * seconds
    hours = run_seconds * len(file.memory) / HOUR
    return f"{count_text(tokens)} tokens: {days_text(run_seconds / DAY)}, {hours:,.0f} device hours"
