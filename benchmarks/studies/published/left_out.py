"""Constants fitted again with each model size left out in turn: what is predicted of what is new.

Least squares of log errors, of rows that are far off no more than in proportion (soft L1), over the
constants that a set may move (`MOVED`); the others, the hardware's above all where a framework is
fitted, stay as they ship. A row is then predicted by constants that no row of its model touched.
What is found is also where the shipped intervals come from: the tenth and the ninetieth percentile
of published over predicted seconds of rows so predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import least_squares

from benchmarks.studies.published.outcomes import Outcome, timed
from gnnplace.arrays import FloatArray
from gnnplace.costs.frameworks.constants import ConstantSet
from gnnplace.plans.decoders.setting import PricingSetting
from gnnplace.plans.search.draft import rank_bytes
from gnnplace.plans.spec_answers import price, price_spec

MOVED: Mapping[str, tuple[str, ...]] = {
    "ultrascale-playbook": (
        "host_layer", "host_layer_shards", "card_gather", "card_reduce", "ring_latency",
        "tree_latency", "check", "gathers_layer",
    ),
    "llm-foundry": ("products", "rate", "stream"),
    "bigscience": ("products",),
    "simumax": ("products",),
}  # fmt: skip
"""By set; each is moved by a factor, `products` and `rate` of every kind of GPU by its own."""
BYTES: Mapping[str, tuple[str, ...]] = {
    "ultrascale-playbook": (
        "fragmentation", "logit_kept", "gradient_passing", "gathered_alone", "context",
    ),
    "bigscience": ("context",),
}  # fmt: skip
"""Constants of bytes that the published peaks of a set may move, by a factor each."""
BY_KIND = ("products", "rate")
SOFT = 0.1  # log error from which rows count in proportion


def varied(setting: PricingSetting, factors: Mapping[str, float]) -> PricingSetting:
    """A setting whose constants are multiplied.

    Args:
        setting: as it ships.
        factors: by a constant's name, `products.KIND` of one kind of GPU alone.
    """

    framework = setting.framework

    def scaled(values: Mapping[str, float]) -> dict[str, float]:
        kind = framework.kernels.kind
        own = {
            name: factors.get(f"{name}.{kind}", factors.get(name, 1.0))
            for name in values
        }
        return {name: value * own[name] for name, value in values.items()}

    def again(constants: ConstantSet) -> ConstantSet:
        rows = {
            name: replace(constant, value=constant.value * factors.get(name, 1.0))
            for name, constant in constants.constants.items()
        }
        return ConstantSet(constants.owner, rows)

    moved = replace(
        framework,
        constants=again(framework.constants),
        checks=None if framework.checks is None else again(framework.checks),
        kernels=replace(framework.kernels, rates=scaled(framework.kernels.rates)),
        network=replace(framework.network, rates=scaled(framework.network.rates)),
    )
    return replace(setting, framework=moved)


def priced_by(
    outcomes: Sequence[Outcome], factors: Mapping[str, float]
) -> list[Outcome]:
    """Rows priced again with constants multiplied."""
    known = {id(o.sizes): o.sizes for o in outcomes}
    own = {key: varied(setting, factors) for key, setting in known.items()}
    return [replace(o, answer=price(own[id(o.sizes)], o.plan)) for o in outcomes]


def fitted(name: str, outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Factors of the constants that a set moves, by least squares over its rows.

    Args:
        name: of the set.
        outcomes: rows that the fit may see; those with seconds count.
    """
    own = timed(outcomes)
    kinds = sorted({o.sizes.framework.kernels.kind for o in own})
    names = [
        moved for base in MOVED[name]
        for moved in ([f"{base}.{kind}" for kind in kinds] if base in BY_KIND else [base])
    ]  # fmt: skip
    seconds = np.array([o.seconds for o in own])

    def residuals(logs: FloatArray) -> FloatArray:
        priced = priced_by(own, dict(zip(names, np.exp(logs).tolist(), strict=True)))
        return np.log(np.array([o.answer.step_time for o in priced]) / seconds)

    found = least_squares(
        residuals,
        np.zeros(len(names)),
        loss="soft_l1",
        f_scale=SOFT,
        diff_step=0.02,
        max_nfev=6,
    )
    return dict(zip(names, np.exp(found.x).tolist(), strict=True))


def left_out(name: str, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Every row with seconds, predicted by constants fitted without its model."""
    own = timed(outcomes)
    found: list[Outcome] = []
    for model in sorted({o.model for o in own}):
        factors = fitted(name, [o for o in own if o.model != model])
        found += priced_by([o for o in own if o.model == model], factors)
    return found


def interval(outcomes: Sequence[Outcome]) -> tuple[float, float]:
    """Tenth and ninetieth percentile of published over predicted seconds."""
    ratios = [1.0 / (1.0 + o.error) for o in timed(outcomes)]
    low, high = np.quantile(ratios, (0.1, 0.9))
    return float(low), float(high)


def peaks_left_out(name: str, outcomes: Sequence[Outcome]) -> list[float]:
    """Relative errors of peaks by constants of bytes fitted without each row's model."""
    own = [o for o in outcomes if o.peak and o.answer.peak is not None]

    def logs(rows: Sequence[Outcome], factors: FloatArray) -> FloatArray:
        moved = dict(zip(BYTES[name], np.exp(factors).tolist(), strict=True))
        settings = {id(o.sizes): varied(o.sizes, moved) for o in rows}
        peaks = [
            max(
                rank.reserved
                for rank in rank_bytes(price_spec(settings[id(o.sizes)], o.plan))
            )
            for o in rows
        ]
        return np.log(
            [peak / (o.peak or 1.0) for peak, o in zip(peaks, rows, strict=True)]
        )

    errors: list[float] = []
    for model in sorted({o.model for o in own}):
        rest, left = (
            [o for o in own if (o.model == model) is mine] for mine in (False, True)
        )
        found = least_squares(
            lambda x, rest=rest: logs(rest, x), np.zeros(len(BYTES[name])), loss="soft_l1",
            f_scale=SOFT, diff_step=0.02, max_nfev=6,
        )  # fmt: skip
        errors += (np.exp(logs(left, found.x)) - 1.0).tolist()
    return errors
