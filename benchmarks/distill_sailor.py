"""Makes ``benchmarks/studies/costs/sailor.json`` from Sailor's validation runs and layer profiles.

    python benchmarks/distill_sailor.py FOLDER [-o sailor.json]

FOLDER holds the files of eth-easl/sailor, gzipped as they are. Kept: what each plan on Clariden was
and took, the profiled seconds of a layer's forward and backward pass at four GPUs of tensor
parallelism (Varuna's format: there is no sound profile of GPT-Neo-2.7B on GH200 in the others),
parameters and kept activations (bytes an example) of the layers, seconds of an optimizer step,
fitted to the profiled steps of OPT-350M on one, two and four GPUs, and seconds of a block of
OPT-350M on one GPU of each kind.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

MODELS = {"OPT-350": "OPT-350", "GPT-NEO": "GPT-Neo-2.7"}
TENSOR_PARALLEL = "4"
KINDS = {"A100-40": "a100", "A100-80": "a100-80", "GH-96": "gh200", "RTX-2080": "rtx-2080-ti",
         "RTX-3090": "rtx-3090", "Titan-RTX": "titan-rtx", "V100-16": "v100"}  # fmt: skip


def read(path: Path) -> Any:
    """A JSON file, gzipped or not."""
    content = path.read_bytes()
    return json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)


def cut_layers(
    folder: Path, name: str, kind: str = "GH-96", shards: str = TENSOR_PARALLEL
) -> dict[str, Any]:
    """Seconds by micro-batch and layer, parameters by layer."""
    path = folder / "layer_profiles/Varuna" / name / kind / f"profile_{shards}.json.gz"
    profile, info = read(path), read(folder / "llm_info.json.gz")[name][shards]
    sizes = [size for size in sorted(profile["0"], key=int) if profile["0"][size]]
    return {
        "seconds": {
            size: [
                [layer[size]["forward"], layer[size]["backward"]]
                for layer in profile.values()
            ]
            for size in sizes
        },
        "parameters": [layer["params_floats"] for layer in info.values()],
        "activations": [layer["act_mem_bytes"] for layer in info.values()],
    }


def optimizer(folder: Path, kind: str = "GH-96") -> dict[str, float]:
    """Seconds a parameter and a layer: OPT-350M's steps at 1, 2 and 4 GPUs."""
    profile = read(folder / "profiles/OPT-350" / kind / "profile.json.gz")["1"]
    info = read(folder / "llm_info.json.gz")["OPT-350"]
    rows, seconds = [], []
    for degree in ("1", "2", "4"):
        layers = info[degree].values()
        rows.append([sum(layer["params_floats"] for layer in layers), len(layers)])
        seconds.append(sum(layer[2] for layer in profile[degree].values()))
    (parameter, layer), *_ = np.linalg.lstsq(
        np.array(rows), np.array(seconds), rcond=None
    )
    return {"parameter": float(f"{parameter:.4g}"), "layer": float(f"{layer:.4g}")}


def plans(folder: Path) -> list[dict[str, Any]]:
    """What was run, and how long it took."""
    found = []
    for path in sorted((folder / "validation/clariden").glob("*/*/*.json*")):
        data, model = read(path), MODELS[path.parts[-3]]
        (pipeline,) = data["pipeline_list"]
        found.append(
            {
                "name": path.name.removeprefix("plan_config_").partition(".")[0],
                "model": model,
                "layers": [len(stage) for stage in pipeline["layers_per_stage"]],
                "replicas": pipeline["dp"][0],
                "microbatch": data["mbs"],
                "batch": data["gbs"],
                "nodes": data["N"],
                "seconds": data["real"],
                "reduction": data["red_grads"],
                "memory": data["max_mem"],
            }
        )
    return found


def single_layers(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Mean seconds of a block of OPT-350M on one GPU, forward and backward, by kind and batch."""
    found: dict[str, dict[str, list[float]]] = {}
    for name, kind in KINDS.items():
        profile = read(folder / f"profiles/OPT-350/{name}/profile.json.gz")
        for size in ("1", "2", "4", "8"):
            if "1" in profile.get(size, {}):
                blocks = list(profile[size]["1"].values())[2:-2]
                mean = np.mean([layer[:2] for layer in blocks], axis=0)
                found.setdefault(kind, {})[size] = [float(f"{x:.4g}") for x in mean]
    return found


def main() -> None:
    """Reads the folder, writes the rows."""
    parser = argparse.ArgumentParser(
        description="Distils Sailor's validation on GH200."
    )
    parser.add_argument("folder", type=Path, help="The folder of eth-easl/sailor.")
    target = Path(__file__).parents[1] / "benchmarks/studies/costs/sailor.json"
    parser.add_argument(
        "-o", "--output", type=Path, default=target, help="The file to write."
    )
    args = parser.parse_args()
    folder = args.folder
    content = {
        "source": "eth-easl/sailor, commit cf2c8e3cc53ce178fe58a4003f46b4b6b848fc33",
        "licence": "MIT, Copyright (c) 2023 ETH Zurich",
        "paper": "Strati et al., SOSP 2025, Sailor",
        "tensor_parallel": int(TENSOR_PARALLEL),
        "sequence": 2048,
        "hidden": {"OPT-350": 1024, "GPT-Neo-2.7": 2560},
        "update": optimizer(folder),
        "models": {name: cut_layers(folder, name) for name in MODELS.values()},
        "plans": plans(folder),
        "layers": single_layers(folder),
    }
    lines = (
        f" {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()
    )
    args.output.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
