"""The lowest versions that ``pyproject.toml`` says the package works with, tried: ``make lowest``.

A fresh environment gets the lowest release of every dependency that its declared range admits, what
these need themselves comes as pip finds it, and every verb runs once on a small case. It takes some
minutes and a package index, and is no part of ``make test``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[1]
SMALL = "hf:gpt2?n_layer=2&n_embd=64&n_head=2&vocab_size=256&length=32"
RECIPE = str(ROOT / "trainers" / "smoke.yaml")
COMMANDS = (
    ("env",),
    ("capture", "mlp?batch=8", "-o", "graph.json"),
    ("profile", "mlp?batch=8", "--cluster", "cpu:2", "-o", "problem.json"),
    ("place", "problem.json", "--budget", "0", "-o", "placement.json"),
    ("place", "problem.json", "--placer", "min-cut", "--budget", "0", "-o", "cut.json"),
    ("place", "problem.json", "--placer", "exact", "--budget", "1", "-o", "exact.json"),
    (
        "place",
        "problem.json",
        "--placer",
        "optuna",
        "--budget",
        "0.2",
        "-o",
        "optuna.json",
    ),
    ("place", "problem.json", "--placer", "gnn", "--budget", "0", "-o", "gnn.json"),
    ("simulate", "problem.json", "placement.json", "--json"),
    ("explain", "problem.json", "placement.json"),
    ("diff", "problem.json", "placement.json", "cut.json"),
    ("report", "problem.json", "placement.json", "-o", "report.html"),
    ("execute", "mlp?batch=8", "placement.json", "--steps", "2"),
    ("compare", "problem.json", "--budget", "0"),
    (
        "plan",
        SMALL,
        "--cluster",
        "nvlink-a100-2",
        "--batch",
        "8",
        "--budget",
        "0",
        "-o",
        "plan.json",
    ),
    (
        "plan",
        SMALL,
        "--cluster",
        "cpu:2",
        "--batch",
        "8",
        "--given",
        "dp=2,zero=1",
        "-o",
        "two.json",
    ),
    ("execute", SMALL, "two.json"),
    ("convert", "plan.json", "--to", "deepspeed", "-o", "deepspeed.json"),
    ("shard", "mlp?batch=8", "--devices", "2", "--pareto", "--json"),
    ("shard", "mlp?batch=8", "--devices", "2", "-o", "split.json"),
    ("plan", "mlp?batch=8", "--cluster", "pcie-a100-4", "--goal", "epochs"),
    ("costs", "show", "--cluster", "nvlink-a100-2"),
    (
        "fidelity",
        "mlp?batch=8",
        "--cluster",
        "cpu:2",
        "--placements",
        "5",
        "--budget",
        "0",
    ),
    ("bench", str(ROOT / "benchmarks" / "suites" / "smoke.yaml"), "-o", "results"),
    ("measurements", "list"),
    (
        "train",
        "fit",
        "--config",
        RECIPE,
        "--trainer.max_steps",
        "1",
        "--trainer.limit_val_batches",
        "1",
    ),
    (
        "train",
        "sweep",
        RECIPE,
        "--trials",
        "2",
        "--study",
        "lowest",
        "--set=model.hidden=8|16",
        "--trainer.max_steps=1",
        "--trainer.limit_val_batches=1",
    ),
)


def lowest_release(python: Path, requirement: Requirement) -> str:
    """Return the lowest release that a requirement admits, as pip's index has it.

    Raises:
        SystemExit: The index has none.
    """
    listed = subprocess.run(
        [python, "-m", "pip", "index", "versions", requirement.name],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    line = re.search(r"Available versions: (.*)", listed)
    releases = [Version(text) for text in line[1].split(", ")] if line else []
    admitted = [release for release in releases if release in requirement.specifier]
    if not admitted:
        sys.exit(f"{requirement}: the index has no such release")
    return str(min(admitted))


def pins_of(python: Path) -> list[str]:
    """Return the dependencies of the package and of `all`, each pinned to its lowest release."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    extras_of = project["optional-dependencies"]
    declared = [*project["dependencies"]]
    for extra in sorted(Requirement(extras_of["all"][0]).extras):
        declared += [
            text for text in extras_of[extra] if Requirement(text).name != "gnnplace"
        ]
    pins = []
    for text in declared:
        requirement = Requirement(text)
        extras = (
            f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
        )
        pins.append(
            f"{requirement.name}{extras}=={lowest_release(python, requirement)}"
        )
    return pins


def failures(python: Path, folder: Path) -> list[str]:
    """Run every verb once. Return a line for each that failed."""
    lines = []
    # The store of measurements is a new one, whatever the caller has set.
    environment = {**os.environ, "GNNPLACE_STORE": str(folder / "measurements.db")}
    for command in COMMANDS:
        done = subprocess.run(
            [python, "-m", "gnnplace", *command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        name = " ".join(command[:2])
        print(f"{'ok' if done.returncode == 0 else 'FAILED':6} {name}", flush=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            lines.append(f"{name}: exit {done.returncode}: {last[:300]}")
    return lines


def main(arguments: list[str]) -> int:
    """Make the environment, in the folder that is given or a temporary one, and run the verbs."""
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(arguments[0]) if arguments else Path(temporary) / "environment"
        python = place / "bin" / "python"
        if not python.exists():
            venv.create(place, with_pip=True)
            pins = pins_of(python)
            print("\n".join(pins), flush=True)
            pip = [
                python,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ]
            subprocess.run([*pip, *pins, "packaging"], check=True)
            subprocess.run([*pip, "--no-deps", str(ROOT)], check=True)
        folder = Path(temporary) / "work"
        folder.mkdir()
        failed = failures(python, folder)
    print(
        "\n".join(failed) if failed else f"all {len(COMMANDS)} commands work",
        flush=True,
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
