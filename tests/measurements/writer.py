"""A process that writes runs into a store until it is told to stop or killed.

python -m tests.measurements.writer STORE NAME RUNS BATCHES
"""

from __future__ import annotations

import sys

from gnnplace.measurements import MeasurementStore, Outcome, RunRecord, StepRecord

BATCH = 5


def run_record(model: str = "m", number: int = 0, **changes) -> RunRecord:
    problem = {
        "format": "gnnplace-problem",
        "name": model,
        "microbatches": 2,
        "x": number,
    }
    given = {
        "model": model,
        "problem": problem,
        "fingerprint": f"{number:064x}",
        "placement": {"placer": "heft", "device": {"a": "cpu:0"}},
        "predicted": 0.5,
        "mode": "measured",
        "transport": "shm",
        "machine": {"cores": 2},
        "versions": {"torch": "2"},
    }
    return RunRecord(**(given | changes))


def step_record(step: int, wall: float = 1.0, interrupted: bool = False) -> StepRecord:
    transfers = (("v", "a", "cpu:0", "cpu:1", 8.0, 0.25, 0.5),)
    ops = {"a": (0.0, 0.25, 0.25), "b": (0.5, wall, 0.125)}
    return StepRecord(step, wall, wall / 2, interrupted, ops, transfers)


def main() -> None:
    url, name, runs, batches = (
        sys.argv[1],
        sys.argv[2],
        int(sys.argv[3]),
        int(sys.argv[4]),
    )
    store = MeasurementStore(url)
    for number in range(runs):
        record = run_record(name, number % 3)
        store.begin(record)
        for batch in range(batches):
            store.add_steps(
                record.id, [step_record(batch * BATCH + k) for k in range(BATCH)]
            )
            print(record.id, batch, flush=True)
        store.end(record.id, Outcome("ok", verified=True, bitwise=True))


if __name__ == "__main__":
    main()
