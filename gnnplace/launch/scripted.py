"""The fastest plans of a captured model for launchers whose training script makes the model.

accelerate and DeepSpeed start a script with a model of any layers; the other launchers train
decoders of text that they know by their sizes. A plan here has a replica on every device and one
stage. Every stage of ZeRO, every size of micro-batches and recomputation of no layer or of all are
priced by the captured model's own costs, and the fastest plan that fits and that the launcher can
express exactly is taken; of plans within `NEAR` of it, the one with the least ZeRO stage.
Recomputation only adds seconds, so it is priced only where a plan does not fit without it.

Complexity: two prices at most for each stage of ZeRO and each divisor of a replica's batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from gnnplace.errors import InfeasibleError, InputError
from gnnplace.launch.from_plan import make_launch_plan
from gnnplace.launch.launch_plan import FULL, NONE
from gnnplace.launch.registry import LAUNCHERS, SCRIPTS, get_launcher
from gnnplace.launch.writing import nearest_plan
from gnnplace.plans import (
    OWN,
    AlternativeEntry,
    Chain,
    Plan,
    PlanSpec,
    list_divisors,
    price_given_plan,
)
from gnnplace.problem import Cluster

ZERO_STAGES = (0, 1, 2, 3)
NEAR = 1e-3
"""By how much a plan may be slower than the fastest and still come before it."""
KNOWN_BY_SIZES = (
    "is planned for decoders of text that are known by their sizes, in half precision; "
    f"the script of {' or '.join(SCRIPTS)} makes any model"
)


@dataclass(frozen=True, eq=False)
class ScriptedSearch:
    """A search for plans of a captured model that launchers of a training script can run.

    Attributes:
        chain: The captured model.
        cluster: The devices, all of which every plan uses.
    """

    chain: Chain
    cluster: Cluster

    def fastest(self, launcher: str, num_best: int = 1) -> list[Plan]:
        """Return the fastest plans that a launcher can run, the fastest first.

        Args:
            launcher: One of `SCRIPTS`.
            num_best: Plans at most.

        Raises:
            InfeasibleError: If no plan fits, or the launcher cannot be told any that does.
        """
        batch = self.chain.batch
        num_devices = self.cluster.num_devices
        if batch % num_devices:
            divisible = -(-batch // num_devices) * num_devices
            raise InfeasibleError(
                f"{launcher}: a batch of {batch:,} is not divisible by {num_devices:,} replicas; "
                f"--batch {divisible} is"
            )
        plans: list[Plan] = []
        reason = "nothing fits; take more devices"
        for plan in self.fitting_plans:
            unsupported = _find_unsupported(plan, launcher)
            if unsupported is None:
                plans.append(plan)
            else:
                reason = f"cannot be told any plan that fits: {unsupported}"
        if not plans:
            raise InfeasibleError(f"{launcher}: {reason}")
        # Of plans that are as good as equal the one that shares the least state is the simplest.
        limit = (1 + NEAR) * min(plan.step_time for plan in plans)

        def rank(plan: Plan) -> tuple[bool, int, float]:
            is_slower = plan.step_time > limit
            zero = 0 if is_slower else plan.file.stages[0].zero
            return is_slower, zero, plan.step_time

        plans.sort(key=rank)
        claim = f"none of the plans that {launcher} can be told is faster, by predicted times"
        return [_with_launcher(plan, launcher, claim) for plan in plans[:num_best]]

    def alternatives(self, runnable: Plan) -> dict[str, AlternativeEntry]:
        """Return what each launcher can run of the model, beside the plan of our own runner.

        Args:
            runnable: The fastest plan of our own runner.

        Returns:
            Entries by launcher, the fastest first; those that cannot train it come last, with a
            reason.
        """
        entries = {OWN: _entry(runnable)}
        for name in SCRIPTS:
            try:
                entries[name] = _entry(self.fastest(name)[0])
            except InfeasibleError as error:
                entries[name] = AlternativeEntry(reason=str(error))
        for name in LAUNCHERS:
            reason = f"{name}: {KNOWN_BY_SIZES}"
            entries.setdefault(name, AlternativeEntry(reason=reason))
        order = sorted(
            entries, key=lambda name: entries[name].step_time or float("inf")
        )
        return {name: entries[name] for name in order}

    @cached_property
    def fitting_plans(self) -> list[Plan]:
        """Return the plans that fit, priced once for all launchers."""
        plans: list[Plan] = []
        for spec in self._specs():
            try:
                plan = self._priced(spec)
            except InputError:  # the model's examples cannot be cut so
                continue
            if plan is not None:
                plans.append(plan)
        return plans

    def _specs(self) -> Iterator[PlanSpec]:
        """Yield plans of one replica a device: ZeRO's stages and sizes of micro-batches."""
        batch = self.chain.batch
        num_devices = self.cluster.num_devices
        for zero in ZERO_STAGES if num_devices > 1 else (0,):
            for size in list_divisors(batch // num_devices):
                yield PlanSpec(
                    dp=num_devices, zero=zero, microbatch_size=size, batch=batch
                )

    def _priced(self, spec: PlanSpec) -> Plan | None:
        """Price a plan, with all layers recomputed if it does not fit without.

        Returns:
            The plan, or None if it does not fit with it either.

        Raises:
            InputError: If the model's examples cannot be cut so.
        """
        for recompute in (NONE, FULL):
            plan = price_given_plan(
                self.chain, self.cluster, replace(spec, recompute=recompute)
            )
            if plan.feasible:
                return plan
        return None


def make_scripted_plan(plan: Plan, launcher: str) -> Plan:
    """Return a priced plan of a captured model as the plan of a launcher of a training script.

    Args:
        plan: The plan.
        launcher: One of `SCRIPTS`.

    Raises:
        InfeasibleError: If the launcher cannot be told it, with the first thing that is lost.
    """
    unsupported = _find_unsupported(plan, launcher)
    if unsupported is not None:
        raise InfeasibleError(f"{launcher}: cannot be told the plan: {unsupported}")
    return _with_launcher(plan, launcher, claim="")


def _find_unsupported(plan: Plan, launcher: str) -> str | None:
    """Return the first thing of a plan that a launcher cannot be told, or None."""
    launch_plan, lost_lines = make_launch_plan(plan)
    target = get_launcher(launcher)
    try:
        target.check_degrees(launch_plan)
    except InfeasibleError as error:
        return str(error).removeprefix(f"{launcher}: ")
    if lost_lines:
        return lost_lines[0]
    launch_plan, steps = nearest_plan(launch_plan, target)
    for line, nearest in steps:
        if nearest != launch_plan:
            return line.partition(";")[0]
    return None


def _with_launcher(plan: Plan, launcher: str, claim: str) -> Plan:
    """Return a plan whose file names the launcher that it is for, and what is claimed of it."""
    return replace(
        plan, file=plan.file.model_copy(update={"launcher": launcher, "claim": claim})
    )


def _entry(plan: Plan) -> AlternativeEntry:
    """Return a plan as an alternative."""
    file = plan.file
    return AlternativeEntry(
        step_time=file.step_time, interval=file.interval, feasible=True, plan=file
    )
