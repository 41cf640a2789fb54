"""`gnnplace.plan`: searches a plan for a model on a cluster, or prices a plan that is given.

With `tries`, the fastest plans run for a few steps on this machine, and the fastest one there is
the answer. Many plans differ only in their ZeRO stage or order of actions, so that of all plans
with the same stages and the same schedule only the fastest by prediction is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnplace.costs import (
    has_step_constants,
    is_problem_file,
    resolve_cluster,
    with_measurements,
)
from gnnplace.errors import GnnplaceError, InfeasibleError, InputError
from gnnplace.files import MOST
from gnnplace.launch import (
    SCRIPTS,
    LaunchPlan,
    ScriptedSearch,
    completed,
    find_model_name,
    is_launch_file,
    launcher_plans,
    make_captured_spec,
    make_scripted_plan,
    price_plan_in_words,
    price_words,
    read_launch_file,
)
from gnnplace.plans import (
    CAPTURING,
    FEWEST,
    LEANEST,
    TIME,
    Chain,
    NamedModel,
    Plan,
    PlanSpec,
    Progress,
    SearchOptions,
    TrainingJob,
    TrialEntry,
    check_words,
    find_baselines,
    find_fewest,
    find_named,
    find_named_chain,
    find_obeying,
    find_plans,
    parse_spec,
    price_given_plan,
    price_named,
    sized_model,
)
from gnnplace.plans import read_plan as parsed_plan
from gnnplace.problem import (
    Cluster,
    Given,
    as_constraints,
    cluster_with_headroom,
    figures,
    find_kind,
    read_problem,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

    from gnnplace.plans import HybridOptions, HybridStudy
    from gnnplace.run.planned import PlanRunner

# Torch is imported where a model is captured or run, not to plan by sizes.
AUTO = "auto"
FURTHER = 20  # plans that are looked through for each that is run
STEPS = 5


@dataclass(frozen=True, eq=False)
class PlanQuestion:
    """The question that a search or a price answers: what is trained, and a plan that is given.

    Attributes:
        job: The model and how it is trained.
        given: The plan to be priced; None: one is searched.
        notes: What the price leaves out of a launch file, each in one line.
    """

    job: TrainingJob
    given: PlanSpec | Plan | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_file_in_words(self) -> bool:
        """Return whether the given plan was read from a file that has the plan's words."""
        return isinstance(self.given, Plan) and self.given.file.words is not None


def read_question(
    given: str | PlanSpec | Plan | LaunchPlan | None,
    model: str | nn.Module | None,
    cluster: Cluster,
    **fields: Any,
) -> PlanQuestion:
    """Return the question that arguments and a given plan or launch file ask together.

    Args:
        given: The plan as `plan_model` takes it.
        model: The model as `plan_model` takes it.
        cluster: The devices.
        **fields: Other fields of `TrainingJob`; None where they are left out.

    Raises:
        InputError: If no model is named, or the arguments contradict the words.
        MismatchError: If the arguments contradict the plan's file.
    """
    plan = None if given is None else read_given(given)
    notes: tuple[str, ...] = ()
    stated: dict[str, Any] = {}
    if isinstance(plan, Plan):
        file = plan.file
        options = {
            name: fields.get(name)
            for name in ("batch", "precision", "optimizer", "lora")
        }
        check_words(file, cluster=cluster.name, **options)
        stated = {name: getattr(file, name) for name in options}
    elif isinstance(plan, LaunchPlan):
        launched = completed(plan, cluster.num_devices, fields.get("batch"))
        model = model or find_model_name(launched)
        stated = {
            "batch": launched.batch,
            "precision": fields.get("precision") or launched.precision,
            "optimizer": fields.get("optimizer") or launched.optimizer,
        }
        plan, lines = make_captured_spec(launched)
        notes = tuple(lines)
    elif isinstance(plan, PlanSpec) and plan.batch is not None:
        stated = {"batch": plan.batch}
        if fields.get("batch") not in (None, plan.batch):
            raise InputError(
                f"--given: batch={plan.batch}: --batch says {fields['batch']}; give one of them"
            )
    if model is None:
        raise InputError(
            "MODEL: is missing; only a launch file that has its sizes names one"
        )
    return PlanQuestion(TrainingJob(model, **{**fields, **stated}), plan, notes)


@dataclass(frozen=True, eq=False)
class JointPlan(Plan):
    """A plan that a model can be trained by, with `apply`."""

    def apply(
        self,
        model: nn.Module,
        inputs: object = None,
        *,
        loss: Callable[..., torch.Tensor] | None = None,
        device: torch.device | str | None = None,
        seed: int = 0,
        reduction: str | None = None,
    ) -> PlanRunner:
        """Make a model train as the plan says. Every process of torchrun calls this.

        There is a process for each device of the plan, in the order in which its stages list them.
        Parameters and buffers get the first process's numbers, so that all start alike; those that
        this process's stages do not read leave the model (for the device "meta").

        Args:
            model: What was planned, in training mode, in the type of the plan's precision.
            inputs: Example inputs of any number of examples: a tensor, a tuple or a mapping, with
                what the loss reads of them at the end; None: of the shapes that the plan was made
                with, which its file has.
            loss: The loss that the plan was made with. It is called with the model's output and the
                last inputs; None: the output is the loss.
            device: The device that this process computes on; by default the model's.
            seed: Seed of dropout, the same on all processes.
            reduction: "mean" where a step's loss is the mean of those of its micro-batches, "sum"
                where it is their sum; None: as the plan says, which was proven.

        Returns:
            What steps: `runner.step(batch)` gives the loss and leaves gradients in
            `runner.parameters()`.

        Raises:
            FormatError: If the plan's actions cannot run, with the first that is wrong.
            MismatchError: If it is a plan of another model, or has meshes that cannot be run.
            InputError: If there are more or fewer processes than devices.
        """
        from gnnplace.run.planned import apply_plan

        return apply_plan(
            self,
            model,
            inputs,
            loss=loss,
            device=device,
            seed=seed,
            reduction=reduction,
        )


def read_plan(path: str | Path) -> JointPlan:
    """Read a plan's file.

    Raises:
        FormatError: The message names the file, the key path and the fault, or the action that
            cannot run.
    """
    return _joint(parsed_plan(path))


def _joint(
    plan: Plan, cluster: str | Cluster = "", job: TrainingJob | None = None
) -> JointPlan:
    """Return the plan, which names the model as it was asked for, and the file of the cluster."""
    file = plan.file
    model: str | nn.Module | None = None
    defaults: tuple[str, ...] = ()
    if job is not None:
        model = job.model
        defaults = job.defaults
    if isinstance(cluster, str) and Path(cluster).is_file():
        file = file.model_copy(update={"cluster_file": cluster})
    if isinstance(model, str):
        file = file.model_copy(update={"model": model})
    return JointPlan(**{**vars(plan), "file": file, "defaults": defaults})


def plan_model(
    model: str | nn.Module | None,
    cluster: str | Cluster,
    inputs: object = None,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    batch: int | None = None,
    precision: str | None = None,
    optimizer: str | None = None,
    lora: str | None = None,
    memory_limit: float | None = None,
    headroom: str | float | None = AUTO,
    budget: float = 10.0,
    top: int = 1,
    given: str | PlanSpec | Plan | LaunchPlan | None = None,
    tries: int = 0,
    runnable: bool = False,
    accept_other_loss: bool = False,
    imbalance: float = 1.0,
    constraints: Given | None = None,
    goal: str = "time",
    rate: float | None = None,
    pareto: str | None = None,
    modes: str | PlanSpec | None = None,
    launcher: str | None = None,
    framework: str | None = None,
    environment: str | None = None,
    progress: Progress | None = None,
) -> list[JointPlan]:
    """Plan a model's training on a cluster: stages, meshes, ZeRO, recomputation, actions.

    Nothing is allocated and nothing runs: times are predicted from tables of measured GPUs, on CPUs
    by a roofline.

    Args:
        model: A name of the catalogue, `module:callable`, `hf:CONFIG`, a zoo name, or a module with
            `inputs`; None: a model of the sizes that the given launch file has.
        cluster: A preset's name, a YAML file, cpu:N, cuda:N, or a cluster.
        inputs: Example inputs of a module.
        loss: The loss of a module; None: its output is the loss.
        batch: Examples of a step over all devices; by default those of the given plan, of the
            catalogue's default, or of the example inputs.
        precision: Precision of parameters and passes, in Lightning's words; by default that of the
            given plan, of the catalogue's default, or "32-true".
        optimizer: The optimizer, one of `costs.optimizers`; by default that of the given plan, or
            "adamw". For a captured model "sgd", "adam" or "adamw".
        lora: Low-rank adapters that are trained instead of the parameters, as "r=16", or
            "r=16,bits=4" for weights in 4 bits. Only for models of the catalogue.
        memory_limit: Bytes that every device has, instead of its own.
        headroom: What stays free on every device: "auto" is what allocator, libraries and NCCL
            take, "10%" or "2GB" is so much, None is what the cluster's file reserves.
        budget: Seconds that the search may take.
        top: The number of plans that are answered at most.
        given: A plan to be priced instead of a search: in words, a plan or a launch file, read or
            by its path.
        tries: How many of the fastest plans are run for a few steps on the devices that are here.
            The one whose measured step is shortest comes first; 0 runs nothing.
        runnable: Whether only plans are searched that can be run, with as many replicas in every
            stage.
        accept_other_loss: Whether the batch may be cut although its loss is another one then.
        imbalance: Rows of the fullest of several devices with experts, as a multiple of the mean.
        constraints: Pins and forbids of layers, headroom, devices at most: ``Constraints``, a
            mapping or a YAML file.
        goal: "time", the fastest plan; "gpus", the fastest on as few devices as hold any; or
            "memory", that with the least bytes on its fullest device.
        rate: Tokens a second (examples, where these are no tokens) that the goals "gpus" and
            "memory" must reach.
        pareto: "memory" or "gpus": also answer plans that have less of it and take more time; None:
            none.
        modes: Words that every plan has, among `compile`, `tp_overlap`, `gradients` and
            `cuda_graphs`, as "compile=on,gradients=same".
        launcher: The only launcher that must be able to run the plan; None: the fastest plan of all
            launchers comes first, with the others' beside it.
        framework: The only framework that must train the plan; None: any.
        environment: An environment of that framework, such as "checked-collectives".
        progress: Called with a line for each thing that is done.

    Returns:
        Plans, the fastest first; one that says why not where nothing fits.

    Raises:
        InputError: If model, cluster or options are wrong.
        CaptureError: The message names the module that cannot be captured.
        MismatchError: If the given plan is of another model or cluster.
        InfeasibleError: If no plan obeys the constraints.
    """
    # The keyword arguments become records at once; what contradicts itself is refused before work.
    limits = as_constraints(constraints)
    options = SearchOptions(
        budget=budget,
        top=top,
        tries=tries,
        runnable=runnable or tries > 0,
        constraints=replace(limits, headroom=None),
        goal=goal,
        rate=rate,
        trades=pareto,
        modes=parse_spec(modes, "modes") if isinstance(modes, str) else modes,
        launcher=launcher,
        framework=framework,
        environment=environment,
    )
    if given is not None and (limits or rate is not None):
        raise InputError(
            "--given: a plan of one's own is priced as it is; leave constraints and rate out"
        )
    devices = plan_devices(cluster, memory_limit, limits.headroom or headroom)
    question = read_question(
        given,
        model,
        devices,
        inputs=inputs,
        loss=loss,
        batch=batch,
        precision=precision,
        optimizer=optimizer,
        lora=lora,
        accept_other_loss=accept_other_loss,
        imbalance=imbalance,
    )
    named = _find_planned_model(question, devices, options)
    chain = None
    if named is not None and not (options.runnable or limits or imbalance != 1.0):
        chain = find_named_chain(named, devices)
    if isinstance(question.given, Plan) and named is not None and chain is not None:
        if question.given.file.words is not None:
            plan = price_plan_in_words(named, devices, question.given)
            return [_joint(plan, cluster, question.job)]
        # A plan of a capture has the calls that it was made from.
        chain = chain if question.given.file.fingerprint == chain.fingerprint else None
    is_named = chain is not None
    plans = _plans_in_words(
        named if is_named else None, devices, question, options, progress
    )
    if plans:
        return [_joint(plan, cluster, question.job) for plan in plans]
    job = question.job if named is None else named.job
    if chain is None:
        chain = _captured(job, devices, question, progress)
    if options.launcher is not None:
        plans = _plan_for_script(chain, devices, question, options)
        return [_joint(plan, cluster, question.job) for plan in plans]
    if question.given is not None:
        priced = _price_given(chain, devices, question, is_named=is_named)
        return [_joint(priced, cluster, question.job)]
    best, *slower = _search(chain, devices, job, options, progress)
    # A placement of single ops may beat stages; it knows no constraints and no other memory.
    if memory_limit is None and not limits and goal == TIME and not is_named:
        from gnnplace.plans import find_op_placement

        op_placement = find_op_placement(
            best,
            chain,
            devices,
            job,
            named=cluster if isinstance(cluster, str) else cluster.name,
            headroom=None if headroom is None else str(headroom),
            budget=budget,
        )
        best = replace(best, op_placement=op_placement)
    if not is_named:
        best = _beside_launchers(best, chain, devices, options)
    return [_joint(plan, cluster, question.job) for plan in (best, *slower)]


def _find_planned_model(
    question: PlanQuestion, cluster: Cluster, options: SearchOptions
) -> NamedModel | None:
    """Return the model of the catalogue that is planned, or one's own by its sizes; else None.

    Raises:
        InputError: If a model of one's own has no known sizes, and what is asked for needs them.
    """
    named = find_named(question.job, cluster)
    # Words are priced by a framework, on GPUs that have tables.
    is_in_words = (
        options.is_of_words if question.given is None else question.is_file_in_words
    )
    has_tables = all(map(has_step_constants, cluster.kinds))
    if named is not None or not is_in_words or not has_tables:
        return named
    try:
        return sized_model(question.job, cluster)
    except InputError:
        if not _is_scripted(options):
            raise
        return None


def _captured(
    job: TrainingJob,
    cluster: Cluster,
    question: PlanQuestion,
    progress: Progress | None,
) -> Chain:
    """Capture a model; a given plan is checked first."""
    from gnnplace.plans import capture_chain, check_spec

    if isinstance(question.given, PlanSpec):
        check_spec(question.given, cluster, job.batch)
    if progress is not None:
        progress(CAPTURING)
    return capture_chain(job, cluster)


def _beside_launchers(
    plan: Plan, chain: Chain, cluster: Cluster, options: SearchOptions
) -> Plan:
    """Return a plan of a captured model with launchers' own plans beside it.

    They are searched on GPUs of one kind, where the fastest plan is asked for.

    Args:
        plan: The fastest plan of the search.
        chain: The captured model.
        cluster: The devices.
        options: The options of the search.
    """
    is_asked = options.goal == TIME and not (options.runnable or options.constraints)
    is_of_gpus = len(cluster.kinds) == 1 and find_kind(cluster.kinds[0]) != "cpu"
    if not (plan.feasible and is_asked and is_of_gpus):
        return plan
    entries = ScriptedSearch(chain, cluster).alternatives(plan)
    return replace(plan, file=plan.file.model_copy(update={"alternatives": entries}))


def _is_scripted(options: SearchOptions) -> bool:
    """Return whether a launcher is asked for whose training script makes the model."""
    words = (options.framework, options.environment, options.modes, options.trades)
    has_others = options.runnable or options.constraints or options.goal != TIME
    return options.launcher in SCRIPTS and words == (None,) * 4 and not has_others


def _plan_for_script(
    chain: Chain, cluster: Cluster, question: PlanQuestion, options: SearchOptions
) -> list[Plan]:
    """Search or price plans of a captured model for a launcher whose script makes the model.

    Args:
        chain: The captured model.
        cluster: The devices.
        question: The question, with a plan in words if one is given.
        options: The launcher, and the number of plans.

    Raises:
        InputError: If the given plan is a file, or does not fit the model or the cluster.
        InfeasibleError: If the launcher can be told no plan that fits, or not the given one.
    """
    launcher = options.launcher
    assert launcher is not None
    if question.given is None:
        return ScriptedSearch(chain, cluster).fastest(launcher, options.top)
    if not isinstance(question.given, PlanSpec):
        raise InputError(
            f"--launcher {launcher}: is for a plan that is searched or given in words; "
            "`gnnplace convert` takes a plan's file to a launcher"
        )
    priced = price_given_plan(chain, cluster, question.given)
    return [make_scripted_plan(priced, launcher)]


def _plans_in_words(
    named: NamedModel | None,
    devices: Cluster,
    question: PlanQuestion,
    options: SearchOptions,
    progress: Progress | None,
) -> list[Plan]:
    """Search the fastest plans that launchers can run, or price given words for a launcher.

    There are none if nothing fits any of them.

    Args:
        named: A model of the catalogue that is priced by its sizes; None: no plan is searched so.
        devices: The cluster.
        question: What is planned. A given plan is not searched.
        options: The options of the search.
        progress: Called with a line for each thing that is done.

    Raises:
        InputError: If a launcher is asked for, and no plan is searched so.
        InfeasibleError: If the launcher or framework that is asked for can train no plan that fits,
            or none reaches the rate.
    """
    spec = question.given
    precision = question.job.precision
    if named is not None and isinstance(spec, PlanSpec) and options.launcher:
        return [price_words(named, devices, spec, options, precision)]
    if named is None or question.given is not None:
        _check_only(
            launcher=None if _is_scripted(options) else options.launcher,
            framework=options.framework,
            environment=options.environment,
        )
        return []
    try:
        return launcher_plans(named, devices, options, question.job.precision, progress)
    except InfeasibleError:
        # Stages of unlike meshes may fit still, and their search says what is lacking.
        is_exact = options.goal == LEANEST or options.rate is not None
        is_exact |= options.modes is not None
        if options.launcher or options.framework or is_exact or options.trades:
            raise
        return []


def _check_only(**words: str | None) -> None:
    """Check that no launcher, framework or environment is asked for.

    Raises:
        InputError: If one is, since only models of the catalogue are searched for it.
    """
    for name, word in words.items():
        if word is not None:
            raise InputError(
                f"--{name} {word}: is searched for decoders of text that are known by their "
                "sizes, on GPUs with tables; of other models the fastest plans for "
                f"{' and '.join(SCRIPTS)} are searched, and --given prices words or a CSV file"
            )


def _price_given(
    chain: Chain, devices: Cluster, question: PlanQuestion, *, is_named: bool
) -> Plan:
    """Price the given plan.

    Args:
        chain: The model.
        devices: The cluster.
        question: The question, with the given plan.
        is_named: Whether the chain is of a model's sizes.
    """
    given = question.given
    assert given is not None
    if is_named and isinstance(given, PlanSpec):
        priced = price_named(chain, devices, given)
    else:
        priced = price_given_plan(chain, devices, given)
    return replace(priced, notices=(*priced.notices, *question.notes))


def compare_plans(
    model: str | nn.Module,
    cluster: str | Cluster,
    inputs: object = None,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    batch: int | None = None,
    precision: str = "32-true",
    optimizer: str = "adamw",
    memory_limit: float | None = None,
    headroom: str | float | None = AUTO,
    budget: float = 10.0,
    accept_other_loss: bool = False,
    progress: Progress | None = None,
) -> dict[str, Plan | None]:
    """Search a plan and the baselines that people use without one (`plans.search.search`).

    Args and errors are those of `plan_model`.

    Returns:
        The plan, as "plan", and every baseline by its name; None where nothing of it fits.
    """
    from gnnplace.plans import capture_chain

    devices = plan_devices(cluster, memory_limit, headroom)
    if progress is not None:
        progress(CAPTURING)
    job = TrainingJob(
        model,
        inputs,
        loss=loss,
        batch=batch,
        precision=precision,
        optimizer=optimizer,
        accept_other_loss=accept_other_loss,
    )
    chain = capture_chain(job, devices)
    return find_baselines(
        chain, devices, SearchOptions(budget=budget), progress=progress
    )


def study_hybrid(
    what: str,
    cluster: str | Cluster | None = None,
    *,
    options: HybridOptions | None = None,
    progress: Progress = lambda line: None,
) -> HybridStudy:
    """Split devices into groups in every way and predict with which training ends first.

    The batch of a group is the model's own; that of a step grows with the number of groups.

    Args:
        what: A model that is captured, or a problem file.
        cluster: The cluster, as `plan_model` takes it. A problem file has its own.
        options: What is trained, how epochs grow with the batch, devices at most, the budget.
        progress: Called with a line when something begins that takes seconds.

    Raises:
        FormatError: If a file cannot be read.
        InputError: If an argument is bad.
        CaptureError: If a module, which the message names, cannot be captured.
        InfeasibleError: If no split fits its devices' memory.
    """
    from gnnplace.plans import HybridOptions, study_groups

    options = options or HybridOptions()
    is_problem = is_problem_file(what)
    if cluster is not None:
        machine = resolve_cluster(cluster)
    elif is_problem:
        machine = read_problem(what).cluster
    else:
        raise InputError("--cluster: is needed to plan for; a problem file has its own")
    # Measured links replace the cluster's own, or those of the cluster that it is copies of.
    table = None
    if options.links is not None:
        copies = machine.copies
        measured = with_measurements(
            machine if copies is None else copies.cluster, options.links
        )
        table = measured.table
        for note in measured.notes:
            progress(note)
        machine = measured.cluster
        if copies is not None:
            machine = replace(copies, cluster=machine).joined(machine.name)
    if not is_problem:
        machine = plan_devices(machine, options.memory_limit, options.headroom)
    return study_groups(what, machine, options, table=table, progress=progress)


def make_study_plan(study: HybridStudy, cluster: str | Cluster = "") -> JointPlan:
    """Return the plan of the groups that a study recommends: the fastest that `execute` runs.

    Its groups are pipelines or split the layers, also where the study placed single ops.

    Args:
        study: The study.
        cluster: The cluster as the study was given it, whose file the plan names.

    Raises:
        InputError: If the study is of a problem file, or layers are fewer than a group's devices.
        InfeasibleError: If the study recommends nothing.
    """
    from gnnplace.plans import plan_groups

    if study.job is None or study.cluster is None:
        raise InputError(f"{study.what}: a problem file has ops and no layers to plan")
    if study.advice.best is None:
        raise InfeasibleError(f"{study.what}: the epochs of no split are known")
    plan = plan_groups(study.job, study.cluster, study.advice.best)
    return _joint(plan, cluster, study.job)


def read_given(
    given: str | PlanSpec | Plan | LaunchPlan,
) -> PlanSpec | Plan | LaunchPlan:
    """Parse words, or read the plan of a file."""
    if not isinstance(given, str):
        return given
    if "=" in given and not Path(given).is_file():
        return parse_spec(given)
    if Path(given).suffix in ("", ".json", ".csv") and not is_launch_file(given):
        return parsed_plan(given)
    return read_launch_file(given)


def _search(
    chain: Chain,
    cluster: Cluster,
    job: TrainingJob,
    options: SearchOptions,
    progress: Progress | None,
) -> list[Plan]:
    """Search the best plans that obey the options, the fastest first.

    Raises:
        InputError: If the question can only be answered for a model that is given by its name.
    """
    if options.goal == LEANEST or options.trades or options.modes is not None:
        raise InputError(
            "--goal memory, --pareto, --modes: are answered for decoders of text that are known by "
            "their sizes, on GPUs with tables"
        )
    if options.tries:
        check_trials(cluster, job.model)
    longer = replace(options, top=max(options.top, FURTHER * options.tries))
    constraints = options.constraints
    if options.goal == FEWEST:
        plans = find_fewest(chain, cluster, longer, progress=progress)
    elif constraints.patterns or constraints.max_devices is not None:
        plans = find_obeying(chain, cluster, longer, progress=progress)
    else:
        plans = find_plans(chain, cluster, longer, progress=progress)
    if options.tries and isinstance(job.model, str):
        plans = by_trial(plans, job.model, options.tries, progress)
    return plans[: options.top]


def plan_devices(
    cluster: str | Cluster, memory_limit: float | None, headroom: str | float | None
) -> Cluster:
    """Return a cluster with the memory that plans may use; arguments as of `plan_model`.

    Raises:
        InputError: If there is no such cluster, or no table has the times of its devices.
    """
    cluster = resolve_cluster(cluster)
    for kind in cluster.kinds:
        figures(kind)
    if memory_limit is not None:
        if not 0 < memory_limit <= MOST:
            raise InputError(
                f"memory limit {memory_limit:g}: must be a positive number of bytes"
            )
        cluster = cluster.each_device(memory=memory_limit)
    return cluster_with_headroom(cluster, headroom)


def check_trials(cluster: Cluster, model: str | nn.Module) -> None:
    """Check that plans can be tried on this machine.

    Raises:
        InputError: If the devices are not workers of this machine, or the model has no name.
    """
    elsewhere = [d.name for d in cluster.devices if not d.name.startswith("cpu:")]
    if elsewhere:
        raise InputError(
            f"--try: {elsewhere[0]!r} is no worker of this machine; plan for "
            f"cpu:{cluster.num_devices}, or leave --try out"
        )
    if not isinstance(model, str):
        raise InputError(
            "--try: workers make the model by its name; give module:callable"
        )


def by_trial(
    plans: Sequence[Plan],
    model: str,
    count: int,
    progress: Progress | None = None,
) -> list[Plan]:
    """Run the fastest plans and return all plans, the fastest by measured time first.

    Args:
        plans: The fastest first, by predicted times.
        model: The name of the model.
        count: The number of plans that are run.
        progress: Called with a line for each plan that is run.
    """
    if not plans[0].feasible:
        return list(plans)
    trials: list[TrialEntry] = []
    measured: list[tuple[float, Plan]] = []
    for plan in unlike(plans)[:count]:
        trial = _tried(plan, model, progress)
        trials.append(trial)
        if trial.measured is not None:
            measured.append((trial.measured, plan))
    measured.sort(key=lambda pair: pair[0])
    tried = [plan for _, plan in measured]
    untried = [plan for plan in plans if plan not in tried]
    first, *others = [*tried, *untried]
    return [replace(first, trials=tuple(trials)), *others]


def unlike(plans: Sequence[Plan]) -> list[Plan]:
    """Return the first of all plans that have the same stages, micro-batches and schedule."""
    distinct: dict[object, Plan] = {}
    for plan in plans:
        file = plan.file
        stages: list[object] = []
        for stage in file.stages:
            rows = tuple(map(tuple, stage.rows))
            stages.append((tuple(stage.members), rows))
        schedule = file.schedule.partition(":")[0]
        key = (file.microbatch_size, schedule, tuple(stages))
        distinct.setdefault(key, plan)
    return list(distinct.values())


def _tried(plan: Plan, model: str, progress: Progress | None) -> TrialEntry:
    if progress is not None:
        progress(f"trying {plan.shape}")
    from gnnplace.run.planned import run_plan

    try:
        run = run_plan(plan, model, train=0, steps=STEPS)
    except GnnplaceError as error:
        return TrialEntry(plan.shape, plan.step_time, None, f"cannot be run: {error}")
    assert run is not None
    if not run.passed:
        return TrialEntry(
            plan.shape, plan.step_time, None, "its gradients are not one device's"
        )
    return TrialEntry(plan.shape, plan.step_time, run.measured)
