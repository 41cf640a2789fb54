"""What each part of the learned placer is worth: three seeds, shortened trainings.

Every variant places the same problems of families held out for validation; a row has its log step
times over those of the whole policy of the same seed (beyond ``MOST`` they count as that). The
weights of the refiner are trained anew for each seed, on training families, shortened. Rows are
kept in a JSONL file; a run that was stopped goes on where it was.

    python benchmarks/ablations.py --rows benchmarks/results/ablations.jsonl > table.md
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import Trainer, seed_everything

from gnnplace.bench.rows import append, format_now, provenance
from gnnplace.bench.statistics import geometric_interval
from gnnplace.graph.orders import FIXED_ORDERS
from gnnplace.placers import SearchSpace
from gnnplace.policy.decode.aims import DECODED
from gnnplace.policy.decode.kernels import DYNAMIC
from gnnplace.policy.decode.rollouts import Rollouts
from gnnplace.policy.learned import LearnedPlacer
from gnnplace.policy.network import PlacementPolicy, make_weights, read_policy
from gnnplace.policy.refine.passes import RefiningPasses
from gnnplace.policy.refine.refining import PRIOR as REFINER_PRIOR
from gnnplace.policy.refine.refining import REFINING
from gnnplace.policy.weights import DECODER_PRIOR, POLICY_CHECKPOINT
from gnnplace.train import Evolution, ProblemDataModule

GENERATIONS = 5
MOST = 0.5
DATA: dict[str, Any] = {
    "ops": (30, 500),
    "held_out_ops": (100, 1000),
    "captured": 0.6,
    "validation_problems": 8,
}
STATIC = {  # what candidates have that no partial schedule is needed for
    "log slowness for this unit",
    "log slowness for all units",
    "state after, of the memory",
    "state and tensors at the peak after, of the memory",
    "share of placed neighbours' bytes there",
    "the chunk plan's device",
    "previous device",
    "transfers of the unit, of the step time",
    "transfers of the unit, above the previous device's",
    "share of neighbours' bytes there",
    "memory after",
    "memory after, above the limit",
}


def set_weights(part: Any, names: tuple[str, ...], weights: Any) -> None:
    """Sets the weights of a decoder or refiner."""
    with torch.no_grad():
        part.copy_(make_weights(names, weights))


def begin() -> PlacementPolicy:
    """The shipped policy with what the later stages learned taken back to the prior."""
    policy = read_policy(POLICY_CHECKPOINT)
    set_weights(policy.decoder, DYNAMIC, DECODER_PRIOR)
    set_weights(policy.refiner, REFINING, REFINER_PRIOR)
    return policy


def fitted(
    module: Any, policy: PlacementPolicy, seed: int, problems: int, batch: int
) -> Any:
    """What a short training makes of a policy."""
    module.policy.load_state_dict(policy.state_dict())
    module.average.load_state_dict(policy.state_dict())
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            limit_val_batches=0,
            default_root_dir=folder,
        )
        data = ProblemDataModule(
            **DATA, problems=problems, batch_size=batch, seed=100 + seed
        )
        trainer.fit(module, data)
    return copy.deepcopy(module.policy).eval()


def evolved(policy: PlacementPolicy, seed: int, *, static: bool) -> PlacementPolicy:
    """The refiner evolved for ``GENERATIONS``, of its static features alone if so wanted."""
    seed_everything(seed, verbose=False)
    policy, module = copy.deepcopy(policy), Evolution(population=12, step_size=0.6)
    if static:
        kept = {
            name: REFINER_PRIOR.get(name, 0.0) for name in REFINING if name in STATIC
        }
        set_weights(policy.refiner, REFINING, kept)
        module.spread.copy_(
            torch.tensor([0.3 if n in STATIC else 1e12 for n in REFINING])
        )
    return fitted(module, policy, seed, 60 * GENERATIONS, 60)


def first_choice(
    space: SearchSpace, policy: PlacementPolicy, orders: Any = DECODED
) -> float:
    """Predicted seconds of the first choice."""
    rollouts = Rollouts(space, policy, orders)
    return RefiningPasses(rollouts).best(rollouts.greedy()).score


def decodes(space: SearchSpace, policy: PlacementPolicy) -> float:
    """Predicted seconds of the best decode alone."""
    return Rollouts(space, policy).greedy()[0].score


def one_aim(space: SearchSpace, policy: PlacementPolicy) -> float:
    """Predicted seconds of one decode, under the most promising aim."""
    return min(d.score for d in Rollouts(space, policy).greedy(most=1))


def without_schedule(policy: PlacementPolicy) -> PlacementPolicy:
    """A decoder whose features of the partial schedule are silent."""
    policy = copy.deepcopy(policy)
    set_weights(
        policy.decoder, DYNAMIC, {k: v for k, v in DECODER_PRIOR.items() if k in STATIC}
    )
    return policy


def searched(space: SearchSpace, policy: PlacementPolicy, seed: int) -> float:
    """Predicted seconds after a search of a second."""
    found = LearnedPlacer(policy).search(
        space, np.random.default_rng(seed), time.perf_counter() + 1.0
    )
    return space.score(found.device, found.order)


def variants(seed: int) -> dict[str, Any]:
    """Name of each variant and how it places a problem."""
    prior = begin()
    whole, static = (
        evolved(prior, seed, static=False),
        evolved(prior, seed, static=True),
    )
    result = {
        "whole": lambda s: first_choice(s, whole),
        "no refinement (decodes alone)": lambda s: decodes(s, whole),
        "one decode": lambda s: one_aim(s, whole),
        "refiner as its prior (no Evolution)": lambda s: first_choice(s, prior),
        "refiner without the schedule's features": lambda s: first_choice(s, static),
        "decoder without the schedule's features": lambda s: first_choice(
            s, without_schedule(whole)
        ),
        "search of 1 s": lambda s: searched(s, whole, seed),
    }
    for order in dict.fromkeys((*DECODED, *FIXED_ORDERS)):
        result[f"order {order} alone"] = lambda s, o=order: first_choice(s, whole, (o,))
    return result


def problems(seed: int, count: int) -> list[SearchSpace]:
    """Problems of validation families, others for each seed."""
    draws = ProblemDataModule(**DATA).held_out["validation"].draws
    spaces = (
        SearchSpace(draws.problem(1000 * (seed + 1) + i)) for i in range(4 * count)
    )
    return [
        s for s in spaces if s.problem.num_devices > 1 and s.problem.num_ops < 3000
    ][:count]


def rows_of(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a file of rows."""
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def run(path: Path, seed: int, count: int) -> None:
    """Appends a row a variant of one seed, unless they are there."""
    done = {row["variant"] for row in rows_of(path) if row["seed"] == seed}
    spaces, whole = problems(seed, count), np.zeros(0)
    for name, place in variants(seed).items():
        if name in done and name != "whole":
            continue
        begun = time.perf_counter()
        logs = np.log([place(space) for space in spaces])
        whole = logs if name == "whole" else whole
        if name in done:
            continue
        ratio = (logs - whole).clip(-MOST, MOST).round(6).tolist()
        row = {"variant": name, "seed": seed, "problems": count, "log_ratio": ratio}
        seconds = time.perf_counter() - begun
        append(path, row | {"seconds": seconds, "when": format_now()} | provenance())


def table(path: Path) -> str:
    """Markdown: step time over the whole policy's, by variant and seed."""
    rows = rows_of(path)
    lines = ["| variant | over the whole, all seeds | by seed |", "|---|---:|---|"]
    for name in dict.fromkeys(row["variant"] for row in rows):
        own = [row for row in rows if row["variant"] == name]
        found = geometric_interval(
            [math.exp(x) for row in own for x in row["log_ratio"]]
        )
        every = f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"
        by = ", ".join(f"{math.exp(np.mean(row['log_ratio'])):.3f}" for row in own)
        lines.append(f"| {name} | {every} | {by} |")
    return "\n".join(lines)


def main() -> None:
    """Runs what is missing and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--rows", type=Path, default=Path("benchmarks/results/ablations.jsonl")
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--problems", type=int, default=60)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(arguments.seeds):
        run(arguments.rows, seed, arguments.problems)
    print(table(arguments.rows))


if __name__ == "__main__":
    main()
