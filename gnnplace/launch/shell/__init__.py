"""The shell room: what commands a script would run, with which words, without running any.

`evaluate` follows assignments, arrays, conditions, loops, functions, heredocs, one level of `eval`
and files that stand beside the script. What only the environment has stays unknown, with its name.
"""

from gnnplace.launch.shell.evaluator import ShellCommand, ShellRun, evaluate
from gnnplace.launch.shell.values import (
    Text,
    TextSegment,
    Unknown,
    find_line,
    find_names,
    literal,
    plain,
    split_words,
)

__all__ = [
    "ShellCommand",
    "ShellRun",
    "Text",
    "TextSegment",
    "Unknown",
    "evaluate",
    "find_line",
    "find_names",
    "literal",
    "plain",
    "split_words",
]
