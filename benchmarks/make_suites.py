"""Writes the test sets of the learned placer: suites/real.yaml, large.yaml and small.yaml.

Each wanted problem takes the first seed from its start on for which the portfolio finds something
that fits and which is not yet within ``ROOM`` of the lower bound: a problem that one construction
solves says nothing about anybody. Nothing else is looked at; no other placer is run.

    python benchmarks/make_suites.py [real] [large] [small]
"""

from __future__ import annotations

import sys
from itertools import cycle, product
from pathlib import Path
from typing import Any

import gnnplace
from gnnplace.bench.suite import ProblemEntry
from gnnplace.errors import GnnplaceError
from gnnplace.train.data.random_families import TEST, TRAIN

FOLDER = Path(__file__).parent / "suites"
ROOM = 0.03
TRIES = 40
FIRST_SEED = 700_000  # apart from those of training, validation and test data
CLASSICAL = "single, contiguous, interleaved, heft, heft-contention, etf, min-cut"
CONSTRUCTIONS = f"[{CLASSICAL}, portfolio, gnn]"
PLACERS = "[portfolio, annealing, coarse-annealing, learned-untrained, learned, best]"

# Held-out graphs for the real set: a small and a larger one of each family.
GRAPHS = {
    "bert": ("bert-mini", "bert-base"),
    "inception": ("inception-small", "inception-deep"),
    "seq2seq": ("seq2seq-short", "seq2seq-long"),
    "t5": ("t5-tiny", "t5-small"),
}
CLUSTERS = ("two-tier", "own", "shared", "mixed")
SIZES = (60, 100, 150, 200, 300, 400)


def real() -> list[dict[str, Any]]:
    """Held-out families x 1, 4 and 8 micro-batches x ample and tight memory, and twelve more."""
    clusters, sizes, wanted = cycle(CLUSTERS), cycle(SIZES), []
    for i, (memory, count, family) in enumerate(
        product(("ample", "tight"), (1, 4, 8), GRAPHS)
    ):
        name = GRAPHS[family][(i + i // len(GRAPHS)) % 2]  # small and large in turn
        cell = {"captured": name, "microbatches": count, "memory": memory}
        wanted.append({**cell, "groups": next(sizes), "cluster": next(clusters)})
        if i % len(GRAPHS) == 3:
            next(clusters)  # or each family would always be on the same type
    for family, count in product(GRAPHS, (1, 4)):  # ungrouped
        cell = {"captured": GRAPHS[family][0], "microbatches": count, "memory": "ample"}
        wanted.append({**cell, "whole": True, "cluster": next(clusters)})
    for family in GRAPHS:
        cell = {"captured": GRAPHS[family][1], "microbatches": 8, "memory": "tight"}
        wanted.append(
            {**cell, "groups": 120, "cluster": next(clusters), "devices": [4, 4]}
        )
    return wanted


def large() -> list[dict[str, Any]]:
    """Captured graphs ungrouped, held-out families, and families seen in training."""
    captured = (
        ("bert-base", 4, "ample"),
        ("bert-large", 4, "tight"),
        ("inception-deep", 8, "ample"),
        ("inception-deep", 4, "tight"),
        ("seq2seq-long", 1, "ample"),
        ("seq2seq-short", 8, "tight"),
        ("t5-small", 4, "ample"),
        ("t5-tiny", 8, "ample"),
    )
    clusters = cycle(CLUSTERS)
    wanted: list[dict[str, Any]] = [
        {
            "captured": n,
            "microbatches": m,
            "memory": kind,
            "whole": True,
            "cluster": next(clusters),
        }
        for n, m, kind in captured
    ]
    for family, ops in product(TEST, ((1000, 2000), (2000, 5000), (5000, 10000))):
        wanted.append({"family": family, "ops": list(ops)})
    wanted += [{"family": name, "ops": [1500, 3000]} for name in ("grid", "mixture")]
    return wanted


def small() -> list[dict[str, Any]]:
    """Held-out families, and families seen in training with seeds never seen."""
    held_out = [
        {"family": family, "ops": [100, 300]} for family in TEST for _ in range(20)
    ]
    seen = [
        {"family": name, "ops": [100, 300]}
        for name, _ in zip(cycle(TRAIN), range(20), strict=False)
    ]
    return held_out + seen


# Maker, budgets, least ops with micro-batches, what the file says about itself.
SETS = {
    "real": (
        real,
        "[0.1, 1.0, 10.0]",
        1,
        "real captured training graphs of held-out families",
    ),
    "large": (
        large,
        "[1.0, 10.0]",
        1000,
        "large graphs, 1,000 to 10,000 ops and micro-batches",
    ),
    "small": (small, "[0.03, 0.1, 1.0, 10.0]", 1, "random families of 100 to 300 ops"),
}


def seeded(wanted: dict[str, Any], seed: int, least: int) -> dict[str, Any]:
    """The problem with the first seed that leaves room and has so many ops."""
    for tried in range(seed, seed + TRIES):
        entry = {**wanted, "seed": tried}
        try:
            problem = ProblemEntry.model_validate(entry).load()
            result = gnnplace.place(problem, placer="portfolio", budget=0.0)
        except GnnplaceError as error:
            print(f"    {entry}: {error}", file=sys.stderr)
            continue
        if result.gap > ROOM and problem.num_ops >= least:
            sizes = f"{problem.num_ops} ops, {problem.num_devices} devices"
            print(
                f"  {entry}: {sizes}, gap {result.gap:.1%}", file=sys.stderr, flush=True
            )
            return entry
    raise SystemExit(f"{wanted}: no seed of {TRIES} leaves room")


def line(entry: dict[str, Any]) -> str:
    """An entry as one line of YAML."""
    texts = {True: "true", False: "false"}
    parts = [f"{k}: {texts[v] if isinstance(v, bool) else v}" for k, v in entry.items()]
    return f"  - {{{', '.join(parts)}}}"


def write(name: str) -> None:
    """Writes one suite."""
    make, budgets, least, what = SETS[name]
    entries = [seeded(w, FIRST_SEED + 100 * i, least) for i, w in enumerate(make())]
    text = [
        f"# {what[0].upper()}{what[1:]}. Written by benchmarks/make_suites.py.",
        "# The portfolio with a budget anneals from its best construction.",
        f"name: {name}",
        "problems:",
        *map(line, entries),
        f"constructions: {CONSTRUCTIONS}",
        f"placers: {PLACERS}",
        "seeds: [0, 1, 2]",
        f"budgets: {budgets}",
        "steps: [1000, 10000]",
        "timeout: 120.0",
    ]
    (FOLDER / f"{name}.yaml").write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or SETS:
        write(chosen)
