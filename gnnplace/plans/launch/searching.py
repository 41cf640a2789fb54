"""What a launcher's file takes at its framework's prices, and the best plan that it can run.

Decoders of text are priced from their sizes (`plans.decoders`), a plan in about a millisecond, so
that the search is an enumeration: replicas, shards and stages whose product is the cluster's
devices, micro-batches of powers of two, every ZeRO, recomputation and schedule that the framework
has. What the launcher has to change (`nearest`) or cannot say is left out; the best of all beside
it is the free plan, at the same prices.

Complexity: O(factorizations of the devices x micro-batches x ZeRO x recomputation x schedules).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.plans.decoders.decoder import DecoderSizes, decoder_of
from gnnplace.plans.decoders.setting import PricingSetting, setting_of
from gnnplace.plans.decoders.stages import layers_of
from gnnplace.plans.launch.importing import (
    assumed_values,
    check_known,
    completed,
    priced_optimizer,
    with_cut_experts,
)
from gnnplace.plans.launch.launch_plan import LaunchPlan
from gnnplace.plans.launch.registry import Launcher, framework_of, launcher_of
from gnnplace.plans.measured_steps import MeasuredSteps, RunSizes, measured_steps
from gnnplace.plans.spec import PlanSpec
from gnnplace.plans.spec_answers import PlanAnswer, price
from gnnplace.plans.spec_explaining import (
    RowChange,
    Suspect,
    likeliest,
    row_changes,
    row_parts,
    row_suspects,
)
from gnnplace.problem import Cluster, counts_of_devices

MOST_SHARDS = 64
LARGEST = 64  # examples of a micro-batch
PricedPlan = tuple[float, LaunchPlan, PlanAnswer]
"""Seconds of a step, the plan, and all that it takes."""
SCHEDULES = (("1f1b", 1), ("interleaved", 2), ("interleaved", 4), ("gpipe", 1))


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
        told: what is not priced, each in one line.
    """

    plan: LaunchPlan
    answer: PlanAnswer
    setting: PricingSetting
    free: LaunchPlan | None = None
    free_answer: PlanAnswer | None = None
    tried: int = 1
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
        _decoder(model, plan.sizes, plan.batch), devices,
        framework_name=framework or framework_of(launcher, plan), environment_name=environment,
        precision=None if plan.precision == "32-true" else plan.precision,
        optimizer=priced_optimizer(plan), memory_limit=memory_limit,
    )  # fmt: skip
    plan, notes = with_cut_experts(plan)
    notes += plan.remarks
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
        suspects: what may make the run slower than predicted.
        measured: a step of the run; None where none is known.
    """

    answer: LaunchAnswer
    parts: dict[str, float]
    changes: tuple[RowChange, ...]
    suspects: tuple[Suspect, ...] = ()
    measured: MeasuredSteps | None = None

    @property
    def likely(self) -> tuple[Suspect, ...]:
        """Suspects that explain by what the measured step is longer than the predicted one."""
        step = self.answer.answer.step_time
        gap = 0.0 if self.measured is None or step is None else self.measured.seconds - step
        return likeliest(self.suspects, gap)


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
    suspects = tuple(row_suspects(setting, words, parts["compute"]))
    return LaunchExplanation(answer, parts, changes, suspects, steps)


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
    decoder = _decoder(model, None, batch)
    setting = setting_of(
        decoder, devices, framework_name=framework or target.framework,
        environment_name=environment, precision=precision, optimizer=optimizer,
        memory_limit=memory_limit,
    )  # fmt: skip
    num_devices, priced, rates = devices.num_devices, list[PricedPlan](), [0.0]
    for count in counts_of_devices(num_devices) if fewest else [num_devices]:
        if progress is not None:
            progress(f"planning: plans of {count} devices at {setting.framework.name}'s prices")
        priced = priced_plans(setting, replace(decoder, batch=1), decoder.batch, count)
        sayable = next((row for row in priced if can_say(target, row[1])), None)
        if sayable is None:
            continue
        (_, best, answer), (_, plan, took) = priced[0], sayable
        rates.append(took.tokens_per_second or 0.0)
        if rates[-1] >= (rate or 0.0):
            return LaunchAnswer(plan, took, setting, best, answer, len(priced))
    if rate is not None and len(rates) > 1:
        message = (
            f"no plan on up to {num_devices} devices makes {rate:,.0f} tokens/s; the fastest makes"
        )
        raise InfeasibleError(f"{launcher}: {message} {max(rates):,.0f}; take more devices")
    if not priced:
        raise InfeasibleError(f"{launcher}: nothing fits; take more devices")
    target.write(
        priced[0][1], [], setting.framework.network.each
    )  # says why, where nothing can be said
    message = f"none of the {len(priced)} plans that fit can be said"
    raise InfeasibleError(f"{launcher}: {message}; take more devices, or another launcher")


def priced_plans(
    setting: PricingSetting, sizes: DecoderSizes, batch: int, count: int
) -> list[PricedPlan]:
    """Plans of so many devices that fit, the fastest first."""
    priced = []
    for plan in plans_of(setting, sizes, batch, count):
        answer = price(setting, priced_spec(plan))
        if answer.feasible and answer.step_time is not None:
            priced.append((answer.step_time, plan, answer))
    return sorted(priced, key=lambda row: row[0])


def can_say(launcher: Launcher, plan: LaunchPlan) -> bool:
    """Whether a launcher can be told a plan as it is."""
    if any(after != plan for _, after in launcher.nearest(plan)):
        return False
    try:
        launcher.write(plan, [], 8)
    except InfeasibleError:
        return False
    return True


def plans_of(
    setting: PricingSetting, sizes: DecoderSizes, batch: int, count: int
) -> Iterator[LaunchPlan]:
    """Every plan of so many devices that a framework may have."""
    traits = setting.framework.traits
    whole_tokens = not setting.framework.constants["splits_tokens"]
    kinds = [x for x in SCHEDULES if x[0] in traits.schedules]
    for pp, tp in itertools.product(_divisors(count), _divisors(count)):
        if count % (pp * tp) or pp > sizes.layers or tp > MOST_SHARDS or sizes.heads % tp:
            continue
        dp = count // (pp * tp)
        each = [m for m in (2**k for k in range(7)) if m <= LARGEST and batch % (dp * m) == 0]
        zeros = traits.zero_stages if dp > 1 else (0,)
        num_experts = sizes.experts.count if sizes.experts else 1
        groups = [n for n in _divisors(dp) if num_experts % n == 0]
        recompute_kinds = ("none", "selective", "full")
        rows = itertools.product(
            each, zeros, recompute_kinds, kinds if pp > 1 else kinds[:1], groups
        )
        for size, zero, recompute, (schedule, chunks), ep in rows:
            if schedule == "interleaved" and batch // (dp * size) % pp:
                continue
            layers = _cut(setting, pp * chunks)
            if layers is None:
                continue
            yield LaunchPlan(
                dp=dp, tp=tp, pp=pp, ep=ep, chunks=chunks, microbatch_size=size, batch=batch,
                zero=zero,
                recompute=recompute, schedule=schedule, precision=setting.framework.precision,
                gradients=traits.gradients, optimizer=setting.framework.optimizer, sizes=sizes,
                sp=tp == 1 or not whole_tokens, layers=layers if pp > 1 else None,
            )  # fmt: skip


def _cut(setting: PricingSetting, stages: int) -> tuple[int, ...] | None:
    """Layers of every stage as the framework cuts them; None where it cannot."""
    try:
        return layers_of(setting.decoder, stages, setting.framework.traits.cut)
    except InputError:
        return None


def _decoder(model: str | None, sizes: DecoderSizes | None, batch: int | None) -> DecoderSizes:
    """Sizes of a model by its name, or those that a file has.

    Raises:
        InputError: there are none.
    """
    if model is None and sizes is None:
        raise InputError("MODEL: is missing; the launch file has no sizes of one")
    decoder = decoder_of(model) if model is not None else sizes
    if decoder is None:
        raise InputError(f"{model}: is no decoder of text of transformers, which are priced from "
                         "their sizes; give the plan's words with --given")  # fmt: skip
    return replace(decoder, batch=batch or decoder.batch)


def _divisors(count: int) -> list[int]:
    return [n for n in range(1, count + 1) if count % n == 0]
