"""The cost of a plan in US dollars and kilowatt-hours, at prices that the user gives.

A step of ``s`` seconds on ``n`` GPUs at ``p`` USD a GPU-hour costs ``n p s / 3600``, whatever part
of the time a GPU is busy. Energy is counted at the cards' power limits: an upper bound of what they
draw, without hosts, network and cooling.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gnnplace.errors import InputError
from gnnplace.plans import Plan
from gnnplace.problem import ASSUMED_WATTS, Cluster, find_kind, get_figures
from gnnplace.units import HOUR, count_text

BILLION = 1e9
MOST_PRICE = 1e6


@dataclass(frozen=True)
class PlanCost:
    """The price of a plan.

    Attributes:
        step: USD of a step.
        billion_tokens: USD of a billion tokens; None where examples are no rows of tokens.
        run: USD of a whole run; None where its tokens are not known.
        kilowatt_hours: kWh of a billion tokens, or of a thousand steps if there are no tokens; None
            where the power of a card is not known.
    """

    step: float
    billion_tokens: float | None
    run: float | None
    kilowatt_hours: float | None


def read_prices(text: str, clusters: Sequence[Cluster]) -> dict[str, float]:
    """Parse prices of GPU-hours, such as ``h100=2.49,a100-80=1.79``.

    Args:
        text: The prices.
        clusters: The clusters, whose devices must all have a price.

    Returns:
        USD a GPU-hour by the kind's own name.

    Raises:
        InputError: A part is no KIND=USD with a positive price, or a kind of device has none.
    """
    prices: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = part.strip().partition("=")
        kind = find_kind(name)
        try:
            price = float(number.strip().removeprefix("$"))
        except ValueError:
            price = math.nan
        if not equals or not name or not 0 < price <= MOST_PRICE:
            raise InputError(
                f"--price {part.strip()!r}: must be KIND=USD a GPU-hour, as h100=2.49"
            )
        if kind in prices:
            raise InputError(f"--price {name}: is given twice")
        prices[kind or name] = price
    for cluster in clusters:
        for kind in cluster.kinds:
            if (find_kind(kind) or kind) not in prices:
                raise InputError(
                    f"--price: has none of {kind!r}; add {kind}=USD, a GPU-hour"
                )
    return prices


def compute_cost(
    *,
    seconds: float,
    tokens: int | None,
    cluster: Cluster,
    prices: Mapping[str, float],
    run_tokens: float | None = None,
) -> PlanCost:
    """Return what a step costs; all GPUs of the cluster are paid.

    Args:
        seconds: Seconds of a step.
        tokens: Tokens of a step, or None if examples are no rows of tokens.
        cluster: The devices.
        prices: USD a GPU-hour by kind, of every kind of the cluster.
        run_tokens: Tokens of a whole run, or None.
    """
    rate = 0.0
    watts = 0.0
    for kind, count in Counter(device.kind for device in cluster.devices).items():
        card = get_figures(kind)
        rate += count * prices[find_kind(kind) or kind]
        # A card whose power is only assumed makes the energy unknown.
        watts += math.nan if ASSUMED_WATTS in card.source else count * card.power
    step = rate * seconds / HOUR
    steps = 1e3 if tokens is None else BILLION / tokens
    energy = watts * seconds * steps / HOUR / 1e3
    return PlanCost(
        step=step,
        billion_tokens=None if tokens is None else step / tokens * BILLION,
        run=None
        if tokens is None or run_tokens is None
        else step / tokens * run_tokens,
        kilowatt_hours=None if math.isnan(energy) else energy,
    )


@dataclass(frozen=True)
class ClusterPrices:
    """What GPU-hours of a cluster cost.

    Attributes:
        cluster: The devices, all of which are paid.
        prices: USD a GPU-hour by kind.
    """

    cluster: Cluster
    prices: Mapping[str, float]

    def compute(self, plan: Plan, run_tokens: float | None) -> PlanCost | None:
        """Return what a plan costs, as `compute_cost`; None where it is not feasible."""
        if not plan.feasible:
            return None
        return compute_cost(
            seconds=plan.step_time,
            tokens=plan.file.tokens,
            cluster=self.cluster,
            prices=self.prices,
            run_tokens=run_tokens,
        )


def cost_lines(cost: PlanCost, tokens: float | None = None) -> list[str]:
    """Format what a plan costs.

    Args:
        cost: The cost of the plan.
        tokens: Tokens of a whole run.
    """
    words = [f"{format_usd(cost.step)} a step"]
    if cost.billion_tokens is not None:
        words.append(f"{format_usd(cost.billion_tokens)} a billion tokens")
    if cost.run is not None and tokens is not None:
        words.append(f"{format_usd(cost.run)} for {count_text(tokens)} tokens")
    lines = [f"  costs {', '.join(words)}, at the prices that were given"]
    if cost.kilowatt_hours is not None:
        if cost.billion_tokens is None:
            unit = "a thousand steps"
        else:
            unit = "a billion tokens"
        lines.append(
            f"  {cost.kilowatt_hours:,.3g} kWh {unit} at the cards' power limits"
        )
    return lines


def format_usd(amount: float) -> str:
    """Format dollars with cents where they matter."""
    if amount >= 1000:
        return f"${amount:,.0f}"
    if amount >= 1:
        return f"${amount:,.2f}"
    return f"${amount:.3g}"
