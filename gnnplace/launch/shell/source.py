"""A parsed script: nodes of `tree-sitter-bash` with the lines that their letters stand on."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cache

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from gnnplace.launch.shell.values import Text

PLACEHOLDER = re.compile(
    r"(?m)^([ \t]*(?:export[ \t]+)?\w+=)(<[^<>|&;'\n]{1,200}>\S{0,200})[ \t]*$"
)
"""`PATH=<your path>`: what examples leave to be filled in, which a shell cannot read."""


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


class Source:
    """A script, or the text of `eval` and `bash -c`.

    Attributes:
        data: The script's bytes.
        root: The node of the whole.
    """

    def __init__(self, data: bytes, starts: list[int], lines: list[int]) -> None:
        self.data = data
        self._starts = starts
        self._lines = lines
        self.root: Node = _parser().parse(data).root_node

    @classmethod
    def of_file(cls, text: str, *, is_sourced: bool = False) -> Source:
        """Return the source of a file. Lines of a file that another one sources are 0."""
        data = PLACEHOLDER.sub(r"\1'\2'", text).encode()
        if is_sourced:
            return cls(data, [0], [0])
        starts = [0]
        for offset, byte in enumerate(data):
            if byte == 10:
                starts.append(offset + 1)
        return cls(data, starts, list(range(1, len(starts) + 1)))

    @classmethod
    def of_text(cls, text: Text, placeholders: list[str]) -> Source:
        """Return the source of a text that a command made.

        Args:
            text: The segments of the text.
            placeholders: What stands for each unknown segment, in order.
        """
        data = b""
        starts: list[int] = []
        lines: list[int] = []
        unknown = iter(placeholders)
        for segment in text:
            starts.append(len(data))
            lines.append(segment.line)
            if segment.unknown is None:
                letters = segment.text
            else:
                letters = next(unknown)
            data += letters.encode()
        return cls(data, starts or [0], lines or [0])

    def line(self, offset: int) -> int:
        """Return the line that a byte stands on; 0 where it stands in another file."""
        return self._lines[bisect_right(self._starts, offset) - 1]

    def text(self, node: Node) -> str:
        """Return the letters of a node."""
        return self.slice(node.start_byte, node.end_byte)

    def slice(self, start: int, end: int) -> str:
        """Return the letters between two bytes."""
        return self.data[start:end].decode(errors="replace")
