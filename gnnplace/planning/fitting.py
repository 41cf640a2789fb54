"""`FitAnswer`: the memory of a plan's fullest device by part, and changes that would make it fit.

All numbers come from the pricer of steps. A decoder of the catalogue is priced by its sizes
(`plans.spec_answers`), any other model by its capture (`plans.answers`). A change is the same plan
with one word, the optimizer or the set of trained parameters replaced, priced again.

Changes of words come first, because they do not change the result of training; then changes of the
optimizer, then changes of what is trained. Within each kind the fastest comes first. For a captured
model only changes of words are tried. Complexity: one price for each change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

from gnnplace.costs import Framework
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.explaining import WordChoices, list_choices, single_changes
from gnnplace.launch import (
    SCRIPTS,
    ScriptedSearch,
    launcher_plans,
    make_file_setting,
    make_launch_plan,
    price_words,
)
from gnnplace.plans import (
    Adapters,
    Chain,
    MemoryParts,
    NamedModel,
    Plan,
    PlanAnswer,
    PlanSpec,
    PricingSetting,
    Progress,
    SearchOptions,
    TrainingJob,
    find_fullest_memory,
    find_memory_limit,
    find_named,
    find_named_chain,
    make_plan_answer,
    make_pricing_setting,
    parse_spec,
    price_given_plan,
    price_spec,
    with_adapters,
)
from gnnplace.problem import Cluster

WORDS = "words"
OPTIMIZER = "optimizer"
TRAINED = "trained parameters"
KINDS = (WORDS, OPTIMIZER, TRAINED)
"""What a change replaces, in the order in which changes are preferred."""
LEANER_OPTIMIZERS = ("adamw-8bit", "adafactor")
"""Optimizers that are tried instead of the plan's."""
LEANER_TRAINING = ("r=16", "r=16,bits=4", "r=16,bits=4,expert_bits=4")
"""Adapters that are tried instead of training all parameters, as `--lora` takes them."""
OFFLOADED_PARTS = ("0.5", "1")
"""Parts of the activations that are tried to be offloaded."""


@dataclass(frozen=True)
class FitChange:
    """A plan with a single change.

    Attributes:
        kind: What is changed, one of `KINDS`.
        change: The change as the user types it, such as "zero=3" or "--optimizer adafactor".
        step_time: Predicted seconds of a step with the change.
        parts: Bytes of the fullest device with the change, by part.
    """

    kind: str
    change: str
    step_time: float
    parts: MemoryParts


@dataclass(frozen=True)
class FitTerms:
    """The terms on which a plan is priced, as an answer states them.

    Attributes:
        cluster: The cluster's name.
        framework: The framework whose memory is predicted.
        precision: The precision in Lightning's words, such as "bf16-mixed".
        optimizer: The optimizer's name.
        batch: Examples of a step.
        length: Tokens of an example; None if examples are not rows of tokens.
        adapters: Adapters that are trained; None: all parameters are.
        slack_source: In words: what the slack of `MemoryParts` consists of, and where its constants
            come from.
    """

    cluster: str
    framework: str
    precision: str
    optimizer: str
    batch: int
    length: int | None
    adapters: Adapters | None
    slack_source: str


@dataclass(frozen=True)
class FitAnswer:
    """The answer to whether a plan fits, and what would make it fit.

    Attributes:
        spec: The plan in words.
        terms: The terms on which the plan was priced.
        answer: The plan's price.
        parts: Bytes of the fullest device, by part.
        changes: Single changes with which the plan fits, in the order that the module describes;
            empty if the plan fits as it is.
        nearest: If no change fits, the one whose fullest device lacks the fewest bytes.
        job: The model and how it is trained; None if it is not known.
    """

    spec: PlanSpec
    terms: FitTerms
    answer: PlanAnswer
    parts: MemoryParts
    changes: tuple[FitChange, ...] = ()
    nearest: FitChange | None = None
    job: TrainingJob | None = None

    @property
    def fits(self) -> bool:
        """Return whether the plan likely fits its fullest device."""
        return self.answer.feasible


def _describe_slack(framework: Framework) -> str:
    """Return in words what a framework's slack consists of, and where its constants come from."""
    constants = framework.constants.constants
    context = constants["context"]
    fragmentation = constants["fragmentation"]
    return (
        f"{context.value:g} {context.unit} of libraries ({context.source}), and "
        f"{fragmentation.value - 1:.1%} of activations ({fragmentation.source})"
    )


def _make_sized_terms(setting: PricingSetting, spec: PlanSpec) -> FitTerms:
    """Return the terms of a plan whose model is priced by its sizes."""
    framework = setting.framework
    decoder = setting.decoder
    return FitTerms(
        cluster=setting.cluster.name,
        framework=framework.name,
        precision=framework.precision,
        optimizer=framework.optimizer,
        batch=spec.batch or decoder.batch,
        length=decoder.length,
        adapters=decoder.adapters,
        slack_source=_describe_slack(framework),
    )


def fit_plan(
    job: TrainingJob,
    cluster: Cluster,
    plan: PlanSpec | Plan | None = None,
    options: SearchOptions | None = None,
    progress: Progress | None = None,
) -> FitAnswer:
    """Return whether a plan fits, and what would make it fit.

    Args:
        job: The model and how it is trained.
        cluster: The devices, with the memory that plans may use.
        plan: The plan; None: the fastest that a launcher can run. If no plan fits, the one that
            lacks the fewest bytes.
        options: Options of that search. For a given plan, its framework and environment.
        progress: Called with a line when a step of the work begins.

    Raises:
        InputError: If the plan is impossible whatever its bytes, or if a captured model's plan is
            not given in words.
        CaptureError: If the model cannot be captured; the message names the module.
    """
    options = options or SearchOptions()
    named = find_named(job, cluster)
    if named is None or find_named_chain(named, cluster) is None:
        return _fit_captured(
            job if named is None else named.job, cluster, plan, options
        )
    if plan is None:
        try:
            plan = launcher_plans(named, cluster, options, job.precision, progress)[0]
        except InfeasibleError:  # no launcher can run a plan that fits
            plan = leanest_spec(
                _make_setting(named, cluster, job, options), options.modes
            )
    if isinstance(plan, PlanSpec) and options.launcher:
        plan = price_words(named, cluster, plan, options, job.precision)
    if isinstance(plan, PlanSpec):
        setting = _make_setting(named, cluster, job, options)
        spec = plan
    elif plan.file.words is None:
        raise InputError(
            "--fits: the plan's file does not have the plan in words; give it by --given in words"
        )
    else:
        assert named.sizes is not None
        setting = make_file_setting(plan.file, named.sizes, cluster)
        spec = parse_spec(plan.file.words)
    return replace(judge_fit(setting, spec), job=named.job)


def judge_fit(setting: PricingSetting, spec: PlanSpec) -> FitAnswer:
    """Return whether a plan in words fits, and the single changes with which it would.

    Args:
        setting: The sizes, devices and framework that the plan is priced for.
        spec: The plan.

    Raises:
        InputError: If the plan is impossible whatever its bytes.
    """
    priced = price_spec(setting, spec)
    answer = FitAnswer(
        spec=spec,
        terms=_make_sized_terms(setting, spec),
        answer=make_plan_answer(setting, priced),
        parts=find_fullest_memory(priced),
    )
    return _add_changes(answer, _price_changes(setting, spec))


def _add_changes(
    answer: FitAnswer, changes: Iterator[tuple[FitChange, bool]]
) -> FitAnswer:
    """Return an answer with the changes that make its plan fit.

    An answer whose plan fits is returned as it is, and nothing more is priced.

    Args:
        answer: The answer without changes.
        changes: Changes and whether the plan fits with each, priced as they are read.
    """
    if answer.fits:
        return answer
    fitting: list[FitChange] = []
    nearest: FitChange | None = None
    for change, fits in changes:
        if fits:
            fitting.append(change)
        elif nearest is None or change.parts.lacking < nearest.parts.lacking:
            nearest = change
    return replace(
        answer,
        changes=tuple(sorted(fitting, key=_get_preference)),
        nearest=None if fitting else nearest,
    )


def _fit_captured(
    job: TrainingJob,
    cluster: Cluster,
    plan: PlanSpec | Plan | None,
    options: SearchOptions,
) -> FitAnswer:
    """Return whether a plan of a captured model fits. Arguments are those of `fit_plan`.

    Raises:
        InputError: If options or the form of the plan are for decoders of the catalogue alone.
        CaptureError: If the model cannot be captured.
    """
    from gnnplace.plans import capture_chain

    for name in ("framework", "environment", "modes"):
        if getattr(options, name) is not None:
            raise InputError(
                f"--{name}: applies only to decoders of the catalogue, which are priced by their "
                "sizes on GPUs; leave it out"
            )
    if isinstance(plan, Plan):
        raise InputError(
            "--fits: give the plan of a captured model in words; `plan --given FILE` states the "
            "memory of a file"
        )
    chain = capture_chain(job, cluster)
    spec = plan or _find_spec_to_fit(chain, cluster, options.launcher)
    priced = price_given_plan(chain, cluster, spec)
    assert priced.fullest is not None
    answer = PlanAnswer(
        step_time=priced.step_time,
        feasible=priced.feasible,
        reason=priced.reason or "",
        peak=priced.fullest.total,
        fits=priced.file.fits,
    )
    terms = _make_captured_terms(chain, priced)
    fit_answer = FitAnswer(
        spec=spec, terms=terms, answer=answer, parts=priced.fullest, job=job
    )
    return _add_changes(fit_answer, _price_captured_changes(chain, cluster, spec))


def _make_captured_terms(chain: Chain, priced: Plan) -> FitTerms:
    """Return the terms of a plan of a captured model."""
    tokens = priced.file.tokens
    if chain.framework is None:
        slack_source = "what --headroom keeps free of the device's memory"
    else:
        slack_source = _describe_slack(chain.framework)
    return FitTerms(
        cluster=priced.file.cluster,
        framework=priced.file.framework,
        precision=chain.precision,
        optimizer=chain.optimizer,
        batch=chain.batch,
        length=None if tokens is None else tokens // chain.batch,
        adapters=None,
        slack_source=slack_source,
    )


def _find_spec_to_fit(chain: Chain, cluster: Cluster, launcher: str | None) -> PlanSpec:
    """Return the fastest plan in words that a launcher can run, or the leanest if none fits.

    Args:
        chain: The captured model.
        cluster: The devices.
        launcher: The launcher; None: any of `SCRIPTS`, whose training script makes the model.

    Raises:
        InputError: If the launcher trains only decoders of the catalogue.
    """
    if launcher not in (None, *SCRIPTS):
        raise InputError(
            f"--launcher {launcher}: trains only decoders of the catalogue, which are priced by "
            f"their sizes on GPUs; take {' or '.join(SCRIPTS)}"
        )
    search = ScriptedSearch(chain, cluster)
    plans: list[Plan] = []
    for name in SCRIPTS if launcher is None else (launcher,):
        try:
            plans += search.fastest(name)
        except InfeasibleError:
            continue
    if plans:
        plans.sort(key=attrgetter("step_time"))
        launch_plan, _ = make_launch_plan(plans[0])
        return replace(launch_plan.spec, gradients=None)
    # The leanest: everything that words can save is saved.
    num_devices = cluster.num_devices
    zero = 3 if num_devices > 1 else 0
    return PlanSpec(dp=num_devices, zero=zero, microbatch_size=1, recompute="full")


def _price_captured_changes(
    chain: Chain, cluster: Cluster, spec: PlanSpec
) -> Iterator[tuple[FitChange, bool]]:
    """Yield the possible single changes of a captured model's plan, and whether it then fits."""
    zero_stages = (0, 1, 2, 3) if spec.dp > 1 else ()
    choices = WordChoices(zero_stages=zero_stages, splits_tokens=False)
    for change in single_changes(spec, choices):
        try:
            priced = price_given_plan(chain, cluster, change.spec)
        except (
            InputError
        ):  # numbers do not divide, or the model cannot be cut like this
            continue
        assert priced.fullest is not None
        fit_change = FitChange(
            kind=WORDS,
            change=change.text,
            step_time=priced.step_time,
            parts=priced.fullest,
        )
        yield fit_change, priced.feasible


def _get_preference(change: FitChange) -> tuple[int, float]:
    """Return what changes are sorted by: first their kind, then the time of a step."""
    return KINDS.index(change.kind), change.step_time


def _price_changes(
    setting: PricingSetting, spec: PlanSpec
) -> Iterator[tuple[FitChange, bool]]:
    """Yield the possible single changes of a plan, and whether the plan then fits."""
    for kind, text, changed_setting, changed_spec in _list_candidates(setting, spec):
        try:
            priced = price_spec(changed_setting, changed_spec)
        except InputError:  # numbers do not divide, or the framework lacks something
            continue
        change = FitChange(
            kind=kind,
            change=text,
            step_time=priced.step_time,
            parts=find_fullest_memory(priced),
        )
        yield change, make_plan_answer(changed_setting, priced).feasible


def _list_candidates(
    setting: PricingSetting, spec: PlanSpec
) -> Iterator[tuple[str, str, PricingSetting, PlanSpec]]:
    """Yield the changes to try.

    Yields:
        Its kind, one of `KINDS`; the change as the user types it; and the setting and the plan to
        be priced.
    """
    framework = setting.framework
    for change in single_changes(spec, list_choices(setting)):
        yield WORDS, change.text, setting, change.spec
    for name in framework.traits.offloads:
        if name != "activations":
            values = [name]
        else:
            values = [f"{name}:{part}" for part in OFFLOADED_PARTS]
        for value in values:
            yield WORDS, f"offload={value}", setting, replace(spec, offload=value)
    for name in LEANER_OPTIMIZERS:
        changed_framework = replace(framework, optimizer=name)
        changed_setting = replace(setting, framework=changed_framework)
        yield OPTIMIZER, f"--optimizer {name}", changed_setting, spec
    for words in LEANER_TRAINING:
        if words == str(setting.decoder.adapters):
            continue
        try:
            decoder = with_adapters(setting.decoder, words)
        except InputError:  # the words quantize experts, and the model has none
            continue
        yield TRAINED, f"--lora {words}", replace(setting, decoder=decoder), spec


def _make_setting(
    named: NamedModel, cluster: Cluster, job: TrainingJob, options: SearchOptions
) -> PricingSetting:
    """Return the sizes, devices and framework that plans of a named model are priced for.

    If the job names no precision, it is the default of the framework in `options`; without one it
    is the default of the model in the catalogue.
    """
    assert named.sizes is not None
    if options.framework:
        precision = job.precision
    else:
        precision = named.job.precision
    return make_pricing_setting(
        replace(named.sizes, batch=named.job.batch or named.sizes.batch),
        cluster,
        framework_name=options.framework,
        environment_name=options.environment,
        precision=precision,
        optimizer=job.optimizer,
        memory_limit=find_memory_limit(cluster),
    )


def leanest_spec(setting: PricingSetting, modes: PlanSpec | None = None) -> PlanSpec:
    """Return the plan of all devices whose fullest device lacks the fewest bytes.

    All activations are recomputed, a micro-batch is one example, and the ZeRO stage is the highest
    that the framework has. All degrees of tensor and pipeline parallelism that are powers of two
    are tried, so the search prices O(log^2 devices) plans.

    Args:
        setting: The sizes, the devices and the framework.
        modes: Further words of the plan; None: none.

    Raises:
        InputError: If the model cannot be cut over the devices in any of these ways.
    """
    num_devices = setting.cluster.num_devices
    zero = max(setting.framework.traits.zero_stages)
    reason = f"{setting.cluster.name}: no plan is possible on {num_devices} devices"
    leanest: tuple[float, PlanSpec] | None = None
    powers = [2**k for k in range(num_devices.bit_length())]
    for tp in powers:
        for pp in powers:
            if tp > setting.framework.network.per_server or num_devices % (tp * pp):
                continue
            dp = num_devices // (tp * pp)
            spec = (modes or PlanSpec()).with_words(
                dp=dp, tp=tp, pp=pp, zero=zero if dp > 1 else 0, recompute="full"
            )
            try:
                parts = find_fullest_memory(price_spec(setting, spec))
            except InputError as error:
                reason = str(error)
                continue
            if leanest is None or parts.lacking < leanest[0]:
                leanest = parts.lacking, spec
    if leanest is None:
        raise InputError(reason)
    return leanest[1]
