"""What the house holds: lines, files, rooms, and what five commands cross; ``make house``.

``house.json`` says how much of each there may be. A figure above it fails. A figure that fell is
written down with ``--lower``, so that it stays down; one that must rise is raised by hand, with a
new ``why`` beside it: a row that rose since the last commit of the file without one fails too.

*Crossed* are the files and functions of the package that a command enters in its main process, and
the depth of its deepest stack of own functions; what runs because a module is imported does not
count. These may be ``TURNS`` above their row: a busy machine measures again, by other functions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gnnplace"
FILE = ROOT / "house.json"
MODEL, PLANNED = "two_tower", "hf:gpt2?n_layer=4"
TURNS = 0.03  # of what a command crosses: on a busy machine measuring takes another turn
PREPARED = ("place", MODEL, "--cluster", "cpu:2", "--placer", "heft", "--budget", "0")
"""What writes the problem and the placement that the commands read."""
COMMANDS = {
    "simulate": ("simulate", "problem.json", "placement.json"),
    "place-problem": ("place", "problem.json", "--placer", "etf", "-o", "etf.json"),
    "place-model": ("place", MODEL, "--cluster", "cpu:2", "-o", "two.json"),
    "execute": ("execute", MODEL, "placement.json", "--steps", "2"),
    "plan": ("plan", PLANNED, "--cluster", "cpu:4", "-o", "plan.json"),
}


class Crossing:
    """Files, functions and the deepest stack of the package's own code, as a command runs."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str, int]] = set()
        self.depth = self.deepest = self.importing = 0
        self.own = str(PACKAGE) + os.sep

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """One event of ``sys.setprofile``."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(self.own):
            return
        step = 1 if event == "call" else -1
        if code.co_name == "<module>":
            self.importing += step
        elif not self.importing:
            self.depth += step
            self.deepest = max(self.deepest, self.depth)
            self.functions.add((code.co_filename, code.co_qualname, code.co_firstlineno))

    def figures(self) -> dict[str, int]:
        """How many files and functions, and how deep."""
        files = {file for file, _, _ in self.functions}
        return {"files": len(files), "functions": len(self.functions), "depth": self.deepest}


def cross(arguments: list[str]) -> None:
    """Runs a command in this process and prints what it crossed, the last line of stdout."""
    from gnnplace.cli.main import run

    crossing = Crossing()
    sys.setprofile(crossing)
    code = run([*arguments, "--quiet"])
    sys.setprofile(None)
    print("\n" + json.dumps(crossing.figures()))
    sys.exit(code)


def crossed() -> dict[str, int]:
    """What the five commands cross, each in a process of its own, kernels compiled before."""
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        place = (*PREPARED, "--problem", "problem.json", "-o", "placement.json")
        _run(["-m", "gnnplace", *place], folder)
        for name, arguments in COMMANDS.items():
            out = _run(["-m", "tests.house", "cross", *arguments], folder)
            for what, value in json.loads(out.splitlines()[-1]).items():
                figures[f"{name}: {what}"] = value
    return figures


def _run(arguments: list[str], folder: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GNNPLACE_STORE": "none"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


def standing() -> dict[str, int]:
    """Lines, files and rooms of the package."""
    sources = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    rooms = [path for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()]
    return {
        "lines": sum(text.count("\n") for text in sources),
        "files": len(sources),
        "rooms": len(rooms),
    }


def faults(
    figures: dict[str, int], rows: dict[str, dict[str, Any]], before: dict[str, dict[str, Any]]
) -> list[str]:
    """What is above its row, and which rows rose without a new reason.

    Args:
        figures: name: as measured now.
        rows: name: ``most`` and ``why``, of ``house.json``.
        before: the rows of the last commit that is not this one.
    """
    found = []
    for name, value in figures.items():
        slack = TURNS if ":" in name else 0.0
        if value > rows[name]["most"] * (1 + slack):
            found.append(f"{name}: {value}, and house.json allows {rows[name]['most']}")
    for name, row in rows.items():
        old = before.get(name)
        if old and row["most"] > old["most"] and row.get("why") in ("", None, old.get("why")):
            found.append(f"{name}: raised from {old['most']} to {row['most']} without a new why")
    return found


def rows_before() -> dict[str, dict[str, Any]]:
    """The rows as they were committed before those in the working tree; none outside of git."""
    now = FILE.read_text(encoding="utf-8")
    done = subprocess.run(
        ["git", "log", "-n", "2", "--format=%H", "--", FILE.name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    for commit in done.stdout.split():
        shown = subprocess.run(
            ["git", "show", f"{commit}:{FILE.name}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if shown.returncode == 0 and shown.stdout != now:
            return dict(json.loads(shown.stdout))
    return {}


def write(rows: dict[str, dict[str, Any]]) -> None:
    """A row a line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """``cross COMMAND...`` runs one command; ``--lower`` writes what fell; otherwise it checks."""
    if arguments[:1] == ["cross"]:
        cross(arguments[1:])
    figures = {**standing(), **crossed()}
    rows = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    width = max(len(name) for name in figures)
    for name, value in figures.items():
        print(f"{name:{width}}  {value:7,}  of {rows.get(name, {}).get('most', value):7,}")
    if arguments == ["--lower"]:
        for name, value in figures.items():
            row = rows.setdefault(name, {"most": value})
            row["most"] = min(row["most"], value)
        write(rows)
        return 0
    found = faults(figures, rows, rows_before())
    print("\n".join(found), file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
