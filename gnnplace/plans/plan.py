"""`Plan`: how a model is trained on a cluster, and its file (`gnnplace-plan`, version 1)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from gnnplace.errors import FormatError
from gnnplace.files import Schema, parse, read_json, write_json

Positive = Annotated[int, Field(ge=1)]


class StageEntry(Schema):
    """A stage of a plan's file.

    `devices` is a mesh, a row a replica and a column a shard. `placements` gives the split of
    parameters and calls over the shards in DTensor's words (`segments.placements`). `saved` are the
    bytes that a device keeps of a micro-batch between its forward and its backward pass,
    `seconds` those of its forward pass, gradients of activations and of weights; predicted.
    """

    modules: list[str]
    members: list[str]
    devices: Annotated[list[Annotated[list[str], Field(min_length=1)]], Field(min_length=1)]
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    recompute: list[str] = []
    placements: dict[str, list[str]] = {}
    seconds: list[float] = []
    saved: float | None = None


class InputEntry(Schema):
    """An input that the model was recorded with; `name` where inputs are a mapping."""

    name: str | None = None
    shape: list[int]
    dtype: str


class MemoryEntry(Schema):
    """Bytes of a device."""

    state: float
    activations: float
    working: float
    slack: float


class PlanFile(Schema):
    """The keys of a plan's file.

    `sent` are predicted seconds of a message from each stage to the next, `ends` those of each rank
    after its last pass; no plan is below `lower_bound`, and none with one stage a rank below
    `one_stage_bound`; `frontier` has bytes of the fullest device and seconds of the step of plans
    that were timed, none worse than another in both.
    """

    format: Literal["gnnplace-plan"]
    version: Literal[1]
    model: str
    fingerprint: str
    cluster: str
    batch: Positive
    microbatch_size: Positive
    precision: str
    optimizer: str
    inputs: list[InputEntry] = []
    schedule: str = "1f1b"
    stages: Annotated[list[StageEntry], Field(min_length=1)]
    ranks: list[int] = []
    actions: list[list[str]]
    step_time: float | None = None
    interval: list[float] | None = None
    lower_bound: float | None = None
    one_stage_bound: float | None = None
    claim: str = ""
    parts: dict[str, float] = {}
    memory: dict[str, MemoryEntry] = {}
    sent: list[float] = []
    ends: list[float] = []
    frontier: list[list[float]] = []


@dataclass(frozen=True)
class OpPlacement:
    """A placement of single ops that is faster than a plan.

    Attributes:
        step_time: predicted seconds of a step.
        command: what makes it; empty where the model has no name.
    """

    step_time: float
    command: str


@dataclass(frozen=True)
class Trial:
    """A plan that was run for a few steps.

    Attributes:
        shape: of the plan, in a few words.
        predicted: seconds of a step.
        measured: the same, the median; None where it could not be run.
        fault: why it could not be run, in one line.
    """

    shape: str
    predicted: float
    measured: float | None
    fault: str = ""


@dataclass(frozen=True, eq=False)
class Plan:
    """A plan.

    Attributes:
        file: what its file says.
        reason: why it cannot be trained so; None where it can.
        notices: what a reader should know, each in one line.
        op_placement: a placement of single ops that is faster; None where none was found.
        trials: of the plans that this one was taken from by measured times, in order of predicted
            ones; none where nothing was run.
    """

    file: PlanFile
    reason: str | None = None
    notices: tuple[str, ...] = field(default=())
    op_placement: OpPlacement | None = None
    trials: tuple[Trial, ...] = ()

    @property
    def feasible(self) -> bool:
        """Whether it fits its devices."""
        return self.reason is None

    @property
    def step_time(self) -> float:
        """Predicted seconds of a step; inf where it cannot run."""
        return float("inf") if self.file.step_time is None else self.file.step_time

    @property
    def microbatches(self) -> int:
        """Micro-batches of a step, M."""
        replicas = len(self.file.stages[0].devices)
        return self.file.batch // (self.file.microbatch_size * replicas)

    @property
    def shape(self) -> str:
        """Meshes of the stages, micro-batches and schedule, in a few words."""
        meshes = [f"{len(s.devices)}x{len(s.devices[0])}" for s in self.file.stages]
        told = f"{len(meshes)} x {meshes[0]}" if len(set(meshes)) == 1 else " + ".join(meshes)
        zeros = sorted({s.zero for s in self.file.stages if len(s.devices) > 1})
        again = sum(len(s.recompute) for s in self.file.stages)
        more = [f"ZeRO {'/'.join(map(str, zeros))}"] if any(zeros) else []
        more += [f"{again} recomputed"] if again else []
        cut = f"{self.microbatches} of {self.file.microbatch_size}"
        return ", ".join([told, cut, self.file.schedule, *more])

    def to_data(self) -> dict[str, Any]:
        """As JSON has it."""
        return self.file.model_dump(mode="json")

    def save(self, path: str | Path) -> None:
        """Writes the file at once or not at all."""
        write_json(path, self.to_data())

    def answer(self) -> dict[str, Any]:
        """What `plan --json` prints."""
        file = self.file
        memory = {n: sum(m.model_dump().values()) for n, m in file.memory.items()}
        return {
            "step_time": file.step_time,
            "interval": file.interval,
            "lower_bound": file.lower_bound,
            "one_stage_bound": file.one_stage_bound,
            "memory": memory,
            "feasible": self.feasible,
            "reason": self.reason,
            "op_placement": None if self.op_placement is None else asdict(self.op_placement),
            "trials": [asdict(trial) for trial in self.trials],
            "plan": self.to_data(),
        }


def read_plan(path: str | Path) -> Plan:
    """Reads a plan's file.

    Raises:
        FormatError: naming the file, the key path and the fault.
    """
    return plan_from_data(read_json(path), str(path))


def plan_from_data(data: Any, source: str) -> Plan:
    """The plan that JSON holds.

    Raises:
        FormatError: naming `source`, the key path and the fault.
    """
    file = parse(PlanFile, data, source)
    seen: set[str] = set()
    for k, stage in enumerate(file.stages):
        width = {len(row) for row in stage.devices}
        if len(width) > 1:
            raise FormatError(f"{source}: stages[{k}].devices: rows of different lengths")
        names = {name for row in stage.devices for name in row}
        if len(names) < sum(len(row) for row in stage.devices):
            raise FormatError(f"{source}: stages[{k}].devices: a device is repeated")
        seen |= names
    replicas = len(file.stages[0].devices)
    share = file.microbatch_size * replicas
    if file.batch % share:
        raise FormatError(
            f"{source}: batch: {file.batch} is no multiple of {file.microbatch_size} examples on "
            f"{replicas} replicas"
        )
    return Plan(file)
