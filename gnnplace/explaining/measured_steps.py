"""Measured steps: seconds that a user gives, or those in the log of a training run.

| log | what is read |
|---|---|
| Megatron-LM, Megatron-DeepSpeed | `elapsed time per iteration (ms): 834.5`, or `(s)` |
| nanotron | `time_per_iteration_ms: 834`, with K and M |
| torchtitan | `step: 5 … tps: 1,234`: tokens a second and device (`components/metrics.py`) |
| DeepSpeed | `CurrSamplesPerSec=12.5`, of all replicas (`utils/timer.py`) |
| Composer, llm-foundry | `throughput/batches_per_sec: 0.51` |
| a progress bar (Trainer, accelerate, Lightning, Composer) | `1.10it/s`, `1.72s/it`: steps |
| Trainer without a bar | `'train_steps_per_second': 0.5` of the whole run |

Evaluation does not count. A line that names validation, evaluation, a sanity check or a warm-up
before its figure is left out. Of progress bars without such a name, one that runs to its end inside
of another bar, or is followed by `'eval_…'`, is an evaluation. Ranks that print the same step count
once, by the slowest. Where step numbers start again, a second run begins, and the last one counts.

The first iterations of a run compile, allocate and warm up: a fifth of all, at least three and at
most 20, are left out where others remain. The median of the rest counts. Complexity: linear in the
log, and quadratic in the number of different progress bars.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from gnnplace.errors import FormatError, InputError
from gnnplace.files import SECONDS_OF, read_seconds
from gnnplace.plans import PlanFile

MULTIPLES = {"": 1.0, "K": 1e3, "M": 1e6}
CONTROL_CODES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07)")
NUMBER = r"([0-9][0-9,]*\.?[0-9]*(?:e[+-]?[0-9]+)?)"
WARM_UP_MIN, WARM_UP_MAX, WARM_UP_SHARE = 3, 20, 5  # iterations that are left out
MAX_LOG_BYTES = 1 << 28
MAX_SECONDS = 1e7
OTHER_PHASES = re.compile(
    r"\b(?:validat\w*|val|eval\w*|sanity|predict\w*|test(?:ing)?|infer\w*|generat\w*|warm-?up|"
    r"load\w*|download\w*|fetch\w*|map|filter\w*|tokeniz\w*|resolv\w*)\b",
    re.IGNORECASE,
)
"""Names of what a progress bar or a line counts besides training steps."""
EVALUATION_RESULT = re.compile(r"""['"]eval_\w+['"]\s*:""")


@dataclass(frozen=True)
class MeasuredSteps:
    """The measured seconds of a step of a run.

    Attributes:
        seconds: The median seconds of a step.
        count: Steps that it is the median of; 1 where the user gave seconds.
        warm_up: First steps that do not count.
        source: The launcher whose log has them; empty where the user gave seconds.
        first_line: Line of the first step that counts, from 1; 0 where the user gave seconds.
        last_line: Line of the last one.
        notes: What else the log has and what was not counted, each in a few words.
    """

    seconds: float
    count: int = 1
    warm_up: int = 0
    source: str = ""
    first_line: int = 0
    last_line: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunSizes:
    """The sizes of a run that turn a log's rates into seconds of a step.

    Attributes:
        batch: Examples of a step.
        tokens: Tokens of a step.
        devices: Devices that run it.
    """

    batch: int
    tokens: int
    devices: int


@dataclass(frozen=True)
class LoggedStep:
    """A training step in a log.

    Attributes:
        seconds: Seconds that it took.
        line: Line that it stands on, from 1.
        number: The iteration's number; None where the log does not say.
    """

    seconds: float
    line: int
    number: int | None = None


@dataclass(frozen=True)
class LineReader:
    """A reader of the lines in which a launcher's log states a step.

    Attributes:
        source: The launcher.
        pattern: Finds the figure; its groups are the arguments of `seconds`.
        number: Finds the iteration on the same line.
        seconds: Makes seconds of a step from the figure and the sizes of the run.
    """

    source: str
    pattern: re.Pattern[str]
    number: re.Pattern[str]
    seconds: Callable[[re.Match[str], RunSizes], float]


def _number(text: str) -> float:
    return float(text.replace(",", ""))


READERS = (
    LineReader(
        "Megatron-LM",
        re.compile(rf"elapsed time per iteration \((ms|s)\): *{NUMBER}"),
        re.compile(r"iteration +([0-9]+)\s*/"),
        lambda match, sizes: _number(match[2]) * SECONDS_OF[match[1]],
    ),
    LineReader(
        "nanotron",
        re.compile(rf"time_per_iteration_ms: *{NUMBER}([KM]?)"),
        re.compile(r"iteration: *([0-9]+)"),
        lambda match, sizes: _number(match[1]) * MULTIPLES[match[2]] / 1e3,
    ),
    LineReader(
        "torchtitan",
        re.compile(rf"step: *[0-9]+ .*\btps: *{NUMBER}"),
        re.compile(r"step: *([0-9]+)"),
        lambda match, sizes: (
            sizes.tokens / max(_number(match[1]) * sizes.devices, 1e-9)
        ),
    ),
    LineReader(
        "DeepSpeed",
        re.compile(rf"CurrSamplesPerSec={NUMBER}"),
        re.compile(r"\bglobal_step=([0-9]+)"),
        lambda match, sizes: sizes.batch / max(_number(match[1]), 1e-9),
    ),
    LineReader(
        "Composer",
        re.compile(rf"throughput/batches_per_sec['\"]?: *{NUMBER}"),
        re.compile(r"\bbatch=([0-9]+)"),
        lambda match, sizes: 1.0 / max(_number(match[1]), 1e-9),
    ),
)
BARS = "tqdm"
WHOLE_RUN = LineReader(
    "Trainer",
    re.compile(rf"['\"]train_steps_per_second['\"]: *{NUMBER}"),
    re.compile(r"(?!)"),
    lambda match, sizes: 1.0 / max(_number(match[1]), 1e-9),
)


def find_run_sizes(file: PlanFile) -> RunSizes:
    """Return the sizes of a plan's run."""
    shape = file.inputs[0].shape if file.inputs else []
    length = shape[1] if len(shape) > 1 else 1
    return RunSizes(file.batch, file.batch * length, len(file.memory))


def read_measured_steps(given: str, sizes: RunSizes) -> MeasuredSteps:
    """Return the steps of seconds such as 0.83s or 830ms, or those of a log.

    Args:
        given: Seconds with their unit, or a path.
        sizes: Sizes of the run.

    Raises:
        InputError: If it is neither.
        FormatError: If no step can be read from the log.
    """
    try:
        seconds = read_seconds(given)
    except ValueError:  # it is a path
        pass
    else:
        if not 0 < seconds < MAX_SECONDS:
            raise InputError(f"--measured {given}: must be more than no seconds")
        return MeasuredSteps(seconds)
    path = Path(given)
    if not path.is_file():
        raise InputError(
            f"--measured {given}: must be seconds such as 0.83s or 830ms, or a log"
        )
    if path.stat().st_size > MAX_LOG_BYTES:
        raise FormatError(
            f"{given}: has {path.stat().st_size / 1e6:.0f} MB; give its last part"
        )
    try:
        # Workers write into one log at once, so that bytes may be cut anywhere.
        text = path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise FormatError(f"{given}: cannot be read: {error.strerror}") from None
    return read_log_steps(text, given, sizes)


def read_log_steps(text: str, source: str, sizes: RunSizes) -> MeasuredSteps:
    """Read the training steps of a launcher's log.

    Args:
        text: The log.
        source: Its name for messages.
        sizes: Sizes of the run.

    Raises:
        FormatError: If no step is found. The message names `source` and what a log may have.
    """
    lines = CONTROL_CODES.sub("", text).split("\n")
    for reader in READERS:
        steps, skipped = read_lines(lines, reader, sizes)
        if steps:
            if skipped:
                notes = [f"{skipped} lines of evaluation not counted"]
            else:
                notes = []
            return summarize_steps(steps, reader.source, notes)
    steps, notes = read_bars(lines)
    if steps:
        return summarize_steps(steps, BARS, notes)
    steps, _ = read_lines(lines, WHOLE_RUN, sizes)
    if steps:
        return summarize_steps(
            steps[-1:], WHOLE_RUN.source, ["of the whole run, its start too"]
        )
    raise FormatError(
        f"{source}: has no training step of Megatron-LM, nanotron, torchtitan, DeepSpeed, Composer "
        "or a progress bar; give its seconds, as --measured 0.83s"
    )


def read_lines(
    lines: Sequence[str], reader: LineReader, sizes: RunSizes
) -> tuple[list[LoggedStep], int]:
    """Return the training steps in a launcher's lines, and the number of lines of evaluation."""
    steps = []
    skipped = 0
    number: int | None = None
    for line_number, line in enumerate(lines, 1):
        # Composer prints the number on a line before its figures.
        for number_match in reader.number.finditer(line):
            number = int(number_match[1])
        match = reader.pattern.search(line)
        if match is None:
            continue
        if OTHER_PHASES.search(line[max(0, match.start() - 30) : match.start()]):
            skipped += 1
            continue
        seconds = reader.seconds(match, sizes)
        if 0 < seconds < MAX_SECONDS:
            steps.append(LoggedStep(seconds, line_number, number))
    return steps, skipped


def summarize_steps(
    steps: Sequence[LoggedStep], source: str, notes: Iterable[str] = ()
) -> MeasuredSteps:
    """Return the median of the last run's steps without its warm-up."""
    runs = split_runs(steps)
    # A run that stopped while it warmed up says nothing.
    long_enough = [run for run in runs if len(run) > WARM_UP_MIN]
    if long_enough:
        run = long_enough[-1]
    else:
        run = max(runs, key=len)
    notes = list(notes)
    if len(runs) > 1:
        index = next(i for i, candidate in enumerate(runs) if candidate is run)
        notes.insert(0, f"run {index + 1} of {len(runs)} in the log")
    warm_up = min(
        max(WARM_UP_MIN, len(run) // WARM_UP_SHARE), WARM_UP_MAX, len(run) - 1
    )
    counted = run[warm_up:]
    return MeasuredSteps(
        seconds=median(step.seconds for step in counted),
        count=len(counted),
        warm_up=warm_up,
        source=source,
        first_line=counted[0].line,
        last_line=counted[-1].line,
        notes=tuple(notes),
    )


def split_runs(steps: Sequence[LoggedStep]) -> list[list[LoggedStep]]:
    """Split steps into runs where their numbers start again, and join the ranks of one step.

    Ranks print in any order, so that a number may fall back by a step or two within a run.
    """
    runs: list[list[LoggedStep]] = [[]]
    for step in steps:
        run = runs[-1]
        if step.number is None:
            run.append(step)
            continue
        recent = run[-3:]
        twin = next(
            (i for i, earlier in enumerate(recent) if earlier.number == step.number),
            None,
        )
        if twin is not None:
            place = len(run) - len(recent) + twin
            slowest = max(run[place], step, key=lambda one: one.seconds)
            run[place] = LoggedStep(slowest.seconds, run[place].line, step.number)
        elif recent and step.number < min(one.number or 0 for one in recent):
            runs.append([step])
        else:
            run.append(step)
    return runs


BAR_RATE = re.compile(
    rf"{NUMBER} ?(it|ba|steps?|batch(?:es)?)/s|{NUMBER} ?s/(it|ba|steps?|batch)\b"
)
BAR_COUNTS = re.compile(r"\b([0-9]+)/([0-9]+)\b")
BAR_NAME = re.compile(r"^(.*?)(?:[0-9]{1,3}%|[━╸╺█▉▊▋▌▍▎▏#|])")


@dataclass
class ProgressBar:
    """The states of one progress bar in a log.

    Attributes:
        name: What stands before it, without numbers.
        total: Iterations in all; None where it is not known.
        steps: A step for each state.
        positions: Place of each state among the states of all bars.
        is_evaluation: Whether the log shows that it counts no training steps.
    """

    name: str
    total: int | None
    steps: list[LoggedStep] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    is_evaluation: bool = False

    @property
    def seconds(self) -> float:
        """Return the seconds of all states."""
        return sum(step.seconds for step in self.steps)

    def encloses(self, other: ProgressBar) -> bool:
        """Return whether another bar begins inside of this one, which goes on after it."""
        return self.positions[0] < other.positions[0] < self.positions[-1]


def read_bars(lines: Sequence[str]) -> tuple[list[LoggedStep], list[str]]:
    """Return the steps of the training's progress bar, and what other bars there are."""
    bars = collect_bars(lines)
    for bar in bars:
        if OTHER_PHASES.search(bar.name):
            bar.is_evaluation = True
    for bar in bars:
        outer = [
            candidate
            for candidate in bars
            if candidate.encloses(bar) and not bar.encloses(candidate)
        ]
        if any(not enclosing.is_evaluation for enclosing in outer):
            bar.is_evaluation = True
    candidates = [bar for bar in bars if not bar.is_evaluation]
    if not candidates:  # results of evaluation followed the training's own bar
        candidates = [bar for bar in bars if not OTHER_PHASES.search(bar.name)]
    if not candidates:
        return [], []
    # The training's bar takes the most time of those that nothing tells apart.
    training = max(candidates, key=lambda bar: bar.seconds)
    num_ignored = len(bars) - 1
    plural = "s" if num_ignored > 1 else ""
    if num_ignored:
        notes = [f"{num_ignored} other progress bar{plural} not counted"]
    else:
        notes = []
    return training.steps, notes


def collect_bars(lines: Sequence[str]) -> list[ProgressBar]:
    """Return the progress bars of a log. Bars before a result of evaluation are marked as such."""
    bars: dict[tuple[str, int | None], ProgressBar] = {}
    latest: ProgressBar | None = None
    is_complete = False
    for position, (line_number, state) in enumerate(_states(lines)):
        rate = BAR_RATE.search(state)
        if rate is None:
            if latest is not None and EVALUATION_RESULT.search(state):
                latest.is_evaluation |= is_complete
                latest = None
            continue
        name = BAR_NAME.match(state)
        all_counts = list(BAR_COUNTS.finditer(state, 0, rate.start()))
        # The last unit stands next to the rate.
        counts = all_counts[-1] if all_counts else None
        label = re.sub(r"[0-9]+", "", name[1] if name else "").strip()
        key = (label, int(counts[2]) if counts else None)
        is_complete = counts is not None and counts[1] == counts[2]
        bar = bars.setdefault(key, ProgressBar(*key))
        if rate[3]:
            seconds = _number(rate[3])
        else:
            seconds = 1 / max(_number(rate[1]), 1e-9)
        if 0 < seconds < MAX_SECONDS:
            bar.steps.append(LoggedStep(seconds, line_number))
            bar.positions.append(position)
            latest = bar
    return [bar for bar in bars.values() if bar.steps]


def _states(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield the states that a terminal would have shown, each with its line in the file."""
    for line_number, line in enumerate(lines, 1):
        for state in line.split("\r"):
            if state:
                yield line_number, state
