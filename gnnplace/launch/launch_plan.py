"""`LaunchPlan`: what a launch file says of a plan, in the words of `--given`.

It is the common form of all launchers: readers return it and writers take it. Launchers know
nothing of captured calls, so stages are numbers of layers, and the only split is Megatron's (`tp`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gnnplace.costs import OPTIMIZERS
from gnnplace.errors import FormatError, InputError
from gnnplace.launch.keys import format_value
from gnnplace.launch.layer_details import LayerDetails
from gnnplace.plans import (
    WORDS,
    Adapters,
    DecoderSizes,
    Layers,
    PlanSpec,
    parse_adapters,
)

NONE = "none"
FULL = "full"
SELECTIVE = "selective"
MODULES = "modules"
MARK = "gnnplace: "  # stands before the JSON of a header
BYTES = 1 << 20  # size of the largest launch file
PRICED_OPTIMIZERS = tuple(OPTIMIZERS)
"""Optimizers whose state and update have a price; others are priced as adamw, and said."""


@dataclass(frozen=True)
class NotPriced:
    """A key of a launch file that changes seconds or bytes and that no price counts.

    Attributes:
        key: The key, as the file spells it.
        effect: What it changes, and what is priced instead.
        line: Line of the file, from 1; None where it stands in none.
    """

    key: str
    effect: str
    line: int | None = None

    def __str__(self) -> str:
        if self.line is None:
            place = ""
        else:
            place = f"line {self.line}: "
        return f"{place}{self.key}: {self.effect}"


LISTED_STAGES = 8
"""Stages at most whose equal layers are listed in words."""
HIDDEN_EXCHANGES: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "reduce": ("gradients",),
    "reduce+gather": ("gradients", "parameters"),
}
"""Exchanges that a launch file hides, by the word `overlap` of a plan."""


@dataclass(frozen=True)
class LaunchPlan:
    """A plan as a launch file says it. What a file leaves open is None.

    Attributes:
        dp: Replicas.
        tp: Shards of Megatron's split.
        pp: Pipeline ranks.
        cp: Shards of the tokens with whole weights.
        ep: Groups of experts.
        etp: Shards of an expert; None: tp.
        sp: Whether tensors between layers are cut along their tokens over the shards.
        chunks: Stages of every pipeline rank.
        layers: Layers of every stage in the order of the model; None: as many in each.
        microbatch_size: Examples of a micro-batch on a replica.
        batch: Examples of a step.
        accumulation: Micro-batches of a step, where a file says these and no batch.
        zero: Stage of ZeRO.
        group: Replicas that ZeRO shards over, those of `cp` included; None: all.
        recompute: "none", "selective", "full", "block:K" or "uniform:K".
        schedule: 1f1b, interleaved, gpipe, zero-bubble or v.
        precision: The precision in Lightning's words, such as "bf16-mixed".
        gradients: The type in which gradients are summed: "fp32", or "same" as the parameters'.
        optimizer: One of `costs.optimizers`, or another by the name that its file has.
        overlap: Exchanges hidden behind work: "gradients", "parameters", "tp", "p2p".
        compile: Whether layers and the loss run under `torch.compile`.
        cuda_graphs: Launches that CUDA graphs capture: "off", "layers", "iteration"; None: the
            framework's default.
        offload: State that lies in the host's memory, in the words of a plan.
        sizes: Sizes of the model.
        length: Tokens of an example, where a file says them apart from the sizes.
        unknown_model: What the file has instead of sizes that are known, such as "flavor 20B of
            llama3, whose sizes are not known"; empty if it names no model.
        lora: Adapters that are trained instead of the parameters, as `--lora` has them; None: none
            that the file states.
        details: Properties of the layers beside sizes, for a file that is written. Readers leave it
            None.
        notes: What the file says and a plan's words do not, each in one line.
        not_priced: Keys that change seconds or bytes and that no price counts.
        needs: Names of values that only the environment of the run has.
        lines: Line of every word that the file says, by the word; None where it has no line.
        source: The file's path, which errors begin with.
    """

    dp: int | None = None
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    sp: bool = True
    chunks: int = 1
    layers: tuple[int, ...] | None = None
    microbatch_size: int | None = None
    batch: int | None = None
    accumulation: int | None = None
    zero: int = 0
    group: int | None = None
    recompute: str = NONE
    schedule: str = "1f1b"
    precision: str | None = None
    gradients: str | None = None
    optimizer: str | None = None
    overlap: tuple[str, ...] = ()
    compile: bool = False
    cuda_graphs: str | None = None
    offload: str = NONE
    sizes: DecoderSizes | None = None
    length: int | None = field(default=None, compare=False)
    unknown_model: str = field(default="", compare=False)
    lora: str | None = None
    details: LayerDetails | None = field(default=None, compare=False)
    notes: tuple[str, ...] = ()
    not_priced: tuple[NotPriced, ...] = field(default=(), compare=False)
    needs: tuple[str, ...] = field(default=(), compare=False)
    lines: Mapping[str, int | None] = field(default_factory=dict, compare=False)
    source: str = field(default="launch file", compare=False)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return everything that a price leaves out or assumes, each in one line."""
        return (*self.notes, *map(str, self.not_priced))

    @property
    def adapters(self) -> Adapters | None:
        """Return the adapters that are trained, or None if all parameters are."""
        if self.lora is not None:
            return parse_adapters(self.lora)
        if self.sizes is None:
            return None
        return self.sizes.adapters

    @property
    def world(self) -> int | None:
        """Return the number of processes of the run, or None if the replicas are not known."""
        if self.dp is None:
            return None
        return self.dp * self.tp * self.pp * self.cp

    @property
    def microbatches(self) -> int:
        """Return the number of micro-batches of a step on every replica.

        Raises:
            InputError: If batch, micro-batch or replicas are not known, or do not divide.
        """
        if self.dp is None or self.batch is None or self.microbatch_size is None:
            raise InputError("launch plan: dp, batch and microbatch_size must be known")
        count, remainder = divmod(self.batch, self.dp * self.microbatch_size)
        if remainder or not count:
            raise InputError(
                f"launch plan: a batch of {self.batch} is no multiple of {self.dp} replicas x "
                f"{self.microbatch_size} examples"
            )
        return count

    @property
    def full_schedule(self) -> str:
        """Return the schedule with its chunks a rank, as `--given` has it."""
        if self.schedule == "interleaved":
            return f"interleaved:{self.chunks}"
        return self.schedule

    @property
    def spec(self) -> PlanSpec:
        """Return the plan in the words of `--given`. What the file leaves open is 1."""
        overlap = None
        for word, exchanges in HIDDEN_EXCHANGES.items():
            if exchanges and exchanges[-1] in self.overlap:
                overlap = word
        ep = self.ep
        etp = self.etp
        if etp == self.tp or self.sizes is None or self.sizes.experts is None:
            etp = None
        # A launcher counts all groups of experts, a plan those beside shards.
        if etp is not None:
            ep = max(1, ep * etp // self.tp)
        return PlanSpec(
            dp=self.dp or 1,
            tp=self.tp,
            cp=self.cp,
            ep=ep,
            etp=etp,
            pp=self.pp,
            sp=False if self.tp > 1 and not self.sp else None,
            layers=self.layers,
            microbatch_size=self.microbatch_size or 1,
            batch=self.batch,
            zero=self.zero,
            zero_group=self.group * self.cp if self.group and self.zero else None,
            gradients=self.gradients,
            recompute=self.recompute,
            schedule=self.full_schedule,
            overlap=overlap,
            tp_overlap="tp" in self.overlap and self.tp > 1 and self.sp,
            compile=self.compile,
            cuda_graphs=self.cuda_graphs,
            offload=self.offload,
            sample_length=None if self.sizes is None else self.sizes.sample_length,
        )

    @property
    def words(self) -> str:
        """Return the plan as people read it, without batch, overlap and what is left open."""
        if self.gradients == "fp32":
            gradients = self.gradients
        else:
            gradients = None
        layers: Layers | None = self.layers
        if (
            self.layers
            and len(self.layers) > LISTED_STAGES
            and len(set(self.layers)) == 1
        ):
            layers = "equal"
        shown = replace(
            self.spec,
            batch=None,
            overlap=None,
            tp_overlap=False,
            gradients=gradients,
            layers=layers,
        )
        text = str(shown)
        if self.microbatch_size is None:
            return ",".join(
                pair for pair in text.split(",") if pair != "microbatch_size=1"
            )
        return text

    def with_one_stage_a_rank(self) -> LaunchPlan:
        """Return the plan under 1F1B, with all chunks of a rank joined into one stage."""
        layers = self.layers
        chunks = self.chunks
        if layers is not None:
            layers = tuple(
                sum(layers[k * chunks : (k + 1) * chunks]) for k in range(self.pp)
            )
        return replace(self, schedule="1f1b", chunks=1, layers=layers)

    def as_it_runs(
        self, launcher: str, *, compiles: bool = False, graphs: Sequence[str] = ()
    ) -> Iterator[tuple[str, LaunchPlan]]:
        """Yield the plan without `compile` or `cuda_graphs` if a launcher's file cannot say them.

        Args:
            launcher: The launcher's name, for the lines.
            compiles: Whether the file can turn on `torch.compile`.
            graphs: Values of `cuda_graphs` that the file can have.

        Yields:
            A line for the user, and the plan without the one thing or both.
        """
        plan = self
        if plan.compile and not compiles:
            plan = replace(plan, compile=False)
            yield (
                f"compile: {launcher}'s file does not turn it on; off is written",
                plan,
            )
        if plan.cuda_graphs not in (None, "off", *graphs):
            line = f"cuda_graphs={plan.cuda_graphs}: {launcher}'s file has none; off is written"
            yield line, replace(plan, cuda_graphs=None)

    def without_unsayable(
        self,
        launcher: str,
        *,
        overlap: Sequence[str] = (),
        zero_groups: Sequence[int] = (),
        gradients: str | None = None,
        optimizers: Sequence[str] | None = None,
        offloads: Sequence[str] = (),
    ) -> Iterator[tuple[str, LaunchPlan]]:
        """Yield what a launcher's file has no key for, each with the plan without it.

        Args:
            launcher: The launcher's name, for the lines.
            overlap: Exchanges that its file can hide.
            zero_groups: ZeRO stages that it can shard over groups of replicas.
            gradients: The one type in which it sums gradients; None: either can be said.
            optimizers: Those that it has; None: all of them.
            offloads: Values of `offload` that it can say.
        """
        plan = self
        if plan.offload not in (NONE, *offloads):
            line = f"offload={plan.offload}: {launcher}'s file has no key for it"
            plan = replace(plan, offload=NONE)
            yield f"{line}; all of it stays on the GPUs", plan
        if optimizers is not None and plan.optimizer not in (None, *optimizers):
            line = f"optimizer {plan.optimizer}: {launcher}'s file has no such name"
            plan = replace(plan, optimizer="adamw")
            yield f"{line}; adamw is written", plan
        unsaid = [name for name in plan.overlap if name not in overlap]
        if unsaid:
            hidden = tuple(name for name in plan.overlap if name in overlap)
            plan = replace(plan, overlap=hidden)
            yield (
                f"overlap of {', '.join(unsaid)}: {launcher}'s file has no key for it",
                plan,
            )
        if plan.group is not None and plan.zero not in zero_groups:
            line = f"ZeRO {plan.zero} over groups of {plan.group} replicas: {launcher}'s file has "
            plan = replace(plan, group=None)
            yield f"{line}no key for it; over all is written", plan
        # In fp32 both types in which gradients are summed are one.
        is_half = not (plan.precision or "32").startswith("32")
        if (
            gradients is not None
            and is_half
            and plan.gradients not in (None, gradients)
        ):
            line = f"gradients={plan.gradients}: {launcher} sums in "
            plan = replace(plan, gradients=gradients)
            yield (
                line + ("fp32" if gradients == "fp32" else "the type of the passes"),
                plan,
            )

    def with_whole_experts(self, launcher: str) -> Iterator[tuple[str, LaunchPlan]]:
        """Yield the plan with whole experts, for a launcher that does not cut them.

        There are more groups of experts then, and each device has as many bytes of them as before.

        Args:
            launcher: The launcher's name, for the line.

        Yields:
            A line for the user, and the plan. Nothing if experts are whole or do not divide so.
        """
        sizes = self.sizes
        if sizes is None or sizes.experts is None or self.tp == 1 or self.etp == 1:
            return
        cut = self.etp or self.tp
        ep = self.ep * (self.etp or self.tp)
        if sizes.experts.count % ep == 0:
            line = f"ep={self.ep} with experts cut over {cut}: {launcher} cuts none"
            yield (
                f"{line}; ep={ep} of whole ones is written",
                replace(self, ep=ep, etp=1),
            )

    def with_dp(self, world: int, source: str) -> LaunchPlan:
        """Return the plan with as many replicas as a number of processes leaves.

        Raises:
            FormatError: If the degrees do not divide the number of processes.
        """
        inside = self.tp * self.pp * self.cp
        if world < 1 or world % inside:
            raise FormatError(
                f"{source}: {world} processes are no multiple of tp x cp x pp = {self.tp} x "
                f"{self.cp} x {self.pp}"
            )
        return replace(self, dp=world // inside)


def header(
    plan: LaunchPlan, lines: Sequence[str], *, keys: Sequence[str] = ()
) -> list[str]:
    """Return the lines for the head of a file, without comment signs.

    Args:
        plan: The plan that the file is written for.
        lines: What a reader should know.
        keys: Fields of the plan that the launcher's own keys cannot say: the last line has them,
            for `with_header`.
    """
    words = {key: getattr(plan, key) for key in keys if getattr(plan, key) is not None}
    # A name may have a newline.
    header_lines = [" ".join(line.split()) for line in lines]
    return [*header_lines, *([MARK + json.dumps(words)] if words else [])]


def with_header(plan: LaunchPlan, text: str, source: str) -> LaunchPlan:
    """Return a plan with what the header of its text says and the launcher's keys leave open.

    Raises:
        FormatError: If the header is no JSON of a plan's fields.
    """
    match = re.search(rf"^\W{{0,6}}{MARK}(\{{.*\}})\s*$", text, re.MULTILINE)
    if match is None:
        return plan
    try:
        words = json.loads(match[1])
    except (ValueError, RecursionError):
        raise FormatError(f"{source}: header: not JSON: {match[1][:60]!r}") from None
    return with_fields(plan, words, source)


def with_fields(plan: LaunchPlan, held: Any, source: str) -> LaunchPlan:
    """Return a plan with the fields of a header that the launcher's own keys do not set.

    Raises:
        FormatError: If a field is unknown, or is not of its type.
    """
    kinds = {
        "batch": int,
        "microbatch_size": int,
        "schedule": str,
        "zero": int,
        "recompute": str,
        "optimizer": str,
        "gradients": str,
        "precision": str,
        "layers": list,
        "sp": bool,
        "chunks": int,
        "pp": int,
        "dp": int,
    }
    usual = LaunchPlan()
    if not isinstance(held, dict):
        raise FormatError(f"{source}: header: must be an object of a plan's words")
    values: dict[str, Any] = {}
    for key, value in held.items():
        if key not in kinds or type(value) is not kinds[key]:
            raise FormatError(
                f"{source}: header: {key}: {format_value(value)} is no word of a plan"
            )
        if getattr(plan, key) == getattr(usual, key):
            values[key] = tuple(held[key]) if key == "layers" else value
    lines = {**dict.fromkeys(values), **plan.lines}
    return replace(plan, **values, lines=lines)


def check_plan_words(plan: LaunchPlan, source: str) -> LaunchPlan:
    """Return the plan if its fields do not contradict each other.

    Raises:
        FormatError: The message names what contradicts what.
    """
    for message in _faults(plan):
        raise FormatError(f"{source}: {message}")
    return plan


def _faults(plan: LaunchPlan) -> Iterator[str]:
    """Yield the contradictions between fields. Each check may rely on those before it."""
    for name in (
        "dp",
        "tp",
        "pp",
        "cp",
        "ep",
        "etp",
        "chunks",
        "microbatch_size",
        "batch",
    ):
        value = getattr(plan, name)
        if value is not None and not 1 <= value <= 10**9:
            yield f"{name} is {value}: must be at least 1"
    recompute = WORDS["recompute"]
    if re.fullmatch(recompute.pattern, plan.recompute) is None:
        yield f"recompute={plan.recompute}: must be {recompute.allowed}"
    stages = plan.pp * plan.chunks
    if plan.layers is not None and len(plan.layers) != stages:
        yield f"layers of {len(plan.layers)} stages for {plan.pp} ranks with {plan.chunks} each"
    if plan.sizes is not None:
        yield from _size_faults(plan, plan.sizes, stages)
    inside = plan.ep * (plan.etp or plan.tp)
    over = (plan.world or 0) // plan.pp
    if over % inside:
        yield f"experts on ep x their shards = {inside}: {over} processes of a stage: no multiple"
    if plan.dp and plan.batch and plan.microbatch_size:
        count, remainder = divmod(plan.batch, plan.dp * plan.microbatch_size)
        if remainder or not count:
            yield (
                f"a batch of {plan.batch} is no multiple of {plan.dp} replicas x "
                f"{plan.microbatch_size} examples"
            )
        if plan.schedule == "interleaved" and count % plan.pp:
            yield f"interleaved: {count} micro-batches are no multiple of {plan.pp} ranks"


def _size_faults(plan: LaunchPlan, sizes: DecoderSizes, stages: int) -> Iterator[str]:
    """Yield the contradictions between a plan and the sizes of its model."""
    if plan.layers is not None and sum(plan.layers) != sizes.layers:
        yield f"stages have {sum(plan.layers)} layers, and the model has {sizes.layers}"
    if plan.layers is None and sizes.layers % stages:
        yield f"{sizes.layers} layers are no multiple of {stages} stages; say how many each has"
    if min(sizes.layers, sizes.hidden, sizes.heads, sizes.kv_heads, sizes.length) < 1:
        yield "sizes of the model: must be at least 1"
    if sizes.heads % plan.tp:
        yield f"{sizes.heads} heads are no multiple of tp {plan.tp}"
    if sizes.kv_heads % plan.tp and plan.tp % sizes.kv_heads:
        yield f"{sizes.kv_heads} groups of keys and values and tp {plan.tp}: none is a multiple"
    if sizes.hidden % sizes.heads and not sizes.own_head_size:
        yield f"hidden size {sizes.hidden} is no multiple of {sizes.heads} heads"
    if sizes.experts is not None and sizes.experts.count % plan.ep:
        yield f"{sizes.experts.count} experts are no multiple of ep {plan.ep}"
    if plan.cp > 1 and sizes.length % (2 * plan.cp):
        yield f"{sizes.length} tokens are no multiple of 2 x cp {plan.cp}"
