"""The command line: finds the command, parses, runs. Exit 0 done, 2 bad input, 3 infeasible.

A command is a module of this folder with ``run(args)``, which returns the exit code. Its
description and its options are in ``options.json``, under the module's name with dashes. The module
is imported after its arguments have been parsed, so that ``--help`` imports nothing else. Exit
codes: 130 after Ctrl-C, 141 if the reader of stdout has closed it, 2 if the disk is full.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from gnnplace.cli import interrupts
from gnnplace.cli.commands import COMMANDS, GONE, ROWS
from gnnplace.errors import GnnplaceError, InputError, suggestion
from gnnplace.foreign import missing_extra

# Imported when a command is parsed, so that Ctrl-C meanwhile is one line as well.
if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

USAGE = f"""gnnplace: finds which device should run each operation of a PyTorch training step.

{chr(10).join(f"  gnnplace {name:13} {summary}" for name, summary in COMMANDS.items())}

gnnplace COMMAND --help says more; --quiet hides progress; gnnplace --version. MODEL is a zoo name,
hf:CONFIG or module:callable; C is cpu:N, cuda:N, auto, a preset or a YAML file.
"""


INTERRUPTED, BROKEN_PIPE = 130, 141  # As in shells: 128 plus the signal's number
LONGEST = 1000  # The most characters of an error's line
MOST_FAULTS = 20  # The most faults of a file that are printed
STDOUT = 1  # The file descriptor
KINDS = {
    "int": "a whole number",
    "float": "a finite number",
    "str": "a text",
    "bool": "true or false",
    "list": "a list",
    "dict": "keys and values",
    "NoneType": "null",
}
"""Python's types, as people call what they write."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_MEMORY = ("allocate memory", "start new thread", "bad_alloc", "out of memory")
"""What torch, Python's threads, the kernel and CUDA say when there is no memory left."""


class Command(Protocol):
    """The interface of a command's module."""

    def run(self, args: Namespace) -> int:
        """Run the command and return its exit code."""


def run_and_exit(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: The command line. By default, that of the process.
    """
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    # Torch and what comes with it are a million objects that stay. To look for garbage among them,
    # again and again while they are imported and once more at the end, takes a third of the time.
    gc.set_threshold(50_000, 20, 100)
    # On a terminal or a log that is not UTF-8, letters that it lacks become question marks.
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # it flushes: what cannot be written is told when it is
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")
    code = run(command_line)
    interrupts.leave()
    gc.freeze()
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code.

    The errors of this package become one line on stderr.
    """
    interrupts.watch()
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BaseException as error:
        failure = _describe_failure(error)
        if failure is None:
            raise
        return _fail(*failure, getattr(error, "faults", ()))
    finally:
        interrupts.unwatch()


def _describe_failure(error: BaseException) -> tuple[str, int] | None:
    """Return the message and exit code of an error, or None for an error of the program itself."""
    if interrupts.was_interrupted() or isinstance(error, KeyboardInterrupt):
        return "interrupted; nothing half-written is left", INTERRUPTED
    extra = missing_extra(error)
    if extra is not None:
        return str(extra), extra.exit_code
    if isinstance(error, GnnplaceError):
        return str(error), error.exit_code
    if isinstance(error, BrokenPipeError):
        _forget_stdout()
        return "", BROKEN_PIPE
    if isinstance(error, OSError) and error.errno in FULL:
        _forget_stdout()
        path = error.filename or "what it writes to"
        return (
            f"{path}: cannot be written: {error.strerror}; make room and run it again",
            2,
        )
    if isinstance(error, MemoryError) or any(
        words in str(error) for words in NO_MEMORY
    ):
        return (
            f"out of memory ({str(error)[:200]}); end other programs, or take a smaller case",
            1,
        )
    from argparse import ArgumentError  # the parser's

    if not isinstance(error, ArgumentError):
        return None
    return _parser_fault(str(error)), 2


def _parser_fault(message: str) -> str:
    """Translate a message of jsonargparse: without Python's types and the parser's own terms."""
    if message.startswith("Unexpected config"):
        return "--config: must be keys and values, as the recipes of trainers/"
    if message.startswith("Problems parsing config"):
        reason = message.partition(":")[2].replace(' in "<unicode string>",', "")
        return f"--config: not YAML: {reason.strip()}"
    name = re.match(r'Parser key "([\w.]+)":', message)
    value = re.search(r"(?:Got|Given) value: (.*)", message, re.DOTALL)
    if name is None or value is None:
        return message
    option = f"--{name[1] if '.' in name[1] else name[1].replace('_', '-')} {value[1]}"
    unknown = re.search(r"Problem with given class_path '.*?':\s*(.*)", message)
    if unknown is not None:
        return f"{option}: {unknown[1]}"
    kinds = [
        KINDS.get(kind, kind)
        for kind in re.findall(r"Expected a <class '(\w+)'>", message)
    ]
    kinds = [
        f"a {kind}" for kind in re.findall(r"a subclass of (\w+)", message)
    ] + kinds
    if kinds:
        return f"{option}: must be {' or '.join(dict.fromkeys(kinds))}"
    return message


def _forget_stdout() -> None:
    """Write nothing more to stdout, not even what Python would flush at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STDOUT)
    os.close(nowhere)


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(USAGE)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from gnnplace.problem import list_versions

        sys.stdout.write(f"gnnplace {list_versions(['gnnplace'])['gnnplace']}\n")
        return 0
    name = arguments[0]
    options = arguments[1:]
    if name not in COMMANDS:
        near = GONE.get(name) or suggestion(name, COMMANDS)
        raise InputError(
            f"command {name!r}: unknown; commands: {', '.join(COMMANDS)}{near}"
        )
    from gnnplace.cli.console import changes_said, show_progress, working

    show_progress("--quiet" not in options)
    if "--quiet" in options:
        # It warns of configurations.
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    options = [argument for argument in options if argument != "--quiet"]
    if name == "train":
        from gnnplace.cli.train import run as train

        with changes_said():
            return train(options, quiet="--quiet" in arguments)
    parser = make_parser(name)
    args = parser.parse_args(options)
    from gnnplace.cli.numbers import check_numbers

    check_numbers(parser, args)
    with working(f"gnnplace {name}"), changes_said(), _profile_anew(args):
        return command(name).run(args)


def _profile_anew(args: Namespace) -> AbstractContextManager[None]:
    """Return a context in which op and link times are measured anew, if ``--fresh`` asks for it."""
    if not getattr(args, "fresh", False):
        return nullcontext()
    from gnnplace.costs import measure_anew

    return measure_anew()


def command(name: str) -> Command:
    """Import and return a command's module.

    It is imported here so that no command waits for what only others need.
    """
    return cast("Command", import_module(f"gnnplace.cli.{name.replace('-', '_')}"))


def make_parser(name: str) -> ArgumentParser:
    """Return the parser of a command's arguments."""
    from jsonargparse import ArgumentParser

    from gnnplace.cli.options import add_command

    parser = ArgumentParser(prog=f"gnnplace {name}", exit_on_error=False)
    parser.description = ROWS["commands"][name]["summary"]
    add_command(parser, name)
    return parser


def _fail(message: str, code: int, faults: Sequence[str] = ()) -> int:
    """Print one line for an error, or one for each of several faults, and return the exit code."""
    if len(faults) > 1:
        lines = list(faults[:MOST_FAULTS])
    else:
        lines = [message]
    if len(faults) > MOST_FAULTS:
        lines.append(f"and {len(faults) - MOST_FAULTS} more faults")
    with suppress(OSError):  # stderr may be as full as what this is about
        sys.stderr.write(
            "".join(f"gnnplace: {_line(text)}\n" for text in lines if text)
        )
    return code


def _line(message: str) -> str:
    line = " ".join(part.strip() for part in message.splitlines() if part.strip())
    if len(line) > LONGEST:  # a name out of a broken file may be a page
        line = f"{line[: LONGEST // 2]} ... {line[-LONGEST // 2 :]}"
    return line
