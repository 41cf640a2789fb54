"""`PlanSpec`: a training plan in words, the one record of them on every road.

`--given`, a row of a table, a launch file, the search and the explanations all build a `PlanSpec`;
prices and drafts read its fields. Its text (`dp=2,tp=2,pp=2,microbatch_size=4`) is for people: it
is read by `parse_spec`, written by `str`, and never used between functions.

A word that is left out has its default, or is the framework's to decide (None). Devices used are
dp x (tp or shards) x cp x pp, the first of the cluster; ep divides dp x cp, etp tp. In a table an
empty cell is a word that is left out, and a column `x-NAME` is copied to the answers.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from gnnplace.costs import PATTERN as OFFLOAD_PATTERN
from gnnplace.errors import FormatError, InputError, suggestion
from gnnplace.files import read_text
from gnnplace.plans.order.names import SHAPED_AS_V

LARGEST_COUNT = 10**9 - 1
COPIED_PREFIX = "x-"
EQUAL = "equal"
COST = "cost"
Layers = tuple[int, ...] | Literal["equal", "cost"]


@dataclass(frozen=True)
class Word:
    """The values of one word of a plan.

    Attributes:
        pattern: Regular expression that the whole text of a value matches.
        allowed: The values in a sentence, for error messages.
        read: Makes the value from its text.
        write: Makes the text from a value.
    """

    pattern: str
    allowed: str
    read: Callable[[str], Any] = str
    write: Callable[[Any], str] = str


def _parse_one_of(*values: str) -> Word:
    return Word("|".join(map(re.escape, values)), f"one of {', '.join(values)}")


def _read_layers(text: str) -> Layers:
    if text in (EQUAL, COST):
        return text  # type: ignore[return-value]
    return tuple(int(count) for count in text.split("+"))


def format_layers(layers: Layers) -> str:
    """Return the text of a number of layers for each stage, such as "6+6+4"."""
    if isinstance(layers, str):
        return layers
    return "+".join(map(str, layers))


COUNT = Word(r"[1-9]\d{0,8}", "a whole number from 1 on", read=int)
SWITCH = Word(
    "on|off",
    "one of on, off",
    read=lambda text: text == "on",
    write=lambda value: "on" if value else "off",
)
RECOMPUTED_MODULES = (
    "core_attn",
    "layernorm",
    "mla_up_proj",
    "mlp",
    "moe",
    "moe_act",
    "shared_experts",
)
"""Modules of a layer that Megatron-Core can recompute one by one, by its `recompute_modules`."""
PARTIAL = ("selective", "modules")
"""Kinds of recomputation that compute parts of every layer again."""
_MODULE = "|".join(RECOMPUTED_MODULES)
WORDS: Mapping[str, Word] = {
    "dp": COUNT,
    "tp": COUNT,
    "shards": COUNT,
    "cp": COUNT,
    "ep": COUNT,
    "etp": COUNT,
    "pp": COUNT,
    "sp": SWITCH,
    "layers": Word(
        r"equal|cost|\d{1,9}(\s*\+\s*\d{1,9})*",
        "one of equal, cost, or numbers such as 6+6+4",
        read=_read_layers,
        write=format_layers,
    ),
    "microbatch_size": COUNT,
    "batch": COUNT,
    "zero": Word("[0-3]", "one of 0, 1, 2, 3", read=int),
    "zero_group": COUNT,
    "gradients": _parse_one_of("fp32", "same"),
    "recompute": Word(
        r"none|selective|full|uniform:[1-9]\d{0,3}"
        r"|block:([1-9]\d{0,3}|\d{1,4}(\+\d{1,4})+)"
        rf"|modules:({_MODULE})(\+({_MODULE}))*",
        "one of none, selective (attention alone), full, block:K (a stage's first K layers; "
        "K+K+K, one number for each rank), uniform:K (all, in groups of K), modules:NAME+NAME "
        f"(of {', '.join(RECOMPUTED_MODULES)})",
    ),
    "schedule": Word(
        r"1f1b|gpipe|zero-bubble|v|zbv|interleaved(:[1-9]\d{0,2})?",
        "one of 1f1b, gpipe, zero-bubble, v, zbv, interleaved:N",
    ),
    "overlap": _parse_one_of("none", "reduce", "reduce+gather"),
    "tp_overlap": SWITCH,
    "offload": Word(
        OFFLOAD_PATTERN,
        "one of none, optimizer, optimizer+parameters, activations:F with F from 0 to 1, such as "
        "activations:0.5",
    ),
    "sample_length": COUNT,
    "compile": SWITCH,
    "cuda_graphs": _parse_one_of("off", "layers", "iteration"),
    "regather": SWITCH,
}
"""The grammar of `--given`: every word with its values."""


@lru_cache(maxsize=65536, typed=True)
def _check_word(name: str, value: Hashable) -> None:
    """Check the value of a word of a plan.

    Raises:
        InputError: If the word has no such value.
    """
    word = WORDS[name]
    text = word.write(value)
    if re.fullmatch(word.pattern, text) is None:
        raise InputError(f"{name}={text}: must be {word.allowed}")


@dataclass(frozen=True)
class PlanSpec:
    """A training plan in words: degrees of parallelism, memory savings, schedule.

    Attributes:
        dp: Replicas (data parallel).
        tp: Shards of every matrix, by heads, columns, rows and vocabulary (tensor parallel).
        shards: Shards of any label, as the search splits; None: layers are split by `tp`.
        cp: Shards of the tokens, with whole weights (context parallel).
        ep: Shards of the experts over replicas and context-parallel devices (expert parallel).
        etp: Shards of every matrix of an expert; None: as many as of every other, `tp`. Of fewer
            the `tp` shards of a replica have unlike experts, too: `expert_groups` in all.
        pp: Pipeline ranks.
        sp: Whether tokens are split between the products of a layer (sequence parallel); None:
            they are, or with `shards` whichever is faster.
        layers: Layers of every stage, or how they are counted; None: as the framework cuts.
        microbatch_size: Examples of a micro-batch on one replica.
        batch: Examples of a step; None: those of the model.
        zero: ZeRO stage, 0 to 3.
        zero_group: Replicas that ZeRO shards over; None: all, those of `cp` too.
        gradients: Type in which gradients are summed; None: the framework's.
        recompute: "none", "selective", "full", "uniform:K", "block:K", "block:K+K+K" with a
            number for each rank, or "modules:NAME+NAME" with modules of every layer.
        schedule: "1f1b", "gpipe", "zero-bubble", "v", "zbv" or "interleaved:CHUNKS".
        overlap: Collectives of replicas that are hidden; None: those that the framework hides.
        tp_overlap: Whether collectives of shards run under the products beside them (Megatron's
            user buffers, asynchronous tensor parallelism).
        offload: What leaves the GPU for the host's memory: "none", "optimizer",
            "optimizer+parameters" or "activations:F", F the part of what micro-batches keep.
        sample_length: Tokens of a sample, where an example packs several that do not attend to one
            another; None: an example is one sample.
        compile: Whether layers and the loss run under `torch.compile`.
        cuda_graphs: What is captured as a CUDA graph; None: what the framework captures.
        regather: Whether gathered inputs are kept as shards and gathered again in the backward
            pass; None: whichever is faster.

    Raises:
        InputError: If a value is outside its range, with the word and the values that it may have.
    """

    dp: int = 1
    tp: int = 1
    shards: int | None = None
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    pp: int = 1
    sp: bool | None = None
    layers: Layers | None = None
    microbatch_size: int = 1
    batch: int | None = None
    zero: int = 0
    zero_group: int | None = None
    gradients: str | None = None
    recompute: str = "none"
    schedule: str = "1f1b"
    overlap: str | None = None
    tp_overlap: bool = False
    offload: str = "none"
    sample_length: int | None = None
    compile: bool = False
    cuda_graphs: str | None = None
    regather: bool | None = None

    def __post_init__(self) -> None:
        for name in WORDS:
            value = getattr(self, name)
            if value is not None:
                _check_word(name, value)

    def with_words(self, **words: Hashable) -> PlanSpec:
        """Return the plan with other words, as `dataclasses.replace` does in more time.

        Args:
            **words: Values by the name of their field; these alone are checked.

        Raises:
            InputError: If a word has no such value.
        """
        for name, value in words.items():
            if value is not None:
                _check_word(name, value)
        changed = object.__new__(PlanSpec)
        changed.__dict__.update(self.__dict__)
        changed.__dict__.update(words)
        return changed

    def __str__(self) -> str:
        """Return the plan as `--given` takes it, without the words that have their default."""
        pairs = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default or field.name == "microbatch_size":
                pairs.append(f"{field.name}={WORDS[field.name].write(value)}")
        return ",".join(pairs)

    @property
    def num_devices(self) -> int:
        """Return the number of devices that the plan uses."""
        return self.dp * max(self.tp, self.shards or 1) * self.cp * self.pp

    @property
    def expert_shards(self) -> int:
        """Return the number of shards of every matrix of an expert."""
        return self.etp or self.tp

    @property
    def expert_groups(self) -> int:
        """Return the number of groups of devices that hold different experts.

        Shards of one replica that hold different experts count as groups too.
        """
        return self.ep * self.tp // self.expert_shards

    @property
    def num_optimizer_shards(self) -> int:
        """Return the number of replicas that the optimizer's state is sharded over."""
        if self.zero == 0:
            return 1
        return self.zero_group or self.dp * self.cp

    @property
    def num_chunks(self) -> int:
        """Return the number of stages of each pipeline rank."""
        name, _, count = self.schedule.partition(":")
        if name in SHAPED_AS_V and self.pp > 1:
            return 2
        return int(count or (2 if name == "interleaved" else 1))

    @property
    def num_stages(self) -> int:
        """Return the number of stages of the whole pipeline."""
        return self.pp * self.num_chunks

    @property
    def schedule_name(self) -> str:
        """Return the schedule without its number of chunks."""
        return self.schedule.partition(":")[0]

    @property
    def recompute_kind(self) -> str:
        """Return the kind of recomputation without its number of layers."""
        return self.recompute.partition(":")[0]

    @property
    def recompute_counts(self) -> tuple[int, ...]:
        """Return the numbers of "block:K+K+K", of "block:K" and "uniform:K" one; else none."""
        kind, _, text = self.recompute.partition(":")
        if kind not in ("block", "uniform"):
            return ()
        return tuple(int(count) for count in text.split("+"))

    @property
    def recomputed_modules(self) -> tuple[str, ...]:
        """Return the names of "modules:NAME+NAME", in the order of `RECOMPUTED_MODULES`."""
        kind, _, text = self.recompute.partition(":")
        if kind != "modules":
            return ()
        names = text.split("+")
        return tuple(name for name in RECOMPUTED_MODULES if name in names)

    @property
    def recomputes_by_rank(self) -> bool:
        """Return whether every rank has its own number of layers to recompute."""
        return len(self.recompute_counts) > 1

    def find_rank_recompute(self, rank: int) -> str:
        """Return what a pipeline rank recomputes, as the word for all ranks says it."""
        if not self.recomputes_by_rank:
            return self.recompute
        return f"{self.recompute_kind}:{self.recompute_layers(rank)}"

    def recompute_layers(self, rank: int) -> int:
        """Return K of "block:K" and "uniform:K" on a pipeline rank, or 0 for the other kinds."""
        counts = self.recompute_counts or (0,)
        return counts[min(rank, len(counts) - 1)]

    @property
    def splits_tokens(self) -> bool:
        """Return whether tokens are split over the shards between the products of a layer."""
        return self.sp is not False

    def num_microbatches(self, batch: int) -> int:
        """Return the micro-batches of a step with so many examples."""
        return batch // (self.dp * self.microbatch_size)


COLUMNS = tuple(WORDS)


def check_recomputed_ranks(spec: PlanSpec) -> None:
    """Check that layers to recompute that are said by rank are said of every rank.

    Raises:
        InputError: If there are more or fewer numbers than ranks.
    """
    count = len(spec.recompute_counts)
    if spec.recomputes_by_rank and count != spec.pp:
        raise InputError(
            f"recompute={spec.recompute}: {count} numbers for {spec.pp} ranks; give one a rank"
        )


PAIR_END = re.compile(r"\s*,\s*|\s+(?=\w+\s*=)")
"""What separates two pairs of a plan in words."""


def parse_spec(text: str, source: str = "--given") -> PlanSpec:
    """Parse `NAME=VALUE` pairs that commas or spaces separate.

    Args:
        text: The words.
        source: What they are called in an error.

    Raises:
        InputError: If a pair is malformed, or a name is unknown or repeated.
    """
    values: dict[str, str] = {}
    for pair in PAIR_END.split(text.strip()):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or name not in WORDS or not value:
            raise InputError(
                f"{source}: {pair.strip()!r}: must be NAME=VALUE, NAME one of "
                f"{', '.join(WORDS)}{suggestion(name, WORDS)}"
            )
        if name in values:
            raise InputError(f"{source}: {name!r} is repeated")
        values[name] = value
    return parse_spec_values(values, source)


def parse_spec_values(values: Mapping[str, str], source: str) -> PlanSpec:
    """Return the plan of words whose values are text.

    Args:
        values: Text by word. Empty text leaves the word out.
        source: The place that they stand in, for an error.

    Raises:
        InputError: If a value cannot be read, with its word and where it stands.
    """
    words: dict[str, Any] = {}
    for name, text in values.items():
        if not text:
            continue
        word = WORDS[name]
        if re.fullmatch(word.pattern, text) is None:
            raise InputError(f"{source}: {name}={text}: must be {word.allowed}")
        words[name] = word.read(text)
    return PlanSpec(**words)


def count_layers(layers: Layers, num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return the layers of every stage. [num_stages]

    Args:
        layers: Numbers, or "equal".
        num_layers: Layers of the model.
        num_stages: Stages of the pipeline.

    Raises:
        InputError: If the numbers are not those of the model and its stages, or "equal" leaves a
            remainder.
    """
    if layers == EQUAL:
        if num_layers == 0 or num_layers % num_stages:
            raise InputError(
                f"layers=equal: the model's {num_layers} layers are no multiple of {num_stages} "
                "stages; say how many each has, such as layers=6+6+4"
            )
        return (num_layers // num_stages,) * num_stages
    if (
        isinstance(layers, str)
        or len(layers) != num_stages
        or sum(layers) != num_layers
    ):
        raise InputError(
            f"layers={format_layers(layers)}: must be {num_stages} numbers, one a stage, whose sum "
            f"is the model's {num_layers} layers"
        )
    return layers


@dataclass(frozen=True)
class PlanTable:
    """A table of plans, a row each.

    Attributes:
        columns: Names as the file heads them, in order.
        cells: Text of every row as it was written. [rows][columns].
        specs: The plan of every row. [rows].
    """

    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    specs: tuple[PlanSpec, ...]


def read_plan_table(path: str | Path) -> PlanTable:
    """Read a table of plans from a CSV file.

    Raises:
        FormatError: If a column is unknown or repeated, or a cell cannot be read, with its line.
    """
    lines = list(csv.reader(io.StringIO(read_text(path).removeprefix("\ufeff"))))
    if not lines or not any(lines[0]):
        raise FormatError(
            f"{path}: empty; the first line names columns, such as dp,tp,pp"
        )
    columns = tuple(name.strip() for name in lines[0])
    _check_columns(columns, path)
    cells = []
    specs = []
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        if len(line) != len(columns):
            raise FormatError(
                f"{path}: line {number}: has {len(line)} cells, the first line {len(columns)}"
            )
        pairs = zip(columns, line, strict=True)
        values = {name: cell.strip() for name, cell in pairs if name in WORDS}
        try:
            specs.append(parse_spec_values(values, f"{path}: line {number}"))
        except InputError as error:
            raise FormatError(str(error)) from None
        cells.append(tuple(line))
    if not specs:
        raise FormatError(f"{path}: has no row; give one a plan")
    return PlanTable(columns=columns, cells=tuple(cells), specs=tuple(specs))


def _check_columns(columns: Sequence[str], path: str | Path) -> None:
    for number, name in enumerate(columns, 1):
        if name not in WORDS and not name.startswith(COPIED_PREFIX):
            raise FormatError(
                f"{path}: line 1, column {number}: {name!r} is unknown; use {', '.join(WORDS)}, "
                f"or x-NAME for what is copied{suggestion(name, WORDS)}"
            )
        if name in columns[: number - 1]:
            raise FormatError(f"{path}: line 1, column {number}: {name!r} is repeated")


def make_spec_table(text: str) -> PlanTable:
    """Return the table of one plan in words.

    Raises:
        InputError: If a word is wrong.
    """
    spec = parse_spec(text)
    pairs = [pair.partition("=") for pair in text.split(",")]
    columns = tuple(name.strip() for name, _, _ in pairs)
    cells = tuple(value.strip() for _, _, value in pairs)
    return PlanTable(columns=columns, cells=(cells,), specs=(spec,))
