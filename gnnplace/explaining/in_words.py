"""`SpecStep`: the step of a plan in words, priced from a model's sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gnnplace.costs import NOTHING
from gnnplace.explaining.changes import list_choices, single_changes
from gnnplace.explaining.steps import PLANNED, ExplainedStep, StepCondition
from gnnplace.plans import (
    PlanAnswer,
    PlanSpec,
    Priced,
    PricingSetting,
    find_captured_launches,
    price,
    price_spec,
)


@dataclass(frozen=True)
class SpecStep(ExplainedStep):
    """The step of a plan in words.

    Attributes:
        setting: The sizes, the devices and the framework.
        spec: The plan.
    """

    setting: PricingSetting
    spec: PlanSpec

    @property
    def spans_servers(self) -> bool:
        """Return whether the plan's devices are of several servers."""
        return self.spec.num_devices > self.setting.framework.network.per_server

    def price(self, condition: StepCondition = PLANNED) -> Priced:
        """Return the priced draft of the plan under a condition; see `ExplainedStep`."""
        spec = self.spec
        framework = self.setting.framework
        # What is captured stays captured, whatever is priced without. Checks forbid captures.
        if not condition.checks:
            graphs = find_captured_launches(self.setting, spec)
            spec = replace(spec, cuda_graphs=graphs)
        if condition.recompute is not None:
            spec = replace(spec, recompute=condition.recompute)
        if not condition.hides:
            spec = replace(spec, overlap="none")
        if not condition.offloads:
            spec = replace(spec, offload=NOTHING)
        if not condition.replicas:
            batch = (spec.batch or self.setting.decoder.batch) // spec.dp
            spec = replace(spec, dp=1, ep=1, zero=0, zero_group=None, batch=batch)
        framework = condition.framework_under(framework)
        return price_spec(replace(self.setting, framework=framework), spec)

    def price_changes(self) -> Iterator[tuple[str, PlanAnswer]]:
        """Yield the single changes that can be, with their price; see `ExplainedStep`."""
        choices = list_choices(self.setting)
        for change in single_changes(self.spec, choices):
            if change.spec == self.spec:
                continue
            answer = price(self.setting, change.spec)
            if answer.step_time is not None:
                yield change.text, answer
