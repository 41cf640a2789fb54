"""Every error that gnnplace raises on purpose: one base, one class a cause.

A message is one line that says what is wrong, where (key path, op or device) and how to mend it.
The command line prints it and exits with the class's ``exit_code``; nothing else is printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches


class GnnplaceError(Exception):
    """Base of all errors raised on purpose.

    Attributes:
        exit_code: what the command line returns.
        faults: a line for each fault, where an input had several; the command line prints all.
    """

    exit_code = 2
    faults: tuple[str, ...] = ()


class InputError(GnnplaceError, ValueError):
    """An argument, a model or a combination of both that cannot be worked with."""


class FormatError(InputError):
    """A file that breaks its format; the message starts with the file and the key path."""


class DeadlockError(InputError):
    """Sequences that contradict the graph; the message names the ops of a cycle."""


class MismatchError(InputError):
    """A placement, plan or checkpoint that was made for something else."""


class UnsupportedError(InputError):
    """A placer, reader or device that cannot handle the problem; the message says why."""


class VersionError(UnsupportedError):
    """An installed library that lacks what is needed; the message says which releases work."""


class MissingExtraError(UnsupportedError):
    """A package that is not installed; the message says which extra of gnnplace brings it."""


class OtherLossError(InputError):
    """A loss that is another one once the batch is cut; the message names the op."""


class InfeasibleError(GnnplaceError):
    """No placement satisfies memory, links, kinds, pins and colocation."""

    exit_code = 3


class CaptureError(GnnplaceError):
    """A model that could not be captured; the message names the module and the line."""


class ExecutionError(GnnplaceError):
    """A run on workers that failed: a worker died, hung, or computed something else."""

    exit_code = 1


class ChangedWarning(UserWarning):
    """One line about what a captured step does otherwise than the model; the command prints it."""


def join_faults(
    kind: type[GnnplaceError], faults: Sequence[str], source: str = ""
) -> GnnplaceError:
    """Return one error for all faults of an input.

    Faults whose key paths differ by numbers alone share a line.

    Args:
        kind: its class.
        faults: one line each, at least one.
        source: what the lines begin with, such as the name of a file.
    """
    alike: dict[str, list[str]] = {}
    for fault in faults:
        path, _, message = fault.partition(": ")
        alike.setdefault(re.sub(r"\d+", "#", path) + message, []).append(fault)
    prefix = f"{source}: " if source else ""
    lines = []
    for first, *similar in alike.values():
        if similar:
            suffix = f" (so have {len(similar)} more)"
        else:
            suffix = ""
        lines.append(f"{prefix}{first}{suffix}")
    summary = lines[0]
    num_more = len(lines) - 1
    if num_more:
        summary += f" (and {num_more} more fault{'s' * (num_more > 1)})"
    error = kind(summary)
    error.faults = tuple(lines)
    return error


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for a name close to a known one, else an empty text."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    near = get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    if not near:
        return ""
    return f"; did you mean {' or '.join(repr(by_lower[candidate]) for candidate in near)}?"
