"""Which launchers get a file for which models: ``python -m benchmarks.launch_files``.

Each model is planned by name on 64 H100, or on 512 if nothing fits, as ``gnnplace plan`` does, and
its plan is converted for each launcher from the plan's file. A cell is ``file``, ``file, N lines``
if N things are not carried, or the number of the line that says why there is none. What is written
is read back by the launcher's reader of this package; the launchers' own code runs in tests alone
(accelerate's).
"""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import gnnplace
from gnnplace.cli.main import run
from gnnplace.errors import GnnplaceError

LAUNCHERS = ("megatron-lm", "megatron-bridge", "torchtitan", "nanotron", "deepspeed", "accelerate")
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
CLUSTERS = ("64xH100", "512xH100")


def plan_file(model: str, folder: Path) -> Path | None:
    """Return the file of a model's plan on the first cluster that holds one."""
    path = folder / "plan.json"
    for cluster in CLUSTERS:
        with redirect_stdout(StringIO()):
            code = run(["plan", model, "--cluster", cluster, "--quiet", "-o", str(path)])
        if code == 0:
            return path
    return None


def main() -> int:
    """Print the table, and the lines below it."""
    reasons: list[str] = []
    rows = []
    for model in MODELS:
        cells = []
        with TemporaryDirectory() as folder:
            path = plan_file(model, Path(folder))
            for launcher in LAUNCHERS if path is not None else ():
                try:
                    file = gnnplace.export_plan(gnnplace.read_plan(path), launcher)
                except GnnplaceError as error:
                    reason = str(error)
                    if reason not in reasons:
                        reasons.append(reason)
                    cells.append(f"line {1 + reasons.index(reason)}")
                    continue
                lost = len(file.losses)
                cells.append("file" + (f", {lost} not carried" if lost else ""))
        rows.append(f"| {model} | {' | '.join(cells)} |")
    head = ["", f"| model | {' | '.join(LAUNCHERS)} |", "|---" * (1 + len(LAUNCHERS)) + "|"]
    numbered = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    sys.stdout.write("\n".join([*head, *rows, "", *numbered, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
