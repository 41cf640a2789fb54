"""Comparison with a placement of single ops, where that may be faster than pipeline stages.

Stages gain from several micro-batches in flight. With one micro-batch they only run in turn; then
devices gain by running branches of the graph at the same time, or by running what each does best.
So on 2 to `MOST` devices, if the best plan has one micro-batch and the model has branches or the
devices differ, the portfolio of placers is run for a short time.

Both predictions use the same tables, but op placement counts the host's time for every op, while
plans count it only if it exceeds the kernels of a whole stage. So op placement predicts longer
steps. If it predicts a shorter step than the plan's pricer on one device, nothing is compared.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

import numpy as np

from gnnplace.costs import has_local_device, profile
from gnnplace.errors import GnnplaceError
from gnnplace.placers import Portfolio
from gnnplace.plans.job import TrainingJob
from gnnplace.plans.mesh import Mesh, MeshFabric
from gnnplace.plans.plan import OpPlacement, Plan
from gnnplace.plans.search.draft import Draft, realize_draft
from gnnplace.plans.search.framework_pricing import make_pricer
from gnnplace.plans.search.stage import Stage
from gnnplace.plans.segments.chain import Chain
from gnnplace.plans.segments.chains import count_examples, with_batch
from gnnplace.plans.segments.pricing import ModelCosts
from gnnplace.problem import Cluster, Problem
from gnnplace.tracing import capture_workload, make_workload

MOST = 8  # devices at most
AHEAD = 0.03  # relative lead that op placement must have
BRANCHES = 1.3  # all work over the longest path, from which on a graph has branches
AGREE = 0.05  # relative lead of one device by op placement's own clock
SECONDS, LEAST = 2.0, 0.5  # seconds of search, at most and at least
DTYPES = {"32-true": "float32", "bf16-true": "bfloat16"}
OPTIMIZERS = ("sgd", "adamw")


def find_op_placement(
    plan: Plan,
    chain: Chain,
    cluster: Cluster,
    job: TrainingJob,
    *,
    named: str = "",
    headroom: str | None = None,
    budget: float = 10.0,
) -> OpPlacement | None:
    """Return a placement of single ops that is faster than a plan, or None if there is none.

    Args:
        plan: The best of the search.
        chain: The model that was planned.
        cluster: The cluster, with the memory that may be used.
        job: The model and how it is trained.
        named: The cluster's name on the command line.
        headroom: The headroom on the command line. None leaves it out.
        budget: Seconds of the search for plans; op placement takes a fifth, from `LEAST` to
            `SECONDS`.
    """
    if not _may_beat_plan(plan, chain, cluster) or has_local_device(cluster):
        return None
    try:
        sized = job.model
        if isinstance(sized, str):
            sized = name_with_batch(sized, chain.batch)
        problem = _problem(chain, cluster, replace(job, model=sized))
        whole_stage = (Stage(0, len(chain), Mesh(0, 1, 1)),)
        pricer = make_pricer(chain, MeshFabric(cluster), chain.batch)
        alone = realize_draft(pricer, Draft(chain.batch, 1, "1f1b", whole_stage))
        of_ops = np.asarray(problem.time[cluster.devices[0].kind])
        device_seconds = float(of_ops.sum())
        # It goes on where ops on one device take as long as plans say, or longer.
        if alone is None or device_seconds < (1 - AGREE) * alone.step_time:
            return None
        # The budget counts with compiled code.
        Portfolio().place(problem, budget=0.0, seed=0)
        placed = Portfolio().place(
            problem, budget=max(min(budget / 5, SECONDS), LEAST), seed=0
        )
    except GnnplaceError:
        return None  # what cannot be captured whole, or fits nowhere, is no better
    step = plan.step_time if plan.feasible else np.inf
    if placed.step_time > (1 - AHEAD) * step:
        return None
    command = ""
    if isinstance(sized, str):
        words = [
            "gnnplace",
            "place",
            sized,
            "--cluster",
            named,
            "--optimizer",
            chain.optimizer,
        ]
        words += ["--dtype", DTYPES[chain.precision]]
        words += ["--headroom", headroom] if headroom is not None else []
        command = shlex.join([*words, "-o", "placement.json"])
    return OpPlacement(step_time=placed.step_time, command=command)


def _may_beat_plan(plan: Plan, chain: Chain, cluster: Cluster) -> bool:
    """Return whether a placement of single ops may beat the plan.

    It may if the batch is one micro-batch on few devices and devices differ or calls branch.
    """
    if plan.microbatches > 1 or not 2 <= cluster.num_devices <= MOST:
        return False
    return may_gain(chain, cluster)


def may_gain(chain: Chain, cluster: Cluster) -> bool:
    """Return whether devices may share a step by single ops better than by layers.

    They may if they differ, or if the model has branches that they can do at once.
    """
    if chain.precision not in DTYPES or chain.optimizer not in OPTIMIZERS:
        return False
    return len(cluster.kinds) > 1 or _branches(chain, cluster.kinds[0]) >= BRANCHES


def _branches(chain: Chain, kind: str) -> float:
    """Return the seconds of all calls over those of the longest path through them.

    Calls have the plan's prices.
    """
    source = chain.source
    if not isinstance(source, ModelCosts):
        return 1.0
    graph = source.layers.operations
    longest = dict[int, float]()
    total = 0.0
    for i, op in enumerate(graph.ops):
        aside = i in source.cuts.aside
        if aside:
            part = None
        else:
            part = source.part(i, (None,), kind, ((1,), 1))
        if part is None:
            seconds = 0.0
        else:
            seconds = part.forward.kernels + part.whole.kernels
        ready = max((longest.get(v, 0.0) for v in op.reads), default=0.0)
        longest |= dict.fromkeys(op.results, ready + seconds)
        total += seconds
    return total / max(max(longest.values(), default=0.0), 1e-30)


def name_with_batch(model: str, batch: int) -> str:
    """Return a model's name with `batch` examples as its option."""
    if count_examples(make_workload(model, fake=True)) == batch:
        return model
    path, _, query = model.partition("?")
    options = [x for x in query.split("&") if x and not x.startswith("batch=")]
    return f"{path}?{'&'.join([*options, f'batch={batch}'])}"


def _problem(chain: Chain, cluster: Cluster, job: TrainingJob) -> Problem:
    """Capture and profile the training step of the whole batch."""
    workload = make_workload(job.model, job.inputs, job.loss, fake=True)
    if not isinstance(job.model, str):
        workload = with_batch(workload, chain.batch)
    program = capture_workload(
        workload, optimizer=chain.optimizer, dtype=DTYPES[chain.precision]
    )
    return profile(program, cluster)
