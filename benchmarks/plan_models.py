"""Plans of the models that people train, beside Megatron's split of them, in predicted steps.

Every model of `plan_models.yaml` is planned on every cluster of it, by the free search with no
budget beyond its own, and beside the best of Megatron's words: `tp` inside a server, `pp`, replicas
the rest, experts on 8 of these (`ep=8`) or not, the distributed optimizer (`zero=1`), 1F1B, micro-
batches of 1 to 16, full recomputation or none. Processor seconds are of capture and search. What
has no plan is a row that says why. Rows that the result has stay as they are; remove one to make it
again.

    python -m benchmarks.plan_models [--models Llama-3-8B,GPT-3] [--clusters nvswitch-h100-8]
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

import yaml

from gnnplace.cli.console import say
from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.errors import GnnplaceError
from gnnplace.plans.answers import find_plans, price_given_plan
from gnnplace.plans.job import SearchOptions, TrainingJob
from gnnplace.plans.plan import Plan
from gnnplace.plans.segments.chain import Chain
from gnnplace.plans.segments.chains import capture_chain
from gnnplace.plans.segments.pricing import ModelCosts
from gnnplace.problem.cluster import Cluster
from gnnplace.problem.cluster.headroom import with_slack
from gnnplace.report.plans import split_words

ROOT = Path(__file__).parent
HEAD = (
    "| model | cluster | batch | step, s | tokens/s a device | Megatron's, s | gain | stages x "
    "replicas x shards | the first stage's layers | processor s |",
    "|" + "---|" * 10,
)


def row_of(
    name: str, spec: str, cluster: str, batch: int, asked: dict[str, Any]
) -> str:
    """A row of the table: the plan that is found, or why there is none."""
    began, cells = time.process_time(), [name, cluster, str(batch)]
    try:
        devices = with_slack(resolve_cluster(cluster))
        chain = capture_chain(
            TrainingJob(
                spec,
                batch=batch,
                precision=asked["precision"],
                optimizer=asked["optimizer"],
            ),
            devices,
        )
        found = find_plans(chain, devices, SearchOptions(budget=0.0))
        seconds = time.process_time() - began
        cells += _told(found[0], megatron(chain, devices), devices.num_devices)
    except GnnplaceError as error:
        seconds = time.process_time() - began
        cells += [str(error), *[""] * 5]
    return f"| {' | '.join([*cells, f'{seconds:.0f}'])} |"


def megatron(chain: Chain, cluster: Cluster) -> Plan | None:
    """The fastest plan of Megatron's words that fits."""
    best, count = None, cluster.num_devices
    source = chain.source
    parts = (1, 8) if isinstance(source, ModelCosts) and source.experts else (1,)
    for tp, pp, size, ep, again in itertools.product(
        (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 4, 8, 16), parts, ("none", "full")
    ):
        words = f"dp={count // (tp * pp)},tp={tp},pp={pp},microbatch_size={size},ep={ep},zero=1"
        if count % (tp * pp) or chain.batch % (size * count // (tp * pp)):
            continue
        try:
            plan = price_given_plan(chain, cluster, f"{words},recompute={again}")
        except GnnplaceError:
            continue  # fewer layers than stages, fewer heads than shards
        if plan.feasible and (best is None or plan.step_time < best.step_time):
            best = plan
    return best


def _told(plan: Plan | None, megatron: Plan | None, devices: int) -> list[str]:
    """Cells of what was found."""
    if plan is None or not plan.feasible:
        return [plan.reason or "" if plan else "nothing fits", *[""] * 5]
    step, stage = plan.step_time, plan.file.stages[0]
    tokens = plan.file.tokens
    other = ["nothing fits", ""]
    if megatron is not None:
        other = [f"{megatron.step_time:.3f}", f"{megatron.step_time / step - 1:+.1%}"]
    mesh = f"{len(plan.file.stages)} x {len(stage.rows)} x {len(stage.rows[0])}"
    rate = f"{tokens / step / devices:,.0f}" if tokens else ""
    return [f"{step:.3f}", rate, *other, mesh, split_words(stage) or "not cut"]


def main() -> None:
    """Runs the suite, a row after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="")
    parser.add_argument("--clusters", default="")
    parser.add_argument("-o", "--output", default=str(ROOT / "results/plan-models.md"))
    args = parser.parse_args()
    asked, result = (
        yaml.safe_load((ROOT / "plan_models.yaml").read_text()),
        Path(args.output),
    )
    known = _known(result)
    pairs = itertools.product(asked["models"].items(), asked["clusters"].items())
    large = [(name, asked["models"][name]) for name in asked["large"]]
    for (name, spec), (cluster, batch) in [
        *pairs, *itertools.product(large, asked["larger"].items())
    ]:  # fmt: skip
        wanted = (not args.models or name in args.models.split(",")) and (
            not args.clusters or cluster in args.clusters.split(",")
        )
        if wanted and (name, cluster) not in known:
            known[name, cluster] = row_of(name, spec, cluster, batch, asked)
            say(known[name, cluster])
            result.write_text(
                "\n".join([TITLE, *HEAD, *known.values()]) + "\n", encoding="utf-8"
            )


def _known(result: Path) -> dict[tuple[str, str], str]:
    """Rows that were made before, by model and cluster."""
    lines = result.read_text(encoding="utf-8").splitlines() if result.is_file() else []
    rows = [line for line in lines if line.startswith("| ") and line not in HEAD]
    return {
        (row.split(" | ")[0].removeprefix("| "), row.split(" | ")[1]): row
        for row in rows
    }


TITLE = """# Plans of the models that people train

`python -m benchmarks.plan_models`: predicted steps (no device was there), bf16 with a fp32 copy in
AdamW, shapes of `plan_models.yaml`. Megatron's is the best plan of its words (`tp`, `pp`, `dp`,
`ep`, `zero=1`, 1F1B, full recomputation or none) for the same model on the same cluster, in the
same prices; a gain is by how much its step is longer. What is not named of a stage is whole on
every shard of it.
"""

if __name__ == "__main__":
    main()
