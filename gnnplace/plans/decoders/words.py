"""Words of a plan of one's own, in a table: a row a plan, columns of words.

`dp`, `tp`, `cp`, `pp` are at least 1; devices used are their product, the first of the cluster.
`ep` shards of experts divide dp x cp. An empty cell is a word that is left out. A column
`batch` has examples of a step, a column `x-…` is copied.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from gnnplace.errors import FormatError, InputError, suggestion
from gnnplace.files import read_text

NUMBERS = ("dp", "tp", "shards", "cp", "ep", "pp", "microbatch_size", "batch", "zero_group")
WORDS: Mapping[str, str] = {
    "zero": "[0-3]",
    "sp": "on|off",
    "gradients": "fp32|same",
    "recompute": r"none|selective|full|(block|uniform):[1-9]\d*",
    "schedule": r"gpipe|1f1b|interleaved:[1-9]\d*",
    "layers": r"equal|cost|\d+(\+\d+)*",
    "overlap": r"none|reduce|reduce\+gather",
    "compile": "on|off",
    "cuda_graphs": "off|layers|iteration",
}
COPIED = "x-"


@dataclass(frozen=True)
class GivenWords:
    """What a row says; a word that it leaves out has its default, or is the framework's to say.

    Attributes:
        dp: replicas.
        tp: shards of every matrix, heads and the vocabulary (Megatron's).
        shards: shards of anything, as a search splits; 1 in whatever is priced from sizes.
        cp: shards of tokens.
        ep: shards of experts.
        pp: pipeline ranks.
        microbatch_size: examples of a replica and micro-batch.
        batch: examples of a step; None: the model's.
        zero: 0 to 3.
        zero_group: replicas that ZeRO parts over; None: all, those of `cp` too.
        sp: whether tokens are split between the layers' products, "on" or "off".
        gradients: the type in which they are summed; empty: the framework's.
        recompute: "none", "selective", "full", "block:K" or "uniform:K".
        schedule: "1f1b", "gpipe" or "interleaved:CHUNKS".
        layers: of each stage; empty: as the framework cuts.
        overlap: which exchanges of replicas are hidden; empty: what the framework hides.
        compile: whether layers and the loss run under `torch.compile`, "on" or "off".
        cuda_graphs: captured launches: "off", "layers", "iteration"; empty: the framework's.
    """

    dp: int = 1
    tp: int = 1
    shards: int = 1
    cp: int = 1
    ep: int = 1
    pp: int = 1
    microbatch_size: int = 1
    batch: int | None = None
    zero: int = 0
    zero_group: int | None = None
    sp: str = "on"
    gradients: str = ""
    recompute: str = "none"
    schedule: str = "1f1b"
    layers: str = ""
    overlap: str = ""
    compile: str = "off"
    cuda_graphs: str = ""

    @property
    def devices(self) -> int:
        """GPUs used."""
        return self.dp * max(self.tp, self.shards) * self.cp * self.pp

    @property
    def parted(self) -> int:
        """Replicas that the optimizer's state is parted over."""
        return (self.zero_group or self.dp * self.cp) if self.zero else 1

    @property
    def chunks(self) -> int:
        """Stages of a pipeline rank."""
        return int(self.schedule.partition(":")[2] or 1)

    def microbatches(self, batch: int) -> int:
        """Micro-batches of a step with so many examples."""
        return batch // (self.dp * self.microbatch_size)


COLUMNS = tuple(f.name for f in fields(GivenWords))


def words_of(cells: Mapping[str, str], where: str) -> GivenWords:
    """The words of a row.

    Args:
        cells: text by column; empty text is left out.
        where: what the row is called in an error.

    Raises:
        InputError: a word that cannot be read, with where it stands.
    """
    found: dict[str, int | str] = {}
    for name, text in cells.items():
        if not text:
            continue
        if name in NUMBERS:
            if not re.fullmatch(r"[1-9]\d{0,8}", text):
                raise InputError(f"{where}, {name}: {text!r}: must be a whole number from 1 on")
            found[name] = int(text)
        elif not re.fullmatch(WORDS[name], text):
            told = WORDS[name].replace(r"[1-9]\d*", "N").replace("\\", "").replace("(+d+)*", "")
            raise InputError(f"{where}, {name}: {text!r}: must be one of {_told(name, told)}")
        else:
            found[name] = int(text) if name == "zero" else text
    return GivenWords(**found)  # type: ignore[arg-type]


def _told(name: str, pattern: str) -> str:
    """The values of a word, for people."""
    if name == "layers":
        return "equal, cost, or numbers such as 6+6+4"
    if name == "recompute":
        return "none, selective, full, block:K, uniform:K"
    return "0, 1, 2, 3" if name == "zero" else pattern.replace("|", ", ")


def words_in(text: str) -> GivenWords:
    """Words as `--given` has them, `NAME=VALUE` separated by commas.

    Raises:
        InputError: naming the pair that is none, the name that is unknown or repeated.
    """
    return words_of(pairs_in(text, COLUMNS), "--given")


def pairs_in(text: str, known: Sequence[str]) -> dict[str, str]:
    """Values by name of pairs `NAME=VALUE` that commas separate.

    Raises:
        InputError: naming the pair that is none, the name that is unknown or repeated.
    """
    found: dict[str, str] = {}
    for pair in text.split(","):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or name not in known or not value:
            raise InputError(
                f"--given: {pair.strip()!r}: must be NAME=VALUE, NAME one of {', '.join(known)}"
            )
        if name in found:
            raise InputError(f"--given: {name!r} is repeated")
        found[name] = value
    return found


@dataclass(frozen=True)
class GivenTable:
    """A table of plans of one's own.

    Attributes:
        columns: as the file heads them, in order.
        cells: text of every row as it was written. [rows][columns]
        rows: what they say. [rows]
    """

    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    rows: tuple[GivenWords, ...]


def read_given(path: str | Path) -> GivenTable:
    """Reads a table of plans.

    Raises:
        FormatError: naming line and column of what is unknown, repeated or cannot be read.
    """
    lines = list(csv.reader(io.StringIO(read_text(path).removeprefix("\ufeff"))))
    if not lines or not any(lines[0]):
        raise FormatError(f"{path}: empty; the first line names columns, such as dp,tp,pp")
    columns = tuple(name.strip() for name in lines[0])
    for number, name in enumerate(columns, 1):
        if name not in COLUMNS and not name.startswith(COPIED):
            near = suggestion(name, COLUMNS)
            raise FormatError(
                f"{path}: line 1, column {number}: {name!r} is unknown; use "
                f"{', '.join(COLUMNS)}, or x-NAME for what is copied{near}"
            )
        if name in columns[: number - 1]:
            raise FormatError(f"{path}: line 1, column {number}: {name!r} is repeated")
    cells, rows = [], []
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        if len(line) != len(columns):
            raise FormatError(
                f"{path}: line {number}: has {len(line)} cells, the first line {len(columns)}"
            )
        own = {n: c.strip() for n, c in zip(columns, line, strict=True) if n in COLUMNS}
        try:
            rows.append(words_of(own, f"{path}: line {number}"))
        except InputError as error:
            raise FormatError(str(error)) from None
        cells.append(tuple(line))
    if not rows:
        raise FormatError(f"{path}: has no row; give one a plan")
    return GivenTable(columns, tuple(cells), tuple(rows))
