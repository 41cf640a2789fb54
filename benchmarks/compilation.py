"""What a cold start costs: kernels compiled, signatures, CPU seconds, by placer, without a cache.

Each placer is warmed in a process of its own with an empty folder for numba's cache, then once more
with what that left there. CPU seconds are of one process that does it alone, less its imports of
the package; wall seconds are with the process that helps, as commands have it.

    python benchmarks/compilation.py [PLACER ...]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

PLACERS = ("single", "portfolio", "learned", "best")
CODE = """
import resource, sys, time
from numba.core import event
import gnnplace

class Counter(event.Listener):
    def __init__(self):
        self.ours, self.functions, self.all = 0, set(), 0
    def on_start(self, event):
        function = event.data["dispatcher"].py_func
        self.all += 1
        if function.__module__.startswith("gnnplace"):
            self.ours += 1
            self.functions.add((function.__module__, function.__qualname__))
    def on_end(self, event):
        pass

def seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

begin, counter = seconds(), Counter()
start = time.perf_counter()
with event.install_listener("numba:compile", counter):
    gnnplace.warm([sys.argv[1]], helped=sys.argv[2] == "helped")
took = time.perf_counter() - start
print(counter.all, counter.ours, len(counter.functions), f"{seconds() - begin:.1f} {took:.1f}")
"""


def measured(placer: str, folder: str, how: str = "alone") -> list[str]:
    """Compilations, those of our kernels, kernels, CPU seconds, wall seconds."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
    command = [sys.executable, "-c", CODE, placer, how]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.split()


def main(placers: list[str]) -> None:
    """Prints a table."""
    print(
        "| placer | compilations | of kernels | kernels | CPU s, cold | CPU s, cached | wall s |"
    )
    print("|---|---|---|---|---|---|---|")
    for placer in placers:
        with tempfile.TemporaryDirectory() as folder:
            *cold, _ = measured(placer, folder)
            cached = measured(placer, folder)[-2]
        with tempfile.TemporaryDirectory() as folder:
            wall = measured(placer, folder, "helped")[-1]
        print("|", " | ".join([placer, *cold, cached, wall]), "|", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(PLACERS))
