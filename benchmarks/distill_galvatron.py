"""Makes ``benchmarks/studies/costs/galvatron.json`` from Galvatron's profiles of memory.

    python benchmarks/distill_galvatron.py FOLDER [-o galvatron.json]

FOLDER holds ``models/*/configs`` of PKU-DAIR/Hetu-Galvatron, gzipped or not. Kept: of each profile
on one server of eight GPUs without pipeline and without recomputation, what a second layer adds to
activations and to model states (MiB, rank 0), by tensor parallelism, positions and micro-batch.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOURCE = "PKU-DAIR/Hetu-Galvatron, models/*/configs/memory_profiling_bf16_*.json, commit cea12ff"
GPT = {"gated": False, "dropout": True}
LLAMA = {"gated": True, "dropout": False, "feed_forward": 11008}
BERT = {**GPT, "keeps_scores": True}
# File: hidden, heads, positions where the keys do not say, and what its layers are.
PROFILES: dict[str, tuple[int, int, int, dict[str, Any]]] = {
    "gpt/hidden1600_head32_seqlen1024": (1600, 32, 1024, GPT),
    "gpt/hidden2560_head32_seqlen2048": (2560, 32, 2048, GPT),
    "gpt/hidden4096_head32_seqlen2048": (4096, 32, 2048, GPT),
    "gpt_fa/hidden4096_head32_seqlen2048": (4096, 32, 2048, GPT),
    "gpt_hf/hidden4096_head32": (4096, 32, 0, GPT),
    "llama/hidden4096_head32_seqlen2048": (4096, 32, 2048, LLAMA),
    "llama_fa/hidden4096_head32_seqlen2048": (4096, 32, 2048, LLAMA),
    "baichuan/hidden4096_head32_seqlen2048": (4096, 32, 2048, LLAMA),
    "llama_hf/hidden5120_head40_seqlen2048": (
        5120, 40, 2048, {**LLAMA, "feed_forward": 13824, "float32_norms": True},
    ),
    "llama_hf/llama-7b": (4096, 32, 0, {**LLAMA, "float32_norms": True}),
    "llama_hf/llama-7b_all": (4096, 32, 0, {**LLAMA, "float32_norms": True}),
    "bert_hf/hidden1024_head16": (1024, 16, 0, BERT),
    "bert_hf/hidden768_head12": (768, 12, 0, BERT),
}  # fmt: skip
KEY = re.compile(r"layernum\[1\]_bsz(\d+)_(?:seq(\d+)_)?rank0_act$")
PLAN = re.compile(r"1_(\d+)_(\d+)(_sp)?$")  # one stage, tensor parallel, replicas


def read(folder: Path, name: str) -> Any:
    """A profile, gzipped or not."""
    family, _, rest = name.partition("/")
    path = folder / "models" / family / "configs" / f"memory_profiling_bf16_{rest}.json"
    packed = path.with_name(path.name + ".gz")
    return json.loads(
        gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_text()
    )


def rows(profile: dict[str, dict[str, float]], positions: int) -> Iterator[list[float]]:
    """Ways, replicas, whether positions are shared out, positions, batch, MiB of both."""
    for name, figures in profile.items():
        plan = PLAN.match(name)
        for key in figures if plan else ():
            match = KEY.match(key)
            more = key.replace("[1]", "[2]")
            if plan and match and more in figures:
                kept = figures[more] - figures[key]
                state = figures[more[:-3] + "ms"] - figures[key[:-3] + "ms"]
                ways, replicas = int(plan[1]), int(plan[2])
                size = int(match[1]) / replicas
                yield [ways, replicas, int(bool(plan[3])), int(match[2] or positions), size,
                       round(kept, 2), round(state, 2)]  # fmt: skip


def main() -> None:
    """Reads and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    default = Path("benchmarks/studies/costs/galvatron.json")
    parser.add_argument("-o", "--output", type=Path, default=default)
    arguments = parser.parse_args()
    profiles = [
        {"name": name, "hidden": hidden, "heads": heads, "layer": layer,
         "rows": list(rows(read(arguments.folder, name), positions))}
        for name, (hidden, heads, positions, layer) in PROFILES.items()
    ]  # fmt: skip
    columns = ("tensor_parallel", "replicas", "sequence_parallel", "positions", "batch",
               "activations_mib", "state_mib")  # fmt: skip
    told = {
        "source": SOURCE,
        "licence": "Apache-2.0",
        "columns": columns,
        "profiles": profiles,
    }
    arguments.output.write_text(json.dumps(told) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
