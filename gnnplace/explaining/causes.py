"""Causes of a run that is slower than predicted: a slowdown of one part that explains its step.

Each cause slows one part of the step by a factor: exchanges between servers, exchanges inside of
them, kernels, launches; or it changes the plan: no overlap, all layers recomputed, collectives that
are checked; or it adds seconds outside of the step. The step is priced under each cause at several
factors.

**Rule.** The weight of a cause is its prior times the plausibility of the measured step under it,

    w = p E_k[exp(-(ln m - ln t(k))^2 / (2 s^2))],

with m the measured step, t(k) the step under the cause at factor k, and s = 8 % the error of
predictions for runs without any fault. The logarithm of k is normally distributed about the usual
factor of the cause, so that a factor which never occurs (kernels at a tenth of their clock) is
implausible. Priors and usual factors are in `KINDS`. Shares of weights add up to one. The reported
factor is the one at which t(k) = m.

Complexity: some forty prices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from gnnplace.arrays import FloatArray

PREDICTION_SPREAD = 0.08
LARGEST_FACTOR = 2000.0
QUANTILES = (0.02, 0.15, 0.5, 0.85, 0.98)
NUM_SAMPLES = 400
SOCKETS = 8.0  # factor from which on a single card does not explain it
REFINEMENTS = 12

StepAt = Callable[[str, float], float]
"""Seconds of a step under a cause at a factor; at a factor of a cause without one, whatever."""


@dataclass(frozen=True)
class CauseKind:
    """A kind of fault that slows runs down.

    Attributes:
        name: A word for it.
        prior: Its share of the runs that are slow.
        factor: Factor by which it usually slows its part down; None: it has no factor.
        spread: Standard deviation of the factor's logarithm.
        text: What it is, in the field's words, with places for `{factor}`, `{speed}` and `{guess}`.
        first: What to try first.
        across: Whether only runs over several servers have it.
    """

    name: str
    prior: float
    text: str
    first: str
    factor: float | None = None
    spread: float = 0.0
    across: bool = False


KINDS = (
    CauseKind(
        name="across",
        prior=0.3,
        factor=20.0,
        spread=1.5,
        text="exchanges between servers at 1/{factor} of their speed: {guess}?",
        first="NCCL_DEBUG=INFO must say NET/IB, not NET/Socket; run all_reduce_perf of nccl-tests "
        "over two servers; unset NCCL_IB_DISABLE",
        across=True,
    ),
    CauseKind(
        name="inside",
        prior=0.12,
        factor=10.0,
        spread=0.45,
        text="exchanges inside of servers at 1/{factor} of their speed: PCIe or shared memory "
        "instead of NVLink?",
        first="nvidia-smi topo -m; unset NCCL_P2P_DISABLE; all_reduce_perf on one server",
    ),
    CauseKind(
        name="clock",
        prior=0.15,
        factor=1.35,
        spread=0.2,
        text="kernels at {speed} of their speed: throttled clocks, or slower kernels?",
        first="nvidia-smi -q -d CLOCK,PERFORMANCE while it runs: power or heat, or others on the "
        "GPUs; which attention runs",
    ),
    CauseKind(
        name="host",
        prior=0.15,
        factor=3.0,
        spread=1.0,
        text="launches take {factor} times as long: CPU-bound",
        first="torch.compile or CUDA graphs, larger micro-batches, no synchronising in the loop, "
        "CPUs of their own for each process",
    ),
    CauseKind(
        name="recompute",
        prior=0.08,
        text="all layers recomputed unasked",
        first="the launcher's own default: print its configuration",
    ),
    CauseKind(
        name="overlap",
        prior=0.08,
        text="no overlap: exchanges of replicas wait for the passes",
        first="a profile of one step; CUDA_DEVICE_MAX_CONNECTIONS, the launcher's overlap flags",
    ),
    CauseKind(
        name="checks",
        prior=0.05,
        text="collectives that are checked",
        first="unset TORCH_DISTRIBUTED_DEBUG and NCCL_DEBUG",
    ),
    CauseKind(
        name="outside",
        prior=0.1,
        factor=0.3,
        spread=1.0,
        text="seconds outside of the step: data loader, logging, checkpoints",
        first="run with made-up data, without logging and checkpoints",
    ),
)
"""Priors and usual factors, judged from public threads (`benchmarks/slow_runs.csv`) and from what
parts can do: most are networks, of which TCP over the same card is 1/2 to 1/4, and sockets over
10 to 100 Gb/s are 1/8 to 1/300 of InfiniBand's speed; NVLink over PCIe is 6 to 20; clocks under a
power cap are 0.6 to 0.9; a host that compiles or synchronises has no limit."""


@dataclass(frozen=True)
class SlowdownCause:
    """A fault that would explain a measured step.

    Attributes:
        kind: The fault.
        factor: Factor by which its part must be slower to explain the measured step; None where it
            has no factor, or none explains the step.
        step_time: Seconds of a step under it.
        seconds: Seconds that it adds to the predicted step.
        share: Its share of all causes' weights.
    """

    kind: CauseKind
    factor: float | None
    step_time: float
    seconds: float
    share: float

    @property
    def name(self) -> str:
        """Return the short name of the cause."""
        return self.kind.name

    @property
    def text(self) -> str:
        """Return what the cause is, with its factor."""
        if self.factor is None:
            return self.kind.text
        guess = "a card or link down, or GPUDirect off"
        if self.factor >= SOCKETS:
            guess = "sockets instead of InfiniBand"
        return self.kind.text.format(
            factor=f"{self.factor:.3g}",
            speed=format_speed(1.0 / self.factor),
            guess=guess,
        )

    @property
    def first(self) -> str:
        """Return what to try first."""
        return self.kind.first


def format_speed(part: float) -> str:
    """Return a part of full speed as people say it: "three quarters", "62 %"."""
    words = {"half": 0.5, "two thirds": 2 / 3, "three quarters": 0.75}
    for word, value in words.items():
        if abs(part - value) < 0.02:
            return word
    return f"{100 * part:.0f} %"


def rank_causes(
    step_at: StepAt, step: float, measured: float | None, *, servers: bool
) -> tuple[SlowdownCause, ...]:
    """Return the causes that would explain a measured step, the likeliest first.

    Args:
        step_at: Prices the step under a cause at a factor.
        step: Predicted seconds of a step.
        measured: Seconds of a step of the run; None: every cause at its usual factor.
        servers: Whether the run is over several servers.

    Returns:
        No cause where the run is as fast as predicted, or faster. Causes that add less than a
        hundredth of the step are left out.
    """
    if measured is not None and measured <= step:
        return ()
    causes = []
    for kind in KINDS:
        if kind.across and not servers:
            continue
        cause = _explain(kind, step_at, step, measured)
        if cause is not None:
            causes.append(cause)
    total = sum(cause.share for cause in causes)
    if total <= 0:  # nothing is plausible: the nearest first
        total = 1.0
    shares = [
        SlowdownCause(
            kind=cause.kind,
            factor=cause.factor,
            step_time=cause.step_time,
            seconds=cause.seconds,
            share=cause.share / total,
        )
        for cause in causes
    ]
    target = step if measured is None else measured
    return tuple(sorted(shares, key=lambda x: (-x.share, abs(x.step_time - target))))


def _explain(
    kind: CauseKind, step_at: StepAt, step: float, measured: float | None
) -> SlowdownCause | None:
    """Return a cause with its weight as `share`, or None if it hardly changes the step.

    Weights are not divided by their sum yet.

    Args:
        kind: The kind of fault.
        step_at: Seconds of a step under a fault at a factor.
        step: Predicted seconds of a step without a fault.
        measured: Measured seconds of a step, if they are known.
    """
    if kind.factor is None:
        slowed = step_at(kind.name, 1.0)
        if measured is None:
            weight = 0.0
        else:
            weight = _likelihood(np.array([slowed]), measured)
        factor = None
    else:
        factors = [_quantile(kind, q) for q in QUANTILES]
        times = [step_at(kind.name, factor) for factor in factors]
        factor = kind.factor
        slowed = times[len(times) // 2]
        weight = 0.0
        if measured is not None:
            samples = [
                _quantile(kind, (i + 0.5) / NUM_SAMPLES) for i in range(NUM_SAMPLES)
            ]
            weight = _likelihood(_interpolate(samples, factors, times, step), measured)
            factor, slowed = _find_factor(kind, step_at, measured)
    if measured is None:
        weight = 1.0
    if slowed - step < 0.01 * step:
        return None
    return SlowdownCause(
        kind=kind,
        factor=factor,
        step_time=slowed,
        seconds=slowed - step,
        share=kind.prior * weight,
    )


def _quantile(kind: CauseKind, quantile: float) -> float:
    """Return the factor below which a part `quantile` of runs with this fault lie."""
    assert kind.factor is not None
    factor = kind.factor * math.exp(kind.spread * NormalDist().inv_cdf(quantile))
    if kind.name == "outside":
        return factor
    return max(factor, 1.0)


def _interpolate(
    samples: Sequence[float],
    factors: Sequence[float],
    times: Sequence[float],
    step: float,
) -> FloatArray:
    """Return the step time at every sampled factor.

    Args:
        samples: Factors to interpolate at.
        factors: Factors that were priced, rising.
        times: Step times at these factors.
        step: Step time without the fault.
    """
    start = 0.0 if factors[0] < 1.0 else 1.0
    return np.interp(samples, [start, *factors], [step, *times])


def _likelihood(times: FloatArray, measured: float) -> float:
    """Return the mean likelihood of a measured step, given equally likely step times.

    The logarithm of a measured step over its prediction is normal with `PREDICTION_SPREAD`.
    """
    errors = (math.log(measured) - np.log(np.maximum(times, 1e-12))) / PREDICTION_SPREAD
    return float(np.exp(-0.5 * errors**2).mean())


def _find_factor(
    kind: CauseKind, step_at: StepAt, measured: float
) -> tuple[float | None, float]:
    """Return the factor at which the step takes the measured time, and the step time at it.

    The factor is None if even the largest factor makes the step no slower than that.
    """
    low = 0.0 if kind.name == "outside" else 1.0
    high = LARGEST_FACTOR
    slowest = step_at(kind.name, high)
    if slowest < measured:
        return None, slowest
    low_time = step_at(kind.name, low)
    high_time = slowest
    for _ in range(REFINEMENTS):
        # A straight line between the ends, and halves of their logarithms where it is bent.
        line = low + (measured - low_time) / max(high_time - low_time, 1e-12) * (
            high - low
        )
        factor = min(max(line, low + 1e-3 * (high - low)), high)
        time = step_at(kind.name, factor)
        if abs(time - measured) < 2e-3 * measured:
            return factor, time
        if time < measured:
            low = factor
            low_time = time
        else:
            high = factor
            high_time = time
        middle = math.sqrt(max(low, 1e-3) * high)
        time = step_at(kind.name, middle)
        if time < measured:
            low = middle
            low_time = time
        else:
            high = middle
            high_time = time
    return high, high_time
