"""Plans of one model for several clusters, side by side, and the best of them whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from gnnplace.plans import Plan
from gnnplace.problem import Cluster
from gnnplace.report.answer import Answer, Lines
from gnnplace.report.money import ClusterPrices, PlanCost, cost_lines, format_usd


@dataclass(frozen=True)
class MachinePlans:
    """The best plan for each of several clusters, and what each costs.

    Attributes:
        plans: By the name of the cluster.
        clusters: The devices, by the same names.
        prices: USD a GPU-hour by kind; None where costs are not asked for.
        tokens: Tokens of a whole run, or None.
        cheapest_first: Whether the cheapest step is the best, and not the shortest.
    """

    plans: Mapping[str, Plan]
    clusters: Mapping[str, Cluster]
    prices: Mapping[str, float] | None = None
    tokens: float | None = None
    cheapest_first: bool = False

    @cached_property
    def costs(self) -> dict[str, PlanCost]:
        """Return what feasible plans cost, by the cluster's name. Empty without prices."""
        costs: dict[str, PlanCost] = {}
        if self.prices is None:
            return costs
        for name, plan in self.plans.items():
            prices = ClusterPrices(self.clusters[name], self.prices)
            cost = prices.compute(plan, self.tokens)
            if cost is not None:
                costs[name] = cost
        return costs

    @cached_property
    def order(self) -> list[str]:
        """Return the names, the best first; those without a feasible plan come last."""

        def badness(name: str) -> tuple[bool, float]:
            """Return whether there is no feasible plan, and the dollars or seconds of a step."""
            plan = self.plans[name]
            if self.cheapest_first and name in self.costs:
                return False, self.costs[name].step
            return not plan.feasible, plan.step_time

        return sorted(self.plans, key=badness)

    @property
    def best(self) -> Plan:
        """Return the best plan of all."""
        return self.plans[self.order[0]]


def describe_machines(machines: MachinePlans) -> Answer:
    """Describe plans for several clusters, and the best of them whole."""
    file = machines.best.file
    return Answer(
        title=f"{file.model} on {file.cluster}",
        sections=[Lines(lambda: _list_machines(machines))],
        data=lambda: _machine_data(machines),
    )


def _list_machines(machines: MachinePlans) -> list[str]:
    """Format a line a cluster, then the best plan and what it costs."""
    from gnnplace.report.plans import plan_lines  # late: pictures come with it

    first = machines.order[0]
    ordered = {name: machines.plans[name] for name in machines.order}
    lines = machine_lines(ordered, machines.costs)
    lines += plan_lines(machines.best, machines.tokens)
    if first in machines.costs:
        lines += cost_lines(machines.costs[first], machines.tokens)
    return lines


def _machine_data(machines: MachinePlans) -> dict[str, object]:
    """Return the answer of each plan, with its cost where it has one, the best first."""
    data: dict[str, object] = {}
    for name in machines.order:
        answer = machines.plans[name].answer()
        if name in machines.costs:
            answer["cost"] = machines.costs[name]
        data[name] = answer
    return data


def machine_lines(
    plans: Mapping[str, Plan], costs: Mapping[str, PlanCost]
) -> list[str]:
    """Format plans for several clusters, in their order.

    Args:
        plans: The best plan by the name of its cluster.
        costs: The costs of the feasible clusters. Empty without prices.
    """
    width = max(len(name) for name in plans)
    lines = []
    for name, plan in plans.items():
        if not plan.feasible:
            lines.append(f"{name:{width}}  not feasible: {plan.reason}")
            continue
        words = [
            f"{plan.step_time:.4g} s a step",
            f"{plan.file.rate:,.0f} {plan.file.unit}/s",
        ]
        if name in costs:
            cost = costs[name]
            if cost.billion_tokens is None:
                amount = cost.step
            else:
                amount = cost.billion_tokens
            if cost.billion_tokens is None:
                unit = "step"
            else:
                unit = "billion tokens"
            words.append(f"{format_usd(amount)} a {unit}")
        lines.append(f"{name:{width}}  {', '.join(words)}")
    return lines
