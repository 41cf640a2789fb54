"""``gnnplace completion``: a script by which a shell completes commands, options and names.

What an option or an argument takes is known by the placeholder in its help (``options.NAMES``),
such as the models of the catalogue. The script has all words in it: completing starts no Python.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from jsonargparse import Namespace

import gnnplace
from gnnplace.cli.commands import COMMANDS, ROWS
from gnnplace.cli.options import NAMES, PLACER, Row
from gnnplace.errors import InputError

BASH = "bash"
ZSH = "zsh"
PLACEHOLDER = re.compile(r"\{(\w+)\}")
SCRIPT = """\
_gnnplace() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} words=
{lists}
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands}"
  else
    case "${{COMP_WORDS[1]}} $previous" in
{values}
    *)
      case "$current" in
      -*)
        case "${{COMP_WORDS[1]}}" in
{options}
        esac ;;
      *)
        case "${{COMP_WORDS[1]}}" in
{arguments}
        esac ;;
      esac ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _gnnplace gnnplace
"""
"""Files complete where no word does."""
ZSH_HEAD = """\
#compdef gnnplace
autoload -U +X compinit && compinit
autoload -U +X bashcompinit && bashcompinit
"""


def run(args: Namespace) -> int:
    """Print the script of a shell.

    Raises:
        InputError: There is no script for this shell.
    """
    if args.shell not in (BASH, ZSH):
        raise InputError(f"completion {args.shell!r}: must be {BASH} or {ZSH}")
    sys.stdout.write((ZSH_HEAD if args.shell == ZSH else "") + completion_script())
    return 0


def completion_script() -> str:
    """Return the bash script that completes words behind ``gnnplace``."""
    values = []
    options = []
    arguments = []
    for command, row in ROWS["commands"].items():
        flags: list[str] = ["--help"]
        for names, placeholder in find_arguments(row["arguments"]):
            if not names[0].startswith("-"):
                if placeholder:
                    arguments.append(f'        {command}) words="${placeholder}" ;;')
                continue
            flags += names
            if placeholder:
                cases = " | ".join(f'"{command} {name}"' for name in names)
                values.append(f'    {cases}) words="${placeholder}" ;;')
        options.append(f'        {command}) words="{" ".join(flags)}" ;;')
    lists = [f'  local {name}="{" ".join(find())}"' for name, find in NAMES.items()]
    return SCRIPT.format(
        lists="\n".join(lists),
        commands=" ".join(COMMANDS),
        values="\n".join(values),
        options="\n".join(options),
        arguments="\n".join(arguments),
    )


def find_arguments(rows: list[Row]) -> Iterator[tuple[list[str], str]]:
    """Yield the names of each option or argument, and the list of words that it takes, if any."""
    for row in rows:
        if row == PLACER:
            yield ["--placer"], "placers"
            yield from (([f"--{name}"], "") for name in gnnplace.placer_options())
        elif isinstance(row, str):
            yield from find_arguments(ROWS["groups"][row.removeprefix("@")])
        else:
            placeholder = PLACEHOLDER.search(row["help"])
            yield row["name"].split(), placeholder[1] if placeholder else ""
