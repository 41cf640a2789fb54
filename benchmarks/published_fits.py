"""Whether plans that ran are said to fit: nanotron's sweep, as plans of the captured Llama.

Of the rows of the Ultra-Scale Playbook that ran with several tensor-parallel shards (each plan
once), 53 drawn by a seed are priced as our own runner would train them, in words: `tp` as it was,
and `shards`, any split. State is 16 bytes an element (bf16 with a fp32 copy in AdamW), nothing is
recomputed, as it was in the sweep. Nothing was fitted to these rows.

    python -m benchmarks.published_fits --data FOLDER [--count 53] [--seed 0]
"""

from __future__ import annotations

import argparse
import csv
import gzip
import random
from pathlib import Path

from gnnplace.cli.console import say
from gnnplace.costs.profiling.targets import resolve_cluster
from gnnplace.errors import GnnplaceError
from gnnplace.plans.answers import price_given_plan
from gnnplace.plans.job import TrainingJob
from gnnplace.plans.segments.chain import Chain
from gnnplace.plans.segments.chains import capture_chain, move_chain_to_cluster
from gnnplace.problem.cluster.headroom import with_slack

FILE = "ultrascale-playbook/runs.csv.gz"
BATCH = 256  # sequences of a step in every row
MODEL = ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "vocab_size",
         "tie_word_embeddings")  # fmt: skip
PLAN = (*MODEL, "nodes", "dp", "tp", "pp", "mbs", "zero_stage")
WIDE = 28672  # features of the feed-forward layers where a row lacks them: the 80 B model's


def rows_of(data: Path) -> list[dict[str, str]]:
    """A row of every plan with several shards that ran."""
    with gzip.open(data / FILE, "rt", encoding="utf-8") as file:
        found = [row for row in csv.DictReader(file) if _ran(row)]
    return list({tuple(row[key] for key in PLAN): row for row in found[::-1]}.values())


def _ran(row: dict[str, str]) -> bool:
    """Whether a row was timed, after the fix of the pipeline, with the sweep's batch."""
    timed = (
        row["status"] == "Success"
        and row["oom_error"] != "True"
        and bool(row["tok/s/gpu"])
    )
    right = row["after_pp_fix"] == "True" or int(row["pp"]) == 1
    batch = int(row["dp"]) * int(row["mbs"]) * float(row["batch_accum"])
    return timed and right and int(row["tp"]) > 1 and batch == BATCH


def chain_for(row: dict[str, str], known: dict[tuple[str, ...], Chain]) -> Chain:
    """The row's model on its cluster, captured once."""
    servers = int(float(row["nodes"]))
    name = "nvswitch-h100-8" if servers == 1 else f"dgx-h100-{servers}x8"
    cluster, key = with_slack(resolve_cluster(name)), tuple(row[key] for key in MODEL)
    if key not in known:
        spec = (
            f"hf:llama?hidden_size={row['hidden_size']}&num_hidden_layers={row['num_layers']}"
            f"&num_attention_heads={row['num_heads']}"
            f"&num_key_value_heads={int(float(row['num_kv_heads']))}"
            f"&intermediate_size={row['interm_dim'] or WIDE}&vocab_size={row['vocab_size']}"
            f"&tie_word_embeddings={row['tie_word_embeddings'].lower()}&length={row['seq_len']}"
        )
        known[key] = capture_chain(
            TrainingJob(spec, batch=BATCH, precision="bf16-master", optimizer="adamw"),
            cluster,
        )
    return move_chain_to_cluster(known[key], cluster)


def main() -> None:
    """Counts the rows that are said to fit, and names the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--count", type=int, default=53)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    every = sorted(rows_of(args.data), key=lambda row: row["job_id"])
    some = random.Random(args.seed).sample(every, min(args.count, len(every)))
    fits, chains = {"tp": 0, "shards": 0}, dict[tuple[str, ...], Chain]()
    for row in sorted(some, key=lambda row: [row[key] for key in MODEL]):
        chain = chain_for(row, chains)
        for word in fits:
            words = (
                f"dp={row['dp']},{word}={row['tp']},pp={row['pp']},microbatch_size={row['mbs']},"
                f"zero={row['zero_stage']}"
            )
            try:
                plan = price_given_plan(chain, chain.source.fabric.cluster, words)  # type: ignore[attr-defined]
                held = max(entry.all for entry in plan.file.memory.values()) / 1e9
                fits[word] += plan.feasible
                told = (
                    ""
                    if plan.feasible
                    else f"{held:.0f} GB said, {row['Mem Res (GB)']} held"
                )
            except GnnplaceError as error:
                told = str(error)
            if told:
                say(f"{row['name']}: {words}: {told}")
    for word, count in fits.items():
        say(
            f"{word}: {count} of {len(some)} are said to fit, of {len(every)} plans that ran"
        )


if __name__ == "__main__":
    main()
