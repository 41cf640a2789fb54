"""Writes a `LaunchPlan` as a launcher's file, for plans and for files of other launchers.

`write_launch_plan` changes the plan to one that the launcher can express (`nearest`, with a line
for each thing that is given up), writes it, and reads the text back; a word that is read back
differently is a line too. `convert_launch_file` does the same for a plan that was read from another
launcher's file. Settings of that file that no word of a plan expresses are lost, and listed.
Nothing is captured or priced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from gnnplace.costs import TRAITS
from gnnplace.errors import InputError
from gnnplace.launch.importing import complete_launch_plan
from gnnplace.launch.launch_plan import LaunchPlan
from gnnplace.launch.registry import Launcher, find_framework, get_launcher
from gnnplace.plans import DecoderSizes, find_decoder, format_layers

SERVER_GPUS = 8
SCRIPT_SAYS = "is the script's to say; the file holds it unread"
DATA_SAYS = (
    "is the data's to say: samples are packed, and attention knows where each begins"
)


@dataclass(frozen=True)
class Loss:
    """Something of a plan that a launch file does not carry.

    Attributes:
        summary: What is lost, and what is written instead, in one line.
        seconds: Seconds by which a step is longer without it; None where it was not priced.
        bytes: Bytes by which the fullest device holds more.
    """

    summary: str
    seconds: float | None = None
    bytes: float | None = None

    @property
    def line(self) -> str:
        """Return what is not carried and what that costs, in one line."""
        if self.seconds is None or self.bytes is None:
            return self.summary
        is_long = abs(self.seconds) >= 1
        step = f"{self.seconds:+.3g} s" if is_long else f"{1e3 * self.seconds:+.3g} ms"
        return f"{self.summary} ({step} a step, {self.bytes / 1e9:+.3g} GB)"


@dataclass(frozen=True)
class LaunchFile:
    """A plan as the file of a launcher.

    Attributes:
        text: Text of the file.
        plan: The plan that the file says.
        losses: What the file does not carry.
        seconds: Predicted seconds of a step of what is written; None where it was not priced.
        command: The command that starts a run by the file, with FILE for its name.
        beside: The order of actions as a file beside it, of its name with `.csv`, if it needs one.
    """

    text: str
    plan: LaunchPlan
    losses: tuple[Loss, ...]
    seconds: float | None
    command: str
    beside: str | None = None


def canonical(plan: LaunchPlan, framework: str) -> LaunchPlan:
    """Return the plan with a single spelling for values that have several.

    Equal layers are not listed, and a ZeRO group of all replicas is None. Where ZeRO has nothing
    to shard over, its stage is 0. Gradients without a type get the framework's default, and beside
    fp32 parameters they have the parameters' type.

    Args:
        plan: The plan.
        framework: The framework that the launcher starts.
    """
    half = (plan.precision or "").partition("-")[0]
    gradients = plan.gradients or TRAITS[framework].gradients
    if plan.gradients is None and half == "16":
        gradients = "same"  # frameworks sum in fp32 by default for bf16 alone
    layers = plan.layers
    stages = plan.pp * plan.chunks
    if layers is not None and len(set(layers)) == 1 and len(layers) == stages:
        layers = None
    is_grouped = plan.zero > 0 and plan.group not in (None, plan.dp)
    is_sharded = (plan.dp or 2) * plan.cp > 1 and (plan.group or 2) * plan.cp > 1
    cannot_capture = plan.pp > 1 or (
        plan.sizes is not None and plan.sizes.experts is not None
    )
    is_eager = cannot_capture or TRAITS[framework].cuda_graphs[0] == "off"
    return replace(
        plan,
        gradients="same" if half == "32" else gradients,
        layers=layers if stages > 1 else None,
        group=plan.group if is_grouped and is_sharded else None,
        zero=plan.zero if is_sharded else 0,
        cuda_graphs=None
        if plan.cuda_graphs == "off" and is_eager
        else plan.cuda_graphs,
        sp=plan.sp or plan.tp == 1,
        etp=None if plan.etp == plan.tp else plan.etp,
        recompute="full" if plan.recompute == "uniform:1" else plan.recompute,
    )


def nearest_plan(
    plan: LaunchPlan, target: Launcher
) -> tuple[LaunchPlan, list[tuple[str, LaunchPlan]]]:
    """Return the plan as a launcher can express it, and each thing that is given up on the way.

    Args:
        plan: The plan.
        target: The launcher.

    Returns:
        The plan in one spelling, and a list of a line for each thing with the plan without it.
    """
    plan = replace(canonical(plan, target.framework), layers=plan.layers)
    nearest, steps = plan, []
    if plan.spec.recomputes_by_rank:
        nearest = replace(plan, recompute=f"block:{max(plan.spec.recompute_counts)}")
        line = f"recompute={plan.recompute}: launchers have one number for all ranks"
        steps.append((f"{line}; {nearest.recompute} is written", nearest))
    if plan.spec.recomputed_modules and not TRAITS[target.framework].recomputes_modules:
        nearest = replace(plan, recompute="selective")
        line = f"recompute={plan.recompute}: {target.framework} recomputes no single modules"
        steps.append((f"{line}; {nearest.recompute} is written", nearest))
    return plan, [*steps, *target.nearest(nearest)]


def write_launch_plan(
    plan: LaunchPlan, launcher: str, lines: Sequence[str], gpus: int = SERVER_GPUS
) -> tuple[str, list[Loss]]:
    """Return the launcher's file of a plan, and what the launcher's own reader misses in it.

    Args:
        plan: The plan as `nearest_plan` leaves it.
        launcher: The launcher's name.
        lines: Lines for the head of the file.
        gpus: GPUs of a server.

    Raises:
        InfeasibleError: If the launcher cannot say the plan.
    """
    target = get_launcher(launcher)
    usual = LaunchPlan()
    script_words = [
        x for x in target.script_fields if getattr(plan, x) != getattr(usual, x)
    ]
    losses = [Loss(f"{', '.join(script_words)}: {SCRIPT_SAYS}")] if script_words else []
    if plan.adapters is not None:
        losses.append(Loss(plan.adapters.script_line))
    if plan.sizes is not None and plan.sizes.sample_length is not None:
        losses.append(Loss(f"sample_length={plan.sizes.sample_length}: {DATA_SAYS}"))
    if plan.details is not None and target.scalings is not None:
        unsaid = plan.details.unsaid(
            scalings=target.scalings, own_types=target.own_types
        )
        losses += [Loss(line) for line in unsaid]
    head = [*lines, *(f"Not carried: {loss.line}" for loss in losses)]
    text = target.write(plan, head, gpus)
    return text, losses + [Loss(line) for line in unlike(plan, target, text)]


def write_nearest(
    plan: LaunchPlan, launcher: str, lines: Sequence[str], gpus: int = SERVER_GPUS
) -> str:
    """Return the launcher's file of a plan that was searched for it.

    Args:
        plan: What it can say is written.
        launcher: The launcher's name.
        lines: Lines for the head of the file.
        gpus: GPUs of a server.

    Raises:
        InfeasibleError: If the launcher cannot say the plan.
    """
    base, steps = nearest_plan(plan, get_launcher(launcher))
    return write_launch_plan(steps[-1][1] if steps else base, launcher, lines, gpus)[0]


OF_DETAILS = ("vectors", "end_vectors", "expert_vectors")
"""Sizes of biases and norms."""


def unlike(plan: LaunchPlan, launcher: Launcher, text: str) -> Iterator[str]:
    """Yield a line for each word of a plan that the launcher's own reader reads otherwise.

    Sizes of the model are compared only if the file has any.

    Args:
        plan: The plan that was written.
        launcher: The launcher.
        text: The text of its file.
    """
    back = launcher.read(text, "what was written")
    if back.dp is None and plan.dp is not None:  # the launch command says the processes
        back = back.with_dp(plan.world or 1, "what was written")
    plan = canonical(plan, launcher.framework)
    back = canonical(back, launcher.framework)
    for entry in fields(LaunchPlan):
        value, read_value = getattr(plan, entry.name), getattr(back, entry.name)
        if (
            not entry.compare
            or entry.name == "notes"
            or value == read_value
            or value is None
        ):
            continue
        if entry.name == "lora":  # the script makes them, which has its own line
            continue
        if entry.name == "sizes":
            if read_value is not None:
                has_details = plan.details is not None
                yield from _unlike_sizes(value, read_value, has_details=has_details)
            continue
        if entry.name == "accumulation" and plan.batch == back.batch:
            continue
        if entry.name == "layers":
            value = format_layers(value)
        yield f"{entry.name} {value}: is read as {read_value}"


def _unlike_sizes(
    sizes: DecoderSizes, read_sizes: DecoderSizes, *, has_details: bool
) -> Iterator[str]:
    """Yield a line for each size of a model that is read otherwise than it was written.

    Args:
        sizes: The sizes that were written, of whatever batch and samples.
        read_sizes: The sizes that were read.
        has_details: Whether biases and norms are in details, which files say in other keys.
    """
    written, read = (
        replace(one, positions=one.learned, batch=1, sample_length=None)
        for one in (sizes, read_sizes)
    )
    for size in fields(DecoderSizes):
        value, read_value = getattr(written, size.name), getattr(read, size.name)
        if not size.compare or value == read_value:
            continue
        if has_details and size.name in OF_DETAILS and read_value == size.default:
            continue
        yield f"{size.name} {value} of the model: is read as {read_value}"


def convert_launch_file(
    plan: LaunchPlan,
    launcher: str,
    *,
    source_launcher: str,
    gpus: int | None = None,
    batch: int | None = None,
    model: str | None = None,
) -> LaunchFile:
    """Return a launcher's file of what another launcher's file says.

    Args:
        plan: The plan as it was read.
        launcher: The launcher to write for.
        source_launcher: The launcher that the file was read as.
        gpus: Devices of the run, where the file does not say them.
        batch: Examples of a step, where the file does not say them.
        model: The model by its name, where the file has no sizes.

    Raises:
        InputError: If the file leaves open what the other one needs, or there is no such launcher.
        InfeasibleError: If the launcher cannot say the plan at all.
    """
    target = get_launcher(launcher)
    if plan.dp is None and gpus is None:
        raise InputError(
            f"{plan.source}: does not say the number of devices; give --gpus N"
        )
    plan = complete_launch_plan(plan, gpus or plan.world or 1, batch)
    if plan.microbatch_size is None or plan.batch is None:
        raise InputError(
            f"{plan.source}: does not say the micro-batch; give --microbatch-size and --batch"
        )
    if plan.precision is None:
        raise InputError(f"{plan.source}: does not say the precision; give --precision")
    # What the first file leaves to its framework is that framework's, whatever the second assumes.
    framework = find_framework(source_launcher, plan)
    plan = canonical(plan, framework)
    if plan.cuda_graphs is None and TRAITS[framework].cuda_graphs[0] == "off":
        plan = replace(plan, cuda_graphs="off")
    if plan.sizes is None and model is not None:
        plan = replace(plan, sizes=_find_model_sizes(model))
    losses = [Loss(remark) for remark in plan.remarks]
    plan = replace(plan, notes=())
    plan, steps = nearest_plan(plan, target)
    losses += [Loss(line) for line, _ in steps]
    last = steps[-1][1] if steps else plan
    lines = [
        f"A plan of gnnplace for {launcher}, from a file of {source_launcher}.",
        *(f"Not carried: {loss.line}" for loss in losses),
    ]
    text, unwritten = write_launch_plan(
        last, launcher, lines, min(SERVER_GPUS, last.world or 1)
    )
    losses += unwritten
    return LaunchFile(
        text=text,
        plan=last,
        losses=tuple(losses),
        seconds=None,
        command=target.command,
    )


def _find_model_sizes(model: str) -> DecoderSizes:
    """Return the sizes of a decoder by its name.

    Raises:
        InputError: If it is no decoder whose sizes are known.
    """
    sizes = find_decoder(model)
    if sizes is None:
        raise InputError(
            f"--model {model}: is no decoder of text whose sizes are known"
        )
    return replace(sizes, batch=1)
