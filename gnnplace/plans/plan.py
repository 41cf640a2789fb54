"""`Plan`: how a model is trained on a cluster, and its file (`gnnplace-plan`, version 2).

This module validates each key by itself; `plans.reading` checks keys against each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from gnnplace.files import Schema, write_json

Count = Annotated[int, Field(ge=1, le=10**9)]
Whole = Annotated[int, Field(ge=0, le=10**9)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
Size = Annotated[float, Field(ge=0, le=1e18)]
Flops = Annotated[float, Field(ge=0, le=1e28)]
Name = Annotated[str, StringConstraints(min_length=1)]
Type = Annotated[
    str, StringConstraints(pattern=r"^(bool|(u?int|float|bfloat|complex)[0-9]\w*)$")
]
Part = Annotated[
    str,
    StringConstraints(
        pattern="^(compute|recompute|zero|collectives|reduction|update|bubble)$"
    ),
]
Devices = Annotated[
    list[
        Annotated[list[Annotated[list[Name], Field(min_length=1)]], Field(min_length=1)]
    ],
    Field(min_length=1),
]


def find_layer(module: str) -> str:
    """Return the outermost numbered module on a module's path: `h.3` of `h.3.attn.0`, else ""."""
    parts = module.split(".")
    number = next((k for k, part in enumerate(parts) if part.isdecimal()), None)
    if number is None:
        return ""
    return ".".join(parts[: number + 1])


"""Words for what is recomputed; `block:K` a stage's first K layers, `uniform:K` groups of K."""


class RecomputeEntry(Schema):
    """What a stage computes again for its backward passes.

    `full` keeps only the inputs of segments. `modules` names these by their first call. Of `layers`
    neighbouring segments only the first one's input is kept; 0 keeps every segment's. `selective`
    computes their attention again, from queries, keys and values on.
    """

    kind: Literal["none", "selective", "full"] = "none"
    modules: list[Name] = []
    layers: Whole = 0


OWN = "gnnplace"
"""The package's own runner among launchers: it runs whatever PyTorch's prices are of."""
BORDER = "whole|tokens|examples"


def border_words(border: str, axes: int) -> tuple[str, ...]:
    """Return the word of a border for each axis of the shards.

    A border has one word for all axes, or one for each, separated by commas.
    """
    words = border.split(",")
    if len(words) > 1:
        return tuple(words)
    return (border,) * axes


class StageEntry(Schema):
    """A stage of a plan's file.

    What goes from segment to segment, and on to the next stage, is `whole` on every shard, or cut
    along its second axis (`tokens`) or its first (`examples`).

    Attributes:
        modules: Paths of the stage's modules, in order.
        members: Names of the calls of its segments, in order.
        devices: Names of its devices, nested as replicas, outer shards, inner shards.
        border: How tensors between segments are cut: one word for all shards, or one for the outer
            and one for the inner shards, as "examples,tokens".
        zero: ZeRO stage, 0 to 3.
        recompute: What is computed again for the backward passes.
        regather: Whether a shard keeps its part of what shards gather, and gathers it again for the
            backward pass.
        placements: Split of parameters and calls over replicas, outer shards and inner shards, in
            DTensor's words (`segments.placements`).
        seconds: Predicted seconds of the forward pass, of gradients of activations and of gradients
            of weights.
        saved: Bytes that a device keeps of a micro-batch between its forward and backward pass.
    """

    modules: list[Name]
    members: Annotated[list[Name], Field(min_length=1)]
    devices: Devices
    border: Annotated[str, StringConstraints(pattern=f"^({BORDER})(,({BORDER}))?$")] = (
        "whole"
    )
    zero: Annotated[int, Field(ge=0, le=3)] = 0
    recompute: RecomputeEntry = RecomputeEntry()
    regather: bool = False
    placements: dict[
        Name, Annotated[list[Name], Field(min_length=3, max_length=3)]
    ] = {}
    seconds: list[Seconds] = []
    saved: Size | None = None

    @property
    def axes(self) -> tuple[int, ...]:
        """Return the number of shards along each axis, the outer axis first."""
        outer = len(self.devices[0])
        inner = len(self.devices[0][0])
        if outer == 1:
            return (inner,)
        return (outer, inner)

    @property
    def borders(self) -> tuple[str, ...]:
        """Return the word of `border` for each axis."""
        return border_words(self.border, len(self.axes))

    @property
    def spread(self) -> int:
        """Return how many shards of a replica have examples of their own; 1 if none has."""
        pairs = zip(self.axes, self.borders, strict=False)
        return math.prod(count for count, word in pairs if word == "examples")

    @property
    def rows(self) -> list[list[str]]:
        """Return the names of the devices, one row for each replica."""
        return [
            [name for outer in replica for name in outer] for replica in self.devices
        ]

    @property
    def device_names(self) -> list[str]:
        """Return the names of the devices in one list."""
        return [name for row in self.rows for name in row]


class InputEntry(Schema):
    """An input that the model was recorded with.

    Attributes:
        name: Its name, where inputs are a mapping.
        shape: Its sizes.
        dtype: Its type, in torch's words.
    """

    name: Name | None = None
    shape: list[Whole]
    dtype: Type


class MemoryEntry(Schema):
    """The bytes of a device, by what holds them.

    Attributes:
        state: Parameters, gradients, optimizer and buckets.
        activations: What micro-batches in flight keep for their backward passes.
        working: The largest values at work.
        slack: Fragmentation of the allocator, and libraries.
    """

    state: Size
    activations: Size
    working: Size
    slack: Size

    @property
    def all(self) -> float:
        """Return the bytes in all."""
        return sum((self.state, self.activations, self.working, self.slack))


@dataclass(frozen=True)
class MemoryParts:
    """Bytes of a device at its fullest, by what holds them; they add up to `total`.

    Attributes:
        device: The device's name.
        parameters: Bytes of the parameters on this device.
        gradients: Bytes of their gradients and the sums of these.
        optimizer: Bytes of the optimizer's state and the float32 copy of half parameters.
        frozen: Bytes of parameters that are not trained.
        buckets: Bytes of buckets in which replicas exchange gradients and shards gather inputs.
        activations: Bytes that micro-batches in flight keep for their backward passes.
        working: Bytes of the largest values at work, gathered parameters among them.
        slack: Bytes of the allocator's fragmentation and of libraries.
        usable: Bytes that the device has for all of it.
    """

    device: str
    parameters: float
    gradients: float
    optimizer: float
    frozen: float
    buckets: float
    activations: float
    working: float
    slack: float
    usable: float

    @property
    def parts(self) -> dict[str, float]:
        """Return the bytes of each part."""
        return {
            "parameters": self.parameters,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "frozen": self.frozen,
            "buckets": self.buckets,
            "activations": self.activations,
            "working": self.working,
            "slack": self.slack,
        }

    @property
    def total(self) -> float:
        """Return the bytes in all."""
        return sum(self.parts.values())

    @property
    def lacking(self) -> float:
        """Return the bytes that the device has too few; negative if some are free."""
        return self.total - self.usable

    @property
    def binds(self) -> str:
        """Return the name of the largest part."""
        parts = self.parts
        return max(parts, key=parts.__getitem__)

    def text(self) -> str:
        """Format the parts that there are, in a unit that suits."""
        scale, unit, digits = (1e9, "GB", 2) if self.total >= 1e8 else (1e6, "MB", 3)
        amounts: list[str] = []
        for name, size in self.parts.items():
            if size:
                amounts.append(f"{name} {size / scale:.{digits}f}")
        return f"{self.total / scale:.{digits}f} {unit} ({', '.join(amounts)})"

    def lack_text(self, device: str) -> str:
        """Format how much a device lacks, of what, and what would help.

        Args:
            device: What the device is called.
        """
        scale, unit = (1e9, "GB") if self.usable >= 1e8 else (1e6, "MB")
        trained = self.parameters + self.gradients + self.optimizer + self.buckets
        state = trained + self.frozen
        if state > self.total / 2:
            mend = "take more stages or shards, a higher ZeRO, or a leaner optimizer"
        else:
            mend = "recompute more of it, or take smaller micro-batches or more shards"
        return (
            f"{device} lacks {self.lacking / scale:.2f} {unit}: it has {self.usable / scale:.2f} "
            f"{unit} and needs {self.text()}; {mend}"
        )

    def to_data(self) -> dict[str, Any]:
        """Return the parts as JSON has them."""
        return {
            "device": self.device,
            **self.parts,
            "total": self.total,
            "usable": self.usable,
            "binds": self.binds,
        }


class AlternativeEntry(Schema):
    """The fastest plan that a launcher can run.

    Attributes:
        step_time: Predicted seconds of a step.
        interval: Interval of the step time.
        feasible: Whether there is a plan.
        reason: Why there is no plan.
        plan: The plan's file.
    """

    step_time: Seconds | None = None
    interval: Annotated[list[Seconds], Field(min_length=2, max_length=2)] | None = None
    feasible: bool = False
    reason: str | None = None
    plan: PlanFile | None = None


class TradeEntry(Schema):
    """A plan that trades time for memory or devices. No plan beside it is better in both.

    Attributes:
        words: The plan in words.
        num_devices: Devices that it uses.
        memory: Bytes that its fullest device reserves.
        step_time: Predicted seconds of a step.
    """

    words: Name
    num_devices: int
    memory: Size
    step_time: Seconds


class RecognisedEntry(Schema):
    """What of a captured model's step a framework's kernels price.

    Attributes:
        share: Share of the seconds of a micro-batch's passes.
        unrecognised: Modules that are priced as they were captured; `*` stands for any number.
        written_out: Modules whose attention is recognised and written out.
    """

    share: Annotated[float, Field(ge=0, le=1)]
    unrecognised: list[Name] = []
    written_out: list[Name] = []


class PlanFile(Schema):
    """The keys of a plan's file.

    Attributes:
        format: Always "gnnplace-plan".
        version: Version of the format.
        model: Name of the model.
        fingerprint: SHA-256 of the model's structure.
        cluster: Name of the cluster.
        cluster_file: The cluster's YAML file, where it has one.
        batch: Examples of a step.
        microbatch_size: Examples of a micro-batch on the shards of one replica.
        precision: Precision of parameters and passes, in Lightning's words.
        gradients: Type in which gradients are summed: "fp32", or "same" as the parameters'.
        loss: Whether a step's loss is the mean of its micro-batches' losses, or their sum.
        optimizer: One of `costs.optimizers`.
        lora: Adapters that are trained instead of the parameters; None: all parameters are trained.
        framework: Framework whose constants priced the plan.
        source: What seconds and bytes are from: the kernels that were "captured", or the model's
            "blocks" or "sizes" as the framework trains them.
        recognised: What of a captured model the framework's kernels price; None if none does.
        environment: Environment that the prices assume, such as "checked-collectives".
        launcher: Launcher whose space was searched, of a plan that was found by words.
        words: The plan in words, if it was found by words.
        inputs: Inputs that the model was recorded with.
        schedule: Name of the schedule. It ends in ":searched" if the order of passes was searched.
        stages: The stages, in the order of the model.
        ranks: Pipeline rank of every stage; empty: each has its own.
        actions: Actions of every rank, in order.
        flops: FLOPs of the model's products in a step, forward and backward, without recomputation.
        step_time: Predicted seconds of a step.
        interval: Interval of the step time.
        lower_bound: Seconds that no plan is below.
        one_stage_bound: Seconds that no plan with one stage a rank is below.
        claim: What the bounds prove about the plan.
        parts: Seconds of the busiest rank by what they are spent on.
        memory: Bytes of every device, by its name.
        fits: Probability that the fullest device holds the plan. It is 1 or 0 for captured kernels,
            whose bytes are counted without a spread.
        sent: Predicted seconds of a message from each stage to the next.
        ends: Predicted seconds of each rank after its last pass.
        frontier: Bytes of the fullest device and seconds of a step of plans that were timed, none
            worse than another in both.
        alternatives: Every launcher's own fastest plan.
        trades: Plans of the launcher with less memory or fewer devices, where these were asked for.
    """

    format: Literal["gnnplace-plan"]
    version: Literal[2]
    model: Name
    fingerprint: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
    cluster: Name
    cluster_file: Name | None = None
    batch: Count
    microbatch_size: Count
    precision: str
    gradients: Literal["same", "fp32"] = "same"
    loss: Literal["mean", "sum"] = "mean"
    optimizer: str
    lora: Name | None = None
    framework: Name = "pytorch"
    source: Literal["captured", "blocks", "sizes"] = "captured"
    recognised: RecognisedEntry | None = None
    environment: Name | None = None
    launcher: Name | None = None
    words: Name | None = None
    inputs: list[InputEntry] = []
    schedule: str = "1f1b"
    stages: Annotated[list[StageEntry], Field(min_length=1)]
    ranks: list[Whole] = []
    actions: list[list[str]]
    flops: Flops | None = None
    step_time: Seconds | None = None
    interval: Annotated[list[Seconds], Field(min_length=2, max_length=2)] | None = None
    lower_bound: Seconds | None = None
    one_stage_bound: Seconds | None = None
    claim: str = ""
    parts: dict[Part, Seconds] = {}
    memory: dict[Name, MemoryEntry]
    fits: Annotated[float, Field(ge=0, le=1)] | None = None
    sent: list[Seconds] = []
    ends: list[Seconds] = []
    frontier: list[Annotated[list[Size], Field(min_length=2, max_length=2)]] = []
    alternatives: dict[Name, AlternativeEntry] = {}
    trades: list[TradeEntry] = []

    @property
    def rank_of(self) -> tuple[int, ...]:
        """Return the pipeline rank of every stage. [stages]

        Each stage has its own rank if the file does not say.
        """
        return tuple(self.ranks) or tuple(range(len(self.stages)))

    @property
    def tokens(self) -> int | None:
        """Return the tokens of a step, or None if examples are not rows of tokens."""
        if not self.inputs:
            return None
        length = row_length(self.inputs[0].shape, self.inputs[0].dtype)
        return None if length is None else self.batch * length

    @property
    def unit(self) -> str:
        """Return the unit of `rate`: "tokens", or "examples" if examples are not rows of tokens."""
        if self.tokens is None:
            return "examples"
        return "tokens"

    @property
    def rate(self) -> float:
        """Return the predicted tokens a second, or examples a second if there are no tokens."""
        return (self.tokens or self.batch) / max(self.step_time or 0.0, 1e-12)

    @property
    def microbatches(self) -> int:
        """Return the number of micro-batches of a step, M."""
        return self.batch // (self.microbatch_size * len(self.stages[0].devices))


AlternativeEntry.model_rebuild()


def row_length(shape: Sequence[int], dtype: str) -> int | None:
    """Return the tokens of an example, or None if examples are not rows of tokens.

    Args:
        shape: The shape of the first input, examples first.
        dtype: Its type.
    """
    if len(shape) != 2 or not dtype.startswith("int"):
        return None
    return shape[1]


@dataclass(frozen=True)
class OpPlacement:
    """A placement of single ops that is faster than a plan.

    Attributes:
        step_time: Predicted seconds of a step.
        command: The command that makes it; empty where the model has no name.
    """

    step_time: float
    command: str


@dataclass(frozen=True)
class TrialEntry:
    """A plan that was run for a few steps.

    Attributes:
        shape: The plan in a few words.
        predicted: Predicted seconds of a step.
        measured: Median measured seconds of a step; None where it could not be run.
        fault: Why it could not be run, in one line.
    """

    shape: str
    predicted: float
    measured: float | None
    fault: str = ""


@dataclass(frozen=True, eq=False)
class Plan:
    """A training plan with its file, its price and what was found about it.

    Attributes:
        file: The contents of its file.
        reason: Why it cannot be trained so; None where it can.
        notices: What a reader should know, each in one line.
        op_placement: A placement of single ops that is faster; None where none was found.
        trials: Measured runs of the plans that this one was taken from, in order of their predicted
            times; none where nothing was run.
        parameters: The number of parameters; None where it is not known.
        defaults: What was planned for without being asked, such as "batch".
        fullest: Bytes of the device that lacks the most, or has the fewest free; None of a plan
            that was read and not priced.
    """

    file: PlanFile
    reason: str | None = None
    notices: tuple[str, ...] = field(default=())
    op_placement: OpPlacement | None = None
    trials: tuple[TrialEntry, ...] = ()
    parameters: int | None = None
    defaults: tuple[str, ...] = ()
    fullest: MemoryParts | None = None

    @property
    def feasible(self) -> bool:
        """Return whether the plan fits its devices."""
        return self.reason is None

    @property
    def step_time(self) -> float:
        """Return the predicted seconds of a step, or inf if it cannot run."""
        if self.file.step_time is None:
            return float("inf")
        return self.file.step_time

    @property
    def microbatches(self) -> int:
        """Return the number of micro-batches of a step, M."""
        return self.file.microbatches

    @property
    def shape(self) -> str:
        """Return the meshes of the stages, the micro-batches and the schedule in a few words."""
        meshes = [f"{len(s.rows)}x{len(s.rows[0])}" for s in self.file.stages]
        if len(set(meshes)) == 1:
            mesh_text = f"{len(meshes)} x {meshes[0]}"
        else:
            mesh_text = " + ".join(meshes)
        zeros = sorted({s.zero for s in self.file.stages if len(s.devices) > 1})
        num_recomputed = sum(len(s.recompute.modules) for s in self.file.stages)
        if any(zeros):
            remarks = [f"ZeRO {'/'.join(map(str, zeros))}"]
        else:
            remarks = []
        remarks += [f"{num_recomputed} recomputed"] if num_recomputed else []
        remarks += ["regathered"] if any(s.regather for s in self.file.stages) else []
        cut = f"{self.microbatches} of {self.file.microbatch_size}"
        return ", ".join([mesh_text, cut, self.file.schedule, *remarks])

    def for_launcher(self, launcher: str) -> Plan:
        """Return the launcher's own plan where it stands among the alternatives, else this one."""
        entry = self.file.alternatives.get(launcher)
        if entry is None or entry.plan is None:
            return self
        # The file names the model and the file of the cluster once, at its head.
        head = {"model": self.file.model, "cluster_file": self.file.cluster_file}
        return replace(self, file=entry.plan.model_copy(update=head), fullest=None)

    def to_data(self) -> dict[str, Any]:
        """Return the file as JSON has it."""
        return self.file.model_dump(mode="json")

    def save(self, path: str | Path) -> None:
        """Write the file at once or not at all."""
        write_json(path, self.to_data())

    def answer(self) -> dict[str, Any]:
        """Return what `plan --json` prints."""
        file = self.file
        plan = self.to_data()
        return {
            "alternatives": plan.pop("alternatives"),
            "step_time": file.step_time,
            "interval": file.interval,
            "lower_bound": file.lower_bound,
            "one_stage_bound": file.one_stage_bound,
            "memory": {name: entry.all for name, entry in file.memory.items()},
            "fullest": None if self.fullest is None else self.fullest.to_data(),
            "feasible": self.feasible,
            "reason": self.reason,
            "op_placement": None
            if self.op_placement is None
            else asdict(self.op_placement),
            "trials": [asdict(trial) for trial in self.trials],
            "plan": plan,
        }
