"""`gnnplace.plan`: searches a plan for a model on a cluster, or prices a given plan.

With `tries`, the plans that are predicted to be fastest run for a few steps on this machine, and
the one with the shortest measured step is the answer. Many plans differ only in their ZeRO stage or
in their order of actions. So of all plans with the same stages, micro-batches and schedule only the
one that is predicted to be fastest is run.
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
    complete_launch_plan,
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
    make_sized_model,
    parse_spec,
    price_given_plan,
    price_named,
)
from gnnplace.plans import read_plan as parsed_plan
from gnnplace.problem import (
    Cluster,
    Given,
    SearchGoal,
    as_constraints,
    cluster_with_headroom,
    find_kind,
    get_figures,
    read_problem,
)

if TYPE_CHECKING:
    import torch
    from torch import nn

    from gnnplace.plans import HybridOptions, HybridStudy
    from gnnplace.run.planned import PlanRunner

# Torch is imported only where a model is captured or run: planning by sizes does not need it.
AUTO = "auto"
"""Headroom that allocator, libraries and NCCL take."""
FURTHER = 20
"""Plans that the search returns for each one that is run; many of them are too similar to run."""
STEPS = 5
"""Steps that a plan is run for when it is tried."""


@dataclass(frozen=True, eq=False)
class PlanQuestion:
    """A question for the planner: what is trained, and which plan, if any, is to be priced.

    Attributes:
        job: The model and how it is trained.
        plan: The plan to be priced; None: the best plan is searched.
        notes: One line for each thing in a launch file that the price does not count.
    """

    job: TrainingJob
    plan: PlanSpec | Plan | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_file_in_words(self) -> bool:
        """Return whether the plan was read from a plan's file that has it in words, too."""
        return isinstance(self.plan, Plan) and self.plan.file.words is not None


def read_question(
    given: str | PlanSpec | Plan | LaunchPlan | None,
    model: str | nn.Module | None,
    cluster: Cluster,
    **fields: Any,
) -> PlanQuestion:
    """Return the question that the caller's arguments and a given plan make together.

    A plan's file, a launch file and words may say batch, precision and optimizer, too.

    Args:
        given: The plan as `plan_model` takes it.
        model: The model as `plan_model` takes it.
        cluster: The devices.
        **fields: Other fields of `TrainingJob`; None for what the caller leaves out.

    Raises:
        InputError: If neither names a model, or the arguments contradict the plan's words.
        MismatchError: If the arguments contradict the plan's file.
    """
    plan = None if given is None else read_given(given)
    notes: tuple[str, ...] = ()
    stated: dict[str, Any] = {}  # fields of the job that the plan decides
    if isinstance(plan, Plan):
        file = plan.file
        options = {
            name: fields.get(name)
            for name in ("batch", "precision", "optimizer", "lora")
        }
        check_words(file, cluster=cluster.name, **options)
        stated = {name: getattr(file, name) for name in options}
    elif isinstance(plan, LaunchPlan):
        launched = complete_launch_plan(plan, cluster.num_devices, fields.get("batch"))
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
                f"--given: batch={plan.batch}: --batch says {fields['batch']}; leave one out"
            )
    if model is None:
        raise InputError(
            "MODEL: is missing; it may be left out only with a launch file that has its sizes"
        )
    job = TrainingJob(model, **{**fields, **stated})
    return PlanQuestion(job=job, plan=plan, notes=notes)


@dataclass(frozen=True, eq=False)
class JointPlan(Plan):
    """A training plan that `apply` can run."""

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

        There must be one process for each device of the plan; ranks are in the order in which the
        stages list their devices. All processes get the parameters and buffers of the first one.
        Parameters and buffers that this process's stages do not read move to the device "meta".

        Args:
            model: The model that was planned, in training mode, with parameters of the type that
                the plan's precision says.
            inputs: Example inputs with any number of examples: a tensor, a tuple or a mapping, with
                the inputs of the loss at the end; None: inputs are made of the shapes in the plan's
                file.
            loss: The loss that the plan was made with. It is called with the model's output and the
                last inputs; None: the output is the loss.
            device: The device that this process computes on; by default the model's.
            seed: Seed of dropout, the same on all processes.
            reduction: "mean" if a step's loss is the mean of its micro-batches' losses, "sum" if it
                is their sum; None: what the planner proved, which the plan's file has.

        Returns:
            The runner of steps: `runner.step(batch)` returns the loss and leaves gradients in
            `runner.parameters()`.

        Raises:
            FormatError: If the plan's actions cannot run; the message names the first wrong one.
            MismatchError: If the plan is of another model, or has meshes that cannot be run.
            InputError: If the number of processes is not that of the plan's devices.
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
        FormatError: If the file is wrong; the message names it, the key path and the reason, or the
            action that cannot run.
    """
    return _make_joint_plan(parsed_plan(path))


def _make_joint_plan(
    plan: Plan, cluster: str | Cluster = "", job: TrainingJob | None = None
) -> JointPlan:
    """Return a plan whose file names the model and the cluster as the user did.

    Args:
        plan: The plan.
        cluster: The cluster as the user gave it; the path of a file is noted in the plan.
        job: The job as the user gave it; None: the plan keeps the name that it has.
    """
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

    Unless `tries` is given, no memory is allocated for the model and none of it runs. Times are
    predicted from tables of measured GPUs, and on CPUs by a roofline.

    Args:
        model: A name of the catalogue, `module:callable`, `hf:CONFIG`, a zoo name, or a module with
            `inputs`; None: a model of the sizes in the given launch file.
        cluster: A preset's name, a YAML file, cpu:N, cuda:N, or a cluster.
        inputs: Example inputs of a module.
        loss: The loss of a module; None: its output is the loss.
        batch: Examples of a step over all devices; by default those of the given plan, of the
            catalogue's default, or of the example inputs.
        precision: Precision of parameters and passes, in Lightning's words; by default that of the
            given plan, of the catalogue's default, or "32-true".
        optimizer: The optimizer, one of `costs.optimizers`; by default that of the given plan, or
            "adamw". For a captured model "sgd", "adam" or "adamw".
        lora: Low-rank adapters to train instead of the parameters, as "r=16", or "r=16,bits=4" for
            weights in 4 bits. Only for models of the catalogue.
        memory_limit: Bytes that every device has, instead of its own.
        headroom: Memory that stays free on every device: "auto" for what allocator, libraries and
            NCCL take, "10%" or "2GB" for that much, None for what the cluster's file reserves.
        budget: Seconds that the search may take.
        top: The number of plans to return at most.
        given: A plan to price instead of a search: words, a plan, a launch file, or the path of a
            file with one of these.
        tries: How many of the fastest plans to run for a few steps on this machine. The one whose
            measured step is shortest comes first; 0 runs nothing.
        runnable: Whether to search only plans that gnnplace itself can run, with the same number of
            replicas in every stage.
        accept_other_loss: Whether the batch may be cut into micro-batches although that changes the
            loss.
        imbalance: With experts on several devices: rows of the fullest device over the mean.
        constraints: Pins and forbids of layers, headroom, number of devices at most:
            ``Constraints``, a mapping or a YAML file.
        goal: "time": the fastest plan; "gpus": the fastest on the fewest devices that any plan fits
            on; "memory": the plan with the fewest bytes on its fullest device.
        rate: Tokens a second that a plan must make for the goals "gpus" and "memory"; examples a
            second if examples are not rows of tokens.
        pareto: "memory" or "gpus": also return slower plans that need less of it; None: do not.
        modes: Words that every plan must have, among `compile`, `tp_overlap`, `gradients` and
            `cuda_graphs`, as "compile=on,gradients=same".
        launcher: The launcher that must be able to run the plan; None: the fastest plan of all
            launchers comes first, and names those of the others as alternatives.
        framework: The framework that must train the plan; None: any.
        environment: An environment of that framework, such as "checked-collectives".
        progress: Called with a line when a step of the work begins.

    Returns:
        Plans, the fastest first. If nothing fits: one plan that is not feasible, with the reason.

    Raises:
        InputError: If model, cluster or options are wrong.
        CaptureError: If a module, which the message names, cannot be captured.
        MismatchError: If the given plan is of another model or cluster.
        InfeasibleError: If no plan obeys the constraints.
    """
    # Arguments become records first, so that contradictions are refused before any work.
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
            "--given: a given plan is priced as it is; leave constraints and rate out"
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
    # A model that is known by its sizes is priced without a capture, if the options allow it.
    named = _find_planned_model(question, devices, options)
    chain = None
    if named is not None and not (options.runnable or limits or imbalance != 1.0):
        chain = find_named_chain(named, devices)
    if isinstance(question.plan, Plan) and named is not None and chain is not None:
        if question.plan.file.words is not None:
            plan = price_plan_in_words(named, devices, question.plan)
            return [_make_joint_plan(plan, cluster, question.job)]
        # A file without words was made either from these sizes or from a capture.
        chain = chain if question.plan.file.fingerprint == chain.fingerprint else None
    is_named = chain is not None
    plans = _plans_in_words(
        named if is_named else None, devices, question, options, progress
    )
    if plans:
        return [_make_joint_plan(plan, cluster, question.job) for plan in plans]
    job = question.job if named is None else named.job
    if chain is None:
        chain = _capture_model(job, devices, question, progress)
    if options.launcher is not None:
        plans = _plan_for_script(chain, devices, question, options)
        return [_make_joint_plan(plan, cluster, question.job) for plan in plans]
    if question.plan is not None:
        priced = _price_given(chain, devices, question, is_named=is_named)
        return [_make_joint_plan(priced, cluster, question.job)]
    best, *slower = _search(chain, devices, job, options, progress)
    # A placement of single ops may be faster than stages, but its placers take neither constraints
    # nor a memory limit.
    if memory_limit is None and not limits and goal == SearchGoal.TIME and not is_named:
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
        best = _add_launchers(best, chain, devices, options)
    return [_make_joint_plan(plan, cluster, question.job) for plan in (best, *slower)]


def _find_planned_model(
    question: PlanQuestion, cluster: Cluster, options: SearchOptions
) -> NamedModel | None:
    """Return the model by its sizes, or None if it is to be captured.

    It is a model of the catalogue, or the user's own if it is recognised as a decoder.

    Raises:
        InputError: If the user's own model has no known sizes, and the options need them.
    """
    named = find_named(question.job, cluster)
    # The user's own model is recognised only for plans in words, which a framework's constants
    # price on GPUs that have tables.
    is_in_words = (
        options.is_of_words if question.plan is None else question.is_file_in_words
    )
    has_tables = all(map(has_step_constants, cluster.kinds))
    if named is not None or not is_in_words or not has_tables:
        return named
    try:
        return make_sized_model(question.job, cluster)
    except InputError:
        if not _is_scripted(options):
            raise
        return None


def _capture_model(
    job: TrainingJob,
    cluster: Cluster,
    question: PlanQuestion,
    progress: Progress | None,
) -> Chain:
    """Capture a model. A plan in words is checked before, since a capture takes long.

    Args:
        job: The model and how it is trained.
        cluster: The devices.
        question: The question, with the given plan if there is one.
        progress: Called with a line before the capture.

    Raises:
        InputError: If the plan cannot be on the cluster.
        CaptureError: If the model cannot be captured.
    """
    from gnnplace.plans import capture_chain, check_spec

    if isinstance(question.plan, PlanSpec):
        check_spec(question.plan, cluster, job.batch)
    if progress is not None:
        progress(CAPTURING)
    return capture_chain(job, cluster)


def _add_launchers(
    plan: Plan, chain: Chain, cluster: Cluster, options: SearchOptions
) -> Plan:
    """Return a captured model's plan with the launchers' fastest plans as its alternatives.

    They are searched only on GPUs of one kind, and only for the goal "time" without constraints.
    Otherwise the plan is returned as it is.

    Args:
        plan: The fastest plan of the search.
        chain: The captured model.
        cluster: The devices.
        options: The options of the search.
    """
    is_asked = options.goal == SearchGoal.TIME and not (
        options.runnable or options.constraints
    )
    is_of_gpus = len(cluster.kinds) == 1 and find_kind(cluster.kinds[0]) != "cpu"
    if not (plan.feasible and is_asked and is_of_gpus):
        return plan
    entries = ScriptedSearch(chain, cluster).alternatives(plan)
    return replace(plan, file=plan.file.model_copy(update={"alternatives": entries}))


def _is_scripted(options: SearchOptions) -> bool:
    """Return whether the search is for a launcher of `SCRIPTS`, without further options.

    The training script of such a launcher makes the model, which therefore may be any.
    """
    needs_sizes = (
        options.framework,
        options.environment,
        options.modes,
        options.trades,
    )
    limits_plans = (
        options.runnable or options.constraints or options.goal != SearchGoal.TIME
    )
    is_only_launcher = needs_sizes == (None,) * 4 and not limits_plans
    return options.launcher in SCRIPTS and is_only_launcher


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
        InfeasibleError: If the launcher can run no plan that fits, or cannot run the given one.
    """
    launcher = options.launcher
    assert launcher is not None
    if question.plan is None:
        return ScriptedSearch(chain, cluster).fastest(launcher, options.top)
    if not isinstance(question.plan, PlanSpec):
        raise InputError(
            f"--launcher {launcher}: works with a search or with a plan in words; convert a plan's "
            "file to a launcher's by `gnnplace convert`"
        )
    priced = price_given_plan(chain, cluster, question.plan)
    return [make_scripted_plan(priced, launcher)]


def _plans_in_words(
    named: NamedModel | None,
    devices: Cluster,
    question: PlanQuestion,
    options: SearchOptions,
    progress: Progress | None,
) -> list[Plan]:
    """Search the fastest plans that launchers can run, or price given words for one launcher.

    Args:
        named: The model, if it is priced by its sizes; None: there are no such plans.
        devices: The cluster.
        question: The question. Without a launcher, a given plan is left to the caller.
        options: The options of the search.
        progress: Called with a line when a step of the work begins.

    Returns:
        The plans, the fastest first. Empty if the caller must search or price otherwise.

    Raises:
        InputError: If options name a launcher or framework, and it has no plans for this model.
        InfeasibleError: If the launcher or framework in the options can train no plan that fits, or
            no plan reaches the rate.
    """
    spec = question.plan
    precision = question.job.precision
    if named is not None and isinstance(spec, PlanSpec) and options.launcher:
        return [price_words(named, devices, spec, options, precision)]
    if named is None or question.plan is not None:
        _refuse_names(
            launcher=None if _is_scripted(options) else options.launcher,
            framework=options.framework,
            environment=options.environment,
        )
        return []
    try:
        return launcher_plans(named, devices, options, question.job.precision, progress)
    except InfeasibleError:
        # The caller's search also tries stages with different meshes, which may fit. Some options
        # are only understood here.
        has_goal = options.goal == SearchGoal.MEMORY or options.rate is not None
        needs_words = has_goal or options.modes is not None
        if options.launcher or options.framework or needs_words or options.trades:
            raise
        return []


def _refuse_names(**names: str | None) -> None:
    """Check that no launcher, framework or environment is named.

    Args:
        **names: The name that each option has; None: it is left out.

    Raises:
        InputError: If one is, since plans are searched for it only by the sizes of a model.
    """
    for option, name in names.items():
        if name is not None:
            raise InputError(
                f"--{option} {name}: is searched for decoders of text that are known by their "
                "sizes, on GPUs with tables; of other models the fastest plans for "
                f"{' and '.join(SCRIPTS)} are searched, and --given prices words or a CSV file"
            )


def _price_given(
    chain: Chain, devices: Cluster, question: PlanQuestion, *, is_named: bool
) -> Plan:
    """Price the given plan, with the question's notes among its notices.

    Args:
        chain: The model.
        devices: The cluster.
        question: The question, with the given plan.
        is_named: Whether the chain was made from a model's sizes.
    """
    plan = question.plan
    assert plan is not None
    if is_named and isinstance(plan, PlanSpec):
        priced = price_named(chain, devices, plan)
    else:
        priced = price_given_plan(chain, devices, plan)
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
    """Search a plan, and the best of each baseline that people use without a planner.

    `plans.search.search` has the baselines. Arguments and errors are those of `plan_model`.

    Returns:
        The plan as "plan", and every baseline by its name; None for a baseline that does not fit.
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
    """Split devices into equal groups in every way, and predict which split ends training first.

    A group trains on the model's own batch, so the batch of a step grows with the number of groups.

    Args:
        what: A model to capture, or a problem file.
        cluster: The cluster, as `plan_model` takes it. May be left out with a problem file, which
            has its own.
        options: How the model is trained, how the number of epochs grows with the batch, the number
            of devices at most, the budget.
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
        raise InputError("--cluster: is missing; only a problem file has its own")
    # Measured links replace those of the cluster. If it is made of copies of a smaller cluster,
    # they replace the links of that one, and the copies are made anew.
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
    """Return the fastest plan that `execute` can run with the groups that a study recommends.

    Its groups are pipelines, or split the layers; they never place single ops, even if the study
    did.

    Args:
        study: The study.
        cluster: The cluster as the study was given it; the plan names its file.

    Raises:
        InputError: If the study is of a problem file, or a group has more devices than layers.
        InfeasibleError: If the study recommends no split.
    """
    from gnnplace.plans import plan_groups

    if study.job is None or study.cluster is None:
        raise InputError(f"{study.what}: a problem file has ops and no layers to plan")
    if study.advice.best is None:
        raise InfeasibleError(
            f"{study.what}: for no split it is known how many epochs training needs; give a table "
            "of epochs with smaller batches"
        )
    plan = plan_groups(study.job, study.cluster, study.advice.best)
    return _make_joint_plan(plan, cluster, study.job)


def read_given(
    given: str | PlanSpec | Plan | LaunchPlan,
) -> PlanSpec | Plan | LaunchPlan:
    """Parse a plan in words, or read a plan's file or a launch file. Return other things as is."""
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
        InputError: If an option is only for models of known sizes, or a trial needs the model by
            its name.
    """
    if options.goal == SearchGoal.MEMORY or options.trades or options.modes is not None:
        raise InputError(
            "--goal memory, --pareto, --modes: are answered for decoders of text that are known by "
            "their sizes, on GPUs with tables"
        )
    if options.tries:
        check_trials(cluster, job.model)
    top = max(options.top, FURTHER * options.tries)
    search_options = replace(options, top=top)
    constraints = options.constraints
    if options.goal == SearchGoal.GPUS:
        plans = find_fewest(chain, cluster, search_options, progress=progress)
    elif constraints.patterns or constraints.max_devices is not None:
        plans = find_obeying(chain, cluster, search_options, progress=progress)
    else:
        plans = find_plans(chain, cluster, search_options, progress=progress)
    if options.tries and isinstance(job.model, str):
        plans = run_trials(plans, job.model, options.tries, progress)
    return plans[: options.top]


def plan_devices(
    cluster: str | Cluster, memory_limit: float | None, headroom: str | float | None
) -> Cluster:
    """Return a cluster with the memory that plans may use. Arguments are those of `plan_model`.

    Raises:
        InputError: If there is no such cluster, or no table has the times of its devices.
    """
    cluster = resolve_cluster(cluster)
    for kind in cluster.kinds:
        get_figures(kind)  # raises if no table has this kind of device
    if memory_limit is not None:
        if not 0 < memory_limit <= MOST:
            raise InputError(
                f"memory limit {memory_limit:g}: must be a positive number of bytes"
            )
        cluster = cluster.each_device(memory=memory_limit)
    return cluster_with_headroom(cluster, headroom)


def check_trials(cluster: Cluster, model: str | nn.Module) -> None:
    """Check that plans can be run on this machine for a trial.

    Raises:
        InputError: If the devices are not workers of this machine, or the model is a module.
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


def run_trials(
    plans: Sequence[Plan],
    model: str,
    count: int,
    progress: Progress | None = None,
) -> list[Plan]:
    """Run the fastest plans, and return all plans in their new order.

    Plans that ran come first, by measured time, then the others as they were. The first plan has
    all trials.

    Args:
        plans: Plans by predicted time, the fastest first.
        model: The name of the model.
        count: The number of plans to run at most.
        progress: Called with a line for each plan that is run.
    """
    if not plans[0].feasible:
        return list(plans)
    trials: list[TrialEntry] = []
    measured: list[tuple[float, Plan]] = []
    for plan in unlike(plans)[:count]:
        trial = _run_trial(plan, model, progress)
        trials.append(trial)
        if trial.measured is not None:
            measured.append((trial.measured, plan))
    measured.sort(key=lambda pair: pair[0])
    measured_plans = [plan for _, plan in measured]
    unmeasured_plans = [plan for plan in plans if plan not in measured_plans]
    first, *slower = [*measured_plans, *unmeasured_plans]
    return [replace(first, trials=tuple(trials)), *slower]


def unlike(plans: Sequence[Plan]) -> list[Plan]:
    """Return one of all plans with the same stages, micro-batches and schedule: the first."""
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


def _run_trial(plan: Plan, model: str, progress: Progress | None) -> TrialEntry:
    """Run a plan for `STEPS` steps, and compare its gradients with those of one device."""
    if progress is not None:
        progress(f"trying {plan.shape}")
    from gnnplace.run.planned import run_plan

    try:
        run = run_plan(plan, model, train=0, steps=STEPS)
    except GnnplaceError as error:
        return TrialEntry(
            shape=plan.shape,
            predicted=plan.step_time,
            measured=None,
            fault=f"cannot be run: {error}",
        )
    assert run is not None
    if not run.passed:
        return TrialEntry(
            shape=plan.shape,
            predicted=plan.step_time,
            measured=None,
            fault="its gradients are not one device's",
        )
    return TrialEntry(shape=plan.shape, predicted=plan.step_time, measured=run.measured)
