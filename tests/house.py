"""The ratchet of the house: what may only fall, room by room; ``make house``.

``house.json`` has the figures that the package may have at most: for each room how dense its code
is and how often it breaks a rule of style, and for five commands how many functions they cross. A
figure above it fails. ``--lower`` writes down what fell and never raises a figure. Lines, files
and tokens are printed only: use as many lines as a thought needs.

*Crossed* are the files and functions of the package that a command enters in its main process, and
the depth of its deepest stack of these functions; what runs because a module is imported does not
count. Functions may be ``SLACK`` above their figure: a busy machine measures again, by other
functions. Density may be ``DENSITY_SLACK`` above: taking out code with short lines is no packing.

    python -m tests.house              the table, the places to begin with, and the check
    python -m tests.house --static     without running the five commands
    python -m tests.house --lower      writes what fell into house.json
    python -m tests.house --chains     every parameter that is only handed on, with its functions
    python -m tests.house --ignores    takes out of pyproject.toml what no longer breaks a rule
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from tests.house_counts import (
    COUNTS,
    DENSITY,
    PACKAGE,
    ROOT,
    RUFF_RULES,
    Place,
    Source,
    compute_density,
    count_by_room,
    count_places,
    count_standing,
    find_chains,
    find_dense_functions,
    read_sources,
    run_ruff,
    worst_places,
)

FILE = ROOT / "house.json"
PROJECT = ROOT / "pyproject.toml"
MODEL, PLANNED_MODEL = "two_tower", "hf:gpt2?n_layer=4"
SLACK = 0.03  # of the functions that a command crosses
DENSITY_SLACK = 0.05  # tokens a code line
PREPARE = ("place", MODEL, "--cluster", "cpu:2", "--placer", "heft", "--budget", "0")
"""Writes the problem and the placement that the commands read."""
COMMANDS = {
    "simulate": ("simulate", "problem.json", "placement.json"),
    "place-problem": ("place", "problem.json", "--placer", "etf", "-o", "etf.json"),
    "place-model": ("place", MODEL, "--cluster", "cpu:2", "-o", "two.json"),
    "execute": ("execute", MODEL, "placement.json", "--steps", "2"),
    "plan": ("plan", PLANNED_MODEL, "--cluster", "cpu:4", "-o", "plan.json"),
}

Figures = dict[str, dict[str, float]]
"""Figures by room and count, or by command and what it crosses."""


class Crossing:
    """Files, functions and the deepest stack of the package's own code, as a command runs."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str, int]] = set()
        self.depth = self.deepest = self.importing = 0
        self.package = str(PACKAGE) + os.sep

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """Take in one event of ``sys.setprofile``."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(
            self.package
        ):
            return
        step = 1 if event == "call" else -1
        if code.co_name == "<module>":
            self.importing += step
        elif not self.importing:
            self.depth += step
            self.deepest = max(self.deepest, self.depth)
            self.functions.add(
                (code.co_filename, code.co_qualname, code.co_firstlineno)
            )

    def figures(self) -> dict[str, int]:
        """Return how many files and functions were crossed, and how deep."""
        files = {file for file, _, _ in self.functions}
        return {
            "files": len(files),
            "functions": len(self.functions),
            "depth": self.deepest,
        }


def cross(arguments: list[str]) -> None:
    """Run a command in this process and print what it crossed as the last line of stdout."""
    from gnnplace.cli.main import run

    crossing = Crossing()
    sys.setprofile(crossing)
    code = run([*arguments, "--quiet"])
    sys.setprofile(None)
    print("\n" + json.dumps(crossing.figures()))
    sys.exit(code)


def cross_commands() -> Figures:
    """Return what the five commands cross, each in a process of its own with compiled kernels."""
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        place = (*PREPARE, "--problem", "problem.json", "-o", "placement.json")
        _run_python(["-m", "gnnplace", *place], folder)
        for name, arguments in COMMANDS.items():
            output = _run_python(["-m", "tests.house", "cross", *arguments], folder)
            figures[name] = json.loads(output.splitlines()[-1])
    return figures


def _run_python(arguments: list[str], folder: str) -> str:
    completed = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GNNPLACE_STORE": "none"},
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode:
        command = " ".join(arguments)
        sys.exit(f"{command}: exit {completed.returncode}\n{completed.stderr}")
    return completed.stdout


def find_excesses(
    rooms: Figures,
    commands: Figures,
    allowed: Mapping[str, Figures],
    places: dict[str, list[Place]],
) -> list[str]:
    """Return a line for each figure above what ``house.json`` allows.

    Args:
        rooms: Counted now, by room.
        commands: Crossed now, by command; may be empty.
        allowed: ``rooms`` and ``commands`` of ``house.json``.
        places: Of every count, to name where the room's figure comes from.
    """
    excesses = []
    for room, figures in rooms.items():
        if room not in allowed["rooms"]:
            excesses.append(
                f"{room}: house.json does not have this room; write its figures there by hand, "
                "and lower those of the rooms that its files come from"
            )
            continue
        for name, value in figures.items():
            limit = allowed["rooms"][room][name]
            if value > limit + (DENSITY_SLACK if name == DENSITY else 0):
                in_room = [
                    place for place in places.get(name, ()) if place.room == room
                ]
                examples = ", ".join(
                    str(place) for place in worst_places(name, in_room, 3)
                )
                where = f"; most of it: {examples}" if examples else ""
                excesses.append(
                    f"{room}: {name} {value:g}, house.json allows {limit:g}{where}"
                )
    for command, figures in commands.items():
        limit = allowed["commands"][command]["functions"]
        if figures["functions"] > limit * (1 + SLACK):
            excesses.append(
                f"{command}: crosses {figures['functions']:g} functions, "
                f"house.json allows {limit:g}"
            )
    return excesses


def find_raised(
    allowed: Mapping[str, Figures], before: Mapping[str, Figures]
) -> list[str]:
    """Return a line for each figure of ``house.json`` that rose since it was committed.

    A count may go from one room to another with the files that it belongs to: sums over all rooms
    are compared.
    """
    if "commands" not in before:
        return []
    raised = []
    for name in COUNTS[1:]:
        total = sum(figures[name] for figures in allowed["rooms"].values())
        total_before = sum(figures.get(name, 0) for figures in before["rooms"].values())
        if total > total_before and any(
            name in row for row in before["rooms"].values()
        ):
            raised.append(
                f"{name}: house.json was raised from {total_before:g} to {total:g}"
            )
    for group, name in (("rooms", DENSITY), ("commands", "functions")):
        for key, figures in allowed[group].items():
            limit_before = before[group].get(key, {}).get(name)
            if limit_before is not None and figures[name] > limit_before:
                raised.append(
                    f"{key}: {name} of house.json was raised from {limit_before:g} "
                    f"to {figures[name]:g}"
                )
    return raised


def read_committed() -> dict[str, Figures]:
    """Return ``house.json`` as it was before the working tree's; empty outside of git."""
    text = FILE.read_text(encoding="utf-8")
    log = ["log", "-n", "2", "--format=%H", "--", FILE.name]
    for commit in _git(log).split():
        committed = _git(["show", f"{commit}:{FILE.name}"])
        if committed and committed != text:
            return dict(json.loads(committed))
    return {}


def _git(arguments: list[str]) -> str:
    completed = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return "" if completed.returncode else completed.stdout


def lower(
    allowed: Mapping[str, Figures], rooms: Figures, commands: Figures
) -> dict[str, Figures]:
    """Return ``house.json`` with what fell. Rooms that are gone go; none is raised or added."""
    lowered: dict[str, Figures] = {"rooms": {}, "commands": {}}
    for room, limits in allowed["rooms"].items():
        if room in rooms:
            figures = rooms[room]
            lowered["rooms"][room] = {
                name: min(limits[name], figures[name]) for name in COUNTS
            }
    for command, limits in allowed["commands"].items():
        crossed = commands.get(command, limits)["functions"]
        lowered["commands"][command] = {"functions": min(limits["functions"], crossed)}
    return lowered


def format_figures(allowed: Mapping[str, Figures]) -> str:
    """Return the text of ``house.json``: one line a room and one a command."""
    groups = []
    for group in ("rooms", "commands"):
        rows = [
            f"    {json.dumps(key)}: {json.dumps(row)}"
            for key, row in allowed[group].items()
        ]
        groups.append(f"  {json.dumps(group)}: {{\n" + ",\n".join(rows) + "\n  }")
    return "{\n" + ",\n".join(groups) + "\n}\n"


def print_rooms(sources: Sequence[Source], rooms: Figures) -> None:
    """Print a row a room and the total: first what is held, then what is printed only."""
    standing = count_standing(sources)
    printed = ("files", "lines", "code lines", "tokens")
    total_standing = {
        name: sum(row[name] for row in standing.values()) for name in printed
    }
    totals: dict[str, float] = {DENSITY: compute_density(total_standing)}
    for name in COUNTS[1:]:
        totals[name] = sum(figures[name] for figures in rooms.values())

    headers = [name.split() for name in (*COUNTS, *printed)]
    for level in range(max(map(len, headers))):
        cells = (words[level] if level < len(words) else "" for words in headers)
        print(f"{'':14}" + "".join(f"{cell:>10}" for cell in cells))
    for room, figures in {**rooms, "total": totals}.items():
        row = {**figures, **standing.get(room, total_standing)}
        print(
            f"{room:14}"
            + "".join(f"{row[name]:10,.10g}" for name in (*COUNTS, *printed))
        )


def print_worst(sources: Sequence[Source], places: dict[str, list[Place]]) -> None:
    """Print the ten worst places of every count."""
    for name in COUNTS:
        listed = find_dense_functions(sources) if name == DENSITY else places[name]
        print(f"\n{name}")
        for place in worst_places(name, listed):
            print(f"  {place}")


def print_commands(commands: Figures, allowed: Figures) -> None:
    """Print what every command crosses, beside the functions that it may cross."""
    if commands:
        print(
            f"\n{'crossed':14}{'files':>10}{'functions':>10}{'at most':>10}{'depth':>10}"
        )
    for command, figures in commands.items():
        limit = allowed.get(command, figures)["functions"]
        values = (figures["files"], figures["functions"], limit, figures["depth"])
        print(f"{command:14}" + "".join(f"{value:10,}" for value in values))


BEGIN = "# begin: written by `python -m tests.house --ignores`; this list only shrinks"
END = "# end: written by `python -m tests.house --ignores`"


def find_offences(offences: dict[str, list[Place]]) -> dict[str, list[str]]:
    """Return the standard rules that each file breaks, by file."""
    rules: dict[str, set[str]] = defaultdict(set)
    for rule in RUFF_RULES:
        for place in offences[rule]:
            rules[place.file].add(rule)
    return {file: sorted(rules[file]) for file in sorted(rules)}


def read_ignores(project: str) -> dict[str, list[str]]:
    """Return the rules that ``pyproject.toml`` lists for each file of the generated block."""
    settings = tomllib.loads(project)["tool"]["ruff"]["lint"]
    return dict(settings.get("extend-per-file-ignores", {}))


def shrink_ignores(project: str, offences: dict[str, list[str]]) -> str:
    """Return ``pyproject.toml`` without the rules that a listed file no longer breaks.

    A list that has not been written yet gets every offence.
    """
    listed = read_ignores(project) or offences
    rows = []
    for file, rules in sorted(listed.items()):
        broken = [rule for rule in rules if rule in offences.get(file, ())]
        if broken:
            rows.append(f"{json.dumps(file)} = {json.dumps(broken)}")
    block = "\n".join((BEGIN, "[tool.ruff.lint.extend-per-file-ignores]", *rows, END))
    pattern = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    if not pattern.search(project):
        sys.exit(
            f"{PROJECT.name} has no lines {BEGIN!r} and {END!r}; write them where the list goes"
        )
    return pattern.sub(lambda match: block, project)


def main(arguments: list[str]) -> int:
    """Print, check, or write what fell; see the module's text for the options."""
    if arguments[:1] == ["cross"]:
        cross(arguments[1:])
    parser = argparse.ArgumentParser(
        prog="python -m tests.house", description="The ratchet."
    )
    parser.add_argument(
        "--static", action="store_true", help="do not run the five commands"
    )
    parser.add_argument(
        "--lower", action="store_true", help="write what fell into house.json"
    )
    parser.add_argument(
        "--chains", action="store_true", help="print every chain of hand-overs"
    )
    parser.add_argument(
        "--ignores", action="store_true", help="shrink the list of pyproject.toml"
    )
    options = parser.parse_args(arguments)

    sources = read_sources()
    if options.chains:
        print("\n".join(str(chain) for chain in find_chains(sources)))
        return 0
    if options.ignores:
        project = PROJECT.read_text(encoding="utf-8")
        shrunk = shrink_ignores(project, find_offences(run_ruff(sources)))
        PROJECT.write_text(shrunk, encoding="utf-8")
        return 0

    allowed = json.loads(FILE.read_text(encoding="utf-8"))
    places = count_places(sources)
    rooms = count_by_room(sources, places)
    print_rooms(sources, rooms)
    print_worst(sources, places)
    commands = {} if options.static else cross_commands()
    print_commands(commands, allowed["commands"])
    if options.lower:
        FILE.write_text(
            format_figures(lower(allowed, rooms, commands)), encoding="utf-8"
        )
        allowed = json.loads(FILE.read_text(encoding="utf-8"))
    excesses = find_excesses(rooms, commands, allowed, places)
    excesses += find_raised(allowed, read_committed())
    print("\n".join(excesses), file=sys.stderr)
    return 1 if excesses else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
