"""Runs a page of the docs: every command, file and script that it shows, in their order.

A block of Python or YAML whose first line is a comment with a file's name is that file; another
block of YAML is ``my.yaml``. ``$ python FILE`` runs a file that the page shows. Other blocks of
Python are run as they stand. What a command is shown to say, with two blanks before it, or as
refused after ``gnnplace:``, must be in what it says.
"""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

from gnnplace.cli.main import run

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:py|yaml))\n")


def run_page(page, folder, capsys, instead=None):
    """Runs ``docs/PAGE`` in a folder, which must be the current one.

    Args:
        page: below ``docs/``.
        folder: where its files are written.
        capsys: pytest's.
        instead: functions to call in the place of commands, by the command.

    Returns:
        The commands and scripts that ran.
    """
    blocks = BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))
    done = []
    for language, text in blocks:
        named = FILE.match(text)
        if language in ("python", "yaml") and (named or language == "yaml"):
            (folder / (named[1] if named else "my.yaml")).write_text(text)
    for language, text in blocks:
        if language == "console":
            done += _run_console(text, capsys, instead or {})
        elif language == "python" and not FILE.match(text):
            exec(compile(text, page, "exec"), {})
            done.append(text)
    return done


def _run_console(text, capsys, instead):
    lines = text.splitlines()
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    for command in commands:
        program, *arguments = shlex.split(command)
        if command in instead:
            instead[command]()
        elif program == "python":
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            assert program == "gnnplace", command
            _run_command(arguments, lines, capsys)
    return commands


def _run_command(arguments, lines, capsys):
    code = run(arguments)
    captured = capsys.readouterr()
    refused = [shown for shown in lines if shown.startswith("gnnplace: ")]
    assert (code != 0) == bool(refused), captured.err
    said = [shown for shown in lines if shown.startswith("  ")]
    assert all(shown in captured.err for shown in (*refused, *said)), captured.err
