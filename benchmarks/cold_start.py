"""Cold starts: the processor time of a first ``place`` after an install, with no kernel on disk.

Each version of the package is a folder that has ``gnnplace`` in it. Their commands take turns, each
with an empty folder for numba's cache, so that the ratio of two versions is of one run on one
machine. Seconds are those of the command and of all processes that it started.

    python benchmarks/cold_start.py before=../old after=. [--placers etf,best] [--repeats 2]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gnnplace.bench.suite import read_suite
from gnnplace.problem.problem import write_problem

SUITE = Path(__file__).parent / "suites" / "standard.yaml"


def run_cold(package: Path, problem: Path, placer: str) -> tuple[float, float]:
    """Return the processor and wall-clock seconds of a first ``place``."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {
            "PYTHONPATH": str(package),
            "NUMBA_CACHE_DIR": cache,
        }
        answer = ["-o", f"{cache}/placement.json"]
        command = [
            sys.executable,
            "-m",
            "gnnplace",
            "place",
            str(problem),
            "--placer",
            placer,
        ]
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(
            command + answer,
            env=environment,
            cwd=cache,
            check=True,
            capture_output=True,
        )
        after, wall = (
            resource.getrusage(resource.RUSAGE_CHILDREN),
            time.monotonic() - begin,
        )
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return processor, wall


def main() -> None:
    """Print a table of seconds, and ratios to the first version."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="+", help="name=folder")
    parser.add_argument("--placers", default="etf,best")
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    versions = dict(version.split("=", 1) for version in arguments.versions)
    print("| placer | version | processor s | wall clock s | over the first version |")
    print("|---|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        problem = Path(folder) / "problem.json"
        write_problem(problem, read_suite(SUITE).problems[0].load())
        for placer in arguments.placers.split(","):
            seconds: dict[str, list[tuple[float, float]]] = {
                name: [] for name in versions
            }
            for _ in range(arguments.repeats):
                for name, package in versions.items():
                    seconds[name].append(
                        run_cold(Path(package).resolve(), problem, placer)
                    )
            first = sum(processor for processor, _ in seconds[next(iter(versions))])
            for name, runs in seconds.items():
                processor = sum(run[0] for run in runs)
                wall = sum(run[1] for run in runs) / len(runs)
                mean = processor / len(runs)
                print(
                    f"| {placer} | {name} | {mean:.1f} | {wall:.1f} | {processor / first:.2f} |"
                )


if __name__ == "__main__":
    main()
