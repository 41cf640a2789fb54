"""What a CPU's AdamW takes beside its memory's rate: ``python -m benchmarks.host_adam``.

Steps with ``offload=optimizer`` update parameters on the host. Their price is ``host_adam`` bytes a
parameter over a part of the memory's rate (``costs/frameworks/offloading.py``). Here both are
measured on this machine, with all of its cores: PyTorch's fused AdamW in float32 on one large
tensor, with the copy to the half type that goes back to the GPU, and the same bytes by plain copies
of tensors of the same size. The rows say how much of the copies' rate the update reaches.

Complexity: O(parameters) a repetition.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable

import torch
from torch.utils.benchmark import Timer

READ_AND_WRITTEN = 28
"""Bytes a parameter that AdamW in float32 reads (parameter, gradient, two moments) and writes."""
HALF_COPY = 6
"""Bytes a parameter that the copy to the half type reads and writes."""


def measure(call: Callable[[], object]) -> float:
    """Return the median seconds of a call on all cores."""
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return float(timer.blocked_autorange(min_run_time=2.0).median)


def main() -> None:
    """Measure, and print one JSON row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=int, default=50_000_000)
    args = parser.parse_args()
    count = args.parameters
    parameter = torch.nn.Parameter(torch.randn(count))
    parameter.grad = torch.randn(count)
    half = torch.empty(count, dtype=torch.bfloat16)
    target = torch.empty(count)
    # One copy reads and writes four bytes a parameter each.
    copy = measure(lambda: target.copy_(parameter.detach()))
    copied = 8 * count / copy
    row: dict[str, object] = {
        "machine": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "parameters": count,
        "copy_gb_per_s": round(copied / 1e9, 2),
    }
    for name in ("fused", "foreach"):
        optimizer = torch.optim.AdamW([parameter], lr=1e-4, **{name: True})
        update = measure(optimizer.step)
        row[f"{name}_ns_per_parameter"] = round(1e9 * update / count, 3)
        rate = READ_AND_WRITTEN * count / update
        row[f"{name}_share_of_copy"] = round(rate / copied, 3)
    to_half = measure(lambda: half.copy_(parameter.detach()))
    row["half_copy_share_of_copy"] = round(HALF_COPY * count / to_half / copied, 3)
    print(json.dumps(row))


if __name__ == "__main__":
    main()
