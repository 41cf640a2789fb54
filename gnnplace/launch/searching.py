"""The price of a launcher's file by its framework, and the fastest plan that a launcher can run.

Text decoders are priced from their sizes (`plans.decoders`), and `plans.spec_search` searches all
plans of the launcher's framework. Plans that the launcher cannot express exactly are excluded. The
fastest plan without this restriction is the free plan, at the same prices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace

from gnnplace.costs import DEFAULT_FRAMEWORK, NOTHING, TRAITS, resolve_cluster
from gnnplace.errors import InfeasibleError, InputError
from gnnplace.launch.importing import (
    check_expert_groups,
    check_known,
    complete_launch_plan,
    find_priced_optimizer,
    list_assumed_values,
)
from gnnplace.launch.launch_plan import HIDDEN_EXCHANGES, LaunchPlan
from gnnplace.launch.layer_details import LayerDetails
from gnnplace.launch.offloading import EVERYTHING, OPTIMIZER
from gnnplace.launch.registry import (
    OF_DEEPSPEED,
    OF_MEGATRON,
    Launcher,
    find_framework,
    get_launcher,
)
from gnnplace.launch.writing import SERVER_GPUS, nearest_plan
from gnnplace.plans import (
    OWN,
    DecoderSizes,
    FoundSpec,
    FoundSpecs,
    PlanAnswer,
    PlanSpec,
    PricingSetting,
    SpecSpace,
    check_framework,
    cut_layers,
    find_decoder,
    iterate_groups,
    list_zero_stages,
    make_pricing_setting,
    price,
    search_specs,
    select_modes,
    with_adapters,
)
from gnnplace.problem import Cluster, list_device_counts


@dataclass(frozen=True)
class LaunchAnswer:
    """The price of a launcher's plan: seconds, bytes, and whether it fits.

    Attributes:
        plan: The plan in the launcher's words.
        answer: Seconds, bytes, and whether it fits.
        setting: The sizes, the devices and the framework that it was priced for.
        best: The fastest plans of a search, the fastest first.
        tried: The number of plans that were priced.
        bounded: The number of plans and groups of plans that were bounded, priced ones included.
        notes: Notes on what is not priced, each in one line.
    """

    plan: LaunchPlan
    answer: PlanAnswer
    setting: PricingSetting
    best: tuple[FoundSpec, ...] = ()
    tried: int = 1
    bounded: int = 1
    notes: tuple[str, ...] = ()

    @property
    def framework(self) -> str:
        """Return the name of the framework whose constants the prices use."""
        return self.setting.framework.name


OFFLOADS = (OPTIMIZER, EVERYTHING)
"""What is kept in the host's memory, one after the other, where no plan fits without."""
NEAREST_SCHEDULE = {"zero-bubble": "1f1b", "v": "interleaved:2"}


def with_priced_schedule(plan: LaunchPlan, setting: PricingSetting) -> PlanSpec:
    """Return the plan with its schedule, or the nearest that the framework's prices know."""
    schedule = plan.full_schedule
    if plan.schedule not in setting.framework.traits.schedules:
        schedule = NEAREST_SCHEDULE.get(plan.schedule, schedule)
    return replace(plan.spec, schedule=schedule)


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
    """Price a run of a launch file with the constants of the launcher's framework.

    Args:
        plan: The plan as it was read.
        launcher: The launcher whose file it is.
        cluster: The devices.
        model: The model, where the file has no sizes of it.
        framework: The framework whose constants count instead of the launcher's.
        environment: The environment, such as "checked-collectives".
        batch: Examples of a step, where the file says none.
        memory_limit: Bytes that every device has, instead of its own.

    Raises:
        InputError: If a value is missing or cannot be priced.
    """
    devices = resolve_cluster(cluster)
    plan = complete_launch_plan(plan, devices.num_devices, batch)
    check_known(plan)
    decoder = _decoder(model, plan, devices.num_devices)
    # A file that leaves the sizes to a checkpoint still says on how many shards experts are.
    plan = replace(plan, sizes=plan.sizes or decoder)
    setting = make_pricing_setting(
        decoder,
        devices,
        framework_name=framework or find_framework(launcher, plan),
        environment_name=environment,
        precision=None if plan.precision == "32-true" else plan.precision,
        optimizer=find_priced_optimizer(plan),
        memory_limit=memory_limit,
    )
    check_expert_groups(plan)
    notes = list(plan.remarks)
    notes += list_assumed_values(plan, setting.framework.precision)
    if plan.precision == "32-true":
        notes.append(f"precision 32-true: priced as {setting.framework.precision}")
    spec = with_priced_schedule(plan, setting)
    if spec.schedule != plan.full_schedule:
        notes.append(f"schedule {plan.schedule}: priced as {spec.schedule}")
    answer = price(setting, spec)
    return LaunchAnswer(plan, answer, setting, notes=tuple(notes))


@dataclass(frozen=True, eq=False)
class LauncherSearch:
    """Searches of the fastest plans that launchers can run, which share what they price.

    Attributes:
        decoder: Sizes of the model, with the batch.
        cluster: The devices, all of which are used.
        precision: The precision in Lightning's words; None: each framework's usual one.
        optimizer: The optimizer; None: "adamw".
        framework: The framework whose constants count instead of the launcher's own.
        environment: The environment, such as "checked-collectives".
        memory_limit: Bytes that every device has; None: its own.
        fewest: Whether plans use as few devices as hold any: powers of two, then all of them.
        rate: Tokens a second that a plan must reach.
        num_devices: How many of the cluster's devices are used, the first ones; None: all.
        modes: A plan with the words that every plan has: `compile`, `tp_overlap`, `gradients`,
            `cuda_graphs`, `offload`.
        offloads: Whether state may lie in the host's memory where nothing fits without.
        budget: Wall seconds of each search, after which the best so far counts.
        details: What the model's layers have beside sizes; None: not known.
        progress: Called with a line for each thing that is done.
    """

    decoder: DecoderSizes
    cluster: Cluster
    _: KW_ONLY
    precision: str | None = None
    optimizer: str | None = None
    framework: str | None = None
    environment: str | None = None
    memory_limit: float | None = None
    fewest: bool = False
    rate: float | None = None
    num_devices: int | None = None
    modes: PlanSpec = field(default_factory=PlanSpec)
    offloads: bool = False
    budget: float = math.inf
    details: LayerDetails | None = None
    progress: Callable[[str], None] | None = None
    _settings: dict[tuple[str, str | None], PricingSetting] = field(
        default_factory=dict
    )
    _spaces: dict[tuple[str, str, int, str], SpecSpace] = field(default_factory=dict)
    _free: dict[SpecSpace, FoundSpecs] = field(default_factory=dict)

    @property
    def used_devices(self) -> int:
        """Return the number of devices that every plan uses: `num_devices`, else the cluster's."""
        return self.num_devices or self.cluster.num_devices

    def find(self, launcher: str, num_best: int = 1) -> LaunchAnswer:
        """Return the fastest plan that a launcher can run.

        Args:
            launcher: The launcher's name, or `OWN`.
            num_best: Plans of it to find.

        Raises:
            InputError: If there is no such launcher, or the model cannot be priced so.
            InfeasibleError: If nothing fits that the launcher can run, or reaches the rate.
        """
        if launcher != OWN:
            self._check_model(launcher)
        num_devices = self.used_devices
        rates = list[float]()
        for count in list_device_counts(num_devices) if self.fewest else [num_devices]:
            fastest = self._fastest(launcher, count, num_best, self.modes.offload)
            if fastest is None:
                continue
            rates.append(fastest.answer.tokens_per_second or 0.0)
            if rates[-1] >= (self.rate or 0.0):
                return fastest
        if self.rate is not None and rates:
            message = (
                f"no plan on up to {num_devices} devices makes {self.rate:,.0f} tokens/s; the "
                f"fastest makes {max(rates):,.0f}"
            )
            raise InfeasibleError(f"{launcher}: {message}; take more devices")
        if self.offloads and self.modes.offload == NOTHING:
            for offload in OFFLOADS:
                answer = self._fastest(launcher, num_devices, num_best, offload)
                if answer is not None:
                    return answer
        raise self._refusal(launcher)

    def _fastest(
        self, launcher: str, num_devices: int, num_best: int, offload: str
    ) -> LaunchAnswer | None:
        """Return a launcher's fastest plan with one value of `offload`, or None if none fits.

        Args:
            launcher: The launcher's name, or `OWN`.
            num_devices: How many of the cluster's devices are used, the first ones.
            num_best: Plans to find.
            offload: What lies in the host's memory.
        """
        answers: list[LaunchAnswer] = []
        for name in self._frameworks(launcher):
            if offload not in (NOTHING, *TRAITS[name].offloads):
                continue
            space = self._space(launcher, name, num_devices, offload)
            answer = self._find_among(space, launcher, num_best)
            if answer is not None:
                answers.append(answer)
        return min(answers, key=lambda one: one.best[0].seconds, default=None)

    def _find_among(
        self, space: SpecSpace, launcher: str, num_best: int
    ) -> LaunchAnswer | None:
        """Return a launcher's fastest plan among those of a space, or None if it can run none."""
        setting = space.setting
        accepts = self._accepts(launcher, setting)
        # Megatron's launchers can mostly be told the fastest plan of their framework, which is
        # searched once for all of them.
        has_free = launcher in (OWN, *OF_MEGATRON)
        if has_free and num_best == 1:
            specs = self._find_free(space)
        else:
            specs = None
        if specs is None or not (specs.best and accepts(specs.best[0].spec)):
            specs = search_specs(
                space,
                accepts=accepts,
                has_degrees=self._has_degrees(launcher, setting),
                num_best=num_best,
                budget=self.budget,
            )
        if not specs.best:
            return None
        best = specs.best[0]
        return LaunchAnswer(
            plan=self._launch_plan(setting, best.spec),
            answer=replace(best.answer, lower_bound=specs.bound),
            setting=setting,
            best=specs.best,
            tried=specs.num_priced,
            bounded=specs.num_bounded,
        )

    def price_given(self, launcher: str, spec: PlanSpec) -> LaunchAnswer:
        """Price a plan in words as the framework that a launcher starts trains it.

        Args:
            launcher: The launcher's name, or `OWN`.
            spec: The plan.

        Raises:
            InputError: If there is no such launcher.
            InfeasibleError: If the launcher cannot say the model's sizes.
        """
        if launcher != OWN:
            self._check_model(launcher)
        setting = self._setting(launcher, self._frameworks(launcher)[0])
        priced = FoundSpec(spec, price(setting, spec))
        return LaunchAnswer(
            plan=self._launch_plan(setting, spec),
            answer=priced.answer,
            setting=setting,
            best=(priced,),
        )

    def price_again(self, launcher: str, answer: LaunchAnswer) -> LaunchAnswer:
        """Return the plan that another search found, priced with the memory of this one.

        Args:
            launcher: The launcher that it was found for.
            answer: The answer of a search with other memory.
        """
        setting = self._setting(launcher, answer.setting.framework.name)
        spec = answer.best[0].spec
        priced = FoundSpec(spec, price(setting, spec))
        return replace(
            answer,
            plan=self._launch_plan(setting, spec),
            answer=priced.answer,
            setting=setting,
            best=(priced,),
        )

    def _refusal(self, launcher: str) -> InfeasibleError:
        """Return why a launcher can run no plan on all devices."""
        setting = self._setting(launcher, self._frameworks(launcher)[0])
        zero = max(list_zero_stages(setting, self.modes), default=0)
        try:
            check_framework(setting, self.modes.with_words(zero=zero))
        except InputError as error:
            return InfeasibleError(f"{launcher}: {error}")
        reason = self._find_undivided_batch(launcher, setting)
        if reason:
            return InfeasibleError(f"{launcher}: {reason}")
        free = self.free(launcher)
        if free is None:
            return InfeasibleError(f"{launcher}: nothing fits; take more devices")
        message = "none of the plans that fit can be said"
        if launcher != OWN:
            target = get_launcher(launcher)
            plan = self._launch_plan(setting, free.spec)
            steps = nearest_plan(plan, target)[1]
            # No other plan mends a precision that the launcher lacks.
            for line, nearest in steps:
                if nearest.precision != plan.precision:
                    lack = line.partition(";")[0]
                    return InfeasibleError(
                        f"{launcher}: {lack}; take --precision {nearest.precision}"
                    )
            try:
                target.write(plan, [], SERVER_GPUS)
            except InfeasibleError as error:
                return error
            # What the launcher would write instead of the fastest plan says what it lacks.
            if steps:
                message += f" (the fastest: {steps[0][0]})"
        return InfeasibleError(
            f"{launcher}: {message}; take more devices, or another launcher"
        )

    def _find_undivided_batch(self, launcher: str, setting: PricingSetting) -> str:
        """Return why no replicas of a launcher's plans divide the batch, or "" if some do.

        The batch that is named instead is the nearest one that all devices as replicas divide, if
        the launcher has a plan of it that fits.
        """
        batch = self.decoder.batch
        num_devices = self.used_devices
        has_degrees = self._has_degrees(launcher, setting)
        # A batch of as many examples as devices is divided by all replicas that there may be.
        groups = iterate_groups(setting, num_devices, num_devices, self.modes)
        replicas = sorted(
            {group.spec.dp for group in groups if has_degrees(group.spec)}
        )
        if not replicas or any(batch % count == 0 for count in replicas):
            return ""
        *fewer, most_replicas = replicas
        lower = batch // most_replicas * most_replicas
        if lower and batch - lower <= lower + most_replicas - batch:
            nearest = lower
        else:
            nearest = lower + most_replicas
        alike = replace(
            self,
            decoder=replace(self.decoder, batch=nearest),
            fewest=False,
            rate=None,
            _settings={},
            _spaces={},
            _free={},
        )
        try:
            alike.find(launcher)
        except InfeasibleError:
            return ""
        reason = f"a batch of {batch:,} is not divisible by {most_replicas:,} replicas"
        if fewer:
            reason += f", nor by the {', '.join(map(str, fewer))} that its plans may have instead"
        return f"{reason}; --batch {nearest} is"

    def free(self, launcher: str) -> FoundSpec | None:
        """Return the fastest plan of a launcher's framework, even if the launcher cannot say it.

        Returns:
            None if no plan fits on all devices.
        """
        space = self._space(launcher, self._frameworks(launcher)[0], self.used_devices)
        specs = self._find_free(space)
        if specs.best:
            return specs.best[0]
        return None

    def _find_free(self, space: SpecSpace) -> FoundSpecs:
        """Return the fastest plan of a space, whether or not any launcher can say it."""
        if space not in self._free:
            self._free[space] = search_specs(space, num_best=1, budget=self.budget)
        return self._free[space]

    def _frameworks(self, launcher: str) -> tuple[str, ...]:
        """Return the frameworks whose prices plans of a launcher have."""
        if self.framework is not None:
            return (self.framework,)
        if launcher == OWN:
            return (DEFAULT_FRAMEWORK,)
        usual = get_launcher(launcher).framework
        if launcher in OF_DEEPSPEED:
            return (usual, DEFAULT_FRAMEWORK)
        return (usual,)

    def _accepts(
        self, launcher: str, setting: PricingSetting
    ) -> Callable[[PlanSpec], bool]:
        """Return a predicate for plans that the launcher can express and the framework prices."""
        if launcher == OWN:
            # Our runner has neither groups nor modes.
            return lambda spec: (
                spec.zero_group is None and select_modes(spec) == PlanSpec()
            )
        target = get_launcher(launcher)
        has_framework = self.framework is not None
        network = setting.framework.network.per_server

        def accepts(spec: PlanSpec) -> bool:
            plan = self._launch_plan(setting, spec)
            is_priced = (
                has_framework
                or find_framework(launcher, plan) == setting.framework.name
            )
            return is_priced and can_express(target, plan, network)

        return accepts

    def _has_degrees(
        self, launcher: str, setting: PricingSetting
    ) -> Callable[[PlanSpec], bool]:
        """Return a predicate for plans whose kinds of parallelism a launcher has."""
        if launcher == OWN:
            return lambda spec: True
        target = get_launcher(launcher)
        sizes = setting.decoder

        def has_degrees(spec: PlanSpec) -> bool:
            degrees = LaunchPlan(
                dp=spec.dp, tp=spec.tp, pp=spec.pp, cp=spec.cp, ep=spec.ep, sizes=sizes
            )
            try:
                target.check_degrees(degrees)
            except InfeasibleError:
                return False
            return True

        return has_degrees

    def _check_model(self, launcher: str) -> None:
        """Check that a launcher can train the model by any plan at all.

        Raises:
            InfeasibleError: If it cannot say the model's sizes.
        """
        target = get_launcher(launcher)
        setting = self._setting(launcher, self._frameworks(launcher)[0])
        spec = PlanSpec(
            dp=self.decoder.batch, microbatch_size=1, batch=self.decoder.batch
        )
        plan, steps = nearest_plan(self._launch_plan(setting, spec), target)
        target.write(
            steps[-1][1] if steps else plan, [], setting.framework.network.per_server
        )

    def _launch_plan(self, setting: PricingSetting, spec: PlanSpec) -> LaunchPlan:
        """Return a plan in words as a launch file says it of this model."""
        return replace(make_launch_plan(setting, spec), details=self.details)

    def _setting(self, launcher: str, framework: str) -> PricingSetting:
        """Return the sizes, devices and framework that a launcher's plans are priced for."""
        precision = self.precision
        if precision is None and launcher in OF_DEEPSPEED:
            # DeepSpeed's engine keeps copies.
            precision = TRAITS["megatron-deepspeed"].precision
        key = framework, precision
        if key not in self._settings:
            self._settings[key] = make_pricing_setting(
                self.decoder,
                self.cluster,
                framework_name=framework,
                environment_name=self.environment,
                precision=precision,
                optimizer=self.optimizer,
                memory_limit=self.memory_limit,
            )
        return self._settings[key]

    def _space(
        self, launcher: str, framework: str, count: int, offload: str | None = None
    ) -> SpecSpace:
        """Return the plans that are searched for a launcher.

        Args:
            launcher: The launcher.
            framework: The framework whose prices count.
            count: Devices that every plan uses.
            offload: What lies in the host's memory; None: what `modes` says.
        """
        if offload is None:
            modes = self.modes
        else:
            modes = self.modes.with_words(offload=offload)
        setting = self._setting(launcher, framework)
        key = framework, setting.framework.precision, count, modes.offload
        if key not in self._spaces:
            if self.progress is not None:
                if modes.offload == NOTHING:
                    words = ""
                else:
                    words = f", offload={modes.offload}"
                self.progress(
                    f"planning: plans of {count} devices at {framework}'s prices{words}"
                )
            self._spaces[key] = SpecSpace(setting, self.decoder.batch, count, modes)
        return self._spaces[key]


def make_launch_plan(setting: PricingSetting, spec: PlanSpec) -> LaunchPlan:
    """Return a plan in words as a launch file says it."""
    framework = setting.framework
    samples = spec.sample_length or setting.decoder.sample_length
    sizes = replace(setting.decoder, batch=1, sample_length=samples)
    overlap = HIDDEN_EXCHANGES[spec.overlap or "none"]
    if spec.tp_overlap and spec.tp > 1:
        overlap += ("tp",)
    # A launcher counts all groups of experts, a plan those beside shards.
    ep = spec.ep
    if spec.etp is not None:
        ep *= spec.tp // spec.etp
    layers = None
    if spec.pp > 1:
        layers = cut_layers(sizes, spec.num_stages, spec.layers or framework.traits.cut)
    return LaunchPlan(
        dp=spec.dp,
        tp=spec.tp,
        pp=spec.pp,
        cp=spec.cp,
        ep=ep,
        etp=spec.etp,
        chunks=spec.num_stages // spec.pp,
        microbatch_size=spec.microbatch_size,
        batch=spec.batch,
        zero=spec.zero,
        group=spec.zero_group and spec.zero_group // spec.cp,
        overlap=overlap,
        recompute=spec.recompute,
        schedule=spec.schedule_name,
        precision=framework.precision,
        gradients=spec.gradients or framework.traits.gradients,
        compile=spec.compile,
        cuda_graphs=spec.cuda_graphs,
        offload=spec.offload,
        optimizer=framework.optimizer,
        sizes=sizes,
        sp=spec.splits_tokens,
        layers=layers,
    )


def can_express(launcher: Launcher, plan: LaunchPlan, gpus: int = SERVER_GPUS) -> bool:
    """Return whether a launcher can express a plan as it is.

    Args:
        launcher: The launcher.
        plan: The plan.
        gpus: GPUs of a server.
    """
    if any(nearest != plan for _, nearest in launcher.nearest(plan)):
        return False
    try:
        launcher.write(plan, [], gpus)
    except InfeasibleError:
        return False
    return True


def _decoder(model: str | None, plan: LaunchPlan, num_devices: int) -> DecoderSizes:
    """Return the sizes of a model by its name, or those that a file has, with its adapters.

    Args:
        model: The model's name; None: the file's sizes count.
        plan: The plan of the file.
        num_devices: Devices of the cluster, which the model's default batch depends on.

    Raises:
        InputError: If there are none, or they have not the products that adapters are of.
    """
    if model is None and plan.sizes is None:
        if plan.unknown_model:
            raise InputError(
                f"MODEL: is missing; {plan.source} has {plan.unknown_model}"
            )
        raise InputError("MODEL: is missing; the launch file has no sizes of one")
    if model is not None:
        name = model
        # The file's examples count, unless MODEL itself says a length.
        length = plan.length
        if length is None and plan.sizes is not None:
            length = plan.sizes.length
        if length is not None and "length=" not in model:
            name += f"{'&' if '?' in model else '?'}length={length}"
        decoder = find_decoder(name, num_devices=num_devices)
    else:
        decoder = plan.sizes
    if decoder is None:
        raise InputError(
            f"{model}: is no decoder of text of transformers, which are priced from "
            "their sizes; give the plan's words with --given"
        )
    decoder = replace(decoder, batch=plan.batch or decoder.batch)
    if plan.lora is None:
        return decoder
    return with_adapters(decoder, plan.lora)
