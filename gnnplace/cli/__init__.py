"""The command line: one file a command, with its parser, its call and what it prints."""

from typing import TYPE_CHECKING

from gnnplace.lazy import lazy_names

if TYPE_CHECKING:  # the list of public names; ``lazy_names`` reads it too
    from gnnplace.cli.main import run_and_exit as run_and_exit

__getattr__, __dir__ = lazy_names(__name__)
