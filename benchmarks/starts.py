"""What commands take to start: processor seconds, and the imports that cost most of each.

Each command runs four times in a process of its own. The first run warms the disk cache and
compiles kernels; the figure is the median of the other three, user and system time. The imports
are of one more run under ``python -X importtime``: the time of a package's own modules, without
what they import of others, in milliseconds of wall clock.

    python benchmarks/starts.py [--repository FOLDER] [-o FILE.md]
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RUNS = 3
SHOWN = 4  # imports of each command
LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \| +([\w.]+)")
PROBLEM = """
import sys
import numpy as np
from gnnplace.problem import write_problem
from tests.random_problems import random_problem
write_problem(sys.argv[1], random_problem(np.random.default_rng(0), 12, 2))
"""
HELPS = (
    "env",
    "costs",
    "place",
    "simulate",
    "plan",
    "shard",
    "convert",
    "bench",
    "train",
    "train fit",
)


def commands(folder: Path) -> dict[str, list[str]]:
    """Return the commands by what the table calls them; files are in a folder."""
    problem, placement = str(folder / "problem.json"), str(folder / "placement.json")
    place = ["place", problem, "--placer", "etf", "-o", placement]
    rows = {f"{name} --help": [*name.split(), "--help"] for name in HELPS}
    rows["place --placer etf, 12 ops"] = place
    rows["simulate, 12 ops"] = ["simulate", problem, placement]
    rows["env"] = ["env"]
    return rows


def start(
    repository: Path, arguments: Sequence[str], flags: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Run a command of a checkout in a fresh process.

    Raises:
        SystemExit: The command failed.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(repository),
        "GNNPLACE_STORE": "none",
    }
    done = subprocess.run(
        [sys.executable, *flags, "-m", "gnnplace", *arguments],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr[-500:]}")
    return done


def processor_seconds(repository: Path, arguments: Sequence[str]) -> float:
    """Return the user and system time of one start."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start(repository, arguments)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def costly_imports(
    repository: Path, arguments: Sequence[str]
) -> list[tuple[str, float]]:
    """Return the packages whose modules took longest to import, and their milliseconds."""
    told = start(repository, arguments, ("-X", "importtime")).stderr
    packages: Counter[str] = Counter()
    for microseconds, module in LINE.findall(told):
        packages[module.partition(".")[0]] += int(microseconds)
    return [(name, time / 1e3) for name, time in packages.most_common(SHOWN)]


def table(repository: Path) -> str:
    """Return the table of all commands, in Markdown."""
    lines = [
        "| command | processor s | imports that take longest, ms |",
        "|---|---:|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        rows = commands(Path(folder))
        subprocess.run(
            [sys.executable, "-c", PROBLEM, str(Path(folder) / "problem.json")],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=True,
        )
        for name, arguments in rows.items():
            start(repository, arguments)
            seconds = [processor_seconds(repository, arguments) for _ in range(RUNS)]
            imports = costly_imports(repository, arguments)
            shown = ", ".join(f"{package} {time:.0f}" for package, time in imports)
            lines.append(f"| `{name}` | {statistics.median(seconds):.2f} | {shown} |")
            print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table, and write it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--repository", type=Path, default=ROOT, help="another checkout"
    )
    parser.add_argument("-o", "--output", type=Path, help="a file to write as well")
    options = parser.parse_args()
    text = table(options.repository.resolve())
    print(text)
    if options.output is not None:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
