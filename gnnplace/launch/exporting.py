"""`export_plan`: a plan as the file of a launcher, with the price of what it cannot carry.

A plan in words is written as it is for the launcher that it was priced for; for another one each
thing that this lacks is given up in turn, and the step priced again by the model's sizes. A plan of
a captured model is priced by `captured_losses`. The written text is read back: a field that comes
back as another is a line, too.

Complexity: a price for each thing that is given up.
"""

from __future__ import annotations

from dataclasses import replace

from gnnplace.costs import resolve_cluster
from gnnplace.errors import GnnplaceError
from gnnplace.launch.from_plan import make_launch_plan
from gnnplace.launch.layer_details import layer_details
from gnnplace.launch.registry import get_launcher
from gnnplace.launch.searching import with_priced_schedule
from gnnplace.launch.side_by_side import price_file
from gnnplace.launch.writing import (
    SERVER_GPUS,
    LaunchFile,
    Loss,
    nearest_plan,
    write_launch_plan,
)
from gnnplace.plans import MeshFabric, Plan, count_server_devices, price
from gnnplace.problem import Cluster


def export_plan(
    plan: Plan,
    launcher: str,
    *,
    model: str | None = None,
    cluster: str | Cluster | None = None,
) -> LaunchFile:
    """Return a plan as the file of a launcher.

    Args:
        plan: Searched, given or read. The launcher's own fastest plan counts where it stands among
            the alternatives.
        launcher: The name of the launcher.
        model: The model by its name, where the plan's file does not say enough to make it again.
        cluster: The cluster, where that is so.

    Raises:
        InputError: If there is no such launcher.
        InfeasibleError: If it cannot say the plan at all.
    """
    get_launcher(launcher)
    plan = plan.for_launcher(launcher)
    if plan.file.words is not None:
        return _export_words(plan, launcher, model, cluster)
    return _export_captured(plan, launcher, model, cluster)


def _export_words(
    plan: Plan, launcher: str, model: str | None, cluster: str | Cluster | None
) -> LaunchFile:
    """Return a plan in words as the file of a launcher; arguments as of `export_plan`."""
    target = get_launcher(launcher)
    file = plan.file
    priced = price_file(file, cluster, model)
    base, steps = nearest_plan(priced.plan, target)
    losses: list[Loss] = []
    seconds = plan.step_time
    peak = max(entry.all for entry in file.memory.values())
    for line, nearest in steps:
        answer = price(priced.setting, with_priced_schedule(nearest, priced.setting))
        if answer.step_time is None or answer.peak is None:
            losses.append(Loss(f"{line}; not priced: {answer.reason}"))
            continue
        losses.append(Loss(line, answer.step_time - seconds, answer.peak - peak))
        seconds = answer.step_time
        peak = answer.peak
    last = steps[-1][1] if steps else base
    last = replace(last, details=layer_details(model or file.model))
    text, unwritten = write_launch_plan(
        last,
        launcher,
        _lines(plan, launcher, losses, seconds),
        priced.setting.framework.network.per_server,
    )
    return LaunchFile(
        text=text,
        plan=last,
        losses=(*losses, *unwritten),
        seconds=seconds,
        command=target.command,
        beside=target.write_order(file),
    )


def _export_captured(
    plan: Plan, launcher: str, model: str | None, cluster: str | Cluster | None
) -> LaunchFile:
    """Return a captured model's plan as the file of a launcher; arguments as of `export_plan`."""
    target = get_launcher(launcher)
    file = plan.file
    sizes, lacks = None, ""
    # A plan that was searched for a launcher's script leaves the model's sizes to that script.
    if file.launcher != launcher:
        from gnnplace.launch.captured_losses import find_captured_sizes

        sizes, lacks = find_captured_sizes(model or file.model, file)
    base, given_up = make_launch_plan(plan, sizes)
    companion = target.write_order(file)
    if companion is not None:  # the file beside it has the searched order
        given_up = [
            line for line in given_up if not line.startswith("order of actions")
        ]
    base, steps = nearest_plan(base, target)
    last = steps[-1][1] if steps else base
    gpus = SERVER_GPUS
    seconds = None
    losses = [Loss(line) for line in given_up] + [Loss(line) for line, _ in steps]
    try:
        devices = resolve_cluster(cluster or file.cluster_file or file.cluster)
        gpus = count_server_devices(MeshFabric(devices))
        if file.launcher == launcher and not given_up:
            seconds = plan.step_time
        else:
            from gnnplace.launch.captured_losses import Prices

            prices = Prices.of(plan, model or file.model, devices)
            losses, seconds = prices.losses(
                plan, base, steps, ordered=companion is not None
            )
    except GnnplaceError as error:
        losses.append(Loss(f"nothing is priced again: {error}"))
    losses += [Loss(lacks)] if lacks and sizes is None else []
    lines = _lines(plan, launcher, losses, seconds)
    text, unwritten = write_launch_plan(last, launcher, lines, gpus)
    losses += unwritten
    return LaunchFile(text, last, tuple(losses), seconds, target.command, companion)


def _lines(
    plan: Plan, launcher: str, losses: list[Loss], seconds: float | None
) -> list[str]:
    file = plan.file
    fullest = max(entry.all for entry in file.memory.values()) / 1e9
    lines = [
        f"A plan of gnnplace for {launcher}: {file.model} on {file.cluster}.",
        f"Predicted: {plan.step_time:.4g} s a step, {fullest:.3g} GB on the fullest device.",
    ]
    if seconds is not None and abs(seconds - plan.step_time) > 1e-3 * plan.step_time:
        lines.append(f"As written here: {seconds:.4g} s a step.")
    return [*lines, *(f"Not carried: {loss.line}" for loss in losses)]
