"""What a cold start costs: kernels compiled, signatures, CPU seconds, by placer, without a cache.

Each placer is warmed in a process of its own with an empty folder for numba's cache, then once more
with what that left there. CPU seconds are of the whole process less its imports of the package.

    python benchmarks/compilation.py [PLACER ...]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

PLACERS = ("single", "portfolio", "learned", "best")
CODE = """
import resource, sys
from numba.core import event
from gnnplace import api

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
with event.install_listener("numba:compile", counter):
    api.warm([sys.argv[1]])
print(counter.all, counter.ours, len(counter.functions), f"{seconds() - begin:.1f}")
"""


def measured(placer: str, folder: str) -> list[str]:
    """Compilations, those of our kernels, kernels, CPU seconds."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
    command = [sys.executable, "-c", CODE, placer]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.split()


def main(placers: list[str]) -> None:
    """Prints a table."""
    print("| placer | compilations | of kernels | kernels | CPU s, cold | CPU s, cached |")
    print("|---|---|---|---|---|---|")
    for placer in placers:
        with tempfile.TemporaryDirectory() as folder:
            cold, cached = measured(placer, folder), measured(placer, folder)
        print("|", " | ".join([placer, *cold, cached[-1]]), "|", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(PLACERS))
