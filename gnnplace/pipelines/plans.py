"""`gnnplace.plan`: how a model is trained on a cluster; and what a plan of one's own would take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gnnplace.cluster import Cluster
from gnnplace.cluster.headroom import with_headroom
from gnnplace.costs.gpus import figures, known_kind
from gnnplace.costs.memory import with_slack
from gnnplace.errors import InputError
from gnnplace.pipelines.chains import chain_of
from gnnplace.planning.answers import find_baselines, find_plans, given_plan
from gnnplace.planning.plan import Plan, read_plan
from gnnplace.profiling.targets import resolve_cluster

AUTO = "auto"


def plan_model(
    model: str | nn.Module,
    cluster: str | Cluster,
    inputs: Any = None,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    batch: int | None = None,
    precision: str = "32-true",
    optimizer: str = "adamw",
    memory_limit: float | None = None,
    headroom: str | float | None = AUTO,
    budget: float = 10.0,
    top: int = 1,
    given: str | Plan | None = None,
    accept_other_loss: bool = False,
    progress: Callable[[str], None] | None = None,
) -> list[Plan]:
    """Plans a model's training on a cluster: stages, meshes, ZeRO, recomputation, actions.

    Nothing is allocated and nothing runs: times are predicted from tables of measured GPUs.

    Args:
        model: `module:callable`, `hf:CONFIG`, a zoo name, or a module with `inputs`.
        cluster: of GPUs: a preset's name, a YAML file, or a cluster.
        inputs: example inputs of a module.
        loss: of a module.
        batch: examples of a step over all devices; by default those of the example inputs.
        precision: in Lightning's words.
        optimizer: "sgd", "adam" or "adamw".
        memory_limit: bytes that every device has, instead of its own.
        headroom: what stays free on every device: "auto" is what allocator, libraries and NCCL
            take, "10%" or "2GB" is so much, None is what the cluster's file reserves.
        budget: seconds of search.
        top: plans at most.
        given: a plan of one's own, in words or read from a file: its times instead of a search.
        accept_other_loss: cut the batch also where its loss is another one then.
        progress: is told what is done.

    Returns:
        Plans, the fastest first; one that says why not where nothing fits.

    Raises:
        InputError: what is wrong with model, cluster or options.
        CaptureError: naming the module that cannot be captured.
        MismatchError: the given plan is of another model or cluster.
    """
    if top < 1:
        raise InputError(f"top {top}: must be at least 1")
    devices = _devices(resolve_cluster(cluster), memory_limit, headroom)
    if progress is not None:
        progress("planning: capturing the model")
    chain = chain_of(
        model,
        devices,
        inputs,
        loss=loss,
        batch=batch,
        precision=precision,
        optimizer=optimizer,
        accept_other_loss=accept_other_loss,
    )
    if given is not None:
        return [given_plan(chain, devices, _read(given))]
    return find_plans(chain, devices, top=top, budget=budget, progress=progress)


def compare_plans(
    model: str | nn.Module,
    cluster: str | Cluster,
    inputs: Any = None,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    batch: int | None = None,
    precision: str = "32-true",
    optimizer: str = "adamw",
    memory_limit: float | None = None,
    headroom: str | float | None = AUTO,
    budget: float = 10.0,
    accept_other_loss: bool = False,
    progress: Callable[[str], None] | None = None,
) -> dict[str, Plan | None]:
    """The plan that is found beside what people do without one (`planning.baselines`).

    Args and errors are those of `plan_model`.

    Returns:
        The plan, as "plan", and every baseline by its name; None where nothing of it fits.
    """
    devices = _devices(resolve_cluster(cluster), memory_limit, headroom)
    if progress is not None:
        progress("planning: capturing the model")
    chain = chain_of(
        model,
        devices,
        inputs,
        loss=loss,
        batch=batch,
        precision=precision,
        optimizer=optimizer,
        accept_other_loss=accept_other_loss,
    )
    return find_baselines(chain, devices, budget=budget, progress=progress)


def _read(given: str | Plan) -> str | Plan:
    """Words, or the plan of a file."""
    if isinstance(given, str) and (given.endswith(".json") or Path(given).is_file()):
        return read_plan(given)
    return given


def _devices(cluster: Cluster, memory_limit: float | None, headroom: str | float | None) -> Cluster:
    """The cluster with the memory that plans may use.

    Raises:
        InputError: devices whose times no table has.
    """
    for kind in cluster.kinds:
        if known_kind(kind) == "cpu":
            raise InputError(
                f"plan: cluster {cluster.name!r}: no table says what ops take on a CPU; plan for "
                "GPUs, by a preset or a YAML file"
            )
        figures(kind)
    if memory_limit is not None:
        limited = [d.model_copy(update={"memory": memory_limit}) for d in cluster.devices]
        cluster = Cluster(tuple(limited), cluster.links, cluster.name)
    if headroom == AUTO:
        return with_slack(cluster)
    return cluster if headroom is None else with_headroom(cluster, headroom)
