"""`study plans`: published runs as plans that are given; errors, order and regret."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.studies.plans import megatron, sailor, vtrain
from benchmarks.studies.plans.megatron import Host
from benchmarks.studies.plans.runs import Run, Summary, summary
from gnnplace.files import write_text

Say = Callable[[str], None]
TITLES = {
    "sailor": "Sailor, 26 steps on up to 256 GH200, from its layer profiles; nothing fitted",
    "megatron": "Megatron-LM's weak scaling on 32 to 512 A100; nothing fitted",
    "unfitted": "vTrain's single-node file (composed of some 32 measured cells); nothing fitted",
    "fitted": "The same, hidden size 2048, five constants fitted on hidden size 1024",
}


@dataclass(frozen=True, eq=False)
class PlanStudy:
    """What was found.

    Attributes:
        runs: by source, as `TITLES` has them.
        host: constants that were fitted.
    """

    runs: dict[str, list[Run]]
    host: Host

    @property
    def summaries(self) -> dict[str, Summary]:
        """Of every source."""
        return {name: summary(runs) for name, runs in self.runs.items()}


def study_plans(
    output: str | Path | None = None, *, progress: Say = lambda line: None
) -> PlanStudy:
    """Compares what published plans took with what the planner says that they take.

    Args:
        output: folder for `plans-published.md`; nothing is written without one.
        progress: called with a line before each source.

    Returns:
        All runs. It takes two minutes of one core.
    """
    found = {}
    for name, runs in (
        ("sailor", sailor.runs), ("megatron", megatron.runs), ("unfitted", vtrain.unfitted),
    ):  # fmt: skip
        progress(f"study plans: {TITLES[name]}")
        found[name] = runs()
    progress(f"study plans: {TITLES['fitted']}")
    host, found["fitted"] = vtrain.fitted()
    study = PlanStudy(found, host)
    if output is not None:
        folder = Path(output)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "plans-published.md", page(study))
    return study


def headline(study: PlanStudy) -> list[str]:
    """A line a source."""
    return [
        f"{TITLES[name]}: {_words(found)}" for name, found in study.summaries.items()
    ]


def _words(found: Summary) -> str:
    told = f"{found.runs} runs, error {found.error:.1%}, median ratio {found.bias:.3f}"
    if found.questions:
        told += (
            f"; {found.questions} questions, rank correlation {found.rank:.2f}, regret "
            f"{found.regret:.2%} (worst {found.worst:.1%}, best of three {found.three:.2%}, a "
            f"random plan {found.random:.1%})"
        )
    return told


def page(study: PlanStudy) -> str:
    """The report, in Markdown."""
    heads = ("source", "runs", "error", "median ratio", "questions", "rank correlation", "regret",
             "worst", "best of three", "random plan")  # fmt: skip
    cells = [_cells(TITLES[name], found) for name, found in study.summaries.items()]
    host = study.host
    fitted = (
        f"Fitted: a layer takes the host {1e3 * host.forward:.2f} ms forward and "
        f"{1e3 * host.backward:.2f} ms backward, {1e3 * host.waiting:.2f} ms more a pass for every "
        f"doubling of its shards; a micro-batch {1e3 * host.outside:.2f} ms outside of the layers, "
        f"and the head's products, where they are not split, {1e15 * host.head:.2f} s more a "
        "PFLOP.\n"
    )
    parts = [
        "# Published runs as given plans\n",
        "Made by `benchmarks.studies plans -o FOLDER`.\n",
    ]
    parts += [_table(heads, cells), fitted]
    for name in ("sailor", "megatron"):
        rows = [
            (
                r.question,
                r.plan,
                f"{r.predicted:.3f}",
                f"{r.published:.3f}",
                f"{r.error:+.1%}",
            )
            for r in study.runs[name]
        ]
        columns = ("question", "plan", "predicted s", "published s", "error")
        parts += [f"## {TITLES[name]}\n", _table(columns, rows)]
    return "\n".join(parts)


def _cells(title: str, found: Summary) -> Sequence[str]:
    if not found.questions:
        return (
            title,
            str(found.runs),
            f"{found.error:.1%}",
            f"{found.bias:.3f}",
            *["–"] * 6,
        )
    return (
        title, str(found.runs), f"{found.error:.1%}", f"{found.bias:.3f}", str(found.questions),
        f"{found.rank:.2f}", f"{found.regret:.2%}", f"{found.worst:.1%}", f"{found.three:.2%}",
        f"{found.random:.1%}",
    )  # fmt: skip


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
