"""What a launcher's file takes at its framework's prices, and the best plan that it can run.

Decoders of text are priced from their sizes (`plans.decoders`), and searched by
`plans.spec_search` over all that the launcher's framework has. What the launcher cannot say as it
is, is no answer; the best of all beside it is the free plan, at the same prices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.plans.causes import SlowdownCause
from gnnplace.plans.decoders.decoder import DecoderSizes, decoder_of
from gnnplace.plans.decoders.setting import PricingSetting, setting_of
from gnnplace.plans.decoders.stages import layers_of
from gnnplace.plans.launch.importing import (
    assumed_values,
    check_expert_groups,
    check_known,
    completed,
    priced_optimizer,
)
from gnnplace.plans.launch.launch_plan import LaunchPlan
from gnnplace.plans.launch.registry import Launcher, framework_of, launcher_of
from gnnplace.plans.measured_steps import MeasuredSteps, RunSizes, measured_steps
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import PlanAnswer, price
from gnnplace.plans.spec_explaining import (
    RowChange,
    row_causes,
    row_changes,
    row_parts,
)
from gnnplace.plans.spec_search import FoundSpec, search_specs
from gnnplace.problem import Cluster, counts_of_devices


@dataclass(frozen=True)
class LaunchAnswer:
    """What a plan of a launcher takes.

    Attributes:
        plan: in the launcher's words.
        answer: seconds, bytes, and whether it fits.
        setting: what it was priced on.
        free: the best plan that any launcher could be told, at the same prices; None where a file
            was priced and nothing searched.
        free_answer: what that takes.
        tried: plans that were priced.
        bounded: plans and groups of plans that were bounded, those that were priced among them.
        told: what is not priced, each in one line.
    """

    plan: LaunchPlan
    answer: PlanAnswer
    setting: PricingSetting
    free: LaunchPlan | None = None
    free_answer: PlanAnswer | None = None
    tried: int = 1
    bounded: int = 1
    told: tuple[str, ...] = ()

    @property
    def framework(self) -> str:
        """Whose times they are."""
        return self.setting.framework.name


NEAREST_SCHEDULE = {"zero-bubble": "1f1b", "v": "interleaved:2"}


def priced_spec(plan: LaunchPlan) -> PlanSpec:
    """Return the plan with the nearest schedule that frameworks' prices know."""
    return replace(plan.spec, schedule=NEAREST_SCHEDULE.get(plan.schedule, plan.full_schedule))


def price_launch_plan(
    plan: LaunchPlan,
    launcher: str,
    cluster: str | Cluster,
    *,
    model: str | None = None,
    framework: str | None = None,
    environment: str | None = None,
    batch: int | None = None,
    memory_limit: float | None = None,
) -> LaunchAnswer:
    """What a run of a launch file takes, at the prices of the launcher's framework.

    Args:
        plan: as it was read.
        launcher: whose file it is.
        cluster: the devices.
        model: the model, where the file has no sizes of it.
        framework: whose constants count instead of the launcher's.
        environment: such as "checked-collectives".
        batch: examples of a step, where the file says none.
        memory_limit: bytes that every device has, instead of its own.

    Raises:
        InputError: what is missing, or cannot be priced.
    """
    devices = resolve_cluster(cluster)
    plan = completed(plan, devices.num_devices, batch)
    check_known(plan)
    setting = setting_of(
        _decoder(model, plan.sizes, plan.batch, devices.num_devices), devices,
        framework_name=framework or framework_of(launcher, plan), environment_name=environment,
        precision=None if plan.precision == "32-true" else plan.precision,
        optimizer=priced_optimizer(plan), memory_limit=memory_limit,
    )  # fmt: skip
    check_expert_groups(plan)
    notes = list(plan.remarks)
    notes += assumed_values(plan, setting.framework.precision)
    if plan.precision == "32-true":
        notes.append(f"precision 32-true: priced as {setting.framework.precision}")
    if plan.schedule in ("zero-bubble", "v"):
        notes.append(f"schedule {plan.schedule}: priced without")
    answer = price(setting, priced_spec(plan))
    return LaunchAnswer(plan, answer, setting, told=tuple(notes))


@dataclass(frozen=True)
class LaunchExplanation:
    """What bounds a run of a launch file.

    Attributes:
        answer: what it takes.
        parts: seconds of its step by what they go to (`decoders.explaining.ROW_PARTS`).
        changes: single changes of its words that fit, the fastest first.
        causes: what may make the run slower than predicted, the likeliest first.
        measured: a step of the run; None where none is known.
    """

    answer: LaunchAnswer
    parts: dict[str, float]
    changes: tuple[RowChange, ...]
    causes: tuple[SlowdownCause, ...] = ()
    measured: MeasuredSteps | None = None


def explain_launch_plan(answer: LaunchAnswer, measured: str | None = None) -> LaunchExplanation:
    """What bounds a run that was priced.

    Args:
        answer: of `price_launch_plan` or `search_launcher`.
        measured: a step of the run, as "0.83s", or a log.

    Raises:
        InputError: the plan cannot be, or no step can be read.
    """
    plan, setting = answer.plan, answer.setting
    if answer.answer.step_time is None:
        raise InputError(f"{plan.words}: {answer.answer.reason}")
    batch, words = plan.batch or 1, priced_spec(plan)
    sizes = RunSizes(batch, batch * setting.decoder.length, plan.world or 1)
    steps = None if measured is None else measured_steps(measured, sizes)
    changes = tuple(row_changes(setting, words))
    parts = row_parts(setting, words)
    causes = row_causes(setting, words, parts, None if steps is None else steps.seconds)
    return LaunchExplanation(answer, parts, changes, causes, steps)


def search_launcher(
    model: str,
    launcher: str,
    cluster: str | Cluster,
    *,
    batch: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    framework: str | None = None,
    environment: str | None = None,
    memory_limit: float | None = None,
    fewest: bool = False,
    rate: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> LaunchAnswer:
    """The fastest plan that a launcher can run, beside the fastest of all.

    Args:
        model: a decoder of text, as `hf:CONFIG`.
        launcher: the name of the launcher.
        cluster: the devices, all of which are used.
        batch: examples of a step; by default those of the model.
        precision: in Lightning's words; by default the framework's usual one.
        optimizer: by default "adamw".
        framework: whose constants count instead of the launcher's.
        environment: such as "checked-collectives".
        memory_limit: bytes that every device has, instead of its own.
        fewest: take as few devices as hold any plan: powers of two, then all of them.
        rate: tokens a second that these must make.
        progress: is told what is done.

    Raises:
        InputError: the model is no decoder that is priced from its sizes.
        InfeasibleError: nothing fits that the launcher can run, or reaches the rate.
    """
    target, devices = launcher_of(launcher), resolve_cluster(cluster)
    decoder = _decoder(model, None, batch, devices.num_devices)
    setting = setting_of(
        decoder, devices, framework_name=framework or target.framework,
        environment_name=environment, precision=precision, optimizer=optimizer,
        memory_limit=memory_limit,
    )  # fmt: skip
    num_devices, rates = devices.num_devices, list[float]()
    fastest: FoundSpec | None = None

    def accepts(spec: PlanSpec) -> bool:
        """Return whether the launcher can be told a plan."""
        return can_say(target, launch_plan_of(setting, spec))

    for count in counts_of_devices(num_devices) if fewest else [num_devices]:
        if progress is not None:
            progress(f"planning: plans of {count} devices at {setting.framework.name}'s prices")
        found = search_specs(setting, decoder.batch, count, accepts=accepts)
        fastest = found.fastest or fastest
        if not found.best or found.fastest is None:
            continue
        best = found.best[0]
        rates.append(best.answer.tokens_per_second or 0.0)
        if rates[-1] >= (rate or 0.0):
            free = found.fastest
            return LaunchAnswer(
                plan=launch_plan_of(setting, best.spec),
                answer=replace(best.answer, lower_bound=found.bound),
                setting=setting,
                free=launch_plan_of(setting, free.spec),
                free_answer=free.answer,
                tried=found.num_priced,
                bounded=found.num_bounded,
            )
    if rate is not None and rates:
        message = (
            f"no plan on up to {num_devices} devices makes {rate:,.0f} tokens/s; the fastest makes"
        )
        raise InfeasibleError(f"{launcher}: {message} {max(rates):,.0f}; take more devices")
    if fastest is None:
        raise InfeasibleError(f"{launcher}: nothing fits; take more devices")
    plan = launch_plan_of(setting, fastest.spec)
    target.write(plan, [], setting.framework.network.each)  # says why, where nothing can be said
    message = "none of the plans that fit can be said"
    raise InfeasibleError(f"{launcher}: {message}; take more devices, or another launcher")


def launch_plan_of(setting: PricingSetting, spec: PlanSpec) -> LaunchPlan:
    """Return a plan in words as a launch file says it."""
    framework, sizes = setting.framework, replace(setting.decoder, batch=1)
    layers = None
    if spec.pp > 1:
        layers = layers_of(sizes, spec.num_stages, spec.layers or framework.traits.cut)
    return LaunchPlan(
        dp=spec.dp,
        tp=spec.tp,
        pp=spec.pp,
        cp=spec.cp,
        ep=spec.ep,
        chunks=spec.num_stages // spec.pp,
        microbatch_size=spec.microbatch_size,
        batch=spec.batch,
        zero=spec.zero,
        recompute=spec.recompute,
        schedule=spec.schedule_name,
        precision=framework.precision,
        gradients=framework.traits.gradients,
        optimizer=framework.optimizer,
        sizes=sizes,
        sp=spec.splits_tokens,
        layers=layers,
    )


def can_say(launcher: Launcher, plan: LaunchPlan) -> bool:
    """Whether a launcher can be told a plan as it is."""
    if any(after != plan for _, after in launcher.nearest(plan)):
        return False
    try:
        launcher.write(plan, [], 8)
    except InfeasibleError:
        return False
    return True


def _decoder(
    model: str | None, sizes: DecoderSizes | None, batch: int | None, num_devices: int
) -> DecoderSizes:
    """Return the sizes of a model by its name, or those that a file has.

    Args:
        model: Its name; None: the file's sizes count.
        sizes: Those of the file.
        batch: Examples of a step; None: the model's default.
        num_devices: Devices of the cluster, which that default depends on.

    Raises:
        InputError: there are none.
    """
    if model is None and sizes is None:
        raise InputError("MODEL: is missing; the launch file has no sizes of one")
    decoder = decoder_of(model, num_devices=num_devices) if model is not None else sizes
    if decoder is None:
        raise InputError(f"{model}: is no decoder of text of transformers, which are priced from "
                         "their sizes; give the plan's words with --given")  # fmt: skip
    return replace(decoder, batch=batch or decoder.batch)
