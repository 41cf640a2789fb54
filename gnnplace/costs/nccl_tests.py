"""Reads what nccl-tests prints (NVIDIA/nccl-tests): one run or several after each other, as it is.

Of every run: the program, from a line that names it (`# Collective test starting: all_reduce_perf`
in new versions, else the command, where the log has it), the GPUs and their servers from the lines
`#  Rank  0 Group  0 Pid 4711 on  host device  0 [...] name`, and from the rows

    #       size         count      type   redop    root     time   algbw   busbw  #wrong  time ...
       1048576        262144     float     sum      -1    42.37   24.75   43.31       0  42.01 ...

bytes and microseconds out of place. Columns are told by their heading, which differs between
versions. Bytes are those of the `size` column, as `costs.collectives` counts them. What `mpirun
--tag-output` and `srun --label` put in front is taken off; other lines (`NCCL INFO`) are passed
over, as are programs that nothing here has a use for (`broadcast_perf` and the like).

An old version does not name its program. Then `busbw / algbw` tells an all-reduce, a reduce-scatter
and a send-receive of three and more GPUs apart by their formulas (doc/PERFORMANCE.md there).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gnnplace.errors import FormatError, join_faults
from gnnplace.files import read_text

OPS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "p2p",
}
OTHERS = ("broadcast", "reduce", "gather", "scatter", "hypercube", "alltoallv")
PROGRAM = re.compile(rf"\b({'|'.join((*OPS, *OTHERS))})_perf(?:_mpi)?\b")
TAG = re.compile(r"^\s*(?:\[\d+,\d+\]<std(?:out|err)>:|\d+:)\s?")
RANK = re.compile(
    r"#?\s*Rank\s+(\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device"
)
COLUMNS = re.compile(r"#?\s*size\s+count\s+.*\btime\b")
ROW = re.compile(r"\s*\d+\s+\d+\s")
SLACK = 0.05  # algbw is rounded


@dataclass
class Run:
    """One run of a program.

    Attributes:
        op: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all`` or ``p2p``.
        servers: the number of servers that took part.
        per_server: GPUs of a server.
        rows: bytes and seconds, by rising bytes.
    """

    op: str
    servers: int
    per_server: int
    rows: list[tuple[float, float]]


@dataclass
class _Section:
    """A run as it is read."""

    program: str | None = None
    hosts: dict[int, str] = field(default_factory=dict)
    columns: list[str] = field(default_factory=list)
    rows: dict[float, float] = field(default_factory=dict)
    ratios: list[float] = field(default_factory=list)
    line: int = 0
    reduces: bool = True


def read_nccl_tests(path: str | Path) -> list[Run]:
    """Return the runs in a log.

    Raises:
        FormatError: the file, the line and what is wrong with it; or no run in it.
    """
    sections = [_Section()]
    faults = []
    for number, text in enumerate(read_text(path).splitlines(), 1):
        try:
            _read_line(TAG.sub("", text), number, sections)
        except ValueError as error:
            faults.append(f"line {number}: {error}")
    if faults:
        raise join_faults(FormatError, faults, str(path))
    runs = []
    for section in sections:
        if not section.rows:
            continue
        try:
            run = _run(section)
        except ValueError as error:
            raise FormatError(f"{path}: line {section.line}: {error}") from None
        runs += [run] if run is not None else []
    if not runs:
        raise FormatError(
            f"{path}: no row of all_reduce_perf or another program of nccl-tests"
        )
    return runs


def _read_line(text: str, number: int, sections: list[_Section]) -> None:
    """Add a line to the last section, or begin the next one."""
    program = PROGRAM.search(text)
    rank = RANK.match(text)
    if sections[-1].rows and (
        rank or "nThread" in text or (program and "concluded" not in text)
    ):
        sections.append(_Section())
    section = sections[-1]
    if program:
        section.program = program[1]
    elif rank:
        index = int(rank[1])
        if index in section.hosts:
            message = f"rank {index} is there twice: build nccl-tests with MPI=1 to run processes"
            raise ValueError(f"{message} together")
        section.hosts[index] = rank[2]
    elif COLUMNS.match(text):
        section.columns = text.replace("# ", " ").split()
    elif ROW.match(text):
        _read_row(text.split(), section)
        section.line = section.line or number


def _read_row(words: Sequence[str], section: _Section) -> None:
    """Return bytes and seconds of a row.

    Raises:
        ValueError: what is wrong with it.
    """
    if not section.columns:
        raise ValueError(
            "a row before the heading that names its columns (size, count, … time)"
        )
    names = section.columns[: 1 + section.columns.index("time") + 3]
    if len(words) < len(names):
        raise ValueError(
            f"{len(words)} values, {len(names)} and more expected; is it cut off?"
        )
    row = dict(zip(names, words, strict=False))
    try:
        size = float(row["size"])
        micro = float(row["time"])
        rate = float(row["algbw"])
        bus = float(row["busbw"])
    except (KeyError, ValueError):
        message = "size, time, algbw and busbw must be numbers"
        raise ValueError(f"{message}: {' '.join(words[: len(names)])}") from None
    if not (0 <= size < 1e18 and 0 < micro < 1e12):
        raise ValueError(f"size {row['size']} and time {row['time']}: must be positive")
    _check(row, size, micro, rate)
    if size == 0:
        return
    section.rows[size] = 1e-6 * micro
    section.reduces = row.get("redop", "none") != "none"
    if rate > 1.0:
        section.ratios.append(bus / rate)


def _check(row: dict[str, str], size: float, micro: float, rate: float) -> None:
    """Refuse wrong results, and times in another unit than microseconds."""
    if rate > 1.0 and abs(size / micro / 1e3 / rate - 1.0) > SLACK:
        message = f"{row['size']} bytes in {row['time']} us are not {row['algbw']} GB/s"
        raise ValueError(message)
    wrong = row.get("#wrong", "0")
    if wrong not in ("0", "N/A"):
        raise ValueError(f"{wrong} wrong elements: this run cannot be relied on")


def _run(section: _Section) -> Run | None:
    """Return the run of a section; None for a program without use.

    Raises:
        ValueError: it does not say which program, or with which GPUs.
    """
    gpus_by_host = Counter(section.hosts.values())
    if len(section.hosts) < 2:
        message = (
            f"{len(section.hosts)} lines '#  Rank … on HOST device' before this row"
        )
        raise ValueError(f"{message}: two GPUs at least are needed")
    missing = sorted(set(range(max(section.hosts) + 1)) - set(section.hosts))
    if missing:
        raise ValueError(
            f"the line '#  Rank' of rank {missing[0]} is missing before this row"
        )
    if len(set(gpus_by_host.values())) > 1:
        raise ValueError(
            f"servers with different numbers of GPUs: {dict(gpus_by_host)}"
        )
    program = section.program or _guess(section)
    if program not in OPS:
        return None
    return Run(
        OPS[program],
        len(gpus_by_host),
        next(iter(gpus_by_host.values())),
        sorted(section.rows.items()),
    )


def _guess(section: _Section) -> str:
    """Return the program by its formula of the bus bandwidth."""
    count = len(section.hosts)
    if section.ratios:
        ratio = sorted(section.ratios)[len(section.ratios) // 2]
    else:
        ratio = 0.0
    formulas = {
        "all_reduce": 2 * (count - 1) / count,
        "reduce_scatter": (count - 1) / count,
        "sendrecv": 1.0,
    }
    if section.reduces:
        programs = [
            name for name, value in formulas.items() if abs(ratio / value - 1.0) < SLACK
        ]
        if len(programs) == 1:
            return programs[0]
    raise ValueError(
        "the log does not name its program; put a line such as '# all_reduce_perf' before the run"
    )
