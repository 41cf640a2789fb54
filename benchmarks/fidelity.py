"""Predicted against measured step times on eight models: `gnnplace fidelity`, and one table.

Each model is studied by a command of its own, whose folder stays: after an interruption the same
command goes on with the models that are left. Wall clock: for an idle machine; `--clock virtual`
counts each worker's own CPU time.

    python benchmarks/fidelity.py [--clock wall|virtual] [-o runs/fidelity] [--table-only]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

MODELS = (
    "two_tower",
    "moe?batch=512",
    "mlp?batch=512",
    "bert",
    "vit",
    "inception",
    "gpt2",
    "seq2seq",
)
SPEARMAN, MAPE, REGRET = 0.95, 0.08, 0.03
HEAD = ("model", "one device", "range", "halves agree", "Spearman", "MAPE", "bias")
HEAD += ("predicted best misses", "failed", "meets")


def main() -> None:
    """Studies all models and prints one table, before and after calibration."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--placements", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--budget", type=float, default=0.3)
    parser.add_argument("--clock", default="wall", choices=("wall", "virtual"))
    parser.add_argument(
        "--table-only", action="store_true", help="of what was studied before"
    )
    parser.add_argument("-o", "--output", default="runs/fidelity")
    arguments = parser.parse_args()
    studies = {}
    for model in arguments.models.split(","):
        folder = Path(arguments.output) / model.replace("?", "-").replace("=", "-")
        path = folder / "fidelity.json"
        if not path.exists() and not arguments.table_only:
            study(model, folder, arguments)
        if path.exists():
            studies[model] = json.loads(path.read_text(encoding="utf-8"))
    Console(width=None if sys.stdout.isatty() else 150, highlight=False).print(
        table(studies)
    )


def study(model: str, folder: Path, arguments: argparse.Namespace) -> None:
    """Runs the command; a model that fails is missing in the table, and says why."""
    sys.stderr.write(f"{model}\n")
    folder.parent.mkdir(parents=True, exist_ok=True)
    given = {
        "placements": arguments.placements,
        "rounds": arguments.rounds,
        "steps": arguments.steps,
        "budget": arguments.budget,
        "clock": arguments.clock,
        "mode": "measured" if arguments.clock == "wall" else "emulated",
        "store": folder.parent / "store.db",
        "output": folder,
    }
    options = [f"--{key}={value}" for key, value in given.items()]
    command = [
        sys.executable,
        "-m",
        "gnnplace",
        "fidelity",
        model,
        "--cluster",
        "cpu:2",
        *options,
    ]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)


def table(studies: dict[str, dict]) -> Table:
    """Rows of a model: as profiled, calibrated on other placements, that with median steps."""
    met = sum(meets(data) for data in studies.values())
    bars = f"Spearman {SPEARMAN}, MAPE {MAPE:.0%}, {REGRET:.0%}"
    title = f"{met} of {len(studies)} models meet {bars}"
    shown = Table(*HEAD, title=title)
    for model, data in studies.items():
        times = [row["measured"] for row in data["rows"] if row["measured"]]
        single = [row["measured"] for row in data["rows"] if row["name"] == "single"]
        one = f"{1e3 * single[0]:.1f} ms" if single and single[0] else "-"
        reach = f"{1e3 * min(times):.1f} to {1e3 * max(times):.1f}" if times else "-"
        failed = str(sum(row["measured"] is None for row in data["rows"]))
        known = (model, one, reach, text(data["repeated"].get("spearman")))
        shown.add_row(*known, *cells(data["before"]), failed, "")
        mark = "yes" if meets(data) else "no"
        shown.add_row("  calibrated", "", "", "", *cells(data["after"]), "", mark)
        usual = text(data["typical_repeated"].get("spearman"))
        shown.add_row("  median steps", "", "", usual, *cells(data["typical"]), "", "")
    return shown


def cells(found: dict) -> tuple[str, ...]:
    """Spearman, MAPE, bias, regret of an agreement."""
    if not found:
        return ("-",) * 4
    shares = (found["mape"], found["bias"], found["regret"])
    return (text(found["spearman"]), *(f"{100 * share:.1f} %" for share in shares))


def text(value: float | None) -> str:
    """A correlation."""
    return "-" if value is None else f"{value:.3f}"


def meets(data: dict) -> bool:
    """Whether the goals are met after calibration."""
    after = data["after"]
    return bool(
        after
        and (after["spearman"] or 0.0) >= SPEARMAN
        and after["mape"] <= MAPE
        and after["regret"] <= REGRET
    )


if __name__ == "__main__":
    main()
