"""What the zygote runs: commands in process, and a training loop of ``gnnplace.compile``."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

MODEL = "mlp?batch=8&width=32&depth=2"


def prepare() -> None:
    """Imports everything and loads compiled kernels, as every command would."""
    import lightning  # noqa: F401
    import torch
    from jsonargparse import ArgumentParser  # noqa: F401

    import gnnplace
    import gnnplace.report.placements
    import gnnplace.train.cli
    from gnnplace.cli.main import COMMANDS, command
    from gnnplace.costs.profiling import cache

    torch.set_num_threads(1)
    cache.MOST_LOAD = cache.MOST_NOISE = float("inf")  # measure once, noisy or not
    for name in COMMANDS:
        command(name)
    for name in dir(gnnplace):
        getattr(gnnplace, name)
    gnnplace.warm()


def run(job: dict[str, Any]) -> int:
    """Runs a job; its exit code."""
    if job.get("no_memory"):
        _take_shared_memory()
    if job["what"] == "train and save":
        return train_and_save(Path(job["arguments"][0]))
    from gnnplace.cli import run_and_exit

    run_and_exit(job["arguments"])
    return 0


def train_and_save(path: Path) -> int:
    """Trains a placed model and saves after every step."""
    import torch

    import gnnplace
    from gnnplace.tracing.models import make_workload

    torch.manual_seed(0)
    step = gnnplace.compile(
        MODEL, path.with_name("placement.json"), "adamw", timeout=2.0
    )
    batch = make_workload(MODEL).inputs
    with step:
        for _ in range(60):
            step(batch)
            step.save(path)
    return 0


def _take_shared_memory() -> None:
    """Has the kernel refuse to map shared memory, as where there is none left."""

    def refused(*given: Any, **more: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    mmap.mmap = refused  # type: ignore[assignment,misc]
