"""`CapturedStep`: the step of a captured model's plan, priced on the chain of its segments.

Parts are priced with the plan's own order of actions. Changes keep the plan's stages if only one
word changes (ZeRO, recomputation, the schedule, the size of micro-batches, sequence parallelism
between segments, the split, cuts of stages). With other numbers of replicas, shards or stages a new
plan in words is made.

Complexity: a capture of the model and some 70 prices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from gnnplace.costs import load_environment_constants, resolve_cluster
from gnnplace.errors import GnnplaceError, InputError
from gnnplace.explaining.chain_variants import ScaledFabric, scale_floor, with_launches
from gnnplace.explaining.changes import (
    DEGREES,
    SingleChange,
    WordChoices,
    single_changes,
)
from gnnplace.explaining.framework_variants import IdleNetwork, with_network
from gnnplace.explaining.steps import PLANNED, ExplainedStep, StepCondition
from gnnplace.launch import LaunchPlan, make_launch_plan, stage_layers
from gnnplace.plans import (
    ANY_SPLIT,
    WEIGHTS,
    Chain,
    Draft,
    MeshFabric,
    Plan,
    PlanAnswer,
    PlanSpec,
    Priced,
    SplitChoice,
    Stage,
    capture_file_chain,
    count_server_devices,
    cut_evenly,
    draft_plan,
    draft_spec,
    is_captured,
    make_pricer,
    read_orders,
    realize_draft,
    with_framework,
    with_recomputation,
    with_schedule,
    with_splits,
)
from gnnplace.problem import Cluster, with_slack

TP_COLLECTIVES = 10  # Collectives of a layer and micro-batch, with sequence parallelism
SCHEDULES = ("1f1b", "zero-bubble", "interleaved:2", "v")


def capture_plan_step(
    plan: Plan, model: str | None, cluster: str | Cluster | None
) -> CapturedStep:
    """Capture a plan's model and return the plan's step.

    Args:
        plan: The plan.
        model: The model by its name; None: as the plan's file says.
        cluster: The cluster; None: as the plan's file says.

    Raises:
        InputError: If the model or the cluster cannot be made, or the model not be cut so.
        MismatchError: If the plan is of another model or cluster.
    """
    file = plan.file
    devices = with_slack(resolve_cluster(cluster or file.cluster_file or file.cluster))
    chain = capture_file_chain(file, model or file.model, devices, file.precision)
    draft = draft_plan(chain, devices, plan)
    pricer = make_pricer(chain, MeshFabric(devices), draft.size)
    priced = realize_draft(pricer, draft, read_orders(plan))
    if priced is None:
        raise InputError(f"{chain.name}: cannot be cut as the plan says")
    return CapturedStep(plan, priced)


@dataclass(frozen=True, eq=False)
class CapturedStep(ExplainedStep):
    """The step of a plan that was priced on a captured model.

    Attributes:
        plan: The plan.
        planned: The plan as a priced draft.
    """

    plan: Plan
    planned: Priced
    _priced: dict[StepCondition, Priced] = field(default_factory=dict)

    @property
    def chain(self) -> Chain:
        """Return the model."""
        return self.planned.pricer.chain

    @property
    def fabric(self) -> MeshFabric:
        """Return the devices."""
        return self.planned.pricer.fabric

    @property
    def draft(self) -> Draft:
        """Return the plan as a draft."""
        return self.planned.draft

    @property
    def slack(self) -> float:
        """Return the bytes that libraries and the allocator have beside what is priced."""
        return max(entry.slack for entry in self.plan.file.memory.values())

    @property
    def spans_servers(self) -> bool:
        """Return whether the cluster's devices are of several servers."""
        num_devices = self.fabric.cluster.num_devices
        return num_devices > count_server_devices(self.fabric)

    def price(self, condition: StepCondition = PLANNED) -> Priced:
        """Return the priced draft of the plan under a condition; see `ExplainedStep`."""
        # A captured model offloads nothing.
        condition = replace(condition, offloads=True)
        if condition == PLANNED:
            return self.planned
        if condition not in self._priced:
            self._priced[condition] = self._price(condition)
        return self._priced[condition]

    def _price(self, condition: StepCondition) -> Priced:
        draft = self.draft
        if condition.recompute is not None:
            stages = [
                with_recomputation(self.chain, stage, condition.recompute)
                for stage in draft.stages
            ]
            draft = replace(draft, stages=tuple(stages))
        if self.chain.framework is None:
            chain, fabric = self._price_condition(condition)
        else:
            chain = self._as_framework(condition)
            fabric = self.fabric
        pricer = make_pricer(chain, fabric, draft.size)
        priced = realize_draft(pricer, draft, self.planned.orders)
        if priced is None:
            raise InputError(f"{chain.name}: cannot be cut so")
        if condition.checks and chain.framework is None:
            seconds = priced.step_time + self._check_seconds()
            return replace(priced, step_time=seconds)
        return priced

    def _price_condition(self, condition: StepCondition) -> tuple[Chain, MeshFabric]:
        """Return the model and the links of a condition, priced by captured kernels.

        One network joins all devices: it is slowed as a whole.
        """
        cluster = self.fabric.cluster
        if self.spans_servers:
            slowed = condition.across
        else:
            slowed = condition.inside
        if condition.exchanges:
            of_shards = slowed
        else:
            of_shards = 0.0
        if condition.replicas:
            of_replicas = of_shards
        else:
            of_replicas = 0.0
        fabric = ScaledFabric(
            cluster,
            exchanges=of_replicas,
            messages=slowed if condition.messages else 0.0,
        )
        chain = self.chain
        if not is_captured(chain.source):
            return chain, fabric
        floor = scale_floor(chain, self.fabric, condition.host)
        if of_shards != 1.0 or floor != chain.source.parts.floor:
            links = ScaledFabric(cluster, exchanges=of_shards)
            chain = with_launches(chain, links, floor)
        return chain, fabric

    def _as_framework(self, condition: StepCondition) -> Chain:
        """Return the model of a condition, priced by its sizes as a framework trains it."""
        assert self.chain.framework is not None
        framework = condition.framework_under(self.chain.framework)
        if not condition.hides:
            framework = replace(framework, hides="none")
        chain = self.chain
        if framework != chain.framework:
            chain = with_framework(chain, framework)
        if not condition.replicas:  # the layers of this chain exchange as before
            silent = with_network(framework, IdleNetwork)
            chain = replace(chain, framework=silent)
        return chain

    def _check_seconds(self) -> float:
        """Return the seconds of a step that checks of its collectives take."""
        checks = load_environment_constants("checked-collectives").constants
        layers, _ = stage_layers(self.plan.file)
        shards = self.draft.stages[0].mesh.shards
        inside = 0.0
        if shards > 1:
            ranks = len(self.planned.chunks)
            inside = (
                TP_COLLECTIVES * self.draft.microbatches * sum(layers or ()) / ranks
            )
        num_devices = self.fabric.cluster.num_devices
        count = shards * (inside + checks["checks_end"].value)
        count += checks["checks_world"].value * num_devices
        return checks["check"].value * count

    # Changes.

    def price_changes(self) -> Iterator[tuple[str, PlanAnswer]]:
        """Yield the single changes that can be, with their price; see `ExplainedStep`."""
        pricers = {self.draft.size: self.planned.pricer}
        for change in single_changes(self._spec, self._choices):
            draft = self._changed(change)
            if draft is None:
                continue
            if draft.size not in pricers:
                pricers[draft.size] = make_pricer(self.chain, self.fabric, draft.size)
            priced = realize_draft(pricers[draft.size], draft)
            if priced is not None:
                yield change.text, self.answer(priced)

    def answer(self, priced: Priced) -> PlanAnswer:
        """Return seconds and bytes of a changed plan, and whether it fits."""
        fullest = max(priced.held(rank) for rank in range(len(priced.chunks)))
        lacking = priced.lacking[1]
        return PlanAnswer(
            step_time=priced.step_time,
            feasible=lacking <= 0,
            reason="" if lacking <= 0 else f"lacks {lacking / 1e9:.3g} GB",
            allocated=fullest,
            peak=fullest + self.slack,
        )

    @cached_property
    def _launch_plan(self) -> LaunchPlan | None:
        """Return the plan in degrees of parallelism, or None if its stages have unlike meshes."""
        try:
            return make_launch_plan(self.plan)[0]
        except GnnplaceError:
            return None

    @cached_property
    def _spec(self) -> PlanSpec:
        """Return the plan in words, as far as words say it."""
        file = self.plan.file
        stages = self.draft.stages
        last = stages[-1]
        spec = PlanSpec(
            dp=stages[0].mesh.replicas,
            pp=len(self.planned.chunks),
            microbatch_size=file.microbatch_size // file.stages[0].spread,
            sp=last.choice.border == "tokens",
            regather=any(stage.choice.regather for stage in stages),
        )
        base = self._launch_plan
        if base is None:
            return spec
        recompute = base.recompute
        if recompute not in ("none", "selective"):
            recompute = "full"
        return replace(
            spec,
            dp=base.dp or 1,
            tp=base.tp if self._split_word == "tp" else 1,
            shards=base.tp if self._split_word == "shards" else None,
            cp=base.cp,
            ep=base.ep,
            recompute=recompute,
            zero=base.zero,
            schedule=base.full_schedule,
        )

    @cached_property
    def _split_word(self) -> str:
        """Return the word of the shards: `tp` if Megatron's split costs what the plan's does."""
        base = self._launch_plan
        assert base is not None
        if base.cp > 1 or base.ep > 1:
            return "tp"
        pricer = self.planned.pricer
        draft = self.draft
        if draft.stages[0].mesh.shards == 1:
            return "tp"
        choice = draft.stages[0].choice
        choice = SplitChoice(WEIGHTS, border=choice.border, regather=choice.regather)
        megatron = with_splits(pricer, draft, (choice,))
        is_megatron = all(
            pricer.cost(stage) == pricer.cost(megatron_stage)
            for stage, megatron_stage in zip(draft.stages, megatron.stages, strict=True)
        )
        if is_megatron:
            return "tp"
        return "shards"

    @cached_property
    def _choices(self) -> WordChoices:
        """Return the words that the plan's stages can change."""
        stages = self.draft.stages
        meshes = {(stage.mesh.replicas, stage.mesh.shards) for stage in stages}
        is_split = any(stage.mesh.shards > 1 for stage in stages)
        has_replicas = any(stage.mesh.replicas > 1 for stage in stages)
        has_one_axis = all(
            stage.mesh.outer == 1 and stage.choice.border != "examples"
            for stage in stages
        )
        degrees: tuple[str, ...] = ()
        if self._launch_plan is not None:
            degrees = ("dp", self._split_word, "pp")
        return WordChoices(
            zero_stages=(0, 1, 2, 3) if has_replicas else (),
            schedules=SCHEDULES,
            degrees=degrees,
            splits_tokens=is_split and has_one_axis,
            regathers=is_split,
            cuts_evenly=len(stages) > 1 and len(meshes) == 1,
            splits_freely=is_split,
        )

    def _changed(self, change: SingleChange) -> Draft | None:
        """Return the draft of a change; None if it changes nothing, or cannot be."""
        spec = change.spec
        draft = self.draft
        # An order that was searched is that of one schedule of these stages.
        plain = replace(
            draft, rules=None, schedule=draft.schedule.replace(":searched", "")
        )
        match change.word:
            case "microbatch_size":
                return self._with_size(plain, spec.microbatch_size)
            case "schedule":
                return self._with_schedule(plain, spec.schedule)
            case "sp":
                if spec.sp:
                    border = "tokens"
                else:
                    border = "whole"
                choice = SplitChoice(WEIGHTS, border=border)
                return with_splits(self.planned.pricer, plain, (choice,))
            case "shards":
                inner = [
                    replace(s, mesh=replace(s.mesh, outer=1)) for s in plain.stages
                ]
                outer = replace(plain, stages=tuple(inner))
                return with_splits(self.planned.pricer, outer, ANY_SPLIT)
            case "layers":
                stages = self._evenly_cut(draft)
            case "zero":
                stages = [replace(stage, zero=spec.zero) for stage in draft.stages]
            case "recompute":
                stages = [
                    with_recomputation(self.chain, stage, spec.recompute)
                    for stage in draft.stages
                ]
            case "regather":
                stages = [
                    replace(
                        stage,
                        choice=replace(
                            stage.choice,
                            regather=bool(spec.regather) and stage.mesh.shards > 1,
                        ),
                    )
                    for stage in draft.stages
                ]
            case _ if change.word == DEGREES:
                return self._with_degrees(spec)
            case _:
                return None
        changed = tuple(stages)
        if changed == draft.stages:
            return None
        return replace(plain, stages=changed)

    def _with_size(self, draft: Draft, size: int) -> Draft | None:
        """Return the draft with micro-batches of another size on each replica, if they divide."""
        batch = self.plan.file.batch
        replicas = draft.stages[0].mesh.replicas * self.plan.file.stages[0].spread
        batch_size = size * replicas
        if batch % batch_size:
            return None
        return replace(draft, size=batch_size, microbatches=batch // batch_size)

    def _with_schedule(self, draft: Draft, schedule: str) -> Draft | None:
        """Return the draft under another schedule; None if it would need other stages."""
        if schedule == draft.schedule or len(draft.stages) < 2:
            return None
        if draft.schedule == "1f1b":
            return with_schedule(self.chain, draft, schedule)
        alike = {"1f1b", "zero-bubble"}
        if {schedule, draft.schedule} <= alike:
            return replace(draft, schedule=schedule)
        return None

    def _evenly_cut(self, draft: Draft) -> list[Stage]:
        """Return the stages that are as even as can be, all of one mesh."""
        stages = draft.stages
        choice = replace(
            stages[0].choice, labels=None, step_share=1 / draft.microbatches
        )
        pricer = self.planned.pricer
        bounds = cut_evenly(pricer, stages[0].mesh, len(stages), choice)
        return list(draft.with_cuts(bounds).stages)

    def _with_degrees(self, spec: PlanSpec) -> Draft | None:
        """Return the draft of other numbers of replicas, shards and stages, if they divide."""
        is_split = max(spec.tp, spec.shards or 1) > 1
        tidied = replace(
            spec,
            sp=None,
            shards=spec.shards if is_split else None,
            zero=spec.zero if spec.dp > 1 else 0,
            regather=True if spec.regather and is_split else None,
            schedule=spec.schedule if spec.pp > 1 else "1f1b",
        )
        try:
            return draft_spec(self.chain, self.fabric.cluster, tidied)
        except GnnplaceError:
            return None
