"""`studies published`: tables by set, of published runs that a folder has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.studies.published import (
    bigscience,
    foundry,
    golden,
    internevo,
    neusight,
    sailor,
    scale,
    simumax,
    ultrascale,
    vtrain,
    weak_scaling,
)
from benchmarks.studies.published.intervals import interval_lines
from benchmarks.studies.published.left_out import (
    BYTES,
    MOVED,
    interval,
    left_out,
    peaks_left_out,
)
from benchmarks.studies.published.outcomes import (
    Outcome,
    byte_errors,
    choices,
    coverage,
    fitting,
    mean,
    median,
    near_best,
    timed,
)
from benchmarks.studies.published.pictures import write_pictures
from gnnplace.errors import InputError
from gnnplace.files import write_text
from gnnplace.foreign import check_installed

Say = Callable[[str], None]
SETS: Mapping[str, tuple[str, Callable[[Path], list[Outcome]]]] = {
    ultrascale.FOLDER: ("nanotron", ultrascale.outcomes),
    foundry.FOLDER: ("pytorch", foundry.outcomes),
    bigscience.FOLDER: ("megatron-deepspeed", bigscience.outcomes),
    vtrain.FOLDER: ("megatron-deepspeed", vtrain.outcomes),
    simumax.FOLDER: ("megatron-lm", simumax.outcomes),
    golden.FOLDER: ("megatron-lm", golden.outcomes),
    weak_scaling.FOLDER: ("megatron-lm", weak_scaling.outcomes),
    internevo.FOLDER: ("internevo", internevo.outcomes),
    sailor.FOLDER: ("sailor", sailor.outcomes),
    neusight.FOLDER: ("pytorch", neusight.outcomes),
}
HEADS = (
    "set", "framework", "rows", "error", "median", "bias", "near-best", "any cluster", "rank",
    "regret", "of three", "questions", "fits", "near limit", "state", "peak", "peak median",
    "inside",
)  # fmt: skip


def study_published(
    data: str | Path,
    output: str | Path | None = None,
    *,
    progress: Say = lambda line: None,
) -> dict[str, list[Outcome]]:
    """Prices every published row of the sets in a folder.

    Args:
        data: a folder with a folder for each set, each with its rows as their source has them.
        output: folder for `published.md` and its pictures, with what is predicted of each model
            size that a fit does not see, a minute of one core more; nothing is written without one.
        progress: called with a line before each set.

    Raises:
        InputError: the folder has none of the sets.
        FormatError: a set's rows cannot be read.
        MissingExtraError: pictures are to be written and matplotlib is not installed.
    """
    if output is not None:
        check_installed("matplotlib")
    folder = Path(data)
    there = {name: how for name, how in SETS.items() if (folder / name).is_dir()}
    by_format = sorted(part for part in folder.glob("*") if scale.is_here(part))
    if not there and not by_format:
        raise InputError(
            f"--data {data}: has none of the sets {', '.join(SETS)}, nor a folder with "
            f"{scale.MODELS} and {scale.ROWS}"
        )
    for name in (
        weak_scaling.FOLDER,
        internevo.FOLDER,
    ):  # whose rows stand in the checkout
        there[name] = SETS[name]
    read_names = {*SETS, *(part.name for part in by_format)}
    others = sorted(
        x.name for x in folder.iterdir() if x.is_dir() and x.name not in read_names
    )
    if others:
        progress(f"study published: no reader of runs for {', '.join(others)}")
    found = {}
    for name, (framework, read) in there.items():
        progress(f"study published: {name}, priced as {framework} trains")
        found[name] = read(folder)
    for part in by_format:
        progress(f"study published: {part.name}, priced as each row's framework trains")
        for (name, framework), own in scale.outcomes_by_set(part).items():
            found[f"{name} ({framework})" if name in found else name] = own
    if output is not None:
        Path(output).mkdir(parents=True, exist_ok=True)
        progress("study published: fitted without each model size in turn")
        frameworks = {name: find_framework(name, own) for name, own in found.items()}
        pictures = write_pictures(found, frameworks, Path(output))
        lines = [*page(found), *left_out_lines(found), "\n## Pictures\n"]
        lines += [f"![{Path(name).stem}]({name})" for name in pictures]
        write_text(Path(output) / "published.md", "\n".join(lines) + "\n")
    return found


def _percent(value: float, digits: int = 1) -> str:
    return "–" if not np.isfinite(value) else f"{100 * value:.{digits}f} %"


def find_framework(name: str, outcomes: Sequence[Outcome]) -> str:
    """Return the framework that a set is priced as."""
    if name in SETS:
        return SETS[name][0]
    return next((o.setting.framework.name for o in outcomes if o.setting), "refused")


def cells(name: str, framework: str, outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """A row of the table; `HEADS` says of what."""
    own = timed(outcomes)
    errors = [o.error for o in own]
    rank, pick, three, asked = choices([o for o in outcomes if not o.late])
    right, near, _, _, _ = fitting(outcomes)
    state, peak = byte_errors(outcomes)
    ranked = "–" if np.isnan(rank) else f"{rank:.2f}"
    bias = float(np.median(errors)) if errors else float("nan")
    return (
        name, framework, str(len(own)), _percent(mean(errors)), _percent(median(errors)),
        _percent(bias), _percent(mean([o.error for o in near_best(outcomes)])),
        _percent(mean([o.error for o in own if o.alike])), ranked, _percent(pick),
        _percent(three), str(asked), _percent(right), _percent(near), _percent(mean(state)),
        _percent(mean(peak)), _percent(median(peak)), _percent(coverage(outcomes), 0),
    )  # fmt: skip


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    return [f"| {' | '.join(line)} |" for line in (HEADS, ["---"] * len(HEADS), *rows)]


def left_out_lines(found: Mapping[str, list[Outcome]]) -> Iterator[str]:
    """Sets whose constants are fitted again without each model in turn, and their intervals."""
    yield "\n## Each model size left out of the fit in turn\n"
    again = {
        name: left_out(name, own)
        for name, own in found.items()
        if name in MOVED and len({o.model for o in timed(own)}) > 1
    }
    yield from table(
        [cells(name, find_framework(name, own), own) for name, own in again.items()]
    )
    yield ""
    for name, own in again.items():
        low, high = interval(own)
        yield f"{name}: four in five took {low:.3f} to {high:.3f} of the predicted seconds."
        if name in BYTES:
            errors = peaks_left_out(name, found[name])
            yield (
                f"{name}: peaks, constants of bytes fitted without their model: "
                f"{_percent(mean(errors))}, median {_percent(median(errors))}."
            )


def page(found: Mapping[str, list[Outcome]]) -> Iterator[str]:
    """The tables: by set, by model, stragglers, fits."""
    yield "# Published runs, priced by framework\n"
    yield "Made by `python -m benchmarks.studies published --data FOLDER -o FOLDER`.\n"
    yield from table(
        [cells(name, find_framework(name, own), own) for name, own in found.items()]
    )
    for name, own in found.items():
        yield f"\n## {name}, by model\n"
        models = sorted({o.model for o in own})
        parts = {model: [o for o in own if o.model == model] for model in models}
        yield from table(
            [
                cells(model, find_framework(name, part), part)
                for model, part in parts.items()
            ]
        )
        yield ""
        yield from notes(own)
    yield from interval_lines(found)


def notes(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What a table does not have: stragglers both ways, and who is told that it fits."""
    late = [o for o in outcomes if o.late]
    rank, pick, three, _ = choices(outcomes)
    if late:
        yield (
            f"{len(late)} stragglers; with them rank {rank:.2f}, regret {_percent(pick)}, of the "
            f"best of three {_percent(three)}; without them error "
            f"{_percent(mean([o.error for o in outcomes if not o.late]))}."
        )
    _, _, count, ran, refused = fitting(outcomes)
    if count:
        yield (
            f"Fits or not: {count} rows; of what ran {_percent(ran)} are said to fit, of what was "
            f"too large {_percent(refused)} are refused."
        )
