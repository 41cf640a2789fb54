"""Which launchers get a file for which models: ``python -m benchmarks.launch_files``.

Each model is planned by name, once for all launchers, on the first of 16, 64 and 512 H100 that
holds it, as ``gnnplace plan`` does; its plan is converted for each launcher from the plan's file.
Rows are added to ``benchmarks/results/launch-files.jsonl``, and models that stand there are not
planned again; ``--budget`` seconds are the most that a call takes before it begins another model.

With ``--sources FOLDER``, which has the sources of launchers in folders of their names, every file
is read by the launcher's own code (``benchmarks.launch_checks``). ``--table`` prints the table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gnnplace
from benchmarks.launch_checks import CHECKS, Request
from gnnplace.cli.main import run
from gnnplace.errors import GnnplaceError
from gnnplace.launch import LaunchFile
from gnnplace.launch.layer_details import LLAMA, layer_details
from gnnplace.plans.decoders.decoder import catalogue_decoder

LAUNCHERS = (
    "megatron-lm",
    "megatron-bridge",
    "torchtitan",
    "nanotron",
    "deepspeed",
    "accelerate",
)
SUFFIX = {"megatron-lm": "sh", "torchtitan": "py", "nanotron": "yaml", "deepspeed": "json",
          "accelerate": "yaml", "megatron-bridge": "txt"}  # fmt: skip
MODELS = (
    "meta-llama/Llama-3.1-8B",
    "meta-llama/Llama-3.1-70B",
    "Qwen/Qwen2.5-7B",
    "Qwen/Qwen3-8B",
    "Qwen/Qwen3-14B",
    "Qwen/Qwen3-30B-A3B",
    "mistralai/Mistral-7B-v0.1",
    "mistralai/Mixtral-8x7B-v0.1",
    "deepseek-ai/DeepSeek-V3",
    "google/gemma-2-9b",
    "microsoft/phi-4",
    "allenai/OLMo-2-1124-7B",
    "HuggingFaceTB/SmolLM2-360M",
    "tiiuae/falcon-7b",
    "openai-community/gpt2-xl",
    "EleutherAI/pythia-6.9b",
    "bigscience/bloom-7b1",
    "facebook/opt-6.7b",
    "openai/gpt-oss-20b",
    "ibm-granite/granite-3.3-8b-base",
)
CLUSTERS = ("16xH100", "64xH100", "512xH100")
STATE_BYTES, DEVICE_BYTES = 16, 80e9
"""Of a parameter with its gradient and moments, and of an H100: smaller clusters are not tried."""
MODELS_A_CHECK = 5
"""Models whose files the launchers read at a time: their imports take most of the seconds."""
RESULTS = Path(__file__).with_name("results") / "launch-files.jsonl"
SEARCH_SECONDS = "5"
"""The budget of each launcher's search; a plan that fits is enough."""


def plan_file(model: str, folder: Path) -> tuple[Path, str] | None:
    """Return the file of a model's plan on the first cluster that holds one, and the cluster."""
    path = folder / "plan.json"
    decoder = catalogue_decoder(model)
    assert decoder is not None
    for cluster in CLUSTERS:
        num_devices = int(cluster.partition("x")[0])
        if STATE_BYTES * decoder.parameters > num_devices * DEVICE_BYTES:
            continue
        command = [
            "plan",
            model,
            "--cluster",
            cluster,
            "--budget",
            SEARCH_SECONDS,
            "--quiet",
        ]
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            code = run([*command, "-o", str(path)])
        if code == 0:
            return path, cluster
    return None


def request_of(model: str, path: Path, file: LaunchFile) -> Request:
    """Return what a file was written for."""
    decoder, details = catalogue_decoder(model), layer_details(model)
    assert decoder is not None
    assert details is not None
    scaling = details.scaling
    is_llama = scaling.get("rope_type") == LLAMA
    return Request(
        path=str(path),
        world=file.plan.world or 1,
        stages=file.plan.pp,
        parameters=decoder.parameters,
        layers=decoder.layers,
        hidden=decoder.hidden,
        rotary_base=details.rotary_base if details.is_gated else None,
        rotary_factor=scaling["factor"] if is_llama else None,
        norm_epsilon=details.norm_epsilon,
        query_biases=details.query_biases,
    )


def rows_of_model(
    model: str, folder: Path
) -> tuple[list[dict[str, Any]], dict[str, Request]]:
    """Return a row for each launcher, and what the files that were written are checked for."""
    found = plan_file(model, folder)
    rows: list[dict[str, Any]] = []
    requests: dict[str, Request] = {}
    for launcher in LAUNCHERS:
        row: dict[str, Any] = {"model": model, "launcher": launcher}
        rows.append(row)
        if found is None:
            row["reason"] = f"no plan on {CLUSTERS[-1]}"
            continue
        plan, row["cluster"] = found
        try:
            file = gnnplace.export_plan(gnnplace.read_plan(plan), launcher)
        except GnnplaceError as error:
            row["reason"] = str(error)
            continue
        name = model.partition("/")[2].replace(".", "_").replace("-", "_")
        path = folder / f"{launcher.replace('-', '_')}_{name}.{SUFFIX[launcher]}"
        path.write_text(file.text)
        row["not_carried"] = [loss.line for loss in file.losses]
        requests[launcher] = request_of(model, path, file)
    return rows, requests


def check(
    launcher: str, sources: Path, requests: list[Request], folder: Path
) -> list[str]:
    """Return what the launcher's own code says of files; empty texts are files that it takes.

    Raises:
        RuntimeError: Its code does not import.
    """
    path = folder / f"{launcher}.requests"
    path.write_text(json.dumps([asdict(request) for request in requests]))
    command = [sys.executable, "-m", "benchmarks.launch_checks", launcher]
    process = subprocess.run(
        [*command, str(sources / launcher), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if process.returncode:
        raise RuntimeError(f"{launcher}: {process.stderr.strip().splitlines()[-1]}")
    errors: list[str] = json.loads(Path(f"{path}.errors").read_text())
    return errors


def checked_rows(models: Sequence[str], sources: Path | None) -> list[dict[str, Any]]:
    """Return a row for each launcher of some models; an "error" is what the launcher's code says.

    Args:
        models: Their names.
        sources: Folder of the launchers' sources; None: nothing is checked by their code.
    """
    rows: list[dict[str, Any]] = []
    requests: dict[str, list[tuple[dict[str, Any], Request]]] = {
        name: [] for name in LAUNCHERS
    }
    with TemporaryDirectory() as name:
        folder = Path(name)
        for model in models:
            sys.stderr.write(f"{model}\n")
            model_rows, model_requests = rows_of_model(model, folder)
            rows += model_rows
            for row in model_rows:
                if row["launcher"] in model_requests:
                    entry = row, model_requests[row["launcher"]]
                    requests[row["launcher"]].append(entry)
        for launcher in CHECKS if sources is not None else ():
            pairs = requests[launcher]
            if pairs and sources is not None:
                sys.stderr.write(f"checking {launcher}\n")
                errors = check(
                    launcher, sources, [request for _, request in pairs], folder
                )
                for (row, _), error in zip(pairs, errors, strict=True):
                    row["error"] = error
    return rows


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file, none where there is none."""
    return (
        [json.loads(line) for line in path.read_text().splitlines()]
        if path.is_file()
        else []
    )


def table(rows: list[dict[str, Any]]) -> str:
    """Format a line for each model, and the reasons below."""
    reasons: list[str] = []
    lines = [
        f"| model | {' | '.join(LAUNCHERS)} |",
        "|---" * (1 + len(LAUNCHERS)) + "|",
    ]
    for model in dict.fromkeys(row["model"] for row in rows):
        cells = []
        for row in (row for row in rows if row["model"] == model):
            if "reason" in row:
                if row["reason"] not in reasons:
                    reasons.append(row["reason"])
                cells.append(f"line {1 + reasons.index(row['reason'])}")
                continue
            lost = len(row["not_carried"])
            cell = "file" + (f", {lost} not carried" if lost else "")
            accepted = {"": ", accepted", None: ""}
            cells.append(cell + accepted.get(row.get("error"), ", **refused**"))
        lines.append(f"| {model} | {' | '.join(cells)} |")
    numbered = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    refused = [
        f"{r['launcher']}, {r['model']}: {r['error']}" for r in rows if r.get("error")
    ]
    return "\n".join([*lines, "", *numbered, *refused])


def main() -> int:
    """Plan, write and check what has no row yet, or print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--sources", type=Path)
    parser.add_argument("--budget", type=float, default=900.0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows = read_rows(args.results)
    if args.table:
        sys.stdout.write(table(rows) + "\n")
        return 0
    deadline = time.monotonic() + args.budget
    known = {row["model"] for row in rows}
    pending = [model for model in MODELS if model not in known]
    while pending and time.monotonic() < deadline:
        models, pending = pending[:MODELS_A_CHECK], pending[MODELS_A_CHECK:]
        with args.results.open("a") as file:
            file.writelines(
                json.dumps(row) + "\n" for row in checked_rows(models, args.sources)
            )
    sys.stdout.write(f"{len(pending)} models are left\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
