"""What an answer is the best in, as `--goal` of `plan` and `shard` names it."""

from __future__ import annotations

from enum import StrEnum


class SearchGoal(StrEnum):
    """What a plan or a split is the best in, among those that fit.

    Attributes:
        TIME: The step takes the least time.
        GPUS: The fewest devices are used that meet a limit.
        MEMORY: The fullest device needs the least memory.
        COST: The training costs the least money, of several clusters; for `plan` alone.
        EPOCHS: The training takes the least time until it has converged; for `plan` alone.
    """

    TIME = "time"
    GPUS = "gpus"
    MEMORY = "memory"
    COST = "cost"
    EPOCHS = "epochs"
