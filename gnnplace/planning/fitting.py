"""`FitAnswer`: the memory of a plan's fullest device by part, and changes that would make it fit.

All numbers come from the pricer of steps: of a decoder of the catalogue by its sizes
(`plans.spec_answers`), of any other model by its capture (`plans.answers`). A change is the same
plan with one word, the optimizer or the trained parameters changed, and priced again. Changes of
words come first, since they leave the result of training as it is; then changes of the optimizer,
then changes of what is trained. Within each kind the fastest is first. A captured model has changes
of words alone.
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
    find_memory_limit,
    find_named,
    find_named_chain,
    fullest_parts,
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
"""What a change is of, in the order in which changes are preferred."""
LEANER_OPTIMIZERS = ("adamw-8bit", "adafactor")
LEANER_TRAINING = ("r=16", "r=16,bits=4", "r=16,bits=4,expert_bits=4")
OFFLOADED_PARTS = ("0.5", "1")


@dataclass(frozen=True)
class FitChange:
    """A plan with a single change.

    Attributes:
        kind: What is changed, of `KINDS`.
        change: The change, such as "zero=3".
        step_time: Predicted seconds of a step.
        parts: Bytes of the fullest device.
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
        framework: The framework whose bytes count.
        precision: The precision in Lightning's words.
        optimizer: The optimizer.
        batch: Examples of a step.
        length: Tokens of an example; None where examples are no rows of tokens.
        adapters: Adapters that are trained; None: all parameters are.
        slack_source: What the slack consists of, and where its constants come from.
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
        spec: The plan.
        terms: The terms on which it was priced.
        answer: Its price.
        parts: Bytes of the fullest device.
        changes: Single changes that fit, the smallest first; none where the plan fits.
        nearest: The change that lacks the fewest bytes, if none fits.
        job: The model and how it is trained.
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
        """Return whether the fullest device likely holds the plan."""
        return self.answer.feasible


def _slack_source(framework: Framework) -> str:
    """Return what a framework's slack consists of and where its constants come from."""
    constants = framework.constants.constants
    context = constants["context"]
    fragmentation = constants["fragmentation"]
    return (
        f"{context.value:g} {context.unit} of libraries ({context.source}), and "
        f"{fragmentation.value - 1:.1%} of what comes and goes ({fragmentation.source})"
    )


def _make_sized_terms(setting: PricingSetting, spec: PlanSpec) -> FitTerms:
    """Return the terms of a plan that is priced by sizes."""
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
        slack_source=_slack_source(framework),
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
        plan: The plan; None: the fastest that a launcher can run, or where nothing fits the one
            that lacks the fewest bytes.
        options: Options of that search, and the framework and the environment of a given plan.
        progress: Called with a line for each thing that is done.

    Raises:
        InputError: If the plan cannot be, or a captured model's plan is not given in words.
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
        except InfeasibleError:  # no launcher can be told a plan that fits
            plan = leanest_spec(_setting(named, cluster, job, options), options.modes)
    if isinstance(plan, PlanSpec) and options.launcher:
        plan = price_words(named, cluster, plan, options, job.precision)
    if isinstance(plan, PlanSpec):
        setting = _setting(named, cluster, job, options)
        spec = plan
    elif plan.file.words is None:
        raise InputError("--fits: the plan's file has no words; give the plan in words")
    else:
        assert named.sizes is not None
        setting = make_file_setting(plan.file, named.sizes, cluster)
        spec = parse_spec(plan.file.words)
    return replace(judge_fit(setting, spec), job=named.job)


def judge_fit(setting: PricingSetting, spec: PlanSpec) -> FitAnswer:
    """Return whether a plan in words fits, and the single changes with which it would.

    Raises:
        InputError: If the plan cannot be, whatever its bytes.
    """
    priced = price_spec(setting, spec)
    answer = make_plan_answer(setting, priced)
    parts = fullest_parts(priced)
    fitted = FitAnswer(spec, _make_sized_terms(setting, spec), answer, parts)
    return _with_changes(fitted, _price_changes(setting, spec))


def _with_changes(
    answer: FitAnswer, changes: Iterator[tuple[FitChange, bool]]
) -> FitAnswer:
    """Return an answer with the changes that make its plan fit, if it does not.

    Args:
        answer: The answer without changes.
        changes: Priced changes, and whether the plan fits with each.
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
        changes=tuple(sorted(fitting, key=_preference)),
        nearest=None if fitting else nearest,
    )


def _fit_captured(
    job: TrainingJob,
    cluster: Cluster,
    plan: PlanSpec | Plan | None,
    options: SearchOptions,
) -> FitAnswer:
    """Return whether a plan of a captured model fits; arguments as of `fit_plan`."""
    from gnnplace.plans import capture_chain

    for name in ("framework", "environment", "modes"):
        if getattr(options, name) is not None:
            raise InputError(
                f"--{name}: is of decoders of the catalogue, priced by their sizes on GPUs"
            )
    if isinstance(plan, Plan):
        raise InputError(
            "--fits: a captured model's plan is given in words; `plan --given` states the memory "
            "of its file"
        )
    chain = capture_chain(job, cluster)
    spec = plan or _spec_to_fit(chain, cluster, options.launcher)
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
    fitted = FitAnswer(spec, terms, answer, priced.fullest, job=job)
    return _with_changes(fitted, _price_captured_changes(chain, cluster, spec))


def _make_captured_terms(chain: Chain, priced: Plan) -> FitTerms:
    """Return the terms of a plan of a captured model."""
    tokens = priced.file.tokens
    if chain.framework is None:
        slack_source = "what --headroom keeps free of the device's memory"
    else:
        slack_source = _slack_source(chain.framework)
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


def _spec_to_fit(chain: Chain, cluster: Cluster, launcher: str | None) -> PlanSpec:
    """Return the fastest plan in words that a launcher can run, or the leanest if none fits.

    Args:
        chain: The captured model.
        cluster: The devices.
        launcher: The launcher; None: any whose script makes the model.

    Raises:
        InputError: If the launcher trains decoders of known sizes alone.
    """
    if launcher not in (None, *SCRIPTS):
        raise InputError(
            f"--launcher {launcher}: is of decoders of the catalogue, priced by their sizes on "
            f"GPUs; take {' or '.join(SCRIPTS)}"
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
    num_devices = cluster.num_devices
    zero = 3 if num_devices > 1 else 0
    return PlanSpec(dp=num_devices, zero=zero, microbatch_size=1, recompute="full")


def _price_captured_changes(
    chain: Chain, cluster: Cluster, spec: PlanSpec
) -> Iterator[tuple[FitChange, bool]]:
    """Yield the single changes of a captured model's plan, and whether it fits with them."""
    zero_stages = (0, 1, 2, 3) if spec.dp > 1 else ()
    choices = WordChoices(zero_stages=zero_stages, splits_tokens=False)
    for change in single_changes(spec, choices):
        try:
            priced = price_given_plan(chain, cluster, change.spec)
        except InputError:  # numbers do not divide, or the model cannot be cut so
            continue
        assert priced.fullest is not None
        fit_change = FitChange(
            kind=WORDS,
            change=change.text,
            step_time=priced.step_time,
            parts=priced.fullest,
        )
        yield fit_change, priced.feasible


def _preference(change: FitChange) -> tuple[int, float]:
    return KINDS.index(change.kind), change.step_time


def _price_changes(
    setting: PricingSetting, spec: PlanSpec
) -> Iterator[tuple[FitChange, bool]]:
    """Yield the single changes of a plan that can be, and whether it fits with them."""
    for kind, text, changed, changed_spec in _candidates(setting, spec):
        try:
            priced = price_spec(changed, changed_spec)
        except InputError:  # numbers do not divide, or the framework lacks something
            continue
        change = FitChange(kind, text, priced.step_time, fullest_parts(priced))
        yield change, make_plan_answer(changed, priced).feasible


def _candidates(
    setting: PricingSetting, spec: PlanSpec
) -> Iterator[tuple[str, str, PricingSetting, PlanSpec]]:
    """Yield the changes that are tried: what is changed, how, and the plan to be priced."""
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
        changed = replace(setting, framework=replace(framework, optimizer=name))
        yield OPTIMIZER, f"--optimizer {name}", changed, spec
    for words in LEANER_TRAINING:
        if words == str(setting.decoder.adapters):
            continue
        try:
            decoder = with_adapters(setting.decoder, words)
        except InputError:  # it has no experts
            continue
        yield TRAINED, f"--lora {words}", replace(setting, decoder=decoder), spec


def _setting(
    named: NamedModel, cluster: Cluster, job: TrainingJob, options: SearchOptions
) -> PricingSetting:
    """Return the sizes, devices and framework that plans of a named model are priced for.

    Without a framework in `options` the catalogue's default precision stands for one that the job
    does not name.
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
    """Return the plan of all devices that lacks the fewest bytes.

    Everything is recomputed, micro-batches are of one example, ZeRO is the highest that the
    framework has; shards and stages are powers of two.

    Args:
        setting: The sizes, the devices and the framework.
        modes: A plan with the words that the plan has besides; None: none.

    Raises:
        InputError: If the model cannot be cut over the devices at all.
    """
    num_devices = setting.cluster.num_devices
    zero = max(setting.framework.traits.zero_stages)
    reason = f"{setting.cluster.name}: no plan of {num_devices} devices can be"
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
                parts = fullest_parts(price_spec(setting, spec))
            except InputError as error:
                reason = str(error)
                continue
            if leanest is None or parts.lacking < leanest[0]:
                leanest = parts.lacking, spec
    if leanest is None:
        raise InputError(reason)
    return leanest[1]
